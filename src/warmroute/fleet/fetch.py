"""GET of a backend's own pages: bounded in time and size, every failure a few words for people."""

import asyncio
import errno
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a connection that say that the router has run out of something: descriptors, ports, memory."""


class FetchError(Exception):
    """A page could not be read; the text says why. `own` is True if that says nothing about the backend."""

    def __init__(self, reason: str, own: bool = False) -> None:
        super().__init__(reason)
        self.own = own


async def fetch(
    client: httpx.AsyncClient, url: str, *, timeout: float, limit: int, headers: Mapping[str, str] | None = None
) -> bytes:
    """The page's body, of a 2xx answer. Seconds for the whole of it, and bytes at most. Raises FetchError."""
    with explained():
        async with asyncio.timeout(timeout), client.stream("GET", url, headers=headers) as response:
            if not response.is_success:
                raise FetchError(f"{httpx.URL(url).path} answered {response.status_code}")
            body = bytearray()
            async for part in response.aiter_bytes():
                body += part
                if len(body) > limit:
                    raise FetchError(f"{httpx.URL(url).path} is larger than {limit >> 20} MiB")
            return bytes(body)


@contextmanager
def explained() -> Iterator[None]:
    """Whatever goes wrong with a request to a backend inside the block becomes a FetchError."""
    try:
        yield
    except httpx.ConnectTimeout:
        raise FetchError("no connection in time") from None
    except (TimeoutError, httpx.TimeoutException):
        raise FetchError("timed out") from None
    except httpx.RemoteProtocolError as error:
        left = "disconnected" in str(error) or "closed" in str(error)
        raise FetchError("it closed the connection without an answer" if left else "it sent no valid HTTP") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        cause = _os_error(error)
        if cause is not None and cause.errno in OWN_FAULTS:
            raise FetchError(cause.strerror or str(cause), own=True) from None
        if isinstance(error, httpx.ConnectError) and (cause is None or cause.errno == errno.ECONNREFUSED):
            raise FetchError("connection refused") from None
        if isinstance(cause, ssl.SSLError):
            raise FetchError(f"TLS failed: {tls_fault(cause)}") from None
        raise FetchError((cause and cause.strerror) or str(error) or type(error).__name__) from None


def tls_fault(error: ssl.SSLError) -> str:
    """What was wrong, in words: the library's own ones begin and end with places in its source."""
    said = getattr(error, "verify_message", "") or (getattr(error, "reason", None) or "").replace("_", " ").lower()
    return said or "no reason was given"


def _os_error(error: BaseException | None) -> OSError | None:
    """The operating system's error that a library's error stands for, if any."""
    for _ in range(8):
        if error is None or (isinstance(error, OSError) and error.errno is not None):
            return error
        error = error.__cause__ or error.__context__
    return None
