"""Tenants on the wire: nobody touches what is another's, nobody uses more than it may, and salts keep caches apart."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from warmroute.app import Router

from .conftest import StartRouter, until
from .scripted import RawClient, Reply, Scripted, Talk, answer

KEYS = ["nobodys", {"key": "key-a", "tenant": "a"}, {"key": "key-b", "tenant": "b"}]
CHAT = "/v1/chat/completions"


async def start(start_router: StartRouter, backends: list[Scripted], **sections: Any) -> Router:
    return await start_router(backends, listen={"port": 0, "admin_port": 0, "keys": KEYS}, **sections)


async def ask(
    router: Router, key: str, body: dict[str, Any] | None = None, path: str = CHAT, session: str = "s"
) -> Reply:
    headers = {"authorization": f"Bearer {key}", **({"x-session-id": session} if session else {})}
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m", **(body or {"messages": [{"role": "user", "content": "hi"}]})}, headers, path)
        return await client.reply()


async def metrics(router: Router) -> str:
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(f"{router.admin_url}/metrics")).text


async def test_the_same_id_is_another_conversation_for_each_tenant(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start(start_router, backends)
    for key in ("key-a", "key-b", "nobodys"):
        assert (await ask(router, key)).status == 200
    sessions = {record.session for record in router.counters.recent}
    assert len(sessions) == 3 == len(router.pins)
    assert [record.tenant for record in router.counters.recent] == ["default", "b", "a"]


async def test_the_same_history_is_another_conversation_for_each_tenant(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start(start_router, backends)
    first = [{"role": "user", "content": "our secret plan"}]
    reply = await ask(router, "key-a", {"messages": first}, session="")
    said = json.loads(reply.body)["choices"][0]["message"]["content"]
    second = [*first, {"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
    found = {}
    for key in ("key-b", "key-a"):
        await ask(router, key, {"messages": second}, session="")
        found[key] = router.counters.recent[0].decision
    assert found["key-a"] == "pin_hit"
    assert found["key-b"] not in ("pin_hit", "history", "head", "near_parent")


async def test_a_model_name_cannot_lead_into_another_tenants_conversations(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start(start_router, backends)
    await ask(router, "key-b")
    theirs = router.counters.recent[0].session
    for model in ("\0b\0m", "b\0m", "m\0"):
        reply = await ask(router, "key-a", {"model": model, "messages": []})
        assert reply.status == 404
        assert router.counters.recent[0].session != theirs


async def test_a_stored_response_is_its_makers_alone(backends: list[Scripted], start_router: StartRouter) -> None:
    made = "resp_1"

    async def stores(talk: Talk) -> None:
        talk.json({"id": made, "object": "response", "status": "completed", "output": []})

    for backend in backends:
        backend.script = stores
    router = await start(start_router, backends)
    assert (await ask(router, "key-a", {"input": "hi"}, "/v1/responses")).status == 200
    for key, status in (("key-b", 404), ("nobodys", 404), ("key-a", 200)):
        again = {"input": "go on", "previous_response_id": made}
        assert (await ask(router, key, again, "/v1/responses")).status == status
    head = f"GET /v1/responses/{made} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer key-b\r\n\r\n"
    before = sum(len(backend.requests) for backend in backends if any(made in r.line for r in backend.requests))
    async with await RawClient.connect(router.data_url) as client:
        client.send(head.encode())
        assert (await client.reply()).status == 404
    assert sum(len(b.requests) for b in backends if any(made in r.line for r in b.requests)) == before


async def test_what_is_in_flight_is_bounded_for_one_tenant_and_nobody_else(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start(start_router, backends, tenants={"a": {"in_flight": 1}})
    release = asyncio.Event()

    async def waits(talk: Talk) -> None:
        await release.wait()
        await answer(talk)

    for backend in backends:
        backend.script = waits
    async with asyncio.TaskGroup() as group:
        running = group.create_task(ask(router, "key-a"))
        await until(lambda: any(backend.posts for backend in backends))
        refused = await ask(router, "key-a")
        assert (refused.status, refused.header("retry-after")) == (429, "1")
        assert "tenants.a.in_flight" in json.loads(refused.body)["error"]["message"]
        other = group.create_task(ask(router, "key-b"))
        await until(lambda: sum(len(backend.posts) for backend in backends) == 2)
        release.set()
    assert (running.result().status, other.result().status) == (200, 200)
    assert (await ask(router, "key-a")).status == 200  # its place was given back
    page = await metrics(router)
    assert 'warmroute_tenant_requests_total{tenant="a"} 3.0' in page
    assert 'warmroute_tenant_refused_total{tenant="a"} 1.0' in page
    assert 'warmroute_tenant_requests_total{tenant="b"} 1.0' in page
    assert 'warmroute_tenant_refused_total{tenant="b"} 0.0' in page


async def test_a_rate_refuses_before_the_body_is_read(backends: list[Scripted], start_router: StartRouter) -> None:
    router = await start(start_router, backends, tenants={"a": {"rate": 0.01}})
    assert (await ask(router, "key-a")).status == 200
    head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nx-api-key: key-a\r\ncontent-length: 1000000\r\n\r\n"
    async with await RawClient.connect(router.data_url) as client:
        client.send(head.encode())
        reply = await client.reply()
    assert (reply.status, reply.header("retry-after"), reply.header("connection")) == (429, "60", "close")
    assert (await ask(router, "key-b")).status == 200


async def test_bodies_lengths_and_sessions_have_limits_of_their_own(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    limits = {"body": "1KiB", "sessions": 1, "n": 1, "max_tokens": 50}
    router = await start(start_router, backends, tenants={"a": limits})
    long = {"messages": [{"role": "user", "content": "x" * 2000}]}
    hi = {"messages": [{"role": "user", "content": "hi"}]}
    assert (await ask(router, "key-a", long)).status == 413
    assert (await ask(router, "key-b", long)).status == 200
    assert (await ask(router, "key-a", {**hi, "n": 2})).status == 400
    assert (await ask(router, "key-a", {**hi, "max_tokens": 51})).status == 400
    assert (await ask(router, "key-a", hi)).status == 200
    sent = [json.loads(post.body) for backend in backends for post in backend.posts][-1]
    assert any(json.loads(p.body).get("max_tokens") == 50 for b in backends for p in b.posts), sent
    assert (await ask(router, "key-a", hi, session="another")).status == 429
    assert (await ask(router, "key-a", hi)).status == 200


@pytest.mark.parametrize("mode", ["off", "tenant", "session"])
async def test_salts_are_the_routers(mode: str, backends: list[Scripted], start_router: StartRouter) -> None:
    router = await start(start_router, backends, isolation={"cache_salt": mode})
    for key, session in (("key-a", "1"), ("key-a", "2"), ("key-b", "1"), ("key-a", "1")):
        assert (await ask(router, key, session=session)).status == 200
    told: dict[str, list[str | None]] = {}
    for record in reversed(router.counters.recent):
        backend = next(b for b, s in zip(backends, router.registry.backends, strict=True) if s == record.backend)
        told.setdefault(record.tenant, []).append(json.loads(backend.posts.pop(0).body).get("cache_salt"))
    a, b = told["a"], told["b"]
    if mode == "off":
        assert {*a, *b} == {None}
    else:
        assert a[0] == a[2] != b[0]
        assert (a[0] == a[1]) is (mode == "tenant")
    refused = await ask(router, "key-a", {"messages": [], "cache_salt": "mine"})
    assert refused.status == (200 if mode == "off" else 400)


async def test_a_reload_takes_new_limits_and_keeps_what_is_used(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start(start_router, backends, tenants={"a": {"rate": 0.01}})
    assert (await ask(router, "key-a")).status == 200
    assert (await ask(router, "key-a")).status == 429
    wanted = router.config.model_copy(update={"tenants": {}})
    router._read = lambda: wanted
    await router.reload()
    assert (await ask(router, "key-a")).status == 200
