"""Where conversations go, through a whole router: pins, keys, engines, models, drain, the allowlist."""

import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from warmroute.app import Router

from .conftest import StartRouter, until
from .scripted import RawClient, Scripted, Talk, answer, free_port

GOLDEN = Path(__file__).parent.parent / "golden"


async def chats(router: Router, sessions: list[str], **fields: object) -> dict[str, str]:
    """One turn of each session; session -> backend that served it."""
    homes = {}
    async with await RawClient.connect(router.data_url) as client:
        for session in sessions:
            reply = await client.chat(session, **fields)
            assert reply.status == 200
            homes[session] = reply.header("x-warmroute-backend") or ""
    return homes


async def test_every_turn_goes_where_the_first_went(router: Router, backends: list[Scripted]) -> None:
    sessions = [f"s{i}" for i in range(24)]
    first = await chats(router, sessions)
    for _ in range(3):
        assert await chats(router, sessions) == first
    assert sorted(list(first.values()).count(b.name) for b in backends) == [8, 8, 8]


async def test_a_backend_with_a_long_prompt_gets_new_sessions_after_the_others(router: Router) -> None:
    long = (await chats(router, ["long"], padding="x" * 200_000))["long"]
    assert router.registry.backends[long].size == 195
    await chats(router, ["a", "b"])
    for round_ in range(6):
        homes = list((await chats(router, [f"{round_}-{i}" for i in range(3)])).values())
        assert homes[2] == long
        assert len(set(homes)) == 3


