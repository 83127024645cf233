"""The connections to a Redis or Valkey: one for questions, a batch at a time, and one that hears of changes.

Both belong to one owner, have a timeout on every step and are closed at the first trouble; errors become `StoreError`, once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TypeVar, cast

import redis.exceptions as failures

from ..core.store_url import Node, StoreKind, StoreUrl, read_store_url
from .cluster import ClusterLink
from .codec import Naming
from .link import Answer, Link, Op, Question, StoreError
from .memory import PinTable
from .sentinel import primaries
from .shared import SharedPins
from .store import Store
from .wire import Commands, call, hear, told, wire_to

_TIMEOUT = 0.5
"""Seconds until a silent store is given up; requests do not wait for that, see `Store`."""


class RedisLink:
    """A server that answers, from `open_link`. `timeout` bounds connecting and every batch, in seconds.

    `primary`: the server has to say that it takes writes, since somebody else has named it.
    """

    def __init__(
        self,
        url: str,
        channel: bytes,
        lifetime: float,
        timeout: float,
        node: Node | None = None,
        *,
        primary: bool = False,
    ) -> None:
        self._commands = Commands(channel, lifetime)
        self._timeout = timeout
        self._primary = primary
        self._questions = wire_to(url, timeout, node)
        self._changes = wire_to(url, timeout, node)

    def __repr__(self) -> str:
        return f"<RedisLink {self._questions!r}>"

    async def connect(self) -> None:
        """Raises StoreError."""
        with told(Op.CONNECT):
            async with asyncio.timeout(self._timeout):
                await self._changes.connect()
                await call(self._changes, b"SUBSCRIBE", self._commands.channel)
                await self._questions.connect()
                if self._primary and (await call(self._questions, b"ROLE"))[0] != b"master":
                    raise failures.ReadOnlyError

    async def ask(self, asks: Sequence[Question]) -> list[Answer]:
        """One answer for each, in order. Raises StoreError.

        A connection that was closed since the last batch is made once more: asking the same twice does no harm.
        """
        with told(Op.PROBE):
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._exchange(asks)
                except failures.ConnectionError:
                    await self._questions.disconnect(nowait=True)
                    await self._questions.connect()
                    return await self._exchange(asks)

    async def _exchange(self, asks: Sequence[Question]) -> list[Answer]:
        wire = self._questions
        await wire.send_packed_command(wire.pack_commands([self._commands.of(ask) for ask in asks]))
        return [cast("Answer", await wire.read_response()) for _ in asks]

    async def hear(self) -> bytes:
        """The next message, however long that takes. Raises StoreError as soon as the connection proves dead."""
        return await hear(self._changes)

    async def close(self) -> None:
        """Close at once; nothing is waited for."""
        await self._questions.disconnect(nowait=True)
        await self._changes.disconnect(nowait=True)


@asynccontextmanager
async def open_link(url: StoreUrl, channel: bytes, *, lifetime: float, timeout: float) -> AsyncIterator[Link]:
    """The connections to the store at this URL; pins asked for over them live `lifetime` seconds. Raises StoreError."""
    link: RedisLink | ClusterLink
    match url.kind:
        case StoreKind.SENTINEL:
            link = await _to_primary(url, channel, lifetime, timeout)
        case StoreKind.CLUSTER:
            link = await _connected(ClusterLink(url, channel, lifetime, timeout))
        case StoreKind.SERVER:
            link = await _connected(RedisLink(url.server, channel, lifetime, timeout))
    try:
        yield link
    finally:
        await link.close()


_AnyLink = TypeVar("_AnyLink", RedisLink, ClusterLink)


async def _connected(link: _AnyLink) -> _AnyLink:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(link.close)
        await link.connect()
        stack.pop_all()
    return link


async def _to_primary(url: StoreUrl, channel: bytes, lifetime: float, timeout: float) -> RedisLink:
    """The link to the first node that sentinels name and that is a primary."""
    trouble: StoreError | None = None
    for node in await primaries(url, timeout):
        try:
            return await _connected(RedisLink(url.server, channel, lifetime, timeout, node, primary=True))
        except StoreError as error:
            trouble = trouble or error
    assert trouble is not None
    raise trouble


def share(
    pins: PinTable,
    url: str,
    naming: Naming,
    *,
    backends: Container[str],
    clock: Callable[[], float],
    identity: bytes,
    idle_expiry: float,
    deadline: float,
) -> SharedPins:
    """Pins shared through the store at this URL, to be kept by `SharedPins.store.run`. Times are in seconds.

    `backends` holds the names that a pin may have; `identity` is 8 random bytes; requests wait `deadline` at most. Raises
    ValueError if the URL means no store.
    """
    meant = read_store_url(url)
    if meant is None:
        raise ValueError("not the URL of a store")
    # A pin in use is renewed every quarter of the idle time; with a quarter more it outlives its copies in the routers.
    connect = partial(open_link, meant, naming.channel, lifetime=idle_expiry * 1.25, timeout=_TIMEOUT)
    store = Store(connect, naming, clock=clock, deadline=deadline, identity=identity)
    return SharedPins(pins, store, naming, backends=backends, clock=clock, idle_expiry=idle_expiry)
