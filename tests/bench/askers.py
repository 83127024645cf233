"""Clients of a soak: chats with known answers, some of which are left at a random moment, each judged to its last letter.

A bounded pool of conversations is talked through over and over, half of them with a session id and half known by content, so
that what a router remembers of them stops growing.
"""

import asyncio
import json
import random
import socket
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, cast

import httptools

from .backend import MODEL
from .faulty import answer_to

CONVERSATIONS = 120
TURNS = 6
MOMENTS = ("head", "before", "amid")
"""When a client leaves: amid its own request, before the first content, amid the answer."""

_PATH = "/v1/chat/completions"
_SENTENCE = "The cache is warm where the conversation was last. "


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it is meant: whose turn, in which form, and at which moment its client leaves (None: never)."""

    id: str
    conversation: int
    turn: int
    stream: bool
    resumable: bool
    leaves: str | None

    @property
    def tokens(self) -> int:
        return length_of(self.conversation, self.turn)

    def messages(self) -> list[dict[str, str]]:
        return history(self.conversation, self.turn)

    def wire(self, port: int) -> bytes:
        """The request, whole."""
        body: dict[str, object] = {"model": MODEL, "messages": self.messages(), "max_tokens": self.tokens}
        if self.stream:
            body["stream"] = True
        if not self.resumable:
            body["stop"] = ["\N{SYMBOL FOR NULL}"]  # which no answer has; it cannot be carried over a cut
        data = json.dumps(body).encode()
        session = f"x-session-id: soak-{self.conversation}\r\n" if self.conversation % 2 else ""
        head = (
            f"POST {_PATH} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
            f"x-request-id: {self.id}\r\n{session}content-length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data


def length_of(conversation: int, turn: int) -> int:
    """Tokens of the answer to this turn: 4 to 20, the same each time."""
    return 4 + (conversation * 7 + turn * 5) % 17


@cache
def history(conversation: int, turn: int) -> list[dict[str, str]]:
    """The messages of this turn, with the answers to all turns before it. Not to be changed."""
    filler = _SENTENCE * (8 + conversation % 8 * 32)  # 0.4 to 12 KB a question, so that a body that is held shows
    messages: list[dict[str, str]] = []
    for number in range(turn + 1):
        messages.append({"role": "user", "content": f"{filler}Conversation {conversation}, question {number}."})
        if number < turn:
            text = answer_to(messages, length_of(conversation, number))
            messages.append({"role": "assistant", "content": text})
    return messages


class Got(NamedTuple):
    """What came of a request. `end`: whole, by the framing; cut; left, by the client; late, not within its patience."""

    status: int
    body: bytes
    end: str


def outcome(asked: Asked, got: Got) -> str:
    """What a client sees, in a word; "whole" only if the answer is that of its prompt to the last letter."""
    if got.end in ("left", "late"):
        return got.end
    if got.status != 200:
        return f"status {got.status}"
    text, error, done = read_stream(got.body) if asked.stream else read_whole(got.body)
    expected = answer_to(asked.messages(), asked.tokens)
    if error and not done and expected.startswith(text):
        return "broken, and told"
    if got.end == "cut" and not done and expected.startswith(text):
        return "broken off"
    return "whole" if got.end == "whole" and done and not error and text == expected else "wrong"


def read_stream(body: bytes) -> tuple[str, bool, bool]:
    """The text of a stream, whether it tells an error, and whether it ends with [DONE]."""
    text, error = "", False
    for event in body.split(b"\n\n")[:-1]:
        data = event.removeprefix(b"data: ")
        if data == b"[DONE]":
            continue
        try:
            value = json.loads(data)
        except ValueError:
            return text, error, False  # the half of an event: nothing of the sort may be in a stream that is whole
        error = error or "error" in value
        text += "".join(choice["delta"].get("content") or "" for choice in value.get("choices", ()))
    return text, error, body.endswith(b"data: [DONE]\n\n")


def read_whole(body: bytes) -> tuple[str, bool, bool]:
    """The same of an answer in one piece."""
    try:
        value = json.loads(body)
    except ValueError:
        return "", False, False
    return value["choices"][0]["message"]["content"], False, True


def explained(seen: str, asked: Asked, faults: Sequence[str]) -> bool:
    """Whether a client may see this, given the faults that its request met."""
    twice = len(faults) > 1
    if seen == "whole" or (seen == "left" and asked.leaves is not None):
        return True
    if seen == "late":
        return "hang" in faults
    if seen in ("broken, and told", "broken off"):
        # A body that is read only as a whole cannot tell; a stream that can be gone on with breaks only at a second fault.
        return (
            "cut" in faults and (twice or not (asked.stream and asked.resumable)) and asked.stream == ("told" in seen)
        )
    if seen == "status 500":
        return "500" in faults
    return seen == "status 502" and twice


class Connection(asyncio.Protocol):
    """One kept-alive connection of a client, one request at a time. `first_at`: when the body began, of the loop's clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.usable = False
        self.first_at: float | None = None
        self._lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self._got: asyncio.Future[Got] | None = None
        self.usable = True

    def ask(self, request: bytes, leave_at: int | None) -> asyncio.Future[Got]:
        """Send a request; with `leave_at`, leave once that many events of the answer have come."""
        self._status, self._body = 0, bytearray()
        self._leave_at = leave_at
        self.first_at = None
        self._got = self._loop.create_future()
        self.transport.write(request)
        return self._got

    def leave(self, end: str = "left", *, reset: bool = False) -> None:
        """Go away, with a FIN or, as a process that is killed with unread data, with a RST."""
        self._end(end)
        if reset and not self.transport.is_closing():
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()
        self.usable = False

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end("cut")
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self.first_at is None:
            self.first_at = self._loop.time()
        self._body += data
        if self._leave_at is not None and self._body.count(b"data: ") >= self._leave_at:
            self.leave()

    def on_message_complete(self) -> None:
        self.usable = self.usable and self._parser.should_keep_alive()
        self._end("whole")

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._end("cut")
        self._lost.set()

    async def close(self) -> None:
        """Close, if that has not been done, and wait until it is so."""
        self.usable = False
        self.transport.close()
        await self._lost.wait()

    def _end(self, end: str) -> None:
        if self._got is not None and not self._got.done():
            self._got.set_result(Got(self._status, bytes(self._body), end))


