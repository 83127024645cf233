"""Routers that share pins through a store which sentinels name, or which is a cluster; and its failover."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot

from warmroute.app import Router
from warmroute.core.store_url import read_store_url
from warmroute.pins.cluster import slots_of
from warmroute.pins.link import Ask, Link, StoreError
from warmroute.pins.redis import open_link

from .conftest import StartRouter, until
from .scripted import Scripted, free_port
from .test_redis_pins import PATIENT, Load, home, moved, only, places, up
from .valkey import Valkey
from .valkeys import Cluster, Watched, reached


@pytest.fixture
async def watched(stack: AsyncExitStack, tmp_path: Path) -> Watched:
    return await stack.enter_async_context(Watched(tmp_path))


@pytest.fixture
async def cluster(stack: AsyncExitStack, tmp_path: Path) -> Cluster:
    return await stack.enter_async_context(Cluster(tmp_path))


def link_to(url: str) -> AbstractAsyncContextManager[Link]:
    meant = read_store_url(url)
    assert meant is not None
    return open_link(meant, b"warmroute:changes", lifetime=60, timeout=0.5)


def ask(key: bytes, value: bytes = b"v", replaces: bytes = b"", announce: bool = True) -> Ask:
    return Ask(key, value, replaces, b"sender..named-" + key[-10:].rjust(10, b"."), announce)


async def pair(backends: list[Scripted], start_router: StartRouter, url: str) -> tuple[Router, Router]:
    one = await start_router(backends, store={"redis": url, **PATIENT})
    two = await start_router(backends, store={"redis": url, **PATIENT})
    await until(lambda: up(one, two), within=10)
    return one, two


async def agree(one: Router, two: Router, backends: list[Scripted], sessions: list[str]) -> dict[str, str]:
    """New sessions through two routers whose own choices differ; returns where both have them."""
    only(one, backends[0], backends)
    only(two, backends[1], backends)
    for session in sessions:
        assert len(set(await asyncio.gather(*(home(router, session) for router in (one, two))))) == 1
    for router in (one, two):
        for backend in backends:
            router.registry.drain(backend.name, False)
    return {session: await home(one, session) for session in sessions}


# Sentinels


async def test_sentinels_tell_the_primary_and_its_death_is_nobodys_trouble(
    backends: list[Scripted], start_router: StartRouter, watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await pair(backends, start_router, watched.url)
    lived = await agree(one, two, backends, [f"s{i}" for i in range(20)])
    await moved(one, two, backends, "moved")
    assert len(await watched.primary.pins()) == 21

    async def replicated() -> bool:
        return len(await watched.replica.pins()) == 21

    await reached("the replica has all pins", replicated)
    load = Load(one, two)
    caplog.clear()
    caplog.set_level("INFO", "warmroute.store")
    watched.primary.kill()
    await load.run(0.5)
    assert not up(one)
    assert not up(two)
    await until(lambda: up(one, two), within=20)
    assert (await watched.replica.do("ROLE"))[0] == b"master"
    await load.run(0.3)
    assert load.failed == 0
    assert {s: await home((two, one)[i % 2], s) for i, s in enumerate(lived)} == lived
    await until(lambda: up(one, two), within=20)  # a replica that has just taken over may be slow once more
    await agree(one, two, backends, ["after"])

    async def stored() -> bool:
        return len(await watched.replica.pins()) == len({*places(one), *places(two)})

    await reached("the new primary has every pin", stored)
    assert len([r for r in caplog.records if r.name == "warmroute.store"]) == 4  # lost and found, by each router


@asynccontextmanager
async def sentinel_that_says(port: int) -> AsyncIterator[int]:
    """Not a real one: whatever it is asked, the primary is at this port of the loopback."""
    answer = f"*2\r\n$9\r\n127.0.0.1\r\n${len(str(port))}\r\n{port}\r\n".encode()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            commands = data.count(b"SETINFO")
            writer.write(b"+OK\r\n" * commands + answer * (b"GET-MASTER-ADDR-BY-NAME" in data))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_a_sentinel_that_is_wrong_is_not_believed(watched: Watched) -> None:
    key = b"warmroute:k"
    async with sentinel_that_says(watched.replica.port) as wrong:
        url = f"redis+sentinel://127.0.0.1:{wrong},127.0.0.1:{watched.sentinel.port}/{watched.SERVICE}"
        async with link_to(url) as link:
            assert await link.ask([ask(key)]) == [1]
        assert await watched.primary.do("GET", key) == b"v"
        with pytest.raises(StoreError, match="read-only replica"):
            async with link_to(f"redis+sentinel://127.0.0.1:{wrong}/{watched.SERVICE}"):
                pass


async def test_what_sentinels_do_not_know_is_told(watched: Watched) -> None:
    with pytest.raises(StoreError, match="the sentinels know no service named other"):
        async with link_to(f"redis+sentinel://127.0.0.1:{watched.sentinel.port}/other"):
            pass
    with pytest.raises(StoreError, match="connect"):
        async with link_to(f"redis+sentinel://127.0.0.1:{free_port()}/other"):
            pass


async def test_sentinels_and_servers_have_credentials_of_their_own(watched: Watched) -> None:
    await watched.sentinel.do("ACL", "SETUSER", "default", ">of sentinels", "on")
    await watched.primary.do("CONFIG", "SET", "requirepass", "of@servers")
    hosts = f"127.0.0.1:{watched.sentinel.port}/{watched.SERVICE}"
    async with link_to(f"redis+sentinel://:of%40servers@{hosts}?sentinel_password=of%20sentinels") as link:
        assert await link.ask([ask(b"warmroute:k")]) == [1]
    with pytest.raises(StoreError, match=r"refuses this user|Authentication"):
        async with link_to(f"redis+sentinel://:of%40servers@{hosts}"):
            pass


# A cluster


async def test_a_cluster_holds_the_pins_of_all_and_its_failover_is_nobodys_trouble(
    backends: list[Scripted], start_router: StartRouter, cluster: Cluster
) -> None:
    one, two = await pair(backends, start_router, cluster.url)
    lived = await agree(one, two, backends, [f"s{i}" for i in range(30)])
    await moved(one, two, backends, "moved")
    shares = [len(await node.pins()) for node in cluster.nodes[:3]]
    assert sum(shares) == 31
    assert all(shares)  # 31 pins over three nodes: none is without one, but once in 100,000 runs
    load = Load(one, two)
    cluster.nodes[0].kill()
    await load.run(1.0)
    assert not up(one)
    assert not up(two)
    await until(lambda: up(one, two), within=20)
    await load.run(0.3)
    assert load.failed == 0
    assert {s: await home((two, one)[i % 2], s) for i, s in enumerate(lived)} == lived
    await until(lambda: up(one, two), within=20)  # a replica that has just taken over may be slow once more
    await agree(one, two, backends, ["after"])

    async def stored() -> bool:
        return len(await cluster.pins()) == len({*places(one), *places(two)})

    await reached("the cluster has every pin", stored)


async def test_a_slot_that_moves_is_followed_while_it_moves_and_after(cluster: Cluster) -> None:
    keys = [b"warmroute:%d" % i for i in range(60)]
    holder, other = cluster.nodes[0], cluster.nodes[1]
    key = next(k for k in keys if key_slot(k) <= 5460)
    slot = key_slot(key)
    ids = {node.port: (await node.do("CLUSTER", "MYID")) for node in (holder, other)}
    async with link_to(cluster.url) as link:
        assert await link.ask([ask(k) for k in keys]) == [1] * 60
        await other.do("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[holder.port])
        await holder.do("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[other.port])
        assert await link.ask([ask(k) for k in keys]) == [0] * 60
        await holder.do("MIGRATE", "127.0.0.1", other.port, key, 0, 5000)
        assert await link.ask([ask(k) for k in keys]) == [0] * 60  # the holder says ASK
        for node in (other, holder, cluster.nodes[2]):
            await node.do("CLUSTER", "SETSLOT", slot, "NODE", ids[other.port])
        assert await link.ask([ask(k, b"w", b"v") for k in keys]) == [1] * 60  # the holder says MOVED
        assert await other.do("GET", key) == b"w"


async def test_every_change_is_heard_wherever_its_key_is(cluster: Cluster) -> None:
    keys = [b"warmroute:%d" % i for i in range(30)]
    async with link_to(cluster.url) as asking, link_to(cluster.url) as hearing:
        questions = [ask(key) for key in keys]
        await asking.ask(questions)
        async with asyncio.timeout(5):
            heard = [await hearing.hear() for _ in keys]
    assert sorted(heard) == sorted(question.message for question in questions)


async def test_a_server_that_is_no_cluster_says_so(stack: AsyncExitStack, tmp_path: Path) -> None:
    server = await stack.enter_async_context(Valkey(tmp_path))
    with pytest.raises(StoreError, match="cluster support disabled"):
        async with link_to(f"redis+cluster://127.0.0.1:{server.port}"):
            pass


async def test_a_cluster_without_all_its_slots_is_none(cluster: Cluster) -> None:
    await cluster.nodes[2].do("CLUSTER", "DELSLOTSRANGE", 16000, 16383)

    async def refuses() -> bool:
        try:
            async with link_to(f"redis+cluster://127.0.0.1:{cluster.nodes[2].port}"):
                return False
        except StoreError as error:
            return "slots are served" in error.reason

    await reached("the cluster is refused", refuses)


def test_a_node_that_does_not_know_its_name_is_the_one_that_was_asked() -> None:
    slots = slots_of([[0, 1, [b"", 7000, b"id"]], [2, 2, [b"10.0.0.2", 7001, b"id"], [b"r", 1, b"i"]]], ("seed", 1))
    assert slots == {0: ("seed", 7000), 1: ("seed", 7000), 2: ("10.0.0.2", 7001)}


async def test_users_with_the_rights_of_the_manual_are_enough(watched: Watched, cluster: Cluster) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    rights = re.search(r"ACL SETUSER (\S+) on >(\S+) (.*)", page)
    more = re.search(r"with sentinels add `([^`]+)`, with a cluster `([^`]+)`", page)
    assert rights
    assert more
    await watched.primary.do("ACL", "SETUSER", rights[1], "on", f">{rights[2]}", *rights[3].split(), more[1])
    for node in cluster.nodes:
        await node.do("ACL", "SETUSER", rights[1], "on", f">{rights[2]}", *rights[3].split(), *more[2].split())
    at = f"{rights[1]}:{rights[2]}@"
    for url in (watched.url, cluster.url):
        async with link_to(url.replace("://", f"://{at}")) as link:
            keys = [b"warmroute:%d" % i for i in range(9)]
            assert await link.ask([ask(key) for key in keys]) == [1] * 9
    for server in (watched.primary, *cluster.nodes):
        assert await server.do("ACL", "LOG") == []
