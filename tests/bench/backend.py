"""A stand-in for vLLM that costs almost nothing: canned answers in vLLM's own shapes, streams at a steady pace.

    python -m tests.bench.backend [--listeners 3] [--tokens 100] [--gap 0.02]

Prints its ports as one line of JSON and serves until it is stopped. It has no prefix cache: it is for costs, not for hit
rates. Each listener stands for one vLLM server; one process serves all, so that they take as little as possible.
"""

import argparse
import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httptools
import uvloop

GOLDEN = Path(__file__).parents[1] / "golden"
MODEL = "tiny"
EVENTS_BESIDE_TOKENS = 3
"""Events of a stream that are no token: the role before them, the finish reason and [DONE] after them."""

_BACKLOG = 4096
_USAGE = {
    "prompt_tokens": 2000,
    "total_tokens": 2020,
    "completion_tokens": 20,
    "prompt_tokens_details": {"cached_tokens": 1984},
}
_ANSWER = {
    "id": "chatcmpl-98f2dd45600429a8",
    "object": "chat.completion",
    "created": 1795970918,
    "model": MODEL,
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "warm " * 20, "refusal": None, "tool_calls": []},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "usage": _USAGE,
}


def _whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (kind, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(frozen=True, slots=True)
class Answers:
    """Every answer as bytes ready for the wire, and the pace of streams: `gap` seconds between tokens."""

    whole: dict[bytes, bytes]
    other: bytes
    plain: "Events"
    with_ids: "Events"
    tokens: int
    gap: float

    @classmethod
    def canned(cls, tokens: int, gap: float) -> "Answers":
        """Answers in the shapes that a real vLLM gave."""
        card = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 8192}
        metrics = (GOLDEN / "metrics-vllm-0.32.0.txt").read_bytes()
        whole = {
            b"/v1/chat/completions": _whole(json.dumps(_ANSWER).encode()),
            b"/v1/models": _whole(json.dumps({"object": "list", "data": [card]}).encode()),
            b"/metrics": _whole(metrics, b"text/plain; version=0.0.4; charset=utf-8"),
            b"/health": _whole(b""),
        }
        events = Events.golden("chat-stream.sse"), Events.golden("chat-stream-token-ids.sse")
        return cls(whole, _whole(b"{}"), *events, tokens, gap)


@dataclass(frozen=True, slots=True)
class Events:
    """The parts of a stream, each in its own chunk."""

    opening: bytes
    token: bytes
    finish: bytes
    usage: bytes
    done: bytes

    @classmethod
    def golden(cls, name: str) -> "Events":
        """As a real vLLM sent them."""
        events = [event + b"\n\n" for event in (GOLDEN / name).read_bytes().split(b"\n\n") if event]
        role, token, *_, finish, usage, done = map(_chunk, events)
        head = (
            b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        return cls(head + role, token, finish, usage, done + b"0\r\n\r\n")


class Backend(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        if b'"stream":true' in body or b'"stream": true' in body:
            events = self._answers.with_ids if b"return_token_ids" in body else self._answers.plain
            self._stream(events, b"include_usage" in body)
            return
        self._transport.write(self._answers.whole.get(self._url, self._answers.other))
        if not self._parser.should_keep_alive():
            self._transport.close()

    def _stream(self, events: Events, with_usage: bool) -> None:
        """The role and the first token at once, each further token when it is due, late ones without a pause."""
        answers = self._answers
        started = self._loop.time()
        last = events.finish + (events.usage if with_usage else b"") + events.done
        self._transport.write(events.opening)
        sent = 0

        def step() -> None:
            nonlocal sent
            sent += 1
            self._transport.write(events.token)
            due = started + sent * answers.gap
            if sent < answers.tokens:
                self._timer = self._loop.call_at(due, step)
            else:
                self._timer = None
                self._transport.write(last)

        step()


async def serve(listeners: int, answers: Answers) -> None:
    """Serve on so many ports of the loopback until cancelled."""
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(lambda: Backend(answers), "127.0.0.1", 0, backlog=_BACKLOG) for _ in range(listeners)
    ]
    print(json.dumps({"ports": [server.sockets[0].getsockname()[1] for server in servers]}), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listeners", type=int, default=3, help="how many servers to stand for")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of a streamed answer")
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between tokens")
    args = parser.parse_args()
    uvloop.run(serve(args.listeners, Answers.canned(args.tokens, args.gap)))


if __name__ == "__main__":
    main()
