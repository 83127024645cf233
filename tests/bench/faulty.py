"""A stand-in vLLM server whose answers follow from their prompts alone, and which fails a share of its requests.

    python -m tests.bench.faulty [--gap 0.01] [--faults 0.01] [--seed 0]

Prints its port as one line of JSON and serves until it is stopped. Whoever knows a prompt knows the answer to its last
letter, so that a client can see that nothing was lost, doubled or mixed up, over a death in mid-stream too. GET /faults
tells which request, by its x-request-id, met which faults, and how many requests run.
"""

import argparse
import asyncio
import json
import random
import socket
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import httptools
import uvloop

from .backend import GOLDEN, MODEL

KINDS = ("reset", "reset_after_head", "cut", "500", "hang")
"""Reset before a byte of the answer, after its head, and amid its content; an error as answer; silence for ever."""

_VOCABULARY = 50_000
_BACKLOG = 1024
_GENERATES = (b"/v1/chat/completions", b"/v1/completions")

Messages = Sequence[Mapping[str, str]]


def prompt_ids(messages: Messages) -> list[int]:
    """The tokens that a chat becomes: here one for each message, the last one made of them all."""
    ids, digest = [], 0
    for message in messages:
        digest = zlib.crc32(message["content"].encode(), digest)
        ids.append(digest % _VOCABULARY)
    return ids


def follow(last: int, count: int) -> list[int]:
    """So many tokens of the answer after this one: each follows from the one before, so a cut changes none of them."""
    ids = []
    for _ in range(count):
        last = (last * 1103 + 12345) % _VOCABULARY
        ids.append(last)
    return ids


def text_of(ids: Sequence[int]) -> str:
    return "".join(f" w{token}" for token in ids)


def answer_to(messages: Messages, count: int) -> str:
    """The text that a whole answer of so many tokens must have."""
    return text_of(follow(prompt_ids(messages)[-1], count))


class Fates:
    """Which of the requests fail and how, drawn at random, and noted by request."""

    def __init__(self, share: float, rng: random.Random) -> None:
        self._share = share
        self._rng = rng
        self.met: dict[str, list[str]] = {}
        self.running = 0

    def __repr__(self) -> str:
        return f"<Fates {len(self.met)} requests failed, {self.running} running>"

    def of(self, request: str) -> str:
        """The fault of this request, "" for none."""
        if self._rng.random() >= self._share:
            return ""
        kind = self._rng.choice(KINDS)
        self.met.setdefault(request, []).append(kind)
        return kind

    def within(self, count: int) -> int:
        """A place amid so many tokens, after the first one."""
        return self._rng.randrange(1, max(2, count))


