"""HTTP as it must be: framing, hop-by-hop headers, limits, odd bodies."""

import asyncio
import gc
import gzip
import hashlib
import json
import os
from collections import Counter
from itertools import pairwise

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from warmroute.app import Router
from warmroute.proxy.client import Client
from warmroute.proxy.connection import Connection
from warmroute.proxy.handshake import SwitchingProtocol
from warmroute.proxy.in_flight import InFlight
from warmroute.proxy.wire import Wire

from .conftest import StartRouter, until, up
from .scripted import RawClient, Scripted, Talk


async def test_hop_by_hop_headers_stay_on_their_hop(router: Router, backends: list[Scripted]) -> None:
    async def hops(talk: Talk) -> None:
        talk.send(
            b"HTTP/1.1 200 OK\r\nconnection: keep-alive, x-internal\r\nkeep-alive: timeout=5\r\nx-internal: 1\r\n"
            b"link: a=1\r\nlink: b=2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
        )

    for backend in backends:
        backend.script = hops
    async with await RawClient.connect(router.data_url) as client:
        sent = {"connection": "keep-alive, x-hop", "x-hop": "secret", "te": "trailers", "keep-alive": "9"}
        client.post({"model": "m"}, {**sent, "proxy-authorization": "Basic AAAA", "x-tag": "kept"})
        reply = await client.reply()
    seen = next(b.posts[0] for b in backends if b.posts)
    assert [seen.header(name) for name in (*sent, "proxy-authorization")] == [None] * 5
    assert seen.header("x-tag") == "kept"
    assert (reply.body, reply.header("x-internal"), reply.header("keep-alive")) == (b"{}", None, None)
    framing = [name for name, _ in reply.headers if name in ("content-length", "transfer-encoding")]
    assert len(framing) == 1
    assert [value for name, value in reply.headers if name == "link"] == ["a=1", "b=2"]


async def test_a_chunked_request_body_arrives_whole(router: Router, backends: list[Scripted]) -> None:
    body = json.dumps({"model": "m", "session_id": "s", "messages": []}).encode()
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for part in (body[:5], body[5:8], body[8:]):
            client.send(b"%x\r\n%b\r\n" % (len(part), part))
            await asyncio.sleep(0.02)
        client.send(b"0\r\n\r\n")
        assert (await client.reply()).header("x-warmroute-key") == "session_id"
    seen = next(b.posts[0] for b in backends if b.posts)
    assert seen.body == body
    assert seen.header("transfer-encoding") is None


async def test_expect_is_answered_and_goes_no_further(router: Router, backends: list[Scripted]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 13\r\n\r\n"
        )
        assert await asyncio.wait_for(client.reader.readuntil(b"\r\n\r\n"), 1) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(b'{"model":"m"}')
        assert (await client.reply()).status == 200
    assert next(b.posts[0] for b in backends if b.posts).header("expect") is None


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
async def test_a_body_over_the_limit_is_refused(
    backends: list[Scripted], start_router: StartRouter, chunked: bool
) -> None:
    router = await start_router(backends, limits={"body": "64KiB"})
    async with await RawClient.connect(router.data_url) as client:
        if chunked:
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(80):
                client.send(b"400\r\n" + b"x" * 1024 + b"\r\n")
        else:
            client.send(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 70000\r\n\r\n"
            )
        reply = await client.reply()
        assert reply.status == 413
        assert "65536" in json.dumps(reply.json())
    assert all(not b.posts for b in backends)


@pytest.mark.parametrize(
    "body",
    [b'{"model":', b"", b'{"model":"\xff\xfe"}', b"\xef\xbb\xbf{}", b"[1,2]", b'"hi"', b"null", b"[" * 200_000,
     b'{"a":' + b"9" * 5000 + b"}", b'{"model":NaN}', b'{"session_id":"\\ud800"}', b'{"model":{},"session_id":[]}'],
    ids=["cut", "empty", "not utf-8", "bom", "array", "string", "null", "deep", "long number", "nan", "surrogate", "types"],
)  # fmt: skip
async def test_an_odd_body_is_sent_on_and_the_backend_answers(
    router: Router, backends: list[Scripted], body: bytes
) -> None:
    async def invalid(talk: Talk) -> None:
        talk.json({"error": {"message": "invalid"}}, "400 Bad Request")

    for backend in backends:
        backend.script = invalid
    async with await RawClient.connect(router.data_url) as client:
        client.post(body)
        reply = await client.reply()
        assert (reply.status, reply.json()) == (400, {"error": {"message": "invalid"}})
    assert next(b.posts[0] for b in backends if b.posts).body == body
    assert router.counters.internal_errors == {}


