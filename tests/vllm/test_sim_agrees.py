"""The simulated server hits its cache as a real vLLM does: the same requests in the same order, compared one by one."""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.vllm.conftest import StartServers
from tests.vllm.servers import MODEL
from warmroute.sim.backend import SimBackend, SimOptions

BLOCK = 32
# The tiny model has few words; its first ids are special tokens.
IDS = range(10, 3900)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass
class Side:
    """One of the two servers, and what has been said to it: conversations by name, as token ids."""

    name: str
    client: httpx.AsyncClient
    said: dict[str, list[int]] = field(default_factory=dict)
    last_prompt: dict[str, list[int]] = field(default_factory=dict)

    async def ask(self, prompt: Sequence[int], count: int, salt: str | None) -> tuple[list[int], int, int]:
        """Generate `count` ids; the ids, the prompt's tokens and how many of them were cached."""
        body = {
            "model": MODEL,
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        answer = await self.client.post("/v1/completions", json=body | ({"cache_salt": salt} if salt else {}))
        assert answer.status_code == 200, f"{self.name}: {answer.text}"
        reply: dict[str, Any] = answer.json()
        usage = reply["usage"]
        ids = reply["choices"][0]["token_ids"]
        assert len(ids) == count
        return ids, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    async def counters(self) -> dict[str, float]:
        """What the metrics page says of the prefix cache and of tokens."""
        page = (await self.client.get("/metrics")).text
        names = ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens", "num_preemptions")
        found = {name: _value(page, f"vllm:{name}_total{{[^}}]*}}") for name in names}
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            found[source] = _value(page, f'vllm:prompt_tokens_by_source_total{{[^}}]*source="{source}"}}')
        return found


class Pair:
    """The real server and the simulated one, asked the same things in the same order."""

    def __init__(self, real: Side, simulated: Side) -> None:
        self.real = real
        self.simulated = simulated
        self.requests = 0

    async def turn(self, name: str, new: Sequence[int], count: int, *, salt: str | None = None) -> int:
        """Say `new` in a conversation and let each side answer with `count` ids of its own; the tokens hit."""
        hits = []
        for side in (self.real, self.simulated):
            prompt = [*side.said.get(name, ()), *new]
            ids, queried, cached = await side.ask(prompt, count, salt)
            assert queried == len(prompt)
            side.last_prompt[name] = prompt
            side.said[name] = [*prompt, *ids]
            hits.append(cached)
        self.requests += 1
        at = f"request {self.requests}: conversation {name}, {queried} prompt tokens"
        assert hits[0] == hits[1], f"{at}: vLLM hit {hits[0]} tokens, the simulation {hits[1]}"
        return hits[0]

    async def repeat(self, name: str, count: int = 4) -> int:
        """The last prompt of a conversation again, word for word."""
        for side in (self.real, self.simulated):
            side.said[f"again {name}"] = list(side.last_prompt[name])
        return await self.turn(f"again {name}", [], count)

    def branch(self, name: str, source: str, kept: int) -> None:
        """A new conversation that begins with the first `kept` tokens of another."""
        for side in (self.real, self.simulated):
            side.said[name] = side.said[source][:kept]

    async def assert_counters_equal(self) -> None:
        """Both metrics pages say the same."""
        real, simulated = await self.real.counters(), await self.simulated.counters()
        assert real == simulated
        assert real["prefix_cache_queries"] > 0


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=[800, 300], ids=["roomy", "evicting"])
async def pair(request: pytest.FixtureRequest, vllm_servers: StartServers) -> AsyncIterator[Pair]:
    """A real server and a simulated one with the same cache, both cold."""
    blocks: int = request.param
    (server,) = vllm_servers(1, "--max-model-len", "4096", "--num-gpu-blocks-override", str(blocks))
    options = SimOptions(
        model=MODEL,
        block_size=BLOCK,
        num_blocks=blocks,
        max_model_len=4096,
        prefill_tokens_per_s=1e6,
        tokens_per_s=1e4,
    )
    async with (
        SimBackend(options) as simulated,
        httpx.AsyncClient(base_url=server.url, timeout=60, trust_env=False) as to_real,
        httpx.AsyncClient(base_url=simulated.url, timeout=60, trust_env=False) as to_simulated,
    ):
        yield Pair(Side("vLLM", to_real), Side("simulation", to_simulated))
    server.stop()


