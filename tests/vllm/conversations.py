"""Many conversations at once through a router, judged by the servers' own counters."""

import asyncio
import json
import random
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import httpx

from tests.vllm.servers import MODEL, VllmServer
from warmroute.core import vllm_metrics
from warmroute.core.exposition import parse

_SYLLABLES = ["ka", "lo", "mi", "ren", "sa", "tu", "ve", "zor", "bin", "dal", "fes", "gir", "hop", "jun", "nar", "pol"]


def text(dice: random.Random, words: int) -> str:
    """So many words of no language."""
    return " ".join("".join(dice.choices(_SYLLABLES, k=dice.randint(2, 3))) for _ in range(words))


@dataclass
class Outcome:
    """What a run did: where each turn went, what went wrong, and what the servers counted meanwhile.

    `told` counts the decisions with their key sources, as the router's headers tell them.
    """

    served_by: dict[int, list[str]] = field(default_factory=dict)
    told: Counter[tuple[str | None, str | None]] = field(default_factory=Counter)
    failed_before_content: list[str] = field(default_factory=list)
    failed_after_content: list[str] = field(default_factory=list)
    queries: dict[str, float] = field(default_factory=dict)
    hits: dict[str, float] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        return sum(self.hits.values()) / sum(self.queries.values())

    @property
    def load_max_over_mean(self) -> float:
        return max(self.queries.values()) * len(self.queries) / sum(self.queries.values())

    def moves(self, after: int = 0) -> dict[int, int]:
        """How often each conversation changed its server after so many turns; those that never did are left out."""
        found = {}
        for number, servers in self.served_by.items():
            changes = sum(a != b for a, b in pairwise(servers[after:]))
            if changes:
                found[number] = changes
        return found


class Conversations:
    """`sessions` conversations of `turns` streamed turns each, after one system prompt that is new to every cache.

    With `same_opening` they all begin with the same question too, and go apart from the second turn on.
    """

    def __init__(
        self,
        url: str,
        servers: Sequence[VllmServer],
        *,
        sessions: int = 24,
        turns: int = 6,
        ids: bool = True,
        same_opening: bool = False,
        seed: int = 1,
    ) -> None:
        self.outcome = Outcome()
        self.turns_done = 0
        self._url, self._servers = url, servers
        self._sessions, self._turns, self._ids, self._seed = sessions, turns, ids, seed
        self._system = f"[{uuid.uuid4()}] " + text(random.Random(seed), 60)
        self._opening = text(random.Random(seed * 1000 - 1), 150) if same_opening else None

    async def run(self) -> Outcome:
        """Hold all conversations to their end; the counters are read before and after."""
        async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None)) as http:
            before = {s.url: await counters(http, s.url) for s in self._servers if s.running}
            await asyncio.gather(*(self._talk(http, number) for number in range(self._sessions)))
            for server in self._servers:
                if server.running:
                    queries, hits = await counters(http, server.url)
                    self.outcome.queries[server.url] = queries - before[server.url][0]
                    self.outcome.hits[server.url] = hits - before[server.url][1]
        return self.outcome

    async def _talk(self, http: httpx.AsyncClient, number: int) -> None:
        dice = random.Random(self._seed * 1000 + number)
        headers = {"x-session-id": str(uuid.uuid4())} if self._ids else {}
        messages = [{"role": "system", "content": self._system}]
        await asyncio.sleep(dice.random() * 2)
        for turn in range(self._turns):
            question = text(dice, 150)
            messages.append({"role": "user", "content": (self._opening if turn == 0 else None) or question})
            answer = await self._ask(http, number, messages, headers)
            if answer is None:
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})
            self.turns_done += 1
            await asyncio.sleep(0.5 + dice.random())

    async def _ask(
        self, http: httpx.AsyncClient, number: int, messages: list[dict[str, str]], headers: dict[str, str]
    ) -> str | None:
        """One turn; its answer, or None if it failed."""
        body = {
            "model": MODEL,
            "messages": messages,
            "stream": True,
            "max_tokens": 12,
            "temperature": 0,
            "ignore_eos": True,
        }
        answer = ""
        try:
            async with http.stream("POST", f"{self._url}/v1/chat/completions", json=body, headers=headers) as response:
                if response.status_code != 200:
                    raise _Failed(f"{response.status_code} {(await response.aread())[:200]!r}")
                told = response.headers
                self.outcome.served_by.setdefault(number, []).append(told["x-warmroute-backend"])
                self.outcome.told[told.get("x-warmroute-decision"), told.get("x-warmroute-key")] += 1
                ended = False
                async for line in response.aiter_lines():
                    ended = ended or line == "data: [DONE]"
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        if "error" in event:
                            raise _Failed(str(event["error"]))
                        answer += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
                if not ended:
                    raise _Failed("the stream ended without [DONE]")
        except (_Failed, httpx.HTTPError) as error:
            failed = self.outcome.failed_after_content if answer else self.outcome.failed_before_content
            failed.append(f"conversation {number}: {error!r}")
            return None
        return answer


class _Failed(Exception):
    """A turn that did not end well."""


async def counters(http: httpx.AsyncClient, url: str) -> tuple[float, float]:
    """The prefix-cache queries and hits of the server at this URL, in tokens since its start."""
    found = vllm_metrics.prefix_cache(parse((await http.get(f"{url}/metrics")).text, "it").values)
    assert found is not None
    return sum(found[0].values()), sum(found[1].values())
