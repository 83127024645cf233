"""Where backends are looked for beside the list of the configuration itself."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from .values import Seconds, Section


class FileDiscovery(Section):
    """A file that lists backends and is looked at every `interval`; none without a `path`."""

    path: Path | None = None
    interval: Annotated[Seconds, Field(ge=0.1)] = 1.0


class DiscoveryConfig(Section):
    """Sources of backends that may change while the router runs."""

    file: FileDiscovery = FileDiscovery()

    @property
    def sources(self) -> list[str]:
        """The keys of the sources that are to be asked."""
        wanted = {"file": self.file.path is not None}
        return [name for name, is_wanted in wanted.items() if is_wanted]
