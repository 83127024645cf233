"""Uploads that are sent on while they come: whole, in both framings, held back, cut, refused and given up."""

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from warmroute.app import Router
from warmroute.proxy.upload import OPENING

from .conftest import StartRouter, until
from .scripted import RawClient, Reply, Scripted, Seen, Talk, answer

PATH = "/v1/audio/transcriptions"
BOUNDARY = "b-o-u-n-d"
PATIENCE = 20.0


@dataclass
class Receiver(Scripted):
    """A backend that leaves the bodies of POSTs to its script, where they can be read as slowly as wanted."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number, place = self.connections, 0
        self._writers.add(writer)
        try:
            while not writer.is_closing():
                seen = Seen(await reader.readuntil(b"\r\n\r\n"), b"", number, place)
                place += 1
                self.requests.append(seen)
                await self._answer(Talk(seen, reader, writer))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def body_of(talk: Talk) -> bytes:
    """The whole body, by whichever framing it has; both at once would be a fault."""
    length, coding = talk.seen.header("content-length"), talk.seen.header("transfer-encoding")
    assert (length is None) != (coding is None)
    if length is not None:
        return await talk.reader.readexactly(int(length))
    assert coding == "chunked"
    parts = bytearray()
    while size := int(await talk.reader.readuntil(b"\r\n"), 16):
        parts += (await talk.reader.readexactly(size + 2))[:-2]
    assert await talk.reader.readexactly(2) == b"\r\n"
    return bytes(parts)


async def hashed(talk: Talk) -> None:
    talk.seen.body = await body_of(talk)
    talk.json({"sha256": hashlib.sha256(talk.seen.body).hexdigest()})


def form(sound: bytes, model: str = "m", *, model_last: bool = False) -> bytes:
    field = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="model"\r\n\r\n{model}\r\n'.encode()
    file = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'.encode()
    parts = [file + sound + b"\r\n", field] if model_last else [field, file + sound + b"\r\n"]
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def head(length: int | None, session: str = "s") -> bytes:
    framing = "transfer-encoding: chunked" if length is None else f"content-length: {length}"
    return (
        f"POST {PATH} HTTP/1.1\r\nhost: x\r\nx-session-id: {session}\r\n"
        f"content-type: multipart/form-data; boundary={BOUNDARY}\r\n{framing}\r\n\r\n"
    ).encode()


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


BIG = form(random.Random(7).randbytes(3_000_000))


@pytest.fixture
async def backends(stack: AsyncExitStack) -> list[Receiver]:
    return [await stack.enter_async_context(Receiver(script=hashed)) for _ in range(3)]


@pytest.fixture
async def router(backends: list[Scripted], start_router: StartRouter) -> Router:
    return await start_router(backends, limits={"body": "48MiB"})


def in_flight(router: Router) -> int:
    return sum(b.in_flight for b in router.registry.backends.values())


def posts(backends: list[Receiver]) -> int:
    return sum(len(b.posts) for b in backends)


def everywhere(backends: list[Receiver], script: Callable[[Talk], Awaitable[None]]) -> None:
    for backend in backends:
        backend.script = script


async def replied(client: RawClient) -> Reply:
    async with asyncio.timeout(PATIENCE):
        return await client.reply()


@pytest.mark.parametrize("size", [0, 1, OPENING - 1000, OPENING, OPENING + 1, 3_000_000])
@pytest.mark.parametrize("in_chunks", [False, True], ids=["with a length", "in chunks"])
async def test_it_arrives_whole_and_the_connection_serves_on(router: Router, size: int, in_chunks: bool) -> None:
    body = form(random.Random(size).randbytes(size))
    async with await RawClient.connect(router.data_url) as client:
        for _ in range(2):
            if in_chunks:
                client.send(head(None) + b"".join(chunked(body[i : i + 70_000]) for i in range(0, len(body), 70_000)))
                client.send(b"0\r\n\r\n")
            else:
                client.send(head(len(body)) + body)
            reply = await replied(client)
            assert (reply.status, reply.json()) == (200, {"sha256": hashlib.sha256(body).hexdigest()})
    assert in_flight(router) == 0


async def test_it_is_sent_on_while_it_comes(router: Router, backends: list[Receiver]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(BIG)) + BIG[:1_000_000])
        await until(lambda: posts(backends) == 1)
        client.send(BIG[1_000_000:])
        assert (await replied(client)).status == 200


async def test_a_backend_that_reads_slowly_holds_the_client_back(router: Router, backends: list[Receiver]) -> None:
    goes_on = asyncio.Event()

    async def late(talk: Talk) -> None:
        await goes_on.wait()
        await hashed(talk)

    everywhere(backends, late)
    body = form(bytes(40_000_000))
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(body)) + body)
        await until(lambda: posts(backends) == 1)
        unsent, before = -1, -2
        async with asyncio.timeout(PATIENCE):
            while unsent != before:  # until nothing moves any more
                before = unsent
                await asyncio.sleep(0.2)
                unsent = client.writer.transport.get_write_buffer_size()
        assert unsent > 500_000  # what no buffer of the systems in between has taken, the router has not either
        goes_on.set()
        assert (await replied(client)).status == 200


async def test_a_backend_that_is_gone_costs_nothing(router: Router, backends: list[Receiver]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(4) + b"soon")
        home = (await replied(client)).header("x-warmroute-backend")
        gone = next(b for b in backends if b.name == home)
        await gone.stop()
        client.send(head(len(BIG)) + BIG)
        reply = await replied(client)
    assert (reply.status, reply.json()) == (200, {"sha256": hashlib.sha256(BIG).hexdigest()})
    assert reply.header("x-warmroute-backend") != home


async def test_it_is_not_sent_twice_once_its_rest_was_taken(router: Router, backends: list[Receiver]) -> None:
    async def dies(talk: Talk) -> None:
        await talk.reader.readexactly(1_000_000)
        talk.reset()

    everywhere(backends, dies)
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(BIG)) + BIG)
        reply = await replied(client)
        assert reply.status == 502
        assert reply.header("connection") == "close"
    assert posts(backends) == 1
    assert in_flight(router) == 0


async def test_an_early_refusal_reaches_the_client_and_ends_the_upload(
    router: Router, backends: list[Receiver]
) -> None:
    async def too_long(talk: Talk) -> None:
        talk.json({"error": "audio too long"}, "400 Bad Request")
        await talk.drain()
        assert await talk.peer_closed(within=PATIENCE)

    everywhere(backends, too_long)
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(BIG)) + BIG[:1_000_000])
        reply = await replied(client)
        assert (reply.status, reply.json()) == (400, {"error": "audio too long"})
        assert reply.header("connection") == "close"
    await until(lambda: in_flight(router) == 0)


async def test_a_client_that_leaves_lets_the_backend_go(router: Router, backends: list[Receiver]) -> None:
    let_go = asyncio.Event()

    async def waits(talk: Talk) -> None:
        if await talk.peer_closed(within=PATIENCE):
            let_go.set()

    everywhere(backends, waits)
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(BIG)) + BIG[:1_000_000])
        await until(lambda: posts(backends) == 1)
    async with asyncio.timeout(PATIENCE):
        await let_go.wait()
    await until(lambda: in_flight(router) == 0)


async def test_one_that_stops_coming_is_ended_with_408(backends: list[Receiver], start_router: StartRouter) -> None:
    router = await start_router(list(backends), limits={"body_timeout": 0.3})
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(BIG)) + BIG[:1_000_000])
        assert (await replied(client)).status == 408
    assert posts(backends) == 1
    await until(lambda: in_flight(router) == 0)


async def test_one_that_grows_over_the_limit_is_ended_with_413(
    backends: list[Receiver], start_router: StartRouter
) -> None:
    router = await start_router(list(backends), limits={"body": "8MiB"})
    body = form(bytes(9 << 20))
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(None) + b"".join(chunked(body[i : i + 70_000]) for i in range(0, len(body), 70_000)))
        assert (await replied(client)).status == 413
    await until(lambda: in_flight(router) == 0)


async def test_a_model_named_behind_the_file_is_found_where_there_is_a_choice(
    backends: list[Receiver], start_router: StartRouter
) -> None:
    backends[1].models = ["another"]
    router = await start_router(list(backends))
    body = form(bytes(1_000_000), "another", model_last=True)
    for i in range(4):
        async with await RawClient.connect(router.data_url) as client:
            client.send(head(len(body), f"s{i}") + body)
            reply = await replied(client)
            assert (reply.status, reply.header("x-warmroute-backend")) == (200, backends[1].name)


async def test_an_answer_that_comes_before_the_end_is_whole(router: Router, backends: list[Receiver]) -> None:
    """Nothing obliges a server to read all before it says that all is well."""

    async def at_once(talk: Talk) -> None:
        await answer(talk)
        await talk.drain()
        await talk.peer_closed(within=PATIENCE)

    everywhere(backends, at_once)
    async with await RawClient.connect(router.data_url) as client:
        client.send(head(len(BIG)) + BIG[:1_000_000])
        reply = await replied(client)
        assert (reply.status, reply.whole, reply.header("connection")) == (200, True, "close")
    await until(lambda: in_flight(router) == 0)


async def test_one_that_would_steer_the_servers_never_ends_at_one(router: Router, backends: list[Receiver]) -> None:
    """In its beginning it reaches none; behind that it is cut off before the field is whole, and told 400."""
    field = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="vllm_xargs"\r\n\r\n'.encode()
    field += b'{"kv_transfer_params":"x"}\r\n'
    ended = 0

    async def counted(talk: Talk) -> None:
        nonlocal ended
        await body_of(talk)
        ended += 1

    everywhere(backends, counted)
    for before, reached in ((0, 0), (1_000_000, 1)):
        end = field + form(b"")
        sound = form(bytes(before)).removesuffix(f"--{BOUNDARY}--\r\n".encode())
        async with await RawClient.connect(router.data_url) as client:
            client.send(head(len(sound) + len(end)) + sound)
            if reached:
                await until(lambda: posts(backends) == 1)
            client.send(end)
            reply = await replied(client)
        assert (reply.status, b"not_for_clients" in reply.body) == (400, True)
        assert (posts(backends), ended) == (reached, 0)
    await until(lambda: in_flight(router) == 0)
