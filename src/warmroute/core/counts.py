"""Counts that every request adds to."""

from collections import Counter
from typing import TypeVar

Key = TypeVar("Key")


class Counts(Counter[Key]):
    """A Counter that is as quick to add to as a dict.

    Counter has a `__delitem__` of its own, so that Python looks for a method at each assignment too.
    """

    __slots__ = ()

    __delitem__ = dict.__delitem__  # type: ignore[assignment]  # of whatever key, as a Counter's is said to be
