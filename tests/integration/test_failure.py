"""Backends that fail before and after content, clients that leave, and a fleet that is down."""

import asyncio
import gc
import json
import time
import weakref
from contextlib import AsyncExitStack

import httpx
import pytest

from warmroute.app import Router
from warmroute.config import Config
from warmroute.proxy.in_flight import InFlight

from .conftest import FAST, StartRouter, until, up
from .scripted import RawClient, Script, Scripted, Talk, answer, free_port, role, token


async def home_of(router: Router, session: str) -> str:
    async with await RawClient.connect(router.data_url) as client:
        return (await client.chat(session)).header("x-warmroute-backend") or ""


def by_name(backends: list[Scripted], name: str) -> Scripted:
    return next(b for b in backends if b.name == name)


async def reset_at_once(talk: Talk) -> None:
    talk.reset()


async def close_at_once(talk: Talk) -> None:
    talk.close()


async def reset_after_head(talk: Talk) -> None:
    talk.stream_head()
    await talk.drain()
    talk.reset()


async def reset_after_preamble(talk: Talk) -> None:
    talk.stream_head()
    talk.chunk(b": keep-alive\n\n")
    talk.event(role())
    await talk.drain()
    await asyncio.sleep(0.05)
    talk.reset()


async def garbage(talk: Talk) -> None:
    talk.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


@pytest.mark.parametrize("fault", [reset_at_once, close_at_once, reset_after_head, reset_after_preamble, garbage])
async def test_before_content_the_next_backend_answers(router: Router, backends: list[Scripted], fault: Script) -> None:
    home = by_name(backends, await home_of(router, "s"))
    home.script = fault
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s", stream=True)
        assert (reply.status, reply.header("x-warmroute-decision")) == (200, "pin_lost")
        assert reply.header("x-warmroute-backend") != home.name
        again = await client.chat("s")
        assert again.header("x-warmroute-backend") == reply.header("x-warmroute-backend")
        assert again.header("x-warmroute-decision") == "pin_hit"
    assert router.counters.moves == {"pin_lost": 1}
    assert sum(count for reason, count in router.counters.retries.items() if reason != "stale") == 1


async def test_a_backend_that_is_gone_is_marked_for_everybody_and_its_sessions_move_once(
    router: Router, backends: list[Scripted]
) -> None:
    sessions = [f"s{i}" for i in range(15)]
    homes = {s: await home_of(router, s) for s in sessions}
    dead = backends[0]
    await dead.stop()
    async with await RawClient.connect(router.data_url) as client:
        after: dict[str, set[str | None]] = {}
        for session in sessions * 3:
            reply = await client.chat(session)
            assert reply.status == 200
            after.setdefault(session, set()).add(reply.header("x-warmroute-backend"))
    for session in sessions:
        assert len(after[session]) == 1
        assert (homes[session] in after[session]) == (homes[session] != dead.name)
    assert router.counters.moves == {"pin_lost": 5}
    assert (
        sum(router.counters.retries.values()) <= 2
    )  # one request found out (or the probe did), not one for each session


async def test_all_down_is_told_at_once_and_recovery_needs_no_restart(router: Router, backends: list[Scripted]) -> None:
    for backend in backends:
        await backend.stop()
    await until(lambda: up(router) == 0)
    async with await RawClient.connect(router.data_url) as client:
        started = time.monotonic()
        reply = await client.chat("s")
        took = time.monotonic() - started
        assert (reply.status, reply.header("retry-after")) == (503, "2")
        assert took < 0.05
        error = reply.json()["error"]
        assert "connection refused" in json.dumps(error)
        assert set(error) == {"message", "type", "code", "param"}  # type: ignore[call-overload]
        client.post({"model": "m"}, path="/v1/messages")
        shaped = (await client.reply()).json()
        assert (shaped["type"], shaped["error"]["type"]) == ("error", "overloaded_error")  # type: ignore[index]
    async with httpx.AsyncClient(base_url=router.data_url) as http:
        assert (await http.get("/livez")).status_code == 200
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert len(ready.json()["reasons"]) == 3
    for backend in backends:
        await backend.start()
    await until(lambda: up(router) == 3)
    async with await RawClient.connect(router.data_url) as client:
        assert (await client.chat("s")).status == 200


async def test_the_request_that_finds_out_that_all_are_down_is_told_so_too(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, health={"interval": 60, "timeout": 1})
    for backend in backends:
        await backend.stop()
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert (reply.status, reply.header("retry-after")) == (503, "2")
    assert up(router) == 0


