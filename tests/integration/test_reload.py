"""Another configuration while the router runs: all of it in one step, or nothing, and nobody notices."""

import asyncio
import io
import json
import logging
import signal
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from warmroute.app import Router
from warmroute.config import Config, load, needs_restart
from warmroute.core.model import BackendSpec, Phase
from warmroute.proxy.failures import UpstreamError
from warmroute.proxy.pool import Pool

from ..serving import COMMAND, serving, until_ready
from .conftest import FAST, until
from .scripted import RawClient, Scripted, Talk, answer, free_port, token
from .talking import stream, talking


def write(file: Path, backends: list[Any], **sections: Any) -> None:
    file.write_text(yaml.safe_dump({**FAST, **sections, "backends": backends}))


class Started:
    """A router whose configuration is a file, and the file."""

    def __init__(self, router: Router, file: Path) -> None:
        self.router, self.file = router, file

    def write(self, backends: list[Any], **sections: Any) -> None:
        write(self.file, backends, **sections)

    async def post(self) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.router.admin_url, timeout=30) as http:
            return await http.post("/api/reload")

    async def reload(self, backends: list[Any], **sections: Any) -> dict[str, list[str]]:
        """Write a good configuration, let it be read, and return what changed."""
        self.write(backends, **sections)
        answered = await self.post()
        assert answered.status_code == 200, answered.text
        return {word: names for word, names in answered.json().items() if names}

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.router.admin_url) as http:
            return await http.get(path)

    async def reload_metrics(self) -> dict[str, float]:
        page = (await self.get("/metrics")).text
        lines = [line.rpartition(" ") for line in page.splitlines() if line.startswith("warmroute_config_reload")]
        return {name.removeprefix("warmroute_config_"): float(value) for name, _, value in lines}

    async def up(self, *backends: Scripted) -> None:
        """Wait until exactly these are configured, up, and have told their models."""
        known = self.router.registry.backends
        await until(lambda: all(known[b.name].health.up and known[b.name].models for b in backends))
        assert list(known) == [b.name for b in backends]


async def begin(stack: AsyncExitStack, backends: list[Scripted], file: Path) -> Started:
    """Start a router over these backends, out of a file."""
    read = partial(load, file, environment={})
    write(file, urls(*backends))
    found = Started(await stack.enter_async_context(Router(read(), read=read)), file)
    await found.up(*backends)
    return found


@pytest.fixture
async def started(stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path) -> Started:
    """A router over the first two of three backends."""
    return await begin(stack, backends[:2], tmp_path / "router.yaml")


def urls(*backends: Scripted) -> list[str]:
    return [b.url for b in backends]


async def homes(router: Router, sessions: list[str]) -> dict[str, tuple[str, str]]:
    """One turn of each session: who served it, and why."""
    found = {}
    async with await RawClient.connect(router.data_url) as client:
        for session in sessions:
            reply = await client.chat(session)
            assert reply.status == 200
            found[session] = (
                reply.header("x-warmroute-backend") or "",
                reply.header("x-warmroute-decision") or "",
            )
    return found


# Under load


async def test_twenty_reloads_under_load_fail_no_request(started: Started, backends: list[Scripted]) -> None:
    for backend in backends:
        backend.script = stream
    a, b, c = backends
    heavy = {"url": a.url, "weight": 3.0}
    steps: list[list[Any]] = [urls(a, b, c), urls(b, c), [heavy, b.url], urls(c, b), urls(a)]
    async with talking(started.router.data_url, clients=30) as said:
        for turn in range(20):
            wanted = steps[turn % len(steps)]
            await started.reload(wanted, upstream={"connect_timeout": 5 + turn / 100})
            await said.again()
            names = {(w if isinstance(w, str) else w["url"]).removeprefix("http://") for w in wanted}
            assert set(said.at.values()) <= names
    assert said.failures == []
    assert set(said.decisions) <= {"ring", "ring_spill", "pin_hit", "pin_lost"}
    assert await started.reload_metrics() == {
        'reloads_total{result="ok"}': 20.0,
        'reloads_total{result="invalid"}': 0.0,
        'reloads_total{result="refused"}': 0.0,
        "reload_ok": 1.0,
    }
    assert {state.in_flight for state in started.router.registry.backends.values()} == {0}
    assert started.router.counters.internal_errors == {}


