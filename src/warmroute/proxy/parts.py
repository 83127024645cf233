"""Cuts a request's prompt into its parts, in the order in which chat templates put them, without decoding any text."""

import re
import secrets
from collections.abc import Callable
from typing import Protocol

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from ..core.messages import Shape
from ..core.sketch import OTHER, SYSTEM, Kind, Stem

Part = tuple[Kind, bytes]
RawField = Callable[[str], bytes | None]
"""Gives a top-level value of a request's JSON body as it was written; None where there is none."""


class Fields(Protocol):
    """The top-level values of a JSON body as they were written; None where there is none. `written` makes no copy."""

    def raw(self, name: str) -> bytes | None: ...

    def written(self, name: str) -> memoryview | None: ...


class _Peek(msgspec.Struct, gc=False):
    """Whose message, or what kind of item."""

    role: msgspec.Raw = msgspec.Raw(b"")
    type: msgspec.Raw = msgspec.Raw(b"")


_list = msgspec.json.Decoder(list[msgspec.Raw])
_peek = msgspec.json.Decoder(_Peek)

_KINDS = {
    b'"system"': Kind.SYSTEM,
    b'"developer"': Kind.SYSTEM,
    b'"user"': Kind.USER,
    b'"assistant"': Kind.ASSISTANT,
    b'"model"': Kind.ASSISTANT,
}
_BEGINNING = 15
_BEGINNINGS = {
    begin[:_BEGINNING]: kind
    for role, kind in ((b"user", Kind.USER), (b"assistant", Kind.ASSISTANT), (b"tool", Kind.OTHER))
    for begin in (b'{"role":"' + role + b'","content"', b'{"role": "' + role + b'", "content"')
}
"""How nearly all clients begin a message; other ways to write it are read with more effort."""

_MARK = rb'"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:\{[^{}]*\}|null|true|false|"[^"\\]*")'
_CACHE_MARK = re.compile(rb",\s*" + _MARK + rb"|" + _MARK + rb"\s*,?\s*")
"""Marks of Anthropic's API. Clients move them to the end with each turn, and vLLM does not look at them."""

_ONE_TEXT = re.compile(
    rb'(\{\s*"role"\s*:\s*"\w+"\s*,\s*"content"\s*:\s*)\[\s*\{\s*"type"\s*:\s*"text"\s*,\s*"text"\s*:\s*(?=")'
)
_ONE_TEXT_ENDS = re.compile(rb'"\s*\}\s*\](\s*\})\s*$')
_MORE = (b'"},{"', b'"}, {"', b'","', b'", "')
"""What follows a text that something comes after; inside a text quotation marks are escaped."""
_TOOL_RESULT = re.compile(rb'"content"\s*:\s*\[\s*\{[^{}]{0,96}"type"\s*:\s*"tool_result"')
_RESULTS = b"_output"
_TAIL = 160
"""Bytes of a message's end in which a mark of the whole message stands."""
_LOOKED_AT = 256
"""Bytes of a message's beginning in which it says that it is a tool's result."""


def parts_of(shape: Shape, field: RawField) -> list[Part]:
    """The parts of a prompt: each tool, block of the system prompt and message, as the client wrote it, cache marks left out.

    A message of one text is the same as a text or as a list. A body that cannot be read, or says its prompt otherwise, has
    no parts. With `previous_response_id` the parts are only what is added to that response.
    """
    try:
        return [*_tools(field), *_prompt(shape, field)]
    except _UNREADABLE:
        return []


class Said:
    """What a request says, for the ledger: all of it in parts, or only what it adds to a prompt that it goes on from."""

    __slots__ = ("_fields", "_shape")

    def __init__(self, shape: Shape, fields: Fields) -> None:
        self._shape = shape
        self._fields = fields

    def __repr__(self) -> str:
        return f"<Said in the shape of {self._shape}>"

    def parts(self) -> list[Part]:
        return parts_of(self._shape, self._fields.raw)

    def added(self, old: Stem | None) -> tuple[Stem | None, list[Part] | None]:
        """The prompt's own stem, None where it is no list of messages; and the parts behind the old one, None if it does not
        begin with that. Both are told in one pass over the bytes, without decoding what was there before.
        """
        fields, shape = self._fields, self._shape
        data = fields.written("input" if shape is _RESPONSES else "messages")
        if data is None or shape is _COMPLETIONS or data[0] != _OPENS or data[-1] != _CLOSES:
            return None, None
        end = len(data) - 1
        while data[end - 1] in _SPACES:
            end -= 1
        # Beside the list a prompt's beginning is made of these.
        beside = hash((shape, fields.raw("tools"), fields.raw("system"), fields.raw("instructions")))
        if old is None or old.beside != beside or old.length > end:
            return Stem(beside, end, xxh3_64_intdigest(data[:end], _SEED)), None
        hashing = xxh3_64(data[: old.length], _SEED)
        digest = hashing.intdigest()
        begins = digest == old.digest
        if old.length < end:
            hashing.update(data[old.length : end])
            digest = hashing.intdigest()
        now = Stem(beside, end, digest)
        if not begins:
            return now, None
        more = bytes(data[old.length :]).lstrip()
        return now, [] if more == b"]" else self._behind(more)

    def _behind(self, more: bytes) -> list[Part] | None:
        if not more.startswith(b","):
            return None
        raw = b"[" + more[1:]
        try:
            if self._shape is _RESPONSES:
                return _responses(raw, begun=True)
            return _messages(raw, begun=True, late=_late(self._shape))
        except _UNREADABLE:
            return None


