"""Heads and bodies that two parsers could read in two ways: none gets a second answer, or a second request at a backend.

Behind each vector comes a request for /livez that ends the connection, so that whoever loses step shows it. What reaches the
backend is recorded byte for byte and read by another parser (h11), which must find whole requests and nothing else. Each
vector is sent at once and byte by byte. The classes are those of HTTP Garden and of h1spec.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

import h11
import pytest
import pytest_asyncio

from warmroute.app import Router
from warmroute.config import Config

from ..integration.conftest import FAST, until
from ..integration.scripted import RawClient

BODY = b'{"model":"m"}'
HIDDEN = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Hidden: 1\r\nContent-Length: 13\r\n\r\n" + BODY
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
ALIVE = (200, b'{"status":"alive"}')
QUIET = ("/health", "/metrics", "/v1/models")
CHUNKED = b"d\r\n" + BODY + b"\r\n0\r\n\r\n"


class Outcome(NamedTuple):
    """Statuses of the answers before that to LAST; whether that one comes; and the bodies of the requests at the backend."""

    statuses: tuple[int, ...]
    last: bool
    bodies: tuple[bytes, ...]


ONE = Outcome((200,), True, (BODY,))
TWO = Outcome((200, 200), True, (BODY, BODY))
EMPTY = Outcome((200,), True, (b"",))
NO = Outcome((400,), False, ())
NOT_THE_REST = Outcome((200, 400), False, (BODY,))


def refused(status: int) -> Outcome:
    """Refused, and the connection goes on."""
    return Outcome((status,), True, ())


def post(
    *lines: bytes, body: bytes = BODY, line: bytes = b"POST /v1/chat/completions HTTP/1.1", host: bool = True
) -> bytes:
    head = [line, *([b"Host: x"] if host else []), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def sized(*lines: bytes, **others: bytes) -> bytes:
    return post(b"Content-Length: 13", *lines, **others)  # type: ignore[arg-type]


def chunked(body: bytes, *lines: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", *lines, body=body)


def coded(value: bytes, name: bytes = b"Transfer-Encoding: ") -> bytes:
    """Another writing of the coding; whoever does not know it sees no body, and then HIDDEN."""
    return post(name + value, body=CHUNKED + HIDDEN)


def long(value: bytes, name: bytes = b"Content-Length: ") -> bytes:
    """Another writing of the length."""
    return post(name + value, body=BODY + HIDDEN)


LENGTHS: dict[str, tuple[bytes, Outcome]] = {
    "length": (sized(), ONE),
    "length, mixed case": (post(b"cOnTeNt-LeNgTh: 13"), ONE),
    "length without a space": (post(b"Content-Length:13"), ONE),
    "length with spaces and a tab": (post(b"Content-Length: \t 13 "), ONE),
    "length with zeros before": (post(b"Content-Length: 00013"), ONE),
    "length zero": (post(b"Content-Length: 0", body=b""), EMPTY),
    "length zero, and a request behind": (
        post(b"Content-Length: 0", body=b"") + sized(),
        Outcome((200, 200), True, (b"", BODY)),
    ),
    **{
        f"length {value!r}": (long(value), NO)
        for value in (
            b"+13",
            b"-13",
            b"0xd",
            b"13,13",
            b"13, 13",
            b"1 3",
            b"1_3",
            b"",
            b" ",
            b"13;",
            b"thirteen",
            b"1e1",
            b"13.0",
            b"\xd9\xa1\xd9\xa3",
            b"\x0b13",
            b"13\x0c",
            b"13\x00",
            b"'13'",
            b"18446744073709551629",
            b"9" * 40,
        )
    },
    "two lengths, equal": (post(b"Content-Length: 13", b"Content-Length: 13"), NO),
    "two lengths, the short one first": (post(b"Content-Length: 0", b"Content-Length: 13", body=BODY + HIDDEN), NO),
    "two lengths, the long one first": (post(b"Content-Length: 13", b"Content-Length: 0", body=BODY + HIDDEN), NO),
    "length named by connection": (sized(b"Connection: content-length"), ONE),
    "length with an underscore beside": (sized(b"Content_Length: 0"), ONE),
    "length with a space before the colon": (long(b"13", b"Content-Length : "), NO),
    "length with a tab before the colon": (long(b"13", b"Content-Length\t: "), NO),
    "length in a folded line": (post(b"Content-Length:", b" 13", body=BODY + HIDDEN), NO),
    "no length": (post(body=HIDDEN), Outcome((200, 200), True, (b"", BODY))),
}

CODINGS: dict[str, tuple[bytes, Outcome]] = {
    "chunked": (chunked(CHUNKED), ONE),
    "chunked, mixed case": (post(b"tRANSFER-eNCODING: cHuNkEd", body=CHUNKED), ONE),
    "chunked, and a request behind": (chunked(CHUNKED) + sized(), TWO),
    "chunked in many pieces": (chunked(b"".join(b"1\r\n%c\r\n" % c for c in BODY) + b"0\r\n\r\n"), ONE),
    **{
        f"coding {value!r}": (coded(value), NO)
        for value in (
            b"xchunked",
            b"chunkedx",
            b"chunke",
            b"identity",
            b"gzip",
            b"chunked, identity",
            b"identity, chunked",
            b"gzip, chunked",
            b"chunked, chunked",
            b"chunked,",
            b",chunked",
            b"chunked;q=1",
            b'"chunked"',
            b"chunked\x0b",
            b"\x0bchunked",
            b"chunked\x00",
            b"chunked\x00identity",
            b"\xa0chunked",
            b"c hunked",
            b"",
            b"chunKed".replace(b"K", b"\xe2\x84\xaa"),
        )
    },
    "coding with spaces and a tab": (post(b"Transfer-Encoding:\t chunked", body=CHUNKED), ONE),
    "two codings": (post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNKED + HIDDEN), NO),
    "two codings, one unknown": (
        post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=CHUNKED + HIDDEN),
        NO,
    ),
    "two codings, the unknown one first": (
        post(b"Transfer-Encoding: x", b"Transfer-Encoding: chunked", body=CHUNKED + HIDDEN),
        NO,
    ),
    "coding with a space before the colon": (coded(b"chunked", b"Transfer-Encoding : "), NO),
    "coding after a space": (coded(b"chunked", b" Transfer-Encoding: "), NO),
    "coding after a header's space": (post(b"X: y", b" Transfer-Encoding: chunked", body=CHUNKED + HIDDEN), NO),
    "coding in a folded line": (post(b"Transfer-Encoding:", b" chunked", body=CHUNKED + HIDDEN), NO),
    "coding in a line of its own after a bare LF": (
        post(b"X: y\nTransfer-Encoding: chunked", body=CHUNKED + HIDDEN),
        NO,
    ),
    "coding in a line of its own after a bare CR": (
        post(b"X: y\rTransfer-Encoding: chunked", body=CHUNKED + HIDDEN),
        NO,
    ),
    "coding with NUL in its name": (coded(b"chunked", b"Transfer-Encoding\x00: "), NO),
    "coding with an underscore": (post(b"Transfer_Encoding: chunked", b"Content-Length: 13"), ONE),
    "coding named by connection": (chunked(CHUNKED, b"Connection: transfer-encoding"), ONE),
    "coding under HTTP/1.0": (
        post(b"Transfer-Encoding: chunked", line=b"POST /v1/chat/completions HTTP/1.0", body=CHUNKED + HIDDEN),
        NO,
    ),
    "CL.TE": (post(b"Content-Length: 23", b"Transfer-Encoding: chunked", body=CHUNKED + HIDDEN), NO),
    "TE.CL": (post(b"Transfer-Encoding: chunked", b"Content-Length: 3", body=CHUNKED + HIDDEN), NO),
    "CL.0": (post(b"Transfer-Encoding: chunked", b"Content-Length: 0", body=CHUNKED + HIDDEN), NO),
    "TE.TE and CL": (post(b"Transfer-Encoding: x", b"Content-Length: 13", body=BODY + HIDDEN), NO),
    "coding and a length under HTTP/1.0": (
        post(
            b"Transfer-Encoding: chunked",
            b"Content-Length: 13",
            line=b"POST /v1/chat/completions HTTP/1.0",
            body=CHUNKED + HIDDEN,
        ),
        NO,
    ),
}

CHUNKS: dict[str, tuple[bytes, Outcome]] = {
    "chunk with an extension": (chunked(b"d;name=value\r\n" + BODY + b"\r\n0\r\n\r\n"), ONE),
    "chunk with a quoted extension": (chunked(b'd;name="a;b"\r\n' + BODY + b"\r\n0;x\r\n\r\n"), ONE),
    "chunk size in capitals and with zeros": (chunked(b"0000D\r\n" + BODY + b"\r\n000\r\n\r\n"), ONE),
    **{
        f"chunk size {value!r}": (chunked(value + b"\r\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN), NO)
        for value in (
            b"0xd",
            b"+d",
            b"-d",
            b"d ",
            b" d",
            b"\td",
            b"d\t",
            b"d_",
            b"",
            b"g",
            b"d.",
            b"d\x00",
            b"1000000000000000d",
            b"f" * 40,
            b"d;x\ny",
            b"d;x\x00",
        )
    },
    "chunk size with LF alone": (chunked(b"d\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN), NO),
    "chunk size with CR alone": (chunked(b"d\r" + BODY + b"\r\n0\r\n\r\n" + HIDDEN), NO),
    "chunk with LF after its extension": (chunked(b"d;\n" + BODY + b"\r\n0\r\n\r\n" + HIDDEN), NO),
    "chunk that ends with LF alone": (chunked(b"d\r\n" + BODY + b"\n0\r\n\r\n" + HIDDEN), NO),
    "chunk that is longer than it says": (chunked(b"d\r\n" + BODY + b"xx\r\n0\r\n\r\n" + HIDDEN), NO),
    "chunk whose end is overwritten": (chunked(b"d\r\n" + BODY + b"XX0\r\n\r\n" + HIDDEN), NO),
    "last chunk with LF alone": (chunked(b"d\r\n" + BODY + b"\r\n0\n\n" + HIDDEN), NO),
    "trailer": (chunked(b"d\r\n" + BODY + b"\r\n0\r\nX-Hidden: 1\r\n\r\n"), ONE),
    "trailer that frames": (chunked(b"d\r\n" + BODY + b"\r\n0\r\nContent-Length: 5\r\n\r\n"), NO),
    "trailer that codes": (chunked(b"d\r\n" + BODY + b"\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"), NO),
    "trailer that names a host": (
        chunked(b"d\r\n" + BODY + b"\r\n0\r\nHost: y\r\nAuthorization: Bearer k\r\n\r\n"),
        ONE,
    ),
    "trailer that is folded": (chunked(b"d\r\n" + BODY + b"\r\n0\r\nX: y\r\n z\r\n\r\n" + HIDDEN), NO),
    "trailer without a colon": (chunked(b"d\r\n" + BODY + b"\r\n0\r\nnonsense\r\n\r\n" + HIDDEN), NO),
    "trailer with a request in it": (chunked(b"d\r\n" + BODY + b"\r\n0\r\n" + HIDDEN), NO),
    "chunk that holds a request": (
        chunked(b"%x\r\n%b\r\n0\r\n\r\n" % (len(HIDDEN), HIDDEN)),
        Outcome((200,), True, (HIDDEN,)),
    ),
    "body that holds a request": (
        post(b"Content-Length: %d" % len(HIDDEN), body=HIDDEN),
        Outcome((200,), True, (HIDDEN,)),
    ),
    "body that ends a chunked one": (
        post(b"Content-Length: 5", body=b"0\r\n\r\n"),
        Outcome((200,), True, (b"0\r\n\r\n",)),
    ),
}

LINE = b"POST /v1/chat/completions HTTP/1.1"
HEADS: dict[str, tuple[bytes, Outcome]] = {
    "empty lines before": (b"\r\n\r\n" + sized(), ONE),
    "garbage before": (b"\x00" + sized(), NO),
    "a space before": (b" " + sized(), NO),
    "two requests": (sized() + sized(), TWO),
    "ten requests": (sized() * 10, Outcome((200,) * 10, True, (BODY,) * 10)),
    "an empty line between": (sized() + b"\r\n" + sized(), TWO),
    "garbage behind": (sized() + b"nonsense\r\n\r\n" + HIDDEN, NOT_THE_REST),
    "more than the length": (post(b"Content-Length: 13", body=BODY + b"xx\r\n\r\n") + HIDDEN, NOT_THE_REST),
    "two spaces in the line": (sized(line=LINE.replace(b" /", b"  /")), ONE),
    "lines that end with LF": (sized().replace(b"\r\n", b"\n") + HIDDEN, NO),
    "a head that ends with LF": (b"\r\n".join([LINE, b"Host: x", b"Content-Length: 13"]) + b"\n\n" + BODY + HIDDEN, NO),
    "lines that end with CR": (sized().replace(b"\r\n", b"\r") + HIDDEN, NO),
    **{
        f"line {line!r}": (sized(line=line) + HIDDEN, NO)
        for line in (
            b"POST /v1/chat/completions",
            b"POST",
            b"",
            b"/v1/chat/completions HTTP/1.1",
            LINE.replace(b" ", b"\t"),
            LINE.replace(b"/1.1", b"/1.2"),
            LINE.replace(b"/1.1", b"/2.0"),
            LINE.replace(b"/1.1", b"/9.9"),
            LINE.replace(b"/1.1", b"/1.10"),
            LINE.replace(b"/1.1", b"/1"),
            LINE.replace(b"/1.1", b"/01.1"),
            LINE.replace(b"HTTP", b"http"),
            LINE.replace(b"HTTP", b"HTTQ"),
            LINE + b" ",
            LINE + b" x",
            LINE.replace(b"chat", b"ch at"),
            LINE.replace(b"chat", b"ch\x00at"),
            LINE.replace(b"chat", b"ch\xffat"),
            LINE.replace(b"chat", b"ch\x7fat"),
            LINE.replace(b"POST", b"POST\x00"),
            LINE.replace(b"POST", b"P(ST"),
        )
    },
    "a line of RTSP, which the parser takes for HTTP": (sized(line=LINE.replace(b"HTTP", b"RTSP")), ONE),
    "a method in small letters": (sized(line=LINE.replace(b"POST", b"post")), Outcome((405,), False, ())),
    "a method that nobody knows": (sized(line=LINE.replace(b"POST", b"SMUGGLE")), Outcome((405,), False, ())),
    "HTTP/2's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN, NO),
    "no host": (sized(host=b"") + HIDDEN, NO),
    "two hosts": (sized(b"Host: y") + HIDDEN, NO),
    "two equal hosts": (sized(b"Host: x") + HIDDEN, NO),
    "a host with a path": (sized(b"Host: x/v1/models?", host=b""), ONE),
    "an empty host": (sized(b"Host:", host=b""), ONE),
    "no host under HTTP/1.0": (
        sized(b"Connection: keep-alive", line=LINE.replace(b"/1.1", b"/1.0"), host=b""),
        Outcome((200,), False, (BODY,)),
    ),
    "a header without a name": (sized(b": x") + HIDDEN, NO),
    "a header without a colon": (sized(b"nonsense") + HIDDEN, NO),
    "a header without a value": (sized(b"X-Empty:"), ONE),
    "a space in a name": (sized(b"X Y: z") + HIDDEN, NO),
    **{
        f"{mark!r} in a name": (sized(b"X" + mark + b"Y: z") + HIDDEN, NO)
        for mark in (b"\x00", b"(", b'"', b"\x7f", b"\xe9", b"@", b"[", b"{", b"/")
    },
    **{
        f"{mark!r} in a value": (sized(b"X: y" + mark + b"z") + HIDDEN, NO)
        for mark in (b"\x00", b"\r", b"\n", b"\x01", b"\x1f", b"\x7f")
    },
    "bytes beyond ASCII in a value": (sized(b"X: caf\xc3\xa9 \xff"), ONE),
    "a folded value": (sized(b"X: y", b" z") + HIDDEN, NO),
    "a head that is a body too": (sized(b"X: " + HIDDEN.replace(b"\r\n", b" ")), ONE),
    "absolute form": (sized(line=b"POST http://y/v1/chat/completions HTTP/1.1"), ONE),
    "absolute form with a user": (sized(line=b"POST http://u:p@y:1/v1/chat/completions HTTP/1.1"), ONE),
    "absolute form of a control route": (post(line=b"POST http://x/sleep HTTP/1.1", body=b""), refused(404)),
    "absolute form without a path": (post(line=b"POST http://x HTTP/1.1", body=b""), NO),
    "asterisk form": (post(line=b"OPTIONS * HTTP/1.1", body=b""), refused(404)),
    "authority form": (post(line=b"CONNECT x:80 HTTP/1.1", body=b""), NO),
    "a fragment": (sized(line=LINE.replace(b" HTTP", b"#/../sleep HTTP")), ONE),
    "GET with a body": (post(b"Content-Length: 9", line=b"GET /v1/models HTTP/1.1", body=b"GET /x HT"), refused(200)),
    "GET with a chunked body": (
        post(b"Transfer-Encoding: chunked", line=b"GET /v1/models HTTP/1.1", body=CHUNKED),
        Outcome((200,), True, ()),
    ),
    "HEAD with a body": (post(b"Content-Length: 9", line=b"HEAD /livez HTTP/1.1", body=b"GET /x HT"), refused(200)),
    "a refused path with a short body": (post(b"Content-Length: 13", line=b"POST /sleep HTTP/1.1"), refused(404)),
    "a refused path with a request for a body": (
        post(b"Content-Length: %d" % len(HIDDEN), line=b"POST /sleep HTTP/1.1", body=HIDDEN),
        refused(404),
    ),
    "an upgrade with a body": (
        sized(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AA"),
        ONE,
    ),
    "an upgrade with a request behind": (sized(b"Connection: Upgrade", b"Upgrade: websocket") + sized(), TWO),
    "an upgrade, chunked": (chunked(CHUNKED, b"Connection: Upgrade", b"Upgrade: h2c"), ONE),
    "an upgrade, CL.TE": (
        post(
            b"Connection: Upgrade",
            b"Upgrade: h2c",
            b"Content-Length: 23",
            b"Transfer-Encoding: chunked",
            body=CHUNKED + HIDDEN,
        ),
        NO,
    ),
    "an upgrade with two lengths": (
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 13", b"Content-Length: 0", body=BODY + HIDDEN),
        NO,
    ),
    "everything named by connection": (
        sized(b"Connection: host, content-length, x-request-id, authorization, content-type"),
        ONE,
    ),
    "101 headers": (sized(*(b"X: y" for _ in range(100))) + HIDDEN, Outcome((431,), False, ())),
    "a head of 70,000 bytes": (sized(b"X: " + b"y" * 70_000) + HIDDEN, Outcome((431,), False, ())),
    "a line of 70,000 bytes": (
        sized(line=LINE.replace(b" HTTP", b"?" + b"y" * 70_000 + b" HTTP")) + HIDDEN,
        Outcome((431,), False, ()),
    ),
}

VECTORS = {**LENGTHS, **CODINGS, **CHUNKS, **HEADS}
assert len(VECTORS) == sum(map(len, (LENGTHS, CODINGS, CHUNKS, HEADS)))


@dataclass
class Recorder:
    """A backend that keeps every byte of every connection, and answers each whole request that h11 finds in them."""

    port: int = 0
    asked: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Line and body of every whole request but the router's own, in the order in which they came."""
    pending: list[bytearray] = field(default_factory=list)
    """Of each connection what is no whole request yet."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def left(self) -> list[bytes]:
        return [bytes(own) for own in self.pending if own]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = bytearray()
        self.pending.append(own)
        try:
            while data := await reader.read(65536):
                own += data
                requests, own[:] = parsed(bytes(own))
                for line, body in requests:
                    method, path = line.decode().split(" ")
                    if path not in QUIET:
                        self.asked.append((line, body))
                    answer = b'{"data":[{"id":"m"}]}' if path == "/v1/models" else b"" if path == "/metrics" else b"{}"
                    kind = b"text/plain" if path == "/metrics" else b"application/json"
                    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(answer))
                    writer.write(head + (b"" if method == "HEAD" else answer))
        except ConnectionError:
            pass
        finally:
            writer.close()


def parsed(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Line and body of each request, and what is no whole one. Raises h11.RemoteProtocolError for what is no HTTP."""
    found: list[tuple[bytes, bytes]] = []
    while data:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(data)
        line, body = b"", b""
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                return found, data
            if isinstance(event, h11.Request):
                line = event.method + b" " + event.target
            elif isinstance(event, h11.Data):
                body += event.data
        found.append((line, body))
        data = connection.trailing_data[0]
    return found, b""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def recorder(stack: AsyncExitStack) -> Recorder:
    recorder = Recorder()
    server = await stack.enter_async_context(await asyncio.start_server(recorder.serve, "127.0.0.1", 0))
    recorder.port = server.sockets[0].getsockname()[1]
    return recorder


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def router(stack: AsyncExitStack, recorder: Recorder) -> Router:
    config = Config.model_validate({**FAST, "backends": [recorder.url], "resume": {"enabled": False}})
    router = await stack.enter_async_context(Router(config))
    await until(
        lambda: router.registry.not_ready() == [] and bool(next(iter(router.registry.backends.values())).models)
    )
    return router


