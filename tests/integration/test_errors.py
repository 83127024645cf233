"""Every error that the router makes, provoked over a socket on each API: its status, code, shape, words, and one record."""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from warmroute.app import Router
from warmroute.config import Config
from warmroute.core.routes import Protocol
from warmroute.observe.record import RequestRecord
from warmroute.proxy.errors import Code, RouterError
from warmroute.recognition.recognizer import Recognizer

from .conftest import FAST, until, up
from .scripted import RawClient, Reply, Scripted, Talk, token

PATHS = {
    Protocol.OPENAI: "/v1/chat/completions",
    Protocol.RESPONSES: "/v1/responses",
    Protocol.ANTHROPIC: "/v1/messages",
}
BODIES: dict[Protocol, dict[str, Any]] = {
    Protocol.OPENAI: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    Protocol.RESPONSES: {"model": "m", "input": "hi"},
    Protocol.ANTHROPIC: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
}
SHORT = 0.3
PATIENCE = 15.0


class Bench:
    """A router over two backends with names, and a client that speaks one API."""

    def __init__(self, stack: AsyncExitStack, protocol: Protocol) -> None:
        self.protocol = protocol
        self.path = PATHS[protocol]
        self.backends: list[Scripted] = []
        self.router: Router
        self._stack = stack

    async def start(self, count: int = 2, **sections: Any) -> None:
        self.backends = [await self._stack.enter_async_context(Scripted()) for _ in range(count)]
        named = [{"url": b.url, "name": f"gpu-{i}"} for i, b in enumerate(self.backends)]
        config = Config.model_validate({**FAST, **sections, "backends": named})
        self.router = await self._stack.enter_async_context(Router(config))
        backends = self.router.registry.backends.values()
        await until(lambda: up(self.router) == count and all(b.models for b in backends))

    def head(self, method: str = "POST", path: str = "", more: str = "host: x\r\n") -> bytes:
        return f"{method} {path or self.path} HTTP/1.1\r\n{more}".encode()

    async def raw(self, data: bytes) -> Reply:
        async with await RawClient.connect(self.router.data_url) as client, asyncio.timeout(PATIENCE):
            client.send(data)
            return await client.reply()

    async def post(self, session: str | None = None, **fields: Any) -> Reply:
        async with await RawClient.connect(self.router.data_url) as client, asyncio.timeout(PATIENCE):
            self.ask(client, session, **fields)
            return await client.reply()

    def ask(self, client: RawClient, session: str | None = None, **fields: Any) -> None:
        headers = {"x-session-id": session} if session else {}
        client.post({**BODIES[self.protocol], **fields}, headers, self.path)

    def script(self, script: Callable[[Talk], Awaitable[None]]) -> None:
        for backend in self.backends:
            backend.script = script


async def stuck(talk: Talk) -> None:
    await talk.peer_closed(within=PATIENCE)


async def reset(talk: Talk) -> None:
    talk.reset()


async def gone(bench: Bench, number: int) -> None:
    await bench.backends[number].stop()
    await until(lambda: bench.router.registry.backends[f"gpu-{number}"].health.up is False)


# How each one comes about


async def bad_request(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head(more="host: x\r\nhost: y\r\ncontent-length: 0\r\n\r\n"))


async def no_http(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head(more="host: x\r\ncontent-length : 3\r\n\r\nabc"))


async def unknown_path(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head(path=bench.path.removeprefix("/v1"), more="host: x\r\ncontent-length: 0\r\n\r\n"))