@pytest.mark.parametrize(
    "value", [b"caf\xc3\xa9\xff", b"x" * 10_000, b"x%0d%0aX-Evil:1", b"a\tb"], ids=["bytes", "long", "encoded", "tab"]
)
async def test_an_odd_session_id_still_pins(router: Router, value: bytes) -> None:
    async with await RawClient.connect(router.data_url) as client:
        homes = set()
        for _ in range(3):
            client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-session-id: " + value)
            client.send(b'\r\ncontent-length: 13\r\n\r\n{"model":"m"}')
            reply = await client.reply()
            assert reply.status == 200
            assert reply.header("x-evil") is None
            homes.add(reply.header("x-warmroute-backend"))
        assert len(homes) == 1


async def test_status_type_and_body_of_errors_pass_unchanged(router: Router, backends: list[Scripted]) -> None:
    for status in (
        "400 Bad Request",
        "404 Not Found",
        "413 Too Large",
        "422 Odd",
        "429 Slow",
        "500 Boom",
        "501 No",
        "503 Busy",
    ):

        async def refuse(talk: Talk, status: str = status) -> None:
            talk.send(
                f"HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nboom".encode()
            )

        for backend in backends:
            backend.script = refuse
        async with await RawClient.connect(router.data_url) as client:
            reply = await client.chat(stream=True)
        assert (reply.status, reply.body) == (int(status[:3]), b"boom")
        assert (reply.header("content-type"), reply.header("retry-after")) == ("text/plain", "7")
    assert router.counters.retries == {"status": 1}  # the 500; the 503 says when to come back
    assert all(b.health.up for b in router.registry.backends.values())


async def test_compressed_answers_pass_as_they_are(router: Router, backends: list[Scripted]) -> None:
    packed = gzip.compress(b"data: hello\n\n" * 20)

    async def zipped(talk: Talk) -> None:
        talk.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        for i in range(0, len(packed), 10):
            talk.chunk(packed[i : i + 10])
        talk.end()

    for backend in backends:
        backend.script = zipped
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s", stream=True)
    assert reply.header("content-encoding") == "gzip"
    assert reply.body == packed


async def test_event_bytes_are_equal_and_prompt_whatever_their_cuts(router: Router, backends: list[Scripted]) -> None:
    text = (
        b": ping\n\n" + 'event: delta\nid: 1\ndata: {"t":"你好"}\n\n'.encode() + b"data:no space\r\n\r\n"
        b"data: a\ndata: b\ndata: c\n\nretry: 100\n\n"
        + "data: 🎉\n\n".encode()
        + b"data: "
        + b"y" * 300_000
        + b"\n\ndata: [DONE]\n\n"
    )
    cuts = [0, 3, 33, 34, 41, 49, 50, 51, 60, 90, 91, 200_000, len(text)]
    pieces = [text[a:b] for a, b in pairwise(cuts)]

    async def cut(talk: Talk) -> None:
        talk.stream_head()
        for piece in pieces:
            talk.chunk(piece)
            await talk.drain()
            await asyncio.sleep(0.02)
        talk.end()

    for backend in backends:
        backend.script = cut
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s", stream=True)
    assert hashlib.sha256(reply.body).digest() == hashlib.sha256(text).digest()


