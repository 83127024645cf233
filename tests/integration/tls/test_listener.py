"""TLS on the two ports: what is shown and spoken, renewed certificates, and that nothing of HTTP's deadlines is lost."""

import asyncio
import socket
import ssl
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_websockets
from websockets.http11 import Request, Response

from warmroute.app import Router
from warmroute.config import Config

from ...authority import Authority
from ..conftest import until, up
from ..scripted import RawClient, Scripted, Talk, token
from ..talking import stream, talking
from .conftest import Secure, StartSecure

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
SHORT = 0.4
PATIENCE = 15.0


def everywhere(backends: list[Scripted], script: Any) -> None:
    for backend in backends:
        backend.script = script


async def ended(client: RawClient) -> bytes:
    """All that comes until the router ends the connection."""
    async with asyncio.timeout(PATIENCE):
        try:
            return await client.reader.read()
        except (ConnectionResetError, ssl.SSLError):
            return b""


def serial(client: RawClient) -> str:
    """Which certificate the router showed."""
    found = client.writer.get_extra_info("ssl_object").getpeercert()
    return str(found["serialNumber"])


async def plainly(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the port of a URL, without TLS."""
    host, port = url.partition("://")[2].split(":")
    return await asyncio.open_connection(host, int(port))


# What is spoken


async def test_answers_and_streams(secure: Secure, backends: list[Scripted]) -> None:
    assert secure.router.data_url.startswith("https://")
    async with await secure.connect() as client:
        assert (await client.chat("s")).status == 200
        everywhere(backends, stream)
        reply = await client.chat("s", stream=True)
        assert reply.body.endswith(b"[DONE]\n\n")
        assert (await client.chat("s", stream=True)).whole
    assert (secure.router.counters.total, secure.router.counters.handshakes_failed) == (3, 0)


async def test_a_large_body_and_a_large_answer(secure: Secure, backends: list[Scripted]) -> None:
    answer = {"text": "x" * 3_000_000}

    async def large(talk: Talk) -> None:
        talk.json(answer)

    everywhere(backends, large)
    async with await secure.connect() as client:
        reply = await client.chat("s", padding="y" * 3_000_000)
    assert reply.json() == answer
    assert len(next(seen for b in backends for seen in b.posts).body) > 3_000_000


async def test_http_1_1_is_the_only_protocol(secure: Secure) -> None:
    offering = secure.authority.client()
    offering.set_alpn_protocols(["h2", "http/1.1"])
    async with await secure.connect(offering) as client:
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"


@pytest.mark.parametrize(("version", "taken"), [("TLSv1_1", False), ("TLSv1_2", True), ("TLSv1_3", True)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_tls_1_2_is_the_least(secure: Secure, version: str, taken: bool) -> None:
    context = secure.authority.client()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    if taken:
        async with await secure.connect(context) as client:
            assert (await client.chat()).status == 200
    else:
        with pytest.raises(OSError):  # an alert, or a reset if that came first
            await secure.connect(context)
        await until(lambda: secure.router.counters.handshakes_failed == 1)


async def test_plain_http_gets_no_answer_and_is_counted(secure: Secure) -> None:
    reader, writer = await plainly(secure.router.data_url)
    writer.write(HEAD + b"\r\n")
    with suppress(ConnectionResetError):
        assert b"HTTP" not in await reader.read()
    writer.close()
    await until(lambda: secure.router.counters.handshakes_failed == 1)
    async with httpx.AsyncClient() as http:
        page = (await http.get(f"{secure.router.admin_url}/metrics")).text
    assert "warmroute_tls_handshakes_failed_total 1.0" in page


async def test_the_official_sdk(secure: Secure, backends: list[Scripted]) -> None:
    everywhere(backends, stream)
    async with (
        openai.DefaultAsyncHttpxClient(verify=secure.authority.client(), trust_env=False) as http,
        openai.AsyncOpenAI(base_url=f"{secure.router.data_url}/v1", api_key="none", http_client=http) as client,
    ):
        chunks = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        told = [chunk.choices[0].delta.content async for chunk in chunks]
    assert "".join(filter(None, told)) == "one two three"


async def test_a_websocket_over_tls_on_both_sides(stack: Any, authority: Authority, secure: Secure) -> None:
    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    def pages(connection: ServerConnection, request: Request) -> Response | None:
        if request.path.startswith("/v1/realtime"):
            return None
        return connection.respond(200, '{"data":[{"id":"m"}]}' if "models" in request.path else "")

    server = await stack.enter_async_context(
        serve_websockets(echo, "127.0.0.1", 0, process_request=pages, ssl=authority.server())
    )
    port = next(iter(server.sockets)).getsockname()[1]
    whole = {**secure.sections, "upstream": {"ca": authority.ca}, "backends": [f"https://127.0.0.1:{port}"]}
    router = await stack.enter_async_context(Router(Config.model_validate(whole)))
    await until(lambda: up(router) == 1)
    url = f"{router.data_url.replace('https', 'wss')}/v1/realtime"
    async with connect(url, ssl=secure.authority.client(), proxy=None) as socket:
        for text in ("one", "two" * 50_000):
            await socket.send(text)
            assert await socket.recv() == text
    await until(lambda: router.counters.total == 1)


# Renewed certificates


async def reload(router: Router) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.admin_url, timeout=30) as http:
        return await http.post("/api/reload")


async def test_a_renewed_certificate_is_shown_after_a_reload_and_drops_nobody(
    secure: Secure, backends: list[Scripted]
) -> None:
    """Under a load of clients on kept connections, of which none fails."""
    everywhere(backends, stream)
    async with await secure.connect() as old, talking(secure.router.data_url, 6, secure.trusting) as said:
        before = serial(old)
        assert (await old.chat("s")).status == 200
        for _ in range(3):
            secure.authority.issue("127.0.0.1", "localhost")
            async with await secure.connect() as still:
                assert serial(still) == before, "files alone change nothing"
            assert (await reload(secure.router)).status_code == 200
            async with await secure.connect() as new:
                assert (await new.chat("t")).status == 200
                after = serial(new)
            assert after != before
            before = after
            await said.again(1)
        assert (await old.chat("s")).status == 200
    assert said.failures == []
    assert secure.router.counters.handshakes_failed == 0


async def test_several_processes_speak_tls_and_show_the_new_certificate(start_secure: StartSecure) -> None:
    secure = await start_secure(listen={"workers": 2})

    async def shown() -> set[str]:
        """By how many certificates some dozen connections, of which each process has some, are answered."""
        found = set()
        for number in range(24):
            async with await secure.connect() as client:
                assert (await client.chat(f"s{number}")).status == 200
                found.add(serial(client))
        return found

    (before,) = await shown()
    secure.authority.issue("127.0.0.1", "localhost")
    assert (await reload(secure.router)).status_code == 200
    async with asyncio.timeout(
        20
    ):  # a busy machine may need longer than the answer to a reload waits for all processes
        while before in await shown():
            await asyncio.sleep(0.1)
    assert len(await shown()) == 1


async def test_a_renewed_certificate_under_other_names_and_for_who_names_nobody(secure: Secure) -> None:
    files = secure.authority.issue("127.0.0.1", "localhost", file="renewed")
    secure.write(cert=files.cert, cert_key=files.key)
    async with await secure.connect() as client:
        before = serial(client)
    assert (await reload(secure.router)).status_code == 200
    host, port = secure.router.data_url.partition("://")[2].split(":")
    shown = set()
    for name in ("localhost", "127.0.0.1"):  # of which only the first is told to the server
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = secure.authority.client()
            context.maximum_version = version
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)
            shown.add(serial(RawClient(reader, writer)))
            writer.close()
    assert len(shown) == 1
    assert shown != {before}


async def test_a_certificate_that_cannot_be_used_leaves_the_old_one(secure: Secure) -> None:
    other = secure.authority.issue("127.0.0.1", file="other")
    secure.write(cert_key=other.key)
    answer = await reload(secure.router)
    said = f"{secure.files.cert} with {other.key}: the key does not belong to the certificate"
    assert (answer.status_code, answer.json()["detail"]) == (400, said)
    async with await secure.connect() as client:
        assert (await client.chat("s")).status == 200


async def test_tls_itself_is_not_switched_by_a_reload(secure: Secure) -> None:
    secure.write(cert=None, cert_key=None)
    answer = await reload(secure.router)
    assert answer.status_code == 409
    assert answer.json()["detail"].startswith("listen.cert cannot change while the router runs")


async def test_the_admin_port_has_a_certificate_of_its_own(start_secure: StartSecure, authority: Authority) -> None:
    files = authority.issue("127.0.0.1", file="admin")
    secure = await start_secure(listen={"admin_cert": files.cert, "admin_cert_key": files.key})
    assert secure.router.admin_url.startswith("https://")
    async with httpx.AsyncClient(base_url=secure.router.admin_url, verify=secure.authority.client()) as http:
        assert (await http.get("/livez")).status_code == 200
        assert (await http.get("/")).status_code == 200
        own = {"origin": secure.router.admin_url}
        assert (await http.post("/api/reload", headers=own)).status_code == 200
        assert (await http.post("/api/reload", headers={"origin": "https://evil.example"})).status_code == 403


# Deadlines


class TestSlowHandshakes:
    @pytest.fixture
    async def secure(self, start_secure: StartSecure) -> Secure:
        return await start_secure(limits={"head_timeout": SHORT, "max_connections": 8})

    @pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"], ids=["nothing", "a part"])
    async def test_a_handshake_that_does_not_end_is_ended(self, secure: Secure, sent: bytes) -> None:
        reader, writer = await plainly(secure.router.data_url)
        writer.write(sent)
        begun = time.monotonic()
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        writer.close()
        assert time.monotonic() - begun >= SHORT
        await until(lambda: secure.router.counters.client_timeouts["head"] == 1)
        await until(lambda: not secure.router._door.guests)
        assert secure.router.counters.handshakes_failed == 0, "it is the door that ended it"

    async def test_bytes_now_and_then_do_not_stretch_it(self, secure: Secure) -> None:
        reader, writer = await plainly(secure.router.data_url)
        hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 400

        async def trickle() -> None:
            for i in range(len(hello)):
                writer.write(hello[i : i + 1])
                await asyncio.sleep(SHORT / 10)

        task = asyncio.ensure_future(trickle())
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        task.cancel()
        writer.close()

    async def test_handshakes_count_as_connections(self, secure: Secure) -> None:
        silent = [await plainly(secure.router.data_url) for _ in range(8)]
        await until(lambda: len(secure.router._door.guests) == 8)
        with pytest.raises(OSError):
            await secure.connect()
        assert secure.router.counters.connections_refused == 1
        await until(lambda: not secure.router._door.guests)
        async with await secure.connect() as client:
            assert (await client.chat("s")).status == 200
            assert len(secure.router._door.guests) == 1
        for _, writer in silent:
            writer.close()

    async def test_a_slow_head_is_answered_408(self, secure: Secure) -> None:
        async with await secure.connect() as client:
            client.send(HEAD[:30])
            reply = await client.reply()
            assert await ended(client) == b""
        assert (reply.status, reply.header("connection")) == (408, "close")


async def test_the_last_place_is_for_whoever_shakes_hands_in_it(start_secure: StartSecure) -> None:
    """A guest that is known takes the place of its own handshake, not a second one."""
    secure = await start_secure(limits={"max_connections": 1})
    async with await secure.connect() as client:
        assert (await client.chat("s")).status == 200
    assert secure.router.counters.connections_refused == 0


async def test_a_slow_body_is_answered_408(start_secure: StartSecure, backends: list[Scripted]) -> None:
    secure = await start_secure(limits={"body_timeout": SHORT})
    async with await secure.connect() as client:
        client.send(HEAD + b"content-length: 100\r\n\r\n{")
        reply = await client.reply()
    assert reply.status == 408
    assert not any(b.posts for b in backends)


async def test_an_idle_connection_is_closed(start_secure: StartSecure) -> None:
    secure = await start_secure(limits={"idle_timeout": SHORT})
    async with await secure.connect() as client:
        assert (await client.chat("s")).status == 200
        assert await ended(client) == b""
    assert secure.router.counters.client_timeouts == {"idle": 1}


async def endless(talk: Talk) -> None:
    talk.stream_head()
    while not talk.writer.is_closing():
        talk.event(token("x" * 20_000))
        await talk.drain()


async def test_who_takes_nothing_is_given_up(start_secure: StartSecure, backends: list[Scripted]) -> None:
    secure = await start_secure(limits={"send_timeout": SHORT})
    everywhere(backends, endless)
    async with await secure.connect(receive_buffer=4096) as client:
        client.post({"model": "m", "messages": [], "stream": True})
        await client.head()
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: secure.router.counters.client_timeouts["send"] == 1)
    await until(lambda: not sum(b.in_flight for b in secure.router.registry.backends.values()))


def take_slowly(url: str, tls: ssl.SSLContext, times: int, pause: float) -> int:
    """Ask for a stream and take one record of TLS at a time; returns how many bytes came before its end."""
    host, port = url.partition("://")[2].split(":")
    took = 0
    with socket.socket() as plain:
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect((host, int(port)))
        with tls.wrap_socket(plain, server_hostname=host) as sock:
            body = b'{"model":"m","messages":[],"stream":true}'
            sock.sendall(HEAD + b"content-length: %d\r\n\r\n" % len(body) + body)
            for _ in range(times):
                time.sleep(pause)
                data = sock.recv(16384)
                if not data:
                    break
                took += len(data)
    return took


async def test_who_takes_a_little_all_the_time_is_served(start_secure: StartSecure, backends: list[Scripted]) -> None:
    secure = await start_secure(limits={"send_timeout": 0.5})
    everywhere(backends, endless)
    await asyncio.to_thread(take_slowly, secure.router.data_url, secure.authority.client(), 30, 0.2)
    assert secure.router.counters.client_timeouts == {}


async def test_a_client_that_leaves_stops_its_generation(secure: Secure, backends: list[Scripted]) -> None:
    gone = asyncio.Event()

    async def forever(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("a"))
        if await talk.peer_closed(PATIENCE):
            gone.set()

    everywhere(backends, forever)
    for leave in ("close", "abort"):
        gone.clear()
        client = await secure.connect()
        client.post({"model": "m", "messages": [], "stream": True})
        await client.head()
        await client.chunk()
        client.writer.close() if leave == "close" else client.writer.transport.abort()
        async with asyncio.timeout(5):
            await gone.wait()
    await until(lambda: secure.router.counters.client_aborts == 2)


async def test_a_client_that_leaves_before_an_answer(secure: Secure, backends: list[Scripted]) -> None:
    gone = asyncio.Event()

    async def silent(talk: Talk) -> None:
        if await talk.peer_closed(PATIENCE):
            gone.set()

    everywhere(backends, silent)
    client = await secure.connect()
    client.post({"model": "m", "messages": []})
    await until(lambda: any(b.posts for b in backends))
    client.writer.transport.abort()
    async with asyncio.timeout(5):
        await gone.wait()


async def test_a_refusal_reaches_a_client_that_goes_on_sending(start_secure: StartSecure) -> None:
    secure = await start_secure(limits={"body": "1MiB"})
    async with await secure.connect() as client:
        client.send(HEAD + b"content-length: 30000000\r\n\r\n")
        for _ in range(300):
            client.send(b"x" * 10_000)
        reply = await client.reply()
        assert reply.status == 413
        await ended(client)


async def test_pipelined_requests(secure: Secure) -> None:
    async with await secure.connect() as client:
        for _ in range(5):
            client.post({"model": "m", "messages": []})
        assert [(await client.reply()).status for _ in range(5)] == [200] * 5


# The end of a router


async def test_handshakes_do_not_hold_up_the_end(start_secure: StartSecure, backends: list[Scripted]) -> None:
    secure = await start_secure(limits={"head_timeout": 60})
    everywhere(backends, stream)
    idle = await secure.connect()
    assert (await idle.chat("s", stream=True)).whole
    silent = [await plainly(secure.router.data_url) for _ in range(3)]
    await until(lambda: len(secure.router._door.guests) == 4)
    begun = time.monotonic()
    secure.router._say_the_end_is_near()
    async with asyncio.timeout(PATIENCE):
        await secure.router.__aexit__(None, None, None)
    assert time.monotonic() - begun < 10
    assert not secure.router._door.guests
    for _, writer in silent:
        writer.close()
    idle.writer.close()


async def test_a_stream_ends_whole_while_the_router_stops(secure: Secure, backends: list[Scripted]) -> None:
    go_on = asyncio.Event()

    async def wait(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("a"))
        await go_on.wait()
        talk.event(b"[DONE]")
        talk.end()

    everywhere(backends, wait)
    async with await secure.connect() as client:
        client.post({"model": "m", "messages": [], "stream": True})
        await client.head()
        assert await client.chunk()
        stopping = asyncio.ensure_future(secure.router.__aexit__(None, None, None))
        await asyncio.sleep(0.3)
        go_on.set()
        assert b"[DONE]" in await client.chunk()
        assert await client.chunk() == b""
        await stopping


async def test_nothing_is_left_behind(secure: Secure) -> None:
    """No file descriptor and no task, after clients of all kinds."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(2):  # the first round opens what is kept
        for _ in range(10):
            async with await secure.connect() as client:
                assert (await client.chat()).status == 200
            _, writer = await plainly(secure.router.data_url)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            writer.close()
        await until(lambda: not secure.router._door.guests)
        await until(lambda: not secure.router._servers[0].servers[0]._tasks)  # type: ignore[attr-defined]
        await asyncio.sleep(0.2)
    before = descriptors()
    for _ in range(20):
        client = await secure.connect()
        client.writer.transport.abort()
        _, writer = await plainly(secure.router.data_url)
        writer.close()
    await until(lambda: not secure.router._door.guests)
    await until(lambda: descriptors() <= before + 3)


async def test_many_at_once(secure: Secure) -> None:
    async def one() -> int:
        async with await secure.connect() as client:
            return (await client.chat()).status

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one()) for _ in range(30)]
    assert {task.result() for task in tasks} == {200}
