"""What is said of a backend that cannot be reached: clients read it, so it holds no address and no program's words."""

import errno
import socket
import ssl

import httpx
import pytest

from warmroute.core.model import Failure, Phase
from warmroute.fleet.fetch import FetchError, fetch, tls_fault
from warmroute.observe.record import RequestRecord
from warmroute.proxy.failures import unconnected

ADDRESS = "('10.1.2.3', 8000)"


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {ADDRESS}"), "refused", "connection refused"),
        (TimeoutError(), "timeout", "no connection within 0.5 s"),
        (
            OSError(errno.EHOSTUNREACH, f"Connect call failed {ADDRESS}"),
            "unreachable",
            "cannot connect: No route to host",
        ),
        (OSError(f"Multiple exceptions: {ADDRESS}"), "unreachable", "cannot connect: none of its addresses answers"),
        (
            socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
            "unreachable",
            "cannot connect: Name or service not known",
        ),
        (
            OSError(errno.EMFILE, "Too many open files"),
            "own",
            "the router cannot open a connection: Too many open files",
        ),
    ],
    ids=["refused", "timeout", "no route", "several addresses", "no such name", "own"],
)
def test_of_a_connection(error: OSError, kind: str, said: str) -> None:
    failure = unconnected(error, 0.5)
    assert (failure.phase, failure.kind, failure.detail) == (Phase.CONNECT, kind, said)


def test_of_tls() -> None:
    error = ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")
    error.reason = "WRONG_VERSION_NUMBER"
    assert tls_fault(error) == "wrong version number"
    assert unconnected(error, 0.5).detail == "TLS failed: wrong version number"
    untrusted = ssl.SSLCertVerificationError(1, "[SSL] (_ssl.c:1006)")
    untrusted.verify_message = "self-signed certificate"
    assert tls_fault(untrusted) == "self-signed certificate"
    assert tls_fault(ssl.SSLError()) == "no reason was given"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (httpx.RemoteProtocolError("illegal status line: bytearray(b'SSH-2.0')"), "it sent no valid HTTP"),
        (
            httpx.RemoteProtocolError("Server disconnected without sending a response."),
            "it closed the connection without an answer",
        ),
        (
            httpx.RemoteProtocolError("peer closed connection without sending complete message body"),
            "it closed the connection without an answer",
        ),
        (httpx.ReadTimeout("x"), "timed out"),
        (httpx.ConnectError("x"), "connection refused"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_of_a_page(error: httpx.HTTPError, said: str) -> None:
    def fails(request: httpx.Request) -> httpx.Response:
        raise error

    async with httpx.AsyncClient(transport=httpx.MockTransport(fails)) as client:
        with pytest.raises(FetchError) as caught:
            await fetch(client, "http://10.1.2.3:8000/health", timeout=5, limit=100)
    assert str(caught.value) == said


def test_a_name_is_said_once() -> None:
    details = ("gpu-a closed the connection", "connection refused", "gpu-ab is another")
    record = RequestRecord("r", "POST", "/", 0.0, 0.0)
    record.failures = [("gpu-a", Failure(Phase.HEAD, "closed", detail)) for detail in details]
    assert record.reasons() == [
        "gpu-a closed the connection",
        "gpu-a: connection refused",
        "gpu-a: gpu-ab is another",
    ]
