"""What guards the data port: any bytes, in any pieces, through the protocol that reads heads and bodies."""

import asyncio
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.server import ServerState

from warmroute.config import Config
from warmroute.observe.counters import RequestCounters
from warmroute.proxy.body import ClientLeft
from warmroute.proxy.client import Client
from warmroute.proxy.deadlines import Door
from warmroute.proxy.handshake import SwitchingProtocol
from warmroute.proxy.heads import Found, KnownHeads
from warmroute.proxy.refusals import Refusals

from .pieces import Case, Dice

_ENDS = [b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\n\n", b": ", b":", b" ", b"\t", b"\0", b"\x0b", b"\x85"]
_LINES = [
    b"POST ",
    b"GET ",
    b"OPTIONS ",
    b"HEAD ",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01",
    b" HTTP/1.1\r\n",
    b" HTTP/1.0\r\n",
    b" HTTP/9.9\r\n",
    b"/v1/chat/completions",
    b"/v1/realtime",
    b"//v1/chat/completions",
    b"/v1/%2e%2e/sleep",
    b"http://evil/v1/models",
    b"*",
    b"/v1/models;x",
    b"/\xff",
    b"?a=%00",
]
_HEADERS = [
    b"host: x\r\n",
    b"Host: x\r\n",
    b"host:\r\n",
    b"content-length: 5\r\n",
    b"content-length: 5, 5\r\n",
    b"content-length: -1\r\n",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"transfer-encoding: gzip, chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"transfer-encoding: identity\r\n",
    b"connection: close\r\n",
    b"connection: keep-alive, upgrade\r\n",
    b"upgrade: websocket\r\n",
    b"upgrade: h2c\r\n",
    b"sec-websocket-version: 13\r\n",
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
    b"expect: 100-continue\r\n",
    b"x: y\r\n folded\r\n",
    b"x\r\n",
    b": y\r\n",
    b"trailer: x\r\n",
    b"\xff: \xff\r\n",
]
_CHUNKS = [
    b"5\r\nhello\r\n",
    b"0\r\n\r\n",
    b"0\r\nx: y\r\n\r\n",
    b"5;a=b\r\nhello\r\n",
    b"FFFFFFFFFFFFFFFFF\r\n",
    b"-1\r\n",
    b"0x5\r\nhello\r\n",
    b"hello",
    b"5\nhello\n",
]
WORDS = [*_ENDS, *_LINES, *_HEADERS, *_CHUNKS]
WHOLE = [
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 3,
    b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n\x81\x85\0\0\0\0hello",
    b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA\r\n"
    b"content-length: 5\r\n\r\nhelloGET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"OPTIONS /v1/chat/completions HTTP/1.0\r\nexpect: 100-continue\r\n\r\n",
]


def build(dice: Dice) -> Case:
    """A connection's bytes, in pieces."""
    return dice.cut(dice.text(WHOLE, WORDS))


class Wire(asyncio.Transport):
    """A transport to nobody: keeps what is written, and its protocol hears of the end as from a real one."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.out = bytearray()
        self.closed = False

    def write(self, data: Any) -> None:
        self.out += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


_CONTROL = re.compile(rb"[\0-\x08\x0a-\x1f\x7f]")
_ANSWER = re.compile(rb"HTTP/1\.1 (100|[2-5][0-9]{2}) [^\r\n]*\r\n")


_ID = re.compile(rb"x-request-id: [^\r]*\r\n")


class _Nothing(KnownHeads):
    """Every head is new."""

    def find(self, data: bytes) -> Found | None:
        return None


_NOTHING = _Nothing(time.monotonic)


class Target:
    """Feeds cases to a protocol whose application reads each body to its end and answers 200."""

    name = "guard"
    share = 0.3

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        limits = Config.from_urls(["http://127.0.0.1:9"]).limits
        self._door = Door(limits, time.monotonic, RequestCounters())
        self._refusals = Refusals(lambda record: None, time.monotonic, time.time)
        self._known = KnownHeads(time.monotonic)
        self._wrong: list[str] = []
        self._seen: list[object] = []
        self._loop.set_exception_handler(lambda loop, context: self._wrong.append(repr(context)))

    def close(self) -> None:
        self._loop.close()

    build = staticmethod(build)

    async def _app(self, client: Client) -> None:
        head = client.head
        hosts = sum(name == b"host" for name, _ in head.headers)
        if hosts != 1 and not (hosts == 0 and head.version == "1.0"):
            self._wrong.append(f"{hosts} Host headers reach the application")
        coded = [value for name, value in head.headers if name == b"transfer-encoding"]
        if coded and (len(coded) > 1 or any(name == b"content-length" for name, _ in head.headers)):
            self._wrong.append(f"a body framed twice reaches the application: {head.headers}")
        if any(_CONTROL.search(part) for pair in head.headers for part in pair):
            self._wrong.append(f"control characters reach the application: {head.headers}")
        body = b""
        try:
            while not client.whole and client.broken is None:
                body += await client.take()
            body += await client.take()
        except ClientLeft:
            self._seen.append((head, body, "left"))
            return
        self._seen.append((head, body, client.broken))
        client.start(200, b"", 0)
        await client.body(b"", more=False)

    def check(self, case: Case) -> None:
        self._wrong.clear()
        told = [self._loop.run_until_complete(self._run(case, known)) for known in (_NOTHING, self._known, self._known)]
        assert not self._wrong, self._wrong
        assert told[0] == told[1] == told[2], "what is known of heads changes what is understood, or answered"

    async def _run(self, case: Case, known: KnownHeads) -> tuple[object, bytes]:
        """What the application was given, and what the client got, without the ids of answers."""
        self._seen = []
        state, wire = ServerState(), Wire()
        make: Callable[..., Any] = partial(SwitchingProtocol, self._door, self._refusals, known, self._app)
        protocol = make(config=None, server_state=state, app_state={}, _loop=self._loop)
        protocol.connection_made(wire)
        for piece in case:
            if not wire.closed:
                protocol.data_received(piece)
            protocol.waiting()
            await asyncio.sleep(0)
        for _ in range(4):
            await asyncio.sleep(0)
        seen = protocol.waiting()
        if seen is not None:
            protocol.time_out(seen.wait)
        protocol.connection_lost(None)
        for task in tuple(state.tasks):
            if not task.done():
                await asyncio.wait({task}, timeout=5)
            if not task.done():
                task.cancel()
                self._wrong.append("a request goes on after its connection")
            elif task.exception() is not None:
                self._wrong.append(repr(task.exception()))
        assert not self._door.guests
        assert not wire.out or _ANSWER.match(wire.out), bytes(wire.out[:100])
        return self._seen, _ID.sub(b"", bytes(wire.out))
