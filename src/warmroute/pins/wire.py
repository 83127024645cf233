"""One connection of redis-py's: how it is made, what is asked over it in which words, and its errors in words for people."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, cast

import redis.exceptions as failures
from redis.asyncio.connection import Connection, parse_url

from ..core.store_url import Node
from .codec import MOST_HOLDERS
from .link import Ask, Hold, Look, Op, Put, Question, StoreError

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

LOOK = b"""
local held = redis.pcall('GET', KEYS[1])
if type(held) == 'table' then return 2 end
return held
"""
PUT = b"return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"

# KEYS: the place in a history. ARGV: session, '1' to add or '0' to take it away, the most that are held, lifetime in ms.
# The value is '1', the session that has gone on from there last, and those that hold it, 16 bytes each.
HOLD = b"""
local held = redis.pcall('GET', KEYS[1])
if type(held) ~= 'string' or string.sub(held, 1, 1) ~= '1' or #held % 16 ~= 1 or #held < 17 then held = '1' .. ARGV[1] end
local last, holders = string.sub(held, 2, 17), ''
for at = 18, #held, 16 do
  local one = string.sub(held, at, at + 15)
  if one ~= ARGV[1] then holders = holders .. one end
end
if ARGV[2] == '1' then
  holders = string.sub(holders .. ARGV[1], -16 * tonumber(ARGV[3]))
else
  last = ARGV[1]
end
return redis.call('SET', KEYS[1], '1' .. last .. holders, 'PX', ARGV[4])
"""


class Wire(Protocol):
    """What is used of redis-py's connections."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def send_packed_command(self, command: Any) -> None: ...
    async def read_response(self, *, timeout: float | None = None) -> Any: ...
    def pack_command(self, *args: bytes) -> Any: ...
    def pack_commands(self, commands: Any) -> Any: ...


def wire_to(url: str, timeout: float, node: Node | None = None) -> Wire:
    """A connection, not made yet, to the server of this URL, or with all else that it says to another node."""
    options: dict[str, Any] = {**parse_url(url)}
    kind = options.pop("connection_class", Connection)
    # Timeouts are the link's own: those of redis-py cost a task for each write and a timer for each answer.
    ours = {"socket_timeout": None, "socket_connect_timeout": timeout, "protocol": 2, "decode_responses": False}
    there = {} if node is None else {"host": node[0], "port": node[1]}
    return cast("Wire", kind(**{**options, **ours, **there}))


async def call(wire: Wire, *command: bytes) -> Any:
    """One command and its answer."""
    await wire.send_packed_command(wire.pack_command(*command))
    return await wire.read_response()


class Commands:
    """Questions as a store's servers take them; pins that they write live `lifetime` seconds."""

    def __init__(self, channel: bytes, lifetime: float) -> None:
        self.channel = channel
        self._lifetime = _ms(lifetime)

    def of(self, question: Question) -> tuple[bytes, ...]:
        match question:
            case Ask(key, value, replaces, message, announce):
                told_if_new = b"1" if announce else b"0"
                return (*_eval(SCRIPT, key), value, replaces, self._lifetime, self.channel, message, told_if_new)
            case Look(key):
                return _eval(LOOK, key)
            case Put(key, value, lifetime):
                return (*_eval(PUT, key), value, _ms(lifetime))
            case Hold(key, session, holds, lifetime):
                change = b"1" if holds else b"0"
                return (*_eval(HOLD, key), session, change, b"%d" % MOST_HOLDERS, _ms(lifetime))


def _eval(script: bytes, key: bytes) -> tuple[bytes, ...]:
    return b"EVAL", script, b"1", key


def _ms(seconds: float) -> bytes:
    return b"%d" % round(seconds * 1000)


_SILENCE = 1.0
"""Seconds without a message until a PING asks whether the connection that hears of changes still stands."""


async def hear(changes: Wire) -> bytes:
    """The next message, however long that takes. Raises StoreError as soon as the connection proves dead."""
    asked = False
    with told(Op.LISTEN):
        while True:
            heard = await changes.read_response(timeout=_SILENCE)
            if heard is None:
                if asked:
                    raise failures.TimeoutError
                await changes.send_packed_command(changes.pack_command(b"PING"))
            asked = heard is None
            if heard is not None and heard[0] == b"message":
                return bytes(heard[2])


@contextmanager
def told(op: Op) -> Iterator[None]:
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
        case failures.ClusterDownError():
            return f"its cluster is down: {_first_line(error)}"
    return _first_line(error).rstrip(".") or type(error).__name__


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:160] if text else ""