async def answers(client: RawClient, methods: list[str]) -> list[tuple[int, bytes]]:
    """Everything that comes until the connection ends; interim answers are left out."""
    found = []
    for method in itertools.chain(methods, itertools.repeat("GET")):
        try:
            reply = await asyncio.wait_for(client.reply(method), 10)
            while reply.status == 100:
                reply = await asyncio.wait_for(client.reply(method), 10)
        except (asyncio.IncompleteReadError, ConnectionError):
            break
        assert reply.whole
        found.append((reply.status, reply.body))
    return found


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("whole", [True, False], ids=["at once", "byte by byte"])
@pytest.mark.parametrize("name", list(VECTORS))
async def test_a_vector_has_the_one_meaning_that_it_should(
    router: Router, recorder: Recorder, name: str, whole: bool
) -> None:
    data, expected = VECTORS[name]
    if not whole and len(data) > 70_000:
        pytest.skip("too many pieces")
    if not whole and expected.statuses == (405,):
        expected = NO  # what the method is, is told where the line comes in one piece
    before = len(recorder.asked)
    async with await RawClient.connect(router.data_url) as client:
        sent = data + LAST
        reading = asyncio.ensure_future(answers(client, ["HEAD"] if data.startswith(b"HEAD") else []))
        for piece in [sent] if whole else [sent[i : i + 1] for i in range(len(sent))]:
            client.send(piece)
            if not whole:
                await asyncio.sleep(0)
                if reading.done():
                    break
        found = await reading
    statuses = tuple(status for status, _ in found)
    assert statuses == (*expected.statuses, *([200] if expected.last else []))
    assert not expected.last or found[-1] == ALIVE
    assert recorder.left == []
    seen = recorder.asked[before:]
    assert tuple(body for _, body in seen) == expected.bodies
    assert name == "no length" or not [line for line, _ in seen if line.endswith(b"/v1/completions")]
    assert router.counters.internal_errors == {}


