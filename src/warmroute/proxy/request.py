"""A request as it came: its bytes, and a lazy look into its JSON."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from operator import attrgetter
from urllib.parse import parse_qsl

import msgspec

from ..core.headers import Headers
from ..core.identity import BODY_FIELDS
from ..core.routes import REALTIME
from ..recognition.recognizer import FIELDS
from .body import is_form

_NO_RAW = msgspec.Raw(b"")
_value = msgspec.json.Decoder()
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


class FieldReader:
    """Finds the top-level fields of these names in a JSON object and skips all others, however many there are.

    `owned` are further names, of which it can tell at once that none is there; so it can of those in `naming`.
    """

    def __init__(self, names: Iterable[str], owned: Iterable[str] = (), naming: Iterable[str] = ()) -> None:
        owned, naming = tuple(owned), tuple(naming)
        self.attributes = {name: f"f{i}" for i, name in enumerate(dict.fromkeys((*names, *owned, *naming)))}
        self.owned, self.none_owned = self._together(owned)
        self.naming, self.none_naming = self._together(naming)
        fields = [(a, msgspec.Raw, msgspec.field(default=_NO_RAW, name=n)) for n, a in self.attributes.items()]
        self._decoder = msgspec.json.Decoder(msgspec.defstruct("Fields", fields, gc=False))

    def _together(self, names: tuple[str, ...]) -> tuple[Callable[[object], object], object]:
        """What gets all of these fields at once, and what it gets where none is there."""
        if not names:
            return lambda _: (), ()
        # attrgetter gives a tuple for two names or more
        return attrgetter(*(self.attributes[name] for name in names * 2)), (_NO_RAW,) * len(names) * 2

    def read(self, body: bytes) -> object:
        """What the other methods take; None if the body is no JSON object."""
        try:
            return self._decoder.decode(body)
        except _UNREADABLE:
            return None

    def has(self, fields: object, name: str) -> bool:
        """Whether there is such a field."""
        return getattr(fields, self.attributes.get(name, ""), _NO_RAW) is not _NO_RAW

    def raw(self, fields: object, name: str) -> bytes | None:
        """One field as it was written; None where there is none, or it is not one of this reader's."""
        raw = getattr(fields, self.attributes.get(name, ""), _NO_RAW)
        return None if raw is _NO_RAW else bytes(raw)


def decoded(data: bytes | msgspec.Raw) -> object:
    """A JSON value; None for what is none, or cannot be read."""
    try:
        return _value.decode(data)
    except _UNREADABLE:
        return None


def reader_for(sources: Iterable[str], owned: Iterable[str] = ()) -> FieldReader:
    """A reader of what routing needs: the model, and the fields that tell a conversation or are looked at by these sources."""
    added = (name.removeprefix("body:").partition(".")[0] for name in sources if name.startswith("body:"))
    return FieldReader(["model", *FIELDS, "return_token_ids", "stream_options", "n"], owned, (*BODY_FIELDS, *added))


