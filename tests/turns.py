"""Owns a router's deciding half without its I/O, and what clients send to it and backends answer, in all four protocols."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from warmroute.core.health import Thresholds
from warmroute.core.identity import CONTENT, DEFAULT_SOURCES, ladder
from warmroute.core.messages import Shape
from warmroute.core.model import BackendSpec, Reason
from warmroute.core.policy import DEFAULT_BOUNDS
from warmroute.core.routes import find, response_id
from warmroute.fleet.registry import Registry
from warmroute.pins.memory import PinTable
from warmroute.proxy.placement import Placed, Placement
from warmroute.proxy.request import Request, decoded, reader_for
from warmroute.recognition.memory import remember
from warmroute.recognition.recognizer import Recognizer, Turn

PATHS = {
    Shape.CHAT: "/v1/chat/completions",
    Shape.MESSAGES: "/v1/messages",
    Shape.RESPONSES: "/v1/responses",
    Shape.COMPLETIONS: "/v1/completions",
}
IDLE = 1800.0
MODEL = "m"


# What is said


@dataclass(frozen=True)
class Said:
    """An answer of the model: a thought that clients may drop, a text, and calls of tools as (name, arguments)."""

    text: str
    calls: tuple[tuple[str, str], ...] = ()
    thought: str = ""


@dataclass(frozen=True)
class Asked:
    """What a user says."""

    text: str


@dataclass(frozen=True)
class Got:
    """What a tool gave."""

    text: str


Entry = Said | Asked | Got


@dataclass(frozen=True)
class Style:
    """One way to write the same: what clients change between two turns although nothing else was said."""

    parts: bool = False
    marked: bool = False
    developer: bool = False
    ids: bool = False
    nulls: bool = False
    blanks: str = ""
    thoughts: bool = False
    rewritten: bool = False
    escaped: bool = True
    indent: int | None = None
    reversed_keys: bool = False


PLAIN = Style()


def request_body(shape: Shape, system: str, entries: Sequence[Entry], style: Style = PLAIN, **fields: Any) -> bytes:
    """A request whose history is these entries, written in this style."""
    body: dict[str, Any] = {"model": MODEL, "stream": True, **fields}
    if shape is Shape.COMPLETIONS:
        body["prompt"] = system + "".join(entry.text for entry in entries)
    elif shape is Shape.CHAT:
        first = [{"role": "developer" if style.developer else "system", "content": _content(system, style)}]
        body["messages"] = [*(first if system else []), *(_chat(entry, style) for entry in entries)]
    elif shape is Shape.MESSAGES:
        body["messages"] = [_anthropic(entry, style) for entry in entries]
        if system:
            body["system"] = _content(system, style)
    else:
        body["input"] = [item for entry in entries for item in _items(entry, style)]
        if system:
            body["instructions"] = system
    return _json(body, style)


def _json(value: object, style: Style) -> bytes:
    if style.reversed_keys:
        value = _turned(value)
    return json.dumps(value, ensure_ascii=style.escaped, indent=style.indent).encode("utf-8", "surrogatepass")


def _turned(value: object) -> object:
    if isinstance(value, dict):
        return {key: _turned(value[key]) for key in reversed(value)}
    return [_turned(item) for item in value] if isinstance(value, list) else value


def _content(text: str, style: Style, kind: str = "text") -> object:
    if not style.parts and not style.marked:
        return text
    mark = {"cache_control": {"type": "ephemeral"}} if style.marked else {}
    return [{"type": kind, "text": text, **mark, **({"annotations": None} if style.nulls else {})}]


def _arguments(arguments: str, style: Style) -> str:
    return json.dumps(_turned(json.loads(arguments)), indent=1) if style.rewritten else arguments


def _chat(entry: Entry, style: Style) -> dict[str, Any]:
    extra: dict[str, Any] = {"id": f"m{id(style)}"} if style.ids else {}
    if style.nulls:
        extra |= {"name": None, "refusal": None}
    if isinstance(entry, Asked):
        return {"role": "user", "content": _content(entry.text + style.blanks, style), **extra}
    if isinstance(entry, Got):
        return {"role": "tool", "tool_call_id": "c0", "content": _content(entry.text, style), **extra}
    if style.thoughts and entry.thought:
        extra["reasoning_content"] = entry.thought
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": _arguments(arguments, style)}}
        for i, (name, arguments) in enumerate(entry.calls)
    ]
    text = _content(style.blanks + entry.text + style.blanks, style)
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {}), **extra}


def _anthropic(entry: Entry, style: Style) -> dict[str, Any]:
    if isinstance(entry, Asked):
        return {"role": "user", "content": _content(entry.text + style.blanks, style)}
    if isinstance(entry, Got):
        result = {"type": "tool_result", "tool_use_id": "c0", "content": _content(entry.text, style)}
        return {"role": "user", "content": [result | ({"is_error": None} if style.nulls else {})]}
    blocks: list[dict[str, Any]] = []
    if style.thoughts and entry.thought:
        blocks.append({"type": "thinking", "thinking": entry.thought, "signature": "s"})
    if entry.text:
        blocks.append({"type": "text", "text": entry.text + ("" if entry.calls else style.blanks)})
    for i, (name, arguments) in enumerate(entry.calls):
        blocks.append({"type": "tool_use", "id": f"c{i}", "name": name, "input": json.loads(arguments)})
    if style.marked and blocks:
        blocks[-1]["cache_control"] = {"type": "ephemeral"}
    return {"role": "assistant", "content": blocks}


def _items(entry: Entry, style: Style) -> Iterator[dict[str, Any]]:
    extra: dict[str, Any] = {"id": "i1", "status": "completed"} if style.ids else {}
    if isinstance(entry, Asked):
        yield {"role": "user", "content": _content(entry.text + style.blanks, style, "input_text"), **extra}
        return
    if isinstance(entry, Got):
        yield {"type": "function_call_output", "call_id": "c0", "output": entry.text, **extra}
        return
    if style.thoughts and entry.thought:
        yield {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": entry.thought}]}
    if entry.text:
        content = [{"type": "output_text", "text": entry.text + style.blanks, "annotations": []}]
        yield {"type": "message", "role": "assistant", "content": content, **extra}
    for i, (name, arguments) in enumerate(entry.calls):
        yield {"type": "function_call", "call_id": f"c{i}", "name": name, "arguments": _arguments(arguments, style)}


# What is answered


def whole_answer(shape: Shape, said: Said, answer_id: str = "resp_1") -> bytes:
    """The answer as one JSON body."""
    if shape is Shape.COMPLETIONS:
        return json.dumps({"choices": [{"index": 0, "text": said.text, "finish_reason": "stop"}]}).encode()
    if shape is Shape.CHAT:
        message = {**_chat(said, PLAIN), "reasoning": said.thought or None}
        return json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    thinking = Style(thoughts=True)
    if shape is Shape.MESSAGES:
        return json.dumps({"type": "message", **_anthropic(said, thinking), "stop_reason": "end_turn"}).encode()
    output = list(_items(said, thinking))
    return json.dumps({"id": answer_id, "object": "response", "status": "completed", "output": output}).encode()


def streamed_answer(shape: Shape, said: Said, answer_id: str = "resp_1") -> bytes:
    """The answer as an event stream; its text comes letter by letter."""
    match shape:
        case Shape.CHAT:
            events = _chat_events(said)
        case Shape.COMPLETIONS:
            events = _completion_events(said)
        case Shape.MESSAGES:
            events = _anthropic_events(said)
        case Shape.RESPONSES:
            events = _response_events(said, answer_id)
    end = b"data: [DONE]\n\n" if shape in (Shape.CHAT, Shape.COMPLETIONS) else b""
    return b"".join(b"data: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n" for event in events) + end


def _chat_events(said: Said) -> Iterator[Mapping[str, Any]]:
    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> Mapping[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    yield from (chunk({"reasoning": letter}) for letter in said.thought)
    yield from (chunk({"content": letter}) for letter in said.text)
    for i, (name, arguments) in enumerate(said.calls):
        yield chunk({"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": name, "arguments": ""}}]})
        for piece in (arguments[:3], arguments[3:]):
            yield chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
    yield chunk({}, "stop")
    yield {"choices": [], "usage": {"prompt_tokens": 3}}


def _completion_events(said: Said) -> Iterator[Mapping[str, Any]]:
    yield from ({"choices": [{"index": 0, "text": letter, "finish_reason": None}]} for letter in said.text)
    yield {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}


def _anthropic_events(said: Said) -> Iterator[Mapping[str, Any]]:
    yield {"type": "message_start", "message": {"id": "m1", "role": "assistant", "content": []}}
    for i, block in enumerate(_anthropic(said, Style(thoughts=True))["content"]):
        if block["type"] == "tool_use":
            begun, name, kind = {**block, "input": {}}, "partial_json", "input_json_delta"
            text = json.dumps(block["input"])
        elif block["type"] == "text":
            begun, name, kind, text = {"type": "text", "text": ""}, "text", "text_delta", block["text"]
        else:
            begun, name, kind, text = {"type": "thinking", "thinking": ""}, "thinking", "thinking_delta", said.thought
        yield {"type": "content_block_start", "index": i, "content_block": begun}
        for letter in text:
            yield {"type": "content_block_delta", "index": i, "delta": {"type": kind, name: letter}}
        yield {"type": "content_block_stop", "index": i}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}
    yield {"type": "message_stop"}


def _response_events(said: Said, answer_id: str) -> Iterator[Mapping[str, Any]]:
    response: dict[str, Any] = {"id": answer_id, "object": "response", "status": "in_progress", "output": []}
    yield {"type": "response.created", "response": response}
    yield from ({"type": "response.output_text.delta", "delta": letter} for letter in said.text)
    whole = {**response, "status": "completed", "output": list(_items(said, Style(thoughts=True)))}
    yield {"type": "response.completed", "response": whole}


# A router that decides, and does nothing else


class Went(NamedTuple):
    """One request as it was decided."""

    turn: Turn
    reason: Reason
    backend: str

    @property
    def key(self) -> bytes | None:
        return self.turn.session.key if self.turn.session else None


@dataclass
class World:
    """Recognition, pins and placement over backends that are up, with a clock that only tests move."""

    backends: int = 3
    sources: Iterable[str] = DEFAULT_SOURCES
    entries: int = 300_000
    now: float = 1000.0

    def __post_init__(self) -> None:
        def clock() -> float:
            return self.now

        names = [f"b{i}" for i in range(self.backends)]
        self.pins = PinTable(clock, idle_expiry=IDLE, limit=1_000_000)
        specs = [BackendSpec(name, f"http://{name}") for name in names]
        self.registry = Registry(specs, self.pins, Thresholds(1, 1), self.now)
        for name in names:
            self.registry.probed(name, None, self.now)
        self.memory = remember(clock, idle_expiry=IDLE, entries=self.entries, sessions=100_000, backends=self.backends)
        sources = tuple(self.sources)
        numbers = itertools.count()
        self.recognizer = Recognizer(
            self.memory,
            self.pins,
            sources=ladder(sources),
            by_content=CONTENT in sources,
            decode=decoded,
            nonce=lambda: b"N%015d" % next(numbers),
        )
        self.placement = Placement(self.registry, self.pins, DEFAULT_BOUNDS)
        self.reader = reader_for(sources)
        self._requests = itertools.count()

    def view(self, path: str, body: bytes, headers: Mapping[str, str]) -> Request:
        named = {name.lower().encode(): value.encode() for name, value in headers.items()}
        return Request("POST", path.encode(), path, list(named.items()), named, body, self.reader)

    def recognise(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> Turn:
        """What a request is taken for; it goes nowhere."""
        route = find(path.encode())
        assert route is not None
        view = self.view(path, body, headers or {})
        return self.recognizer.recognise(view, route, view.model, response_id(route, path.encode()))

    def place(self, turn: Turn) -> Placed:
        """Where a request goes; its lease is not taken yet."""
        placed = self.placement.place(turn.session, MODEL, b"%d" % next(self._requests), (), turn.wishes)
        assert isinstance(placed, Placed)
        return placed

    def send(
        self,
        path: str,
        body: bytes,
        answer: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        pieces: Iterable[bytes] | None = None,
    ) -> Went:
        """One whole request, answered with these bytes (in these pieces) by the backend that it goes to; without them cut."""
        turn = self.recognise(path, body, headers)
        self.recognizer.goes(turn)
        placed = self.place(turn)
        with placed.lease:
            self.placement.confirm(turn.session, placed.decision)
            self.recognizer.served(turn, placed.decision)
            events = answer is not None and answer.startswith(b"data:")
            listener = self.recognizer.listener(turn, placed.decision, event_stream=events)
            if listener is not None and answer is not None:
                for piece in pieces or [answer]:
                    listener.hear(piece)
                listener.whole()
        return Went(turn, placed.decision.reason, placed.backend)

    def say(
        self,
        entries: Sequence[Entry],
        answer: Said | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        shape: Shape = Shape.CHAT,
        system: str = "",
        **fields: Any,
    ) -> Went:
        """One whole turn in plain style, its answer streamed."""
        body = request_body(shape, system, entries, **fields)
        return self.send(PATHS[shape], body, streamed_answer(shape, answer) if answer else None, headers)
