"""What round robin would have hit: the same requests dealt in turn to as many other prefix caches. No sockets, no time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import cycle

from warmroute.sim.prefix_cache import CacheCounters, CacheSequence, PrefixCache


class RoundRobinShadow:
    """`servers` prefix caches of `num_blocks` blocks each; requests go to one after the other.

    A request holds its blocks between `started` and `ended`, as on a real server. One that finds no room while others
    run counts as asked and missed.
    """

    def __init__(self, servers: int, num_blocks: int, block_size: int) -> None:
        if servers < 1:
            raise ValueError(f"servers is {servers}; give at least 1")
        self._caches = [PrefixCache(num_blocks, block_size) for _ in range(servers)]
        self._turns = cycle(self._caches)
        self._running: dict[Hashable, tuple[PrefixCache, CacheSequence]] = {}

    def started(self, request: Hashable, prompt: Sequence[int]) -> int:
        """A request (any name of its own) with these prompt tokens begins; how many of them its cache held."""
        cache = next(self._turns)
        sequence = cache.sequence(prompt)
        if not cache.admit(sequence):
            cache.counters.queries += sequence.num_tokens
            return 0
        cache.extend(sequence, sequence.num_tokens - sequence.computed)
        self._running[request] = cache, sequence
        return sequence.local_hit

    def ended(self, request: Hashable, generated: Sequence[int]) -> None:
        """The request ends after these tokens. Does nothing for one that found no room."""
        cache, sequence = self._running.pop(request, (None, None))
        if cache is None or sequence is None:
            return
        for token in generated:
            if sequence.computed < sequence.num_tokens and not cache.extend(sequence):
                break
            sequence.append(token)
        cache.release(sequence)

    @property
    def counters(self) -> CacheCounters:
        """The sum over the caches."""
        return CacheCounters(
            queries=sum(cache.counters.queries for cache in self._caches),
            hits=sum(cache.counters.hits for cache in self._caches),
        )

    def __repr__(self) -> str:
        return f"RoundRobinShadow(servers={len(self._caches)}, running={len(self._running)}, {self.counters!r})"
