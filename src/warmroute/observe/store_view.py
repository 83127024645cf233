"""What is shown of a shared store, whether one process uses it or several do."""

from collections import Counter
from typing import Protocol


class StoreView(Protocol):
    """Whether it is in use, and why not; uses that failed, and questions that were not asked, by kind."""

    @property
    def up(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def errors(self) -> Counter[str]: ...
    @property
    def dropped(self) -> Counter[str]: ...


class SharedView(Protocol):
    """The store, stored values that were of no use, by reason, and sessions that were found to live elsewhere."""

    @property
    def store(self) -> StoreView: ...
    @property
    def ignored(self) -> Counter[str]: ...
    @property
    def adopted(self) -> int: ...
