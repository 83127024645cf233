"""Several conversations under one id: sub-agents, titles, or everybody's chats where the id names a person."""

from collections.abc import Callable

from msgspec import Struct

from .recent import Recent

_UNPROVEN = 2
"""First prompts under a new id that are its own until one of them is gone on with: some clients ask for a title first."""
_MOST_CHILDREN = 64


class _Thread(Struct, gc=False):
    """What is known of one id. Openings are the digests of `History.opening`, cut to 8 bytes."""

    since: int
    main: bytes = b""
    fresh: tuple[bytes, ...] = ()
    children: tuple[bytes, ...] = ()
    proven: tuple[bytes, ...] = ()
    requests: int = 0


class Threads:
    """Tells the conversations under one id apart by their openings.

    The first one that is gone on with is the id's own. A prompt without history and with another opening begins a child.
    An id under which many go on, and which is `busy`, must be a person's, a tenant's or everybody's.
    """

    def __init__(self, clock: Callable[[], float], *, expiry: float, limit: int) -> None:
        self._threads: Recent[_Thread] = Recent(clock, expiry=expiry, limit=limit)
        self._requests = 0

    def __repr__(self) -> str:
        return f"<Threads {len(self)} ids>"

    def __len__(self) -> int:
        return len(self._threads)

    def child(self, key: bytes, opening: bytes | None, *, begun: bool) -> bytes | None:
        """The opening that names a child of this id, None if the request is of the id's own conversation.

        `begun` says that the request has answers in its history. Changes nothing.
        """
        thread = self._threads.get(key)
        return None if thread is None or opening is None else _child(thread, opening[:8], begun)

    def one(self, key: bytes) -> bool:
        """Whether this id has one conversation, which was gone on with, and no child: its next turns need no look."""
        thread = self._threads.get(key)
        return thread is not None and bool(thread.main) and not thread.children

    def seen(self, key: bytes, opening: bytes | None, *, begun: bool) -> int:
        """Take one request of this id into account; returns how many conversations were gone on with under it."""
        thread = self._threads.renew(key)
        if thread is None:
            thread = _Thread(self._requests)
            self._threads.put(key, thread)
        self._requests += 1
        thread.requests += 1
        if opening is not None:
            _opened(thread, opening[:8], begun)
        return len(thread.proven)

    def busy(self, key: bytes, share: float) -> bool:
        """Whether this id has this share of the requests since it came."""
        thread = self._threads.get(key)
        return thread is not None and thread.requests >= share * (self._requests - thread.since)


def _child(thread: _Thread, opening: bytes, begun: bool) -> bytes | None:
    if opening in thread.children:
        return opening
    own = begun or opening == thread.main or opening in thread.fresh
    return None if own or (not thread.main and len(thread.fresh) < _UNPROVEN) else opening


def _opened(thread: _Thread, opening: bytes, begun: bool) -> None:
    child = _child(thread, opening, begun)
    if child is not None:
        if child not in thread.children:
            thread.children = (*thread.children, child)[-_MOST_CHILDREN:]
        if begun and child not in thread.proven:
            thread.proven = (*thread.proven, child)[-_MOST_CHILDREN:]
    elif begun:
        if not thread.main:
            thread.main, thread.proven = opening, (opening,)
    elif opening != thread.main and opening not in thread.fresh:
        thread.fresh = (*thread.fresh, opening)
