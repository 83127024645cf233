"""What happens to the backends while the workload runs."""

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """A change of the fleet."""

    SCALE_OUT = "scale_out"  # one backend more
    SCALE_IN = "scale_in"  # the last backend is drained, and removed at the drain's deadline
    FAIL = "fail"  # the first backend that is up dies, its cache with it


@dataclass(frozen=True, slots=True)
class Event:
    """`at` seconds after the start. `lasts` is how long a failure does, None for ever."""

    kind: Kind
    at: float
    lasts: float | None = None