async def test_it_starts_with_no_backend_up(start_router: StartRouter, stack: AsyncExitStack) -> None:
    backend = Scripted(port=free_port())
    router = await start_router([backend], wait=False)
    async with httpx.AsyncClient(base_url=router.data_url) as http:
        await until(lambda: router.registry.backends[backend.name].health.up is False)
        reasons = (await http.get("/readyz")).json()["reasons"]
        assert reasons == [f"{backend.name} is down (connection refused)"]
        await stack.enter_async_context(backend)
        await until(lambda: up(router) == 1)
        assert (await http.get("/readyz")).status_code == 200


async def test_after_content_a_stream_ends_with_an_error_and_no_done(router: Router, backends: list[Scripted]) -> None:
    async def half(talk: Talk) -> None:
        talk.stream_head()
        talk.event(role())
        talk.event(token("one"))
        talk.chunk(b'data: {"i":')
        await talk.drain()
        await asyncio.sleep(0.05)
        talk.reset()

    for backend in backends:
        backend.script = half
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s", stream=True)
    assert reply.status == 200
    events = reply.body.split(b"\n\n")
    assert events[2] == b'data: {"i":'
    error = json.loads(events[3].removeprefix(b"data: "))
    assert error["error"]["code"] == "backend_failed"
    assert b"[DONE]" not in reply.body
    assert sum(len(b.posts) for b in backends) == 1


