"""The worker processes: started, spoken to, replaced when they die, and ended."""

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..listeners import StartError
from .messages import Channel, Message, open_channel
from .worker import Start

log = logging.getLogger("warmroute.workers")

_START = 60.0
"""Seconds in which a worker must serve: Python needs one on a machine that has nothing else to do."""
_SOON, _PAUSE = 5.0, 1.0
"""A worker that lived for less than so many seconds is replaced after so many; another one at once."""
_HUNG = 30
"""Seconds of silence after which a worker is killed: each tells something twice a second, whatever happens."""
_LAST = 10.0
"""Seconds beyond those for running requests after which a worker that does not end is killed."""

Take = Callable[[int, list[Message]], None]


@dataclass(slots=True, eq=False)
class Hand:
    """One worker now: `channel` is None while it is being replaced. `ready` is done once it has served for the first time.

    `silent` counts the seconds in which nothing was heard from it.
    """

    number: int
    sock: socket.socket
    ready: asyncio.Future[None]
    channel: Channel | None = None
    process: asyncio.subprocess.Process | None = None
    serves: bool = False
    silent: int = 0
    asked: dict[int, asyncio.Future[Any]] = field(default_factory=dict)


class Crew:
    """`take` gets a worker's messages in batches; `start_of` is what a new one begins with; `died` clears up after one."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        rows_fd: int,
        *,
        take: Take,
        start_of: Callable[[int], Start],
        died: Callable[[int, str], None],
        clock: Callable[[], float],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.hands = [Hand(i, sock, loop.create_future()) for i, sock in enumerate(sockets, 1)]
        self._rows_fd = rows_fd
        self._take = take
        self._start_of = start_of
        self._died = died
        self._clock = clock
        # Digests of prompts are Python's own, which a seed of the process keys: all workers need the same.
        self._seed = str(secrets.randbelow(1 << 32))
        self._asked = 0
        self._keepers: list[asyncio.Task[None]] = []
        self.stopping = False
        self.restarts = 0
        self.hung = _HUNG

    def __repr__(self) -> str:
        return f"<Crew {self.serving} of {len(self.hands)} serve, {self.restarts} replaced>"

    @property
    def serving(self) -> int:
        """Workers that serve now."""
        return sum(hand.serves for hand in self.hands)

    async def start(self) -> None:
        """Return when all serve. Raises StartError."""
        self._keepers = [asyncio.ensure_future(self._keep(hand)) for hand in self.hands]
        ready = [hand.ready for hand in self.hands]
        done, _ = await asyncio.wait(ready, timeout=_START, return_when=asyncio.FIRST_EXCEPTION)
        for future in done:
            future.result()
        if len(done) < len(ready):
            raise StartError(f"a worker does not serve {_START:g} s after its start; the log may say why")

    def tell(self, *message: Any) -> None:
        """Tell every worker that there is."""
        for hand in self.hands:
            if hand.channel is not None:
                hand.channel.tell(*message)

    async def ask(self, what: str, *values: Any, within: float) -> list[Any]:
        """What every worker that serves answers within so many seconds."""
        self._asked += 1
        asked = []
        for hand in self.hands:
            if hand.channel is not None and hand.serves:
                future = hand.asked[self._asked] = asyncio.get_running_loop().create_future()
                hand.channel.tell(what, self._asked, *values)
                asked.append(future)
        done = (await asyncio.wait(asked, timeout=within))[0] if asked else set()
        for hand in self.hands:
            hand.asked.pop(self._asked, None)
        return [future.result() for future in asked if future in done and not future.cancelled()]

    async def watch(self) -> None:
        """Kill, and so replace, workers that hang, or have missed what they were told; for ever.

        Seconds are counted one by one: where all processes were stopped for a while, nobody is to blame.
        """
        while True:
            await asyncio.sleep(1.0)
            for hand in self.hands:
                hand.silent = hand.silent + 1 if hand.serves and not self.stopping else 0
                if hand.serves and hand.channel is not None and hand.channel.lost:
                    log.error("worker %d does not take what it is told and is killed", hand.number)
                    self._kill(hand)
                elif hand.silent >= self.hung:
                    log.error("worker %d has been silent for %d s and is killed", hand.number, hand.silent)
                    hand.silent = 0
                    self._kill(hand)

    async def stop(self, within: float) -> None:
        """End all; requests that run have so many seconds."""
        self.stopping = True
        self.tell("stop")
        ended = [hand.process.wait() for hand in self.hands if hand.process is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(within + _LAST):
                await asyncio.gather(*ended)
        for hand in self.hands:
            if hand.process is not None and hand.process.returncode is None:
                log.error("worker %d does not end and is killed", hand.number)
            self._kill(hand)
        await asyncio.gather(*self._keepers)

    async def _keep(self, hand: Hand) -> None:
        """One worker after the other."""
        while not self.stopping:
            began = self._clock()
            how = await self._run(hand)
            if self.stopping:
                return
            if not hand.ready.done():
                hand.ready.set_exception(StartError(f"worker {hand.number} {how} before it served"))
                hand.ready.exception()  # told to whoever asks first
                return
            self.restarts += 1
            self._died(hand.number, how)
            if self._clock() - began < _SOON:
                await asyncio.sleep(_PAUSE)

    async def _run(self, hand: Hand) -> str:
        """One worker from its start to its end; returns how it ended."""
        ours, theirs = socket.socketpair()
        channel = await open_channel(ours, lambda batch: self._heard(hand, batch))
        inherited = theirs.fileno(), hand.sock.fileno(), self._rows_fd
        try:
            process = hand.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "warmroute.workers", *map(str, inherited)),
                pass_fds=inherited,
                env={**os.environ, "PYTHONHASHSEED": self._seed},
                start_new_session=True,  # Ctrl-C is for the supervisor
            )
        except OSError as error:
            await channel.close()
            return f"could not be started: {error.strerror}"
        finally:
            theirs.close()
        hand.channel = channel
        channel.tell("start", self._start_of(hand.number))
        if self.stopping:
            channel.tell("stop")
        try:
            await channel.closed
        finally:
            hand.serves, hand.channel = False, None
            for future in hand.asked.values():
                future.cancel()
            hand.asked.clear()
            if not self.stopping:
                self._kill(hand)
            code = await process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _heard(self, hand: Hand, batch: list[Message]) -> None:
        others: list[Message] = []
        hand.silent = 0
        for name, *values in batch:
            if name == "ready":
                hand.serves = True
                if not hand.ready.done():
                    hand.ready.set_result(None)
                else:
                    log.info("worker %d serves again", hand.number)
            elif name == "explained":
                future = hand.asked.pop(values[0], None)
                if future is not None and not future.done():
                    future.set_result(values[1])
            else:
                others.append((name, *values))
        self._take(hand.number, others)

    @staticmethod
    def _kill(hand: Hand) -> None:
        if hand.process is not None and hand.process.returncode is None:
            with suppress(ProcessLookupError):
                hand.process.kill()
