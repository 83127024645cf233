"""A stand-in vLLM server with a capacity: it runs so many requests in one batch, step by step, and lets the others wait.

    python -m tests.bench.batching [--listeners 3] [--max-num-seqs 8] [--step 0.02] [--per-seq 0.003] [--prefill 0.02]

Prints its ports as one line of JSON and serves until it is stopped. As in vLLM, a step gives every running request one token
and takes the longer the more of them there are, requests are let into the batch in the order in which they came, and one whose
client goes is taken out at once. Its queue has no end, as vLLM's has none.
"""

import argparse
import asyncio
import json
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import cast

import httptools
import uvloop

from .backend import MODEL, Answers

_BACKLOG = 4096


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a server is. A step takes `step` seconds, `per_seq` more for each running request, and `prefill` more for
    each one that it lets in."""

    max_num_seqs: int = 8
    step: float = 0.02
    per_seq: float = 0.003
    prefill: float = 0.02

    def capacity(self, tokens: float) -> float:
        """Answers of so many tokens that one server gives in a second at most."""
        full = self.step + self.per_seq * self.max_num_seqs
        return self.max_num_seqs / (tokens * full + self.max_num_seqs * self.prefill)


class Engine:
    """One server's batch and its queue."""

    def __init__(self, pace: Pace, answers: Answers) -> None:
        self._pace = pace
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.waiting: deque[Talk] = deque()
        self.running: list[Talk] = []

    def __repr__(self) -> str:
        return f"<Engine {len(self.running)} running, {len(self.waiting)} waiting>"

    def take(self, talk: "Talk") -> None:
        """A request has come."""
        self.waiting.append(talk)
        if self._timer is None:
            self._plan()

    def drop(self, talk: "Talk") -> None:
        """Its client has gone."""
        if talk in self.running:
            self.running.remove(talk)
        elif talk in self.waiting:
            self.waiting.remove(talk)

    def _plan(self) -> None:
        """Let in what there is room for, and do a step with all that run then."""
        pace, let_in = self._pace, 0
        while self.waiting and len(self.running) < pace.max_num_seqs:
            self.running.append(self.waiting.popleft())
            let_in += 1
        self._timer = None
        if self.running:
            took = pace.step + pace.per_seq * len(self.running) + pace.prefill * let_in
            self._timer = self._loop.call_later(took, self._step)

    def _step(self) -> None:
        self.running = [talk for talk in self.running if not talk.token(self._answers)]
        self._plan()

    def metrics(self) -> bytes:
        """The two gauges of vLLM's that tell how full it is."""
        labels = f'{{engine="0",model_name="{MODEL}"}}'
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {len(self.running)}.0",
            "# TYPE vllm:num_requests_waiting gauge",
            f"vllm:num_requests_waiting{labels} {len(self.waiting)}.0",
        ]
        text = "\n".join(lines).encode() + b"\n"
        return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n%b" % (
            len(text),
            text,
        )


class Talk(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, engine: Engine, answers: Answers) -> None:
        self._engine = engine
        self._answers = answers
        self._parser = httptools.HttpRequestParser(self)
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._engine.drop(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._parts: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._url == b"/v1/chat/completions":
            asked = json.loads(b"".join(self._parts))
            self._left = asked["max_tokens"]
            self._usage = bool((asked.get("stream_options") or {}).get("include_usage"))
            head, _, self._role = self._answers.plain.opening.partition(b"\r\n\r\n")
            self._transport.write(head + b"\r\n\r\n")  # at once, long before the first token, as vLLM does
            self._engine.take(self)
        elif self._url == b"/metrics":
            self._transport.write(self._engine.metrics())
        else:
            self._transport.write(self._answers.whole.get(self._url, self._answers.other))

    def token(self, answers: Answers) -> bool:
        """Send the next token; returns whether it was the last one."""
        self._left -= 1
        data, self._role = self._role + answers.plain.token, b""
        if self._left <= 0:
            data += answers.plain.finish + (answers.plain.usage if self._usage else b"") + answers.plain.done
        self._transport.write(data)
        return self._left <= 0


async def serve(listeners: int, pace: Pace) -> None:
    """Serve on so many ports of the loopback, each a server of its own, until cancelled."""
    loop, answers = asyncio.get_running_loop(), Answers.canned(1, 0.0)
    servers = []
    for _ in range(listeners):
        talk = partial(Talk, Engine(pace, answers), answers)
        servers.append(await loop.create_server(talk, "127.0.0.1", 0, backlog=_BACKLOG))
    print(json.dumps({"ports": [server.sockets[0].getsockname()[1] for server in servers]}), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    default = Pace()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=3, help="how many servers to stand for")
    parser.add_argument("--max-num-seqs", type=int, default=default.max_num_seqs, help="requests in one batch")
    parser.add_argument("--step", type=float, default=default.step, help="seconds of a step")
    parser.add_argument("--per-seq", type=float, default=default.per_seq, help="seconds more for each running request")
    parser.add_argument("--prefill", type=float, default=default.prefill, help="seconds more for each one let in")
    args = parser.parse_args()
    uvloop.run(serve(args.listeners, Pace(args.max_num_seqs, args.step, args.per_seq, args.prefill)))


if __name__ == "__main__":
    main()
