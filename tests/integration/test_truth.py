"""The account of prompt tokens through a running router: what clients send and backends say, in metrics and JSON."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from warmroute.app import Router
from warmroute.core.questions import USAGE

from .conftest import StartRouter, until
from .scripted import RawClient, Reply, Scripted, Talk, role, token

BLOCK = 16


class Caching:
    """Backends that have every whole block of what they were told before, and say so; a token is four bytes of content."""

    def __init__(self, backends: list[Scripted]) -> None:
        self.seen: dict[str, list[str]] = {b.name: [] for b in backends}
        self.bodies: list[bytes] = []
        for backend in backends:
            backend.script = self._script(backend)

    def _script(self, backend: Scripted) -> Any:
        async def script(talk: Talk) -> None:
            self.bodies.append(talk.seen.body)
            body = json.loads(talk.seen.body)
            text = "".join(f"{m['role']}:{m['content']}\n" for m in body["messages"])
            usage = self._usage(self.seen[backend.name], text)
            self.seen[backend.name].append(text + "assistant:" + ANSWER)
            if not body.get("stream"):
                talk.json({"choices": [{"message": {"role": "assistant", "content": ANSWER}}], "usage": usage})
                return
            talk.stream_head()
            for event in streamed(usage if (body.get("stream_options") or {}).get("include_usage") else None):
                talk.event(event)
            talk.end()

        return script

    @staticmethod
    def _usage(seen: list[str], text: str) -> dict[str, Any]:
        tokens, common = len(text) // 4, 0
        for known in seen:
            same = next(
                (i for i, (a, b) in enumerate(zip(known, text, strict=False)) if a != b), min(len(known), len(text))
            )
            common = max(common, same // 4)
        cached = min(common, tokens - 1) // BLOCK * BLOCK
        return {
            "prompt_tokens": tokens,
            "completion_tokens": len(ANSWER) // 4,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


ANSWER = "This is what the model says to that. " * 8


def streamed(usage: dict[str, Any] | None) -> Iterator[object]:
    yield role()
    yield token(ANSWER)
    yield {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    if usage is not None:
        yield {"id": "c", "choices": [], "usage": usage}
    yield b"[DONE]"


@pytest.fixture
def caching(backends: list[Scripted]) -> Caching:
    return Caching(backends)


class Chat:
    """One conversation of a client that sends its whole history each turn."""

    def __init__(self, router: Router, session: str, system: str = "Be kind. " * 60) -> None:
        self.router, self.session = router, session
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}]

    async def turn(self, **fields: object) -> Reply:
        self.messages.append({"role": "user", "content": f"Question {len(self.messages)}? " * 6})
        async with await RawClient.connect(self.router.data_url) as client:
            client.post({"model": "m", "messages": self.messages, **fields}, {"x-session-id": self.session})
            reply = await client.reply()
        self.messages.append({"role": "assistant", "content": ANSWER})
        return reply


async def state(router: Router) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
        found: dict[str, Any] = (await http.get("/api/state")).json()
        return found


async def get(router: Router, path: str) -> Any:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
        return (await http.get(path)).json()


async def metrics(router: Router) -> str:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
        return (await http.get("/metrics")).text


async def test_streams_are_asked_for_their_usage_and_clients_do_not_see_it(router: Router, caching: Caching) -> None:
    chat = Chat(router, "s")
    quiet = await chat.turn(stream=True)
    asks = await chat.turn(stream=True, stream_options={"include_usage": True})
    assert USAGE in caching.bodies[0]
    assert USAGE not in caching.bodies[1]
    assert b"prompt_tokens" not in quiet.body
    assert quiet.body.endswith(b'"finish_reason": "stop"}]}\n\ndata: [DONE]\n\n')
    assert b"prompt_tokens" in asks.body
    told = [record.usage for record in router.counters.recent]
    assert all(usage.prompt and usage.cached is not None and usage.completion for usage in told)


async def test_every_token_of_three_turns_has_an_outcome_and_they_add_up(router: Router, caching: Caching) -> None:
    chats = [Chat(router, f"s{i}", f"I am number {i}. " * 40) for i in range(4)]
    for stream in (False, True, True):
        for chat in chats:
            assert (await chat.turn(stream=stream)).status == 200
    await until(lambda: router.counters.total == 12)
    truth = (await state(router))["truth"]
    tokens = truth["tokens"]
    assert sum(tokens.values()) == sum(r.usage.prompt or 0 for r in router.counters.recent)
    assert tokens["reused"] == sum(r.usage.cached or 0 for r in router.counters.recent) > 0
    assert tokens["moved"] == tokens["evicted"] == tokens["prompt_changed"] == tokens["unknown"] == 0
    assert truth["missed"] == []
    page = await metrics(router)
    shown = re.findall(r'^warmroute_prompt_tokens_total\{backend="[^"]*",outcome="(\w+)"\} ([\d.]+)$', page, re.M)
    assert sum(float(value) for _, value in shown) == sum(tokens.values())
    history = (await get(router, "/api/history"))["truth"]
    assert {name: sum(row) for name, row in history["outcomes"].items()} == tokens


async def test_a_clock_in_the_system_prompt_is_named(router: Router, caching: Caching) -> None:
    chat = Chat(router, "s")
    for minute in range(4):
        chat.messages[0]["content"] = f"It is 2026-11-30 12:0{minute}. " + "Be kind. " * 60
        await chat.turn()
    await until(lambda: router.counters.total == 4)
    truth = (await state(router))["truth"]
    assert {(row["outcome"], row["cause"]) for row in truth["missed"]} == {("prompt_changed", "clock")}
    (row,) = truth["stability"]
    assert (row["source"], row["turns"], row["changes"], row["parts"]) == (
        "x-session-id",
        3,
        {"clock": 3},
        {"system": 3},
    )
    assert 'warmroute_prompt_changes_total{cause="clock",source="x-session-id"} 3.0' in await metrics(router)


async def test_a_dead_backend_is_the_cause_of_a_move(
    router: Router, caching: Caching, backends: list[Scripted]
) -> None:
    chat = Chat(router, "s")
    home = (await chat.turn()).header("x-warmroute-backend")
    await next(b for b in backends if b.name == home).stop()
    moved = await chat.turn()
    assert moved.header("x-warmroute-backend") != home
    await until(lambda: router.counters.total == 2)
    (row,) = (await state(router))["truth"]["missed"]
    assert (row["backend"], row["outcome"], row["cause"]) == (moved.header("x-warmroute-backend"), "moved", "failover")
    assert row["tokens"] > 100


async def test_a_drain_is_the_cause_of_a_move(router: Router, caching: Caching) -> None:
    chat = Chat(router, "s")
    home = (await chat.turn()).header("x-warmroute-backend") or ""
    router.registry.drain(home, on=True, until=0.0)
    await until(lambda: router.registry.backends[home].drain.over)
    await chat.turn()
    await until(lambda: router.counters.total == 2)
    (row,) = (await state(router))["truth"]["missed"]
    assert (row["outcome"], row["cause"]) == ("moved", "drain")


async def test_a_session_shows_its_turns(router: Router, caching: Caching) -> None:
    chat = Chat(router, "s")
    for _ in range(3):
        await chat.turn()
    await until(lambda: router.counters.total == 3)
    ((session,),) = [(await get(router, "/api/sessions"))["sessions"]]
    assert session["last_decision"] == "pin_hit"
    found = await get(router, f"/api/sessions/{session['session']}/turns")
    assert [sum(turn["outcomes"].values()) for turn in found["turns"]] == [t["prompt_tokens"] for t in found["turns"]]
    assert found["hit_ratio"] == session["hit_ratio"] > 0.5
    assert "remembered" in (await get(router, "/api/sessions/nobody/turns"))["detail"]


async def test_requests_without_a_conversation_count_too(router: Router, caching: Caching) -> None:
    async with await RawClient.connect(router.data_url) as client:
        client.post({"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 400}]})
        assert (await client.reply()).status == 200
    await until(lambda: router.counters.total == 1)
    assert (await state(router))["truth"]["tokens"]["first_turn"] == 101


async def test_switched_off_nothing_is_asked_and_nothing_told(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    router = await start_router(backends, truth={"enabled": False})
    caching = Caching(backends)
    await Chat(router, "s").turn(stream=True)
    assert USAGE not in caching.bodies[0]
    await Chat(router, "t").turn()  # which tells its usage unasked
    await until(lambda: router.counters.total == 2)
    assert router._kept.ledger.tally.totals().total() == 0
    assert (await state(router))["truth"] is None
    assert "warmroute_prompt_tokens_total" not in await metrics(router)
    assert (await get(router, "/api/sessions"))["total"] == 2
