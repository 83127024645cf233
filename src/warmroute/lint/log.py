"""Requests from a file of JSON lines: bodies alone, or with headers and path around them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..core.headers import Headers, first_values
from ..core.identity import DEFAULT_LADDER, DEFAULT_SOURCES, identify
from ..core.messages import Shape, request_messages
from ..core.model import Session
from ..core.routes import find
from ..core.side import is_side_request
from ..core.sketch import Kind
from ..proxy.parts import Part, parts_of
from ..proxy.request import Request, decoded, reader_for


class LogError(Exception):
    """The log cannot be read; the text says which lines, and what should be there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One request of the log: its line, counted from 1, whose it says it is, and its prompt."""

    line: int
    session: Session | None
    model: str
    parts: list[Part]


_READER = reader_for([*DEFAULT_SOURCES, "body:body", "body:headers", "body:path", "body:url"])
_SHOWN = 5
"""Bad lines that an error names."""


def entries(lines: Iterable[bytes]) -> Iterator[Entry]:
    """The requests of a log that have a prompt and are turns of conversations, in its order. Raises LogError at its end."""
    bad: list[int] = []
    found = False
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        request = _request(line)
        if request is None:
            bad.append(number)
            continue
        found = True
        entry = _entry(number, request)
        if entry is not None:
            yield entry
    if bad:
        shown = ", ".join(map(str, bad[:_SHOWN])) + (f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else "")
        raise LogError(
            f"line {shown}: no JSON object; each line must be a request's body, or an object with headers, path and body"
        )
    if not found:
        raise LogError("line 1: there is no request; each line must be a request's body as JSON")


def _request(line: bytes) -> Request | None:
    """The request that a line tells of; None if it is none."""
    fields = _READER.read(line)
    if fields is None:
        return None
    path, body = "", line.strip()
    headers: Headers = []
    wrapped = _READER.raw(fields, "body")
    if wrapped is not None:
        inner = decoded(wrapped)
        body = inner.encode("utf-8", "surrogatepass") if isinstance(inner, str) else bytes(wrapped)
        headers = _headers(_value(fields, "headers"))
        told = _value(fields, "path") or _value(fields, "url")
        path = told if isinstance(told, str) else ""
        fields = _READER.read(body)
        if fields is None:
            return None
    named = first_values(headers)
    return Request("POST", b"", path or _path(fields), headers, named, body, _READER)


def _value(fields: object, name: str) -> object:
    return decoded(_READER.raw(fields, name) or b"")


def _headers(value: object) -> Headers:
    """Headers from an object or a list of pairs; what is neither of text has none."""
    pairs = value.items() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [
        (pair[0].lower().encode("latin-1", "replace"), pair[1].encode("utf-8", "surrogatepass"))
        for pair in pairs
        if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(item, str) for item in pair)
    ]


def _path(fields: object) -> str:
    """The path that a body's fields tell."""
    if _READER.has(fields, "messages"):
        return "/v1/messages" if _READER.has(fields, "system") else "/v1/chat/completions"
    return "/v1/responses" if _READER.has(fields, "input") else "/v1/completions"


def _entry(number: int, request: Request) -> Entry | None:
    route = find(request.label.partition("?")[0].encode("utf-8", "replace"))
    shape = route.shape if route is not None else None
    if shape is None or request.has("previous_response_id"):
        return None
    parts = parts_of(shape, request.raw)
    if not parts or _beside(request, shape, parts):
        return None
    model = request.model or ""
    return Entry(number, identify(request, model, DEFAULT_LADDER).session, model, parts)


def _beside(request: Request, shape: Shape, parts: list[Part]) -> bool:
    """Whether it is a title, a tag or a probe; what holds an answer of the model is none unless a header says so."""
    begun = any(kind is Kind.ASSISTANT for kind, _ in parts)
    return is_side_request(request, shape, [] if begun else request_messages(shape, request.field))
