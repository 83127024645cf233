"""Bodies that no good client sends, through a running router: routed as they are, read where they can be, never a fault."""

import json
from contextlib import AsyncExitStack

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from warmroute.app import Router
from warmroute.recognition.recognizer import FIELDS

from .conftest import StartRouter
from .scripted import RawClient, Reply, Scripted, Talk

PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")
REFUSAL = {"error": {"message": "not so", "type": "BadRequestError", "param": None, "code": 400}}


async def refuse(talk: Talk) -> None:
    """A backend that says what is wrong, as vLLM does."""
    talk.json(REFUSAL, "400 Bad Request")


@pytest.fixture
async def pair(stack: AsyncExitStack) -> list[Scripted]:
    return [await stack.enter_async_context(Scripted(refuse)) for _ in range(2)]


async def ask(router: Router, body: bytes, path: str = PATHS[0]) -> Reply:
    async with await RawClient.connect(router.data_url) as client:
        client.post(body, path=path)
        return await client.reply()


def last_body(backends: list[Scripted]) -> bytes:
    bodies = [seen.body for backend in backends for seen in backend.posts]
    assert len(bodies) == 1
    for backend in backends:
        backend.requests.clear()
    return bodies[0]


DEEP = 200_000
RESULTS = b'[{"type": "tool_result", "content": '


def user(content: bytes) -> bytes:
    return b'{"model": "m", "messages": [{"role": "user", "content": ' + content + b"}]}"


UNREADABLE = {
    "nothing": b"",
    "no JSON": b"hello",
    "a list": b'[{"role": "user"}]',
    "a text": b'"hello"',
    "null": b"null",
    "cut": b'{"model": "m", "messages": [{"role": "us',
    "deep lists": b"[" * DEEP + b"]" * DEEP,
    "deep objects": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "deep messages": b'{"model": "m", "messages": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep content": user(b"[" * DEEP + b"]" * DEEP),
    "messages that are none": b'{"model": "m", "messages": 7}',
    "messages of nothing": b'{"model": "m", "messages": [null, 1, "x", []]}',
    "NaN": user(b"NaN"),
    "a long number": user(b"1" * 5000),
    "a long exponent": user(b'[{"type": "x", "y": 1e400}]'),
    "a lone surrogate": user(b'"\\ud800"'),
    "a byte order mark": b"\xef\xbb\xbf" + user(b'"hi"'),
    "invalid UTF-8": user(b'"\xff\xfe"'),
    "overlong UTF-8": user(b'"\xc0\x80"'),
    "a comment": b'{"model": "m", /* x */ "messages": []}',
}
READABLE = {
    "duplicate keys": b'{"model": "m", "messages": [], "messages": [{"role": "user", "role": "user", "content": "hi"}]}',
    "a deep field that nobody reads": b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "x": '
    + b"[" * 900
    + b"]" * 900
    + b"}",
    "a part whose type is a list": user(b'[{"type": [], "text": "hi"}]'),
    "a part whose type is an object": user(b'[{"type": {}, "text": "hi"}]'),
    "deep parts": user(b'[{"type": "x", "y": ' + b"[" * 900 + b"]" * 900 + b"}]"),
    **{f"results in results, {n}": user(RESULTS * n + b'"x"' + b"}]" * n) for n in (250, 300, 350, 400, 440, 460)},
    **{
        f"a tool's name of depth {n}": b'{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"function":'
        b' {"name": ' + b"[" * n + b"]" * n + b"}}]}]}"
        for n in range(880, 990, 6)
    },
    "deep arguments": b'{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a",'
    b' "arguments": "' + b"[" * DEEP + b'"}}]}]}',
    "arguments with a long number": b'{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"function": {"name":'
    b' "a", "arguments": "[' + b"1" * 5000 + b']"}}]}]}',
    "arguments with NaN and a lone surrogate": b'{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"function":'
    b' {"name": "a", "arguments": "[NaN, \\"\\\\ud800\\"]"}}]}]}',
    "NUL": user(b'"\\u0000"'),
    "every escape": user(json.dumps("".join(map(chr, range(0xD800)))).encode()),
}


@pytest.mark.parametrize("what", [*UNREADABLE, *READABLE])
async def test_it_is_routed_as_it_is(pair: list[Scripted], start_router: StartRouter, what: str) -> None:
    router = await start_router(pair)
    body = (UNREADABLE | READABLE)[what]
    for path in PATHS:
        reply = await ask(router, body, path)
        assert (reply.status, reply.whole) == (400, True), reply.body[:200]
        assert reply.json() == REFUSAL
        assert reply.header("x-warmroute-backend") in {b.name for b in pair}
        if what in UNREADABLE:
            assert reply.header("x-warmroute-key") is None
            assert reply.header("x-warmroute-decision") == "no_session"
        assert last_body(pair) == body
    assert router.counters.internal_errors == {}


@pytest.mark.parametrize("what", [what for what in READABLE if "depth" not in what and "results" not in what])
async def test_what_can_be_read_is_a_conversation(pair: list[Scripted], start_router: StartRouter, what: str) -> None:
    router = await start_router(pair)
    assert (await ask(router, READABLE[what])).header("x-warmroute-key") == "content"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
WORDS = "role content type text tool_calls function name arguments input output id session_id user_id"
words = st.sampled_from(WORDS.split())
near_values = st.recursive(
    json_values | st.sampled_from(["assistant", "user", "tool_use", "tool_result", "function_call", "message"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=10,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), near_values | st.lists(near_values, max_size=3), max_size=6)


async def test_fields_of_any_type_are_routed(pair: list[Scripted], start_router: StartRouter) -> None:
    """Bodies are drawn first and sent over one connection, so that one router serves them all."""
    drawn: list[bytes] = []

    @settings(
        max_examples=250, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), deadline=None
    )
    @given(bodies)
    def draw(body: dict[str, object]) -> None:
        drawn.append(json.dumps(body).encode())

    draw()
    router = await start_router(pair)
    for body in drawn:
        for path in PATHS:
            reply = await ask(router, body, path)
            assert reply.status == 400, body
            assert reply.json() == REFUSAL, body
            assert last_body(pair) == body
    assert len(drawn) > 100
    assert router.counters.internal_errors == {}


ODD_ANSWERS = {
    "a part whose type is a list": [{"type": []}],
    "a number": 7,
    "null": None,
    "an object": {"a": {}},
    "a list of everything": [None, 1, "x", [], {}],
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("what", list(ODD_ANSWERS))
async def test_answers_of_any_kind_pass(stack: AsyncExitStack, start_router: StartRouter, what: str, path: str) -> None:
    said = ODD_ANSWERS[what]
    choice = {"index": 0, "message": {"role": "assistant", "content": said}, "text": said, "finish_reason": "stop"}
    answer = {"id": "resp_1", "choices": [choice], "content": said, "output": said, "status": "completed"}

    async def script(talk: Talk) -> None:
        if b'"stream": true' in talk.seen.body:
            talk.stream_head()
            talk.event({**answer, "type": "response.completed", "response": answer})
            talk.event({"type": "content_block_start", "index": 0, "content_block": {"type": said, "text": said}})
            talk.event({"type": "message_stop"})
            talk.end()
        else:
            talk.json(answer)

    backend = await stack.enter_async_context(Scripted(script))
    router = await start_router([backend])
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "input": "hi", "prompt": "hi"}
    for stream in (False, True, False):
        reply = await ask(router, json.dumps({**body, "stream": stream}).encode(), path)
        assert (reply.status, reply.whole) == (200, True)
    assert router.counters.internal_errors == {}
