"""A client's body as it comes: whole, or its beginning and then the rest piece by piece."""

from collections.abc import Callable, Mapping
from typing import Protocol

from . import errors
from .errors import RouterError


class BodyRefused(Exception):
    """The body is too large, or will not come whole; nothing more of it is read. `error` is the answer."""

    def __init__(self, error: RouterError) -> None:
        super().__init__(error.message)
        self.error = error


class BodySource(Protocol):
    """Where a body comes from. `length` is announced, in bytes; `whole`: all has come; `broken` says why the rest will not."""

    length: int | None

    @property
    def whole(self) -> bool: ...
    @property
    def broken(self) -> RouterError | None: ...

    async def take(self) -> bytes:
        """What has come since, at least a byte unless it has ended. Raises ClientLeft."""

    def here(self) -> bytes:
        """`take`, without waiting."""


class ClientLeft(Exception):
    """The client went away before its request was whole."""


class Incoming:
    """One request's body, read from its connection under a limit in bytes.

    Every method raises BodyRefused (before reading, where too great a length is announced) or ClientLeft. `ended` tells
    whether all of it was read, `read` how many bytes were. `watch`, where one is set, sees each piece first and may refuse it.
    """

    watch: Callable[[bytes], None] | None = None

    def __init__(self, source: BodySource, limit: int) -> None:
        self.length = source.length
        self._source = source
        self._limit = limit
        self.read = 0
        self.ended = False

    def __repr__(self) -> str:
        return f"<Incoming {self.read} of {self.length or 'unknown'} bytes{' ended' if self.ended else ''}>"

    def at_once(self) -> bytes | None:
        """All of the body, if nothing of it was read and all of it has come."""
        source = self._source
        if self.read or not source.whole or source.length is None or source.length > self._limit:
            return None
        body = source.here()
        self.read, self.ended = len(body), True
        return body

    async def whole(self, begun: bytes = b"") -> bytes:
        """All of the body; `begun` is what was read of it before."""
        return await self.at_least(self._limit + 1, begun)

    async def at_least(self, size: int, begun: bytes = b"") -> bytes:
        """The beginning: this many bytes or some more, fewer only where the body ends."""
        if self.length is not None and self.length > self._limit:
            raise BodyRefused(errors.body_too_large(self._limit))
        parts = [begun] if begun else []
        while not self.ended and self.read < size:
            if part := await self.next():
                parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def next(self) -> bytes:
        """The next piece; it may be empty, and is at the end."""
        if self.ended:
            return b""
        part = await self._source.take()
        self.read += len(part)
        if self.read > self._limit:
            raise BodyRefused(errors.body_too_large(self._limit))
        if self.watch is not None:
            self.watch(part)
        if self._source.whole:
            self.ended = True
        elif self._source.broken is not None:
            raise BodyRefused(self._source.broken)
        return part


def is_form(named: Mapping[bytes, bytes]) -> bool:
    """Whether the body is a form with files, of which nothing but some fields is for the router."""
    return named.get(b"content-type", b"").lower().startswith(b"multipart/form-data")
