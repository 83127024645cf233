"""What it costs to find out whose turn a request is: by an id, and by content; and to listen to an answer."""

import json
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from warmroute.core.answer import Answer
from warmroute.core.headers import Headers, first_values
from warmroute.core.history import History
from warmroute.core.identity import CONTENT, DEFAULT_LADDER, DEFAULT_SOURCES
from warmroute.core.messages import ASSISTANT, USER, Message, Shape
from warmroute.core.model import Decision, PinChange, Reason
from warmroute.core.routes import find
from warmroute.pins.memory import PinTable
from warmroute.proxy.request import Request, decoded, reader_for
from warmroute.recognition.conversations import Conversations
from warmroute.recognition.memory import remember
from warmroute.recognition.recognizer import Recognizer, Turn

from .backend import GOLDEN, MODEL
from .timing import Row, Scale, bytes_made, micros, millis, seconds

HEADERS = [
    (b"host", b"127.0.0.1:8080"),
    (b"user-agent", b"python-httpx/0.28.1"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer sk-none"),
    (b"content-length", b"8192"),
]
NAMED = [*HEADERS, (b"x-session-id", b"0123456789abcdef")]

_WORDS = ("alpha", "beta", 'with "quotes"', "with\na line", "der", "die", "zeta", "to", "of", "the")
_READER = reader_for(DEFAULT_SOURCES)
_ROUTE = find(b"/v1/chat/completions")
_PLACED = Decision(Reason.RING, "a", None, PinChange.BIND)


def conversation(size: int) -> bytes:
    """A chat request of about this many bytes: a system message, then turns of growing number."""
    random = Random(size)
    length = max(4, min(300, size // 100))

    def text(words: int) -> str:
        return " ".join(random.choices(_WORDS, k=words))

    messages = [{"role": "system", "content": text(2 * length)}]
    written = len(json.dumps(messages))
    while True:
        turn = [{"role": "user", "content": text(length)}, {"role": "assistant", "content": text(3 * length)}]
        written += len(json.dumps(turn))
        if written > size:
            break
        messages += turn
    messages.append({"role": "user", "content": "and now?"})
    return json.dumps({"model": MODEL, "messages": messages, "stream": True}).encode()


def recogniser(content: bytes, headers: Headers, *, known: bool) -> Callable[[], Turn]:
    """A call that finds whose turn a fresh request is, as the router does once for each."""
    numbers = count(1)
    pins = PinTable(lambda: 0.0, idle_expiry=1800.0, limit=1_000)
    recognizer = Recognizer(
        remember(lambda: 0.0, idle_expiry=1800.0, entries=1_000, sessions=1_000, backends=3),
        pins,
        sources=DEFAULT_LADDER,
        by_content=True,
        decode=decoded,
        nonce=lambda: next(numbers).to_bytes(16),
    )
    assert _ROUTE is not None
    route = _ROUTE

    def ask(body: bytes) -> Turn:
        request = Request("POST", b"/v1/chat/completions", "chat", headers, first_values(headers), body, _READER)
        return recognizer.recognise(request, route, request.model)

    if known:
        chat = json.loads(content)
        *before, answer, _ = chat["messages"]
        turn = ask(json.dumps({**chat, "messages": before}).encode())
        assert turn.session is not None
        assert turn.history is not None
        pins.reserve(turn.session, _PLACED)
        recognizer.goes(turn)
        recognizer.served(turn, _PLACED)
        recognizer.memory.conversations.answered(turn.history, Message(ASSISTANT, answer["content"]), turn.session.key)
    assert ask(content).new is not known
    return lambda: ask(content)


def recognition_rows(scale: Scale) -> Iterator[Row]:
    small, large, huge = conversation(2 << 10), conversation(200 << 10), conversation(8 << 20)
    by_id = recogniser(small, NAMED, known=True)
    by_content = recogniser(small, HEADERS, known=True)
    assert by_id().source == "x-session-id"
    assert by_content().source == CONTENT
    yield micros("recognise: by header, 2 KB", by_id, scale)
    yield micros("recognise: by content, 2 KB", by_content, scale)
    yield micros("recognise: by header, 200 KB", recogniser(large, NAMED, known=True), scale)
    yield millis("recognise: by content, 200 KB", recogniser(large, HEADERS, known=True), scale)
    yield millis("recognise: by content, 200 KB, a new conversation", recogniser(large, HEADERS, known=False), scale)
    yield millis("recognise: by content, 8 MB, a new conversation", recogniser(huge, HEADERS, known=False), scale)


def answer_rows(scale: Scale) -> Iterator[Row]:
    events = (GOLDEN / "chat-stream.sse").read_bytes().split(b"\n\n")
    tokens = 200
    stream = b"\n\n".join([events[0], *[events[1]] * tokens, *events[-4:]])

    def heard() -> Message | None:
        answer = Answer(Shape.CHAT, event_stream=True, decode=decoded)
        for start in range(0, len(stream), 8192):
            answer.feed(stream[start : start + 8192])
        return answer.message()

    assert heard() is not None
    yield Row("answer: heard, each token of a stream", seconds(heard, scale) / tokens * 1e6, "us")


def memory_rows(scale: Scale) -> Iterator[Row]:
    many, turns = max(100, scale.pins // 1000), 20

    def remembered() -> Conversations:
        conversations = Conversations(lambda: 0.0, idle_expiry=1800.0, limit=10 * many * turns)
        for number in range(many):
            session, said = number.to_bytes(16), [Message(USER, f"opening {number}")]
            for turn in range(turns):
                history = History(b"start", list(said))
                found = conversations.find(history)
                conversations.goes_on(history, found, session)
                answer = Message(ASSISTANT, f"answer {turn} of {number}")
                conversations.answered(history, answer, session)
                said += [answer, Message(USER, f"question {turn} of {number}")]
        return conversations

    yield Row(f"remembered: a conversation of {turns} turns, without its pin", bytes_made(remembered) / many, "bytes")
