"""Streams whose backend dies under them: the client of a whole router sees one unbroken answer, or plainly that it broke."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from warmroute.app import Router
from warmroute.core.messages import Shape
from warmroute.core.questions import TOKENS, USAGE

from .conftest import StartRouter, until, up
from .scripted import RawClient, Reply, Scripted, Talk

CHAT, COMPLETIONS = Shape.CHAT, Shape.COMPLETIONS
PATHS = {CHAT: "/v1/chat/completions", COMPLETIONS: "/v1/completions"}
DONE = b"data: [DONE]\n\n"
PROMPT = [1, 7, 7, 9]
EOS = 2

# Characters of two to four bytes lie over two tokens, at the beginning too, and one token holds the end of one and the
# beginning of the next.
WORDS = [
    b"\xc3",
    b"\x9cber ",
    b"die ",
    b"\xe6\x97",
    b"\xa5\xe6",
    b"\x9c\xac\n",
    b" \xf0\x9f",
    b"\x98\x80",
    b'"q"',
    b"!",
]
TEXT = b"".join(WORDS).decode()

both = pytest.mark.parametrize("shape", [CHAT, COMPLETIONS])


@dataclass
class Fate:
    """What becomes of one request: after `events` whole events and `part` bytes of the next, `then` happens."""

    events: int
    then: Callable[[Talk], Awaitable[None]]
    part: int = 0


@dataclass
class Model:
    """Backends that speak as vLLM 0.32 does for one made-up model: its answer is always `words`, one token each.

    A continuation must bring the prompt's tokens and a beginning of the answer's; it is detokenized from there on. The
    fates meet the requests one by one, in the order in which they come; those after the last are answered whole.
    """

    words: list[bytes] = field(default_factory=lambda: WORDS)
    fates: list[Fate] = field(default_factory=list)
    posts: list[tuple[str, bytes]] = field(default_factory=list)
    served: list[str] = field(default_factory=list)
    got: bytearray = field(default_factory=bytearray)

    async def script(self, backend: Scripted, talk: Talk) -> None:
        self.posts.append((talk.seen.path, talk.seen.body))
        self.served.append(backend.name)
        body = json.loads(talk.seen.body)
        if talk.seen.path == "/detokenize":
            self.posts.pop()
            self.served.pop()
            text = b"".join(self.words[token - 100] for token in body["tokens"]).decode("utf-8", "replace")
            talk.json({"prompt": text})
            return
        events = [*self.events(talk.seen.path, body), DONE]
        fate = self.fates.pop(0) if self.fates else None
        talk.stream_head()
        before = len(events) if fate is None else fate.events
        for event in events[:before]:
            talk.chunk(event)
        if fate is None:
            talk.end()
            return
        if fate.part:
            talk.chunk(events[before][: fate.part])
        await talk.drain()
        await self.passed_on(events[:before], talk.seen.path)
        await fate.then(talk)

    async def passed_on(self, events: list[bytes], path: str) -> None:
        """Wait until the client has what these events say: a reset may take with it what was not read yet."""
        texts = sum(said(event) != "" for event in events)
        if texts:
            await until(lambda: sum(said(e) != "" for e in bytes(self.got).split(b"\n\n")) >= texts)

    def events(self, path: str, body: dict[str, Any]) -> Iterator[bytes]:
        chat = path == PATHS[CHAT]
        prompt = PROMPT if chat or isinstance(body["prompt"], str) else body["prompt"]
        given = prompt[len(PROMPT) :]
        assert prompt == PROMPT + [100 + i for i in range(len(given))]
        told = body.get("return_token_ids") is True
        options = body.get("stream_options") or {}
        one: dict[str, Any] = {
            "id": "chatcmpl-1" if chat else f"cmpl-{len(given)}",
            "object": "o",
            "created": len(given),
        }
        one["model"] = "m"
        if chat:
            choice: dict[str, Any] = {"index": 0, "delta": {"role": "assistant", "content": ""}}
            choice |= {"logprobs": None, "finish_reason": None}
            begun = one | {"choices": [choice], "prompt_token_ids": prompt if told else None, "prompt_text": None}
            yield event(begun | usage_of(options, "continuous_usage_stats", len(prompt), 0))
        count = 0
        for count, (text, ids, reason) in enumerate(self.generated(len(given), body), 1):
            if chat:
                choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
                choice |= {"stop_reason": None} if reason else {}
            else:
                choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
                choice["prompt_token_ids"] = prompt if told and count == 1 else None
            choice["token_ids"] = ids if told else None
            yield event({**one, "choices": [choice]} | usage_of(options, "continuous_usage_stats", len(prompt), count))
        if options.get("include_usage"):
            yield event({**one, "choices": [], **usage_of(options, "include_usage", len(prompt), count)})

    def generated(self, begin: int, body: dict[str, Any]) -> Iterator[tuple[str, list[int], str | None]]:
        """Text, tokens and finish reason of each step; the last token ends the answer and has no text."""
        most = body.get("max_tokens") or 10_000
        held = b""
        for made, number in enumerate(range(begin, len(self.words)), 1):
            held += self.words[number]
            text = held.decode("utf-8", "replace")
            if text.endswith("\ufffd"):  # what looks like the beginning of a character waits for its end
                text = ""
            else:
                held = b""
            yield text, [100 + number], "length" if made == most else None
            if made == most:
                return
        yield "", [EOS], "stop"


def usage_of(options: dict[str, Any], wanted: str, prompt: int, completion: int) -> dict[str, Any]:
    if not options.get(wanted):
        return {}
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    return {"usage": usage}


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def datas(stream: bytes) -> list[dict[str, Any]]:
    return [json.loads(e[6:]) for e in stream.split(b"\n\n") if e.startswith(b"data: {")]


def said(event: bytes) -> str:
    """The text of one event."""
    found = datas(event.strip(b"\n") + b"\n\n")
    choices = [choice for e in found for choice in e.get("choices", ())]
    return "".join((c["delta"].get("content") or "") if "delta" in c else c["text"] for c in choices)


async def rst(talk: Talk) -> None:
    talk.reset()


async def fin(talk: Talk) -> None:
    talk.close()


def text_of(reply: Reply) -> str:
    return said(reply.body)


def summary(reply: Reply) -> dict[str, Any]:
    """What a client makes of a stream, whatever the events it came in; two streams that agree in it are one answer."""
    events = datas(reply.body)
    choices = [choice for e in events for choice in e.get("choices", ())]
    return {
        "status": (reply.status, reply.whole),
        "text": text_of(reply),
        "errors": [e["error"] for e in events if "error" in e],
        "frames": {json.dumps([e.get(name) for name in ("id", "object", "created", "model")]) for e in events},
        "roles": sum("role" in choice.get("delta", {}) for choice in choices),
        "finish": [choice["finish_reason"] for choice in choices if choice["finish_reason"]],
        "ids": {str(choice["token_ids"]) for choice in choices if choice.get("token_ids") is not None}
        | {str(e["prompt_token_ids"]) for e in events if e.get("prompt_token_ids")},
        "usage": events[-1].get("usage"),
        "usages": sum("usage" in e and not e["choices"] for e in events),
        "done": (reply.body.count(b"[DONE]"), reply.body.endswith(DONE)),
    }


def broke(reply: Reply) -> bool:
    """Whether the stream plainly ended as a failure."""
    found = summary(reply)
    return bool(found["errors"]) and reply.whole and found["done"] == (0, False) and not found["finish"]


def request(shape: Shape, **others: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if shape is CHAT else {"prompt": "hi"}
    return {"model": "m", **prompt, "stream": True, "max_tokens": 500, **others}


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
async def fleet(stack: AsyncExitStack, model: Model) -> list[Scripted]:
    backends = [await stack.enter_async_context(Scripted()) for _ in range(3)]
    for backend in backends:
        backend.script = partial(model.script, backend)
    return backends


@pytest.fixture
async def routed(fleet: list[Scripted], start_router: StartRouter) -> Router:
    return await start_router(fleet)


async def ask(
    router: Router, model: Model, shape: Shape, fates: list[Fate], body: Any, session: str | None = None
) -> Reply:
    """One turn under these fates; what reaches the client can be watched in `model.got`."""
    model.fates, model.got = list(fates), bytearray()
    model.posts, model.served = [], []
    async with await RawClient.connect(router.data_url) as client:
        client.post(body, {"x-session-id": session} if session else {}, PATHS[shape])
        status, headers = await client.head()
        assert dict(headers).get("transfer-encoding") == "chunked"
        whole = True
        try:
            while part := await client.chunk():
                model.got += part
        except asyncio.IncompleteReadError:
            whole = False
        return Reply(status, headers, bytes(model.got), whole)


async def quiet(router: Router) -> None:
    """All places that were taken at backends are given back, and nothing went wrong inside."""
    await until(lambda: all(b.in_flight == 0 for b in router.registry.backends.values()))
    assert router.counters.internal_errors == {}


# Wherever it is cut


@both
@pytest.mark.parametrize(
    "usage", [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
)
@pytest.mark.parametrize("death", [rst, fin])
async def test_wherever_a_stream_is_cut_its_client_sees_one_unbroken_answer(
    routed: Router, model: Model, shape: Shape, usage: dict[str, bool] | None, death: Callable[[Talk], Awaitable[None]]
) -> None:
    body = request(shape, temperature=0, stream_options=usage) if usage else request(shape, temperature=0)
    unbroken = summary(await ask(routed, model, shape, [], body))
    assert unbroken["text"] == TEXT
    assert unbroken["ids"] == set()
    whole = [*model.events(PATHS[shape], {**body, "return_token_ids": True}), DONE]
    cuts = [(events, part) for events in range(len(whole)) for part in {0, 1, len(whole[events]) - 1}]
    for number, (events, part) in enumerate(cuts):
        before = routed.counters.resumes["resumed"]
        session = f"s{number}"
        reply = await ask(routed, model, shape, [Fate(events, death, part)], body, session)
        assert summary(reply) == unbroken, (events, part)
        assert len(model.served) <= 2
        assert (await ask(routed, model, shape, [], body, session)).header("x-warmroute-decision") == "pin_hit"
        had_text = any(said(e) for e in whole[:events])
        assert routed.counters.resumes["resumed"] - before == had_text, (events, part)
    assert set(routed.counters.resumes) == {"resumed"}
    await quiet(routed)


@both
async def test_the_rest_is_asked_for_in_tokens_and_the_session_lives_there_from_then_on(
    routed: Router, model: Model, fleet: list[Scripted], shape: Shape
) -> None:
    body = request(shape, repetition_penalty=1.3, top_p=0.5)
    reply = await ask(routed, model, shape, [Fate(5, rst)], body, "s")
    (_, first), (path, second) = model.posts
    assert json.loads(first) == {**body, "return_token_ids": True, "stream_options": {"include_usage": True}}
    told = 3  # the fourth word, and the fifth, have only begun a character
    assert path == "/v1/completions"
    assert json.loads(second) == {
        "model": "m",
        "prompt": PROMPT + [100 + i for i in range(told)],
        "max_tokens": 500 - told,
        "repetition_penalty": 1.3,
        "top_p": 0.5,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }
    died, lives = model.served
    assert reply.header("x-warmroute-backend") == died != lives
    await quiet(routed)
    assert sum(routed.counters.moves.values()) == 1
    again = await ask(routed, model, shape, [], body, "s")
    assert (again.header("x-warmroute-decision"), again.header("x-warmroute-backend")) == ("pin_hit", lives)
    moved = await ask(routed, model, shape, [], body, "s")
    assert (moved.header("x-warmroute-decision"), moved.header("x-warmroute-backend")) == ("pin_hit", lives)
    assert sum(routed.counters.moves.values()) == 1
    assert up(routed) == 3


async def test_without_a_limit_of_its_own_a_chat_may_fill_the_model_s_context(routed: Router, model: Model) -> None:
    body = request(CHAT)
    del body["max_tokens"]
    assert text_of(await ask(routed, model, CHAT, [Fate(4, rst)], body, "s")) == TEXT
    rest = json.loads(model.posts[1][1])
    assert len(rest["prompt"]) + rest["max_tokens"] == 8192


async def test_the_rest_is_asked_for_with_the_client_s_own_headers(
    routed: Router, model: Model, fleet: list[Scripted]
) -> None:
    model.fates = [Fate(4, rst)]
    async with await RawClient.connect(routed.data_url) as client:
        personal = {"x-openwebui-user-name": "Ada", "x-forwarded-for": "192.0.2.7", "x_session_id": "s"}
        client.post(request(CHAT), {"authorization": "Bearer key", "x-request-id": "me", "x-other": "1", **personal})
        await client.head()
        while part := await client.chunk():
            model.got += part
    first, second = sorted((s for b in fleet for s in b.posts), key=lambda seen: seen.path)
    assert (first.path, second.path) == ("/v1/chat/completions", "/v1/completions")
    for name in ("authorization", "x-request-id", "x-other", "content-type"):
        assert second.header(name) == first.header(name) is not None
    assert [second.header(name) for name in personal] == [None] * 3
    assert second.header("content-length") == str(len(second.body))


@both
async def test_a_conversation_without_an_id_is_recognised_after_the_cut(
    routed: Router, model: Model, shape: Shape
) -> None:
    body = request(shape)
    for number in range(4):
        asked = f"question {number} "
        body = {**request(shape), **({"messages": [user(asked)]} if shape is CHAT else {"prompt": asked})}
        reply = await ask(routed, model, shape, [Fate(6, rst)], body)
        assert reply.header("x-warmroute-key") == "content"
        lives = model.served[-1]
        answer = {"role": "assistant", "content": text_of(reply)}
        if shape is CHAT:
            body["messages"] = [user(asked), answer, user("more")]
        else:
            body["prompt"] = asked + text_of(reply) + " more"
        for _ in range(2):
            again = await ask(routed, model, shape, [], body)
            told = [again.header(f"x-warmroute-{name}") for name in ("key", "decision", "backend")]
            assert told == ["content", "pin_hit", lives]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_a_forked_conversation_goes_to_where_the_rest_was_made(routed: Router, model: Model) -> None:
    """The backend that died holds nothing any more: what knew of its cache must know of the other's instead."""
    for number in range(3):
        opening = [user(f"question {number} ")]
        reply = await ask(routed, model, CHAT, [Fate(6, rst)], {**request(CHAT), "messages": opening}, f"a{number}")
        fork = [*opening, {"role": "assistant", "content": text_of(reply)}, user("more")]
        lives = model.served[-1]
        forked = await ask(routed, model, CHAT, [], {**request(CHAT), "messages": fork}, f"b{number}")
        told = [forked.header(f"x-warmroute-{name}") for name in ("decision", "backend")]
        assert told == ["history", lives]