async def test_expecting_is_no_way_in(router: Router, recorder: Recorder) -> None:
    """The body of a refused request is never read as the next one, though the client was not told to send it."""
    before = len(recorder.asked)
    async with await RawClient.connect(router.data_url) as client:
        client.send(
            post(b"Expect: 100-continue", b"Content-Length: %d" % len(HIDDEN), line=b"POST /sleep HTTP/1.1", body=b"")
        )
        client.send(HIDDEN + LAST)
        assert [status for status, _ in await answers(client, [])] == [404]
    assert (len(recorder.asked), recorder.left) == (before, [])


@pytest.mark.parametrize(
    "end", [b"5\r\nhell\r\n", b"zz\r\nhello\r\n", b"5\r\nhello0\r\n\r\n" + HIDDEN], ids=["short", "size", "end"]
)
async def test_an_upload_that_loses_its_framing_is_never_whole_at_a_backend(
    router: Router, recorder: Recorder, end: bytes
) -> None:
    """An upload is sent on while it comes: what has gone out is cut off, not ended."""
    before = len(recorder.asked)
    part = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n' + b"x" * 300_000
    head = post(
        b"Transfer-Encoding: chunked",
        b"Content-Type: multipart/form-data; boundary=b",
        line=b"POST /v1/audio/transcriptions HTTP/1.1",
        body=b"%x\r\n%b\r\n" % (len(part), part),
    )
    async with await RawClient.connect(router.data_url) as client:
        client.send(head)
        await until(lambda: any(b"/v1/audio/transcriptions" in own for own in recorder.left))
        client.send(end + LAST)
        found = await answers(client, [])
        assert [status for status, _ in found] in ([400], [])
    (left,) = recorder.left
    assert (len(recorder.asked), left.endswith(b"0\r\n\r\n")) == (before, False)
    recorder.pending.clear()
