"""Streams on real vLLM servers outlive the death of their server: token for token what they would have been."""

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.serving import Serving, serving, until_ready
from tests.vllm.conftest import StartServers
from tests.vllm.conversations import Conversations
from tests.vllm.servers import MODEL, VllmServer

STREAMS = 12
TOKENS = 1000
UNDER_WAY = 40
"""Events after which a stream is surely in its middle."""
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_WORDS = ["alpha", "beta", "gamma", "ünïcode", "日本", "привет", "😀"]


@dataclass
class Streamed:
    """What one client got of its stream; `events` counts while it runs."""

    backend: str = ""
    events: int = 0
    text: str = ""
    done: int = 0
    errors: list[object] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    roles: int = 0
    finish: list[str] = field(default_factory=list)
    usages: list[dict[str, Any]] = field(default_factory=list)
    told_tokens: bool = False

    @property
    def whole(self) -> bool:
        return self.done == 1 and not self.errors and self.finish == ["length"] and len(self.ids) == 1

    @property
    def counted(self) -> list[tuple[int, int, int]]:
        return [(u["prompt_tokens"], u["completion_tokens"], u["total_tokens"]) for u in self.usages]


def request(kind: str, number: int, **fields: object) -> dict[str, Any]:
    words = f"chat {number}: " + " ".join(random.Random(number).choices(_WORDS, k=60))
    prompt = {"messages": [{"role": "user", "content": words}]} if kind == "chat" else {"prompt": words}
    asked = {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    return {**asked, **prompt, "stream_options": {"include_usage": True}, **fields}


async def stream(
    http: httpx.AsyncClient, url: str, kind: str, number: int, into: Streamed, **fields: object
) -> Streamed:
    body, headers = request(kind, number, **fields), {"x-session-id": f"{kind}-{number}"}
    async with http.stream("POST", url + PATHS[kind], json=body, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        into.backend = response.headers.get("x-warmroute-backend", "")
        async for line in response.aiter_lines():
            if line == "data: [DONE]":
                into.done += 1
            elif line.startswith("data: "):
                take(into, json.loads(line[6:]))
    return into


def take(into: Streamed, event: dict[str, Any]) -> None:
    into.events += 1
    if "error" in event:
        into.errors.append(event["error"])
        return
    into.ids.add(event["id"])
    into.told_tokens |= bool(event.get("prompt_token_ids"))
    for choice in event["choices"]:
        into.roles += "role" in choice.get("delta", {})
        into.text += choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        into.told_tokens |= bool(choice.get("token_ids") or choice.get("prompt_token_ids"))
        if choice["finish_reason"]:
            into.finish.append(choice["finish_reason"])
    if event.get("usage"):
        into.usages.append(event["usage"])


async def side_by_side(urls: Sequence[str], kind: str, into: list[Streamed], **fields: object) -> list[Streamed]:
    """Twelve streams at once, dealt over these servers."""
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as http:
        runs = (stream(http, urls[n % len(urls)], kind, n, one, **fields) for n, one in enumerate(into))
        return await asyncio.gather(*runs)


def busiest(running: Sequence[Streamed], servers: Sequence[VllmServer]) -> tuple[VllmServer, int]:
    """The server with the most streams that are well under way, and how many those are."""
    under_way = Counter(one.backend for one in running if not one.done and one.events >= UNDER_WAY)
    (name, count), *_ = under_way.most_common(1) or [("", 0)]
    return next((s for s in servers if s.url.endswith(name)), servers[0]), count


async def broken_streams(router: Serving) -> dict[str, float]:
    async with httpx.AsyncClient() as http:
        text = (await http.get(f"{router.admin}/metrics")).text
    found = re.findall(r'^warmroute_broken_streams_total\{outcome="(\w+)"\} (\S+)$', text, re.M)
    return {outcome: float(count) for outcome, count in found}


async def restarted(router: Serving, server: VllmServer) -> None:
    """Start a server again; returns when the router would send it requests, be it one for a trial."""
    await asyncio.to_thread(server.start)
    async with asyncio.timeout(30), httpx.AsyncClient() as http:
        while True:
            backends = (await http.get(f"{router.admin}/api/state")).json()["backends"]
            if all(b["state"] in ("up", "trial") for b in backends):
                return
            await asyncio.sleep(0.05)


async def test_streams_and_conversations_outlive_their_servers(vllm_servers: StartServers) -> None:
    servers = await asyncio.to_thread(vllm_servers, 3)
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=3)
        await _every_stream_ends_as_if_nothing_had_died(router, servers, "chat")
        await _every_stream_ends_as_if_nothing_had_died(router, servers, "chat", repetition_penalty=1.3)
        await _every_stream_ends_as_if_nothing_had_died(router, servers, "completions")
        for victim in servers:
            await _conversations_do_not_notice_a_death(router, servers, victim)


async def _every_stream_ends_as_if_nothing_had_died(
    router: Serving, servers: list[VllmServer], kind: str, tries: int = 3, **fields: object
) -> None:
    unbroken = await side_by_side([s.url for s in servers], kind, [Streamed() for _ in range(STREAMS)], **fields)
    assert all(one.whole for one in unbroken)
    before = (await broken_streams(router)).get("resumed", 0)
    running = [Streamed() for _ in range(STREAMS)]
    task = asyncio.ensure_future(side_by_side([router.data], kind, running, **fields))
    async with asyncio.timeout(120):
        while busiest(running, servers)[1] < STREAMS // 4:
            await asyncio.sleep(0.05)
    victim, _ = busiest(running, servers)
    at = [one.events for one in running]
    await asyncio.to_thread(victim.kill)
    ended = await task
    outcomes = await broken_streams(router)
    resumed = outcomes.get("resumed", 0) - before
    equal = [one.text == other.text for one, other in zip(ended, unbroken, strict=True)]
    equals = f"whole {sum(one.whole for one in ended)}, equal {sum(equal)}"
    print(f"{kind} {fields}: killed after {at} events; {equals}, resumed {resumed}")
    assert [one.errors for one in ended] == [[]] * STREAMS
    assert all(one.whole for one in ended)
    if not resumed and tries > 1:  # its streams had ended, and only this client had not read all of them yet
        await restarted(router, victim)
        await _every_stream_ends_as_if_nothing_had_died(router, servers, kind, tries - 1, **fields)
        return
    assert resumed > 0
    assert {outcome for outcome, count in outcomes.items() if count} == {"resumed"}
    assert [one.roles for one in ended] == [one.roles for one in unbroken]
    assert not any(one.told_tokens for one in ended)
    assert [one.counted for one in ended] == [one.counted for one in unbroken]
    assert equal == [True] * STREAMS, [
        difference(one.text, other.text) for one, other in zip(ended, unbroken, strict=True)
    ]
    await restarted(router, victim)


def difference(text: str, other: str) -> str | None:
    """Where two texts part, and how they go on; None if they are equal."""
    at = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    return (
        None
        if text == other
        else f"at {at} of {len(other)}: {text[at - 10 : at + 20]!r}, not {other[at - 10 : at + 20]!r}"
    )


async def _conversations_do_not_notice_a_death(router: Serving, servers: list[VllmServer], victim: VllmServer) -> None:
    run = Conversations(router.data, servers, sessions=STREAMS, turns=8, seed=servers.index(victim) + 11)
    task = asyncio.ensure_future(run.run())
    async with asyncio.timeout(120):
        while run.turns_done < 2 * STREAMS:
            await asyncio.sleep(0.05)
    await asyncio.to_thread(victim.kill)
    outcome = await task
    dead = victim.url.removeprefix("http://")
    print(f"killed {dead}: moves {outcome.moves()}")
    assert outcome.failed_before_content + outcome.failed_after_content == []
    assert run.turns_done == STREAMS * 8
    assert {number for number, seen in outcome.served_by.items() if seen[0] == dead} == set(outcome.moves())
    assert {outcome for outcome, count in (await broken_streams(router)).items() if count} == {"resumed"}
    await restarted(router, victim)


@pytest.mark.parametrize("flags", [("--stream-interval", "4")], ids=" ".join)
async def test_several_tokens_an_event_change_nothing(vllm_servers: StartServers, flags: tuple[str, ...]) -> None:
    """An event's last token may have begun a character. A server that is given such a prompt says all of it once more."""
    servers = await asyncio.to_thread(vllm_servers, 2, *flags)
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=2)
        # Only the first bytes of characters, and what follows them, may be said: most events end within one.
        allowed = await _beginnings(servers[0])
        fields = {"allowed_token_ids": allowed, "max_tokens": 1200, "temperature": 1.0, "skip_special_tokens": False}
        running = [Streamed() for _ in range(4)]
        task = asyncio.ensure_future(side_by_side([router.data], "chat", running, **fields))
        async with asyncio.timeout(120):
            while busiest(running, servers)[1] < 2:
                await asyncio.sleep(0.02)
        victim, _ = busiest(running, servers)
        await asyncio.to_thread(victim.kill)
        for number, one in enumerate(await task):
            assert f"chat {number}:" not in one.text
            assert one.whole, one
            assert [count[1] for count in one.counted] == [1200]


async def _beginnings(server: VllmServer) -> list[int]:
    """Tokens that are part of a character, and a few that are not."""
    async with httpx.AsyncClient() as http:
        body = {"model": MODEL, "prompt": "".join(chr(c) for c in range(0xA1, 0x250)), "add_special_tokens": False}
        found = (await http.post(f"{server.url}/tokenize", json=body)).json()["tokens"]
    return sorted(set(found))
