"""What must not be reached from outside, and keys that must not travel."""

import asyncio
import io
import json

import httpx
import pytest

from warmroute.app import Router

from ..integration.scripted import RawClient, Talk
from .backend import FaultyBackend, by_name, everywhere, homes, posts, raw, reset, turn
from .conftest import StartRouter

CONTROL = (
    *("/sleep?level=1", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache"),
    *("/collective_rpc", "/pause", "/resume", "/is_paused", "/abort_requests", "/update_weights", "/get_world_size"),
    *("/init_weight_transfer_engine", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/start_profile", "/stop_profile"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/fault_tolerance/apply", "/server_info", "/invocations"),
    *("/inference/v1/generate", "/metrics", "/load", "/tokenizer_info", "/ping", "/kv_event_sources", "/docs"),
)
OWN = (
    "/api/state",
    "/api/sessions",
    "/api/explain",
    "/api/backends",
    "/api/backends/x/drain",
    "/api/reload",
    "/shutdown",
    "/openapi.json",
)
DISGUISED = (
    *(
        "/SLEEP",
        "//sleep",
        "/sleep/",
        "/./sleep",
        "/v1/../sleep",
        "/v1/%2e%2e/sleep",
        "/v1/chat/completions/../../../sleep",
    ),
    *(
        "/%73leep",
        "/sleep;x",
        "/sleep%00",
        "/v1/models/../../sleep",
        "/v1/models/..%2f..%2fsleep",
        "/v1/responses/../../sleep",
    ),
    *("http://x/sleep", "/v1/chat/completions;/../sleep", "/v1/chat%2fcompletions", "/V1/chat/completions", "*"),
)


class TestAccessControl:
    async def test_no_control_route_reaches_a_backend(self, router: Router, backends: list[FaultyBackend]) -> None:
        quiet = {"/health", "/metrics", "/v1/models"}  # what the router itself asks
        before = router.state()["fleet"]
        for path in (*CONTROL, *OWN, *DISGUISED):
            for method in ("POST", "GET"):
                lines = "X-HTTP-Method-Override: POST\r\nX-Original-URL: /sleep\r\nX-Rewrite-URL: /sleep\r\n"
                head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: 0\r\n\r\n"
                reply = await raw(router.data_url, head.encode(), method)
                assert reply.status in (400, 401, 403, 404, 405), (method, path, reply.status)
        seen = {s.line for b in backends for s in b.begun if s.path not in quiet}
        assert seen == set()
        refusals = router.counters.requests
        assert {(backend, decision) for backend, _, decision in refusals} == {("", "none")}
        assert router.state()["fleet"] == {**before, "requests": refusals.total()}  # type: ignore[dict-item]

    async def test_a_host_that_looks_like_a_path_changes_nothing(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        for host in ("x/v1/chat/completions?", "x/v1/models#", "[::1]:80/sleep", "x\t"):
            reply = await raw(router.data_url, f"POST /sleep HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert reply.status in (400, 404)
        assert posts(backends) == []

    async def test_the_admin_listener_changes_things_by_post_alone(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
            path = f"/api/backends/{backends[0].name}/drain"
            for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
                assert (await http.request(method, path)).status_code in (404, 405)
            assert not router.registry.backends[backends[0].name].draining
            for path in ("/v1/chat/completions", "/sleep"):
                assert (await http.post(path, json={"model": "m"})).status_code in (404, 405)
        assert posts(backends) == []


async def with_key(router: Router, key: str | None, session: str | None = None, **headers: str) -> int:
    async with await RawClient.connect(router.data_url) as client:
        named = {"authorization": f"Bearer {key}"} if key else {}
        client.post({"model": "m", "key": key}, {**named, **headers, **({"x-session-id": session} if session else {})})
        return (await client.reply()).status


class TestCredentials:
    async def test_clients_keys_pass_unchanged_and_never_mix(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async def yield_first(talk: Talk) -> None:
            await asyncio.sleep(0.005)
            talk.json({})

        everywhere(backends, yield_first)
        for _ in range(2):  # the second time on connections that others have used
            await asyncio.gather(
                *(
                    with_key(router, f"k{i % 2}", **{"x-api-key": f"x{i % 2}", "api-key": f"a{i % 2}"})
                    for i in range(50)
                )
            )
        assert len(posts(backends)) == 100
        for seen in posts(backends):
            own = str(json.loads(seen.body)["key"])[1:]
            found = [seen.header(name) for name in ("authorization", "x-api-key", "api-key")]
            assert found == [f"Bearer k{own}", f"x{own}", f"a{own}"]

    async def test_a_key_is_shown_nowhere(
        self,
        backends: list[FaultyBackend],
        start_router: StartRouter,
        access_log: io.StringIO,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level("DEBUG")
        router = await start_router(backends, log={"format": "json"})
        answers = []
        for script in (posts_ok, reset):
            everywhere(backends, script)
            async with await RawClient.connect(router.data_url) as client:
                keys = {"authorization": "Bearer canary", "x-api-key": "canary", "cookie": "k=canary"}
                client.post({"model": "m", "api_key": "canary", "user": "canary"}, {**keys, "x-session-id": "canary"})
                answers.append(await client.reply())
            answers.append(
                await raw(router.data_url, b"GET /nope HTTP/1.1\r\nHost: x\r\nAuthorization: canary\r\n\r\n")
            )
        assert [reply.status for reply in answers] == [200, 404, 502, 404]
        router._access_log.flush()  # type: ignore[union-attr]
        async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
            pages = [
                (await http.get(path)).text for path in ("/metrics", "/api/state", "/api/sessions", "/api/history", "/")
            ]
        shown = [access_log.getvalue(), caplog.text, *pages, *(f"{reply.headers} {reply.body!r}" for reply in answers)]
        assert access_log.getvalue().count("\n") == 4
        assert [text for text in shown if "canary" in text] == []

    async def test_the_routers_key_is_demanded_and_replaced_by_the_backends(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, listen={"keys": ["RK"]}, upstream={"key": "BK"})
        assert [await with_key(router, key) for key in ("RK", "wrong", None)] == [200, 401, 401]
        head = await raw(router.data_url, b"HEAD /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", "HEAD")
        assert head.status == 401
        assert [seen.header("authorization") for seen in posts(backends)] == ["Bearer BK"]

    async def test_the_routers_key_never_leaves_it(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, listen={"keys": ["RK"]})
        assert await with_key(router, "RK") == 200
        assert b"RK" not in posts(backends)[0].head

    async def test_failover_sends_the_other_backends_own_key(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        listed: list[dict[str, object]] = [{"url": b.url, "key": f"key-of-{b.port}"} for b in backends]
        router = await start_router(backends, listed=listed)
        home = by_name(backends, (await homes(router.data_url, ["s"]))["s"])
        home.script = reset
        assert (await turn(router.data_url, "s")).status == 200
        for backend in backends:
            assert {seen.header("authorization") for seen in backend.posts} <= {f"Bearer key-of-{backend.port}"}


async def posts_ok(talk: Talk) -> None:
    talk.json({"choices": []})
