"""All that is remembered of conversations beyond their pins: digests and counts, bounded."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ..core.model import Place
from .conversations import Conversations
from .guards import Guards
from .heads import Heads
from .lists import Lists
from .owners import Owners
from .recent import Recent
from .sharing import SharedMemory
from .threads import Threads

RESPONSES_KEPT = 24 * 3600.0
"""Seconds for which it is known at least who made a response; vLLM itself keeps stored ones as long as it runs."""


@dataclass(frozen=True, slots=True)
class Memory:
    """One of each kind, made together, since they have one clock and one measure of room.

    `places` says where sessions were last served whose pins may be gone before they go on; `lists` spares reading histories
    again. `shared` tells other routers.
    """

    conversations: Conversations
    heads: Heads
    owners: Owners
    threads: Threads
    guards: Guards
    places: Recent[Place]
    lists: Lists
    shared: SharedMemory | None = None

    @property
    def evicted(self) -> int:
        """Entries of histories that lack of room took away."""
        return self.conversations.evicted

    @property
    def unknown_owners(self) -> int:
        """Requests that named a response of which no maker was known."""
        return self.owners.unknown

    @property
    def recalled(self) -> Counter[str] | None:
        """Turns that only other routers knew of; None where nothing is shared."""
        return self.shared.recalled if self.shared is not None else None

    def entries(self) -> dict[str, int]:
        """How much is remembered, by kind."""
        return {
            "history": len(self.conversations),
            "heads": len(self.heads),
            "responses": len(self.owners),
            "ids": len(self.threads),
            "places": len(self.places),
            "lists": len(self.lists),
        }


def remember(
    clock: Callable[[], float],
    *,
    idle_expiry: float,
    entries: int,
    sessions: int,
    backends: int,
    share: Callable[[Conversations, Heads, Owners], SharedMemory] | None = None,
) -> Memory:
    """A memory with room for `entries` of history, of heads and of responses each, and for `sessions` ids.

    `share` makes what tells other routers of the first three.
    """
    conversations = Conversations(clock, idle_expiry=idle_expiry, limit=entries)
    heads = Heads(clock, expiry=idle_expiry, limit=entries)
    owners = Owners(clock, expiry=RESPONSES_KEPT, limit=entries)
    threads = Threads(clock, expiry=idle_expiry, limit=sessions)
    return Memory(
        conversations,
        heads,
        owners,
        threads,
        Guards(clock, threads, backends=backends, expiry=idle_expiry, limit=sessions),
        Recent(clock, expiry=idle_expiry, limit=entries),
        Lists(clock, expiry=idle_expiry, limit=max(1, entries // 3)),
        share(conversations, heads, owners) if share is not None else None,
    )
