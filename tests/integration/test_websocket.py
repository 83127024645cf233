"""WebSockets through the router: byte for byte, bounded, placed like any conversation, and ended where they must be."""

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response

from warmroute.app import Router
from warmroute.config import Config
from warmroute.core.websocket import close_frame
from warmroute.observe.record import RequestRecord
from warmroute.proxy.handshake import SwitchingProtocol

from ..unit.test_websocket import frame
from .conftest import FAST, StartRouter, until
from .scripted import RawClient, Script, Scripted, Seen, Talk, answer

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    + ACCEPT
    + b"\r\nX-Of-Backend: yes\r\n\r\n"
)
GOOD = {
    "host": "x",
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": KEY,
}
CLOSED = frame(8, (1000).to_bytes(2))
BUFFERS = 400 << 10
"""Bytes that one direction may hold in the router: what a transport holds before it says so, and one more read."""


def handshake(query: str = "?model=m", line: str = "GET {} HTTP/1.1", without: str = "", **headers: str | int) -> bytes:
    """The bytes of a handshake; header names are written with underscores."""
    named = {name: value for name, value in GOOD.items() if name != without}
    named |= {name.replace("_", "-"): str(value) for name, value in headers.items()}
    lines = [line.format("/v1/realtime" + query), *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def echo(talk: Talk) -> None:
    """Take the handshake, send back whatever comes, and end when the other side has ended."""
    talk.send(SWITCH)
    while data := await talk.reader.read(1 << 16):
        talk.send(data)
        await talk.drain()
    talk.close()


async def opened(client: RawClient, sent: bytes | None = None) -> dict[str, str]:
    """Shake hands; returns the answer's headers."""
    client.send(handshake() if sent is None else sent)
    status, headers = await client.head()
    assert status == 101
    return dict(headers)


async def rest_of(client: RawClient) -> bytes:
    """All that comes until the end."""
    async with asyncio.timeout(20):
        return await client.reader.read()


def in_flight(router: Router) -> int:
    return sum(backend.in_flight for backend in router.registry.backends.values())


async def given_back(router: Router) -> None:
    """No place is taken at any backend, and no connection to one is open that is no check."""
    await until(lambda: in_flight(router) == 0)
    assert not [backend for backend in router.registry.backends.values() if backend.silent]
    assert not any(c.switched for pool in router._pools.values() for c in pool.connections)


async def record_of(router: Router) -> RequestRecord:
    await until(lambda: bool(router.counters.recent))
    return router.counters.recent[0]


def guest_of(router: Router) -> SwitchingProtocol:
    """The one client connection that is a WebSocket."""
    guests = [g for g in router._door.guests if isinstance(g, SwitchingProtocol) and g.tunnel is not None]
    assert len(guests) == 1
    return guests[0]


def handshakes(backend: Scripted) -> list[Seen]:
    return [seen for seen in backend.requests if seen.path.startswith("/v1/realtime")]


def everywhere(backends: list[Scripted], script: Script) -> None:
    for backend in backends:
        backend.script = script


@pytest.fixture
async def router(backends: list[Scripted], start_router: StartRouter) -> Router:
    everywhere(backends, echo)
    return await start_router(backends)


@pytest.fixture
async def client(router: Router, stack: AsyncExitStack) -> RawClient:
    return await stack.enter_async_context(await RawClient.connect(router.data_url))


class TestHandshake:
    async def test_what_the_backend_sees(self, backends: list[Scripted], client: RawClient) -> None:
        extra = {
            "sec_websocket_extensions": "permessage-deflate",
            "sec_websocket_protocol": "realtime",
            "origin": "http://page",
            "te": "trailers",
            "x_request_id": "mine",
            "authorization": "Bearer k",
        }
        await opened(client, handshake("?model=m&a=%41", **extra))
        (seen,) = [seen for backend in backends for seen in handshakes(backend)]
        assert seen.line == "GET /v1/realtime?model=m&a=%41 HTTP/1.1"
        assert seen.header("connection") == "Upgrade"
        assert seen.header("upgrade") == "websocket"
        assert seen.header("sec-websocket-key") == KEY
        assert seen.header("sec-websocket-version") == "13"
        assert seen.header("sec-websocket-extensions") == "permessage-deflate"
        assert seen.header("sec-websocket-protocol") == "realtime"
        assert seen.header("origin") == "http://page"
        assert seen.header("x-request-id") == "mine"
        assert seen.header("authorization") == "Bearer k"
        assert seen.header("te") is None
        assert seen.header("content-length") is None
        assert seen.header("transfer-encoding") is None

    async def test_what_the_client_sees(self, router: Router, client: RawClient) -> None:
        headers = await opened(client, handshake(x_session_id="conversation"))
        assert headers["connection"].lower() == "upgrade"
        assert headers["upgrade"] == "websocket"
        assert headers["sec-websocket-accept"] == ACCEPT.decode()
        assert headers["x-of-backend"] == "yes"
        assert headers["x-warmroute-decision"] == "ring"
        assert headers["x-warmroute-key"] == "x-session-id"
        assert headers["x-warmroute-backend"] in router.registry.backends
        assert "x-request-id" in headers
        assert "content-length" not in headers
        assert "transfer-encoding" not in headers

    @pytest.mark.parametrize(
        ("sent", "status", "code"),
        [
            (handshake(without="sec-websocket-key"), 400, "bad_handshake"),
            (handshake(sec_websocket_key="short"), 400, "bad_handshake"),
            (handshake(content_length=2) + b"{}", 400, "bad_handshake"),
            (handshake(transfer_encoding="chunked") + b"2\r\n{}\r\n0\r\n\r\n", 400, "bad_handshake"),
            (handshake(line="GET {} HTTP/1.0"), 400, "bad_handshake"),
            (handshake(sec_websocket_version=12), 426, "upgrade_required"),
            (handshake(without="sec-websocket-version"), 426, "upgrade_required"),
            (handshake(upgrade="h2c"), 426, "upgrade_required"),
            (handshake(without="upgrade"), 426, "upgrade_required"),
            (handshake(connection="keep-alive"), 426, "upgrade_required"),
            (handshake(line="POST {} HTTP/1.1"), 405, "method_not_allowed"),
            (handshake(line="HEAD {} HTTP/1.1"), 405, None),
        ],
        ids=lambda value: value.split(b"\r\n")[0].decode() if isinstance(value, bytes) else str(value),
    )
    async def test_a_bad_one_reaches_no_backend(
        self, backends: list[Scripted], router: Router, client: RawClient, sent: bytes, status: int, code: str | None
    ) -> None:
        client.send(sent)
        reply = await client.reply("HEAD" if code is None else "GET")
        assert reply.status == status
        if code is not None:
            assert reply.json()["error"]["code"] == code  # type: ignore[index]
        if status == 426:
            assert reply.header("upgrade") == "websocket"
            assert reply.header("sec-websocket-version") == "13"
            assert reply.header("connection") == "Upgrade"
        assert not any(handshakes(backend) for backend in backends)
        assert in_flight(router) == 0
        assert (await record_of(router)).status == status

    async def test_after_a_bad_one_the_connection_goes_on(self, client: RawClient) -> None:
        client.send(handshake(sec_websocket_version=12))
        assert (await client.reply()).status == 426
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.reply()).status == 200

    async def test_an_upgrade_on_another_path_is_ignored(self, backends: list[Scripted], client: RawClient) -> None:
        everywhere(backends, answer)
        head = b"".join(f"{n}: {v}\r\n".encode() for n, v in GOOD.items())
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 13\r\n" + head + b'\r\n{"model":"m"}')
        assert (await client.reply()).status == 200
        (seen,) = [seen for backend in backends for seen in backend.posts]
        assert seen.header("upgrade") is None
        assert seen.body == b'{"model":"m"}'

    async def test_it_waits_for_the_requests_before_it(self, client: RawClient) -> None:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" + handshake() + b"early")
        assert (await client.reply()).status == 200
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(5) == b"early"

    async def test_an_unknown_model(self, client: RawClient) -> None:
        client.send(handshake("?model=none"))
        reply = await client.reply()
        assert reply.status == 404
        assert reply.header("connection") == "close"