async def test_it_is_counted_logged_and_the_usage_is_the_whole_answer_s(routed: Router, model: Model) -> None:
    await ask(routed, model, CHAT, [Fate(5, rst)], request(CHAT, stream_options={"include_usage": True}), "s")
    await until(lambda: routed.counters.total == 1)
    record = routed.counters.recent[0]
    assert (record.resumed, record.status, record.backend, record.attempts) == ("resumed", 200, model.served[1], 2)
    assert (record.usage.prompt, record.usage.completion) == (len(PROMPT), len(WORDS) + 1)
    assert [name for name, _ in record.failures] == [model.served[0]]
    async with await RawClient.connect(routed.admin_url) as admin:
        admin.send(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
        text = (await admin.reply("GET")).body.decode()
    assert 'warmroute_broken_streams_total{outcome="resumed"} 1.0' in text


@both
async def test_a_keep_alive_comment_before_the_answer_changes_nothing(
    routed: Router, model: Model, fleet: list[Scripted], shape: Shape
) -> None:
    for backend in fleet:

        async def with_comment(talk: Talk, backend: Scripted = backend) -> None:
            head, talk.stream_head = talk.stream_head, lambda: None  # type: ignore[method-assign]
            head()
            talk.chunk(b": keep-alive\n\n")
            await model.script(backend, talk)

        backend.script = with_comment
    reply = await ask(routed, model, shape, [Fate(5, rst)], request(shape), "s")
    assert text_of(reply) == TEXT
    assert summary(reply)["done"] == (1, True)
    await quiet(routed)


async def test_two_tokens_in_one_event_of_which_the_second_has_no_text_yet(routed: Router, model: Model) -> None:
    """vLLM puts what was generated while the reader was busy into one event: its last token may have begun a character."""
    steps = list(model.generated(0, {}))
    pairs = zip(steps[::2], steps[1::2], strict=False)
    merged = [(a[0] + b[0], a[1] + b[1], b[2]) for a, b in pairs]
    assert ("die ", [102, 103], None) in merged
    whole = model.generated

    def generated(begin: int, body: dict[str, Any]) -> Iterator[tuple[str, list[int], str | None]]:
        return iter([*merged, steps[-1]]) if begin == 0 else whole(begin, body)

    model.generated = generated  # type: ignore[method-assign]
    for events in range(2, 7):
        reply = await ask(routed, model, CHAT, [Fate(events, rst)], request(CHAT), f"s{events}")
        assert text_of(reply) == TEXT, events


async def test_where_the_end_of_the_text_cannot_be_found_the_stream_ends_visibly(routed: Router, model: Model) -> None:
    steps = list(model.generated(0, {}))
    merged = [(a[0] + b[0], a[1] + b[1], b[2]) for a, b in zip(steps[::2], steps[1::2], strict=False)]
    model.generated = lambda begin, body: iter([*merged, steps[-1]])  # type: ignore[method-assign]
    model.words = [b"\xff"] * len(model.words)  # whatever is asked, half a character is the answer
    reply = await ask(routed, model, CHAT, [Fate(3, rst)], request(CHAT), "s")
    assert broke(reply)
    assert routed.counters.resumes == {"boundary": 1}


# When the continuation fails too


@both
async def test_a_second_death_early_on_ends_it_and_no_third_backend_is_asked(
    routed: Router, model: Model, shape: Shape
) -> None:
    reply = await ask(routed, model, shape, [Fate(5, rst), Fate(2, rst)], request(shape), "s")
    assert len(model.posts) == 2
    assert broke(reply)
    assert TEXT.startswith(text_of(reply))
    assert routed.counters.resumes == {"failed": 1}
    await quiet(routed)


@both
async def test_a_poison_request_is_seen_by_two_backends(routed: Router, model: Model, shape: Shape) -> None:
    for number in range(3):
        reply = await ask(routed, model, shape, [Fate(4, rst), Fate(0, rst)], request(shape), f"s{number}")
        assert len(model.served) == len(set(model.served)) == 2
        assert broke(reply)
    await quiet(routed)
    assert up(routed) == 3


@both
async def test_a_retry_before_content_counts_as_one_of_the_two(routed: Router, model: Model, shape: Shape) -> None:
    reply = await ask(routed, model, shape, [Fate(0, rst), Fate(4, rst)], request(shape), "s")
    assert len(model.posts) == 2
    assert broke(reply)
    assert routed.counters.resumes == {"failed": 1}


@both
@pytest.mark.parametrize("deaths", [1, 2, 3])
async def test_after_enough_tokens_a_further_death_is_no_sign_of_poison(
    routed: Router, model: Model, shape: Shape, deaths: int
) -> None:
    model.words = WORDS * 30
    fates = [Fate(5, rst), *[Fate(45, rst)] * deaths]
    body = request(shape, stream_options={"include_usage": True})
    unbroken = summary(await ask(routed, model, shape, [], body))
    reply = await ask(routed, model, shape, fates, body, "s")
    assert summary(reply) == unbroken
    assert len(model.served) == deaths + 2
    assert all(a != b for a, b in zip(model.served, model.served[1:], strict=False))
    again = await ask(routed, model, shape, [], body, "s")
    assert (again.header("x-warmroute-decision"), again.header("x-warmroute-backend")) == ("pin_hit", model.served[-1])
    await quiet(routed)


@both
@pytest.mark.parametrize("usage", [False, True])
async def test_a_continuation_that_dies_after_its_last_token_ends_whole(
    routed: Router, model: Model, shape: Shape, usage: bool
) -> None:
    body = request(shape, stream_options={"include_usage": True}) if usage else request(shape)
    unbroken = summary(await ask(routed, model, shape, [], body))
    left = len(WORDS) + 1 - 3
    for number, after in enumerate([left, left + 1] if usage else [left]):
        reply = await ask(routed, model, shape, [Fate(4, rst), Fate(after, fin)], body, f"s{number}")
        assert json.loads(model.posts[1][1])["prompt"] == [*PROMPT, 100, 101, 102]
        assert summary(reply) == unbroken, after
        assert len(model.posts) == 2
    await quiet(routed)


async def refused(talk: Talk, status: str) -> None:
    talk.json({"error": {"message": "no", "code": int(status[:3])}}, status)


async def no_http(talk: Talk) -> None:
    talk.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")


async def a_body(talk: Talk) -> None:
    talk.json({"choices": [{"index": 0, "text": "hello", "finish_reason": "stop"}]})


def streamed(*events: bytes, end: bool = True) -> Callable[[Talk], Awaitable[None]]:
    async def script(talk: Talk) -> None:
        talk.stream_head()
        for one in events:
            talk.chunk(one)
        if end:
            talk.end()
        else:
            talk.close()

    return script


ERROR = event({"error": {"message": "engine is dead", "type": "InternalServerError", "code": 500}})
BAD_CONTINUATIONS: dict[str, Callable[[Talk], Awaitable[None]]] = {
    "400": partial(refused, status="400 Bad Request"),
    "404": partial(refused, status="404 Not Found"),
    "429": partial(refused, status="429 Too Many Requests"),
    "500": partial(refused, status="500 Internal Server Error"),
    "no http": no_http,
    "a body": a_body,
    "silent close": fin,
    "reset": rst,
    "close after head": streamed(end=False),
    "empty stream": streamed(),
    "only done": streamed(DONE),
    "error and done": streamed(ERROR, DONE),
    "no json": streamed(b"data: {hello\n\n"),
    "no event of ours": streamed(event({"x": 1}), DONE),
    "null": streamed(event(None), DONE),
    "choices null": streamed(event({"choices": None}), DONE),
    "choices of text": streamed(event({"choices": ["a"]}), DONE),
}


@both
@pytest.mark.parametrize("name", BAD_CONTINUATIONS)
async def test_a_continuation_that_is_none_ends_plainly(
    routed: Router, model: Model, fleet: list[Scripted], shape: Shape, name: str
) -> None:
    reply = await talked(routed, model, fleet, shape, BAD_CONTINUATIONS[name])
    assert broke(reply), reply.body[-300:]
    assert TEXT.startswith(text_of(reply))
    await quiet(routed)
    assert routed.counters.resumes == {"failed": 1}
    assert up(routed) == 3
    for backend in fleet:
        backend.script = partial(model.script, backend)
    again = await ask(routed, model, shape, [], request(shape), "s")
    assert text_of(again) == TEXT
    told = [again.header(f"x-warmroute-{name}") for name in ("decision", "backend")]
    assert told == ["pin_hit", reply.header("x-warmroute-backend")]  # nothing was made elsewhere


async def talked(
    router: Router, model: Model, fleet: list[Scripted], shape: Shape, second: Callable[[Talk], Awaitable[None]]
) -> Reply:
    """A stream that breaks off, whose continuation meets this script."""
    for backend in fleet:

        async def script(talk: Talk, backend: Scripted = backend) -> None:
            if isinstance(json.loads(talk.seen.body).get("prompt"), list):
                await second(talk)
            else:
                await model.script(backend, talk)

        backend.script = script
    return await ask(router, model, shape, [Fate(5, rst)], request(shape), "s")


async def test_a_backend_that_refuses_the_connection_has_not_seen_the_request(
    model: Model, fleet: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(fleet, health={"interval": 60, "timeout": 1})
    refusing = 0
    for number in range(8):
        whole = await ask(router, model, CHAT, [], request(CHAT), f"s{number}")
        others = [b for b in fleet if b.name != whole.header("x-warmroute-backend")]
        gone, left = others[number % 2], others[1 - number % 2]
        await gone.stop()
        reply = await ask(router, model, CHAT, [Fate(5, rst)], request(CHAT), f"s{number}")
        assert summary(reply) == summary(whole)
        assert model.served == [whole.header("x-warmroute-backend"), left.name]
        await quiet(router)
        health = router.registry.backends[gone.name].health
        if gone.name in [name for name, _ in router.counters.recent[0].failures]:
            refusing += 1
            assert health.up is False  # nothing listens there, so nobody need try it again
        await gone.start()
        health.up = True  # as the next check would find
    assert refusing > 0


async def test_with_no_other_backend_it_ends_plainly(
    model: Model, fleet: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(fleet[:1])
    reply = await ask(router, model, CHAT, [Fate(5, rst)], request(CHAT), "s")
    assert broke(reply)
    assert router.counters.resumes == {"failed": 1}
    await quiet(router)


# The client leaves


async def test_a_client_that_leaves_during_the_rest_is_told_to_the_backend(
    routed: Router, model: Model, fleet: list[Scripted]
) -> None:
    begun, closed = asyncio.Event(), []

    async def goes_on(talk: Talk) -> None:
        talk.stream_head()
        for one in list(model.events("/v1/completions", json.loads(talk.seen.body)))[:2]:
            talk.chunk(one)
        begun.set()
        closed.append(await talk.peer_closed(within=5.0))

    turn = asyncio.ensure_future(talked(routed, model, fleet, CHAT, goes_on))
    async with asyncio.timeout(10):
        await begun.wait()
    await until(lambda: "Über" in "".join(map(said, bytes(model.got).split(b"\n\n"))))
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    await until(lambda: bool(closed))
    assert closed == [True]
    await quiet(routed)
    await until(lambda: routed.counters.client_aborts == 1)


async def test_a_client_that_leaves_while_the_next_backend_is_connected_to_gets_nothing_made(
    routed: Router, model: Model, fleet: list[Scripted]
) -> None:
    connecting, go = asyncio.Event(), asyncio.Event()
    for pool in routed._pools.values():

        async def connect(*kind: Any, connect: Callable[..., Awaitable[Any]] = pool.connect) -> Any:
            if model.posts:
                connecting.set()
                await go.wait()
            return await connect(*kind)

        pool.connect = connect  # type: ignore[method-assign,assignment]
    turn = asyncio.ensure_future(ask(routed, model, CHAT, [Fate(5, rst)], request(CHAT), "s"))
    async with asyncio.timeout(10):
        await connecting.wait()
    turn.cancel()
    await asyncio.gather(turn, return_exceptions=True)
    await until(lambda: not routed._servers[0].server_state.connections)
    go.set()
    await until(lambda: routed.counters.total == 1)
    assert len(model.posts) == 1
    assert routed.counters.client_aborts == 1
    await quiet(routed)


# Bytes that are not touched


UNTOUCHED: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    "asks itself": {"return_token_ids": True},
    "says no itself": {"return_token_ids": False},
    "no stream": {"stream": False},
    "asks itself and names no model": {"return_token_ids": True, "model": None},
    "tools and no model": {"tools": [{"type": "function"}], "model": None},
}


@both
@pytest.mark.parametrize("name", UNTOUCHED)
async def test_a_request_that_gains_nothing_is_passed_on_as_it_is(
    routed: Router, model: Model, shape: Shape, name: str
) -> None:
    body = json.dumps({k: v for k, v in request(shape, **UNTOUCHED[name]).items() if v is not None}, indent=1).encode()
    reply = await ask(routed, model, shape, [], body, "s")
    assert [(path, sent.replace(USAGE, b"", 1)) for path, sent in model.posts] == [(PATHS[shape], body)]
    assert reply.body == b"".join([*model.events(PATHS[shape], json.loads(body)), DONE])
    reply = await ask(routed, model, shape, [Fate(5, rst)], body, "s")
    assert broke(reply)
    assert len(model.posts) == 1


@both
async def test_switched_off_nothing_is_asked_and_nothing_gone_on_with(
    model: Model, fleet: list[Scripted], start_router: StartRouter, shape: Shape
) -> None:
    router = await start_router(fleet, resume={"enabled": False}, truth={"ask_usage": False})
    body = json.dumps(request(shape), indent=1).encode()
    reply = await ask(router, model, shape, [Fate(5, rst)], body, "s")
    assert model.posts == [(PATHS[shape], body)]
    assert broke(reply)
    assert router.counters.resumes == {"off": 1}


@both
async def test_long_bodies_are_left_alone(
    model: Model, fleet: list[Scripted], start_router: StartRouter, shape: Shape
) -> None:
    router = await start_router(fleet, resume={"max_body": 400}, truth={"ask_usage": False})
    body = json.dumps(request(shape)).encode()
    longest, too_long = body + b" " * (400 - len(body)), body + b" " * (401 - len(body))
    await ask(router, model, shape, [], longest, "s")
    assert model.posts[0][1].replace(TOKENS, b"", 1) == longest
    reply = await ask(router, model, shape, [Fate(5, rst)], too_long, "s")
    assert model.posts == [(PATHS[shape], too_long)]
    assert broke(reply)
    assert router.counters.resumes == {"tokens_unknown": 1}


@both
@pytest.mark.parametrize("indent", [None, 2])
async def test_the_question_is_all_that_is_put_into_a_body(
    routed: Router, model: Model, shape: Shape, indent: int | None
) -> None:
    odd = {"x": "\u2028ü\\/", "big": 1e100, "nested": {"return_token_ids": 1, "tools": []}}
    body = json.dumps(request(shape, **odd), indent=indent, ensure_ascii=False).encode()
    await ask(routed, model, shape, [], body, "s")
    ((_, sent),) = model.posts
    assert sent.replace(TOKENS + USAGE, b"", 1) == body
    assert sent.count(TOKENS) == sent.count(USAGE) == 1


@both
async def test_fields_that_cannot_be_carried_end_it_plainly(routed: Router, model: Model, shape: Shape) -> None:
    odd: list[dict[str, Any]] = [{"seed": 1}, {"stop": ["x"]}, {"presence_penalty": 0.5}, {"unknown": 1}]
    for number, one in enumerate(odd):
        reply = await ask(routed, model, shape, [Fate(5, rst)], request(shape, **one), f"s{number}")
        assert broke(reply)
        assert len(model.posts) == 1
    assert routed.counters.resumes == {"field": 4}


def two_answers(shape: Shape) -> list[bytes]:
    """A stream of two answers, as n=2 or two prompts in one request give it: each one tells the prompt's tokens."""
    steps = list(Model().events(PATHS[shape], {**request(shape), "return_token_ids": True}))
    pairs = ([step, step.replace(b'"index":0', b'"index":1')] for step in steps)
    return [one for pair in pairs for one in pair]


@both
async def test_the_tokens_of_several_answers_are_not_asked_for(
    routed: Router, fleet: list[Scripted], model: Model, shape: Shape
) -> None:
    """Which token is whose could not be told: they are not asked for, and what comes passes as it is."""
    stream = two_answers(shape)
    for backend in fleet:
        backend.script = streamed(*stream, DONE)
    sent = request(shape, n=2)
    reply = await ask(routed, model, shape, [], sent, "s")
    assert reply.body == b"".join([*stream, DONE])
    usage = {"stream_options": {"include_usage": True}}
    assert [json.loads(post.body) for backend in fleet for post in backend.posts] == [sent | usage]


async def test_the_answers_to_several_prompts_are_not_mixed(
    routed: Router, fleet: list[Scripted], model: Model
) -> None:
    stream = two_answers(COMPLETIONS)

    async def cut(talk: Talk) -> None:
        talk.stream_head()
        talk.chunk(b"".join(stream[:6]))
        await until(lambda: model.got.count(b"\n\n") >= 6)
        talk.reset()

    for backend in fleet:
        backend.script = cut
    reply = await ask(routed, model, COMPLETIONS, [], request(COMPLETIONS, prompt=["hi", "ho"]), "s")
    assert broke(reply)
    assert sum(len(b.posts) for b in fleet) == 1


async def test_an_answer_whose_tokens_are_hidden_is_not_begun_again(
    routed: Router, fleet: list[Scripted], model: Model
) -> None:
    """vLLM tells the prompt's tokens but none of the answer's where the model's reasoning is not to be shown."""
    stream = list(model.events(PATHS[CHAT], {**request(CHAT), "return_token_ids": True}))
    stream[1:] = [re.sub(rb'"token_ids":\[[0-9,]*\]', b'"token_ids":null', one) for one in stream[1:]]

    async def cut(talk: Talk) -> None:
        if "chat" not in talk.seen.path:
            await model.script(fleet[0], talk)
            return
        talk.stream_head()
        talk.chunk(b"".join(stream[:5]))
        await until(lambda: model.got.count(b"\n\n") >= 5)
        talk.reset()

    for backend in fleet:
        backend.script = cut
    reply = await ask(routed, model, CHAT, [], request(CHAT, include_reasoning=False), "s")
    assert text_of(reply) == "Über die "
    assert broke(reply)


@pytest.mark.parametrize("usual", [True, False], ids=["LF", "CRLF"])
async def test_a_stream_that_is_not_vllm_s_passes_as_it_comes(
    routed: Router, fleet: list[Scripted], model: Model, usual: bool
) -> None:
    stream = b"".join([*model.events(PATHS[CHAT], request(CHAT)), DONE])
    stream = stream if usual else stream.replace(b"\n", b"\r\n")
    half = len(stream) // 2
    seen = asyncio.Event()

    async def in_two(talk: Talk) -> None:
        talk.stream_head()
        talk.chunk(stream[:half])
        await talk.drain()
        await seen.wait()
        talk.chunk(stream[half:])
        talk.end()

    for backend in fleet:
        backend.script = in_two
    turn = asyncio.ensure_future(ask(routed, model, CHAT, [], request(CHAT), "s"))
    try:
        await until(lambda: len(model.got) > half - 300, within=3.0)
    finally:
        seen.set()
        reply = await turn
    assert reply.body == stream


async def test_an_answer_that_ends_without_a_blank_line_is_passed_on_to_its_last_byte(
    routed: Router, fleet: list[Scripted], model: Model
) -> None:
    stream = b"".join([*model.events(PATHS[CHAT], request(CHAT)), DONE[:-1]])
    for backend in fleet:
        backend.script = streamed(stream[:400], stream[400:])
    assert (await ask(routed, model, CHAT, [], request(CHAT), "s")).body == stream


async def test_an_event_stream_of_stated_length_keeps_its_framing(
    routed: Router, fleet: list[Scripted], model: Model
) -> None:
    async def stated(talk: Talk) -> None:
        stream = b"".join([*model.events(PATHS[CHAT], json.loads(talk.seen.body)), DONE])
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(stream)}\r\n\r\n"
        talk.send(head.encode() + stream)

    for backend in fleet:
        backend.script = stated
    async with await RawClient.connect(routed.data_url) as client:
        async with asyncio.timeout(5):
            for _ in range(2):
                client.post(request(CHAT), {"x-session-id": "s"})
                reply = await client.reply()
                assert reply.whole
                assert summary(reply)["text"] == TEXT
                assert summary(reply)["done"] == (1, True)
    assert routed.counters.internal_errors == {}


async def test_a_slow_client_slows_the_backend_and_gets_every_event(
    routed: Router, fleet: list[Scripted], model: Model
) -> None:
    pushed, total = 0, 3000
    one = json.loads(list(model.events(PATHS[CHAT], {**request(CHAT), "return_token_ids": True}))[3][6:])
    one["choices"][0]["delta"]["content"] = "x" * 10_000
    begin = next(model.events(PATHS[CHAT], {**request(CHAT), "return_token_ids": True}))
    told, untold = event(one), event(one).replace(b'"token_ids":[102]', b'"token_ids":null')
    assert told != untold

    async def flood(talk: Talk) -> None:
        nonlocal pushed
        talk.stream_head()
        talk.chunk(begin)
        while pushed < total:
            talk.chunk(told[:4000])
            talk.chunk(told[4000:])
            await talk.drain()
            pushed += 1
        talk.chunk(DONE)
        talk.end()

    for backend in fleet:
        backend.script = flood
    async with await RawClient.connect(routed.data_url, receive_buffer=4096) as slow:
        slow.post(request(CHAT))
        await slow.head()
        await settled(lambda: pushed)
        assert pushed < total
        assert sum(c.waiting_bytes for pool in routed._pools.values() for c in pool.connections) <= 1 << 20
        got = bytearray()
        while part := await slow.chunk():
            got += part
    assert bytes(got) == begin.replace(b"[1,7,7,9]", b"null") + untold * total + DONE


async def test_a_slow_client_slows_the_backend_that_goes_on_too(
    routed: Router, fleet: list[Scripted], model: Model
) -> None:
    pushed, total = 0, 2000
    rest = {"index": 0, "text": "#" * 10_000, "logprobs": None, "finish_reason": None, "token_ids": [105]}

    async def flood(talk: Talk) -> None:
        nonlocal pushed
        talk.stream_head()
        while pushed < total:
            talk.event({"id": "cmpl-2", "choices": [rest]})
            await talk.drain()
            pushed += 1
        talk.event({"id": "cmpl-2", "choices": [{**rest, "text": "", "finish_reason": "length"}]})
        talk.event(b"[DONE]")
        talk.end()

    async def script(talk: Talk) -> None:
        if "chat" not in talk.seen.path:
            await flood(talk)
            return
        talk.stream_head()
        talk.chunk(b"".join(list(model.events(PATHS[CHAT], {**request(CHAT), "return_token_ids": True}))[:5]))
        await until(lambda: b"die" in model.got)
        talk.reset()

    for backend in fleet:
        backend.script = script
    async with await RawClient.connect(routed.data_url, receive_buffer=4096) as slow:
        slow.post(request(CHAT, max_tokens=5000))
        await slow.head()
        model.got += await slow.chunk()
        await until(lambda: pushed > 0)
        await settled(lambda: pushed)
        assert pushed < total
        assert sum(c.waiting_bytes for pool in routed._pools.values() for c in pool.connections) <= 1 << 20
        got = bytearray()
        while part := await slow.chunk():
            got += part
    assert got.count(b"#") == total * 10_000
    assert got.endswith(DONE)
    await quiet(routed)


async def settled(value: Callable[[], int]) -> None:
    """Wait until a number has stayed the same for half a second."""
    last, since = value(), 0
    async with asyncio.timeout(20):
        while since < 10:
            await asyncio.sleep(0.05)
            last, since = (last, since + 1) if value() == last else (value(), 0)