async def test_reloads_at_the_same_time_come_one_after_another(started: Started, backends: list[Scripted]) -> None:
    started.write(urls(*backends))
    answers = await asyncio.gather(*(started.post() for _ in range(8)))
    assert [a.status_code for a in answers] == [200] * 8
    assert sorted(bool(a.json()["added"]) for a in answers) == [False] * 7 + [True]
    await started.up(*backends)


# What cannot be put in force changes nothing

BROKEN = {
    "an unknown key": ("backends: [http://a:1]\nhealth:\n  intervall: 1s\n", ":3: unknown key 'health.intervall'"),
    "a value of another kind": ("backends: [http://a:1]\nretry:\n  share: 7\n", ":3: retry.share: "),
    "no YAML": ("backends: [http://a:1\n", ":2: not YAML"),
    "no backends": ("health: {rise: 1}\n", "no backends"),
}


@pytest.mark.parametrize("kind", list(BROKEN))
async def test_a_broken_file_keeps_everything(
    started: Started, backends: list[Scripted], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    text, told = BROKEN[kind]
    router = started.router
    sessions = [f"s{i}" for i in range(8)]
    before = {session: home for session, (home, _) in (await homes(router, sessions)).items()}
    good, states, handler = started.file.read_text(), dict(router.registry.backends), router._data_app.handler
    started.file.write_text(text)
    answered = await started.post()
    assert answered.status_code == 400
    assert told in answered.json()["detail"]
    assert any(told in r.getMessage() for r in caplog.records if r.levelno == logging.ERROR)
    assert router.registry.backends == states
    assert router._data_app.handler is handler
    assert await homes(router, sessions) == {session: (home, "pin_hit") for session, home in before.items()}
    assert (await started.reload_metrics())["reload_ok"] == 0
    assert any(told in advice["text"] for advice in (await started.get("/api/state")).json()["advice"])
    started.file.write_text(good)
    assert (await started.post()).status_code == 200
    assert (await started.reload_metrics()) == {
        'reloads_total{result="ok"}': 1.0,
        'reloads_total{result="invalid"}': 1.0,
        'reloads_total{result="refused"}': 0.0,
        "reload_ok": 1.0,
    }
    assert not any(told in advice["text"] for advice in (await started.get("/api/state")).json()["advice"])


async def test_a_file_that_is_gone_keeps_everything(started: Started, backends: list[Scripted]) -> None:
    started.file.unlink()
    answered = await started.post()
    assert (answered.status_code, answered.json()["detail"]) == (400, f"{started.file}: No such file or directory")
    assert (await homes(started.router, ["s"]))["s"][0] in [b.name for b in backends[:2]]


@pytest.mark.parametrize(
    ("sections", "keys"),
    [
        ({"listen": {"port": 1, "admin_port": 0}}, ["listen.port"]),
        ({"listen": {"port": 0, "admin_port": 2, "host": "0.0.0.0"}}, ["listen.admin_port", "listen.host"]),
        ({"store": {"redis": "127.0.0.1:1"}}, ["store.redis"]),
        ({"affinity": {"idle_expiry": "1h", "max_sessions": 5}}, ["affinity.idle_expiry", "affinity.max_sessions"]),
        ({"limits": {"shutdown": "1s", "body": "1MiB"}}, ["limits.shutdown"]),
    ],
)
async def test_what_needs_a_restart_is_refused_as_a_whole(
    started: Started, backends: list[Scripted], sections: dict[str, Any], keys: list[str]
) -> None:
    started.write([{"url": backends[0].url, "weight": 5.0}, backends[2].url], **sections)
    answered = await started.post()
    assert answered.status_code == 409
    named = answered.json()["detail"].partition(" cannot change")[0].split(", ")
    assert sorted(named) == sorted(keys)
    assert [(b.name, b.weight) for b in started.router.registry.backends.values()] == [
        (b.name, 1.0) for b in backends[:2]
    ]
    metrics = await started.reload_metrics()
    assert (metrics['reloads_total{result="refused"}'], metrics["reload_ok"]) == (1.0, 0.0)


def test_all_keys_that_need_a_restart_are_told() -> None:
    now = Config.from_urls(["http://a"])
    other = Config.model_validate(
        {
            "backends": ["http://b"],
            "listen": {"host": "::", "port": 1, "admin_host": "::1", "admin_port": 2, "admin_token": "t" * 16},
            "store": {"prefix": "p", "deadline": 0.1},
            "kv_events": {"enabled": True, "max_blocks": 1},
            "limits": {"body": 1, "max_connections": 7},
            "affinity": {"max_history": 1, "unproven_expiry": 1, "even_sessions": 1, "key_sources": ["content"]},
            "health": {"rise": 9},
            "drain": {"deadline": 1},
            "log": {"format": "off"},
        }
    )
    assert needs_restart(now, now) == []
    assert set(needs_restart(now, other)) == {
        *("listen.host", "listen.port", "listen.admin_host", "listen.admin_port", "store.prefix", "store.deadline"),
        *("limits.max_connections", "affinity.max_history", "affinity.unproven_expiry"),
        *("kv_events.enabled", "kv_events.max_blocks"),
    }


async def test_a_router_without_a_file_says_so(router: Router) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        answered = await http.post("/api/reload")
        assert (answered.status_code, "read again" in answered.json()["detail"]) == (409, True)
        assert (await http.get("/api/reload")).status_code in (404, 405)


# Backends


async def test_a_backend_more_moves_no_session_and_takes_new_ones(started: Started, backends: list[Scripted]) -> None:
    sessions = [f"s{i}" for i in range(12)]
    before = await homes(started.router, sessions)
    assert await started.reload(urls(*backends)) == {"added": [backends[2].name]}
    await started.up(*backends)
    after = await homes(started.router, sessions)
    assert after == {session: (home, "pin_hit") for session, (home, _) in before.items()}
    fresh = await homes(started.router, [f"n{i}" for i in range(6)])
    assert [home for home, _ in fresh.values()].count(backends[2].name) == 6


async def test_a_new_backend_is_not_asked_before_its_check(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path
) -> None:
    """It may not be there yet, and it may serve other models than those before it; not all requests name one."""
    for backend in backends[:2]:
        backend.models = ["m", "k"]
    started = await begin(stack, backends[:2], tmp_path / "router.yaml")
    gone = f"http://127.0.0.1:{free_port()}"
    checked = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await checked.wait()
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    other = backends[2]
    other.models, other.health = ["n"], slow
    await started.reload([*urls(*backends), gone])
    served = await homes(started.router, [f"s{i}" for i in range(12)])
    assert {home for home, _ in served.values()} == {b.name for b in backends[:2]}
    async with await RawClient.connect(started.router.data_url) as client:
        for i in range(8):
            assert (await client.chat(f"no model {i}", model=None)).status == 200
    assert started.router.counters.retries == {}
    assert other.posts == []
    checked.set()
    state = started.router.registry.backends[other.name]
    await until(lambda: state.state == "up")
    assert state.models == frozenset({"n"})
    assert {home for home, _ in (await homes(started.router, [f"t{i}" for i in range(12)])).values()} == {
        b.name for b in backends[:2]
    }


async def test_all_backends_may_be_others_at_once(started: Started, backends: list[Scripted]) -> None:
    await homes(started.router, ["s"])
    await started.reload(urls(backends[2]))
    assert await homes(started.router, ["s"]) == {"s": (backends[2].name, "pin_lost")}


async def test_a_backend_less_ends_what_runs_and_is_asked_nothing_more(
    started: Started, backends: list[Scripted]
) -> None:
    router = started.router
    go_on = asyncio.Event()

    async def long(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("begun"))
        await talk.drain()
        await go_on.wait()
        talk.event(b"[DONE]")
        talk.end()

    home = (await homes(router, ["s"]))["s"][0]
    gone, stays = backends[:2] if home == backends[0].name else (backends[1], backends[0])
    gone.script = long
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m", "stream": True}, {"x-session-id": "s"})
        assert (await client.head())[0] == 200
        await client.chunk()
        assert await started.reload(urls(stays)) == {"removed": [gone.name]}
        seen = len(gone.requests)
        assert await homes(router, ["s"]) == {"s": (stays.name, "pin_lost")}
        # As many checks of the other one as would have been some of this one.
        checks = len(stays.requests)
        await until(lambda: len(stays.requests) >= checks + 8)
        assert len(gone.requests) == seen
        go_on.set()
        body = b""
        while part := await client.chunk():
            body += part
        assert body.endswith(b"[DONE]\n\n")
    await until(lambda: not gone._writers)  # none is kept open
    page = (await started.get("/metrics")).text
    assert f'warmroute_backend_up{{backend="{gone.name}"}}' not in page
    gone.script = answer
    assert await started.reload(urls(stays, gone)) == {"added": [gone.name]}
    await started.up(stays, gone)
    assert await homes(router, ["s"]) == {"s": (stays.name, "pin_hit")}
    assert {home for home, _ in (await homes(router, [f"n{i}" for i in range(2)])).values()} >= {gone.name}


async def test_weights_rule_new_sessions(started: Started, backends: list[Scripted]) -> None:
    a, b = backends[:2]
    first = await homes(started.router, [f"s{i}" for i in range(20)])
    assert [home for home, _ in first.values()].count(a.name) == 10
    assert await started.reload([{"url": a.url, "weight": 3.0}, b.url]) == {"reweighted": [a.name]}
    second = await homes(started.router, [f"n{i}" for i in range(20)])
    assert [home for home, _ in second.values()].count(a.name) == 20  # 30 of 40 are its share
    assert {home for home, _ in (await homes(started.router, list(first))).values()} == {a.name, b.name}
    assert [r["weight"] for r in (await started.get("/api/state")).json()["backends"]] == [3.0, 1.0]


async def test_another_url_under_the_same_name_is_a_new_backend(started: Started, backends: list[Scripted]) -> None:
    router = started.router
    a, b, c = backends
    await started.reload([{"url": a.url, "name": "one"}, {"url": b.url, "name": "two"}])
    await until(lambda: all(s.health.up and s.models for s in router.registry.backends.values()))
    before = await homes(router, [f"s{i}" for i in range(6)])
    changes = await started.reload([{"url": c.url, "name": "one"}, {"url": b.url, "name": "two"}])
    assert changes == {"replaced": ["one"]}
    assert router.registry.backends["one"].requests == 0
    await until(lambda: bool(router.registry.backends["one"].health.up))
    seen, asked = len(a.requests), len(c.posts)
    after = await homes(router, list(before))
    assert after == {session: (home, "pin_hit") for session, (home, _) in before.items()}
    assert len(c.posts) - asked == [home for home, _ in before.values()].count("one")
    checks = len(c.requests)
    await until(lambda: len(c.requests) >= checks + 6)
    assert len(a.requests) == seen
    assert not a._writers


async def test_connections_counters_and_drains_are_kept(started: Started, backends: list[Scripted]) -> None:
    router = started.router
    a, b = backends[:2]
    before = await homes(router, [f"s{i}" for i in range(4)])
    connections = {seen.connection for seen in [*a.posts, *b.posts]}
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        await http.post(f"/api/backends/{a.name}/drain", json={"deadline": 500})
    await started.reload(urls(*backends))
    await homes(router, list(before))
    assert {seen.connection for seen in [*a.posts, *b.posts]} == connections
    assert router.counters.total == 8
    assert router.registry.backends[a.name].state == "draining"
    assert router.registry.backends[a.name].requests + router.registry.backends[b.name].requests == 8


async def test_a_conversation_without_an_id_is_known_after_a_reload(started: Started, backends: list[Scripted]) -> None:
    first = {"role": "user", "content": "which way to the station?"}
    turns = [first, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "and back?"}]
    async with httpx.AsyncClient(base_url=started.router.data_url) as http:
        begun = await http.post("/v1/chat/completions", json={"model": "m", "messages": [first]})
        await started.reload(urls(*backends))
        went_on = await http.post("/v1/chat/completions", json={"model": "m", "messages": turns})
    assert went_on.headers["x-warmroute-decision"] == "pin_hit"
    assert went_on.headers["x-warmroute-backend"] == begun.headers["x-warmroute-backend"]


