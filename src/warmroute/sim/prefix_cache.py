"""The prefix cache of one engine: which blocks vLLM's KV cache manager would hit, evict and refuse. Pure."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from warmroute.sim.host_tier import HostTier


@dataclass(slots=True)
class CacheCounters:
    """What vLLM's prefix cache counters would show, in tokens. Requests that come back after preemption do not count.

    The external ones count what the host tier was asked for: the tokens of a prompt that the device did not hold.
    """

    queries: int = 0
    hits: int = 0
    external_queries: int = 0
    external_hits: int = 0

    @property
    def hit_rate(self) -> float:
        """Device hits by queries, 0.0 before the first query."""
        return self.hits / self.queries if self.queries else 0.0


class CacheSequence:
    """The tokens of one request and the blocks it holds. Made by `PrefixCache.sequence`, changed only by the cache.

    `computed` counts tokens with KV; `local_hit` and `external_hit` are what the last admission found, in tokens.
    """

    def __init__(self, tokens: Iterable[int], block_size: int, salt: str | None) -> None:
        self.tokens = array("q", tokens)
        self.prompt_tokens = len(self.tokens)
        self.computed = 0
        self.local_hit = 0
        self.external_hit = 0
        self.blocks: list[int] = []
        self._block_size = block_size
        self._root = blake2b(salt.encode(), digest_size=16).digest() if salt else b""
        self._hashes: list[bytes] = []
        self._named = 0  # how many of `blocks` carry their hash in the cache
        self._offered_from = 0  # first block that is still to be offered to the host tier
        self._host_used: OrderedDict[bytes, None] = OrderedDict()
        self._hash_full_blocks()

    @property
    def num_tokens(self) -> int:
        """Prompt tokens and generated ones."""
        return len(self.tokens)

    @property
    def hashes(self) -> Sequence[bytes]:
        """One hash per full block of tokens, each chained from the one before it."""
        return self._hashes

    def append(self, token: int) -> None:
        """Add a sampled token; it has no KV until a later `PrefixCache.extend` reaches it."""
        self.tokens.append(token)
        if len(self.tokens) % self._block_size == 0:
            self._hash_full_blocks()

    def _hash_full_blocks(self) -> None:
        size = self._block_size
        for index in range(len(self._hashes), len(self.tokens) // size):
            digest = blake2b(self._hashes[-1] if index else self._root, digest_size=16)
            digest.update(self.tokens[index * size : (index + 1) * size].tobytes())
            self._hashes.append(digest.digest())

    def __repr__(self) -> str:
        return (
            f"CacheSequence(tokens={len(self.tokens)}, computed={self.computed}, blocks={len(self.blocks)}, "
            f"local_hit={self.local_hit}, external_hit={self.external_hit})"
        )


class PrefixCache:
    """`num_blocks` blocks of `block_size` tokens (one of them the null block), and `host_blocks` more in host memory.

    The life of a request: `sequence`, `admit` (with the hits found), `load` if the host tier had some, `extend` for
    the rest of the prompt and for each token that is computed after it, `release`. A request that was preempted is
    released and admitted again. Blocks free in the order in which vLLM frees them: those without a hash first, then
    the longest unused, and within one request the tail first.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, *, host_blocks: int = 0) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks is {num_blocks}; give at least 2, for one of them is the null block")
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; give at least 1 token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.host = HostTier(host_blocks)
        self.counters = CacheCounters()
        # Block 0 is the null block: never given out.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._refs = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        # Equal blocks are not merged: two requests may compute the same one at the same time. The oldest is hit.
        self._blocks_of: dict[bytes, dict[int, None]] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds; they may still be cached."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """The share of blocks that requests hold, 0.0 to 1.0, as vLLM's ``kv_cache_usage_perc``."""
        return 1.0 - len(self._free) / (self.num_blocks - 1)

    def sequence(self, tokens: Iterable[int], salt: str | None = None) -> CacheSequence:
        """A request for `tokens` (integers below 2**63); a `salt` keeps it apart from requests with another one.

        Raises ValueError when there are no tokens.
        """
        sequence = CacheSequence(tokens, self.block_size, salt)
        if not sequence.num_tokens:
            raise ValueError("a request needs at least one token")
        return sequence

    def admit(self, sequence: CacheSequence, *, counted: bool = True) -> bool:
        """Find what is cached of a waiting request and take it; False (nothing changed) when its tokens do not fit.

        At least the last token is left to compute on the device, so a device hit never covers the block it is in.
        After True, `sequence.computed` covers the device hits; `sequence.external_hit` tokens can be loaded.
        """
        if sequence.blocks:
            raise ValueError("the request holds blocks already; release it before it is admitted again")
        local = self._find_local(sequence)
        external = self._find_external(sequence, len(local))
        needed = -(-sequence.num_tokens // self.block_size) - len(local)
        if needed + sum(self._refs[b] == 0 for b in local) > len(self._free):
            return False
        self._take(local)
        sequence.blocks.extend(local)
        sequence._named = len(local)
        sequence.local_hit = sequence.computed = len(local) * self.block_size
        sequence.external_hit = external * self.block_size
        sequence.blocks.extend(self._allocate(external))
        if counted:
            self._count(sequence)
        return True

    def load(self, sequence: CacheSequence) -> None:
        """The host tier's blocks have arrived; a prompt that is complete by them has its last token computed anew."""
        reached = sequence.local_hit + sequence.external_hit
        first, last = sequence._named, reached // self.block_size
        self._name(sequence, last)
        sequence.computed = min(reached, sequence.num_tokens - 1)
        sequence._offered_from = last
        sequence._host_used.update(dict.fromkeys(sequence.hashes[first:last]))

    def extend(self, sequence: CacheSequence, count: int = 1) -> bool:
        """Compute the next `count` tokens; False (nothing changed) when there is no free block for them.

        `count` may reach one past the known tokens: the slot in which a running step writes before its token is known.
        """
        reached = sequence.computed + count
        needed = -(-reached // self.block_size) - len(sequence.blocks)
        if needed > len(self._free):
            return False
        if needed > 0:
            sequence.blocks.extend(self._allocate(needed))
        sequence.computed = reached
        full = min(min(reached, sequence.num_tokens) // self.block_size, len(sequence.hashes))
        self._name(sequence, full)
        self._offer(sequence, full)
        return True

    def release(self, sequence: CacheSequence, *, preempted: bool = False) -> None:
        """Give the blocks back, tail first. What is cached stays so until its block is needed."""
        if self.host.capacity and not preempted:
            self.host.touch(sequence._host_used)
        unnamed = []
        for block in reversed(sequence.blocks):
            self._refs[block] -= 1
            if self._refs[block]:
                continue
            if self._hash_of[block] is None:
                unnamed.append(block)
            else:
                self._free[block] = None
        for block in reversed(unnamed):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        sequence.blocks.clear()
        sequence._named = 0
        sequence.computed = 0

    def cached_tokens(self, tokens: Iterable[int], salt: str | None = None) -> int:
        """How many of these prompt tokens a request would hit on the device now. Changes nothing."""
        return len(self._find_local(self.sequence(tokens, salt))) * self.block_size

    def _find_local(self, sequence: CacheSequence) -> list[int]:
        found: list[int] = []
        for block_hash in sequence.hashes[: (sequence.num_tokens - 1) // self.block_size]:
            blocks = self._blocks_of.get(block_hash)
            if blocks is None:
                break
            found.append(next(iter(blocks)))
        return found

    def _find_external(self, sequence: CacheSequence, local: int) -> int:
        return self.host.match(sequence.hashes[local:]) if self.host.capacity else 0

    def _count(self, sequence: CacheSequence) -> None:
        self.counters.queries += sequence.num_tokens
        self.counters.hits += sequence.local_hit
        if self.host.capacity:
            self.counters.external_queries += sequence.num_tokens - sequence.local_hit
            self.counters.external_hits += sequence.external_hit

    def _take(self, blocks: list[int]) -> None:
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def _allocate(self, count: int) -> list[int]:
        pop, refs, hash_of = self._free.popitem, self._refs, self._hash_of
        blocks = [pop(last=False)[0] for _ in range(count)]
        for block in blocks:
            refs[block] = 1
            if hash_of[block] is not None:
                self._forget(block)
        return blocks

    def _forget(self, block: int) -> None:
        block_hash = self._hash_of[block]
        if block_hash is None:
            return
        self._hash_of[block] = None
        same = self._blocks_of[block_hash]
        del same[block]
        if not same:
            del self._blocks_of[block_hash]

    def _name(self, sequence: CacheSequence, full: int) -> None:
        for index in range(sequence._named, full):
            block, block_hash = sequence.blocks[index], sequence.hashes[index]
            self._hash_of[block] = block_hash
            self._blocks_of.setdefault(block_hash, {})[block] = None
        sequence._named = max(sequence._named, full)

    def _offer(self, sequence: CacheSequence, full: int) -> None:
        if not self.host.capacity or full <= sequence._offered_from:
            return
        offered = sequence.hashes[sequence._offered_from : full]
        if self.host.offer(offered):
            sequence._offered_from = full
        sequence._host_used.update((h, None) for h in offered if h in self.host)

    def __repr__(self) -> str:
        return (
            f"PrefixCache(blocks={self.num_blocks}, block_size={self.block_size}, free={self.free_blocks}, "
            f"cached={len(self._blocks_of)}, host={self.host!r}, {self.counters!r})"
        )