class Request:
    """Method, target, headers and the body, exactly as received; of an upload that is streamed, its beginning.

    The JSON is scanned once for its top-level keys and only the values asked for are decoded. A body that is no JSON object
    has no fields; it is sent on all the same, and the backend says what is wrong with it. A WebSocket has no body, and pages
    cannot give it headers: the parameters of its query stand for fields.
    """

    __slots__ = (
        "_attributes",
        "_fields",
        "_reader",
        "_scanned",
        "body",
        "headers",
        "label",
        "method",
        "named",
        "target",
    )

    def __init__(
        self,
        method: str,
        target: bytes,
        label: str,
        headers: Headers,
        named: Mapping[bytes, bytes],
        body: bytes,
        reader: FieldReader,
    ) -> None:
        self.method = method
        self.target = target
        self.label = label
        self.headers = headers
        self.named = named
        self.body = body
        self._reader = reader
        self._attributes = reader.attributes
        self._fields: object = None
        self._scanned = False

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.label} {len(self.body)} bytes>"

    def header(self, name: bytes) -> bytes | None:
        return self.named.get(name)

    def field(self, name: str) -> object:
        """A top-level value of the JSON body; None where there is none or it cannot be read."""
        if not self._scanned:
            self._scan()
        raw = getattr(self._fields, self._attributes.get(name, ""), _NO_RAW)
        if raw is _NO_RAW:
            return None
        try:
            return _value.decode(raw)
        except _UNREADABLE:
            return None

    def _scan(self) -> None:
        self._scanned = True
        told = _query(self.target) if self.label == REALTIME.label else self.body
        self._fields = None if not told or is_form(self.named) else self._reader.read(told)

    @property
    def unreadable(self) -> bool:
        """Whether there is a body that is no JSON object, at least for this reader."""
        if not self._scanned:
            self._scan()
        return self._fields is None and bool(self.body)

    def put(self, fields: bytes) -> None:
        """Put fields at the front of the JSON object that the body is; each has a comma behind it."""
        at = self.body.find(b"{") + 1
        rest = self.body[at:]
        if rest.lstrip().startswith(b"}"):
            fields = fields[:-1]
        self.replace_body(self.body[:at] + fields + rest)

    def has(self, name: str) -> bool:
        """Whether the JSON body has this top-level field, whatever its value; cheaper than reading it."""
        if not self._scanned:
            self._scan()
        return getattr(self._fields, self._attributes.get(name, ""), _NO_RAW) is not _NO_RAW

    def any_of_owned(self) -> bool | None:
        """Whether one of its reader's owned fields is there; None if the body cannot be read."""
        if not self._scanned:
            self._scan()
        reader = self._reader
        return None if self._fields is None else bool(reader.owned(self._fields) != reader.none_owned)

    def may_name(self) -> bool:
        """Whether one of the fields is there in which a client may name its conversation."""
        if not self._scanned:
            self._scan()
        reader = self._reader
        return self._fields is not None and bool(reader.naming(self._fields) != reader.none_naming)

    def replace_body(self, body: bytes) -> None:
        """Go on with another body; what was read of the one before is forgotten."""
        self.body, self._fields, self._scanned = body, None, False

    def raw(self, name: str) -> bytes | None:
        """A top-level value of the JSON body as it was written; None where there is none."""
        if not self._scanned:
            self._scan()
        raw = getattr(self._fields, self._attributes.get(name, ""), _NO_RAW)
        return None if raw is _NO_RAW else bytes(raw)

    def written(self, name: str) -> memoryview | None:
        """`raw` without a copy: a history may be long."""
        if not self._scanned:
            self._scan()
        raw = getattr(self._fields, self._attributes.get(name, ""), _NO_RAW)
        return None if raw is _NO_RAW else memoryview(raw)

    @property
    def model(self) -> str | None:
        model = self.field("model")
        if isinstance(model, str):
            return model
        return _multipart_model(self.body) if is_form(self.named) else None


def _query(target: bytes) -> bytes:
    """The parameters of a target's query as a JSON object; of one that is repeated the first."""
    query = target.partition(b"?")[2].decode("ascii", "replace")
    pairs = parse_qsl(query, keep_blank_values=True, errors="replace")
    return msgspec.json.encode(dict(reversed(pairs)))


_MODEL_FIELD = re.compile(rb'name="?model"?\r\n')
_PART_HEAD = 2048
"""Bytes of a form part's head that are looked at, its value included."""
_FIELDS_LOOKED_AT = 16
"""Places that look like the model's field and are tried; text of an upload may look like one too."""


def _multipart_model(body: bytes) -> str | None:
    """The model named in an upload, found by the form field's own lines, in time that grows with the body alone."""
    for matched in islice(_MODEL_FIELD.finditer(body), _FIELDS_LOOKED_AT):
        part = body[matched.end() : matched.end() + _PART_HEAD]
        _, blank_line, rest = (b"\r\n" + part).partition(b"\r\n\r\n")
        value, ended, _ = rest.partition(b"\r\n")
        if blank_line and ended and value and len(value) <= 256:
            return value.decode("utf-8", "replace")
    return None
