"""How an exchange with a backend fails: what the system says becomes a Failure here, in words that clients may read."""

import os
import socket
import ssl

from ..core.model import BackendSpec, Failure, Phase
from ..fleet.fetch import OWN_FAULTS, tls_fault


class UpstreamError(Exception):
    """An exchange failed; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


class ClientGone(Exception):
    """The client left, so the exchange was given up."""


def unconnected(error: OSError | TimeoutError, timeout: float) -> Failure:
    """There is no connection, after `timeout` seconds at most. Clients learn the names of backends and not their addresses."""
    if error.errno in OWN_FAULTS:
        return Failure(Phase.CONNECT, "own", f"the router cannot open a connection: {error.strerror}", own=True)
    if isinstance(error, ConnectionRefusedError):
        return Failure(Phase.CONNECT, "refused", "connection refused")
    if isinstance(error, TimeoutError):
        return Failure(Phase.CONNECT, "timeout", f"no connection within {timeout:g} s")
    if isinstance(error, ssl.SSLError):
        return Failure(Phase.CONNECT, "tls", f"TLS failed: {tls_fault(error)}")
    return Failure(Phase.CONNECT, "unreachable", f"cannot connect: {_words(error)}")


def _words(error: OSError) -> str:
    """The system's own words: those of the loop may hold addresses."""
    if isinstance(error, socket.gaierror):
        return error.strerror or "no such name"
    return os.strerror(error.errno) if error.errno else "none of its addresses answers"


def removed(spec: BackendSpec) -> Failure:
    """The backend is no longer configured."""
    return Failure(Phase.CONNECT, "removed", f"{spec.name} was removed")


def broken(error: BaseException, phase: Phase, spec: BackendSpec, stale: bool) -> Failure:
    """A connection has ended before its answer. `stale`: it was closed before the request came."""
    if isinstance(error, EOFError):
        return Failure(phase, "closed", f"{spec.name} closed the connection without finishing its answer", stale)
    why = getattr(error, "strerror", None) or error  # without the error's number
    return Failure(phase, "reset", f"the connection to {spec.name} broke: {why}", stale)
