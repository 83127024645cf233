"""May a failed exchange be tried again, and where?"""

from enum import StrEnum

from .model import Failure, Phase


class Verdict(StrEnum):
    SAME = "same"  # the same backend, on a fresh connection
    OTHER = "other"  # the next backend
    GIVE_UP = "give_up"


MAX_SENT = 2
"""Backends that may see one request: a request can kill an engine, so one that took down two is not given a third."""


def verdict(failure: Failure, *, sent: int) -> Verdict:
    """What to do after a failure; `sent` counts the backends that have had the request sent to them, this one included.

    A refused connection has carried nothing, so it uses up no try; but a backend that died of the request and then refused
    has had it. After content has reached the client nothing may be sent again.
    """
    if failure.phase is Phase.STREAM or failure.own:
        return Verdict.GIVE_UP
    if failure.stale:
        return Verdict.SAME
    return Verdict.OTHER if sent < MAX_SENT else Verdict.GIVE_UP
