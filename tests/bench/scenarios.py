"""What is asked of every router, and the figures that come of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from . import wrk
from .backend import MODEL
from .processes import Cpus, cpu_seconds, module, output_of

TOKENS_PER_S = 50
"""Pace of each stream."""

_GRACE_S = 40.0
_SENTENCE = "The cache is warm where the conversation was last. "


@dataclass(frozen=True, slots=True)
class Scenario:
    """`size` is the length of a request's body in bytes; all connections are kept alive and busy."""

    name: str
    kind: Literal["json", "stream"]
    size: int
    connections: int


SCENARIOS = (
    Scenario("JSON 8 KB, 1 connection", "json", 8 << 10, 1),
    Scenario("JSON 8 KB, 64 connections", "json", 8 << 10, 64),
    Scenario("JSON 200 KB, 16 connections", "json", 200 << 10, 16),
    Scenario(f"64 streams of {TOKENS_PER_S} tokens/s", "stream", 8 << 10, 64),
)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured: rounds over all routers, seconds of each scenario, and of warming up before it."""

    rounds: int = 3
    seconds: float = 4.0
    warm_up: float = 0.5

    @property
    def tokens(self) -> int:
        """Tokens of a stream: it takes half a scenario's time, so that each connection has more than one."""
        return max(2, round(self.seconds / 2 * TOKENS_PER_S))


QUICK = Extent(rounds=1, seconds=0.4, warm_up=0.0)


def body(size: int, *, stream: bool) -> bytes:
    """A chat request of exactly so many bytes: a system prompt, a history of turns and a new question.

    Messages are of some 300 bytes, or of a hundredth of the whole where that is more.
    """
    said = (_SENTENCE * (size // len(_SENTENCE) + 1))[: max(300, size // 100)]
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Go on."}]
    request: dict[str, object] = {"model": MODEL, "max_tokens": 100, "stream": stream, "messages": messages}

    def room() -> int:
        return size - len(json.dumps(request))

    turn = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
    turns = max(0, room() // (len(json.dumps(turn)) + 2))
    messages[1:1] = turn * turns
    messages[-1]["content"] = "Go on." + " " * max(0, room())
    return json.dumps(request).encode()


@dataclass(frozen=True, slots=True)
class Bench:
    """Where load comes from and what it is; `measure` puts it on one port."""

    extent: Extent
    cpus: Cpus
    scratch: Path

    @property
    def generator(self) -> str:
        """Who makes the JSON load: wrk counts whole seconds only, so a shorter run has the benchmark's own generator."""
        return "wrk" if wrk.available() and self.extent.seconds >= 1 else "the benchmark's own generator"

    def measure(self, scenario: Scenario, port: int, router: int | None) -> dict[str, float]:
        """One scenario at a port; `router` is the process whose CPU time counts. Figures by their name in the table.

        Raises BenchError.
        """
        if self.extent.warm_up:
            self._load(scenario, port, self.extent.warm_up)
        before = cpu_seconds(router) if router else 0.0
        seen = self._load(scenario, port, self.extent.seconds)
        used = cpu_seconds(router) - before if router else None
        return table_figures(scenario, seen, used)

    def _load(self, scenario: Scenario, port: int, seconds: float) -> Mapping[str, float]:
        file = self.scratch / f"{scenario.kind}-{scenario.size}.json"
        if not file.exists():
            file.write_bytes(body(scenario.size, stream=scenario.kind == "stream"))
        if scenario.kind == "json" and self.generator == "wrk" and seconds >= 1:
            return wrk.run(port, file, scenario.connections, round(seconds), self.cpus.rest, self.scratch)
        words = (scenario.kind, port, "--body", file, "--connections", scenario.connections)
        command = module("loadgen", *words, "--seconds", seconds, "--tokens", self.extent.tokens)
        found: dict[str, float] = json.loads(output_of(command, self.cpus.rest, seconds + _GRACE_S))
        return found


def table_figures(scenario: Scenario, seen: Mapping[str, float], used: float | None) -> dict[str, float]:
    """What a generator saw and the CPU seconds that a router used meanwhile -> the figures shown.

    A figure that nothing came of is left out; `used` is None where there is no router.
    """
    found: dict[str, float] = {}
    if scenario.kind == "stream":
        if used is not None and seen["events"]:
            found["CPU us/chunk"] = used * 1e6 / seen["events"]
        if "first_p50_ms" in seen:
            found["first byte p50 ms"] = seen["first_p50_ms"]
    else:
        if used is not None and seen["requests"]:
            found["CPU us/request"] = used * 1e6 / seen["requests"]
        found["requests/s"] = seen["requests"] / seen["seconds"]
        found |= {f"{name} ms": seen[f"{name}_ms"] for name in ("p50", "p99") if f"{name}_ms" in seen}
    found["failed"] = seen["failed"]
    return {f"{scenario.name}: {name}": value for name, value in found.items()}
