"""Backends that come and go: no conversation moves for one that comes, and no request is lost to one that goes."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from warmroute.app import Router
from warmroute.config import Config, ConfigError, extras, load, require_extras
from warmroute.proxy import pools

from ..serving import COMMAND, serving, until_ready
from .conftest import FAST, StartRouter, until
from .nameserver import nameserver
from .scripted import RawClient, Scripted, Talk, answer, token
from .talking import stream, talking
from .test_reload import homes, urls, write


async def post(router: Router, path: str, **wish: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        return await http.post(path, json=wish or None)


async def add(router: Router, **wish: object) -> dict[str, Any]:
    answered = await post(router, "/api/backends", **wish)
    assert answered.status_code == 200, answered.text
    found: dict[str, Any] = answered.json()
    return found


async def remove(router: Router, name: str, query: str = "") -> dict[str, Any]:
    answered = await post(router, f"/api/backends/{name}/remove{query}")
    assert answered.status_code == 200, answered.text
    found: dict[str, Any] = answered.json()
    return found


async def state(router: Router) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        found: dict[str, Any] = (await http.get("/api/state")).json()
        return found


async def metrics(router: Router, family: str) -> dict[str, float]:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    rows = [line.removeprefix(family).rpartition(" ") for line in lines if line.startswith(family + "{")]
    return {labels: float(value) for labels, _, value in rows}


def names(router: Router) -> set[str]:
    return set(router.registry.backends)


def ready(router: Router, *backends: Scripted) -> bool:
    """Whether these are up and their models known."""
    known = router.registry.backends
    return all(b.name in known and known[b.name].health.up and known[b.name].models for b in backends)


# By hand


async def test_one_more_moves_no_session_and_takes_new_ones(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    a, b, c = backends
    router = await start_router([a, b])
    before = await homes(router, [f"s{i}" for i in range(12)])
    told = await add(router, url=c.url, weight=2)
    assert told == {"backend": c.name, "url": c.url, "state": "starting", "sessions": 0, "sources": ["hand"]}
    await until(lambda: ready(router, c))
    assert router.registry.backends[c.name].weight == 2
    after = await homes(router, list(before))
    assert after == {session: (home, "pin_hit") for session, (home, _) in before.items()}
    assert c.name in {home for home, _ in (await homes(router, [f"n{i}" for i in range(6)])).values()}
    found = await state(router)
    assert {one["name"]: one["sources"] for one in found["backends"]} == {
        a.name: ["config"],
        b.name: ["config"],
        c.name: ["hand"],
    }
    assert found["discovery"]["added_by_hand"] == [c.name]
    assert await metrics(router, "warmroute_discovery_backends") == {'{source="config"}': 2.0, '{source="hand"}': 1.0}


async def test_one_that_is_removed_is_drained_and_then_gone(router: Router, backends: list[Scripted]) -> None:
    go_on = asyncio.Event()

    async def long(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("begun"))
        await talk.drain()
        await go_on.wait()
        talk.event(b"[DONE]")
        talk.end()

    home = (await homes(router, ["s"]))["s"][0]
    leaves = next(b for b in backends if b.name == home)
    assert (await remove(router, home))["state"] == "draining"
    assert await homes(router, ["s"]) == {"s": (home, "pin_hit")}
    fresh = await homes(router, [f"n{i}" for i in range(6)])
    assert home not in {to for to, _ in fresh.values()}
    one = next(b for b in (await state(router))["backends"] if b["name"] == home)
    assert (one["state"], one["reason"]) == ("draining", "it is no longer wanted, and goes when it is empty")
    refused = await post(router, f"/api/backends/{home}/undrain")
    assert (refused.status_code, home in refused.json()["detail"]) == (409, True)
    leaves.script = long
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m", "stream": True}, {"x-session-id": "s"})
        assert (await client.head())[0] == 200
        await client.chunk()
        assert (await remove(router, home, "?now"))["state"] == "removed"
        assert home not in names(router)
        assert not await metrics(router, f'warmroute_backend_up{{backend="{home}"}}')
        moved = (await homes(router, ["s"]))["s"]
        assert (moved[0] != home, moved[1]) == (True, "pin_lost")
        go_on.set()
        body = b""
        while part := await client.chunk():
            body += part
        assert body.endswith(b"[DONE]\n\n")


async def test_one_that_is_empty_goes_by_itself(router: Router, backends: list[Scripted]) -> None:
    empty = backends[0].name
    assert (await remove(router, empty))["sessions"] == 0
    await until(lambda: names(router) == {b.name for b in backends[1:]})
    found = await state(router)
    assert (found["discovery"]["removed_by_hand"], found["ready"]) == ([empty], True)
    assert [e["why"] for e in reversed(router._kept.events.newest()) if e["kind"] == "backends"] == [
        f"leaving: {empty}",
        f"removed: {empty}",
    ]


async def test_what_was_counted_of_one_that_is_gone_goes_too(
    router: Router, backends: list[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "_KEPT_FOR", 0.0)
    for backend in backends:
        backend.script = counted
    await homes(router, [f"s{i}" for i in range(12)])

    async def lines() -> list[str]:
        async with httpx.AsyncClient(base_url=router.admin_url) as http:
            return (await http.get("/metrics")).text.splitlines()

    gone = backends[0].name
    before = await lines()
    assert any(line.startswith("warmroute_prompt_tokens_total") and gone in line for line in before)
    await remove(router, gone, "?now")
    async with asyncio.timeout(15):
        while any(gone in line for line in await lines()):
            await asyncio.sleep(0.1)
    assert gone not in router._pools
    assert router._kept.members.hidden
    assert (await state(router))["fleet"]["requests"] == 12


async def counted(talk: Talk) -> None:
    talk.json({"choices": [{"message": {"content": "hello"}}], "usage": {"prompt_tokens": 80, "completion_tokens": 1}})


async def test_the_deadline_of_drains_ends_the_waiting(backends: list[Scripted], start_router: StartRouter) -> None:
    router = await start_router(backends, drain={"deadline": "1.2s"})
    home = (await homes(router, ["s"]))["s"][0]
    await remove(router, home)
    assert await homes(router, ["s"]) == {"s": (home, "pin_hit")}
    await until(lambda: home not in names(router))
    assert (await homes(router, ["s"]))["s"][1] == "pin_lost"


async def test_one_that_has_died_is_not_waited_for(router: Router, backends: list[Scripted]) -> None:
    home = (await homes(router, ["s"]))["s"][0]
    await remove(router, home)
    await next(b for b in backends if b.name == home).stop()
    await until(lambda: home not in names(router))
    assert (await homes(router, ["s"]))["s"][1] == "pin_lost"


async def test_one_that_comes_back_in_time_has_its_sessions_still(router: Router, backends: list[Scripted]) -> None:
    home = (await homes(router, ["s"]))["s"][0]
    url = next(b for b in backends if b.name == home).url
    await remove(router, home)
    told = await add(router, url=url)
    assert (told["state"], told["sessions"], told["sources"]) == ("up", 1, ["config"])
    assert await homes(router, ["s"]) == {"s": (home, "pin_hit")}
    assert (await state(router))["discovery"]["removed_by_hand"] == []


async def test_a_drain_of_an_operators_outlives_that_of_a_removal(router: Router, backends: list[Scripted]) -> None:
    home = (await homes(router, ["s"]))["s"][0]
    url = next(b for b in backends if b.name == home).url
    await post(router, f"/api/backends/{home}/drain", deadline=500)
    await remove(router, home)
    left = router.registry.backends[home].drain.left(router._clock())
    assert left is not None
    assert left < 501
    await add(router, url=url)
    assert router.registry.backends[home].state == "draining"
    await post(router, f"/api/backends/{home}/undrain")
    assert router.registry.backends[home].state == "up"


async def test_scaling_out_and_in_under_load_loses_no_request(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    for backend in backends:
        backend.script = stream
    a, b, c = backends
    router = await start_router([a, b], drain={"deadline": "1.5s"})
    async with talking(router.data_url, clients=24) as said:
        at = dict(said.at)
        await add(router, url=c.url)
        await until(lambda: ready(router, c))
        await said.again()
        assert said.at == at
        assert set(said.decisions) <= {"ring", "ring_spill", "pin_hit"}
        await remove(router, a.name)
        await until(lambda: a.name not in names(router))
        await said.again()
        await add(router, url=a.url)
        await until(lambda: ready(router, a))
        await remove(router, c.name, "?now")
        await said.again()
        assert set(said.at.values()) == {a.name, b.name}
    assert said.failures == []
    assert set(said.decisions) <= {"ring", "ring_spill", "pin_hit", "pin_lost"}
    assert router.counters.internal_errors == {}


@pytest.mark.parametrize(
    ("wish", "status", "told"),
    [
        ({"url": "ftp://x"}, 400, "is not the URL of a server"),
        ({"url": "http://x:1", "weight": 50}, 400, "weight: Input should be less than or equal to 10"),
        ({"url": "http://x:1", "name": "a\nb"}, 400, "is not a name"),
        ({"url": "http://x:1", "key": "k"}, 422, "key: Extra inputs are not permitted"),
        ({"name": "x"}, 422, "url: Field required"),
        ({"url": "http://127.0.0.1:{port}"}, 409, "is there already"),
        ({"url": "http://x:1", "name": "127.0.0.1:{port}"}, 409, "another backend is named"),
    ],
)
async def test_what_cannot_be_added(
    router: Router, backends: list[Scripted], wish: dict[str, object], status: int, told: str
) -> None:
    port = str(backends[0].port)
    filled = {k: v.replace("{port}", port) if isinstance(v, str) else v for k, v in wish.items()}
    answered = await post(router, "/api/backends", **filled)
    assert (answered.status_code, told in answered.json()["detail"]) == (status, True), answered.text
    assert names(router) == {b.name for b in backends}


async def test_what_cannot_be_removed(router: Router, backends: list[Scripted]) -> None:
    answered = await post(router, "/api/backends/nobody/remove")
    assert (answered.status_code, "no backend is named 'nobody'" in answered.json()["detail"]) == (404, True)
    for backend in backends[1:]:
        await remove(router, backend.name, "?now")
    answered = await post(router, f"/api/backends/{backends[0].name}/remove")
    assert (answered.status_code, "is the last backend" in answered.json()["detail"]) == (409, True)
    assert names(router) == {backends[0].name}


async def test_a_reload_keeps_what_was_done_by_hand_and_says_so(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = backends
    file = tmp_path / "router.yaml"
    write(file, urls(a, b))
    read = partial(load, file, environment={})
    router = await stack.enter_async_context(Router(read(), read=read))
    await add(router, url=c.url, name="more")
    await remove(router, a.name, "?now")
    write(file, urls(a, b), upstream={"key": "secret"})
    with caplog.at_level(logging.INFO, "warmroute"):
        told = {word: found for word, found in (await post(router, "/api/reload")).json().items() if found}
    assert told == {"by_hand": ["more"], "removed_by_hand": [a.name]}
    assert f"by hand: more; removed by hand: {a.name}" in caplog.text
    assert names(router) == {b.name, "more"}
    assert {backend.spec.key for backend in router.registry.backends.values()} == {"secret"}


async def test_the_commands_add_and_remove(backends: list[Scripted]) -> None:
    a, b, _ = backends

    async def run(*words: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        out = (await process.communicate())[0].decode()
        assert process.returncode == code, out
        return out

    with serving(a.url) as router:
        await until_ready(router.admin)
        admin = ("--admin", router.admin)
        told = await run("add", b.url, "--name", "b", "--weight", "0.5", *admin)
        assert told == "b is starting, and used until it is removed or the router ends\n"
        await until_ready(router.admin, up=2)
        assert "is there already" in await run("add", b.url, *admin, code=1)
        assert "being emptied, 0 sessions are left" in await run("remove", "b", *admin)
        assert "no backend is named 'x'" in await run("remove", "x", *admin, code=1)
        assert '"sources": [' in await run("add", b.url, "--json", *admin)
        assert (await run("remove", b.name, "--now", *admin)) == f"{b.name} is gone, 0 sessions move\n"


# A watched file


def discovered(found: dict[str, Any], source: str) -> dict[str, Any]:
    one: dict[str, Any] = next(s for s in found["discovery"]["sources"] if s["source"] == source)
    return one


def swap(file: Path, content: str) -> None:
    """Another file of this name, whole at once, as deployments do it."""
    other = file.with_suffix(".new")
    other.write_text(content)
    other.replace(file)


async def with_file(stack: AsyncExitStack, file: Path, configured: list[str], **sections: Any) -> Router:
    discovery = {"file": {"path": str(file), "interval": 0.1}}
    config = Config.model_validate({**FAST, **sections, "discovery": discovery, "backends": configured})
    return await stack.enter_async_context(Router(config))


async def test_a_file_adds_removes_breaks_and_heals(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = backends
    file = tmp_path / "backends.json"
    file.write_text(json.dumps(urls(a)))
    router = await with_file(stack, file, [])
    assert names(router) == {a.name}  # from the first request on
    await until(lambda: ready(router, a))
    before = await homes(router, ["s"])
    swap(
        file,
        json.dumps([{"targets": [x.name for x in (a, b)], "labels": {"job": "vllm"}}, {"url": c.url, "name": "c"}]),
    )
    await until(lambda: names(router) == {a.name, b.name, "c"} and ready(router, a, b))
    assert await homes(router, ["s"]) == {"s": (before["s"][0], "pin_hit")}
    assert (await state(router))["backends"][0]["sources"] == ["file"]

    with file.open("w") as edited:  # in place, and not to its end
        edited.write('["http://')
    source = router._kept.members.sources[0]
    await until(lambda: source.failures == 1)
    checks = len(a.requests)
    await until(lambda: len(a.requests) > checks + 6)
    found = await state(router)
    assert discovered(found, "file") | {"age_s": 0} == {
        "source": "file",
        "up": False,
        "error": f"{file}: line 1: neither YAML nor JSON: found unexpected end of stream",
        "failures": 1,
        "backends": [a.url, b.url, c.url],
        "age_s": 0,
    }
    assert caplog.text.count("neither YAML nor JSON") == 1
    assert names(router) == {a.name, b.name, "c"}
    assert any("discovery.file does not work" in advice["text"] for advice in found["advice"])
    assert await metrics(router, "warmroute_discovery_up") == {'{source="file"}': 0.0}

    swap(file, f"- {c.url}\n- {a.url}\n")
    await until(lambda: names(router) == {a.name, c.name})
    assert await metrics(router, "warmroute_discovery_up") == {'{source="file"}': 1.0}
    assert await metrics(router, "warmroute_discovery_failures_total") == {'{source="file"}': 1.0}
    assert await homes(router, ["s"]) == {"s": (a.name, "pin_hit")}
    file.unlink()
    await until(lambda: source.failures == 2)
    assert "No such file" in source.error
    assert names(router) == {a.name, c.name}


async def test_a_file_may_say_that_there_is_none(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path
) -> None:
    file = tmp_path / "backends.yaml"
    router = await with_file(stack, file, [])
    assert names(router) == set()
    async with httpx.AsyncClient() as http:
        answered = await http.post(f"{router.data_url}/v1/chat/completions", json={"model": "m", "messages": []})
        unready = await http.get(f"{router.data_url}/readyz")
    assert (answered.status_code, answered.json()["error"]["code"]) == (503, "no_backend_available")
    assert "discovery names none" in answered.json()["error"]["message"]
    assert (unready.status_code, "discovery names none" in unready.text) == (503, True)
    file.write_text(f"[{backends[0].url}]")
    await until(lambda: ready(router, backends[0]))
    assert (await homes(router, ["s"]))["s"][0] == backends[0].name
    file.write_text("[]")
    await until(lambda: router.registry.backends[backends[0].name].state == "draining")
    assert (await homes(router, ["s"]))["s"] == (backends[0].name, "pin_hit")  # its session stays
    await remove_now(router, backends[0])


async def remove_now(router: Router, backend: Scripted) -> None:
    assert (await remove(router, backend.name, "?now"))["state"] == "removed"
    assert backend.name not in names(router)


async def test_what_two_sources_name_stays_as_long_as_one_does(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path
) -> None:
    a, b, c = backends
    file = tmp_path / "backends.yaml"
    file.write_text(f"[{b.url}, {c.url}]")
    router = await with_file(stack, file, urls(a, b))
    await until(lambda: ready(router, a, b, c))
    found = await state(router)
    assert {one["name"]: one["sources"] for one in found["backends"]} == {
        a.name: ["config"],
        b.name: ["config", "file"],
        c.name: ["file"],
    }
    before = await homes(router, [f"s{i}" for i in range(6)])
    file.write_text("[]")
    await until(lambda: router.registry.backends[c.name].state == "draining")
    assert router.registry.backends[b.name].state == "up"
    await add(router, url=c.url)
    assert await homes(router, list(before)) == {s: (home, "pin_hit") for s, (home, _) in before.items()}


async def test_a_name_that_moves_to_another_address_keeps_its_conversations(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path
) -> None:
    a, b, _ = backends
    file = tmp_path / "backends.yaml"
    file.write_text(f"[{{url: '{a.url}', name: one}}]")
    router = await with_file(stack, file, [])
    await homes(router, ["s"])
    file.write_text(f"[{{url: '{b.url}', name: one}}]")
    await until(lambda: router.registry.backends["one"].spec.url == b.url)
    assert await homes(router, ["s"]) == {"s": ("one", "pin_hit")}
    assert len(b.posts) == 1


async def test_a_file_that_changes_under_load_loses_no_request(
    stack: AsyncExitStack, backends: list[Scripted], tmp_path: Path
) -> None:
    for backend in backends:
        backend.script = stream
    a, b, c = backends
    file = tmp_path / "backends.yaml"
    file.write_text(json.dumps(urls(a, b)))
    router = await with_file(stack, file, [], drain={"deadline": 0.5})
    await until(lambda: ready(router, a, b))
    async with talking(router.data_url, clients=20) as said:
        for wanted in ((b, c), (a, c), (a, b), (a, b, c), (c,)):
            swap(file, json.dumps(urls(*wanted)))
            there = {x.name for x in wanted}
            await until(lambda there=there: names(router) == there)  # type: ignore[misc]
            await said.again()
            assert set(said.at.values()) <= there
    assert said.failures == []
    assert router.counters.internal_errors == {}


# The DNS


async def test_a_name_adds_removes_breaks_and_heals(stack: AsyncExitStack, backends: list[Scripted]) -> None:
    served = await stack.enter_async_context(nameserver())
    first = await stack.enter_async_context(Scripted())
    others = [await stack.enter_async_context(Scripted(port=first.port, host=f"127.0.0.{n}")) for n in (2, 3)]
    served.zone["vllm.test", "A"] = ["127.0.0.1", "127.0.0.2"]
    served.zone["_vllm._tcp.test", "SRV"] = [f"0 0 {backends[0].port} gpu.test."]
    served.zone["gpu.test", "A"] = ["127.0.0.1"]
    dns = {
        "names": [f"vllm.test:{first.port}", "_vllm._tcp.test"],
        "interval": 0.1,
        "server": f"127.0.0.1:{served.port}",
    }
    router = await stack.enter_async_context(Router(Config.model_validate({**FAST, "discovery": {"dns": dns}})))
    gpu = f"gpu.test:{backends[0].port}"
    assert names(router) == {first.name, others[0].name, gpu}
    await until(lambda: ready(router, first, others[0]) and bool(router.registry.backends[gpu].health.up))
    before = await homes(router, [f"s{i}" for i in range(9)])
    assert {home for home, _ in before.values()} == {first.name, others[0].name, gpu}

    served.zone["vllm.test", "A"] = ["127.0.0.3", "127.0.0.1", "127.0.0.2"]
    await until(lambda: ready(router, others[1]))
    assert await homes(router, list(before)) == {s: (home, "pin_hit") for s, (home, _) in before.items()}

    served.zone = {}
    source = router._kept.members.sources[0]
    await until(lambda: source.failures >= 2)
    assert names(router) == {first.name, *(o.name for o in others), gpu}
    assert discovered(await state(router), "dns")["error"] == "vllm.test does not exist; _vllm._tcp.test does not exist"

    served.zone["vllm.test", "A"] = ["127.0.0.2"]
    served.zone["_vllm._tcp.test", "SRV"] = [f"0 0 {backends[1].port} gpu.test."]
    served.zone["gpu.test", "A"] = ["127.0.0.1"]
    await until(lambda: source.up and names(router) >= {others[0].name, f"gpu.test:{backends[1].port}"})
    known = router.registry.backends
    await until(lambda: others[1].name not in names(router))  # it had no session
    assert {known[name].state for name in (first.name, gpu)} == {"draining"}
    assert await homes(router, list(before)) == {s: (home, "pin_hit") for s, (home, _) in before.items()}


def test_lookups_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.model_validate({"discovery": {"dns": {"names": ["vllm:8000"]}}})
    require_extras(config)
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"discovery\.dns\.names needs a package .* pip install 'warmroute\[dns\]'"):
        require_extras(config)


# Servers that sleep


def sleep_state(*awake: int, level: int = 1) -> str:
    """What vLLM tells of it, for one engine or several."""
    lines = ["# TYPE vllm:engine_sleep_state gauge"]
    for engine, is_awake in enumerate(awake):
        told = {"awake": is_awake, "weights_offloaded": not is_awake and level == 1, "discard_all": level == 2}
        for word, value in told.items():
            labels = f'engine="{engine}",model_name="m",sleep_state="{word}"'
            lines.append(f"vllm:engine_sleep_state{{{labels}}} {float(value)}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("asleep", [(0,), (1, 0)])
async def test_a_server_that_sleeps_is_out_of_rotation_and_back_when_it_is_awake(
    router: Router, backends: list[Scripted], asleep: tuple[int, ...]
) -> None:
    before = await homes(router, [f"s{i}" for i in range(9)])
    sleeper = backends[0]
    known = router.registry.backends[sleeper.name]
    sleeper.metrics = sleep_state(*asleep)
    await until(lambda: known.state == "sleeping")
    assert known.processes == 2  # its cache is a new one
    served = len(sleeper.posts)
    after = await homes(router, list(before))
    assert {decision for s, (_, decision) in after.items() if before[s][0] == sleeper.name} == {"pin_lost"}
    assert {decision for s, (_, decision) in after.items() if before[s][0] != sleeper.name} == {"pin_hit"}
    assert len(sleeper.posts) == served
    found = await state(router)
    one = next(b for b in found["backends"] if b["name"] == sleeper.name)
    assert (one["state"], one["reason"], one["failures"]) == (
        "sleeping",
        "it is in sleep mode, and used again when it is awake",
        0,
    )
    assert await metrics(router, "warmroute_backend_sleeping") == {
        f'{{backend="{b.name}"}}': float(b is sleeper) for b in backends
    }
    sleeper.metrics = sleep_state(*(1 for _ in asleep))
    await until(lambda: known.state == "up")
    assert await homes(router, list(after)) == {s: (home, "pin_hit") for s, (home, _) in after.items()}
    assert sleeper.name in {home for home, _ in (await homes(router, [f"n{i}" for i in range(6)])).values()}
    assert (known.failures, known.outlier.failures) == (0, 0)


async def test_when_all_sleep_requests_are_told_so(router: Router, backends: list[Scripted]) -> None:
    for backend in backends:
        backend.metrics = sleep_state(0, level=2)
    await until(lambda: {b.state for b in router.registry.backends.values()} == {"sleeping"})
    async with await RawClient.connect(router.data_url) as client:
        refused = await client.chat("s")
        assert (refused.status, b"is sleeping (it is in sleep mode" in refused.body) == (503, True)
    assert (await state(router))["ready"] is False
    backends[1].metrics = ""  # another version, which does not say
    await until(lambda: router.registry.backends[backends[1].name].state == "up")


async def test_what_was_sent_to_one_that_falls_asleep_goes_on_elsewhere(
    router: Router, backends: list[Scripted]
) -> None:
    async def never(talk: Talk) -> None:
        await talk.peer_closed(30)

    home = (await homes(router, ["s"]))["s"][0]
    sleeper = next(b for b in backends if b.name == home)
    sleeper.script = never
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m", "messages": []}, {"x-session-id": "s"})
        await until(lambda: router.registry.backends[home].in_flight == 1)
        sleeper.metrics = sleep_state(0)
        async with asyncio.timeout(10):
            reply = await client.reply()
        assert (reply.status, reply.header("x-warmroute-backend") != home) == (200, True)
    state_of = router.registry.backends[home]
    assert (state_of.state, state_of.failures, state_of.in_flight) == ("sleeping", 0, 0)
    assert router.counters.retries == {"asleep": 1}


async def test_a_broadcast_of_sleep_is_known_when_it_is_answered(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, metrics={"scrape_interval": 60, "scrape_timeout": 5})
    for backend in backends:

        async def slept(talk: Talk, backend: Scripted = backend) -> None:
            backend.metrics = sleep_state(int(talk.seen.path.startswith("/wake_up")))
            talk.json({"status": "done"})

        backend.script = slept
    one = backends[0].name
    await post(router, f"/api/broadcast/sleep?level=1&backend={one}")
    assert [b.state for b in router.registry.backends.values()] == ["sleeping", "up", "up"]
    await post(router, f"/api/broadcast/wake_up?backend={one}")
    assert router.registry.backends[one].state == "up"


async def test_one_that_died_asleep_is_awake_when_it_is_back(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends)
    sleeper, known = backends[0], router.registry.backends[backends[0].name]
    sleeper.metrics = sleep_state(0)
    await until(lambda: known.state == "sleeping")
    await sleeper.stop()
    await until(lambda: known.state == "down")
    assert not known.asleep
    sleeper.metrics_script = lambda talk: talk.drain()  # it tells nothing any more
    await sleeper.start()
    await until(lambda: known.state == "up")


async def test_who_waits_for_a_full_backend_goes_to_one_that_comes(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    a, b, _ = backends
    held = asyncio.Event()

    async def slow(talk: Talk) -> None:
        await held.wait()
        await answer(talk)

    a.script = slow
    router = await start_router([a], queue={"in_flight": 1, "timeout": "30s"})
    async with await RawClient.connect(router.data_url) as one, await RawClient.connect(router.data_url) as two:
        for number, client in enumerate((one, two)):
            client.post({"model": "m", "messages": []}, {"x-session-id": f"s{number}"})
            await until(lambda: router.registry.backends[a.name].in_flight == 1)
        await until(lambda: router._kept.queue.waiting == 1)
        await add(router, url=b.url)
        async with asyncio.timeout(10):
            reply = await two.reply()
        assert (reply.status, reply.header("x-warmroute-backend")) == (200, b.name)
        held.set()
        assert (await one.reply()).status == 200
