"""Why a conversation is no longer where it was, in one word of a closed set."""

from enum import StrEnum

from ..core.model import Reason
from .registry import Registry


class Move(StrEnum):
    """Labels metrics."""

    FAILOVER = "failover"  # its backend died, or failed the request
    DRAIN = "drain"  # its backend was drained
    REMOVED = "removed"  # its backend is no longer configured
    SLEEP = "sleep"  # its backend was put to sleep, which empties its cache
    SPILL = "spill"  # its backend was full
    COLD = "cold"  # its backend had dropped it, and was busy
    OWNER = "owner"  # it names a response that another backend made
    FORGOTTEN = "forgotten"  # its pin had expired, or another router placed it


def move_cause(registry: Registry, decision: str, left: str) -> Move:
    """Why a request that was placed by this decision did not go to the backend that its conversation left."""
    if decision == Reason.PIN_SPILL:
        return Move.SPILL
    if decision == Reason.PIN_COLD:
        return Move.COLD
    if decision == Reason.OWNER:
        return Move.OWNER
    backend = registry.backends.get(left)
    if backend is None:
        return Move.REMOVED
    if backend.asleep:
        return Move.SLEEP
    if backend.draining:
        return Move.DRAIN
    return Move.FAILOVER if decision in (Reason.PIN_LOST, Reason.PIN_HIT) or not backend.available else Move.FORGOTTEN