class Answer:
    """One answer: its tokens, and its events and bodies in vLLM's shapes."""

    def __init__(self, path: bytes, asked: Mapping[str, Any]) -> None:
        self.chat = path == b"/v1/chat/completions"
        self.stream = asked.get("stream") is True
        self.prompt: list[int] = prompt_ids(asked["messages"]) if self.chat else asked["prompt"]
        self.ids = follow(self.prompt[-1], asked["max_tokens"])
        self._tells = asked.get("return_token_ids") is True
        self._usage = bool((asked.get("stream_options") or {}).get("include_usage"))

    def opening(self) -> bytes:
        """The event before the first token; completions have none."""
        if not self.chat:
            return b""
        told = {"prompt_token_ids": self.prompt if self._tells else None}
        return self._event([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}], told)

    def token(self, place: int) -> bytes:
        """The event of one token."""
        reason = "length" if place == len(self.ids) - 1 else None
        choice: dict[str, object] = {"index": 0, "logprobs": None, "finish_reason": reason}
        choice |= {"delta": {"content": self._text(place)}} if self.chat else {"text": self._text(place)}
        if self._tells:
            choice["token_ids"] = [self.ids[place]]
            if not self.chat and place == 0:
                choice["prompt_token_ids"] = self.prompt
        return self._event([choice], {})

    def closing(self) -> bytes:
        usage = self._event([], {"usage": self._counts()}) if self._usage else b""
        return usage + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def whole(self) -> bytes:
        """The answer as one JSON body."""
        text = text_of(self.ids)
        choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return json.dumps({**self._frame(), "choices": [choice], "usage": self._counts()}).encode()

    def _text(self, place: int) -> str:
        return text_of(self.ids[place : place + 1])

    def _frame(self) -> dict[str, object]:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1795975489, "model": MODEL}

    def _event(self, choices: list[dict[str, object]], more: Mapping[str, object]) -> bytes:
        event = json.dumps({**self._frame(), "choices": choices, **more}, separators=(",", ":"))
        return _chunk(b"data: " + event.encode() + b"\n\n")

    def _counts(self) -> dict[str, object]:
        prompt, said = len(self.prompt), len(self.ids)
        details = {"cached_tokens": prompt - 1}
        told = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
        return {**told, "prompt_tokens_details": details}


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _body(data: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(data), data)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CARD = {"id": MODEL, "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 8192}
_PAGES = {
    b"/health": _body(b""),
    b"/v1/models": _body(json.dumps({"object": "list", "data": [_CARD]}).encode()),
    b"/metrics": _body((GOLDEN / "metrics-vllm-0.32.0.txt").read_bytes(), kind=b"text/plain; version=0.0.4"),
}


class Server(asyncio.Protocol):
    """One connection. `gap`: seconds before each token."""

    def __init__(self, fates: Fates, gap: float) -> None:
        self._fates = fates
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._running = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url = self._request = b""
        self._parts: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request = value

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        if self._url == b"/faults":
            told = {"faults": self._fates.met, "running": self._fates.running}
            self._transport.write(_body(json.dumps(told).encode()))
        elif self._url in _GENERATES:
            self._generate(Answer(self._url, json.loads(b"".join(self._parts))))
        else:
            self._transport.write(_PAGES.get(self._url, _body(b"{}", b"404 Not Found")))

    def _generate(self, answer: Answer) -> None:
        self._running = True
        self._fates.running += 1
        fault = self._fates.of(self._request.decode("latin-1"))
        if fault == "reset":
            self._later(self._reset)
        elif fault == "500":
            self._later(self._write_last, _body(b'{"error":{"message":"made to fail"}}', b"500 Internal Server Error"))
        elif fault == "hang":
            pass  # until the other side goes
        elif answer.stream:
            self._transport.write(_STREAM_HEAD + answer.opening())
            cut = 0 if fault == "reset_after_head" else self._fates.within(len(answer.ids)) if fault == "cut" else -1
            self._later(self._token, answer, 0, cut)
        else:
            self._later(self._whole, answer, fault, steps=len(answer.ids))

    def _token(self, answer: Answer, place: int, cut: int) -> None:
        if place == cut:
            self._reset(answer.token(place)[:-20] if place else b"")
        elif place < len(answer.ids):
            self._transport.write(answer.token(place))
            self._later(self._token, answer, place + 1, cut)
        else:
            self._write_last(answer.closing())

    def _whole(self, answer: Answer, fault: str) -> None:
        data = _body(answer.whole())
        if fault:
            head = data.index(b"\r\n\r\n") + 4
            self._reset(data[: head + 40 if fault == "cut" else head])
        else:
            self._write_last(data)

    def _later(self, call: Any, *words: object, steps: int = 1) -> None:
        self._timer = self._loop.call_later(self._gap * steps, call, *words)

    def _write_last(self, data: bytes) -> None:
        self._transport.write(data)
        self._ended()

    def _ended(self) -> None:
        if self._running:
            self._running = False
            self._fates.running -= 1

    def _reset(self, data: bytes = b"") -> None:
        """Close with RST, as the kernel does for a killed process. What was written just before may be lost with it."""
        if self._transport.is_closing():
            return
        if data:
            self._transport.write(data)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()


async def serve(fates: Fates, gap: float) -> None:
    """Serve on a port of the loopback until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(fates, gap), "127.0.0.1", 0, backlog=_BACKLOG)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gap", type=float, default=0.01, help="seconds before each token")
    parser.add_argument("--faults", type=float, default=0.01, help="share of the requests that fail")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    uvloop.run(serve(Fates(args.faults, random.Random(args.seed)), args.gap))


if __name__ == "__main__":
    main()