async def test_the_body_field_is_a_session_and_the_header_wins(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        by_field = await client.chat(session_id="abc")
        assert by_field.header("x-warmroute-key") == "session_id"
        assert (await client.chat(session_id="abc")).header("x-warmroute-decision") == "pin_hit"
        by_header = await client.chat("abc", session_id="other")
        assert by_header.header("x-warmroute-key") == "x-session-id"
        without = await client.chat()
        assert without.header("x-warmroute-key") is None
        assert without.header("x-warmroute-decision") == "no_session"
        for odd in (17, None, ["a"], "", "   "):
            assert (await client.chat(session_id=odd)).header("x-warmroute-decision") == "no_session"


async def test_the_backend_gets_the_very_bytes_of_the_client(router: Router, backends: list[Scripted]) -> None:
    body = b'{ "model" :"m","messages":[{"role":"user","content":"caf\\u00e9 \xc3\xa9"}],  "x": 1e400 }'
    async with await RawClient.connect(router.data_url) as client:
        client.post(body, {"x-custom": "a", "X-Custom": "b", "x-session-id": "s", "authorization": "Bearer k"})
        assert (await client.reply()).status == 200
    seen = next(b.posts[0] for b in backends if b.posts)
    assert seen.body == body
    assert seen.head.lower().count(b"x-custom:") == 2
    assert seen.header("authorization") == "Bearer k"
    assert seen.header("x-session-id") == "s"


async def test_a_new_backend_and_a_recovered_one_pull_no_live_session(
    stack: AsyncExitStack, backends: list[Scripted], start_router: StartRouter
) -> None:
    late = Scripted(port=free_port())
    router = await start_router([*backends[:2], late], wait=False)
    await until(lambda: not router.registry.backends[late.name].available)
    sessions = [f"s{i}" for i in range(20)]
    before = await chats(router, sessions)
    assert late.name not in before.values()
    await stack.enter_async_context(late)
    await until(lambda: router.registry.backends[late.name].health.up is True)
    assert await chats(router, sessions) == before
    fresh = await chats(router, [f"n{i}" for i in range(10)])
    assert list(fresh.values()).count(late.name) == 10  # all of them: it has none yet


async def test_sessions_of_a_two_engine_server_keep_their_engine(start_router: StartRouter) -> None:
    metrics = (GOLDEN / "metrics-vllm-0.32.0-dp2-fresh.txt").read_text()
    async with Scripted(metrics=metrics) as backend:
        router = await start_router([backend])
        await until(lambda: len(router.registry.backends[backend.name].engines) == 2)
        for _ in range(3):
            await chats(router, [f"s{i}" for i in range(8)])
        ranks: dict[str, set[str]] = {}
        for seen in backend.posts:
            ranks.setdefault(seen.header("x-session-id") or "", set()).add(
                seen.header("x-data-parallel-rank") or "none"
            )
        assert all(len(found) == 1 for found in ranks.values())
        counts = [sum(found == {rank} for found in ranks.values()) for rank in "01"]
        assert counts == [4, 4]
        async with await RawClient.connect(router.data_url) as client:
            client.post({"model": "m"}, {"X-data-parallel-rank": "7", "x-session-id": "s1"})
            await client.reply()
        assert {backend.posts[-1].header("x-data-parallel-rank")} == ranks["s1"]


async def test_models_decide_who_can_serve(backends: list[Scripted], start_router: StartRouter) -> None:
    backends[0].models = ["m", "big/model x"]
    router = await start_router(backends)
    async with await RawClient.connect(router.data_url) as client:
        for i in range(9):
            reply = await client.chat(f"s{i}", model="big/model x")
            assert reply.header("x-warmroute-backend") == backends[0].name
        unknown = await client.chat("s", model="nope")
        assert unknown.status == 404
        assert "big/model x, m" in json.dumps(unknown.json())
        assert unknown.header("x-warmroute-decision") == "unknown_model"
    async with httpx.AsyncClient(base_url=router.data_url) as http:
        listed = (await http.get("/v1/models")).json()
        assert [card["id"] for card in listed["data"]] == ["m", "big/model x"]
        assert listed["data"][0]["max_model_len"] == 8192
        assert (await http.get("/v1/models/big%2Fmodel%20x")).json()["id"] == "big/model x"
        assert (await http.get("/v1/models/nope")).status_code == 404
        assert (await http.head("/v1/models")).status_code == 200


async def test_a_draining_backend_keeps_its_sessions_and_takes_no_new_ones(
    router: Router, backends: list[Scripted]
) -> None:
    before = await chats(router, [f"s{i}" for i in range(9)])
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        assert (await http.get(f"/api/backends/{backends[0].name}/drain")).status_code in (404, 405)
        answered = await http.post(f"/api/backends/{backends[0].name}/drain")
        assert answered.json() == {"backend": backends[0].name, "state": "draining", "sessions": 3}
        assert await chats(router, list(before)) == before
        fresh = await chats(router, [f"n{i}" for i in range(9)])
        assert backends[0].name not in fresh.values()
        assert (await http.post("/api/backends/nobody/drain")).status_code == 404
        await http.post(f"/api/backends/{backends[0].name}/undrain")
    assert backends[0].name in (await chats(router, [f"p{i}" for i in range(9)])).values()


async def test_only_the_model_api_reaches_a_backend(router: Router, backends: list[Scripted]) -> None:
    paths = [
        "/sleep",
        "/metrics",
        "/v1/load_lora_adapter",
        "//v1/chat/completions",
        "/v1/../sleep",
        "/V1/chat/completions",
    ]
    paths += ["/v1/chat/completions/", "/v1/chat%2Fcompletions", "/invocations", "/collective_rpc", "/api/state"]
    async with await RawClient.connect(router.data_url) as client:
        for path in paths:
            client.post({"model": "m"}, path=path)
            reply = await client.reply()
            assert (path, reply.status) == (path, 404)
            assert "error" in reply.json()
        client.send(b"GET /v1/chat/completions HTTP/1.1\r\nhost: x\r\n\r\n")
        wrong = await client.reply()
        assert (wrong.status, wrong.header("allow")) == (405, "POST")
    assert all(not b.posts for b in backends)
    assert all(seen.path in ("/health", "/v1/models", "/metrics") for b in backends for seen in b.requests)


async def test_target_and_method_are_sent_as_they_came(router: Router, backends: list[Scripted]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m"}, {"x-session-id": "q"}, path="/v1/chat/completions?beta=true&q=a%2Bb&q=c%20d&flag")
        assert (await client.reply()).status == 200
        client.post({"model": "m"}, {"x-session-id": "q"}, path="/tokenize")
        assert (await client.reply()).status == 200
    seen = [s for b in backends for s in b.posts]
    assert sorted(s.path for s in seen) == ["/tokenize", "/v1/chat/completions?beta=true&q=a%2Bb&q=c%20d&flag"]


async def test_our_headers_can_be_switched_off(backends: list[Scripted], start_router: StartRouter) -> None:
    router = await start_router(backends, response_headers=False)
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
    assert [name for name, _ in reply.headers if name.startswith("x-warmroute")] == []
    assert reply.header("x-request-id")


async def test_a_safe_request_id_is_kept_and_an_unsafe_one_replaced(router: Router, backends: list[Scripted]) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m"}, {"x-request-id": "mine-1.2_3"})
        assert (await client.reply()).header("x-request-id") == "mine-1.2_3"
        client.post({"model": "m"}, {"x-request-id": 'a"b{c'})
        assert (await client.reply()).header("x-request-id") != 'a"b{c'
    sent = [s.header("x-request-id") for b in backends for s in b.posts]
    assert 'a"b{c' not in sent
    assert "mine-1.2_3" in sent


async def test_an_answer_that_refuses_binds_no_session(router: Router, backends: list[Scripted]) -> None:
    async def refuse(talk: Talk) -> None:
        talk.json({"error": {"message": "context length exceeded"}}, "400 Bad Request")

    for backend in backends:
        backend.script = refuse
    async with await RawClient.connect(router.data_url) as client:
        reply = await client.chat("s")
        assert reply.status == 400
        assert reply.json() == {"error": {"message": "context length exceeded"}}
        assert len(router.pins) == 0
        for backend in backends:
            backend.script = answer
        await client.chat("s")
        assert len(router.pins) == 1
