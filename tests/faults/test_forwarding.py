"""What clients say that a backend must not hear: of the person, of the engine's affairs, and in other spellings."""

import json

import pytest

from warmroute.app import Router
from warmroute.core.forward import Rule

from ..integration.scripted import RawClient, Reply
from .backend import FaultyBackend, everywhere, homes, posts, raw, raw_answer
from .conftest import StartRouter

PERSONAL = {
    "X-OpenWebUI-User-Name": "Ada",
    "X-OpenWebUI-User-Email": "ada@example.org",
    "x_openwebui_user_id": "7",
    "X-Litellm-End-User-Id": "ada",
    "X-Forwarded-For": "192.0.2.7",
    "Forwarded": "for=192.0.2.7",
    "X-Auth-Request-Access-Token": "secret",
    "Cookie": "token=of-the-frontend; warmroute_admin=1.2",
}
STEERING = {
    "X-Vllm-Priority": "-9",
    "x_vllm_priority": "-9",
    "X-Data-Parallel-Rank": "1",
    "x_data_parallel_rank": "1",
    "x_session_id": "of-another",
    "x_request_id": "of-another",
    "X-Warmroute-Backend": "mine",
    "X-Original-URL": "/sleep",
    "X-HTTP-Method-Override": "DELETE",
}
HARMLESS = {"X-OpenWebUI-Chat-Id": "c1", "X-Session-ID": "s1", "X-Tag": "kept", "Accept": "x/y"}


async def posted(router: Router, body: object, headers: dict[str, str]) -> Reply:
    async with await RawClient.connect(router.data_url) as client:
        client.post(body, headers)
        return await client.reply()


async def test_neither_person_nor_engine_is_spoken_of(router: Router, backends: list[FaultyBackend]) -> None:
    assert (await posted(router, {"model": "m"}, {**PERSONAL, **STEERING, **HARMLESS})).status == 200
    (seen,) = posts(backends)
    assert [name for name in (*PERSONAL, *STEERING) if seen.header(name.lower()) is not None] == []
    assert [seen.header(name.lower()) for name in HARMLESS] == list(HARMLESS.values())
    assert b"of-another" not in seen.head


async def test_what_is_asked_for_travels_on(backends: list[FaultyBackend], start_router: StartRouter) -> None:
    asked = {
        "pass_headers": ["X-OpenWebUI-User-Name", "X-Forwarded-For"],
        "drop_headers": ["Accept"],
        "session_id": "drop",
    }
    router = await start_router(backends, forward={**asked, "priority": "pass"})
    assert (await posted(router, {"model": "m", "priority": -1}, {**PERSONAL, **STEERING, **HARMLESS})).status == 200
    (seen,) = posts(backends)
    found = [seen.header(name) for name in ("x-openwebui-user-name", "x-forwarded-for", "x-vllm-priority")]
    assert found == ["Ada", "192.0.2.7", "-9"]
    names = ("x-openwebui-user-email", "cookie", "accept", "x-session-id", "x_session_id", "x_vllm_priority")
    assert [name for name in names if seen.header(name) is not None] == []
    assert seen.body == b'{"model": "m", "priority": -1}'


async def test_fields_that_steer_an_engine(router: Router, backends: list[FaultyBackend]) -> None:
    body = b'{"model": "m",  "messages": [{"role":"user", "content":"caf\\u00e9"}], "priority": -5}'
    assert (await posted(router, body, {})).status == 200
    (seen,) = posts(backends)
    assert json.loads(seen.body) == {"model": "m", "messages": [{"role": "user", "content": "café"}]}
    assert b'[{"role":"user", "content":"caf\\u00e9"}]' in seen.body
    hidden = b'{"model":"m","kv_transfer_params":{"remote_host":"192.0.2.1"},"x":NaN}'
    for refused in ({"model": "m", "kv_transfer_params": {"remote_host": "192.0.2.1"}}, hidden):
        reply = await posted(router, refused, {})
        assert (reply.status, reply.json()["error"]["code"]) == (400, "not_for_clients")  # type: ignore[index]
    assert len(posts(backends)) == 1
    assert router.counters.internal_errors == {}


async def test_the_rules_change_at_a_reload(backends: list[FaultyBackend], start_router: StartRouter) -> None:
    router = await start_router(backends)
    wanted = router.config.model_copy(
        update={"forward": router.config.forward.model_copy(update={"priority": Rule.REFUSE})}
    )
    router._read = lambda: wanted
    await router.reload()
    assert (await posted(router, {"model": "m", "priority": 1}, {})).status == 400
    assert (await posted(router, {"model": "m"}, {"X-Vllm-Priority": "1"})).status == 400
    assert (await posted(router, {"model": "m"}, {})).status == 200


CONTROL = [bytes([c]) for c in range(32) if c != 9] + [
    b"\x7f",
    b"\r\n evil: 1",
    b"\r\n\tevil: 1",
    b"\nevil: 1",
    b"\revil: 1",
]


@pytest.mark.parametrize("place", ["value", "name", "target", "query", "host", "method"])
async def test_control_bytes_are_refused_wherever_they_stand(
    router: Router, backends: list[FaultyBackend], place: str
) -> None:
    for mark in CONTROL:
        at = {name: mark if name == place else b"" for name in ("value", "name", "target", "query", "host", "method")}
        line = b"PO%bST /v1/chat/comple%btions?a=b%bc HTTP/1.1\r\n" % (at["method"], at["target"], at["query"])
        head = line + b"Host: x%by\r\nX-T%bag: a%bb\r\nContent-Length: 13\r\n\r\n" % (
            at["host"],
            at["name"],
            at["value"],
        )
        reply = await raw(router.data_url, head + b'{"model":"m"}')
        assert (reply.status, reply.header("connection")) == (400, "close"), mark
    assert posts(backends) == []


async def test_a_backends_control_bytes_reach_no_client(router: Router, backends: list[FaultyBackend]) -> None:
    home = (await homes(router.data_url, ["s"]))["s"]
    for mark in (b"\0", b"\r", b"\x0b", b"\r\n folded"):
        everywhere(backends, raw_answer(b"HTTP/1.1 200 OK\r\nX-Tag: a" + mark + b"b\r\nContent-Length: 2\r\n\r\n{}"))
        async with await RawClient.connect(router.data_url) as client:
            reply = await client.chat("s")
        assert reply.status == 502, (home, mark)
        assert reply.header("x-tag") is None
