"""Which conversation does a request belong to? A ladder of key sources; the first that has a value wins."""

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Protocol

from .model import Session


class RequestView(Protocol):
    """What identity may read of a request. Header names are lower case; fields are of the JSON body."""

    def header(self, name: bytes) -> bytes | None: ...
    def field(self, name: str) -> object: ...


KeySource = Callable[[RequestView], bytes | None]


def header(name: str) -> KeySource:
    """A request header's value."""
    encoded = name.lower().encode()

    def source(view: RequestView) -> bytes | None:
        value = view.header(encoded)
        return value.strip() if value is not None else None

    return source


def field(name: str) -> KeySource:
    """A top-level string of the JSON body; any other type is not an identity."""

    def source(view: RequestView) -> bytes | None:
        value = view.field(name)
        return value.strip().encode("utf-8", "surrogatepass") if isinstance(value, str) else None

    return source


SOURCES: Mapping[str, KeySource] = {
    "x-session-id": header("x-session-id"),
    "session_id": field("session_id"),
}
"""Every key source by its name, in the order in which they are asked."""


def digest(key: bytes, secret: bytes) -> str:
    """A session's key as people may see it, in logs and on the dashboard: 12 hex digits of a keyed BLAKE2b.

    The secret has 16 to 64 bytes; with another secret nothing of it can be recognised.
    """
    return blake2b(key, digest_size=6, key=secret).hexdigest()


def identify(view: RequestView, model: str | None, sources: Iterable[str] = tuple(SOURCES)) -> Session | None:
    """The session of a request, or None.

    The key is a digest of the source's name, the model and the value: equal values of different sources are different
    sessions, and each model has a cache of its own. A value may have any length and any bytes.
    """
    for name in sources:
        value = SOURCES[name](view)
        if value:
            seed = b"\0".join((name.encode(), (model or "").encode("utf-8", "surrogatepass"), value))
            return Session(blake2b(seed, digest_size=16).digest(), name)
    return None
