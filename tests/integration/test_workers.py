"""Several processes on one port: one place for each session, one truth in all figures, and no harm from a death among them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from warmroute import telling
from warmroute.app import Router
from warmroute.config import Config
from warmroute.listeners import StartError
from warmroute.observe.reloads import ReloadError
from warmroute.workers.rows import Head
from warmroute.workers.supervisor import Supervisor

from ..serving import serving, until_ready
from .conftest import FAST, StartRouter, until, up
from .scripted import RawClient, Scripted, Talk, answer, free_port
from .test_stopping import SOON, Held, becomes, refused, rest, status, stream

WORKERS = 2
MANY = 24
"""Client connections of which each worker surely gets some: the kernel deals them out by their addresses."""

StartWorkers = Callable[..., Awaitable[Supervisor]]


@pytest.fixture
async def start_workers(stack: AsyncExitStack) -> StartWorkers:
    async def start(backends: list[Scripted], read: Callable[[], Config] | None = None, **sections: Any) -> Supervisor:
        listen = {"port": 0, "admin_port": 0, "workers": WORKERS}
        config = Config.model_validate({**FAST, "listen": listen, **sections, "backends": [b.url for b in backends]})
        router = await stack.enter_async_context(Supervisor(config, read=read))
        await until(lambda: up(router) == len(backends) and all(b.models for b in router.registry.backends.values()))
        await router.agreed()
        await until(lambda: router._figures.shared.store.up)
        return router

    return start


@pytest.fixture
async def workers(backends: list[Scripted], start_workers: StartWorkers) -> Supervisor:
    return await start_workers(backends)


@pytest.fixture
def held(backends: list[Scripted]) -> Iterator[Held]:
    """All backends begin streams, and end them when they may."""
    script = Held()
    for backend in backends:
        backend.script = script
    yield script
    script.go_on.set()


async def connections(stack: AsyncExitStack, router: Router, count: int = MANY) -> list[RawClient]:
    return [await stack.enter_async_context(await RawClient.connect(router.data_url)) for _ in range(count)]


def guests(router: Supervisor) -> list[int]:
    """Client connections of each worker."""
    return [row[Head.GUESTS] for row in router._rows.workers]


def pids(router: Supervisor) -> list[int]:
    assert router._crew is not None
    return [hand.process.pid for hand in router._crew.hands if hand.process is not None]


def in_flight(router: Supervisor) -> int:
    router._shown.refresh()
    return sum(backend.in_flight for backend in router.registry.backends.values())


async def state(router: Router) -> dict[str, Any]:
    async with httpx.AsyncClient(trust_env=False) as http:
        found: dict[str, Any] = (await http.get(f"{router.admin_url}/api/state")).json()
        return found


async def series(router: Router) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Everything on /metrics."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"{router.admin_url}/metrics")).text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def total(router: Router, name: str, **labels: str) -> float:
    """The sum of all series of this name that have these labels."""
    found = await series(router)
    return sum(value for (n, having), value in found.items() if n == name and labels.items() <= set(having))


async def counted(router: Router, name: str, wanted: float, **labels: str) -> None:
    """Wait until that sum is so: workers tell of a request just after its end."""
    async with asyncio.timeout(SOON):
        while await total(router, name, **labels) != wanted:
            await asyncio.sleep(0.02)


# Sessions and bounds


async def test_sessions_stay_put_whichever_worker_takes_their_turns(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    clients = await connections(stack, workers)
    homes: dict[str, set[str | None]] = {}
    for round_ in range(4):
        sessions = [f"s{(i + 7 * round_) % len(clients)}" for i in range(len(clients))]
        replies = await asyncio.gather(
            *(client.chat(session) for client, session in zip(clients, sessions, strict=True))
        )
        for session, reply in zip(sessions, replies, strict=True):
            assert reply.status == 200
            homes.setdefault(session, set()).add(reply.header("x-warmroute-backend"))
    assert all(guests(workers)), "each worker has some of the connections"
    assert sum(guests(workers)) == MANY
    assert {len(home) for home in homes.values()} == {1}
    spread = Counter(next(iter(home)) for home in homes.values())
    assert max(spread.values()) - min(spread.values()) <= 2, "as even as one process deals them out, or nearly so"
    await counted(workers, "warmroute_sessions", len(homes))
    assert await total(workers, "warmroute_session_moves_total") == 0


async def test_a_conversation_without_an_id_is_known_to_all(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    clients = await connections(stack, workers)
    for number in range(4):
        messages: list[dict[str, str]] = []
        homes = []
        for turn in range(6):
            messages.append({"role": "user", "content": f"question {turn} of {number}"})
            reply = await clients[(number + 5 * turn) % MANY].chat(messages=messages)
            homes.append(reply.header("x-warmroute-backend"))
            messages.append({"role": "assistant", "content": "hello"})
            await asyncio.sleep(0.1)  # the store is told beside requests
        assert len(set(homes)) == 1
    await counted(workers, "warmroute_sessions", 4)
    assert await total(workers, "warmroute_store_recalled_total", of="history") > 0


async def test_parallel_first_turns_through_both_workers_meet(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    clients = await connections(stack, workers)
    for i in range(40):
        replies = await asyncio.gather(*(client.chat(f"s{i}") for client in clients))
        assert {reply.status for reply in replies} == {200}
        assert len({reply.header("x-warmroute-backend") for reply in replies}) == 1
    await counted(workers, "warmroute_sessions", 40)


async def test_the_bound_on_requests_in_flight_holds_over_all_workers(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack
) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()

    def counting(backend: Scripted) -> Callable[[Talk], Awaitable[None]]:
        async def count(talk: Talk) -> None:
            running[backend.name] += 1
            most[backend.name] = max(most[backend.name], running[backend.name])
            await asyncio.sleep(0.005)
            running[backend.name] -= 1
            await answer(talk)

        return count

    for backend in backends:
        backend.script = counting(backend)
    workers = await start_workers(backends, queue={"in_flight": 2, "length": 256, "timeout": 30})
    clients = await connections(stack, workers, 2 * MANY)
    for round_ in range(4):
        replies = await asyncio.gather(*(client.chat(f"s{round_}.{i}") for i, client in enumerate(clients)))
        assert {reply.status for reply in replies} == {200}
    assert set(most.values()) == {2}
    await until(lambda: in_flight(workers) == 0)


async def test_the_limits_on_waiting_requests_and_connections_are_those_of_all(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack, held: Held
) -> None:
    workers = await start_workers(
        backends[:1],
        queue={"in_flight": 1, "length": 3, "timeout": 30},
        limits={"max_connections": 16, "shutdown": "1s"},
    )
    clients = await connections(stack, workers, 12)
    for i, client in enumerate(clients):
        client.post({"model": "m", "stream": True, "messages": []}, {"x-session-id": f"s{i}"})
    await until(lambda: workers._rows.head(Head.WAITING) == 3)
    await counted(workers, "warmroute_requests_total", 12 - 1 - 3, code="503")
    assert await total(workers, "warmroute_requests_waiting") == 3
    await until(lambda: sum(guests(workers)) == 12)
    more = await connections(stack, workers, 8)
    refusals = 0
    for client in more:
        client.post({"model": "m", "messages": []})
    for client in more:
        refusals += (await client.head())[1].count(("connection", "close"))
    assert refusals >= 4
    await counted(workers, "warmroute_connections_refused_total", 4)


async def test_what_a_tenant_may_use_is_counted_over_all_workers(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack, held: Held
) -> None:
    listen = {
        "port": 0,
        "admin_port": 0,
        "workers": WORKERS,
        "keys": [{"key": "of-one", "tenant": "one"}, {"key": "of-two", "tenant": "two"}],
    }
    tenants = {"one": {"in_flight": 5}, "two": {"rate": 0.01, "burst": 7}}
    workers = await start_workers(backends, listen=listen, tenants=tenants, limits={"shutdown": "1s"})
    statuses = {}
    for tenant in ("one", "two"):
        clients = await connections(stack, workers)
        for client in clients:
            client.post({"model": "m", "stream": True, "messages": []}, {"authorization": f"Bearer of-{tenant}"})
            if tenant == "two":  # one after the other: what comes at once may pass too soon
                assert (await client.head())[0] in (200, 429)
        limited = {"one": 5, "two": 7}[tenant]
        await counted(workers, "warmroute_tenant_refused_total", MANY - limited, tenant=tenant)
        statuses[tenant] = clients
    assert in_flight(workers) == 12
    held.go_on.set()
    for client in statuses["two"]:
        client.writer.close()
    await until(lambda: in_flight(workers) == 0)


# One truth


async def test_figures_are_those_that_one_process_would_have(
    backends: list[Scripted], start_router: StartRouter, workers: Supervisor, stack: AsyncExitStack
) -> None:
    """The same conversations through one process, and through workers that see some turns each: the same account."""
    told = iter(range(10_000))

    async def usage(talk: Talk) -> None:
        """Prompts of 100 tokens a message, of which all but the last 200 are cached."""
        count = 100 * len(json.loads(talk.seen.body)["messages"])
        details = {"cached_tokens": max(0, count - 208) // 16 * 16}
        counts = {"prompt_tokens": count, "completion_tokens": 10, "prompt_tokens_details": details}
        talk.json({"choices": [{"message": {"role": "assistant", "content": f"a{next(told)}"}}], "usage": counts})

    for backend in backends:
        backend.script = usage
    one = await start_router(backends)
    figures = []
    for router in (one, workers):
        clients = await connections(stack, router)
        for session in range(6):
            messages: list[dict[str, str]] = [{"role": "system", "content": f"You help. It is 10:0{session}."}]
            for turn in range(5):
                if session == 5:  # a clock in the system prompt, which spoils every turn
                    messages[0]["content"] = f"You help. It is 10:1{turn}."
                messages.append({"role": "user", "content": f"question {turn} of {session}"})
                client = clients[(5 * session + 3 * turn) % len(clients)]
                reply = await client.chat(f"s{session}", messages=messages)
                assert reply.status == 200
                messages.append({"role": "assistant", "content": "an answer"})
        await counted(router, "warmroute_requests_total", 30)
        found = await series(router)
        names = (
            "warmroute_prompt_tokens_total",
            "warmroute_missed_prompt_tokens_total",
            "warmroute_prompt_changes_total",
            "warmroute_conversation_turns_total",
            "warmroute_sessions",
            "warmroute_requests_by_key_source_total",
            "warmroute_request_duration_seconds_count",
            "warmroute_requests_in_flight",
            "warmroute_session_moves_total",
            "warmroute_key_values_refused_total",
        )
        sums: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        for (name, labels), value in found.items():
            if name in names:  # not by backend: where new sessions go may differ
                sums[name, tuple(pair for pair in labels if pair[0] != "backend")] += int(value)
        figures.append(sums)
    assert figures[0] == figures[1]
    assert any(dict(labels).get("cause") == "clock" for _, labels in figures[0]), figures[0]
    recent = (await state(workers))["recent"]
    assert len(recent) == 30
    assert {entry["status"] for entry in recent} == {200}


async def test_what_was_refused_and_what_the_clients_did_is_counted(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack
) -> None:
    workers = await start_workers(backends, limits={"head_timeout": "0.3s", "shutdown": "1s"})
    clients = await connections(stack, workers)
    for client in clients:
        client.send(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await client.reply()).status == 404
        client.send(b"POST /v1/chat")
    await counted(workers, "warmroute_requests_total", MANY, code="404")
    await counted(workers, "warmroute_client_timeouts_total", MANY, what="head")


async def test_a_request_is_explained_by_who_knows_its_conversation(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    (client,) = await connections(stack, workers, 1)
    home = (await client.chat("mine")).header("x-warmroute-backend")
    asked = {"path": "/v1/chat/completions", "headers": [["x-session-id", "mine"]], "body": "eyJtb2RlbCI6Im0ifQ=="}
    async with httpx.AsyncClient(trust_env=False) as http:
        found = (await http.post(f"{workers.admin_url}/api/explain", json=asked)).json()
    assert (found["known"], found["backend"], found["decision"]) == (True, home, "pin_hit")
    sessions = [row["session"] for row in workers._state.sessions(10)["sessions"]]  # type: ignore[attr-defined]
    assert found["session"] in sessions


# One fleet


async def test_the_backends_are_checked_and_read_once_for_all(backends: list[Scripted], workers: Supervisor) -> None:
    checks = len([seen for seen in backends[0].requests if seen.path == "/health"])
    await asyncio.sleep(1.0)
    more = len([seen for seen in backends[0].requests if seen.path == "/health"]) - checks
    assert 1 <= more <= 6  # every 0.2 s, and not as often as there are workers


async def test_what_one_worker_finds_out_all_know(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack
) -> None:
    calm = {"interval": "60s", "unsettled_interval": "60s", "timeout": "5s"}
    workers = await start_workers(backends, health=calm)
    clients = await connections(stack, workers)
    await backends[0].stop()
    homes = []
    for i, client in enumerate(clients):
        reply = await client.chat(f"s{i}")
        assert reply.status == 200
        homes.append(reply.header("x-warmroute-backend"))
    assert backends[0].name not in homes
    await until(lambda: workers.registry.backends[backends[0].name].state == "down")
    failures = await total(workers, "warmroute_backend_failures_total", backend=backends[0].name)
    assert 1 <= failures <= WORKERS, "each worker tried at most once"
    assert [event["kind"] for event in workers._kept.events.newest()].count("state") >= 1


async def test_a_drain_holds_in_all_workers_when_its_answer_comes(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    clients = await connections(stack, workers)
    async with httpx.AsyncClient(base_url=workers.admin_url, trust_env=False) as http:
        for round_ in range(3):
            name = backends[round_].name
            assert (await http.post(f"/api/backends/{name}/drain")).status_code == 200
            replies = await asyncio.gather(*(client.chat(f"{round_}.{i}") for i, client in enumerate(clients)))
            assert name not in {reply.header("x-warmroute-backend") for reply in replies}
            assert (await http.post(f"/api/backends/{name}/undrain")).status_code == 200


async def test_backends_come_and_go_in_all_workers(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack
) -> None:
    workers = await start_workers(backends[:1])
    clients = await connections(stack, workers)
    async with httpx.AsyncClient(base_url=workers.admin_url, trust_env=False) as http:
        assert (await http.post("/api/backends", json={"url": backends[1].url})).status_code == 200
        await until(lambda: up(workers) == 2)
        await workers.agreed()
        homes = {(await client.chat(f"s{i}")).header("x-warmroute-backend") for i, client in enumerate(clients)}
        assert homes == {backend.name for backend in backends[:2]}
        await counted(workers, "warmroute_sessions", MANY)
        assert (await http.post(f"/api/backends/{backends[0].name}/remove?now")).status_code == 200
        homes = {(await client.chat(f"s{i}")).header("x-warmroute-backend") for i, client in enumerate(clients)}
        assert homes == {backends[1].name}
    assert list(workers.registry.backends) == [backends[1].name]


async def test_a_reload_holds_in_all_workers(
    backends: list[Scripted], start_workers: StartWorkers, stack: AsyncExitStack
) -> None:
    wanted = backends[:2]

    def read() -> Config:
        listen = {"port": 0, "admin_port": 0, "workers": WORKERS}
        return Config.model_validate({**FAST, "listen": listen, "backends": [backend.url for backend in wanted]})

    workers = await start_workers(wanted, read)
    clients = await connections(stack, workers)
    before = [(await client.chat(f"s{i}")).header("x-warmroute-backend") for i, client in enumerate(clients)]
    wanted = backends[1:]
    changes = await workers.reload()
    assert (changes.added, changes.removed) == ((backends[2].name,), (backends[0].name,))
    after = [(await client.chat(f"s{i}")).header("x-warmroute-backend") for i, client in enumerate(clients)]
    assert backends[0].name not in after
    assert [a for a, b in zip(after, before, strict=True) if b == backends[1].name] == [
        backends[1].name
    ] * before.count(backends[1].name)
    await until(lambda: up(workers) == 2)
    await workers.agreed()
    new = [(await client.chat(f"t{i}")).header("x-warmroute-backend") for i, client in enumerate(clients)]
    assert set(new) == {backends[1].name, backends[2].name}
    wanted = []
    with pytest.raises((ReloadError, ValueError)):
        await workers.reload()
    assert (await clients[0].chat("s0")).status == 200


# Deaths


async def test_a_killed_worker_is_replaced_and_what_it_held_is_given_back(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack, held: Held
) -> None:
    clients = await connections(stack, workers)
    for i, client in enumerate(clients):
        client.post({"model": "m", "stream": True, "messages": []}, {"x-session-id": f"s{i}"})
    for client in clients:
        assert (await client.head())[0] == 200
    assert in_flight(workers) == MANY
    lost, left = guests(workers)
    before = pids(workers)
    os.kill(before[0], signal.SIGKILL)
    await until(lambda: workers._workers().restarts == 1)
    assert in_flight(workers) == left, "the places of the dead are free again"
    await until(lambda: workers._workers().serving == WORKERS)
    assert pids(workers)[1] == before[1]
    assert pids(workers)[0] != before[0]
    held.go_on.set()
    whole = broken = 0
    for client in clients:
        try:
            whole += (await rest(client)).endswith(b"[DONE]\n\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            broken += 1
    assert (whole, broken) == (left, lost)
    assert lost
    await until(lambda: in_flight(workers) == 0)
    await counted(workers, "warmroute_requests_total", left)
    assert await total(workers, "warmroute_worker_requests_lost_total") == lost
    assert await total(workers, "warmroute_worker_restarts_total") == 1
    for backend in backends:
        backend.script = answer
    for i, client in enumerate(await connections(stack, workers)):
        assert (await client.chat(f"s{i}")).status == 200
    assert all(guests(workers)), "the new one has its share"


async def test_the_state_tells_of_the_workers(workers: Supervisor) -> None:
    found = await state(workers)
    assert found["workers"] == {"wanted": 2, "serving": 2, "restarts": 0, "lost": 0}
    assert "workers" not in telling.status_text(found)
    os.kill(pids(workers)[0], signal.SIGKILL)
    await until(lambda: workers._workers().serving == 1)
    assert "bad: only 1 of 2 workers serve: the log tells why" in telling.status_text(workers.state())


async def test_a_worker_that_hangs_is_replaced(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    assert workers._crew is not None
    workers._crew.hung = 2
    before = pids(workers)
    os.kill(before[0], signal.SIGSTOP)
    await until(lambda: workers._workers().restarts == 1)
    await until(lambda: workers._workers().serving == WORKERS)
    assert pids(workers)[1] == before[1]
    clients = await connections(stack, workers)
    assert {(await client.chat(f"s{i}")).status for i, client in enumerate(clients)} == {200}


async def test_connections_that_come_while_a_worker_is_replaced_are_served(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    os.kill(pids(workers)[0], signal.SIGKILL)
    clients = await connections(stack, workers)
    replies = await asyncio.gather(*(client.chat(f"s{i}") for i, client in enumerate(clients)))
    reset = [reply for reply in replies if reply.status != 200]
    assert reset == []


async def test_the_embedded_store_is_replaced_too(
    backends: list[Scripted], workers: Supervisor, stack: AsyncExitStack
) -> None:
    clients = await connections(stack, workers)
    homes = [(await client.chat(f"s{i}")).header("x-warmroute-backend") for i, client in enumerate(clients)]
    assert workers._valkey is not None
    assert workers._valkey._process is not None
    workers._valkey._process.kill()
    await until(lambda: not workers._figures.shared.store.up)
    for i, client in enumerate(clients):
        assert (await client.chat(f"s{i}")).header("x-warmroute-backend") == homes[i]
    await until(lambda: workers._figures.shared.store.up)
    turned = [*clients[1:], clients[0]]
    for i, client in enumerate(turned):
        assert (await client.chat(f"s{i}")).header("x-warmroute-backend") == homes[i]


def test_a_worker_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    words = ["serve", "http://127.0.0.1:1", "--workers", "2", "--port", str(free_port()), "--admin-port", "0"]
    broken = {**os.environ, "WARMROUTE_STORE__SECRET_FILE": str(tmp_path / "none")}
    done = subprocess.run(
        [sys.executable, "-m", "warmroute", *words], env=broken, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("warmroute: ")
    assert done.stderr.count("\n") == 1


# As people run it


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_sigterm_lets_streams_end_and_leaves_nothing(
    backends: list[Scripted], held: Held, tmp_path: Path
) -> None:
    file = tmp_path / "w.yaml"
    given = {**FAST, "limits": {"pre_drain": "0.5s"}, "backends": [backend.url for backend in backends]}
    del given["listen"]
    file.write_text(yaml.safe_dump(given))
    with serving("--config", str(file), "--workers", "2") as router:
        await until_ready(router.admin, up=3)
        family = children(router.process.pid)
        assert len(family) == 3  # two workers and a store
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(stream(router.data)) for _ in range(8)]
            os.kill(router.process.pid, signal.SIGTERM)
            await becomes(lambda: refused(router.data))
            held.go_on.set()
            for client in streams:
                assert (await rest(client)).endswith(b"[DONE]\n\n")
        code = await asyncio.to_thread(router.process.wait, SOON)
        assert code == 0
        assert not any(map(alive, family))


async def test_a_second_signal_ends_it_now(backends: list[Scripted], held: Held, tmp_path: Path) -> None:
    urls = [backend.url for backend in backends]
    with serving(*urls, "--workers", "2") as router:
        await until_ready(router.admin, up=3)
        async with stream(router.data) as client:
            os.kill(router.process.pid, signal.SIGINT)
            await becomes(lambda: refused(router.data))
            os.kill(router.process.pid, signal.SIGINT)
            body = await rest(client)
            assert b"stopping" in body
            assert b"[DONE]" not in body
        assert await asyncio.to_thread(router.process.wait, SOON) == 0


async def test_not_ready_as_soon_as_it_is_told_to_stop(backends: list[Scripted], tmp_path: Path) -> None:
    urls = [backend.url for backend in backends]
    with serving(*urls, "--workers", "2") as router:
        await until_ready(router.admin, up=3)
        assert await status(router.data, "/readyz") == 200
        os.kill(router.process.pid, signal.SIGTERM)

        async def not_ready() -> bool:
            return {await status(router.data, "/readyz") for _ in range(MANY)} == {503}

        await becomes(not_ready)
        async with await RawClient.connect(router.data) as client:
            assert (await client.chat("s")).status == 200
        os.kill(router.process.pid, signal.SIGTERM)
        assert await asyncio.to_thread(router.process.wait, SOON) == 0


async def test_sighup_reloads_all(backends: list[Scripted], tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text(yaml.safe_dump({"backends": [backends[0].url], "log": {"format": "off"}}))
    with serving("--config", str(file), "--workers", "2") as router:
        await until_ready(router.admin, up=1)
        file.write_text(yaml.safe_dump({"backends": [b.url for b in backends[1:]], "log": {"format": "off"}}))
        os.kill(router.process.pid, signal.SIGHUP)
        await until_ready(router.admin, up=2)

        async def all_new() -> bool:
            homes = set()
            for i in range(MANY):
                async with await RawClient.connect(router.data) as client:
                    homes.add((await client.chat(f"s{i}")).header("x-warmroute-backend"))
            return homes == {b.name for b in backends[1:]}

        await becomes(all_new)


async def test_a_killed_supervisor_takes_all_with_it(backends: list[Scripted]) -> None:
    with serving(*(backend.url for backend in backends), "--workers", "2", stderr=subprocess.DEVNULL) as router:
        await until_ready(router.admin, up=3)
        family = children(router.process.pid)
        assert len(family) == 3
        router.process.kill()
        router.process.wait()
        await until(lambda: not any(map(alive, family)))


async def test_a_port_in_use_is_told_though_sockets_are_shared(backends: list[Scripted], workers: Supervisor) -> None:
    port = int(workers.data_url.rpartition(":")[2])
    listen = {"port": port, "admin_port": 0, "workers": WORKERS}
    config = Config.model_validate({**FAST, "listen": listen, "backends": [backends[0].url]})
    with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        await Supervisor(config).__aenter__()


def test_one_worker_is_a_router_without_any_of_it() -> None:
    code = (
        "import sys; from warmroute.process import kind_for; from warmroute.config import Config;"
        " kind = kind_for(Config.from_urls(['http://a']));"
        " sys.exit(kind.__name__ != 'Router' or any('workers' in name for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
