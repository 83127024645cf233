"""A worker process, as the supervisor starts it: the descriptors of its control socket, its listening socket, the rows."""

import socket
import sys

import uvloop

from .worker import run

if __name__ == "__main__":
    control, data, rows = map(int, sys.argv[1:])
    uvloop.run(run(socket.socket(fileno=control), socket.socket(fileno=data), rows))
