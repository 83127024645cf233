"""Owns what happens: real vLLM servers behind a router are killed and come back, and what its clients got is written down."""

import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import httpx

from tests.bench.processes import BenchError, stop, until_answers
from tests.bench.routers import ROUTERS
from tests.vllm.asking import TURNS, Answer, Ask, Clients, answer_to, new_client
from tests.vllm.conversations import counters
from tests.vllm.servers import VllmServer, start_servers, stop_servers

CLIENTS, STREAMS = 8, 12
STREAM_TOKENS, JSON_TOKENS, CHAT_TOKENS = 150, 60, 8
ROTATION_S = 180.0
"""How long a healthy server may be left without a request until that is told instead of waited for."""
BUSY_S = 60.0
"""The same for a server that is to be killed, since one that is at work tells more."""
_KINDS = (("chat", True), ("chat", False), ("completions", True), ("completions", False))
_POLL_S, _RETRY_S, _PAUSE_S = 0.05, 0.2, 0.5


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# Routers


@dataclass(frozen=True)
class Routed:
    """A router that runs: where its clients ask, and where it tells its metrics, if it is ours."""

    name: str
    url: str
    admin: str | None


@contextlib.contextmanager
def routed(name: str, servers: Sequence[VllmServer], scratch: Path, flags: Sequence[str] = ()) -> Iterator[Routed]:
    """A router of tests.bench.routers before these servers for the length of the block. Raises BenchError."""
    command = ROUTERS[name].find()
    if command is None:
        raise BenchError(f"{name} is not installed ({ROUTERS[name].package})")
    start, log = ROUTERS[name].start(command, [s.port for s in servers], scratch), scratch / f"{name}.log"
    words = [*start.command, *flags]
    with log.open("ab") as sink:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, text=True, start_new_session=True
        )
    try:
        probe = json.dumps(Ask("chat", False, -1, 0, 0, 1).body()).encode()
        until_answers(start.port, probe, process, log)
        admin = words[words.index("--admin-port") + 1] if "--admin-port" in words else None
        yield Routed(name, f"http://127.0.0.1:{start.port}", f"http://127.0.0.1:{admin}" if admin else None)
    finally:
        stop(process)


async def told(http: httpx.AsyncClient, router: Routed) -> dict[str, float]:
    """What our router counted of broken exchanges so far; nothing of another router."""
    if router.admin is None:
        return {}
    text = (await http.get(f"{router.admin}/metrics")).text
    found = re.findall(r'^warmroute_(retries|broken_streams)_total\{\w+="(\w+)"\} (\S+)$', text, re.M)
    return {f"{what}: {label}": float(value) for what, label, value in found if float(value)}


# Servers


async def running_on(http: httpx.AsyncClient, server: VllmServer) -> int:
    """Requests that the engine of this server is at."""
    text = (await http.get(f"{server.url}/metrics")).text
    return int(sum(float(value) for value in re.findall(r"^vllm:num_requests_running\{.*\} (\S+)$", text, re.M)))


async def started(servers: Sequence[VllmServer]) -> None:
    """Start servers side by side; cancelled, it stops them first, since a thread that waits for a start cannot be."""
    try:
        await asyncio.to_thread(start_servers, servers)
    except asyncio.CancelledError:
        stop_servers(servers)
        raise


@dataclass
class Restart:
    """One server that was killed and came back, in seconds: from its death to /health 200, from there to its next request.

    `ran` is how many requests its engine was at when it was killed, `at` that moment by the monotonic clock; `served_again`
    is None if it got none in 180 s.
    """

    ran: int
    at: float
    down: float = 0.0
    served_again: float | None = None


async def restart(http: httpx.AsyncClient, server: VllmServer) -> Restart:
    """Kill a server that is at work, start it again, and wait until it has been given a request."""
    ran = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(BUSY_S):
            while not (ran := await running_on(http, server)):
                await asyncio.sleep(_POLL_S)
    found = Restart(ran, time.monotonic())
    await asyncio.to_thread(server.kill)
    await started([server])
    healthy = time.monotonic()
    found.down = healthy - found.at
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ROTATION_S):
            while not (await counters(http, server.url))[0]:
                await asyncio.sleep(_POLL_S)
            found.served_again = time.monotonic() - healthy
    server.give_way()
    return found


# One after the other


def asks_of(client: int, stream_tokens: int = STREAM_TOKENS, json_tokens: int = JSON_TOKENS) -> Iterator[Ask]:
    """All that one client would ask if it went on for ever: conversations of some turns, each under an id of its own."""
    kind, stream = _KINDS[client % len(_KINDS)]
    for chat in count():
        for turn in range(TURNS):
            yield Ask(kind, stream, client, chat, turn, stream_tokens if stream else json_tokens)


@dataclass
class Turns:
    """The first part's outcome: requests, failures as told, and how many answers equalled the unbroken ones.

    `met` are those that were under way, on whichever server, when one was killed.
    """

    requests: int
    seconds: float
    failures: list[str]
    restarts: list[Restart]
    slowest: dict[str, float]
    told: dict[str, float]
    equal: int = 0
    compared: int = 0
    equal_met: int = 0
    compared_met: int = 0
    equal_unbroken: int = 0
    compared_unbroken: int = 0
    failures_unbroken: list[str] = field(default_factory=list)


