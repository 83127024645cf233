"""The listening sockets of the data port: one for each worker, kept by the supervisor so that none is lost with its worker."""

import socket
import sys

from ..listeners import StartError, listen


def listen_for(host: str, port: int, workers: int) -> list[socket.socket]:
    """As many sockets as there are workers. Raises StartError.

    Linux deals connections out to sockets that share a port by a digest of their addresses: of 64 at once two workers got 24
    to 40 each. From one socket the worker that wakes first takes nearly all that come at once: 52 to 64 of them.
    """
    first = listen(host, port)  # which fails if anybody listens there, as sockets that share a port would not
    if sys.platform != "linux":
        return [first, *(first.dup() for _ in range(workers - 1))]
    port = first.getsockname()[1]
    first.close()
    sockets: list[socket.socket] = []
    try:
        for _ in range(workers):
            sockets.append(listen(host, port, shared=True))
    except StartError:
        for sock in sockets:
            sock.close()
        raise
    return sockets
