"""The engines' caches as their own events tell of them."""

from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b

from ..core.residency import MOST_SESSIONS, Held, Residency
from .kv_wire import AllBlocksCleared, Batch, BlockRemoved, BlockStored
from .residents import LABEL_SIZE, Residents, Sync

_KNOW_ALL = frozenset({None, "full_attention", "mla_attention", "sink_full_attention", "unknown"})
"""Kinds of layers whose blocks are kept for the whole prompt; those of others are dropped as a window passes."""
_GPU = "GPU"


class EngineCache:
    """One engine's cache as its events tell it.

    `tiered`: it has a tier behind it, from which dropped blocks may come back. `gaps` counts times when events were missed,
    `losses` those of them that could not be made up for, `batches` all messages.
    """

    def __init__(self, residents: "HeardResidents", blocks: int) -> None:
        self._residents = residents
        self._group: int | None = None
        self._sync = Sync.GAP
        self.residency = Residency(blocks)
        self.tiered = False
        self.batches = self.gaps = self.losses = 0

    def __repr__(self) -> str:
        return f"<EngineCache {self.sync} {self.residency!r}>"

    @property
    def sync(self) -> Sync:
        return self._sync

    @sync.setter
    def sync(self, now: Sync) -> None:
        self._sync = now
        self._residents.on_change()

    def held(self, label: str) -> Held | None:
        """What is there of a conversation; None if it is not known to have been there."""
        return self.residency.held(label)

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
        self._residents.on_change()

    def _stored(self, event: BlockStored) -> None:
        if self.residency.blocks == 0:
            self._group = event.group_idx
        if event.group_idx == self._group:
            label = self._residents.label_of(event.session_id)
            self.residency.stored(label, event.block_hashes, event.parent_block_hash, event.block_size)


class HeardResidents(Residents):
    """Knows at most `blocks` blocks of each engine. `on_change` is called whenever something of it may have changed."""

    def __init__(self, key: bytes, blocks: int) -> None:
        super().__init__(key)
        self._blocks = blocks
        self._aliases: OrderedDict[bytes, str] = OrderedDict()
        self.caches: dict[str, dict[str, EngineCache]] = {}
        self.on_change: Callable[[], None] = lambda: None

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
        return found or (session_id if len(session_id) == 2 * LABEL_SIZE else None)

    def open(self, backend: str, engine: str) -> EngineCache:
        """The cache of an engine whose events are going to be heard: empty, as nothing is known of it."""
        cache = self.caches.setdefault(backend, {})[engine] = EngineCache(self, self._blocks)
        self.on_change()
        return cache

    def close(self, backend: str) -> None:
        """The backend's events are not heard any more."""
        if self.caches.pop(backend, None) is not None:
            self.on_change()

    def _alias(self, name: str) -> bytes:
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=LABEL_SIZE, key=self.key).digest()