async def test_a_cut_body_is_cut_for_the_client_too(router: Router, backends: list[Scripted]) -> None:
    async def half(talk: Talk) -> None:
        talk.send(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"half":')
        await talk.drain()
        await asyncio.sleep(0.05)
        talk.reset()

    for backend in backends:
        backend.script = half
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert (reply.status, reply.whole, reply.body) == (200, False, b'{"half":')
    assert sum(len(b.posts) for b in backends) == 1


async def test_a_request_that_breaks_two_backends_is_not_given_to_a_third(
    router: Router, backends: list[Scripted]
) -> None:
    for backend in backends:
        backend.script = reset_at_once
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("poison")
        assert (reply.status, reply.header("retry-after")) == (502, "1")
        assert sum(len(b.posts) for b in backends) == 2
        assert len(router.pins) == 0
        for backend in backends:
            backend.script = answer
        assert (await client.chat("fine")).status == 200  # neither connection nor backends are poisoned


async def test_a_stale_connection_costs_nothing(router: Router, backends: list[Scripted]) -> None:
    async def once_a_connection(talk: Talk) -> None:
        if talk.seen.place == 0:
            await answer(talk)
        else:
            talk.reset()

    for backend in backends:
        backend.script = once_a_connection
    async with await RawClient.connect(router.data_url) as client:
        replies = [await client.chat("s") for _ in range(10)]
    assert [r.status for r in replies] == [200] * 10
    assert len({r.header("x-warmroute-backend") for r in replies}) == 1
    assert router.counters.moves == {}
    assert set(router.counters.retries) == {"stale"}
    assert all(b.failures == 0 for b in router.registry.backends.values())


async def silence(talk: Talk) -> None:
    talk.seen.body = b"left" if await talk.peer_closed(within=2.0) else b"stayed"


async def silence_after_head(talk: Talk) -> None:
    talk.stream_head()
    await silence(talk)


async def silence_after_content(talk: Talk) -> None:
    talk.stream_head()
    talk.event(role())
    talk.event(token("one"))
    await silence(talk)


async def slow_stream(talk: Talk) -> None:
    talk.stream_head()
    closed = asyncio.ensure_future(talk.peer_closed(within=3.0))
    for i in range(60):
        if closed.done():
            break
        talk.event(token(str(i)))
        await asyncio.sleep(0.05)
    talk.seen.body = b"left" if await closed else b"stayed"


@pytest.mark.parametrize("script", [silence, silence_after_head, silence_after_content, slow_stream])
async def test_when_the_client_leaves_the_backend_is_told_at_once(
    router: Router, backends: list[Scripted], script: Script
) -> None:
    for backend in backends:
        backend.script = script
    client = await RawClient.connect(router.data_url)
    client.post({"model": "m", "stream": script is not silence}, {"x-session-id": "s"})
    await until(lambda: any(b.posts for b in backends))
    await asyncio.sleep(0.2)
    client.writer.transport.abort()
    seen = next(b.posts[0] for b in backends if b.posts)
    await until(lambda: seen.body in (b"left", b"stayed"), within=4.0)
    assert seen.body == b"left"
    await until(lambda: router.counters.total == 1)
    assert all(b.in_flight == 0 for b in router.registry.backends.values())
    assert all(b.failures == 0 for b in router.registry.backends.values())
    assert router.counters.client_aborts == 1
    for backend in backends:
        backend.script = answer
    async with await RawClient.connect(router.data_url) as other:
        assert (await other.chat("s")).status == 200


async def test_a_client_that_stops_reading_stops_the_backend(router: Router, backends: list[Scripted]) -> None:
    pushed = 0
    size, total = 64 * 1024, 64 * 1024 * 1024

    async def flood(talk: Talk) -> None:
        nonlocal pushed
        talk.stream_head()
        event = b"data: " + b"x" * (size - 8) + b"\n\n"
        while pushed < total:
            talk.chunk(event)
            await talk.drain()
            pushed += size
        talk.end()

    for backend in backends:
        backend.script = flood
    async with await RawClient.connect(router.data_url, receive_buffer=4096) as slow:
        slow.post({"model": "m", "stream": True})
        await slow.head()
        await asyncio.sleep(0.5)
        stopped = pushed
        await asyncio.sleep(0.5)
        assert pushed == stopped  # nothing moves any more
        held = sum(c.waiting_bytes for pool in router._pools.values() for c in pool.connections)
        assert held <= 1024 * 1024
        assert stopped <= 16 * 1024 * 1024  # the rest lies in the kernel's buffers
        for backend in backends:
            backend.script = answer
        async with await RawClient.connect(router.data_url) as other:
            assert (await other.chat("other")).status == 200
        got = 0
        while part := await slow.chunk():
            got += len(part)
        assert got == total


async def test_a_slow_first_token_and_a_pause_are_no_failure(router: Router, backends: list[Scripted]) -> None:
    async def slow(talk: Talk) -> None:
        await asyncio.sleep(1.2)
        talk.stream_head()
        talk.event(token("a"))
        await talk.drain()
        await asyncio.sleep(1.2)
        talk.event(b"[DONE]")
        talk.end()

    for backend in backends:
        backend.script = slow
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s", stream=True)
    assert (reply.status, reply.whole) == (200, True)
    assert reply.body.endswith(b"data: [DONE]\n\n")
    assert router.counters.retries == {}


async def test_one_slow_health_check_delays_no_other(backends: list[Scripted], start_router: StartRouter) -> None:
    async def hang(talk: Talk) -> None:
        await asyncio.sleep(30)

    router = await start_router(backends)
    backends[0].health = hang
    await until(lambda: router.registry.backends[backends[0].name].health.up is False)
    assert "timed out" in router.registry.backends[backends[0].name].health.reason
    before = [sum(s.path == "/health" for s in b.requests) for b in backends]
    await asyncio.sleep(1.0)
    after = [sum(s.path == "/health" for s in b.requests) for b in backends]
    assert after[1] - before[1] >= 3
    assert after[2] - before[2] >= 3


async def test_a_connection_that_nobody_accepts_is_given_up_in_time(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    import socket

    with socket.socket() as full:  # a full accept queue answers no SYN
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
            fillers.append(filler)
        hole = Scripted(port=full.getsockname()[1])
        router = await start_router([hole, backends[0]], wait=False, health={"interval": 60, "timeout": 50})
        started = time.monotonic()
        async with await RawClient.connect(router.data_url) as client:
            statuses = [(await client.chat(f"s{i}")).status for i in range(4)]
        assert statuses == [200] * 4
        assert time.monotonic() - started < 2.0
        assert router.registry.backends[hole.name].health.up is False
        for filler in fillers:
            filler.close()


# Faults that were found by attack, each with what is right


async def warm_up(router: Router, count: int = 12) -> None:
    """Give every backend a kept-alive connection."""
    async with await RawClient.connect(router.data_url) as client:
        for i in range(count):
            assert (await client.chat(f"w{i}")).status == 200


async def test_a_poison_request_kills_two_backends_at_most_on_reused_connections_too(
    router: Router, backends: list[Scripted]
) -> None:
    await warm_up(router)
    for backend in backends:

        async def die(talk: Talk, backend: Scripted = backend) -> None:
            await backend.stop()

        backend.script = die
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("w1", x="poison")
    assert reply.status == 502
    assert sum(bool(b._server) for b in backends) == 1


async def test_requests_that_break_take_no_backend_from_the_others(router: Router, backends: list[Scripted]) -> None:
    async def picky(talk: Talk) -> None:
        if b"poison" in talk.seen.body:
            talk.reset()
        else:
            await answer(talk)

    for backend in backends:
        backend.script = picky

    async def ask(x: str) -> int:
        async with await RawClient.connect(router.data_url) as client:
            return (await client.chat(None, x=x)).status

    statuses = await asyncio.gather(*(ask("poison" if i % 2 else "good") for i in range(40)))
    assert statuses[::2] == [200] * 20
    assert set(statuses[1::2]) == {502}
    assert up(router) == 3


async def test_a_connection_whose_request_was_not_read_is_not_used_again(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    over = asyncio.Event()

    async def answer_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if head.startswith(b"GET"):
                    body = b'{"data":[{"id":"m"}]}' if b"models" in head else b""
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
                    continue
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}")
                if b"content-length: 2" in head:
                    await over.wait()  # reads no more of this one
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(answer_early, "127.0.0.1", 0)
    backend = Scripted(port=server.sockets[0].getsockname()[1])
    router = await start_router([backend])
    async with await RawClient.connect(router.data_url) as client:
        client.post(b"x" * 20_000_000)
        assert (await asyncio.wait_for(client.reply(), 10)).status == 400
        assert (await asyncio.wait_for(client.chat("s"), 5)).status == 400
    over.set()
    server.close()
    await asyncio.sleep(0.05)


async def test_a_long_work_that_breaks_is_not_taken_for_a_stale_connection(
    router: Router, backends: list[Scripted]
) -> None:
    await warm_up(router)
    before = sum(len(b.posts) for b in backends)

    async def slow_death(talk: Talk) -> None:
        await asyncio.sleep(0.6)
        talk.close()

    for backend in backends:
        backend.script = slow_death
    async with await RawClient.connect(router.data_url) as client:
        assert (await client.chat("w1")).status == 502
    assert sum(len(b.posts) for b in backends) - before == 2  # two backends, once each


async def test_bytes_after_the_end_of_an_answer_reach_nobody(router: Router, backends: list[Scripted]) -> None:
    async def two_answers(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("one"))
        await talk.drain()
        await asyncio.sleep(0.05)
        talk.send(b"0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nEVIL!")

    for backend in backends:
        backend.script = two_answers
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s", stream=True)
        assert (reply.whole, b"EVIL" in reply.body) == (True, False)
        for backend in backends:
            backend.script = answer
        assert (await client.chat("s")).status == 200


async def test_a_hung_health_page_and_an_odd_model_list_stop_nothing(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    async def endless(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while not talk.writer.is_closing():
            talk.chunk(b"x" * 65_536)
            await talk.drain()

    backends[1].health = endless
    backends[2].metrics_script = endless
    router = await start_router(backends, wait=False)
    await until(lambda: router.registry.backends[backends[1].name].health.up is False)
    await until(lambda: "larger than" in (router.registry.backends[backends[2].name].scrape.error or ""))
    assert "larger than" in router.registry.backends[backends[1].name].health.reason
    async with await RawClient.connect(router.data_url) as client:
        assert (await client.chat("s")).status == 200
    assert router.counters.internal_errors == {}


async def test_stopping_ends_what_runs_visibly_and_in_time(start_router: StartRouter, backends: list[Scripted]) -> None:
    async def forever(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("one"))
        await talk.peer_closed(within=20)

    async def never(talk: Talk) -> None:
        await talk.peer_closed(within=20)

    for backend in backends:
        backend.script = forever
    config = Config.model_validate({**FAST, "limits": {"shutdown": 0.5}, "backends": [b.url for b in backends]})
    async with Router(config) as router:
        await until(lambda: up(router) == 3)
        streaming, waiting = await RawClient.connect(router.data_url), await RawClient.connect(router.data_url)
        streaming.post({"model": "m", "stream": True})
        await streaming.head()
        for backend in backends:
            backend.script = never
        waiting.post({"model": "m"})
        await until(lambda: sum(b.in_flight for b in router.registry.backends.values()) == 2)
        started = time.monotonic()
    assert time.monotonic() - started < 3
    body = b""
    while part := await streaming.chunk():
        body += part
    assert b"the router is stopping" in body
    assert b"[DONE]" not in body
    reply = await waiting.reply()
    assert (reply.status, reply.header("retry-after")) == (503, "1")
    assert "the router is stopping" in str(reply.json())
    streaming.writer.close()
    waiting.writer.close()


async def test_what_a_request_held_is_let_go_when_its_client_leaves(
    router: Router, backends: list[Scripted], stack: AsyncExitStack
) -> None:
    """At once, by counting references: bodies of megabytes must not wait for the garbage collector."""
    went: list[weakref.ref[InFlight]] = []
    handler = router._data_app.handler
    serve = handler._serve

    async def watched(x: InFlight) -> None:
        went.append(weakref.ref(x))
        await serve(x)

    handler._serve = watched  # type: ignore[method-assign]

    async def begins(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("one"))
        await talk.drain()
        await talk.peer_closed(within=10)

    for backend in backends:
        backend.script = begins
    gc.collect()
    gc.disable()
    stack.callback(gc.enable)
    for number in range(3):
        async with await RawClient.connect(router.data_url) as client:
            client.post({"model": "m", "stream": True, "messages": []}, {"x-session-id": f"s{number}"})
            await client.head()
            await client.chunk()
    await until(lambda: sum(b.in_flight for b in router.registry.backends.values()) == 0)
    await until(lambda: all(ref() is None for ref in went))
    assert len(went) == 3
