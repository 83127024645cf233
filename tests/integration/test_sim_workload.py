"""The chat workload, the round robin shadow, and the demo that joins them with the router."""

from __future__ import annotations

import asyncio
import io
import random
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import httpx
import pytest
import uvloop

from warmroute import demo
from warmroute.sim.backend import SimBackend, SimOptions
from warmroute.sim.chatter import PERSONAS, follow_up, opening, pasted_notes, system_prompt
from warmroute.sim.shadow import RoundRobinShadow
from warmroute.sim.workload import Habits, Script, Turn, Workload

FAST = SimOptions(prefill_tokens_per_s=1e6, tokens_per_s=1e4)
BRISK = Habits(think_s=(0.0, 0.01), turns=(2, 5), answer_tokens=(5, 20), note_sentences=(5, 10))


@dataclass
class Log:
    """Remembers the requests of a workload."""

    begun: list[Turn] = field(default_factory=list)
    over: list[Turn] = field(default_factory=list)

    def started(self, turn: Turn) -> None:
        self.begun.append(turn)

    def ended(self, turn: Turn) -> None:
        self.over.append(turn)

    def said(self) -> dict[str, list[str]]:
        """By session what its user said, first to last."""
        found: dict[str, list[str]] = defaultdict(list)
        for turn in self.begun:
            found[turn.session].append(turn.messages[-1]["content"])
        return found


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition did not come true in 5 s")


@pytest.fixture
async def backend() -> AsyncIterator[SimBackend]:
    async with SimBackend(FAST) as started:
        yield started


async def test_users_hold_conversations_that_grow_by_the_answers_they_got(backend: SimBackend) -> None:
    log = Log()
    workload = Workload(backend.url, users=4, habits=replace(BRISK, leaving=0.0), listener=log)
    await workload.run(1.0)
    stats = workload.stats()
    assert (stats.errors, stats.left, stats.last_error) == (0, 0, None)
    assert stats.requests > 20
    assert stats.conversations > 4
    assert stats.ttft_p50 is not None
    assert 0 < stats.ttft_p50 < 1
    assert len({turn.session for turn in log.begun}) == stats.conversations
    answered = {(turn.session, len(turn.messages)): turn.answer for turn in log.over if turn.complete}
    later = [turn for turn in log.begun if len(turn.messages) > 2]
    assert later
    for turn in later:
        assert turn.messages[-2] == {
            "role": "assistant",
            "content": answered[turn.session, len(turn.messages) - 2],
        }
    assert {log.begun[0].messages[0]["role"], log.begun[0].messages[-1]["role"]} == {"system", "user"}
    counters = backend.engines[0].cache.counters
    assert 0 < stats.cached_tokens <= counters.hits
    assert stats.prompt_tokens <= counters.queries


async def test_the_same_seed_says_the_same_whatever_the_server_is_like(backend: SimBackend) -> None:
    logs = []
    async with SimBackend(replace(FAST, seed=9)) as other:
        for server, seed in ((backend, 3), (other, 3), (backend, 4)):
            log = Log()
            await Workload(server.url, users=2, seed=seed, habits=BRISK, listener=log).run(0.5)
            logs.append(log.said())
    same, again, different = logs
    common = same.keys() & again.keys()
    assert len(common) > 2
    for session in common:
        length = min(len(same[session]), len(again[session]))
        assert same[session][:length] == again[session][:length]
    assert same["user-0-0"] != different["user-0-0"]


async def test_some_users_leave_in_mid_stream_which_is_no_error() -> None:
    async with SimBackend(replace(FAST, tokens_per_s=500.0)) as backend:
        log = Log()
        workload = Workload(backend.url, users=4, habits=replace(BRISK, leaving=1.0), listener=log)
        await workload.run(1.0)
        assert workload.stats().left > 5
        assert workload.stats().errors == 0
        assert any(turn.answer and not turn.complete for turn in log.over)
        (engine,) = backend.engines
        await until(lambda: engine.running == engine.waiting == 0)
        assert engine.cache.usage == 0


async def test_failures_are_counted_and_told_and_the_users_go_on(backend: SimBackend) -> None:
    pauses = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.002)

    wrong = Workload(backend.url, users=2, model="nobody", sleep=pause)
    await wrong.run(0.3)
    stats = wrong.stats()
    assert stats.errors == stats.requests > 2
    assert stats.last_error is not None
    assert stats.last_error.startswith("status 404: ")
    url = backend.url
    await backend.stop()
    gone = Workload(url, users=1, sleep=pause)
    await gone.run(0.2)
    assert gone.stats().errors > 0
    assert pauses


