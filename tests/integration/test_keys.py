"""Keys on the wire: who shows none is refused before anything is read or sent, in the shape of each API."""

import json

import pytest

from warmroute.app import Router

from .conftest import StartRouter
from .scripted import RawClient, Reply, Scripted

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings", "/tokenize")


@pytest.fixture
async def router(backends: list[Scripted], start_router: StartRouter) -> Router:
    return await start_router(backends, listen={"port": 0, "admin_port": 0, "keys": ["one"]})


async def sent(router: Router, request: bytes, method: str = "POST") -> Reply:
    async with await RawClient.connect(router.data_url) as client:
        client.send(request)
        return await client.reply(method)


@pytest.mark.parametrize("path", PATHS)
async def test_who_shows_none_is_refused_before_the_body_is_read(
    router: Router, backends: list[Scripted], path: str
) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\nauthorization: Bearer two\r\n\r\n"
    reply = await sent(router, head.encode())
    assert (reply.status, reply.header("www-authenticate")) == (401, "Bearer")
    error = json.loads(reply.body)["error"]
    assert error["type"] == ("authentication_error" if path == "/v1/messages" else "invalid_request_error")
    assert "listen.keys" in error["message"]
    assert all(not backend.posts for backend in backends)


async def test_a_key_opens_every_path_and_goes_no_further(router: Router, backends: list[Scripted]) -> None:
    for name, value in (("authorization", "Bearer one"), ("x-api-key", "one"), ("api-key", "one")):
        for path in PATHS:
            async with await RawClient.connect(router.data_url) as client:
                client.post({"model": "m"}, {name: value}, path)
                assert (await client.reply()).status == 200
    seen = [post for backend in backends for post in backend.posts]
    assert len(seen) == 3 * len(PATHS)
    assert not [post for post in seen if b"one" in post.head]


async def test_probes_and_a_browsers_question_need_none(router: Router, backends: list[Scripted]) -> None:
    for path in ("/livez", "/readyz", "/health"):
        assert (await sent(router, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode(), "GET")).status == 200
    asked = b"OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: x\r\norigin: http://ui.example\r\n\r\n"
    assert (await sent(router, asked, "OPTIONS")).status != 401


async def test_a_refusal_leaves_the_connection_to_the_next_request(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m"})
        assert (await client.reply()).status == 401
        client.post({"model": "m"}, {"authorization": "Bearer one"})
        assert (await client.reply()).status == 200


async def test_backends_are_asked_for_their_lists_with_their_key(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    await start_router(backends, upstream={"connect_timeout": 2.0, "key": "BK"})
    lists = [seen for backend in backends for seen in backend.requests if seen.path == "/v1/models"]
    assert lists
    assert {seen.header("authorization") for seen in lists} == {"Bearer BK"}