async def test_stopping_ends_what_still_runs_at_a_removed_backend(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path
) -> None:
    async def never(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("begun"))
        await talk.peer_closed(30)

    file = tmp_path / "router.yaml"
    backends[0].script = never
    read = partial(load, file, environment={})
    file.write_text(yaml.safe_dump({**FAST, "limits": {"shutdown": 0.2}, "backends": urls(backends[0])}))
    async with AsyncExitStack() as inner:
        router = await inner.enter_async_context(Router(read(), read=read))
        client = await stack.enter_async_context(await RawClient.connect(router.data_url))
        client.post({"model": "m", "stream": True}, {"x-session-id": "s"})
        await client.head()
        await client.chunk()
        file.write_text(yaml.safe_dump({**FAST, "limits": {"shutdown": 0.2}, "backends": urls(backends[1])}))
        assert (await router.reload()).removed == (backends[0].name,)
        async with asyncio.timeout(10):
            await inner.aclose()
            assert b"[DONE]" not in await client.reader.read()


async def test_a_retired_pool_opens_nothing_and_keeps_nothing(backends: list[Scripted]) -> None:
    spec = BackendSpec("a", backends[0].url)
    loop = asyncio.get_running_loop()
    pool = Pool(spec, loop, connect_timeout=1.0, keepalive_expiry=3.0, clock=loop.time)
    connection = await pool.connect()
    opening = asyncio.ensure_future(pool.connect())
    await asyncio.sleep(0)
    pool.retire()
    assert not opening.done()
    for refused in (opening, asyncio.ensure_future(pool.connect())):
        with pytest.raises(UpstreamError) as error:
            await refused
        assert (error.value.failure.phase, error.value.failure.kind) == (Phase.CONNECT, "removed")
    pool.release(connection)
    assert pool.idle() is None
    await until(lambda: not pool.connections)


