"""What the supervisor hears of the backends' caches, told to the workers; and their copy, which their decisions read.

The supervisor alone hears and keeps the blocks, once for all; workers are told of each conversation what is left of it, which
is some 160 bytes for each engine that had it, whenever that has changed.
"""

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple, NoReturn

from ..core.residency import Held
from ..fleet.heard import EngineCache, HeardResidents
from ..fleet.residents import LABEL_SIZE, Residents, Sync

_TOGETHER = 0.005
"""Seconds for which changes wait for others: a busy engine tells of hundreds each second."""
_HELD = struct.Struct("<QQQB")
"""Tokens, living tokens, evicted tokens, and what is known of them."""
_ROW = struct.Struct(f"{LABEL_SIZE}s{_HELD.size}s")
_NOTHING = bytes(_HELD.size)
"""In place of what a cache holds of a conversation of which it is not known to have had any."""
_KNOWN, _WHOLE = 1, 2


class CacheView(NamedTuple):
    """One engine's cache as it has changed. `anew`: what was told of it before does not count. `rows` are packed.

    An engine that is not heard any more is told of as one of whose backend the events are off.
    """

    backend: str
    engine: str
    sync: str
    tiered: bool
    anew: bool
    rows: bytes


def _rows(cache: EngineCache, labels: Iterable[str]) -> bytes:
    """What a cache holds of each of these conversations. A label that is none of ours is left out."""
    rows: list[bytes] = []
    for label in labels:
        try:
            name = bytes.fromhex(label)
        except ValueError:
            continue
        if len(name) == LABEL_SIZE:
            held = cache.held(label)
            rows += (name, _NOTHING if held is None else _HELD.pack(*held[:3], _KNOWN | _WHOLE * held.whole))
    return b"".join(rows)


class CacheTeller:
    """Tells of every change soon after it was heard. `tell` reaches all workers that there are."""

    def __init__(self, residents: HeardResidents, tell: Callable[..., None]) -> None:
        self._residents = residents
        self._tell = tell
        self._told: dict[tuple[str, str], tuple[EngineCache, CacheView]] = {}
        self._changed = asyncio.Event()
        residents.on_change = self._changed.set

    def __repr__(self) -> str:
        return f"<CacheTeller of {len(self._told)} engines>"

    def everything(self) -> tuple[CacheView, ...]:
        """All caches, for a worker that knows nothing yet and is told of all changes from now on."""
        return tuple(self._view(*key, cache, True, cache.residency.labels()) for key, cache in self._caches())

    def changes(self) -> list[CacheView]:
        """What has changed since this was asked last."""
        now = dict(self._caches())
        gone = [key for key in self._told if key not in now]
        found = [CacheView(*key, Sync.OFF.value, False, True, b"") for key in gone]
        for key in gone:
            del self._told[key]
        for key, cache in now.items():
            before = self._told.get(key)
            anew = before is None or before[0] is not cache
            labels = cache.residency.labels() if anew else cache.residency.changed
            view = self._view(*key, cache, anew, labels or ())
            cache.residency.changed = set()
            bare = view._replace(anew=False, rows=b"")
            if anew or view.rows or before is None or before[1] != bare:
                found.append(view)
                self._told[key] = cache, bare
        return found

    async def run(self) -> NoReturn:
        """Tell for ever; ends by cancellation."""
        while True:
            await self._changed.wait()
            await asyncio.sleep(_TOGETHER)
            self._changed.clear()
            changes = self.changes()
            if changes:
                self._tell("caches", changes)

    def _caches(self) -> Iterable[tuple[tuple[str, str], EngineCache]]:
        for backend, caches in self._residents.caches.items():
            for engine, cache in caches.items():
                yield (backend, engine), cache

    @staticmethod
    def _view(backend: str, engine: str, cache: EngineCache, anew: bool, labels: Iterable[str]) -> CacheView:
        return CacheView(backend, engine, cache.sync.value, cache.tiered, anew, _rows(cache, labels))


class ToldCache:
    """A worker's copy of what is known of one engine's cache."""

    def __init__(self) -> None:
        self.sync = Sync.GAP
        self.tiered = False
        self._held: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"<ToldCache {self.sync}, {len(self._held)} sessions>"

    def held(self, label: str) -> Held | None:
        """What is there of a conversation; None if it is not known to have been there."""
        found = self._held.get(bytes.fromhex(label))
        if found is None:
            return None
        tokens, live, evicted, known = _HELD.unpack(found)
        return Held(tokens, live, evicted, bool(known & _WHOLE))

    def take(self, view: CacheView) -> None:
        """Take over what the supervisor tells."""
        if view.anew:
            self._held.clear()
        self.sync, self.tiered = Sync(view.sync), view.tiered
        for label, held in _ROW.iter_unpack(view.rows):
            if held == _NOTHING:
                self._held.pop(label, None)
            else:
                self._held[label] = held


class ToldResidents(Residents):
    """A worker's copy of what is known of all caches. `tell` reaches the supervisor."""

    def __init__(self, key: bytes, tell: Callable[..., None]) -> None:
        super().__init__(key)
        self._tell = tell
        self.caches: dict[str, dict[str, ToldCache]] = {}

    def also_called(self, session: bytes, name: str) -> None:
        """The supervisor hears the events: it has to know, before the backend does, whose name that is."""
        self._tell("called", session, name)

    def take(self, views: Iterable[CacheView]) -> None:
        """Take over what the supervisor tells."""
        for view in views:
            if view.sync != Sync.OFF:
                self.caches.setdefault(view.backend, {}).setdefault(view.engine, ToldCache()).take(view)
                continue
            engines = self.caches.get(view.backend, {})
            engines.pop(view.engine, None)
            if not engines:
                self.caches.pop(view.backend, None)
