"""Runs one simulated engine in real time on the event loop, and hands each request its tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from warmroute.sim.engine import Delivery, Engine, EngineRequest, FinishReason
from warmroute.sim.writer import Token


class EngineStopped(RuntimeError):
    """The engine was stopped while a request was in it."""


class TokenStream:
    """The tokens of one request as they come. Leaving it early aborts the request."""

    def __init__(self, driver: EngineDriver, request: EngineRequest) -> None:
        self.request = request
        self._driver = driver
        self._tokens: list[Token] = []
        self._finished: FinishReason | None = None
        self._stopped = False
        self._changed = asyncio.Event()

    async def take(self, at_least: int = 1) -> tuple[Sequence[Token], FinishReason | None]:
        """At least so many tokens, or the last ones; all that have come by then, and the reason if it was the end.

        An aborted request ends with no tokens. Raises EngineStopped when the engine goes away.
        """
        while len(self._tokens) < at_least and self._finished is None:
            if self._stopped:
                raise EngineStopped("the engine was stopped")
            self._changed.clear()
            await self._changed.wait()
        tokens, self._tokens = self._tokens, []
        return tokens, self._finished

    def abort(self) -> None:
        """Stop generating and give the blocks back; `take` then returns the end."""
        if self._finished is None:
            self._finished = FinishReason.ABORT
            self._driver.abort(self)
            self._changed.set()

    def put(self, delivery: Delivery) -> None:
        """Called by the driver with new tokens."""
        self._tokens.extend(delivery.tokens)
        self._finished = delivery.finished
        self._changed.set()

    def stop(self) -> None:
        """Called by the driver when no more tokens will come."""
        self._stopped = True
        self._changed.set()

    def __repr__(self) -> str:
        return f"TokenStream({self.request!r}, untaken={len(self._tokens)}, stopped={self._stopped})"


class EngineDriver:
    """Wakes its engine when something is due, by the running loop's clock. `close` leaves no timer behind."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.get_running_loop()
        self._streams: dict[EngineRequest, TokenStream] = {}
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0
        self._closed = False

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    def now(self) -> float:
        """The clock of the engine, in seconds."""
        return self._loop.time()

    def submit(self, request: EngineRequest) -> TokenStream:
        """Give a request, arrived now, to the engine."""
        stream = TokenStream(self, request)
        if self._closed:
            stream.stop()
            return stream
        self._streams[request] = stream
        self.engine.submit(request)
        self._arm()
        return stream

    def abort(self, stream: TokenStream) -> None:
        """Take the request of a stream out of the engine."""
        if self._streams.pop(stream.request, None) is not None:
            self.engine.abort(stream.request, self.now())
            self._arm()

    def close(self) -> None:
        """End: whoever waits for tokens gets EngineStopped."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for stream in self._streams.values():
            stream.stop()
        self._streams.clear()

    def _arm(self) -> None:
        due = self.engine.due()
        if self._timer is not None:
            if due is not None and self._timer_at <= due:
                return  # an early wake-up does no harm and arms the timer anew
            self._timer.cancel()
            self._timer = None
        if due is not None and not self._closed:
            self._timer = self._loop.call_at(due, self._wake)
            self._timer_at = due

    def _wake(self) -> None:
        self._timer = None
        for delivery in self.engine.advance(self.now()):
            stream = self._streams.get(delivery.request)
            if stream is None:
                continue
            stream.put(delivery)
            if delivery.finished is not None:
                del self._streams[delivery.request]
        self._arm()

    def __repr__(self) -> str:
        return f"EngineDriver(in_flight={self.in_flight}, closed={self._closed}, {self.engine!r})"