async def one_after_the_other(
    router: Routed, servers: Sequence[VllmServer], *, seconds: float, kills: int | None = None, compared: int = 200
) -> Turns:
    """Steady clients for at least so many seconds, and until so many servers (all) have been killed and serve again.

    Then, of all answers, some so many are compared with unbroken ones; none if `compared` is 0.
    """
    loops, begun = [asks_of(n) for n in range(CLIENTS)], time.monotonic()
    clients = Clients(router.url, loops, pause=_PAUSE_S, yielding=True)
    restarts = []
    for server in servers:
        server.give_way()
    async with new_client() as http, asyncio.TaskGroup() as group:
        before = await told(http, router)
        group.create_task(clients.run())
        await asyncio.sleep(min(3.0, seconds / 10))
        for victim in servers[:kills]:
            restarts.append(await restart(http, victim))
            say(f"{router.name}: {victim.url} {restarts[-1]}; {clients!r}")
        await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
        clients.stop = True
    took = time.monotonic() - begun
    for server in servers:
        server.give_way(0)
    async with new_client() as http:
        rise = {name: value - before.get(name, 0) for name, value in (await told(http, router)).items()}
    found = Turns(len(clients.answers), took, as_told(clients.failed, begun), restarts, slowest(clients), rise)
    if compared:
        await compare_with_unbroken(found, router, clients, compared)
    return found


async def compare_with_unbroken(found: Turns, router: Routed, broken: Clients, compared: int) -> None:
    """Ask the same twice more while nothing dies, and count equal answers; of many only those that a death met and some."""
    met = {ask for ask, a in broken.answers.items() if any(a.at <= r.at <= a.at + a.seconds for r in found.restarts)}
    step = max(1, len(broken.answers) // compared)
    chosen = [ask for n, ask in enumerate(broken.answers) if ask in met or n % step == 0]
    again = []
    for _ in range(2):
        loops = [[ask for ask in chosen if ask.client == n] for n in range(CLIENTS)]
        again.append(Clients(router.url, loops, pause=0.1))
        begun = time.monotonic()
        await again[-1].run()
        found.failures_unbroken += as_told(again[-1].failed, begun)
        say(f"{router.name}: unbroken, {again[-1]!r}")
    found.equal, found.compared = equal(broken.answers, again[0].answers)
    found.equal_met, found.compared_met = equal({ask: broken.answers[ask] for ask in met}, again[0].answers)
    found.equal_unbroken, found.compared_unbroken = equal(again[1].answers, again[0].answers)


def equal(some: dict[Ask, Answer], others: dict[Ask, Answer]) -> tuple[int, int]:
    """How many texts are equal, of how many that came whole in both."""
    both = [(some[ask], others[ask]) for ask in some if ask in others]
    whole = [(one.text, other.text) for one, other in both if not one.failure and not other.failure]
    return sum(one == other for one, other in whole), len(whole)


def as_told(failed: dict[Ask, Answer], begun: float) -> list[str]:
    ordered = sorted(failed.items(), key=lambda item: item[1].at)
    return [f"{a.at - begun:.1f} s + {a.seconds:.1f} s, {ask.label}: {a.failure}" for ask, a in ordered]


def slowest(clients: Clients) -> dict[str, float]:
    """Seconds of the slowest whole answer, streams and JSON apart."""
    whole = [(ask, answer) for ask, answer in clients.answers.items() if not answer.failure]
    kinds = {
        "streams": [a.seconds for ask, a in whole if ask.stream],
        "JSON": [a.seconds for ask, a in whole if not ask.stream],
    }
    return {kind: max(times) for kind, times in kinds.items() if times}


# All at once


@dataclass
class Refused:
    """Answers that are not 200 while everything is down. `latencies` in seconds; `retry_after` counts its values."""

    statuses: Counter[str] = field(default_factory=Counter)
    retry_after: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    def take(self, answer: Answer) -> None:
        self.statuses[str(answer.status or (answer.failure or "")[:60])] += 1
        self.retry_after[answer.retry_after or "none"] += 1
        self.latencies.append(answer.seconds)

    def shown(self) -> str:
        if not self.latencies:
            return "none"
        ordered = sorted(self.latencies)
        median, late = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
        times = f"median {median * 1000:.0f}, 99 % {late * 1000:.0f}, most {ordered[-1] * 1000:.0f} ms"
        return f"{counted(self.statuses)}; Retry-After {counted(self.retry_after)}; {times}"


@dataclass
class Outage:
    """The second part's outcome. `back`: seconds from the first /health 200 of any server to the first answer to a chat.

    `dead` is what clients were answered while nothing ran, `starting` while servers loaded; `cut` how the requests ended
    that were being answered when all died, but for those that came whole.
    """

    dead: Refused = field(default_factory=Refused)
    starting: Refused = field(default_factory=Refused)
    cut: Counter[str] = field(default_factory=Counter)
    loading: float = 0.0
    back: float = 0.0
    every_client_back: float = 0.0


async def all_at_once(router: Routed, servers: Sequence[VllmServer], *, down: float) -> Outage:
    """Kill all, wait, start all; clients retry every 200 ms until they are answered."""
    found, begun = Outage(), time.monotonic()
    before = Clients(router.url, [asks_of(n) for n in range(CLIENTS)], pause=0.1)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(before.run())
        await asyncio.sleep(3.0)
        killed = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(s.kill) for s in servers))
        before.stop = True
        await running
    found.cut.update((a.failure or "").partition(": ")[0] for a in before.failed.values() if a.at <= killed)
    say(f"{router.name}: all killed after {killed - begun:.1f} s; {before!r}")
    clients = [Retrying(router, n, found.dead) for n in range(CLIENTS)]
    # One HTTP client for all: to make one takes 20 ms, which the others' answers would seem to have taken.
    async with new_client() as http, asyncio.TaskGroup() as group:
        tried = [group.create_task(client.run(http)) for client in clients]
        await asyncio.sleep(down)
        for client in clients:
            client.into = found.starting
        spawned = time.monotonic()
        start = group.create_task(started(servers))
        healthy = await first_healthy(servers, start)
        answered = sorted([await task for task in tried])
    found.loading = healthy - spawned
    found.back, found.every_client_back = answered[0] - healthy, answered[-1] - healthy
    return found


