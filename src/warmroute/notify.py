"""Tells systemd, of which the router may be a service, what it is doing: ready, reloading, stopping, alive."""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

log = logging.getLogger("warmroute")


class Notifier:
    """Datagrams to the socket that $NOTIFY_SOCKET names, as sd_notify(3) defines them; without one it does nothing.

    In its `with` block it also says twice in every $WATCHDOG_USEC that the event loop turns, where this process is meant. A
    message that cannot be sent is told once in the log, and then no more are tried: no request depends on them.
    """

    def __init__(self, environment: Mapping[str, str], clock: Callable[[], float], process: int) -> None:
        """`clock` gives the seconds of CLOCK_MONOTONIC; `process` is this process's id."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._clock = clock
        self._every = _watchdog(environment, process) if self._address else None
        self._next: asyncio.TimerHandle | None = None
        self._failed = False

    def __repr__(self) -> str:
        return f"<Notifier {self._address or 'of nobody'}>"

    @classmethod
    def of_this_process(cls, clock: Callable[[], float]) -> Self:
        return cls(os.environ, clock, os.getpid())

    def __enter__(self) -> Self:
        self._alive()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._next is not None:
            self._next.cancel()

    def ready(self, status: str = "") -> None:
        """It serves; `status` is one line for `systemctl status`."""
        self._send("READY=1", status and f"STATUS={status}")

    def reloading(self, begins: bool) -> None:
        """A reload begins or has ended."""
        if begins:
            self._send("RELOADING=1", f"MONOTONIC_USEC={self._clock() * 1e6:.0f}")
        else:
            self._send("READY=1")

    def stopping(self, status: str = "") -> None:
        """The first step of its end."""
        self._send("STOPPING=1", status and f"STATUS={status}")

    def _alive(self) -> None:
        if self._every is not None:
            self._send("WATCHDOG=1")
            self._next = asyncio.get_running_loop().call_later(self._every, self._alive)

    def _send(self, *lines: str) -> None:
        if not self._address or self._failed:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as sender:
                sender.connect(address)
                sender.send("\n".join(line for line in lines if line).encode())
        except BlockingIOError:
            return  # its queue is full of what it has not read yet: the next message of this kind does as well
        except OSError as error:
            self._failed = True
            log.warning("systemd cannot be told anything at %s: %s", self._address, error.strerror or error)


def _watchdog(environment: Mapping[str, str], process: int) -> float | None:
    """Seconds between two signs of life; None if nobody waits for them."""
    try:
        period = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
        meant = int(environment.get("WATCHDOG_PID", process)) == process
    except ValueError:
        return None
    return period / 2 if period > 0 and meant else None
