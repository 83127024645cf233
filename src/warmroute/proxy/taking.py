"""How much of what was sent to a client it has taken, as the system tells."""

import asyncio
import fcntl
import socket
import struct
import termios

_BYTES_ACKED = 120
"""Where Linux' struct tcp_info holds tcpi_bytes_acked, 64 bits."""
_INFO_SIZE = _BYTES_ACKED + 8


def taken(transport: asyncio.Transport, unsent: int, tls: bool) -> int:
    """A number that grows by the bytes that the client takes while nothing more is written; `unsent` is what we still have.

    What waits between TLS and the system is in no number of ours, so there the system is asked for the sum where it tells.
    """
    acknowledged = _acknowledged(transport) if tls else None
    return -unsent - _unacknowledged(transport) if acknowledged is None else acknowledged


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the system has taken from us and the client not yet from it; 0 where the system does not say."""
    sock = transport.get_extra_info("socket")
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))[0])
    except OSError:
        return 0


def _acknowledged(transport: asyncio.Transport) -> int | None:
    """Bytes that the client has taken since it connected; None where the system does not say."""
    if not hasattr(socket, "TCP_INFO"):
        return None
    sock = transport.get_extra_info("socket")
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_SIZE)
    except OSError:
        return None
    return int(struct.unpack_from("Q", info, _BYTES_ACKED)[0]) if len(info) == _INFO_SIZE else None
