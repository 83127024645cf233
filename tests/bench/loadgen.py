"""Load over kept-alive connections, each sending its next request when the last one is answered, and what came back.

    python -m tests.bench.loadgen json|stream PORT --body FILE --connections 64 --seconds 4 [--tokens 100] [--sessions 100]

Prints one line of JSON. Every answer is checked: its status, and of a stream that each of its events came, in whole.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from statistics import quantiles
from typing import cast

import httptools
import uvloop

from .backend import EVENTS_BESIDE_TOKENS

SESSIONS = 100
"""Conversations that requests belong to, in turn."""

OWN = b"0" * 19
"""In a body: where the number of the session goes, so that conversations have nothing in common from there on."""

_RAMP_S = 0.2
"""Seconds over which connections begin, so that streams do not all send in the same moment."""

_GRACE_S = 20.0


@dataclass(slots=True)
class Tally:
    """What came back. Times are seconds from a request's last byte sent to its first body byte, or to its end."""

    whole: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    events: int = 0
    failed: int = 0


@dataclass(slots=True)
class Load:
    """What is asked: requests by their number, until `deadline` (of time.perf_counter) or until there were `most`."""

    request: Callable[[int], bytes]
    deadline: float
    events: int
    most: float = inf
    tally: Tally = field(default_factory=Tally)
    sent: int = 0

    def next(self) -> bytes:
        self.sent += 1
        return self.request(self.sent)

    @property
    def goes_on(self) -> bool:
        return self.sent < self.most and time.perf_counter() < self.deadline


class Connection(asyncio.Protocol):
    """One client: asks, reads, checks, asks again. `ended` is set when it is through, `broken` if it broke off."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._parser = httptools.HttpResponseParser(self)
        self.ended = asyncio.Event()
        self.broken = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        self._first = 0.0
        self._body = bytearray()
        self._started = time.perf_counter()
        self._transport.write(self._load.next())

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_body(self, data: bytes) -> None:
        if not self._first:
            self._first = time.perf_counter()
        self._body += data

    def on_message_complete(self) -> None:
        load, tally, now = self._load, self._load.tally, time.perf_counter()
        if self._parser.get_status_code() == 200 and self._is_whole():
            tally.whole.append(now - self._started)
            tally.firsts.append(self._first - self._started)
            tally.events += load.events
        else:
            tally.failed += 1
        if load.goes_on and self._parser.should_keep_alive():
            self._ask()
        else:
            self.ended.set()
            self._transport.close()

    def _is_whole(self) -> bool:
        expected = self._load.events
        if not expected:
            return bool(self._body)
        return self._body.count(b"data: ") == expected and self._body.endswith(b"data: [DONE]\n\n")

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.is_set():
            self._load.tally.failed += 1
            self.broken = True
            self.ended.set()


def requests_of(port: int, body: bytes, sessions: int = SESSIONS, prefix: str = "s") -> Callable[[int], bytes]:
    """Number -> the same request of each session in turn, whole; made beforehand where the sessions are few.

    A session's id is its number behind `prefix`; it stands in the body too, in place of OWN if that is there.
    """
    before, own, behind = body.partition(OWN)
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-type: application/json\r\n"
        b"x-session-id: %b%d\r\ncontent-length: %d\r\n\r\n"
    )

    named = prefix.encode()

    def request(number: int) -> bytes:
        session = number % sessions
        start = head % (port, named, session, len(body))
        return b"%b%b%0*d%b" % (start, before, len(own), session, behind) if own else start + body

    if sessions > SESSIONS:
        return request
    made = [request(number) for number in range(sessions)]
    return lambda number: made[number % sessions]


async def run(load: Load, port: int, connections: int, ramp: float = _RAMP_S) -> dict[str, float]:
    """Put the load on this port; the figures by name. A connection that breaks off counts as one failure and ends.

    `ramp` is the time in seconds over which streams begin.
    """
    started = time.perf_counter()
    loop = asyncio.get_running_loop()

    async def one(number: int) -> None:
        await asyncio.sleep(ramp * number / connections if load.events else 0.0)
        broken = False
        while not broken and load.goes_on:
            try:
                _, client = await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
            except OSError:
                load.tally.failed += 1
                return
            await client.ended.wait()
            broken = client.broken

    async with asyncio.timeout(load.deadline - started + _GRACE_S), asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(one(number))
    return figures(load.tally, time.perf_counter() - started)


def figures(tally: Tally, elapsed: float) -> dict[str, float]:
    """The tally as plain numbers; times in milliseconds, absent where nothing came back in whole."""
    found = {
        "requests": float(len(tally.whole)),
        "failed": float(tally.failed),
        "seconds": elapsed,
        "events": float(tally.events),
    }
    if len(tally.whole) > 1:
        percent = quantiles(tally.whole, n=100, method="inclusive")
        found |= {"p50_ms": percent[49] * 1e3, "p99_ms": percent[98] * 1e3}
        first = quantiles(tally.firsts, n=100, method="inclusive")
        found |= {"first_p50_ms": first[49] * 1e3, "first_p99_ms": first[98] * 1e3}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["json", "stream"], help="what the answers are")
    parser.add_argument("port", type=int, help="where to send it, on the loopback")
    parser.add_argument("--body", type=Path, required=True, help="the request's body")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="conversations that requests belong to, in turn")
    parser.add_argument("--prefix", default="s", help="what the ids of sessions begin with")
    parser.add_argument("--requests", type=int, help="end after so many (default: as many as there is time for)")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each stream, as the backend was told")
    parser.add_argument("--ramp", type=float, default=_RAMP_S, help="seconds over which streams begin")
    args = parser.parse_args()
    events = args.tokens + EVENTS_BESIDE_TOKENS if args.kind == "stream" else 0
    request = requests_of(args.port, args.body.read_bytes(), args.sessions, args.prefix)
    load = Load(request, time.perf_counter() + args.seconds, events, args.requests or inf)
    print(json.dumps(uvloop.run(run(load, args.port, args.connections, args.ramp))))


if __name__ == "__main__":
    main()
