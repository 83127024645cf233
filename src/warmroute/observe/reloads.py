"""What became of the reloads of the configuration."""

from collections import Counter
from dataclasses import dataclass, field


class ReloadError(Exception):
    """A reload that changed nothing; the text says why, one line a fault.

    `refused`: the configuration is good, but cannot be put in force now; else it cannot be used at all.
    """

    def __init__(self, reason: str, *, refused: bool) -> None:
        super().__init__(reason)
        self.refused = refused


@dataclass(slots=True)
class Reloads:
    """How often, and why the last one failed; `error` is empty if it did not."""

    results: Counter[str] = field(default_factory=lambda: Counter({"ok": 0, "invalid": 0, "refused": 0}))
    error: str = ""

    def succeeded(self) -> None:
        self.results["ok"] += 1
        self.error = ""

    def failed(self, error: ReloadError) -> None:
        """The configuration of before is in force."""
        self.results["refused" if error.refused else "invalid"] += 1
        self.error = str(error)