async def test_conversations_that_grow(pair: Pair) -> None:
    rng = random.Random(1)
    for turn in range(5):
        for name in ("a", "b", "c"):
            hit = await pair.turn(f"grow {name}", _ids(rng, rng.randrange(20, 200)), rng.randrange(1, 70))
            assert (hit > 0) == (turn > 0)
    await pair.assert_counters_equal()


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 96, 97])
async def test_prompts_around_the_border_of_a_block(pair: Pair, length: int) -> None:
    rng = random.Random(1000 + length)
    name = f"border {length}"
    assert await pair.turn(name, _ids(rng, length), 3) == 0
    assert await pair.repeat(name) == (length - 1) // BLOCK * BLOCK
    assert await pair.repeat(name) == (length - 1) // BLOCK * BLOCK
    await pair.turn(name, _ids(rng, 1), 2)


@pytest.mark.parametrize("generated", [1, 2, 31, 32, 33, 34])
async def test_blocks_that_fill_while_generating(pair: Pair, generated: int) -> None:
    rng = random.Random(2000 + generated)
    name = f"fill {generated}"
    await pair.turn(name, _ids(rng, 40), generated)
    # The last generated token has no KV: its block is full only once the next turn has computed it.
    assert await pair.turn(name, _ids(rng, 100), 1) == (40 + generated - 1) // BLOCK * BLOCK
    await pair.turn(name, _ids(rng, 1), 1)


async def test_branches_and_shared_prefixes(pair: Pair) -> None:
    rng = random.Random(3)
    await pair.turn("trunk", _ids(rng, 300), 20)
    for kept in (0, 31, 32, 33, 160, 290, 300, 310):
        pair.branch(f"branch {kept}", "trunk", kept)
        await pair.turn(f"branch {kept}", _ids(rng, 50), 10)
        await pair.turn(f"branch {kept}", _ids(rng, 50), 10)
    assert await pair.turn("trunk", _ids(rng, 10), 5) > 250
    await pair.assert_counters_equal()


async def test_salts_keep_equal_prompts_apart(pair: Pair) -> None:
    prompt = _ids(random.Random(4), 100)
    hits = [
        await pair.turn(f"salt {number}", prompt, 2, salt=salt)
        for number, salt in enumerate((None, "x", "y", "x", None))
    ]
    assert hits == [0, 0, 0, 96, 96]


async def test_more_conversations_than_the_cache_holds(pair: Pair) -> None:
    """14 conversations of up to 2,000 tokens: more than the 300 blocks of the small cache hold."""
    rng = random.Random(5)
    hits = []
    for _ in range(120):
        name = f"many {rng.randrange(14)}"
        if len(pair.real.said.get(name, ())) > 2000:
            pair.branch(name, name, rng.randrange(200, 1500))
        kind = rng.random()
        if kind < 0.1 and name in pair.real.last_prompt:
            hits.append(await pair.repeat(name, rng.randrange(1, 40)))
        else:
            hits.append(await pair.turn(name, _ids(rng, rng.randrange(1, 400)), rng.randrange(1, 80)))
    await pair.assert_counters_equal()
    assert sum(hits) > 0


async def test_a_prompt_that_evicts_everything(pair: Pair) -> None:
    rng = random.Random(6)
    names = [f"huge {number}" for number in range(4)]
    for name in names:
        await pair.turn(name, _ids(rng, 3000), 40)
    for name in (*names, *reversed(names)):
        await pair.turn(name, _ids(rng, 5), 5)
    await pair.assert_counters_equal()


def _ids(rng: random.Random, count: int) -> list[int]:
    return [rng.choice(IDS) for _ in range(count)]


def _value(page: str, series: str) -> float:
    match = re.search(f"^{series} (.+)$", page, re.MULTILINE)
    assert match, f"no {series} on the page"
    return float(match[1])
