"""Ids that are none: one that a person's or everybody's conversations share, and a source that names single requests."""

import logging
from collections.abc import Callable

from ..core.identity import AGENT_SOURCES
from ..core.model import Session
from .recent import Recent
from .threads import Threads

log = logging.getLogger("warmroute.recognition")

_CONVERSATIONS = 8
"""Conversations gone on with under one id from which on it may be a person's or a tenant's."""
_OF_A_BACKEND = 0.5
"""The part of one backend's share of all requests that such an id must have; less harms nobody."""
_ADOPTIONS = 8
"""New ids of a source that came with a history of the same source, from which on it may name requests."""
_ADOPTIONS_PER_USE = 9
"""They must be so many times as many as uses of an id that was known."""
_SHARED_FOR = 24 * 3600.0
"""Seconds for which an id that many conversations share is not used."""
_REMEMBERED = 1024
"""Uses of a source after which older ones count half."""


class _Uses:
    """How often ids of one source were used that were known, and that were new with another one's history."""

    __slots__ = ("adopted", "known")

    def __init__(self) -> None:
        self.adopted = self.known = 0


class Guards:
    """Decides which ids are not used, and says so once for each source; after `expiry` seconds a source may try again."""

    def __init__(
        self, clock: Callable[[], float], threads: Threads, *, backends: int, expiry: float, limit: int
    ) -> None:
        self._clock = clock
        self._threads = threads
        self._share = _OF_A_BACKEND / max(1, backends)
        self._expiry = expiry
        self._shared: Recent[bool] = Recent(clock, expiry=_SHARED_FOR, limit=limit)
        self._uses: dict[str, _Uses] = {}
        self._skipped: dict[str, float] = {}
        self.told: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"<Guards {len(self._shared)} shared ids, per request: {sorted(self._skipped)}>"

    def resize(self, backends: int) -> None:
        """There are so many backends from now on."""
        self._share = _OF_A_BACKEND / max(1, backends)

    def unusable(self, session: Session) -> str | None:
        """Why an id is not used, in one word of a closed set; None if it is."""
        if not self.told:  # then all have been used so far
            return None
        since = self._skipped.get(session.source)
        if since is not None:
            if self._clock() - since < self._expiry:
                return "per_request"
            del self._skipped[session.source]
        return "shared" if self._shared.get(session.key) else None

    def used(self, session: Session, conversations: int, *, adopted: bool, known: bool) -> None:
        """Take a use of an id into account, under which so many conversations were gone on with.

        `adopted`: the id is new and its history is one that another id of the same source had. `known`: it was seen before.
        """
        source = session.source
        uses = self._uses.get(source)
        if uses is None:
            uses = self._uses[source] = _Uses()
        uses.adopted += adopted
        uses.known += known
        if uses.adopted + uses.known > _REMEMBERED:
            uses.adopted //= 2
            uses.known //= 2
        if uses.adopted >= _ADOPTIONS and uses.adopted >= _ADOPTIONS_PER_USE * uses.known:
            self._skipped[source] = self._clock()
            del self._uses[source]
            self._tell(source, "per_request", f"{source} names single requests and not conversations; it is not used")
        if (
            conversations >= _CONVERSATIONS
            and source not in AGENT_SOURCES
            and self._threads.busy(session.key, self._share)
        ):
            self._shared.put(session.key, True)
            self._tell(
                source,
                "shared",
                f"one value of {source} has many conversations under it, so it names a person or a tenant; its"
                " conversations are told apart by their content",
            )

    def _tell(self, source: str, why: str, text: str) -> None:
        if (source, why) not in self.told:
            self.told[source, why] = text
            log.warning("%s", text)
