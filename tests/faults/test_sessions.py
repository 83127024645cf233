"""Session ids of every kind, from every place, on every path."""

import io
import json
from typing import Any

from warmroute.app import Router

from ..integration.conftest import until
from ..integration.scripted import RawClient, Reply
from .backend import FaultyBackend, posts, raw
from .conftest import StartRouter

BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def with_lines(lines: bytes, body: bytes = BODY) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + lines
    return head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def in_body(value: str) -> bytes:
    return with_lines(b"X-Nothing: 1", json.dumps({"model": "m", "session_id": value, "messages": []}).encode())


ODD_IDS = {
    "raw bytes": with_lines(b"X-Session-ID: kaffee\xc3\xa9\xff"),
    "two lines": with_lines(b"X-Session-ID: a\r\nX-Session-ID: b"),
    "empty": with_lines(b"X-Session-ID:"),
    "spaces": with_lines(b"X-Session-ID: " + b" " * 300),
    "long": with_lines(b"X-Session-ID: " + b"x" * 10_000),
    "encoded": with_lines(b"X-Session-ID: x%0d%0aX-Evil:1"),
    "tab": with_lines(b"X-Session-ID: a\tb"),
    "bell": with_lines(b"X-Session-ID: a\x07b"),
    "line end in the body": in_body("a\r\nX-Evil: 1"),
    "NUL in the body": in_body("\0"),
    "long in the body": in_body("x" * 10_000),
}


class TestSessionIdHygiene:
    async def test_an_odd_id_pins_or_is_refused_and_leaves_no_trace(
        self, backends: list[FaultyBackend], start_router: StartRouter, access_log: io.StringIO
    ) -> None:
        router = await start_router(backends, log={"format": "json"})
        for what, request in ODD_IDS.items():
            replies = [await raw(router.data_url, request) for _ in range(3)]
            assert {reply.status for reply in replies} in ({200}, {400}), what
            assert all(reply.header("x-evil") is None for reply in replies), what
            if replies[0].header("x-warmroute-key") != "content":
                assert len({reply.header("x-warmroute-backend") for reply in replies}) == 1, what
        assert all(seen.header("x-evil") is None for seen in posts(backends))
        assert router.counters.internal_errors == {}
        await until(lambda: access_log.getvalue().count("\n") == 3 * len(ODD_IDS))
        for line in access_log.getvalue().splitlines():
            assert json.loads(line)["status"] in (200, 400)
            assert line.isprintable()
            assert len(line) < 1000
            assert not [word for word in ("Evil", "kaffee", "xxxx") if word in line]

    async def test_of_two_lines_the_first_counts(self, router: Router) -> None:
        two = await raw(router.data_url, ODD_IDS["two lines"])
        first = await raw(router.data_url, with_lines(b"X-Session-ID: a"))
        second = await raw(router.data_url, with_lines(b"X-Session-ID: b"))
        assert first.header("x-warmroute-decision") == "pin_hit"
        assert first.header("x-warmroute-backend") == two.header("x-warmroute-backend")
        assert second.header("x-warmroute-decision") != "pin_hit"

    async def test_an_id_that_is_empty_is_none(self, router: Router) -> None:
        for what in ("empty", "spaces"):
            assert (await raw(router.data_url, ODD_IDS[what])).header("x-warmroute-key") == "content"
        assert router.counters.refused_keys == {("x-session-id", "empty"): 2}

    async def test_long_ids_that_begin_alike_are_different(self, router: Router) -> None:
        for end in (b"1", b"2"):
            reply = await raw(router.data_url, with_lines(b"X-Session-ID: " + b"x" * 4096 + end))
            assert reply.header("x-warmroute-decision") != "pin_hit"
        assert len(router.pins) == 2


Fields = dict[str, object]

KEEPS_A_CACHE: tuple[tuple[str, Fields], ...] = (
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("/v1/completions", {"prompt": "hi"}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    ("/v1/embeddings", {"input": "hi"}),
    ("/v1/rerank", {"query": "a", "documents": ["b"]}),
    ("/score", {"text_1": "a", "text_2": "b"}),
    ("/pooling", {"input": "hi"}),
)
BESIDE: tuple[tuple[str, Fields], ...] = (("/tokenize", {"prompt": "hi"}), ("/detokenize", {"tokens": [1]}))
"""Compute no prompt, so that no cache matters: the least loaded backend, by rule."""


async def ask(router: Router, path: str, fields: Fields, header: str | None, field: str | None) -> Reply:
    async with await RawClient.connect(router.data_url) as client:
        body = {"model": "m", **fields, **({"session_id": field} if field else {})}
        client.post(body, {"x-session-id": header} if header else {}, path)
        return await client.reply()


class TestSessionKeyExtraction:
    async def test_every_path_of_an_id_goes_to_one_backend(self, router: Router, backends: list[FaultyBackend]) -> None:
        for number in range(40):
            by_header = number < 20
            given = (f"id-{number}", None) if by_header else (None, f"id-{number}")
            found = set()
            for path, fields in KEEPS_A_CACHE:
                reply = await ask(router, path, fields, *given)
                assert (path, reply.status) == (path, 200)
                assert reply.header("x-warmroute-key") == ("x-session-id" if by_header else "session_id")
                found.add(reply.header("x-warmroute-backend"))
            assert len(found) == 1, number
        assert {seen.path for seen in posts(backends)} == {path for path, _ in KEEPS_A_CACHE}

    async def test_counting_tokens_is_beside_the_conversation_and_keeps_its_path(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        for path, fields in BESIDE:
            reply = await ask(router, path, fields, "s", None)
            assert (reply.status, reply.header("x-warmroute-decision")) == (200, "side")
        assert {seen.path for seen in posts(backends)} == {path for path, _ in BESIDE}
        assert len(router.pins) == 0

    async def test_a_path_that_is_not_listed_is_refused_here(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        for path in ("/v1/foo", "/v1/tokenize", "/v1/chat/completions/x"):
            reply = await ask(router, path, {}, "s", None)
            assert (reply.status, "not a path of the model API" in json.dumps(reply.json())) == (404, True)
        assert posts(backends) == []

    async def test_a_conflict_is_settled_alike_on_every_path(self, router: Router) -> None:
        alone = await ask(router, *KEEPS_A_CACHE[0], "s1", None)
        for path, fields in KEEPS_A_CACHE:
            reply = await ask(router, path, fields, "s1", "s2")
            assert (path, reply.header("x-warmroute-key")) == (path, "x-session-id")
            assert reply.header("x-warmroute-backend") == alone.header("x-warmroute-backend")

    async def test_the_engines_own_fields_are_read_in_order(self, router: Router) -> None:
        async with await RawClient.connect(router.data_url) as client:
            args: dict[str, Any] = {"vllm_xargs": {"session_id": "v"}}
            assert (await client.chat(**args)).header("x-warmroute-key") == "vllm_xargs.session_id"
            assert (await client.chat(session_id="b", **args)).header("x-warmroute-key") == "session_id"
            assert (await client.chat("h", session_id="b", **args)).header("x-warmroute-key") == "x-session-id"
