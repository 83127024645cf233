"""GET of a backend's own pages: bounded in time and size, every failure a few words for people."""

import asyncio
import errno
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from ..core.model import BackendSpec
from .asking import extensions

OWN_FAULTS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Errors of a connection that say that the router has run out of something: descriptors, ports, memory."""


class FetchError(Exception):
    """A page could not be read; the text says why. `own` is True if that says nothing about the backend."""

    def __init__(self, reason: str, own: bool = False) -> None:
        super().__init__(reason)
        self.own = own


async def page(client: httpx.AsyncClient, spec: BackendSpec, path: str, *, timeout: float, limit: int) -> bytes:
    """A page of a backend, which is shown its key and known by its certificate. Else as `fetch`."""
    url, told = f"{spec.url}{path}", extensions(spec)
    return await fetch(client, url, timeout=timeout, limit=limit, headers=spec.credentials, extensions=told)


async def fetch(
    client: httpx.AsyncClient,
    url: str,
    *,
    timeout: float,
    limit: int,
    headers: Mapping[str, str] | None = None,
    extensions: dict[str, Any] | None = None,
) -> bytes:
    """The page's body, of a 2xx answer. Seconds for the whole of it, and bytes at most. Raises FetchError."""
    with explained():
        async with (
            asyncio.timeout(timeout),
            client.stream("GET", url, headers=headers, extensions=extensions) as response,
        ):
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
            raise FetchError(f"TLS failed: {tls_fault(cause)}{_tls_cure(cause)}") from None
        raise FetchError((cause and cause.strerror) or str(error) or type(error).__name__) from None


def tls_fault(error: ssl.SSLError) -> str:
    """What was wrong, in words: the library's own ones begin and end with places in its source."""
    said = getattr(error, "verify_message", "") or (getattr(error, "reason", None) or "").replace("_", " ").lower()
    return said or "no reason was given"


def _tls_cure(error: ssl.SSLError) -> str:
    """What the person who runs the router can do about it, where that is known."""
    if not isinstance(error, ssl.SSLCertVerificationError):
        return ""
    if error.verify_code in _NOT_THIS_NAME:
        return "; backends.server_name says whom its certificate must name"
    return "; upstream.ca says whose certificates are believed"


_NOT_THIS_NAME = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


def _os_error(error: BaseException | None) -> OSError | None:
    """The operating system's error that a library's error stands for, if any."""
    for _ in range(8):
        if error is None or (isinstance(error, OSError) and error.errno is not None):
            return error
        error = error.__cause__ or error.__context__
    return None
