"""A request as it came: its bytes, and a lazy look into its JSON."""

import re
from collections.abc import Mapping

import msgspec

from ..core.headers import Headers
from .client import Receive

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_value = msgspec.json.Decoder()


class BodyTooLarge(Exception):
    """The body is over the limit; nothing more of it is read."""


class ClientLeft(Exception):
    """The client went away before its request was whole."""


class Request:
    """Method, target, headers and the whole body, exactly as received.

    The JSON is scanned once for its top-level keys and only the values asked for are decoded. A body that is no JSON object
    has no fields; it is sent on all the same, and the backend says what is wrong with it.
    """

    __slots__ = ("_named", "_parsed", "body", "headers", "label", "method", "target")

    def __init__(
        self, method: str, target: bytes, label: str, headers: Headers, named: Mapping[bytes, bytes], body: bytes
    ) -> None:
        self.method = method
        self.target = target
        self.label = label
        self.headers = headers
        self._named = named
        self.body = body
        self._parsed: dict[str, msgspec.Raw] | None = None

    def __repr__(self) -> str:
        return f"<Request {self.method} {self.label} {len(self.body)} bytes>"

    def header(self, name: bytes) -> bytes | None:
        return self._named.get(name)

    def field(self, name: str) -> object:
        """A top-level value of the JSON body; None where there is none or it cannot be read."""
        if self._parsed is None:
            self._parsed = self._scan()
        raw = self._parsed.get(name)
        if raw is None:
            return None
        try:
            return _value.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return None

    @property
    def model(self) -> str | None:
        model = self.field("model")
        if isinstance(model, str):
            return model
        return _multipart_model(self.body) if self._is_multipart else None

    @property
    def _is_multipart(self) -> bool:
        return (self.header(b"content-type") or b"").lower().startswith(b"multipart/form-data")

    def _scan(self) -> dict[str, msgspec.Raw]:
        if not self.body or self._is_multipart:
            return {}
        try:
            return _fields.decode(self.body)
        except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeDecodeError):
            return {}


_MODEL_PART = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')


def _multipart_model(body: bytes) -> str | None:
    """The model named in an upload, found by the form field's own lines."""
    match = _MODEL_PART.search(body)
    return match[1].decode("utf-8", "replace") if match else None


async def read_body(receive: Receive, named: Mapping[bytes, bytes], limit: int) -> bytes:
    """The whole body. Raises BodyTooLarge (before reading, where the length is announced) or ClientLeft."""
    announced = named.get(b"content-length")
    if announced is not None and announced.isdigit() and int(announced) > limit:
        raise BodyTooLarge
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        if part := message.get("body", b""):
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)
