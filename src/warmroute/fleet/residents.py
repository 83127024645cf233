"""What every engine's cache holds of which conversation, and whether that is known at all."""

from collections import OrderedDict
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

from ..core.residency import MOST_SESSIONS, Held, Residency
from .kv_wire import AllBlocksCleared, Batch, BlockRemoved, BlockStored

_LABEL_SIZE = 16
_KNOW_ALL = frozenset({None, "full_attention", "mla_attention", "sink_full_attention", "unknown"})
"""Kinds of layers whose blocks are kept for the whole prompt; those of others are dropped as a window passes."""
_GPU = "GPU"


class Sync(StrEnum):
    """Whether what is known of a backend's caches is so now. A closed set that people see."""

    OFF = "off"  # it publishes no events
    GAP = "gap"  # it does, but they are not heard, or some were missed and are being fetched
    LIVE = "live"


class EngineCache:
    """One engine's cache as its events tell it.

    `tiered`: it has a tier behind it, from which dropped blocks may come back. `gaps` counts times when events were missed,
    `losses` those of them that could not be made up for, `batches` all messages.
    """

    def __init__(self, residents: "Residents", blocks: int) -> None:
        self._residents = residents
        self._group: int | None = None
        self.residency = Residency(blocks)
        self.sync = Sync.GAP
        self.tiered = False
        self.batches = self.gaps = self.losses = 0

    def __repr__(self) -> str:
        return f"<EngineCache {self.sync} {self.residency!r}>"

    def take(self, batch: Batch) -> None:
        """What happened in one step. One group of layers stands for all."""
        self.batches += 1
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.residency.cleared()
            elif event.medium not in (None, _GPU):
                self.tiered = True
            elif isinstance(event, BlockRemoved):
                if event.group_idx == self._group:
                    self.residency.removed(event.block_hashes)
            elif event.kv_cache_spec_kind in _KNOW_ALL:
                self._stored(event)

    def _stored(self, event: BlockStored) -> None:
        if self.residency.blocks == 0:
            self._group = event.group_idx
        if event.group_idx == self._group:
            label = self._residents.label_of(event.session_id)
            self.residency.stored(label, event.block_hashes, event.parent_block_hash, event.block_size)


class Warm(NamedTuple):
    """How warm a conversation is on one engine."""

    backend: str
    engine: str
    held: Held


class Residents:
    """Backend and engine -> EngineCache. Sessions are known to the backends by a label, a digest that is keyed with `key`."""

    def __init__(self, key: bytes, blocks: int) -> None:
        self._key = key
        self._blocks = blocks
        self._aliases: OrderedDict[bytes, str] = OrderedDict()
        self.caches: dict[str, dict[str, EngineCache]] = {}

    def __repr__(self) -> str:
        return f"<Residents {self.caches}>"

    def label(self, session: bytes) -> str:
        """What the backends are told as the session's id."""
        return blake2b(session, digest_size=_LABEL_SIZE, key=self._key, person=b"wr-kv-label").hexdigest()

    def also_called(self, session: bytes, name: str) -> None:
        """vLLM will call the session by this name, which the client has put where it goes before ours."""
        alias = self._alias(name)
        self._aliases[alias] = self.label(session)
        self._aliases.move_to_end(alias)
        if len(self._aliases) > MOST_SESSIONS:
            self._aliases.popitem(last=False)

    def label_of(self, session_id: str | None) -> str | None:
        """The label of the session that an event names; None if it names none of ours."""
        if session_id is None:
            return None
        found = self._aliases.get(self._alias(session_id)) if self._aliases else None
        return found or (session_id if len(session_id) == 2 * _LABEL_SIZE else None)

    def open(self, backend: str, engine: str) -> EngineCache:
        """The cache of an engine whose events are going to be heard: empty, as nothing is known of it."""
        cache = self.caches.setdefault(backend, {})[engine] = EngineCache(self, self._blocks)
        return cache

    def close(self, backend: str) -> None:
        """The backend's events are not heard any more."""
        self.caches.pop(backend, None)

    def sync(self, backend: str) -> Sync:
        """The state of a backend: that of its engine of which least is known."""
        caches = self.caches.get(backend, {}).values()
        if not caches:
            return Sync.OFF
        return Sync.LIVE if all(cache.sync is Sync.LIVE for cache in caches) else Sync.GAP

    def held(self, session: bytes, backend: str, engine: str | None) -> Held | None:
        """What an engine holds of a session; None where that is not known for sure, or the session was never there."""
        cache = self._cache(backend, engine)
        return cache.residency.held(self.label(session)) if cache is not None else None

    def cold(self, session: bytes, backend: str, engine: str | None) -> bool:
        """Whether it is certain that next to nothing of a session is left on an engine, nor in a tier behind it."""
        cache = self._cache(backend, engine)
        if cache is None or cache.tiered:
            return False
        held = cache.residency.held(self.label(session))
        return held is not None and held.cold

    def evicted(self, session: bytes, backend: str, engine: str | None, before: Held | None) -> int | None:
        """Tokens that a request did not find because they had gone: before it came (as `before` says), or while it waited."""
        now = None if before is None else self.held(session, backend, engine)
        if before is None or now is None:
            return None
        return before.tokens - before.live + now.evicted - before.evicted

    def warm(self, session: bytes) -> list[Warm]:
        """The engines that are known to have had a session, and what is left of it there."""
        label = self.label(session)
        return [
            Warm(backend, engine, held)
            for backend, caches in self.caches.items()
            for engine, cache in sorted(caches.items())
            if cache.sync is Sync.LIVE and (held := cache.residency.held(label)) is not None
        ]

    def _cache(self, backend: str, engine: str | None) -> EngineCache | None:
        """The cache of an engine, None if it is not known as it is now. A backend's only engine has no name among pins."""
        caches = self.caches.get(backend)
        if not caches:
            return None
        cache = caches.get(engine) if engine is not None else next(iter(caches.values())) if len(caches) == 1 else None
        return cache if cache is not None and cache.sync is Sync.LIVE else None

    def _alias(self, name: str) -> bytes:
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_LABEL_SIZE, key=self._key).digest()