async def test_those_who_wait_for_a_full_backend_go_elsewhere_when_it_is_removed(
    started: Started, backends: list[Scripted]
) -> None:
    router = started.router
    held = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await held.wait()
        await answer(talk)

    await started.reload(urls(*backends[:2]), queue={"in_flight": 1, "timeout": "30s"})
    home = (await homes(router, ["s"]))["s"][0]
    full = next(b for b in backends if b.name == home)
    stays = next(b for b in backends[:2] if b is not full)
    full.script = slow
    async with await RawClient.connect(router.data_url) as one, await RawClient.connect(router.data_url) as two:
        for client in (one, two):
            client.post({"model": "m", "messages": []}, {"x-session-id": "s"})
        await until(lambda: router._kept.queue.waiting == 1)
        await started.reload(urls(stays), queue={"in_flight": 1, "timeout": "30s"})
        async with asyncio.timeout(10):
            done, _ = await asyncio.wait(
                [asyncio.ensure_future(one.reply()), asyncio.ensure_future(two.reply())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            (moved,) = [task.result() for task in done]
            assert (moved.status, moved.header("x-warmroute-backend")) == (200, stays.name)
            held.set()
            await until(lambda: all(p.in_flight == 0 for p in router.registry.backends.values()))


# Everything else


async def test_other_keys_come_into_force(started: Started, backends: list[Scripted]) -> None:
    router = started.router
    pair = urls(*backends[:2])
    async with await RawClient.connect(router.data_url) as client:
        await started.reload(
            pair,
            response_headers=False,
            limits={"body": 100},
            affinity={"key_sources": ["header:x-mine"]},
            metrics={**FAST["metrics"], "vllm_series": "none"},
            health={**FAST["health"], "rise": 7},
            outlier={"failures": 9},
            drain={"deadline": "40s"},
            retry={"share": 1.0},
        )
        client.post({"model": "m", "messages": []}, {"x-mine": "s"})
        reply = await client.reply()
        assert [name for name, _ in reply.headers if name.startswith("x-warmroute")] == []
        client.post({"model": "m", "messages": [{"role": "user", "content": "x" * 100}]}, {"x-mine": "s"})
        assert (await client.reply()).status == 413
    rows = (await started.get("/api/sessions")).json()["sessions"]
    assert [row["source"] for row in rows] == ["header:x-mine"]
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        await http.post(f"/api/backends/{backends[0].name}/drain")
        state = (await http.get("/api/state")).json()
    assert 35 < state["backends"][0]["drain"]["seconds_left"] <= 40


async def test_intervals_change_at_once(started: Started, backends: list[Scripted]) -> None:
    """A long pause that has begun does not delay the shorter ones that are wanted now."""
    pair, a = urls(*backends[:2]), backends[0]
    long = {"interval": 600, "unsettled_interval": 600, "timeout": 0.5}
    await started.reload(pair, health=long, metrics={"scrape_interval": 600, "scrape_timeout": 0.5})
    await started.reload(pair)
    count = len(a.requests)
    await until(lambda: len(a.requests) >= count + 6)


async def test_the_access_log_changes(
    started: Started, backends: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = io.StringIO()
    monkeypatch.setattr(started.router, "_log_stream", lines)
    pair = urls(*backends[:2])
    await started.reload(pair, log={"format": "json"})
    await homes(started.router, ["s"])
    await started.reload(pair, log={"format": "off"})
    await homes(started.router, ["s"])
    assert [json.loads(line)["status"] for line in lines.getvalue().splitlines()] == [200]


# A process


async def run(*words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()


async def test_a_signal_and_the_command_reload_a_process(backends: list[Scripted], tmp_path: Path) -> None:
    file, log = tmp_path / "router.yaml", tmp_path / "log"
    sections = {name: FAST[name] for name in ("health", "metrics")}

    def configure(*wanted: Scripted) -> None:
        file.write_text(yaml.safe_dump({**sections, "backends": urls(*wanted)}))

    async def results(admin: str) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=admin) as http:
            found: dict[str, Any] = (await http.get("/api/state")).json()
            return {**found["reload"], "names": [b["name"] for b in found["backends"]]}

    async def become(admin: str, **wanted: object) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                found = await results(admin)
                if all(found[key] == value for key, value in wanted.items()):
                    return found
                await asyncio.sleep(0.02)

    configure(backends[0])
    with log.open("w") as stderr, serving("--config", str(file), stderr=stderr.fileno()) as router:
        await until_ready(router.admin)
        configure(*backends)
        router.process.send_signal(signal.SIGHUP)
        assert (await become(router.admin, ok=1))["names"] == [b.name for b in backends]
        file.write_text("backends: [http://a:1]\nhealth:\n  rise: soon\n")
        router.process.send_signal(signal.SIGHUP)
        kept = await become(router.admin, invalid=1)
        assert (kept["ok"], kept["names"]) == (1, [b.name for b in backends])
        assert f"{file}:3: health.rise: " in kept["error"]
        assert f"{file}:3: health.rise: " in log.read_text()
        code, out, error = await run("reload", "--admin", router.admin)
        assert (code, out, error.count("\n")) == (1, "", 1)
        assert f"{file}:3: health.rise: " in error
        configure(*backends[1:])
        code, out, _ = await run("reload", "--admin", router.admin)
        assert (code, out) == (0, f"the configuration was reloaded\nremoved: {backends[0].name}\n")
        async with await RawClient.connect(router.data) as client:
            assert (await client.chat("s")).status == 200
        router.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(router.process.wait, 30) == 0
    assert "Traceback" not in log.read_text()