async def invalid_api_key(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(listen={"port": 0, "admin_port": 0, "keys": ["one"]})
    return await bench.post()


async def not_for_clients(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(isolation={"cache_salt": "tenant"})
    return await bench.post(cache_salt="mine")


async def asks_too_much(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(tenants={"default": {"n": 2}})
    return await bench.post(n=3)


async def response_not_found(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(tenants={"default": {}})
    return await bench.post(previous_response_id="resp_of_somebody_else")


async def tenant_limit(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(tenants={"default": {"rate": 0.01}})
    assert (await bench.post()).status == 200
    return await bench.post()


async def model_not_found(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.post(model="nope")


async def method_not_allowed(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head("PUT", more="host: x\r\n\r\n"))


async def unheard_method(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head("BREW", more="host: x\r\n\r\n"))


async def head_timeout(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(limits={"head_timeout": SHORT})
    return await bench.raw(bench.head())


async def body_timeout(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(limits={"body_timeout": SHORT})
    return await bench.raw(bench.head(more="host: x\r\ncontent-length: 100\r\n\r\n{"))


async def body_too_large(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(limits={"body": "1KiB"})
    return await bench.post(padding="x" * 2000)


async def headers_too_large(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head(more="host: x\r\n" + "x-a: b\r\n" * 100 + "\r\n"))


async def head_too_large(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head(more=f"host: x\r\ncookie: {'c' * 70_000}"))


async def router_error(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    def broken(*words: Any, **named: Any) -> None:
        raise LookupError("/secret/path of 0x7f00")

    await bench.start()
    patch.setattr(Recognizer, "recognise", broken)
    return await bench.post()


async def backend_failed(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    bench.script(reset)
    return await bench.post()


async def no_backend_available(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    await gone(bench, 0)
    await gone(bench, 1)
    return await bench.post()


async def overloaded(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(1, queue={"in_flight": 1, "length": 0})
    bench.script(stuck)
    async with await RawClient.connect(bench.router.data_url) as first:
        bench.ask(first, "s")
        await until(lambda: bench.router.registry.backends["gpu-0"].in_flight == 1)
        reply = await bench.post("s")
    await until(lambda: bench.router.counters.client_aborts == 1)
    return reply


async def response_owner_unavailable(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    async def made(talk: Talk) -> None:
        talk.json({"id": "resp_1", "object": "response", "status": "completed", "output": []})

    await bench.start()
    bench.script(made)
    reply = await bench.post()
    await gone(bench, int((reply.header("x-warmroute-backend") or "").removeprefix("gpu-")))
    return await bench.post(previous_response_id="resp_1")


async def conversation_owner_unavailable(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(affinity={"when_gone": "refuse"})
    reply = await bench.post("s")
    await gone(bench, int((reply.header("x-warmroute-backend") or "").removeprefix("gpu-")))
    return await bench.post("s")


async def router_unavailable(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    async def none_left(*words: Any, **named: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    await bench.start()
    async with await RawClient.connect(bench.router.data_url) as client, asyncio.timeout(PATIENCE):
        patch.setattr(asyncio.get_running_loop(), "create_connection", none_left)
        bench.ask(client)
        return await client.reply()


async def too_many_connections(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start(limits={"max_connections": 1})
    async with await RawClient.connect(bench.router.data_url) as first:
        bench.ask(first)
        assert (await first.reply()).status == 200
        return await bench.raw(b"")


async def bad_handshake(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    asked = "host: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\r\n"
    return await bench.raw(bench.head("GET", "/v1/realtime", asked))


async def upgrade_required(bench: Bench, patch: pytest.MonkeyPatch) -> Reply:
    await bench.start()
    return await bench.raw(bench.head("GET", "/v1/realtime", "host: x\r\n\r\n"))


Provoke = Callable[[Bench, pytest.MonkeyPatch], Awaitable[Reply]]
ALL_APIS = tuple(PATHS)
BEFORE_A_PATH = (Protocol.OPENAI,)
"""What is refused whatever the API comes in OpenAI's shape."""

HOW: list[tuple[Code, Provoke, tuple[Protocol, ...]]] = [
    (Code.BAD_REQUEST, bad_request, ALL_APIS),
    (Code.BAD_REQUEST, no_http, ALL_APIS),
    (Code.BAD_HANDSHAKE, bad_handshake, BEFORE_A_PATH),
    (Code.NOT_FOR_CLIENTS, not_for_clients, ALL_APIS),
    (Code.ASKS_TOO_MUCH, asks_too_much, ALL_APIS),
    (Code.RESPONSE_NOT_FOUND, response_not_found, (Protocol.RESPONSES,)),
    (Code.TENANT_LIMIT, tenant_limit, ALL_APIS),
    (Code.INVALID_API_KEY, invalid_api_key, ALL_APIS),
    (Code.UNKNOWN_PATH, unknown_path, BEFORE_A_PATH),
    (Code.MODEL_NOT_FOUND, model_not_found, ALL_APIS),
    (Code.METHOD_NOT_ALLOWED, method_not_allowed, ALL_APIS),
    (Code.METHOD_NOT_ALLOWED, unheard_method, ALL_APIS),
    (Code.HEAD_TIMEOUT, head_timeout, ALL_APIS),
    (Code.BODY_TIMEOUT, body_timeout, ALL_APIS),
    (Code.BODY_TOO_LARGE, body_too_large, ALL_APIS),
    (Code.UPGRADE_REQUIRED, upgrade_required, BEFORE_A_PATH),
    (Code.HEADERS_TOO_LARGE, headers_too_large, ALL_APIS),
    (Code.HEADERS_TOO_LARGE, head_too_large, ALL_APIS),
    (Code.ROUTER_ERROR, router_error, ALL_APIS),
    (Code.BACKEND_FAILED, backend_failed, ALL_APIS),
    (Code.NO_BACKEND_AVAILABLE, no_backend_available, ALL_APIS),
    (Code.OVERLOADED, overloaded, ALL_APIS),
    (Code.RESPONSE_OWNER_UNAVAILABLE, response_owner_unavailable, (Protocol.RESPONSES,)),
    (Code.CONVERSATION_OWNER_UNAVAILABLE, conversation_owner_unavailable, ALL_APIS),
    (Code.ROUTER_UNAVAILABLE, router_unavailable, ALL_APIS),
    (Code.TOO_MANY_CONNECTIONS, too_many_connections, BEFORE_A_PATH),
]
CASES = [
    pytest.param(code, provoke, protocol, id=f"{provoke.__name__}-{protocol}")
    for code, provoke, protocols in HOW
    for protocol in protocols
]
HELD_BACK = ("http://", "127.0.0.1", "Errno", "Traceback", "0x", "object at", "bytearray", "<", "/secret")
"""What no client should read: addresses of backends, and words of the program."""


def test_every_code_is_provoked() -> None:
    assert {code for code, _, _ in HOW} == set(Code)


def said(reply: Reply, code: Code, protocol: Protocol) -> str:
    """The message, when all around it is as it should be."""
    body: Any = reply.json()
    message: str = body["error"]["message"]
    error = RouterError(code, message)
    assert reply.status == code.status
    assert reply.header("content-type") == "application/json"
    assert body == json.loads(error.body(protocol))
    assert body["error"]["type"] == error.type(protocol)
    assert (body["error"].get("code") == code) is (protocol is not Protocol.ANTHROPIC)
    return message


def refused(router: Router, code: Code) -> list[RequestRecord]:
    return [record for record in router.counters.recent if record.error == code]


@pytest.mark.parametrize(("code", "provoke", "protocol"), CASES)
async def test_each_has_its_status_shape_words_and_one_record(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, code: Code, provoke: Provoke, protocol: Protocol
) -> None:
    bench = Bench(stack, protocol)
    reply = await provoke(bench, monkeypatch)
    monkeypatch.undo()
    message = said(reply, code, protocol)
    assert not [word for word in HELD_BACK if word in message]
    assert "\n" not in message
    waits = code is Code.TENANT_LIMIT or (code.status >= 500 and code is not Code.ROUTER_ERROR)
    assert (reply.header("retry-after") is not None) is waits
    if code is Code.TOO_MANY_CONNECTIONS:  # no request has come
        assert (refused(bench.router, code), bench.router.counters.connections_refused) == ([], 1)
    else:
        await recorded(bench, reply, code, provoke)


async def recorded(bench: Bench, reply: Reply, code: Code, provoke: Provoke) -> None:
    """The one record of a refused request, and what it says."""
    await until(lambda: bool(refused(bench.router, code)))
    (record,) = refused(bench.router, code)
    assert (record.status, record.backend, record.aborted) == (code.status, None, False)
    assert sum(n for (_, status, _), n in bench.router.counters.requests.items() if status == code.status) == 1
    realtime = code in (Code.BAD_HANDSHAKE, Code.UPGRADE_REQUIRED)
    assert record.path == ("-" if provoke is unknown_path else "/v1/realtime" if realtime else bench.path)
    assert (record.method == "-") is (provoke is unheard_method)
    if code is not Code.ROUTER_ERROR:
        assert (record.id, record.bytes_out) == (reply.header("x-request-id"), len(reply.body))
    if code is Code.HEAD_TIMEOUT:
        assert SHORT <= record.duration_s < PATIENCE


# Heads that are refused


async def test_a_refused_head_keeps_the_clients_request_id_and_is_counted(stack: AsyncExitStack) -> None:
    bench = Bench(stack, Protocol.OPENAI)
    await bench.start()
    reply = await bench.raw(bench.head(more="host: x\r\nhost: y\r\nx-request-id: mine-1\r\ncontent-length: 0\r\n\r\n"))
    assert reply.header("x-request-id") == "mine-1"
    (record,) = refused(bench.router, Code.BAD_REQUEST)
    assert (record.id, record.method, record.path, record.session) == ("mine-1", "POST", bench.path, None)
    async with httpx.AsyncClient(base_url=bench.router.admin_url) as http:
        page = (await http.get("/metrics")).text
    assert 'warmroute_requests_total{backend="",code="400",decision="none"} 1.0' in page


async def test_what_is_no_http_is_logged_without_a_word_of_it(stack: AsyncExitStack) -> None:
    bench = Bench(stack, Protocol.OPENAI)
    await bench.start()
    for data in (b"\x16\x03\x01\x02\x00\x01", b"hello there\r\n\r\n"):
        assert (await bench.raw(data)).status == 400
    first, second = refused(bench.router, Code.BAD_REQUEST)
    assert {first.method, first.path, second.method, second.path} == {"-"}
    assert first.id != second.id


async def test_garbage_behind_a_good_request_is_not_taken_for_that_one(stack: AsyncExitStack) -> None:
    bench = Bench(stack, Protocol.ANTHROPIC)
    await bench.start()
    body = json.dumps(BODIES[bench.protocol]).encode()
    async with await RawClient.connect(bench.router.data_url) as client, asyncio.timeout(PATIENCE):
        client.send(bench.head(more=f"host: x\r\ncontent-length: {len(body)}\r\n\r\n") + body + b"hello there\r\n\r\n")
        assert (await client.reply()).status == 200
        said(await client.reply(), Code.BAD_REQUEST, Protocol.OPENAI)
    (record,) = refused(bench.router, Code.BAD_REQUEST)
    assert (record.method, record.path) == ("-", "-")


# In a stream that has begun


def last_event(body: bytes) -> tuple[str | None, Any]:
    """Name and data of the last event."""
    name, data = None, None
    for line in body.rstrip(b"\n").split(b"\n\n")[-1].split(b"\n"):
        field, _, value = line.decode().partition(": ")
        name, data = (value, data) if field == "event" else (name, json.loads(value))
    return name, data


FIRST: dict[Protocol, bytes] = {
    Protocol.OPENAI: b"data: " + json.dumps(token("one")).encode() + b"\n\n",
    Protocol.RESPONSES: b"event: response.output_text.delta\n"
    b'data: {"type":"response.output_text.delta","delta":"one","item_id":"m","output_index":0,"sequence_number":4}\n\n',
    Protocol.ANTHROPIC: b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"one"}}\n\n',
}


@pytest.mark.parametrize("protocol", ALL_APIS)
@pytest.mark.parametrize("end", ["backend dies", "router stops"])
async def test_an_answer_that_breaks_off_ends_in_an_error_of_its_api(
    stack: AsyncExitStack, protocol: Protocol, end: str
) -> None:
    go = asyncio.Event()

    async def begun(talk: Talk) -> None:
        talk.stream_head()
        talk.chunk(FIRST[protocol])
        await go.wait()
        if end == "backend dies":
            talk.reset()
        else:
            await talk.peer_closed(within=PATIENCE)

    bench = Bench(stack, protocol)
    await bench.start(limits={"pre_drain": "0s", "shutdown": SHORT})
    bench.script(begun)
    async with await RawClient.connect(bench.router.data_url) as client, asyncio.timeout(PATIENCE):
        bench.ask(client, stream=True)
        await client.head()
        body = await client.chunk()
        go.set()
        stopping = asyncio.ensure_future(bench.router.__aexit__(None, None, None) if end != "backend dies" else _no())
        while part := await client.chunk():
            body += part
    await stopping
    name, event = last_event(body)
    code = Code.BACKEND_FAILED if end == "backend dies" else Code.ROUTER_UNAVAILABLE
    message = event["error"]["message"]
    error = RouterError(code, message)
    assert message.startswith("the answer broke off: ")
    assert "ask again" in message
    assert not [word for word in HELD_BACK if word in message]
    assert event["error"] == json.loads(error.body(protocol))["error"]
    assert name == (None if protocol is Protocol.OPENAI else "error")
    assert event.get("type") == (None if protocol is Protocol.OPENAI else "error")
    assert event.get("sequence_number") == (5 if protocol is Protocol.RESPONSES else None)
    assert event.get("code") == (code if protocol is Protocol.RESPONSES else None)
    assert b"[DONE]" not in body
    await until(lambda: bool(refused(bench.router, code)))


async def _no() -> None:
    pass


# The admin listener


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/api/nope", 404, "/api/nope is not here; see /openapi.json"),
        ("GET", "/nope", 404, "/nope is not here"),
        ("GET", "/api/reload", 405, "/api/reload takes POST and no other method"),
        ("POST", "/api/state", 405, "/api/state takes GET and no other method"),
        ("POST", "/api/backends/x/drain", 404, "no backend is named 'x'; there are gpu-0, gpu-1"),
        ("GET", "/api/sessions?limit=0", 422, "limit: "),
        ("POST", "/api/explain", 422, "the body: "),
        ("POST", "/api/reload", 409, "not started from a configuration that can be read again"),
    ],
)
async def test_the_admin_listener_says_what_would_be_right(
    stack: AsyncExitStack, method: str, path: str, status: int, said: str
) -> None:
    bench = Bench(stack, Protocol.OPENAI)
    await bench.start()
    async with httpx.AsyncClient(base_url=bench.router.admin_url) as http:
        reply = await http.request(method, path)
    assert (reply.status_code, list(reply.json())) == (status, ["detail"])
    assert said in reply.json()["detail"]


async def test_a_fault_behind_the_admin_listener_is_told_as_json(
    stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*words: Any) -> None:
        raise LookupError("/secret")

    bench = Bench(stack, Protocol.OPENAI)
    await bench.start()
    monkeypatch.setattr("warmroute.observe.state.StateView.history", broken)
    async with httpx.AsyncClient(base_url=bench.router.admin_url) as http:
        reply = await http.get("/api/history")
    assert (reply.status_code, reply.json()) == (
        500,
        {"detail": "the router failed at this request; its log says why"},
    )
    assert "/secret" in caplog.text
