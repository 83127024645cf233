"""Conversations without an id through a whole router: found by what was said, streamed or not, in every protocol."""

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.turns import PATHS, Asked, Entry, Said, request_body, streamed_answer, whole_answer
from warmroute.app import Router
from warmroute.core.messages import Shape

from .conftest import StartRouter, until
from .scripted import RawClient, Reply, Scripted, Talk, answer

GOLDEN = Path(__file__).parent.parent / "golden"


class Speaker:
    """Three backends that say what the test wants, streamed where the request asks for it."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.next = Said("")
        self.cut = False
        self.made = 0

    async def script(self, talk: Talk) -> None:
        self.made += 1
        answer_id = f"resp_{self.made}"
        if not json.loads(talk.seen.body or b"{}").get("stream"):
            talk.json(json.loads(whole_answer(self.shape, self.next, answer_id)))
            return
        data = streamed_answer(self.shape, self.next, answer_id)
        talk.stream_head()
        for at in range(0, len(data), 37):
            talk.chunk(data[at : at + 37])
            if self.cut and at > len(data) // 2:
                talk.reset()
                return
        talk.end()


@pytest.fixture(params=list(Shape))
def speaker(request: pytest.FixtureRequest) -> Speaker:
    shape: Shape = request.param
    return Speaker(shape)


@pytest.fixture
async def routed(stack: AsyncExitStack, speaker: Speaker, start_router: StartRouter) -> Router:
    backends = [await stack.enter_async_context(Scripted(speaker.script)) for _ in range(3)]
    return await start_router(backends)


async def send(router: Router, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Reply:
    async with await RawClient.connect(router.data_url) as client:
        client.post(body, dict(headers or {}), path)
        return await client.reply()


def told(reply: Reply) -> tuple[str | None, str | None, str | None]:
    return tuple(reply.header(f"x-warmroute-{name}") for name in ("key", "decision", "backend"))  # type: ignore[return-value]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_conversations_keep_their_backend(routed: Router, speaker: Speaker, stream: bool) -> None:
    path = PATHS[speaker.shape]
    chats: list[list[Entry]] = [[Asked(f"question {i}. ")] for i in range(6)]
    homes: list[set[str | None]] = [set() for _ in chats]
    for turn in range(4):
        for i, chat in enumerate(chats):
            speaker.next = Said(f"answer {i} {turn} ")
            reply = await send(routed, path, request_body(speaker.shape, "be kind", chat, stream=stream))
            assert reply.status == 200
            key, decision, backend = told(reply)
            assert (key, decision == "pin_hit") == ("content", turn > 0)
            homes[i].add(backend)
            chat += [speaker.next, Asked(f"next {i} {turn}. ")]
    assert [len(home) for home in homes] == [1] * 6
    assert sorted(Counter(home.pop() for home in homes).values()) == [2, 2, 2]
    assert routed.counters.internal_errors == {}


async def test_a_forked_conversation_under_a_new_id_goes_where_its_history_is(routed: Router, speaker: Speaker) -> None:
    path = PATHS[speaker.shape]
    for i in range(6):
        opening: list[Entry] = [Asked(f"question {i}. ")]
        speaker.next = Said(f"answer {i} ")
        first = await send(routed, path, request_body(speaker.shape, "", opening))
        fork = request_body(speaker.shape, "", [*opening, speaker.next, Asked("more")])
        forked = await send(routed, path, fork, {"x-session-id": f"new {i}"})
        assert told(forked) == ("x-session-id", "history", first.header("x-warmroute-backend"))


async def test_an_answer_that_broke_off_is_not_taken_for_a_whole_one(routed: Router, speaker: Speaker) -> None:
    path = PATHS[speaker.shape]
    opening: list[Entry] = [Asked("question. ")]
    speaker.next, speaker.cut = Said("an answer that is long enough to be cut. " * 5), True
    before = routed.memory.entries()
    await send(routed, path, request_body(speaker.shape, "", opening))
    await until(lambda: all(b.in_flight == 0 for b in routed.registry.backends.values()))
    grown = routed.memory.entries()["history"] - before["history"]
    assert grown == 1  # what was asked, alone
    assert routed.counters.internal_errors == {}


async def test_a_new_conversation_goes_where_its_beginning_is_known(router: Router) -> None:
    system = "You are one of many agents with the same instructions. " * 100
    replies = []
    for i in range(2):
        body = request_body(Shape.CHAT, system, [Asked(f"task {i}")], stream=False)
        replies.append(told(await send(router, PATHS[Shape.CHAT], body)))
    assert replies[0][1] == "ring"
    for i in range(2, 24):
        body = request_body(Shape.CHAT, system, [Asked(f"task {i}")], stream=False)
        replies.append(told(await send(router, PATHS[Shape.CHAT], body)))
    spread = Counter(backend for _, _, backend in replies)
    assert len(spread) == 3
    assert max(spread.values()) <= 11
    assert any(decision == "head" for _, decision, _ in replies)


async def test_a_stored_response_is_asked_of_its_maker_and_of_nobody_else(
    stack: AsyncExitStack, start_router: StartRouter
) -> None:
    speaker = Speaker(Shape.RESPONSES)
    backends = [await stack.enter_async_context(Scripted(speaker.script)) for _ in range(3)]
    router = await start_router(backends)
    path = PATHS[Shape.RESPONSES]
    speaker.next = Said("hi")
    first = await send(router, path, request_body(Shape.RESPONSES, "", [Asked("hello")]))
    maker = first.header("x-warmroute-backend")
    for i in range(4):
        body = request_body(Shape.RESPONSES, "", [Asked("and?")], previous_response_id="resp_1")
        reply = await send(router, path, body, {"x-session-id": f"s{i}"})
        assert told(reply) == ("x-session-id", "owner", maker)
    async with await RawClient.connect(router.data_url) as client:
        client.send(b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n")
        await client.head()
    asked = [b.name for b in backends for seen in b.requests if seen.path == f"{path}/resp_1"]
    assert asked == [maker]
    gone = next(b for b in backends if b.name == maker)
    await gone.stop()
    await until(lambda: not router.registry.backends[gone.name].available)
    reply = await send(router, path, request_body(Shape.RESPONSES, "", [Asked("and?")], previous_response_id="resp_1"))
    assert (reply.status, reply.header("x-warmroute-decision")) == (503, "owner_gone")
    assert reply.header("retry-after") is not None
    unknown = await send(router, path, request_body(Shape.RESPONSES, "", [Asked("x")], previous_response_id="resp_77"))
    assert unknown.status == 200
    assert router.memory.owners.unknown == 1


async def test_a_side_request_is_told_as_one(router: Router) -> None:
    chat = {"x-openwebui-chat-id": "c"}
    body = request_body(Shape.CHAT, "", [Asked("hello")], stream=False)
    await send(router, PATHS[Shape.CHAT], body, chat)
    before = len(router.pins)
    side = await send(router, PATHS[Shape.CHAT], body, {**chat, "x-openwebui-task": "tags_generation"})
    assert told(side)[:2] == ("x-openwebui-chat-id", "side")
    assert len(router.pins) == before


async def test_without_the_source_content_there_is_no_session(start_router: StartRouter, stack: AsyncExitStack) -> None:
    backend = await stack.enter_async_context(Scripted(answer))
    router = await start_router([backend], affinity={"key_sources": ["x-session-id"]})
    body = request_body(Shape.CHAT, "", [Asked("hello")], stream=False)
    assert told(await send(router, PATHS[Shape.CHAT], body))[:2] == (None, "no_session")