async def test_a_bodiless_answer_ends(router: Router, backends: list[Scripted]) -> None:
    for raw in (b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 0\r\n\r\n"):

        async def bare(talk: Talk, raw: bytes = raw) -> None:
            talk.send(raw)

        for backend in backends:
            backend.script = bare
        async with await RawClient.connect(router.data_url) as client:
            reply = await asyncio.wait_for(client.chat("s"), 2)
            assert (reply.status, reply.body) == (int(raw[9:12]), b"")


async def test_an_answer_that_ends_with_its_connection_is_whole(router: Router, backends: list[Scripted]) -> None:
    async def until_close(talk: Talk) -> None:
        talk.send(b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}")
        await talk.drain()
        talk.close()

    for backend in backends:
        backend.script = until_close
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert (reply.status, reply.body, reply.whole) == (200, b"{}", True)


async def test_an_interim_answer_is_not_the_answer(router: Router, backends: list[Scripted]) -> None:
    async def interim(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        talk.json({"real": True})

    for backend in backends:
        backend.script = interim
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert (reply.status, reply.json(), reply.header("link")) == (200, {"real": True}, None)


async def test_an_upload_arrives_unchanged_and_its_model_is_found(router: Router, backends: list[Scripted]) -> None:
    sound = os.urandom(3_000_000)
    body = (
        b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + sound + b"\r\n--b--\r\n"
    )
    async with await RawClient.connect(router.data_url) as client:
        for _ in range(2):
            head = f"POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\nx-session-id: s\r\ncontent-length: {len(body)}\r\n"
            client.send(head.encode() + b"content-type: multipart/form-data; boundary=b\r\n\r\n" + body)
            assert (await client.reply()).status == 200
    seen = [s for b in backends for s in b.posts]
    assert [s.body == body for s in seen] == [True, True]


async def test_what_is_no_http_gets_one_error_and_a_closed_connection(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"hello there\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (400, "close")
        assert await client.reader.read() == b""


async def test_pipelined_requests_are_answered_in_order(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        for i in range(10):
            client.post({"model": "m"}, {"x-request-id": f"r{i}"})
        assert [(await client.reply()).header("x-request-id") for _ in range(10)] == [f"r{i}" for i in range(10)]


async def test_head_on_the_root_is_answered_for_clients_that_probe_their_base_url(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.reply("HEAD")).status == 200
        assert (await client.chat("s")).status == 200


@pytest.mark.parametrize("framing", ["length", "chunked", "late"])
async def test_an_offer_of_another_protocol_is_ignored_and_the_body_arrives(
    router: Router, backends: list[Scripted], framing: str
) -> None:
    body = b'{"model":"m","session_id":"s"}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings\r\n"
    head += b"upgrade: h2c\r\nhttp2-settings: AA\r\n"
    async with await RawClient.connect(router.data_url) as client:
        for _ in range(2):
            if framing == "chunked":
                client.send(head + b"transfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
            else:
                client.send(head + b"content-length: %d\r\n\r\n" % len(body))
                await asyncio.sleep(0.1 if framing == "late" else 0)
                client.send(body)
            reply = await asyncio.wait_for(client.reply(), 3)
            assert (reply.status, reply.header("x-warmroute-key")) == (200, "session_id")
    seen = [s for b in backends for s in b.posts]
    assert [s.body for s in seen] == [body, body]
    assert [s.header("upgrade") for s in seen] == [None, None]


async def test_headers_without_end_are_refused(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-long: " + b"y" * 65_536)
        reply = await asyncio.wait_for(client.reply(), 3)
        assert (reply.status, reply.header("connection")) == (431, "close")


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
async def test_a_bodiless_status_with_a_length_ends_too(
    router: Router, backends: list[Scripted], status: bytes
) -> None:
    async def bare(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 " + status + b"\r\ncontent-length: 7\r\n\r\n")

    for backend in backends:
        backend.script = bare
    async with await RawClient.connect(router.data_url) as client:
        reply = await asyncio.wait_for(client.chat("s"), 3)
    assert reply.status == int(status[:3])
    assert router.counters.internal_errors == {}


async def test_a_status_that_http_does_not_have_is_a_failed_exchange(router: Router, backends: list[Scripted]) -> None:
    async def odd(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\n{}")

    for backend in backends:
        backend.script = odd
    async with await RawClient.connect(router.data_url) as client:
        assert (await client.chat("s")).status == 502
    assert router.counters.internal_errors == {}


async def test_a_model_list_that_wants_a_key_is_asked_for_with_the_clients_own(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    async def keyed(talk: Talk) -> None:
        if talk.seen.header("authorization") == "Bearer k":
            talk.json({"object": "list", "data": [{"id": "m"}]})
        else:
            talk.json({"error": "no key"}, "401 Unauthorized")

    for backend in backends:
        backend.models_script = keyed
    router = await start_router(backends, wait=False)
    await until(lambda: up(router) == 3)
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer k\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.json()["object"]) == (200, "list")
        assert (await client.chat("s")).status == 200


async def test_a_refusal_before_a_long_body_ends_the_connection(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"POST /sleep HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.header("connection")) == (404, "close")


# Pages in a browser


async def test_whether_a_page_may_call_is_for_the_backend_to_say(router: Router, backends: list[Scripted]) -> None:
    asked = {
        "origin": "http://ui.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,x-session-id",
    }

    async def allow(talk: Talk) -> None:
        assert [talk.seen.header(name) for name in asked] == list(asked.values())
        talk.send(
            b"HTTP/1.1 200 OK\r\naccess-control-allow-origin: *\r\naccess-control-max-age: 600\r\ncontent-length: 0\r\n\r\n"
        )

    for backend in backends:
        backend.script = allow
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/models/m"):
            answer = await client.options(path, headers=asked)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")
            assert answer.headers["access-control-max-age"] == "600"
            assert answer.headers["x-warmroute-decision"] == "side"
        assert (await client.options("/metrics", headers=asked)).status_code == 404
    assert len(router.pins) == 0


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/none", "/nothing", "/health"])
async def test_a_page_may_read_what_the_router_itself_answers(router: Router, path: str) -> None:
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        alone, page = await client.get(path), await client.get(path, headers={"origin": "http://ui.example"})
    assert page.headers["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in alone.headers


async def test_a_request_leaves_nothing_for_the_garbage_collector(router: Router) -> None:
    """What ends as a cycle keeps its body until a collection, which stops all others for some 80 ms once there are many."""
    async with await RawClient.connect(router.data_url) as client:
        assert (await client.chat("s")).status == 200
        gc.collect()
        gc.disable()
        try:
            for _ in range(10):
                assert (await client.chat("s")).status == 200
            alive = Counter(
                type(o).__name__ for o in gc.get_objects() if type(o) in (RequestResponseCycle, InFlight, Client)
            )
        finally:
            gc.enable()
    assert alive["RequestResponseCycle"] <= 2  # the connection's last one, and that of another test's
    assert alive["InFlight"] + alive["Client"] <= 1


WHOLE = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-session-id: s\r\ncontent-length: 13\r\n\r\n" + b'{"model":"m"}'
)


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"", 0),
        (WHOLE[:40], 0),
        (WHOLE[:-3], 0),
        (WHOLE, 1),
        (WHOLE * 3, 3),
        (WHOLE * 3, 0),
        (WHOLE.replace(b"HTTP/1.1", b"HTTP/1.0"), 1),
        (WHOLE.replace(b"host: x", b"host: x\r\nconnection: close"), 1),
        (WHOLE.replace(b"host: x", b"host: x\r\nhost: y"), 1),
        (b"nonsense\r\n\r\n", 1),
        (b"GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n", 1),
    ],
    ids=[
        *("nothing sent", "half a head", "half a body", "answered", "answered thrice", "left behind three", "of old"),
        *("the last one", "refused", "no HTTP", "not found"),
    ],
)
async def test_a_connection_that_ends_leaves_nothing_for_the_garbage_collector(
    router: Router, sent: bytes, answers: int
) -> None:
    """A full collection looks at all that lives, which stops everybody meanwhile: connections must not need it."""
    kinds = (SwitchingProtocol, Wire, Client)
    gc.collect()
    before = Counter(type(o).__name__ for o in gc.get_objects() if type(o) in kinds)
    gc.disable()
    try:
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*router.data_url.removeprefix("http://").split(":"))
            writer.write(sent)
            seen = b""
            while seen.count(b"HTTP/1.1 ") < answers:
                seen += await asyncio.wait_for(reader.read(1 << 16), 10)
            writer.close()
            await writer.wait_closed()
        del reader, writer

        def alive() -> Counter[str]:
            return Counter(type(o).__name__ for o in gc.get_objects() if type(o) in kinds) - before

        await until(lambda: not alive())
    finally:
        gc.enable()


async def test_a_connection_to_a_backend_leaves_nothing_for_it_either(router: Router, backends: list[Scripted]) -> None:
    async def begins(talk: Talk) -> None:
        talk.stream_head()
        talk.event({"choices": [{"delta": {"content": "one"}}]})
        await talk.drain()
        await talk.peer_closed(within=10)

    for backend in backends:
        backend.script = begins

    def closed() -> int:
        return sum(type(o) is Connection and o.closed for o in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            async with await RawClient.connect(router.data_url) as client:
                client.post({"model": "m", "stream": True, "messages": []})
                await client.head()
                await client.chunk()
        await until(lambda: all(b.in_flight == 0 for b in router.registry.backends.values()))
        await until(lambda: not closed())
    finally:
        gc.enable()
