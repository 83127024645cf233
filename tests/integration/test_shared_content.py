"""Conversations without an id through two routers that share a store: what one has heard the other one knows."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.turns import PATHS, Asked, Entry, Said, request_body
from warmroute.app import Router
from warmroute.core.messages import Shape
from warmroute.pins import codec
from warmroute.pins.link import Op
from warmroute.pins.notes import Notes

from .conftest import StartRouter, until
from .scripted import RawClient, Reply, Scripted
from .test_content import Speaker, send, told
from .test_explain import explained
from .test_redis_pins import PATIENT, metrics, only, up
from .valkey import Valkey

SHARED = (Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES)
"""Texts of /v1/completions are known to the router that heard them, and to it alone."""


@pytest.fixture
async def valkey(stack: AsyncExitStack, tmp_path: Path) -> Valkey:
    return await stack.enter_async_context(Valkey(tmp_path))


@pytest.fixture(params=SHARED)
def speaker(request: pytest.FixtureRequest) -> Speaker:
    shape: Shape = request.param
    return Speaker(shape)


@pytest.fixture
async def speaking(stack: AsyncExitStack, speaker: Speaker) -> list[Scripted]:
    return [await stack.enter_async_context(Scripted(speaker.script)) for _ in range(3)]


@pytest.fixture
async def pair(speaking: list[Scripted], start_router: StartRouter, valkey: Valkey) -> tuple[Router, Router]:
    section = {"redis": valkey.url, **PATIENT}
    one, two = await start_router(speaking, store=section), await start_router(speaking, store=section)
    await until(lambda: up(one, two))
    return one, two


async def told_all(router: Router) -> None:
    """Wait until the store has all that this router has to tell."""
    assert router.shared is not None
    store = router.shared.store
    await until(lambda: not any(flight.op is Op.NOTE for flight in store.flights.values()))


def recalled(router: Router) -> dict[str, int]:
    shared = router.memory.shared
    assert shared is not None
    return {of: count for of, count in shared.recalled.items() if count}


class Chat:
    """One conversation without an id."""

    def __init__(self, speaker: Speaker, opening: str, system: str = "") -> None:
        self.speaker, self.system = speaker, system
        self.entries: list[Entry] = [Asked(opening)]

    async def turn(self, router: Router, answer: str, following: str) -> Reply:
        self.speaker.next = Said(answer)
        path = PATHS[self.speaker.shape]
        reply = await send(router, path, request_body(self.speaker.shape, self.system, self.entries))
        assert reply.status == 200
        self.entries += [self.speaker.next, Asked(following)]
        await told_all(router)
        return reply


def apart(one: Router, two: Router, backends: list[Scripted]) -> None:
    """Let each router's own choice be another one."""
    only(one, backends[0], backends)
    only(two, backends[1], backends)


async def test_a_conversation_is_known_to_the_router_that_did_not_hear_it(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker
) -> None:
    apart(*pair, speaking)
    for i in range(6):
        chat = Chat(speaker, f"question {i}. ")
        first, second = pair if i % 2 else pair[::-1]
        backend = told(await chat.turn(first, f"answer {i} ", f"more {i}. "))[2]
        assert backend == speaking[0 if first is pair[0] else 1].name
        for n, router in enumerate((second, first, second, second, first)):
            reply = await chat.turn(router, f"answer {i} {n} ", f"more {i} {n}. ")
            assert told(reply) == ("content", "pin_hit", backend)
    assert {backend.name: backend.posts for backend in speaking[2:]} == {speaking[2].name: []}
    assert recalled(pair[0])["history"] >= 6


async def test_explain_asks_for_a_conversation_that_another_router_heard(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker
) -> None:
    one, two = pair
    apart(one, two, speaking)
    chat = Chat(speaker, "question. ")
    await chat.turn(one, "answer ", "more. ")
    body = json.loads(request_body(speaker.shape, "", chat.entries))
    found = await explained(two, body, path=PATHS[speaker.shape])
    assert (found["source"], found["known"], found["decision"]) == ("content", True, "pin_hit")
    assert (found["backend"], len(two.pins)) == (speaking[0].name, 0)


async def test_an_edit_and_a_repetition_are_known_too(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker
) -> None:
    one, two = pair
    apart(one, two, speaking)
    chat = Chat(speaker, "question. ")
    await chat.turn(one, "first answer ", "second question. ")
    await chat.turn(one, "second answer ", "third question. ")
    edited = Chat(speaker, "")
    edited.entries = [*chat.entries[:2], Asked("another second question. ")]
    assert told(await edited.turn(two, "other answer ", "on. "))[1:] == ("pin_hit", speaking[0].name)
    again = Chat(speaker, "")
    again.entries = chat.entries[:3]
    assert told(await again.turn(two, "second answer once more ", "on. "))[1:] == ("pin_hit", speaking[0].name)
    assert {len(b.posts) for b in speaking[1:]} == {0}


