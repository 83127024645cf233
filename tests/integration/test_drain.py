"""Emptying a backend: its sessions stay until the deadline, then move; nothing that runs is broken off."""

import asyncio
import json

import httpx
import pytest

from warmroute import control, telling
from warmroute.app import Router
from warmroute.core.drain import Drain

from ..serving import COMMAND, serving, until_ready
from .conftest import StartRouter, until
from .scripted import RawClient, Scripted, Talk, token
from .talking import stream, talking


async def drain(router: Router, name: str, **wish: float) -> dict[str, object]:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        answer = await http.post(f"/api/backends/{name}/drain", json=wish or None)
        assert answer.status_code == 200
        found: dict[str, object] = answer.json()
        return found


async def undrain(router: Router, name: str) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        assert (await http.post(f"/api/backends/{name}/undrain")).json()["state"] == "up"


async def told(admin: str, name: str) -> dict[str, object]:
    """A backend as /api/state shows it."""
    async with httpx.AsyncClient(base_url=admin) as http:
        state = (await http.get("/api/state")).json()
    found: dict[str, object] = next(b for b in state["backends"] if b["name"] == name)
    return found


async def metric(router: Router, line: str) -> list[str]:
    """The values of the series that begin so."""
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        page = (await http.get("/metrics")).text
    return [text.rpartition(" ")[2] for text in page.splitlines() if text.startswith(line)]


def test_time_passes_over_a_drain() -> None:
    drain = Drain()
    assert (drain.tick(1e9), drain.left(1e9), drain.over) == (False, None, False)
    drain.begin(until=10.0)
    assert (drain.tick(9.9), drain.left(4.0), drain.over) == (False, 6.0, False)
    assert (drain.left(11.0), drain.tick(10.0), drain.over) == (0.0, True, True)
    assert (drain.tick(11.0), drain.left(11.0)) == (False, 0.0)
    drain.begin(until=20.0)
    assert (drain.over, drain.tick(19.0)) == (False, False)
    drain.end()
    assert (drain.tick(30.0), drain.left(30.0), drain.over) == (False, None, False)


async def test_the_deadline_is_the_commands_or_the_configurations(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, drain={"deadline": "50s"})
    names = [b.name for b in backends]
    assert (await told(router.admin_url, names[0]))["drain"] is None
    assert await metric(router, "warmroute_backend_drain_seconds_left{") == []
    assert (await drain(router, names[0]))["state"] == "draining"
    await drain(router, names[1], deadline=7.0)
    for name, most in zip(names, (50.0, 7.0), strict=False):
        found = (await told(router.admin_url, name))["drain"]
        assert isinstance(found, dict)
        assert most - 3 < found["seconds_left"] <= most
        assert (found["over"], found["sessions_left"]) == (False, 0)
    assert len(await metric(router, "warmroute_backend_drain_seconds_left{")) == 2
    text = telling.status_text(await asyncio.to_thread(control.call, router.admin_url, "/api/state"))
    assert "draining" in text
    assert "0 sessions left, the rest moves in " in text
    await undrain(router, names[0])
    assert (await told(router.admin_url, names[0]))["drain"] is None


@pytest.mark.parametrize(
    "wish", ['{"deadline": 0}', '{"deadline": -1}', '{"deadline": "soon"}', '{"deadline": 1e999}', "["]
)
async def test_a_wish_that_makes_no_sense_changes_nothing(router: Router, backends: list[Scripted], wish: str) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        headers = {"content-type": "application/json"}
        answer = await http.post(f"/api/backends/{backends[0].name}/drain", content=wish, headers=headers)
    assert answer.status_code == 422
    assert (await told(router.admin_url, backends[0].name))["state"] == "up"


async def test_after_the_deadline_sessions_move_and_running_answers_end(
    router: Router, backends: list[Scripted]
) -> None:
    go_on = asyncio.Event()

    async def long(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("begun"))
        await talk.drain()
        await go_on.wait()
        talk.event(token(" ended"))
        talk.event(b"[DONE]")
        talk.end()

    async with await RawClient.connect(router.data_url) as client, await RawClient.connect(router.data_url) as other:
        home = (await client.chat("s")).header("x-warmroute-backend") or ""
        backend = next(b for b in backends if b.name == home)
        backend.script = long
        other.post({"model": "m", "stream": True}, {"x-session-id": "s"})
        assert (await other.head())[0] == 200
        await other.chunk()
        await drain(router, home, deadline=0.01)
        await until(lambda: router.registry.backends[home].state == "drained")
        found = await told(router.admin_url, home)
        assert (found["drain"], found["in_flight"]) == ({"over": True, "seconds_left": 0.0, "sessions_left": 0}, 1)
        assert await metric(router, f'warmroute_backend_drain_seconds_left{{backend="{home}"') == ["0.0"]
        moved = await client.chat("s")
        assert (moved.status, moved.header("x-warmroute-decision")) == (200, "pin_lost")
        assert moved.header("x-warmroute-backend") != home
        assert (await client.chat("s")).header("x-warmroute-decision") == "pin_hit"
        go_on.set()
        body = b""
        while part := await other.chunk():
            body += part
        assert body.count(b"ended") == 1
        assert body.endswith(b"[DONE]\n\n")
        served = len(backend.posts)
        for i in range(12):
            assert (await client.chat(f"new {i}")).header("x-warmroute-backend") != home
        assert len(backend.posts) == served
        await undrain(router, home)
        backend.script = stream
        assert home in {(await client.chat(f"newer {i}")).header("x-warmroute-backend") for i in range(12)}