@dataclass
class Retrying:
    """One client that asks for a short chat every 200 ms until it gets it; what it gets before goes `into` a count."""

    router: Routed
    number: int
    into: Refused

    async def run(self, http: httpx.AsyncClient) -> float:
        """Returns when the whole answer had come, by the monotonic clock."""
        while True:
            ask = Ask("chat", False, 100 + self.number, 0, 0, CHAT_TOKENS)
            answer = await answer_to(http, self.router.url, ask)
            if not answer.failure:
                return answer.at + answer.seconds
            self.into.take(answer)
            await asyncio.sleep(_RETRY_S)


async def first_healthy(servers: Sequence[VllmServer], start: asyncio.Task[None]) -> float:
    """When /health of one of them, asked straight every 50 ms, was 200 for the first time."""
    async with new_client() as http:
        while True:
            for server in servers:
                with contextlib.suppress(httpx.TransportError):
                    if (await http.get(f"{server.url}/health", timeout=1.0)).status_code == 200:
                        return time.monotonic()
            if start.done():
                start.result()
            await asyncio.sleep(_POLL_S)


# Long streams


@dataclass
class Streams:
    """The third part's outcome: of 12 streams, on how many the killed server worked, and how many ended whole and equal.

    `unended` is how many of the 12 had not ended when it was dead: a kill that came too late would tell nothing.
    """

    ran: int
    unended: int
    whole: int
    equal: int
    equal_unbroken: int
    failures: list[str]
    told: dict[str, float]


async def under_streams(router: Routed, servers: Sequence[VllmServer], *, tokens: int) -> Streams:
    """Kill the busiest server when half of 12 streams are past their first quarter, and start it again afterwards."""
    asks = [Ask("chat", True, 200 + n, 0, 0, tokens) for n in range(STREAMS)]
    unbroken = [await side_by_side(router, asks, [Answer() for _ in asks]) for _ in range(2)]
    into, begun = [Answer() for _ in asks], time.monotonic()
    async with new_client() as http, asyncio.TaskGroup() as group:
        before = await told(http, router)
        streams = group.create_task(side_by_side(router, asks, into))
        while sorted(one.events for one in into)[STREAMS // 2] < tokens // 4 and not streams.done():
            await asyncio.sleep(_POLL_S)
        ran = [await running_on(http, server) for server in servers]
        victim = servers[ran.index(max(ran))]
        await asyncio.to_thread(victim.kill)
        unended = sum(not one.seconds for one in into)
        ended = await streams
        rise = {name: value - before.get(name, 0) for name, value in (await told(http, router)).items()}
    await started([victim])
    whole = sum(not answer.failure for answer in ended.values())
    failed = as_told({ask: answer for ask, answer in ended.items() if answer.failure}, begun)
    same, by_itself = equal(ended, unbroken[0])[0], equal(unbroken[1], unbroken[0])[0]
    return Streams(max(ran), unended, whole, same, by_itself, failed, rise)


async def side_by_side(router: Routed, asks: Sequence[Ask], into: Sequence[Answer]) -> dict[Ask, Answer]:
    async with new_client() as http:
        runs = (answer_to(http, router.url, ask, one) for ask, one in zip(asks, into, strict=True))
        return dict(zip(asks, await asyncio.gather(*runs), strict=True))


def counted(what: Counter[str]) -> str:
    """`3 of this, 2 of that`, the most frequent first; `none` of nothing."""
    return ", ".join(f"{number} x {name}" for name, number in what.most_common()) or "none"
