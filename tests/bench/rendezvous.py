"""Rendezvous hashing, the alternative that the ring is measured against."""

from collections.abc import Iterable
from hashlib import blake2b


class Rendezvous:
    """Every backend scores every key by a digest of both, and the highest score wins.

    There is nothing to build and the spread is as even as chance, but each lookup costs a digest for every backend.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [(name, blake2b(name.encode(), digest_size=8)) for name in sorted(names)]

    def __repr__(self) -> str:
        return f"<Rendezvous {len(self._names)} backends>"

    def _scores(self, key: bytes) -> list[tuple[bytes, str]]:
        scores = []
        for name, begun in self._names:
            digest = begun.copy()
            digest.update(key)
            scores.append((digest.digest(), name))
        return scores

    def home(self, key: bytes) -> str:
        return max(self._scores(key))[1]

    def order(self, key: bytes) -> list[str]:
        """Every name once, best first."""
        return [name for _, name in sorted(self._scores(key), reverse=True)]
