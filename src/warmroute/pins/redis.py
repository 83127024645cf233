"""The connections to a Redis or Valkey: one for questions, a batch at a time, and one that hears of changes.

Both belong to one owner, have a timeout on every step and are closed at the first trouble; errors become `StoreError`, once.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Protocol, cast

import redis.exceptions as failures
from redis.asyncio.connection import Connection, parse_url

from .codec import Naming
from .link import Answer, Ask, Op, StoreError
from .memory import PinTable
from .shared import SharedPins
from .store import Store

_TIMEOUT = 0.5
"""Seconds until a silent store is given up; requests do not wait for that, see `Store`."""

_SILENCE = 1.0
"""Seconds without a message until a PING asks whether the connection that hears of changes still stands."""

# KEYS: the pin. ARGV: value that is wanted ('' for none), value it may replace, lifetime in ms, channel, message, and '1' if
# a value where there was none is told as well. Returns 0: it was so; 1: it is so now; 2: the same, and what was there is of
# another type; or the value that somebody else has put there. Whatever the answer, something is written, which prolongs the
# life of what is in use, so a store that takes no writes is never taken for a good one.
SCRIPT = b"""
local held = redis.pcall('GET', KEYS[1])
local odd = type(held) == 'table'
if odd then held = false end
if held and (held == ARGV[1] or held ~= ARGV[2]) then
  redis.call('SET', KEYS[1], held, 'PX', ARGV[3])
  if held == ARGV[1] then return 0 end
  return held
end
if ARGV[1] ~= '' then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
elseif held then
  redis.call('DEL', KEYS[1])
end
if held or (ARGV[6] == '1' and ARGV[1] ~= '') then
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
if odd then return 2 end
return 1
"""


class _Wire(Protocol):
    """What is used of redis-py's connections."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: Any) -> None: ...
    async def read_response(self, *, timeout: float | None = None) -> Any: ...
    def pack_command(self, *args: bytes) -> Any: ...
    def pack_commands(self, commands: Any) -> Any: ...


class RedisLink:
    """A store that answers, from `open_link`. `timeout` bounds connecting and every batch, in seconds."""

    def __init__(self, url: str, channel: bytes, lifetime: float, timeout: float) -> None:
        self._channel = channel
        self._timeout = timeout
        self._lifetime = str(round(lifetime * 1000)).encode()
        self._questions = _wire(url, timeout)
        self._changes = _wire(url, timeout)

    def __repr__(self) -> str:
        return f"<RedisLink {self._questions!r}>"

    async def connect(self) -> None:
        """Raises StoreError."""
        with _told(Op.CONNECT):
            async with asyncio.timeout(self._timeout):
                await self._changes.connect()
                await self._changes.send_packed_command(self._changes.pack_command(b"SUBSCRIBE", self._channel))
                await self._changes.read_response()
                await self._questions.connect()

    async def ask(self, asks: Sequence[Ask]) -> list[Answer]:
        """One answer for each, in order. Raises StoreError.

        A connection that was closed since the last batch is made once more: asking the same twice does no harm.
        """
        with _told(Op.PROBE):
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._exchange(asks)
                except failures.ConnectionError:
                    await self._questions.disconnect(nowait=True)
                    await self._questions.connect()
                    return await self._exchange(asks)

    async def _exchange(self, asks: Sequence[Ask]) -> list[Answer]:
        wire = self._questions
        await wire.send_packed_command(wire.pack_commands([self._command(ask) for ask in asks]))
        return [cast("Answer", await wire.read_response()) for _ in asks]

    def _command(self, ask: Ask) -> tuple[bytes, ...]:
        announce = b"1" if ask.announce else b"0"
        head = (b"EVAL", SCRIPT, b"1", ask.key, ask.value, ask.replaces)
        return (*head, self._lifetime, self._channel, ask.message, announce)

    async def hear(self) -> bytes:
        """The next message, however long that takes. Raises StoreError as soon as the connection proves dead."""
        asked = False
        with _told(Op.LISTEN):
            while True:
                heard = await self._changes.read_response(timeout=_SILENCE)
                if heard is None:
                    if asked:
                        raise failures.TimeoutError
                    await self._changes.send_packed_command(self._changes.pack_command(b"PING"))
                asked = heard is None
                if heard is not None and heard[0] == b"message":
                    return bytes(heard[2])

    async def close(self) -> None:
        """Close at once; nothing is waited for."""
        await self._questions.disconnect(nowait=True)
        await self._changes.disconnect(nowait=True)


@asynccontextmanager
async def open_link(url: str, channel: bytes, *, lifetime: float, timeout: float) -> AsyncIterator[RedisLink]:
    """Both connections to the store at this URL; pins asked for over them live `lifetime` seconds. Raises StoreError."""
    link = RedisLink(url, channel, lifetime, timeout)
    try:
        await link.connect()
        yield link
    finally:
        await link.close()


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

    `backends` holds the names that a pin may have; `identity` is 8 random bytes; requests wait `deadline` at most.
    """
    # A pin in use is renewed every quarter of the idle time; with a quarter more it outlives its copies in the routers.
    connect = partial(open_link, url, naming.channel, lifetime=idle_expiry * 1.25, timeout=_TIMEOUT)
    store = Store(connect, naming, clock=clock, deadline=deadline, identity=identity)
    return SharedPins(pins, store, naming, backends=backends, clock=clock, idle_expiry=idle_expiry)


def _wire(url: str, timeout: float) -> _Wire:
    options: dict[str, Any] = {**parse_url(url)}
    kind = options.pop("connection_class", Connection)
    # Timeouts are the link's own: those of redis-py cost a task for each write and a timer for each answer.
    ours = {"socket_timeout": None, "socket_connect_timeout": timeout, "protocol": 2, "decode_responses": False}
    return cast("_Wire", kind(**{**options, **ours}))


@contextmanager
def _told(op: Op) -> Iterator[None]:
    """Every error of redis-py as a StoreError, in words for people."""
    try:
        yield
    except (failures.RedisError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise StoreError(op, _words(error)) from None


def _words(error: Exception) -> str:
    match error:
        case failures.TimeoutError() | TimeoutError():
            return "it does not answer"
        case failures.AuthenticationError() | failures.NoPermissionError():
            return f"it refuses this user: {_first_line(error)}"
        case failures.ReadOnlyError():
            return "it takes no writes: it is a read-only replica"
        case failures.OutOfMemoryError():
            return "it takes no writes: its memory is full"
        case failures.BusyLoadingError():
            return "it is still loading its data"
    return _first_line(error).rstrip(".") or type(error).__name__


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else ""