async def test_a_server_that_dies_in_mid_stream_is_a_failure() -> None:
    async with SimBackend(replace(FAST, tokens_per_s=50.0)) as backend:
        log = Log()
        habits = replace(BRISK, answer_tokens=(60, 60), leaving=0.0)
        workload = Workload(backend.url, users=1, habits=habits, listener=log)
        running = asyncio.ensure_future(workload.run(5.0))
        (engine,) = backend.engines
        await until(lambda: engine.counters.generation_tokens > 5)
        await backend.stop()
        await until(lambda: workload.stats().errors > 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert workload.stats().errors == 1
    assert log.over[0].error is not None
    assert not log.over[0].complete


def test_a_crowd_is_served_on_uvloop_too() -> None:
    async def crowd() -> None:
        async with SimBackend(replace(FAST, tokens_per_s=1000.0)) as backend:
            workload = Workload(backend.url, users=12, habits=replace(BRISK, leaving=0.3))
            await workload.run(0.7)
            assert workload.stats().requests > 20
            assert workload.stats().errors == 0, workload.stats().last_error

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(crowd())


def test_a_workload_needs_somebody_who_talks() -> None:
    with pytest.raises(ValueError, match="users is 0; give at least 1"):
        Workload("http://127.0.0.1:1", users=0)


def test_messages_read_like_chat_and_leave_no_gap_unfilled() -> None:
    rng = random.Random(0)
    texts = [opening(rng) for _ in range(300)] + [follow_up(rng) for _ in range(300)] + [pasted_notes(rng, 20)]
    assert not [text for text in texts if "{" in text or "}" in text]
    assert all(text[0].isupper() and text[-1] in ".?" for text in texts)
    assert len(set(texts)) > 250
    prompts = [system_prompt(persona) for persona in range(PERSONAS)]
    assert len({prompt[:40] for prompt in prompts}) == PERSONAS


# The shadow.


def test_the_shadow_deals_in_turn_and_each_cache_knows_only_its_own() -> None:
    shadow = RoundRobinShadow(2, num_blocks=100, block_size=4)
    prompt = list(range(20))
    hits = []
    for number in range(4):
        hits.append(shadow.started(number, prompt))
        shadow.ended(number, [1, 2])
    assert hits == [0, 0, 16, 16]
    assert (shadow.counters.queries, shadow.counters.hits) == (80, 32)


async def test_the_shadow_of_one_server_hits_what_a_server_hits() -> None:
    """One shadow cache and one server, the same conversations in the same order, with eviction: the same counters."""
    shadow = RoundRobinShadow(1, num_blocks=150, block_size=16)
    listener = demo.ShadowListener(shadow)
    rng = random.Random(2)
    scripts = [Script(rng, Habits(turns=(5, 5), note_sentences=(20, 40))) for _ in range(8)]
    chats = [[{"role": "system", "content": script.system}] for script in scripts]
    server = SimBackend(replace(FAST, num_blocks=150, max_model_len=2000))
    async with server, httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        for number in range(5):
            for script, chat in zip(scripts, chats, strict=True):
                planned = script.turns[number]
                chat.append({"role": "user", "content": planned.message})
                turn = Turn("any", list(chat), planned.max_tokens, None)
                listener.started(turn)
                body = {"messages": chat, "max_tokens": planned.max_tokens}
                (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
                turn.answer, turn.stopped = choice["message"]["content"], choice["finish_reason"] == "stop"
                listener.ended(turn)
                chat.append({"role": "assistant", "content": turn.answer})
        (engine,) = server.engines
    assert engine.cache.counters == shadow.counters
    assert 0.1 < shadow.counters.hit_rate < 0.7


def test_the_shadow_counts_a_request_without_room_as_a_miss() -> None:
    shadow = RoundRobinShadow(1, num_blocks=5, block_size=4)
    assert shadow.started("a", range(12)) == 0
    assert shadow.started("b", range(100, 112)) == 0
    shadow.ended("b", [1])
    shadow.ended("a", [1])
    assert shadow.started("c", range(12)) == 8
    assert (shadow.counters.queries, shadow.counters.hits) == (36, 8)
    with pytest.raises(ValueError, match="servers is 0"):
        RoundRobinShadow(0, 5, 4)


# The demo.


async def test_the_demo_ends_by_itself_with_a_better_hit_rate_than_round_robin() -> None:
    out = io.StringIO()
    assert await demo.run(4.0, users=12, out=out, report_every=1.5) == 0
    text = out.getvalue()
    assert re.match(r"dashboard: http://127\.0\.0\.1:\d+/   model API: http://127\.0\.0\.1:\d+\n", text)
    reports = re.findall(r"^hit rate (\S+) \(round robin (\S+)\)   requests (\d+)   sessions \d+", text, re.MULTILINE)
    assert len(reports) == 2
    assert int(reports[1][2]) > int(reports[0][2]) > 0
    (affinity,) = re.findall(r"warmroute +│ +(\S+) │ +\S+ of \S+ │ +\d+ ms", text)
    (round_robin,) = re.findall(r"round robin +│ +(\S+) │", text)
    assert float(affinity) > float(round_robin) + 0.1
    assert "failed" not in text


async def test_a_cancelled_demo_prints_its_table_too() -> None:
    out = io.StringIO()
    running = asyncio.ensure_future(demo.run(None, users=2, backends=2, out=out, report_every=0.1))
    await until(lambda: "hit rate" in out.getvalue())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert "round robin" in out.getvalue()


def test_the_caches_of_a_demo_grow_with_its_users() -> None:
    assert demo.demo_options(24, 3).num_blocks == 560
    assert demo.demo_options(2, 4).num_blocks == 300
