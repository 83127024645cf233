"""Hears the KV events of every backend: one task a publisher, gaps filled from its replay socket where there is one."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

import httpx
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from .fetch import FetchError, page
from .heard import EngineCache, HeardResidents
from .kv_wire import Source, batch, sources
from .pace import Pace
from .registry import BackendState, Registry
from .residents import Sync
from .watch import Watchers

log = logging.getLogger("warmroute.kv_events")

_PAGE_LIMIT = 1 << 20
_ASK_AGAIN = 5.0
"""Seconds until a backend is asked again where its publishers are, after it had none or went away."""
_TIMEOUT = 5.0
"""Seconds that the page, or all of a replay, may take."""
_LONGEST_MESSAGE = 64 << 20
_MOST_QUEUED = 10_000
_MOST_REPLAYED = 1000
"""Messages that are asked for again; vLLM's socket sends about so many before it drops some."""
_HEARTBEAT_MS = 5000
_END = (1 << 64) - 1
_AT_ONCE = 16
"""Messages that are taken before others of the loop have their turn."""


class Lost(Exception):
    """A publisher cannot be heard any more, and what it publishes meanwhile is not known; the text says why."""


class KvEvents:
    """Keeps `residents` at what the backends tell. A backend that publishes nothing stays in service as it is."""

    def __init__(
        self,
        registry: Registry,
        client: httpx.AsyncClient,
        residents: HeardResidents,
        ask_again: float = _ASK_AGAIN,
    ) -> None:
        self._client = client
        self._residents = residents
        self._ask_again = ask_again
        self._watchers = Watchers(registry, self._watch, "kv events")
        self._context: zmq.asyncio.Context | None = None

    def __repr__(self) -> str:
        return f"<KvEvents {self._watchers!r}>"

    def nudge(self, name: str) -> None:
        """Ask this backend soon: it has just come up."""
        self._watchers.nudge(name)

    def follow(self) -> None:
        """The backends have changed."""
        self._watchers.follow()

    async def run(self) -> None:
        """Hear for ever; ends by cancellation."""
        self._context = zmq.asyncio.Context()
        try:
            await self._watchers.run()
        finally:
            self._context.destroy(linger=0)

    async def _watch(self, state: BackendState, pace: Pace) -> None:
        told = ""
        try:
            while True:
                why = await self._hear(state)
                if why != told and why:
                    log.warning("KV events of %s are not heard: %s", state.name, why)
                told = why
                await pace.pause(self._ask_again)
        finally:
            self._residents.close(state.name)

    async def _hear(self, state: BackendState) -> str:
        """Hear a backend until it cannot be heard; returns why. Empty where it cannot be asked, which checks tell anyway."""
        try:
            told = await page(self._client, state.spec, "/kv_event_sources", timeout=_TIMEOUT, limit=_PAGE_LIMIT)
            found = sources(told, state.spec.url)
        except FetchError as problem:
            return str(problem) if state.health.up else ""
        except ValueError as problem:
            return str(problem)
        if not found:
            return "it publishes none; start it with --kv-events-config"
        why = await self._hear_all(state.name, found)
        self._residents.close(state.name)
        return why

    async def _hear_all(self, name: str, found: Mapping[str, Source]) -> str:
        """Hear every engine until one cannot be heard, which is why all are asked anew: the backend may have restarted."""
        assert self._context is not None
        hearings = [_Hearing(self._context, source, self._residents.open(name, e)) for e, source in found.items()]
        tasks = [asyncio.ensure_future(hearing.run()) for hearing in hearings]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return next(iter(done)).result()


class _Hearing:
    """One publisher: its messages in their order, each once."""

    def __init__(self, context: zmq.asyncio.Context, source: Source, cache: EngineCache) -> None:
        self._context = context
        self._source = source
        self._cache = cache
        self._next: int | None = None

    async def run(self) -> str:
        """Hear it until it cannot be heard any more; returns why."""
        async with self._socket(zmq.SUB) as socket:
            monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            socket.subscribe(self._source.topic)
            try:
                socket.connect(self._source.endpoint)
                await self._read(socket, monitor)
            except zmq.ZMQError as error:
                return f"{self._source.endpoint}: {error}"
            except Lost as lost:
                return str(lost)
            finally:
                self._cache.sync = Sync.GAP
                socket.disable_monitor()
                monitor.close(linger=0)

    @asynccontextmanager
    async def _socket(self, kind: int) -> AsyncIterator[zmq.asyncio.Socket]:
        socket = self._context.socket(kind)
        try:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.IPV6, 1)
            socket.set(zmq.RCVHWM, _MOST_QUEUED)
            socket.set(zmq.MAXMSGSIZE, _LONGEST_MESSAGE)
            socket.set(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 3 * _HEARTBEAT_MS)
            yield socket
        finally:
            socket.close(linger=0)

    async def _read(self, socket: zmq.asyncio.Socket, monitor: zmq.asyncio.Socket) -> NoReturn:
        """What is heard is complete from the moment of the connection on, and until it ends."""
        poller = zmq.asyncio.Poller()
        poller.register(monitor, zmq.POLLIN)
        poller.register(socket, zmq.POLLIN)
        while True:
            ready = dict(await poller.poll())
            if monitor in ready:
                event = await recv_monitor_message(monitor)
                if event["event"] == zmq.EVENT_DISCONNECTED:
                    raise Lost(f"the connection to {self._source.endpoint} has ended")
                self._cache.sync = Sync.LIVE
            if socket in ready:
                with suppress(zmq.Again):
                    for _ in range(_AT_ONCE):
                        await self._in_order(*_parts(await socket.recv_multipart(zmq.NOBLOCK)))
                await asyncio.sleep(0)

    async def _in_order(self, number: int, payload: bytes) -> None:
        if (
            self._next is not None and number < self._next
        ):  # it counts from 0 again: another process, with an empty cache
            self._cache.residency.cleared()
        elif self._next is not None and number > self._next:
            self._cache.gaps += 1
            self._cache.sync = Sync.GAP
            if not await self._replayed(number):
                self._cache.losses += 1
                self._cache.residency.forget()
            self._cache.sync = Sync.LIVE
        self._take(number, payload)

    def _take(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        try:
            self._cache.take(batch(payload))
        except ValueError as error:
            raise Lost(f"it published what is no batch of events: {error}") from None

    async def _replayed(self, until: int) -> bool:
        """Take the messages before this one that were missed; False if not all of them are to be had."""
        address = self._source.replay_endpoint
        if address is None or self._next is None or until - self._next > _MOST_REPLAYED:
            return False
        try:
            async with asyncio.timeout(_TIMEOUT), self._socket(zmq.DEALER) as socket:
                socket.connect(address)
                await socket.send_multipart([b"", self._next.to_bytes(8, "big")])
                while self._next < until:
                    frames = await socket.recv_multipart()
                    number, payload = _parts(frames[1:])
                    if number != self._next:  # the end, or a message that is not there any more
                        return False
                    self._take(number, payload)
        except (TimeoutError, zmq.ZMQError):
            return False
        return True


def _parts(frames: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of a message: topic, number, payload. Raises Lost for anything else."""
    if len(frames) != 3 or len(frames[1]) != 8:
        raise Lost("it published what is no message of vLLM's")
    return int.from_bytes(frames[1], "big"), frames[2]
