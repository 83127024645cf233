"""One source of backends as everybody sees it: what it named last, and whether it can be asked now."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.model import BackendSpec

log = logging.getLogger("warmroute.discovery")

Read = Callable[[object], BackendSpec]
"""One backend as a list of them names it, a URL or a mapping, if it can be used; else raises ValueError with one line."""


@dataclass(slots=True, repr=False)
class Source:
    """What is known by one way of finding backends. A failure changes nothing of `specs`.

    `asked` is set from the first answer or failure on; `at` is when it answered last, in seconds of `clock`; `changed` is
    called when it names other backends than before.
    """

    name: str
    clock: Callable[[], float]
    changed: Callable[[], None]
    specs: tuple[BackendSpec, ...] = ()
    at: float | None = None
    error: str = ""
    failures: int = 0
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    def __repr__(self) -> str:
        return f"<Source {self.name}, {len(self.specs)} backends{', ' + self.error if self.error else ''}>"

    @property
    def up(self) -> bool:
        """Whether it has answered, and did so when it was asked last."""
        return self.at is not None and not self.error

    def found(self, specs: Sequence[BackendSpec]) -> None:
        """Take an answer."""
        if self.error:
            log.info("discovery.%s works again, and names %d backends", self.name, len(specs))
        self.error, self.at = "", self.clock()
        self._take(specs)

    def failed(self, why: str, specs: Sequence[BackendSpec] | None = None) -> None:
        """It could not be asked, or said what is of no use: what it named before stays. The same reason is told once.

        `specs` are for a failure in part: what is known all the same.
        """
        self.failures += 1
        if why != self.error:
            log.warning("discovery.%s: %s; the %d backends of before stay", self.name, why, len(self.specs))
        self.error = why
        self._take(self.specs if specs is None else specs)

    def _take(self, specs: Sequence[BackendSpec]) -> None:
        self.asked.set()
        if tuple(specs) != self.specs:
            self.specs = tuple(specs)
            self.changed()