async def test_equal_openings_part_between_the_routers(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker
) -> None:
    one, two = pair
    chats = [Chat(speaker, "hello") for _ in range(12)]
    only(two, speaking[2], speaking)
    for i, chat in enumerate(chats):
        only(one, speaking[i // 6], speaking)
        await chat.turn(one, "Hello! How can I help?", f"task {i}")
    first = [told(await chat.turn(one, f"done {i}", "next")) for i, chat in enumerate(chats[:6])]
    rest = [told(await chat.turn(two, f"done too {i}", "next")) for i, chat in enumerate(chats[6:])]
    assert set(first) == {("content", "pin_hit", speaking[0].name)}
    assert set(rest) == {("content", "pin_hit", speaking[1].name)}  # those that nobody has gone on with yet


async def test_a_known_conversation_asks_nothing_of_the_store(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = pair
    looks: list[int] = []
    look = Notes.look

    async def counted(notes: Notes, names: dict[tuple[bytes, bytes], None]) -> dict[tuple[bytes, bytes], bytes]:
        looks.append(len(names))
        return await look(notes, names)

    monkeypatch.setattr(Notes, "look", counted)
    chat = Chat(speaker, "question. ")
    for n in range(5):
        await chat.turn(one, f"answer {n} ", f"question {n}. ")
    assert looks == []
    strange = Chat(speaker, "")
    strange.entries = [e for n in range(20) for e in (Asked(f"never heard {n}. "), Said(f"never said {n} "))]
    strange.entries.append(Asked("go on. "))
    await strange.turn(one, "well ", "next. ")
    assert len(looks) == 1  # in one question
    assert looks[0] <= 9


async def test_a_beginning_that_another_router_has_seen_draws_conversations(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker
) -> None:
    one, two = pair
    system = "You are one of many agents with the same instructions. " * 100
    only(one, speaking[2], speaking)
    for i in range(4):
        await Chat(speaker, f"task {i} of the first router", system).turn(one, "done ", "next")
    reply = await Chat(speaker, "task of the second router", system).turn(two, "done ", "next")
    assert told(reply)[1] in ("head", "ring_spill", "ring")
    assert recalled(two) == {"head": 1}
    shared = two.memory.heads
    assert any(place.backend == speaking[2].name for places in shared._known._young.values() for place in places)


async def test_a_stored_response_is_asked_of_its_maker_by_every_router(
    stack: AsyncExitStack, start_router: StartRouter, valkey: Valkey
) -> None:
    speaker = Speaker(Shape.RESPONSES)
    backends = [await stack.enter_async_context(Scripted(speaker.script)) for _ in range(3)]
    section = {"redis": valkey.url, **PATIENT}
    one, two = await start_router(backends, store=section), await start_router(backends, store=section)
    apart(one, two, backends)
    path = PATHS[Shape.RESPONSES]
    speaker.next = Said("hi")
    first = await send(one, path, request_body(Shape.RESPONSES, "", [Asked("hello")]))
    await told_all(one)
    body = request_body(Shape.RESPONSES, "", [Asked("and?")], previous_response_id="resp_1")
    assert told(await send(two, path, body))[1:] == ("owner", first.header("x-warmroute-backend"))
    assert two.memory.owners.unknown == 0
    async with await RawClient.connect(two.data_url) as client:
        client.send(b"GET /v1/responses/resp_1 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert told(await client.reply("GET"))[1:] == ("owner", first.header("x-warmroute-backend"))
    unknown = request_body(Shape.RESPONSES, "", [Asked("and?")], previous_response_id="resp_unheard_of")
    await send(two, path, unknown)
    assert two.memory.owners.unknown == 1
    assert recalled(two) == {"response": 1}
    assert 'warmroute_store_recalled_total{of="response"} 1.0' in await metrics(two)


async def test_while_the_store_is_down_each_router_knows_its_own(
    pair: tuple[Router, Router], speaking: list[Scripted], speaker: Speaker, valkey: Valkey
) -> None:
    one, two = pair
    apart(one, two, speaking)
    valkey.kill()
    await until(lambda: not up(one) and not up(two), within=5)
    chat = Chat(speaker, "question. ")
    assert told(await chat.turn(one, "answer ", "more. "))[2] == speaking[0].name
    assert told(await chat.turn(one, "answer 2 ", "more. ")) == ("content", "pin_hit", speaking[0].name)
    assert told(await chat.turn(two, "answer 3 ", "more. "))[2] == speaking[1].name  # as without a store
    await valkey.start()
    await until(lambda: up(one, two))
    other = Chat(speaker, "another question. ")
    await other.turn(one, "answer ", "more. ")
    assert told(await other.turn(two, "answer 2 ", "more. ")) == ("content", "pin_hit", speaking[0].name)


async def test_what_is_stored_tells_nothing_and_ends(
    pair: tuple[Router, Router], speaker: Speaker, valkey: Valkey
) -> None:
    canary = "canary-7b1e"
    chat = Chat(speaker, f"{canary} question " * 80, system=f"{canary} system " * 80)
    for n in range(3):
        await chat.turn(pair[n % 2], f"{canary} answer {n} ", f"{canary} more {n} ")
    seen = []
    async with valkey.client() as client:
        keys = [bytes(key) async for key in client.scan_iter("*")]
        kinds = Counter(key.decode().split(":")[1] for key in keys if key.count(b":") == 2)
        assert kinds["h"] >= 3  # one for each answer
        assert kinds["q"] == 3  # one for each question
        assert kinds["s"] >= 1
        for key in keys:
            value = await client.get(key)
            assert isinstance(value, bytes)
            seen += [key, value]
            assert 0 < await client.ttl(key) <= 24 * 3600
    written = b"\n".join(seen)
    assert canary.encode() not in written
    assert b"resp_" not in written
    digests = list(pair[0].memory.conversations._positions._young)
    assert digests
    assert all(d not in written and d.hex().encode() not in written for d in digests)  # keyed once more


@pytest.mark.parametrize("rubbish", [b"", b"1", b"1short", b"2" + b"x" * 16, b"1" + b"x" * 16 * 40, b"[1,2]", None])
async def test_stored_rubbish_is_ignored(
    stack: AsyncExitStack, start_router: StartRouter, valkey: Valkey, rubbish: bytes | None
) -> None:
    speaker = Speaker(Shape.CHAT)
    backends = [await stack.enter_async_context(Scripted(speaker.script)) for _ in range(3)]
    section = {"redis": valkey.url, **PATIENT}
    one, two = await start_router(backends, store=section), await start_router(backends, store=section)
    apart(one, two, backends)
    chat = Chat(speaker, "question. ")
    await chat.turn(one, "answer ", "more. ")
    await told_all(one)
    async with valkey.client() as client:
        async for key in client.scan_iter("warmroute:h:*"):
            await client.delete(key)
            await (client.rpush(key, "a", "b") if rubbish is None else client.set(key, rubbish))
    reply = await chat.turn(two, "answer 2 ", "more. ")
    assert reply.status == 200
    await until(lambda: up(one, two))
    assert two.shared is not None
    assert two.shared.ignored["unreadable"] == (rubbish is not None)
    assert told(await chat.turn(one, "answer 3 ", "more. "))[1] == "pin_hit"  # what was rubbish has been replaced


def test_held() -> None:
    a, b = b"a" * 16, b"b" * 16
    assert codec.read_held(b"1" + a) == (a, ())
    assert codec.read_held(b"1" + a + b + a) == (a, (b, a))


def test_owners() -> None:
    raw = codec.owner_value("gpu:1", None)
    assert codec.read_owner(raw) == ("gpu:1", None)
    of_another_version = json.dumps([2, "a", "", ""]).encode()
    for rubbish in (b"", b"[]", raw + b" " * 2000, b'[1,"",null,""]', b'[1,"a","zz",""]', of_another_version):
        assert codec.read_owner(rubbish) is None


async def test_texts_of_completions_are_known_to_one_router(
    stack: AsyncExitStack, start_router: StartRouter, valkey: Valkey
) -> None:
    speaker = Speaker(Shape.COMPLETIONS)
    backends = [await stack.enter_async_context(Scripted(speaker.script)) for _ in range(3)]
    one = await start_router(backends, store={"redis": valkey.url, **PATIENT})
    chat = Chat(speaker, "Once upon a time ")
    await chat.turn(one, "there was ", "a router ")
    assert told(await chat.turn(one, "that ", "knew "))[1] == "pin_hit"
    await asyncio.sleep(0)
    async with valkey.client() as client:
        assert [key async for key in client.scan_iter("warmroute:h:*")] == []