@dataclass(slots=True)
class Tally:
    """What the clients saw, by word, and each case that a fault must explain."""

    seen: Counter[str] = field(default_factory=Counter)
    to_explain: list[tuple[Asked, str]] = field(default_factory=list)

    @property
    def requests(self) -> int:
        return self.seen.total()

    def add(self, asked: Asked, seen: str) -> None:
        self.seen[seen] += 1
        if not explained(seen, asked, ()):
            self.to_explain.append((asked, seen))

    def unexplained(self, faults: Mapping[str, Sequence[str]]) -> list[str]:
        """A line for each case that no fault explains."""
        return [
            f"{asked.id}: {seen} ({'stream' if asked.stream else 'JSON'}, resumable: {asked.resumable}, faults: {met})"
            for asked, seen in self.to_explain
            if not explained(seen, asked, met := faults.get(asked.id, ()))
        ]


@dataclass(frozen=True, slots=True)
class Habits:
    """How clients behave: requests a second of all together, the share that leaves, seconds until one gives up."""

    rate: float
    leave: float
    patience: float = 10.0


class Clients:
    """Many clients at one port; `run` returns once all of them are through."""

    def __init__(self, port: int, habits: Habits, rng: random.Random) -> None:
        self._port = port
        self._habits = habits
        self._rng = rng
        self._numbers = 0
        self.tally = Tally()

    def __repr__(self) -> str:
        return f"<Clients {self.tally.requests} requests, {len(self.tally.to_explain)} to explain>"

    async def run(self, count: int, seconds: float) -> None:
        """So many clients for so long; what runs then is finished."""
        deadline = asyncio.get_running_loop().time() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(self._one(count, deadline))

    async def _one(self, count: int, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        connection: Connection | None = None
        due = loop.time() + self._rng.expovariate(self._habits.rate / count)
        while due < deadline:
            await asyncio.sleep(due - loop.time())
            due = max(due, loop.time() - 1.0) + self._rng.expovariate(self._habits.rate / count)
            asked = self._next()
            if connection is None or not connection.usable:
                try:
                    _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
                except OSError:
                    self.tally.add(asked, "not reached")
                    continue
            got = await self._ask(connection, asked)
            self.tally.add(asked, outcome(asked, got))
            if not connection.usable:
                await connection.close()
        if connection is not None:
            await connection.close()

    def _next(self) -> Asked:
        rng, self._numbers = self._rng, self._numbers + 1
        stream = rng.random() < 0.6
        leaves = rng.choice(MOMENTS) if rng.random() < self._habits.leave else None
        place = rng.randrange(CONVERSATIONS), rng.randrange(TURNS)
        return Asked(f"soak-{self._numbers}", *place, stream, rng.random() < 0.8, leaves)

    async def _ask(self, connection: Connection, asked: Asked) -> Got:
        request, rng = asked.wire(self._port), self._rng
        if asked.leaves == "head":
            got = connection.ask(request[: rng.randrange(1, len(request))], None)
            await asyncio.sleep(rng.random() * 0.01)
            connection.leave(reset=rng.random() < 0.5)
            return await got
        amid = asked.leaves == "amid" and asked.stream
        got = connection.ask(request, rng.randrange(2, asked.tokens + 1) if amid else None)
        if asked.leaves is not None and not amid:
            # Before the first content of a stream, or at any time of an answer that comes in one piece.
            await asyncio.wait({got}, timeout=rng.random() * (0.01 if asked.stream else 0.1))
            connection.leave(reset=rng.random() < 0.5)
        try:
            async with asyncio.timeout(self._habits.patience):
                return await asyncio.shield(got)
        except TimeoutError:
            connection.leave("late")
            return await got
