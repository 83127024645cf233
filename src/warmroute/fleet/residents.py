"""What every engine's cache holds of which conversation, as decisions read it, and whether that is known at all."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, Protocol

from ..core.residency import Held

LABEL_SIZE = 16
"""Bytes of a label, which is written as twice as many hex digits."""


class Sync(StrEnum):
    """Whether what is known of a backend's caches is so now. A closed set that people see."""

    OFF = "off"  # it publishes no events
    GAP = "gap"  # it does, but they are not heard, or some were missed and are being fetched
    LIVE = "live"


class Cache(Protocol):
    """What is known of one engine's cache. `tiered`: it has a tier behind it, from which dropped blocks may come back."""

    sync: Sync
    tiered: bool

    def held(self, label: str) -> Held | None:
        """What is there of a conversation; None if it is not known to have been there."""


class Warm(NamedTuple):
    """How warm a conversation is on one engine."""

    backend: str
    engine: str
    held: Held


class Residents(ABC):
    """Backend and engine -> cache. Sessions are known to the backends by a label, a digest that is keyed with `key`."""

    caches: Mapping[str, Mapping[str, Cache]]

    def __init__(self, key: bytes) -> None:
        self.key = key

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.caches}>"

    def label(self, session: bytes) -> str:
        """What the backends are told as the session's id."""
        return blake2b(session, digest_size=LABEL_SIZE, key=self.key, person=b"wr-kv-label").hexdigest()

    @abstractmethod
    def also_called(self, session: bytes, name: str) -> None:
        """vLLM will call the session by this name, which the client has put where it goes before ours."""

    def sync(self, backend: str) -> Sync:
        """The state of a backend: that of its engine of which least is known."""
        caches = self.caches.get(backend, {}).values()
        if not caches:
            return Sync.OFF
        return Sync.LIVE if all(cache.sync is Sync.LIVE for cache in caches) else Sync.GAP

    def held(self, session: bytes, backend: str, engine: str | None) -> Held | None:
        """What an engine holds of a session; None where that is not known for sure, or the session was never there."""
        cache = self._cache(backend, engine)
        return cache.held(self.label(session)) if cache is not None else None

    def cold(self, session: bytes, backend: str, engine: str | None) -> bool:
        """Whether it is certain that next to nothing of a session is left on an engine, nor in a tier behind it."""
        cache = self._cache(backend, engine)
        if cache is None or cache.tiered:
            return False
        held = cache.held(self.label(session))
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
            if cache.sync is Sync.LIVE and (held := cache.held(label)) is not None
        ]

    def _cache(self, backend: str, engine: str | None) -> Cache | None:
        """The cache of an engine, None if it is not known as it is now. A backend's only engine has no name among pins."""
        caches = self.caches.get(backend)
        if not caches:
            return None
        cache = caches.get(engine) if engine is not None else next(iter(caches.values())) if len(caches) == 1 else None
        return cache if cache is not None and cache.sync is Sync.LIVE else None