class TestRefusedByTheBackend:
    @pytest.mark.parametrize("status", ["403 Forbidden", "404 Not Found", "200 OK", "503 Service Unavailable"])
    async def test_the_answer_is_passed_on(
        self, backends: list[Scripted], router: Router, client: RawClient, status: str
    ) -> None:
        async def refuse(talk: Talk) -> None:
            talk.json({"detail": "no"}, status, "retry-after: 3\r\n")

        everywhere(backends, refuse)
        client.send(handshake())
        reply = await client.reply()
        assert reply.status == int(status[:3])
        assert reply.json() == {"detail": "no"}
        assert reply.header("connection") == "close"
        assert await rest_of(client) == b""
        await given_back(router)

    async def test_what_came_early_is_never_read_as_http(
        self, backends: list[Scripted], router: Router, client: RawClient
    ) -> None:
        async def refuse(talk: Talk) -> None:
            talk.json({}, "403 Forbidden")

        everywhere(backends, refuse)
        client.send(handshake() + b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
        assert (await client.reply()).status == 403
        assert await rest_of(client) == b""
        assert len(router.counters.recent) == 1


class TestBytes:
    async def test_both_ways_unchanged(self, client: RawClient) -> None:
        """Frames masked and not, fragments, pings, a megabyte, and what is no frame at all."""
        sent = b"".join(
            [
                frame(1, b"hello", masked=True),
                frame(2, os.urandom(1 << 20), masked=True),
                frame(1, b"a", fin=False),
                frame(9, b"ping", masked=True),
                frame(10, b""),
                frame(0, b"b"),
                os.urandom(300_000),
            ]
        )
        await opened(client)
        client.send(sent)
        assert await client.reader.readexactly(len(sent)) == sent

    async def test_what_comes_with_the_handshake(self, client: RawClient) -> None:
        early = os.urandom(200_000)
        await opened(client, handshake() + early)
        assert await client.reader.readexactly(len(early)) == early

    async def test_what_comes_behind_the_handshake_before_its_answer(
        self, backends: list[Scripted], router: Router, client: RawClient
    ) -> None:
        go = asyncio.Event()

        async def late(talk: Talk) -> None:
            await go.wait()
            await echo(talk)

        everywhere(backends, late)
        early = os.urandom(500_000)
        client.send(handshake())
        await until(lambda: any(handshakes(backend) for backend in backends))
        client.send(early)
        held = [g for g in router._door.guests if isinstance(g, SwitchingProtocol) and g.early is not None]
        await until(lambda: held[0].flow.read_paused)
        assert sum(map(len, held[0].early or [])) <= BUFFERS
        go.set()
        assert (await client.head())[0] == 101
        assert await client.reader.readexactly(len(early)) == early

    async def test_what_comes_with_the_101(self, backends: list[Scripted], client: RawClient) -> None:
        first = frame(1, b'{"type":"session.created"}')

        async def eager(talk: Talk) -> None:
            talk.send(SWITCH[:20])
            await talk.drain()
            talk.send(SWITCH[20:] + first)
            await talk.drain()
            talk.send(b"more")

        everywhere(backends, eager)
        await opened(client)
        assert await client.reader.readexactly(len(first) + 4) == first + b"more"

    async def test_the_clients_end_is_passed_on_and_the_rest_still_comes(
        self, backends: list[Scripted], router: Router, client: RawClient
    ) -> None:
        answered = os.urandom(1 << 20)

        async def at_the_end(talk: Talk) -> None:
            talk.send(SWITCH)
            assert await talk.reader.read() == b"all of it"
            talk.send(answered + CLOSED)
            talk.close()

        everywhere(backends, at_the_end)
        await opened(client)
        client.send(b"all of it")
        client.writer.write_eof()
        assert await rest_of(client) == answered + CLOSED
        await given_back(router)

    async def test_the_backends_end_is_that_of_the_whole(
        self, backends: list[Scripted], router: Router, client: RawClient
    ) -> None:
        """The place is given back although the client still reads and its own direction is open."""
        said = frame(2, os.urandom(1 << 20))  # without a frame around them, random bytes may be a close frame
        hold = asyncio.Event()

        async def half(talk: Talk) -> None:
            talk.send(SWITCH + said)
            talk.writer.write_eof()
            await hold.wait()

        everywhere(backends, half)
        await opened(client)
        await given_back(router)
        hold.set()
        client.send(b"to nobody")
        assert await rest_of(client) == said
        (failure,) = (await record_of(router)).failures
        assert failure[1].kind == "closed"
        client.writer.close()
        await until(lambda: not router._door.guests)

    async def test_a_close_frame_of_the_backends_is_no_failure(
        self, backends: list[Scripted], router: Router, client: RawClient
    ) -> None:
        async def closes(talk: Talk) -> None:
            talk.send(SWITCH + CLOSED)
            talk.close()

        everywhere(backends, closes)
        await opened(client)
        assert await rest_of(client) == CLOSED
        await given_back(router)
        record = await record_of(router)
        assert (record.aborted, record.failures) == (False, [])


class TestBackpressure:
    """A side that does not read holds the other one back, and the router holds little meanwhile."""

    PIECE = frame(2, bytes(1 << 16))
    ALL = 512 * len(PIECE)
    """More than all buffers between the two ends can hold."""

    async def stuck(self, count: Callable[[], int]) -> int:
        """Wait until a count has stood still for a while, short of everything."""
        before, still = -1, 0
        async with asyncio.timeout(30):
            while still < 10:
                await asyncio.sleep(0.05)
                still = still + 1 if count() == before else 0
                before = count()
        assert before < self.ALL
        return before

    async def test_a_client_that_does_not_read(self, backends: list[Scripted], router: Router) -> None:
        sent = 0

        async def flood(talk: Talk) -> None:
            nonlocal sent
            talk.send(SWITCH)
            while sent < self.ALL:
                talk.send(self.PIECE)
                await talk.drain()
                sent += len(self.PIECE)
            talk.send(CLOSED)
            talk.close()

        everywhere(backends, flood)
        async with await RawClient.connect(router.data_url, receive_buffer=1 << 20) as client:
            await opened(client)
            await self.stuck(lambda: sent)
            assert guest_of(router)._own_transport.get_write_buffer_size() <= BUFFERS
            got = 0
            while data := await client.reader.read(1 << 18):
                got += len(data)
            assert got == self.ALL + len(CLOSED)
        await given_back(router)

    async def test_a_backend_that_does_not_read(self, backends: list[Scripted], router: Router) -> None:
        got, go = 0, asyncio.Event()

        async def late(talk: Talk) -> None:
            nonlocal got
            talk.send(SWITCH)
            await go.wait()
            while data := await talk.reader.read(1 << 18):
                got += len(data)
            talk.close()

        everywhere(backends, late)
        async with await RawClient.connect(router.data_url) as client:
            await opened(client)
            sent = 0

            async def flood() -> None:
                nonlocal sent
                while sent < self.ALL:
                    client.send(self.PIECE)
                    await client.writer.drain()
                    sent += len(self.PIECE)
                client.writer.write_eof()

            async with asyncio.TaskGroup() as group:
                group.create_task(flood())
                await self.stuck(lambda: sent)
                (busy,) = [c for pool in router._pools.values() for c in pool.connections if c.switched]
                assert busy._transport is not None
                assert busy._transport.get_write_buffer_size() <= BUFFERS
                go.set()
            await until(lambda: got == self.ALL)
        await given_back(router)

    async def test_a_reader_that_never_reads_is_given_up(
        self, backends: list[Scripted], start_router: StartRouter
    ) -> None:
        async def flood(talk: Talk) -> None:
            talk.send(SWITCH)
            while True:
                talk.send(self.PIECE)
                await talk.drain()

        everywhere(backends, flood)
        router = await start_router(backends, limits={"send_timeout": 0.5})
        async with await RawClient.connect(router.data_url, receive_buffer=1 << 16) as client:
            await opened(client)
            await until(lambda: router.counters.client_timeouts == {"send": 1})
            await given_back(router)
        assert (await record_of(router)).aborted


class TestPlaces:
    async def test_the_same_conversation_finds_its_backend_again(self, router: Router) -> None:
        homes = set()
        for turn in range(3):
            async with await RawClient.connect(router.data_url) as client:
                headers = await opened(client, handshake(x_session_id="conversation"))
                homes.add(headers["x-warmroute-backend"])
                assert headers["x-warmroute-decision"] == ("pin_hit" if turn else "ring")
        assert len(homes) == 1
        await given_back(router)

    async def test_a_pages_parameters_stand_for_fields(self, backends: list[Scripted], router: Router) -> None:
        """What a page writes in the query names the same conversation as the same words in a body."""
        async with await RawClient.connect(router.data_url) as client:
            headers = await opened(client, handshake("?model=m&session_id=conversation%21&session_id=other"))
        assert headers["x-warmroute-key"] == "session_id"
        everywhere(backends, answer)
        async with await RawClient.connect(router.data_url) as client:
            reply = await client.chat(session_id="conversation!")
        assert reply.header("x-warmroute-decision") == "pin_hit"
        assert reply.header("x-warmroute-backend") == headers["x-warmroute-backend"]

    async def test_without_an_id_it_goes_to_the_least_loaded(
        self, backends: list[Scripted], router: Router, stack: AsyncExitStack
    ) -> None:
        for _ in backends:
            client = await stack.enter_async_context(await RawClient.connect(router.data_url))
            assert (await opened(client))["x-warmroute-decision"] == "no_session"
        assert [backend.in_flight for backend in router.registry.backends.values()] == [1, 1, 1]

    async def test_it_takes_a_place_for_all_its_life(self, backends: list[Scripted], start_router: StartRouter) -> None:
        router = await start_router(backends[:1], queue={"in_flight": 1, "length": 0})
        backends[0].script = echo
        async with await RawClient.connect(router.data_url) as client:
            await opened(client)
            async with await RawClient.connect(router.data_url) as other:
                assert (await other.chat()).status == 503
        await given_back(router)
        backends[0].script = answer
        async with await RawClient.connect(router.data_url) as other:
            assert (await other.chat()).status == 200

    async def test_it_is_one_of_the_clients_connections(
        self, backends: list[Scripted], start_router: StartRouter
    ) -> None:
        everywhere(backends, echo)
        router = await start_router(backends, limits={"max_connections": 1})
        async with await RawClient.connect(router.data_url) as client:
            await opened(client)
            async with await RawClient.connect(router.data_url) as other:
                assert (await other.reply()).status == 503
        await until(lambda: not router._door.guests)

    async def test_its_record(self, router: Router, client: RawClient) -> None:
        await opened(client, handshake(x_session_id="conversation"))
        client.send(bytes(1000))
        await client.reader.readexactly(1000)
        assert not router.counters.recent
        client.writer.write_eof()
        await rest_of(client)
        record = await record_of(router)
        assert (record.path, record.status, record.decision) == ("/v1/realtime", 101, "ring")
        assert (record.bytes_in, record.bytes_out) == (1000, 1000)
        assert (record.key_source, record.attempts, record.failures) == ("x-session-id", 1, [])
        assert record.session is not None
        assert record.first_byte_s is not None
        assert record.duration_s >= record.first_byte_s
        assert router.counters.requests[record.backend or "", 101, "ring"] == 1


async def _reset(talk: Talk) -> None:
    talk.reset()


async def _closed(talk: Talk) -> None:
    talk.close()


async def _failing(talk: Talk) -> None:
    talk.json({}, "500 Internal Server Error")


async def _garbage(talk: Talk) -> None:
    talk.send(b"\x00\x01 no HTTP\r\n\r\n")


async def _other_protocol(talk: Talk) -> None:
    talk.send(SWITCH.replace(b"websocket", b"h2c"))


async def _not_switching(talk: Talk) -> None:
    talk.send(SWITCH.replace(b"Upgrade: websocket\r\n", b""))


async def _half_a_head(talk: Talk) -> None:
    talk.send(SWITCH[:40])
    await talk.drain()
    talk.close()


class TestFailover:
    """Before the 101 another backend is asked; behind it nothing is."""

    @pytest.mark.parametrize(
        "fault", [_reset, _closed, _failing, _garbage, _other_protocol, _not_switching, _half_a_head]
    )
    async def test_before_the_101(
        self, backends: list[Scripted], router: Router, client: RawClient, fault: Script
    ) -> None:
        failed: list[Talk] = []

        async def once(talk: Talk) -> None:
            if failed:
                await echo(talk)
            else:
                failed.append(talk)
                await fault(talk)

        everywhere(backends, once)
        headers = await opened(client, handshake(x_session_id="conversation") + b"early")
        assert await client.reader.readexactly(5) == b"early"
        assert [len(handshakes(backend)) for backend in backends].count(1) == 2
        client.writer.write_eof()
        await rest_of(client)
        record = await record_of(router)
        assert (record.attempts, len(record.failures), record.backend) == (2, 1, headers["x-warmroute-backend"])
        await given_back(router)

    async def test_refused(self, backends: list[Scripted], router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            home = (await opened(client, handshake(x_session_id="conversation")))["x-warmroute-backend"]
        await given_back(router)
        await next(backend for backend in backends if backend.name == home).stop()
        async with await RawClient.connect(router.data_url) as client:
            headers = await opened(client, handshake(x_session_id="conversation"))
        assert headers["x-warmroute-decision"] == "pin_lost"
        assert headers["x-warmroute-backend"] != home

    async def test_all_fail(self, backends: list[Scripted], router: Router, client: RawClient) -> None:
        everywhere(backends, _closed)
        client.send(handshake())
        reply = await client.reply()
        assert reply.status == 502
        assert await rest_of(client) == b""
        await given_back(router)

    @pytest.mark.parametrize("end", [_reset, _closed], ids=["reset", "closed"])
    async def test_a_backend_that_dies_behind_it(
        self, backends: list[Scripted], router: Router, client: RawClient, end: Script
    ) -> None:
        said = frame(1, b"half of a")

        async def dies(talk: Talk) -> None:
            talk.send(SWITCH + said)
            await talk.reader.readexactly(4)
            await end(talk)

        everywhere(backends, dies)
        await opened(client)
        assert await client.reader.readexactly(len(said)) == said
        client.send(b"more")
        assert await rest_of(client) == b""
        await given_back(router)
        record = await record_of(router)
        assert (record.status, record.attempts, len(record.failures), record.aborted) == (101, 1, 1, False)
        assert sum(len(handshakes(backend)) for backend in backends) == 1
        assert router.counters.internal_errors == {}

    async def test_a_client_that_dies(self, backends: list[Scripted], router: Router) -> None:
        ended = asyncio.Event()

        async def watch(talk: Talk) -> None:
            talk.send(SWITCH)
            if await talk.peer_closed(within=15):
                ended.set()

        everywhere(backends, watch)
        client = await RawClient.connect(router.data_url)
        await opened(client)
        assert in_flight(router) == 1
        linger = struct.pack("ii", 1, 0)
        client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.writer.transport.abort()
        await ended.wait()
        await given_back(router)
        record = await record_of(router)
        assert (record.status, record.aborted, record.failures) == (101, True, [])

    async def test_a_client_that_leaves_before_the_101(self, backends: list[Scripted], router: Router) -> None:
        ended = asyncio.Event()

        async def never(talk: Talk) -> None:
            if await talk.peer_closed(within=15):
                ended.set()

        everywhere(backends, never)
        async with await RawClient.connect(router.data_url) as client:
            client.send(handshake())
            await until(lambda: in_flight(router) == 1)
        await ended.wait()
        await given_back(router)
        assert (await record_of(router)).status == 499


class TestEnds:
    """What the router itself ends."""

    async def test_a_draining_backend_keeps_it_until_the_deadline(self, router: Router, client: RawClient) -> None:
        headers = await opened(client, handshake(x_session_id="conversation"))
        home = headers["x-warmroute-backend"]
        router.registry.drain(home, on=True, until=router._clock() + 1e6)
        client.send(frame(1, b"still here"))
        assert await client.reader.readexactly(12) == frame(1, b"still here")
        assert router.registry.backends[home].in_flight == 1
        router.registry.drain(home, on=True, until=router._clock())
        assert await rest_of(client) == close_frame(1012, "the backend is being emptied")
        await given_back(router)
        async with await RawClient.connect(router.data_url) as again:
            assert (await opened(again, handshake(x_session_id="conversation")))["x-warmroute-decision"] == "pin_lost"

    async def test_stopping_lets_it_end_by_itself(self, backends: list[Scripted]) -> None:
        everywhere(backends, echo)
        async with self.stopping_router(backends, shutdown=20) as (router, client, stopped):
            client.send(b"still here")
            assert await client.reader.readexactly(10) == b"still here"
            assert in_flight(router) == 1
            client.writer.write_eof()
            assert await rest_of(client) == b""
            await stopped

    async def test_when_the_time_is_over_it_is_told_so(self, backends: list[Scripted]) -> None:
        everywhere(backends, echo)
        async with self.stopping_router(backends, shutdown=0.2) as (router, client, stopped):
            assert await rest_of(client) == close_frame(1012, "the router is stopping")
            client.writer.close()
            await stopped
            await given_back(router)

    async def test_in_the_middle_of_a_frame_nothing_is_put_in(self, backends: list[Scripted]) -> None:
        part = frame(2, bytes(1000))[:-1]

        async def partly(talk: Talk) -> None:
            talk.send(SWITCH + part)
            await talk.reader.read()

        everywhere(backends, partly)
        async with self.stopping_router(backends, shutdown=0.2) as (_, client, stopped):
            assert await rest_of(client) == part
            client.writer.close()
            await stopped

    async def test_behind_a_close_frame_nothing_is_put_in(self, backends: list[Scripted]) -> None:
        async def closing(talk: Talk) -> None:
            talk.send(SWITCH + CLOSED)
            await talk.reader.read()

        everywhere(backends, closing)
        async with self.stopping_router(backends, shutdown=0.2) as (_, client, stopped):
            assert await rest_of(client) == CLOSED
            client.writer.close()
            await stopped

    @asynccontextmanager
    async def stopping_router(self, backends, shutdown):  # type: ignore[no-untyped-def]
        """A router that has begun to stop, the client of its one WebSocket, and its end."""
        config = Config.model_validate(
            {**FAST, "backends": [b.url for b in backends], "limits": {"shutdown": shutdown, "pre_drain": 0}}
        )
        router = Router(config)
        await router.__aenter__()
        await until(lambda: all(b.health.up and b.models for b in router.registry.backends.values()))
        async with await RawClient.connect(router.data_url) as client:
            await opened(client)
            async with asyncio.TaskGroup() as group:
                yield router, client, group.create_task(router.__aexit__(None, None, None))

    async def test_one_in_which_nothing_passes(self, backends: list[Scripted], start_router: StartRouter) -> None:
        everywhere(backends, echo)
        router = await start_router(backends, limits={"tunnel_timeout": 0.3})
        async with await RawClient.connect(router.data_url) as client:
            await opened(client)
            assert await rest_of(client) == b""
            await given_back(router)
        assert router.counters.client_timeouts == {"tunnel": 1}

    async def test_the_idle_timeout_is_not_for_it(self, backends: list[Scripted], start_router: StartRouter) -> None:
        everywhere(backends, echo)
        router = await start_router(backends, limits={"idle_timeout": 0.2, "head_timeout": 0.2, "body_timeout": 0.2})
        async with await RawClient.connect(router.data_url) as client, await RawClient.connect(router.data_url) as idle:
            await opened(client)
            assert await rest_of(idle) == b""  # the deadlines are at work
            await until(lambda: len(router._door.guests) == 1)
            client.send(b"still here")
            assert await client.reader.readexactly(10) == b"still here"

    async def test_half_of_one_has_the_idle_timeout(self, backends: list[Scripted], start_router: StartRouter) -> None:
        hold = asyncio.Event()

        async def deaf(talk: Talk) -> None:
            talk.send(SWITCH)
            await hold.wait()

        everywhere(backends, deaf)
        router = await start_router(backends, limits={"idle_timeout": 0.3})
        async with await RawClient.connect(router.data_url) as client:
            await opened(client)
            client.writer.write_eof()
            assert await rest_of(client) == b""
            await given_back(router)
        hold.set()
        assert router.counters.client_timeouts == {"idle": 1}

    async def test_a_backend_is_not_hung_for_its_silence(
        self, backends: list[Scripted], start_router: StartRouter
    ) -> None:
        everywhere(backends, echo)
        router = await start_router(backends, outlier={"silence": 0.5})
        async with await RawClient.connect(router.data_url) as client:
            home = (await opened(client))["x-warmroute-backend"]
            state = router.registry.backends[home]
            begun = router._clock()
            await until(lambda: state.heard_at > begun + 2.0 or not state.outlier.admits)
            assert state.outlier.admits
            client.send(b"still here")
            assert await client.reader.readexactly(10) == b"still here"

    async def test_a_reload_leaves_it_alone(self, backends: list[Scripted], stack: AsyncExitStack) -> None:
        """Its backend is removed, and it runs on in silence for longer than that of a hung backend."""
        everywhere(backends, echo)
        urls = [backend.url for backend in backends]
        config = Config.model_validate({**FAST, "backends": urls, "outlier": {"silence": 0.3}})
        router = await stack.enter_async_context(Router(config, read=lambda: config))
        await until(lambda: all(b.health.up and b.models for b in router.registry.backends.values()))
        async with await RawClient.connect(router.data_url) as client:
            home = (await opened(client, handshake(x_session_id="conversation")))["x-warmroute-backend"]
            gone = next(backend for backend in backends if backend.name == home)
            config = config.model_copy(
                update={"backends": tuple(b for b in config.backends if b.url != gone.url)},
            )
            assert (await router.reload()).removed == (home,)
            now = router._clock()
            await until(lambda: router._clock() > now + 3.5)  # three sweeps, one a second
            client.send(b"still here")
            assert await client.reader.readexactly(10) == b"still here"
            client.writer.write_eof()
            assert await rest_of(client) == b""


Handler = Callable[[ServerConnection], Awaitable[None]]


async def echoing(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


@asynccontextmanager
async def speaking(handler: Handler, refuse: bool = False) -> AsyncIterator[Router]:
    """A router whose one backend speaks WebSocket by a library."""

    def answer_others(connection: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/v1/realtime"):
            return connection.respond(HTTPStatus.FORBIDDEN, "no") if refuse else None
        return connection.respond(HTTPStatus.OK, '{"data":[{"id":"m"}]}' if "models" in request.path else "")

    async with serve(
        handler, "127.0.0.1", 0, process_request=answer_others, max_size=None, ping_interval=None
    ) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with Router(Config.model_validate({**FAST, "backends": [f"http://127.0.0.1:{port}"]})) as router:
            await until(lambda: all(b.health.up and b.models for b in router.registry.backends.values()))
            yield router


def dial(router: Router) -> connect:
    address = router.data_url.replace("http", "ws", 1) + "/v1/realtime?model=m"
    return connect(address, max_size=None, ping_interval=None)


class TestByALibrary:
    """Both ends are a library's, with compression and all."""

    async def test_messages_and_pings(self) -> None:
        async with speaking(echoing) as router:
            async with dial(router) as client:
                assert client.response is not None
                assert "permessage-deflate" in client.response.headers["sec-websocket-extensions"]
                for message in ("words", b"bytes", "ü" * 70_000, os.urandom(1 << 20)):
                    await client.send(message)
                    assert await client.recv() == message
                await (await client.ping(b"are you there"))
            assert client.close_code == 1000
            await given_back(router)
            record = await record_of(router)
            assert (record.aborted, record.failures) == (False, [])
            assert record.bytes_in > 1 << 20
            assert record.bytes_out > 1 << 20

    async def test_a_close_by_the_backend(self) -> None:
        async def leaves(connection: ServerConnection) -> None:
            await connection.recv()
            await connection.close(4321, "enough")

        async with speaking(leaves) as router, dial(router) as client:
            await client.send("hello")
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert (client.close_code, client.close_reason) == (4321, "enough")
            await given_back(router)
            assert (await record_of(router)).failures == []

    async def test_a_close_by_the_client(self) -> None:
        closed: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def waits(connection: ServerConnection) -> None:
            with suppress(ConnectionClosed):
                await connection.recv()
            closed.set_result((connection.close_code, connection.close_reason))

        async with speaking(waits) as router, dial(router) as client:
            await client.close(4567, "done")
            assert await closed == (4567, "done")
            await given_back(router)
            assert not (await record_of(router)).aborted

    async def test_a_drain_is_a_close_like_any_other(self) -> None:
        async def waits(connection: ServerConnection) -> None:
            await connection.send("hello")
            with suppress(ConnectionClosed):
                await connection.recv()

        async with speaking(waits) as router, dial(router) as client:
            assert await client.recv() == "hello"
            for name in router.registry.backends:
                router.registry.drain(name, on=True, until=router._clock())
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1012
            await given_back(router)

    async def test_a_refusal(self) -> None:
        async with speaking(echoing, refuse=True) as router:
            with pytest.raises(InvalidStatus, match="403"):
                await dial(router)