async def test_sessions_stay_until_the_deadline(router: Router, backends: list[Scripted]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        home = (await client.chat("s")).header("x-warmroute-backend") or ""
        await drain(router, home, deadline=600)
        for _ in range(3):
            reply = await client.chat("s")
            assert (reply.header("x-warmroute-backend"), reply.header("x-warmroute-decision")) == (home, "pin_hit")
        found = (await told(router.admin_url, home))["drain"]
        assert isinstance(found, dict)
        assert found["sessions_left"] == 1


async def test_all_backends_are_emptied_one_by_one_under_load(router: Router, backends: list[Scripted]) -> None:
    for backend in backends:
        backend.script = stream
    async with talking(router.data_url, clients=20) as said:
        for backend in backends:
            await said.again()
            state = router.registry.backends[backend.name]
            assert state.sessions
            await drain(router, backend.name, deadline=0.2)
            await until(lambda state=state: state.drain.over and not state.sessions and not state.in_flight)  # type: ignore[misc]
            served = len(backend.posts)
            await said.again()
            assert len(backend.posts) == served
            assert backend.name not in said.at.values()
            await undrain(router, backend.name)
    assert said.failures == []
    assert set(said.decisions) <= {"ring", "ring_spill", "pin_hit", "pin_lost"}
    assert router.counters.moves["pin_lost"] >= 20
    assert {b.in_flight for b in router.registry.backends.values()} == {0}


async def test_where_all_are_drained_nothing_is_served_until_one_is_used_again(
    router: Router, backends: list[Scripted]
) -> None:
    for backend in backends:
        await drain(router, backend.name, deadline=0.01)
    await until(lambda: {b.state for b in router.registry.backends.values()} == {"drained"})
    async with await RawClient.connect(router.data_url) as client, httpx.AsyncClient(base_url=router.data_url) as http:
        refused = await client.chat("s")
        assert (refused.status, refused.header("x-warmroute-decision")) == (503, "none_available")
        assert f"{backends[0].name} is drained (its drain is over; undrain it to use it again)" in str(refused.json())
        assert (await http.get("/readyz")).status_code == 503
        await undrain(router, backends[1].name)
        assert (await client.chat("s")).header("x-warmroute-backend") == backends[1].name
        assert (await http.get("/readyz")).status_code == 200


# The command


async def run(*words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()


async def test_the_command_waits_and_tells_what_is_left() -> None:
    held = asyncio.Event()

    async def long(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("begun"))
        await talk.drain()
        await held.wait()
        await stream_end(talk)

    async def stream_end(talk: Talk) -> None:
        talk.event(b"[DONE]")
        talk.end()

    async with Scripted(script=long) as backend:
        with serving(backend.url) as router:
            await until_ready(router.admin)
            async with await RawClient.connect(router.data) as client:
                client.post({"model": "m", "stream": True}, {"x-session-id": "s"})
                await client.head()
                words = ["drain", backend.name, "--admin", router.admin, "--deadline", "500ms", "--wait"]
                process = await asyncio.create_subprocess_exec(*COMMAND, *words, stdout=asyncio.subprocess.PIPE)
                assert process.stdout is not None
                async with asyncio.timeout(30):
                    assert await process.stdout.readline() == b"1 sessions and 1 requests left\n"
                    assert await process.stdout.readline() == b"0 sessions and 1 requests left\n"
                    held.set()
                    assert await process.stdout.read() == f"{backend.name} is drained, with 0 sessions\n".encode()
                    assert await process.wait() == 0
                    while await client.chunk():
                        pass
            assert (await told(router.admin, backend.name))["state"] == "drained"
            again = ["drain", backend.name, "--admin", router.admin, "--deadline", "1ms", "--wait", "--json"]
            code, out, _ = await run(*again)
            assert (code, json.loads(out)) == (0, {"backend": backend.name, "state": "drained", "sessions": 0})
            code, _, error = await run("drain", backend.name, "--admin", router.admin, "--deadline", "soon")
            assert (code, "write it like 500ms, 2s, 30m or 1h" in error) == (2, True)


async def test_waiting_ends_when_somebody_else_ends_the_draining(router: Router, backends: list[Scripted]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        home = (await client.chat("s")).header("x-warmroute-backend") or ""
    await drain(router, home)
    said: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        loop.call_soon_threadsafe(said.put_nowait, text)

    waiting = asyncio.ensure_future(asyncio.to_thread(control.wait_until_empty, router.admin_url, home, say, 0.05))
    async with asyncio.timeout(20):
        assert await said.get() == "1 sessions and 0 requests left"
        await undrain(router, home)
        with pytest.raises(control.ControlError, match="was ended by somebody else"):
            await waiting
