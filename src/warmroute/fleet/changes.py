"""What a new configuration did to the fleet."""

from typing import NamedTuple


class Changes(NamedTuple):
    """What a new configuration did to the backends, by name. A changed URL replaces a backend by a new one."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    reweighted: tuple[str, ...] = ()
