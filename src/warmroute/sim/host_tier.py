"""The second cache tier of one engine: whole KV blocks kept in host memory, least recently used first out. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class HostTier:
    """Up to ``capacity`` blocks, named by their block hash.

    Blocks are offered as they are computed, not when the device drops them, and one that is already held is not
    stored twice. An offer that cannot be stored whole is refused whole, as a vLLM store job is.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"host_blocks is {capacity}; give 0 (no host tier) or a number of blocks")
        self.capacity = capacity
        self._oldest_first: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._oldest_first)

    def __contains__(self, block_hash: bytes) -> bool:
        return block_hash in self._oldest_first

    def match(self, hashes: Sequence[bytes]) -> int:
        """How many of `hashes` are held, counted from the first until one is missing."""
        for position, block_hash in enumerate(hashes):
            if block_hash not in self._oldest_first:
                return position
        return len(hashes)

    def offer(self, hashes: Sequence[bytes]) -> bool:
        """Store those of `hashes` that are missing; False when there is no room without dropping one of `hashes`."""
        missing = [h for h in hashes if h not in self._oldest_first]
        to_evict = len(missing) - (self.capacity - len(self._oldest_first))
        if to_evict > 0 and not self._evict(to_evict, frozenset(hashes)):
            return False
        for block_hash in missing:
            self._oldest_first[block_hash] = None
        return True

    def touch(self, hashes: Iterable[bytes]) -> None:
        """Mark the held ones of `hashes` (in the order of the prompt) as just used, the first one the most recently."""
        for block_hash in reversed(list(hashes)):
            if block_hash in self._oldest_first:
                self._oldest_first.move_to_end(block_hash)

    def _evict(self, count: int, protected: frozenset[bytes]) -> bool:
        victims: list[bytes] = []
        for block_hash in self._oldest_first:
            if len(victims) == count:
                break
            if block_hash not in protected:
                victims.append(block_hash)
        if len(victims) < count:
            return False
        for block_hash in victims:
            del self._oldest_first[block_hash]
        return True

    def __repr__(self) -> str:
        return f"HostTier(capacity={self.capacity}, held={len(self)})"