_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_RESPONSES, _COMPLETIONS = Shape.RESPONSES, Shape.COMPLETIONS
_SEED = secrets.randbits(64)
"""Digests of histories never leave the process. XXH3 reads 200 KB in 10 us, where Python's own hash takes 70."""
_OPENS, _CLOSES = b"[]"
_SPACES = b" \t\r\n"


def _late(shape: Shape) -> Kind:
    """What system prompts behind the first message are."""
    return SYSTEM if shape is Shape.MESSAGES else OTHER


def _tools(field: RawField) -> list[Part]:
    return [(Kind.TOOL, _unmarked(tool)) for tool in _items(field("tools"))]


def _prompt(shape: Shape, field: RawField) -> list[Part]:
    match shape:
        case Shape.CHAT:
            return _messages(field("messages"), late=_late(shape))
        case Shape.MESSAGES:
            return [*_system(field("system")), *_messages(field("messages"), late=_late(shape))]
        case Shape.RESPONSES:
            return [*_system(field("instructions")), *_responses(field("input"))]
        case Shape.COMPLETIONS:
            return _text(field("prompt"))


def _items(raw: bytes | None) -> list[bytes]:
    """The items of a list; of anything else none."""
    return list(map(bytes, _list.decode(raw))) if raw is not None and _first(raw) == b"[" else []


def _unmarked(data: bytes, start: int = 0) -> bytes:
    """A part without the cache marks that stand behind this place."""
    if data.rfind(b'"cache_control":', start) < 0 and data.rfind(b'"prompt_cache_breakpoint":', start) < 0:
        return data
    return _CACHE_MARK.sub(b"", data)


def _first(raw: bytes) -> bytes:
    """The first byte of a value."""
    return raw[:16].lstrip()[:1]


def _system(raw: bytes | None) -> list[Part]:
    if raw is not None and _first(raw) == b'"':
        return [(Kind.SYSTEM, raw)]
    return [(Kind.SYSTEM, _unmarked(block)) for block in _items(raw)]


def _messages(raw: bytes | None, *, late: Kind, begun: bool = False) -> list[Part]:
    """Messages; system prompts behind the first message (or `begun`) are of the kind `late`."""
    found: list[Part] = []
    for data in _items(raw):
        kind = _BEGINNINGS.get(data[:_BEGINNING])
        if kind is None or data.find(b"[", _BEGINNING, 40) >= 0:
            data = _unmarked(data)
            kind = _kind(data)
            data = _plain(data)
        else:  # the content is no list, so that a mark can only stand behind it
            data = _unmarked(data, max(0, len(data) - _TAIL))
        if kind is not SYSTEM:
            begun = True
        elif begun:
            kind = late
        found.append((kind, data))
    return found


def _kind(data: bytes) -> Kind:
    if not data.startswith(b"{"):
        return Kind.OTHER
    role = bytes(_peek.decode(data).role)
    kind = _KINDS.get(role, Kind.OTHER)
    return Kind.OTHER if kind is Kind.USER and _TOOL_RESULT.search(data[:_LOOKED_AT]) else kind


def _plain(data: bytes) -> bytes:
    """A message whose content is a list of one text, as if the content were that text; any other as it is."""
    begins = _ONE_TEXT.match(data)
    if begins is None:
        return data
    ends = _ONE_TEXT_ENDS.search(data, max(0, len(data) - 24))
    if ends is None or any(data.find(more, begins.end(), ends.start()) >= 0 for more in _MORE):
        return data
    return begins[1] + data[begins.end() : ends.start() + 1] + ends[1]


def _responses(raw: bytes | None, *, begun: bool = False) -> list[Part]:
    if raw is not None and _first(raw) == b'"':
        return [(Kind.USER, b'{"role":"user","content":' + raw + b"}")]
    found: list[Part] = []
    for data in _items(raw):
        if not data.startswith(b"{"):
            continue
        data = _unmarked(data)
        peeked = _peek.decode(data)
        kind = _KINDS.get(bytes(peeked.role))
        if kind is None:
            kind = Kind.OTHER if _RESULTS in bytes(peeked.type) else Kind.ASSISTANT
        if kind is Kind.SYSTEM and begun:
            kind = Kind.OTHER
        begun = begun or kind is not Kind.SYSTEM
        found.append((kind, data))
    return found


def _text(raw: bytes | None) -> list[Part]:
    """A prompt that is one text, or one list of tokens, without its last bracket or quotation mark: it may grow behind it."""
    data = b"" if raw is None else raw.strip()
    if data.startswith(b'"') or re.match(rb"\[\s*\d", data):
        return [(Kind.USER, data[:-1].rstrip() if data.startswith(b"[") else data[:-1])]
    return []
