"""Which backends know the beginning of a prompt? Digests of beginnings -> the places that have computed them."""

from collections.abc import Callable, Sequence

from ..core.model import Place
from .recent import Recent

_MOST_PLACES = 16
SHORTEST = 2
"""Cuts of 512 bytes from which on a beginning is worth going after: about 256 tokens."""


class Heads:
    """Beginnings that were seen, by the digests of `core.history.head_digests`; an entry costs some 0.2 KB."""

    def __init__(self, clock: Callable[[], float], *, expiry: float, limit: int) -> None:
        self._known: Recent[tuple[Place, ...]] = Recent(clock, expiry=expiry, limit=limit)

    def __repr__(self) -> str:
        return f"<Heads {len(self._known)} entries>"

    def __len__(self) -> int:
        return len(self._known)

    def find(self, digests: Sequence[bytes]) -> tuple[Place, ...]:
        """The places that know the longest beginning, the latest first; none if only a short one is known."""
        for digest in reversed(digests[SHORTEST - 1 :]):
            places = self._known.get(digest)
            if places:
                return places
        return ()

    def learn(self, digest: bytes, place: Place) -> None:
        """Another router knows a place that has computed this beginning; what is known here already stays."""
        if self._known.get(digest) is None:
            self._known.put(digest, (place,))

    def served(self, digests: Sequence[bytes], place: Place) -> None:
        """Note that a place has computed a prompt with these beginnings."""
        for digest in digests[SHORTEST - 1 :]:
            known = self._known.get(digest) or ()
            if not known or known[0] != place:
                known = (place, *(other for other in known if other != place))[:_MOST_PLACES]
            self._known.put(digest, known)
