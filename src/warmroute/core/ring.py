"""The weighted consistent-hash ring: every backend once, best first, the same in every process."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from hashlib import blake2b

POINTS_PER_BACKEND = 2048
"""Points of a backend of weight 1. Measured at 60,000 keys: max/mean 1.03 to 1.06 over 4 to 16 backends."""

_POINT_BYTES = 8
_POINTS_PER_DIGEST = 8


def position(key: bytes) -> int:
    """Where a key lies on the ring: 64 bits of BLAKE2b, a fixed digest (Python's `hash` differs per process)."""
    return int.from_bytes(blake2b(key, digest_size=_POINT_BYTES).digest(), "big")


def _points(name: str, count: int) -> Iterator[int]:
    encoded = name.encode()
    for start in range(0, count, _POINTS_PER_DIGEST):
        block = blake2b(encoded, digest_size=64, salt=start.to_bytes(8, "big")).digest()
        for i in range(min(_POINTS_PER_DIGEST, count - start)):
            yield int.from_bytes(block[i * _POINT_BYTES : (i + 1) * _POINT_BYTES], "big")


class Ring:
    """An immutable ring over named backends; built once for each change of the fleet.

    A backend's points depend on its own name and weight alone, so removing one moves only its own keys and adding one takes
    keys only for itself. Walking on from a point meets the others in an order that differs from point to point, so the keys
    of a lost backend spread over all that remain. Restricting the walk to some of the backends (those that serve a model)
    gives the ring that those alone would form.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.names = tuple(sorted(weights))
        pairs = sorted(
            (point, index)
            for index, name in enumerate(self.names)
            for point in _points(name, max(1, round(weights[name] * POINTS_PER_BACKEND)))
        )
        self._keys = [point for point, _ in pairs]
        self._owners = [index for _, index in pairs]

    def __repr__(self) -> str:
        return f"<Ring {len(self.names)} backends, {len(self._keys)} points>"

    def order(self, key: bytes) -> Iterator[str]:
        """Yield every backend's name once, the key's home first. Lazy: the home alone costs one digest and one bisection."""
        owners, names = self._owners, self.names
        if not names:
            return
        start = bisect_right(self._keys, position(key)) % len(owners)
        last = owners[start]
        yield names[last]
        seen = {last}
        at = start
        while len(seen) < len(names):
            at = at + 1 if at + 1 < len(owners) else 0
            owner = owners[at]
            if owner not in seen:
                seen.add(owner)
                yield names[owner]
