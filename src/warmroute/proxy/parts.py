"""Cuts a request's prompt into its parts, in the order in which chat templates put them, without decoding any text."""

import re
from collections.abc import Callable, Iterator

import msgspec

from ..core.messages import Shape
from ..core.sketch import Kind

Part = tuple[Kind, bytes]
RawField = Callable[[str], msgspec.Raw | None]
"""Gives a top-level value of a request's JSON body as it was written; None where there is none."""


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
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return []


def _tools(field: RawField) -> Iterator[Part]:
    for tool in _items(field("tools")):
        yield Kind.TOOL, _unmarked(tool)


def _prompt(shape: Shape, field: RawField) -> Iterator[Part]:
    match shape:
        case Shape.CHAT:
            yield from _messages(field("messages"))
        case Shape.MESSAGES:
            yield from _system(field("system"))
            yield from _messages(field("messages"), late=Kind.SYSTEM)
        case Shape.RESPONSES:
            yield from _system(field("instructions"))
            yield from _responses(field("input"))
        case Shape.COMPLETIONS:
            yield from _text(field("prompt"))


def _items(raw: msgspec.Raw | None) -> Iterator[bytes]:
    """The items of a list; of anything else none."""
    if raw is not None and _first(raw) == b"[":
        yield from map(bytes, _list.decode(raw))


def _unmarked(data: bytes, start: int = 0) -> bytes:
    """A part without the cache marks that stand behind this place."""
    if data.rfind(b'"cache_control":', start) < 0 and data.rfind(b'"prompt_cache_breakpoint":', start) < 0:
        return data
    return _CACHE_MARK.sub(b"", data)


def _first(raw: msgspec.Raw) -> bytes:
    """The first byte of a value."""
    return bytes(memoryview(raw)[:16]).lstrip()[:1]


def _system(raw: msgspec.Raw | None) -> Iterator[Part]:
    if raw is not None and _first(raw) == b'"':
        yield Kind.SYSTEM, bytes(raw)
    for block in _items(raw):
        yield Kind.SYSTEM, _unmarked(block)


def _messages(raw: msgspec.Raw | None, late: Kind = Kind.OTHER) -> Iterator[Part]:
    """Messages; system prompts behind the first message are of the kind `late`."""
    begun = False
    for data in _items(raw):
        kind = _BEGINNINGS.get(data[:_BEGINNING])
        if kind is None or data.find(b"[", _BEGINNING, 40) >= 0:
            data = _unmarked(data)
            kind = _kind(data)
            data = _plain(data)
        else:  # the content is no list, so that a mark can only stand behind it
            data = _unmarked(data, max(0, len(data) - _TAIL))
        if kind is Kind.SYSTEM:
            yield (late if begun else kind), data
        else:
            begun = True
            yield kind, data


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


def _responses(raw: msgspec.Raw | None) -> Iterator[Part]:
    if raw is not None and _first(raw) == b'"':
        yield Kind.USER, b'{"role":"user","content":' + bytes(raw) + b"}"
    begun = False
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
        yield kind, data


def _text(raw: msgspec.Raw | None) -> Iterator[Part]:
    """A prompt that is one text, or one list of tokens, without its last bracket or quotation mark: it may grow behind it."""
    data = b"" if raw is None else bytes(raw).strip()
    if data.startswith(b'"') or re.match(rb"\[\s*\d", data):
        yield Kind.USER, data[:-1].rstrip() if data.startswith(b"[") else data[:-1]
