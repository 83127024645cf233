"""Slow and many clients, and what is left after a long day of them."""

import asyncio
import os
import random
import time

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Talk, answer
from .backend import FaultyBackend, everywhere, posts, stream, turn
from .conftest import LONG, StartRouter
from .test_client_leaves import nothing_left

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
SLOW = {
    "nothing": b"",
    "half a head": HEAD + b"X-A: ",
    "half a body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "half a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
}


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class TestSlowClients:
    async def test_hundreds_that_say_nothing_leave_the_others_alone(self, router: Router) -> None:
        clients = [await RawClient.connect(router.data_url) for _ in range(200)]
        try:
            for i, client in enumerate(clients):
                client.send(list(SLOW.values())[i % len(SLOW)])
            began = time.monotonic()
            replies = [await turn(router.data_url, f"s{i}") for i in range(20)]
            assert [reply.status for reply in replies] == [200] * 20
            assert (time.monotonic() - began) / 20 < 0.1 * LONG
        finally:
            for client in clients:
                client.writer.transport.abort()
        await until(lambda: nothing_left(router))

    async def test_a_request_that_does_not_arrive_is_given_up(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"head_timeout": 0.3, "body_timeout": 0.3, "min_body_rate": 100})
        for what, data in SLOW.items():
            async with await RawClient.connect(router.data_url) as client:
                client.send(data)
                async with asyncio.timeout(2 * LONG):
                    got = await client.reader.read()
                assert got == b"" or got.startswith(b"HTTP/1.1 408 "), what
        assert posts(backends) == []
        assert (await turn(router.data_url)).status == 200

    async def test_a_request_that_drips_is_given_up(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """A byte now and then keeps neither a head nor a body alive."""
        router = await start_router(backends, limits={"head_timeout": 0.4, "body_timeout": 0.4, "min_body_rate": 100})

        async def drip(client: RawClient) -> None:
            while True:
                client.send(b"x")
                await asyncio.sleep(0.05)

        for start in (HEAD + b"X-A: ", HEAD + b"Content-Length: 1000\r\n\r\n"):
            async with await RawClient.connect(router.data_url) as client:
                client.send(start)
                dripping = asyncio.ensure_future(drip(client))
                async with asyncio.timeout(2 * LONG):
                    got = await client.reader.read(100)
                dripping.cancel()
                assert got == b"" or got.startswith(b"HTTP/1.1 408 ")
        assert posts(backends) == []

    async def test_connections_beyond_the_limit_are_told(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, limits={"max_connections": 5})
        clients = [await RawClient.connect(router.data_url) for _ in range(5)]
        for client in clients:
            assert (await client.chat()).status == 200
        async with await RawClient.connect(router.data_url) as one_more:
            reply = await one_more.reply("GET")  # told before it has asked
        assert (reply.status, "too_many_connections" in str(reply.json())) == (503, True)
        assert (await clients[0].chat()).status == 200
        for client in clients:
            client.writer.close()
        await until(lambda: not router._servers[0].server_state.connections)
        assert (await turn(router.data_url)).status == 200

    async def test_a_request_in_single_bytes_and_ten_in_one_write(self, router: Router) -> None:
        body = b'{"model":"m"}'
        request = HEAD + b"X-Request-Id: r%d\r\nContent-Length: %d\r\n\r\n" + body
        async with await RawClient.connect(router.data_url) as client:
            for byte in request % (0, len(body)):
                client.send(bytes([byte]))
                await asyncio.sleep(0)
            assert (await client.reply()).header("x-request-id") == "r0"
            client.send(b"".join(request % (i, len(body)) for i in range(1, 11)))
            assert [(await client.reply()).header("x-request-id") for _ in range(10)] == [f"r{i}" for i in range(1, 11)]


class TestNothingIsLeft:
    async def test_after_many_connections(self, router: Router) -> None:
        await turn(router.data_url)
        before = descriptors()
        for _ in range(10):
            clients = [await RawClient.connect(router.data_url) for _ in range(50)]
            for i, client in enumerate(clients):
                if i % 2:
                    client.send(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            for i, client in enumerate(clients):
                if i % 2:
                    assert (await client.reply("GET")).status == 200
                client.writer.transport.abort()
        await until(lambda: descriptors() <= before + 2)

    async def test_after_a_day_of_aborts_and_faults(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """One in five leaves early, one in twenty breaks: places, tasks, connections and descriptors come back."""
        router = await start_router(backends, upstream={"keepalive_expiry": 0.3})
        chance = random.Random(3)

        async def moody(talk: Talk) -> None:
            await asyncio.sleep(chance.random() * 0.01)
            if chance.random() < 0.05:
                talk.reset()
            else:
                await (stream if b'"stream": true' in talk.seen.body else answer)(talk)

        everywhere(backends, moody)
        statuses: list[int] = []

        async def user(number: int) -> None:
            for i in range(40):
                client = await RawClient.connect(router.data_url)
                client.post({"model": "m", "stream": i % 2 == 0}, {"x-session-id": f"{number} {i % 7}"})
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.random() * 0.01)
                else:
                    statuses.append((await client.reply()).status)
                client.writer.transport.abort()

        await turn(router.data_url)
        before, tasks = descriptors(), len(asyncio.all_tasks())
        await asyncio.gather(*(user(i) for i in range(10)))
        await until(lambda: nothing_left(router))
        await until(lambda: all(not pool.connections for pool in router._pools.values()))
        await until(lambda: descriptors() <= before + 4 and len(asyncio.all_tasks()) <= tasks + 4)
        assert set(statuses) <= {200, 502}
        assert statuses.count(502) <= 10  # only what breaks on two backends
        assert router.counters.internal_errors == {}
