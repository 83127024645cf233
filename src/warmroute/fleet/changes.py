"""What a new configuration did to the fleet."""

from typing import NamedTuple


class Changes(NamedTuple):
    """What a new configuration did to the backends, by name. A changed URL replaces a backend by a new one.

    `leaving` are emptied and then removed. `by_hand` were added by an operator and stay, `removed_by_hand` stay away.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    reweighted: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    by_hand: tuple[str, ...] = ()
    removed_by_hand: tuple[str, ...] = ()

    def told(self) -> str:
        """One line for people; empty if nothing has changed."""
        return "; ".join(
            f"{word.replace('_', ' ')}: {', '.join(names)}" for word, names in self._asdict().items() if names
        )
