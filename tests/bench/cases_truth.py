"""What it costs to see where a prompt leaves the one before it."""

import json
from collections.abc import Callable, Iterator
from functools import partial

from warmroute.core.drift import Cause, Drift, drift
from warmroute.core.identity import DEFAULT_SOURCES
from warmroute.core.messages import Shape
from warmroute.core.model import Session
from warmroute.core.sketch import Kind, Sketch, sketch
from warmroute.core.usage import Usage
from warmroute.core.volatile import Lines
from warmroute.proxy.parts import Part, Said, parts_of
from warmroute.proxy.request import Request, reader_for
from warmroute.truth.conversations import Conversations
from warmroute.truth.ledger import Answered, Ledger

from .cases_recognition import conversation
from .timing import Row, Scale, micros, millis

_READER = reader_for(DEFAULT_SOURCES)
_SESSION = Session(b"s" * 16, "x-session-id")


def parts(body: bytes) -> list[Part]:
    fields = _READER.read(body)
    return parts_of(Shape.CHAT, lambda name: _READER.raw(fields, name))


def fresh(known: list[Part]) -> list[Part]:
    """The same parts in bytes whose hash Python has not yet computed, as those of a request are."""
    return [(kind, bytes(memoryview(data))) for kind, data in known]


def clocked(body: bytes, clock: str) -> list[Part]:
    """The parts of a chat with a time in its system prompt."""
    messages = [dict(message) for message in json.loads(body)["messages"]]
    messages[0]["content"] = f"It is {clock}.\\n" + messages[0]["content"]
    return parts(json.dumps({"messages": messages}).encode())


def compared(before: Sketch, now: list[Part]) -> Callable[[], Drift]:
    return lambda: drift(before, sketch(fresh(now)))


def account_rows(scale: Scale) -> Iterator[Row]:
    """All that the account adds to a request: its prompt is cut, sketched and compared, its tokens are split at the end."""
    for name, body in (
        ("2 KB", conversation(2 << 10)),
        ("8 KB", conversation(8 << 10)),
        ("200 KB", conversation(200 << 10)),
    ):
        ledger = Ledger(Conversations(1000), move_cause=lambda decision, left: "failover", process_of=lambda name: 0)
        tokens = len(body) // 4
        answered = Answered("a", None, "pin_hit", Usage(tokens, tokens - 20, 50), 0.0, 1.0)

        def account(ledger: Ledger = ledger, body: bytes = body, answered: Answered = answered) -> None:
            request = Request("POST", b"/v1/chat/completions", "chat", [], {}, body, _READER)
            said = Said(Shape.CHAT, request)
            ledger.settle(ledger.look(_SESSION, said, None, older=False), answered)

        account()
        yield micros(f"request: the account of its tokens, {name}", account, scale)


def prompt_rows(scale: Scale) -> Iterator[Row]:
    more = [(Kind.ASSISTANT, b'{"role":"assistant"}'), (Kind.USER, b'{"role":"user"}')]
    for name, body in (("8 KB", conversation(8 << 10)), ("200 KB", conversation(200 << 10))):
        old = parts(body)
        grown = compared(sketch(old), [*old, *more])
        assert grown().cause is None
        yield micros(f"prompt: cut into parts, {name}", partial(parts, body), scale)
        yield micros(f"prompt: sketched and compared, {name}", grown, scale)
        before, now = clocked(body, "10:15"), [*clocked(body, "10:16"), *more]
        other = compared(sketch(before), now)
        assert other().cause is Cause.SYSTEM
        yield micros(f"prompt: sketched and compared, {name}, the system prompt has changed", other, scale)
    system = clocked(conversation(200 << 10), "10:15")
    known: dict[int, Lines | int] = {}
    kept = sketch(system)
    yield millis(f"prompt: masked, a system prompt of {len(system[0][1]) >> 10} KB", lambda: kept.mask(system), scale)
    kept.mask(system, known)
    yield micros("prompt: masked, one that is known", lambda: kept.mask(system, known), scale)
