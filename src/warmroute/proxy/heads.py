"""What is wrong with a request's head that the parser lets pass."""

from ..core.headers import Headers
from . import errors
from .errors import RouterError

_MOST_HEADERS = 100


def fault_of(headers: Headers, version: str) -> RouterError | None:
    """The error of such a head, None if it is well. Two servers that read a head in two ways can be played off
    against each other, so what is doubtful is refused."""
    names = [name for name, _ in headers]
    if len(names) > _MOST_HEADERS:
        return errors.too_many_headers(_MOST_HEADERS)
    if names.count(b"host") != 1 and (version != "1.0" or b"host" in names):
        return errors.not_one_host()
    if version not in ("1.1", "1.0"):
        return errors.not_http()
    if b"transfer-encoding" in names:
        coded = [value.lower() for name, value in headers if name == b"transfer-encoding"]
        if coded != [b"chunked"] or version == "1.0":
            return errors.not_http()
    return None


def size_of(url: bytes, headers: Headers) -> int:
    """Bytes of a head's target, names and values."""
    return len(url) + sum(len(name) + len(value) for name, value in headers)
