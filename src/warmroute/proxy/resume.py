"""Goes on with a stream on another backend after its own has died, so that the client sees one unbroken answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..core.headers import request_head
from ..core.messages import Shape
from ..core.model import Failure, Phase
from ..core.resume import Rest, Why, ask, end_of, rest_of
from ..core.retry import MAX_SENT
from ..fleet.registry import Registry
from .connection import Connection, UpstreamError
from .in_flight import InFlight
from .placement import Placed, Placement
from .pool import Exchange, Pool
from .request import Request

_PROVEN = 32
"""Tokens after which a continuation has shown that it is not the request that kills backends."""


class Resumer:
    """Asks for tokens when a stream begins, and for the rest of it when it breaks off."""

    def __init__(
        self,
        *,
        registry: Registry,
        placement: Placement,
        pools: Mapping[str, Pool],
        backend_failed: Callable[[str, Failure], None],
        enabled: bool,
        body_limit: int,
    ) -> None:
        self._registry = registry
        self._placement = placement
        self._pools = pools
        self._backend_failed = backend_failed
        self._enabled = enabled
        self._body_limit = body_limit

    def with_question(self, request: Request, shape: Shape | None) -> bytes | None:
        """The request's body with the question for tokens in it; None where its stream could not be gone on with."""
        if not self._enabled or shape is None:
            return None
        return ask(
            shape,
            request.body,
            stream=request.field("stream") is True,
            told=request.has("return_token_ids"),
            tools=request.has("tools"),
            limit=self._body_limit,
        )

    async def go_on(self, x: InFlight, failure: Failure) -> Why | None:
        """Bring the rest of a stream that broke off after content. None if the client has all of it, else why not."""
        if not self._enabled:
            return Why.OFF
        if failure.own:
            return Why.STOPPING
        relay, shape = x.relay, x.route.shape
        assert relay is not None
        body = _fields(x.request.body)
        end = end_of(shape, body, relay.tap)
        if end is not None:
            await self._pass(x, end)
            return None
        while True:
            rest = rest_of(shape, body, relay.tap, self._registry.context(x.model))
            if isinstance(rest, Why):
                return rest
            if x.sent >= MAX_SENT:
                return Why.FAILED
            placed = await self._placement.place_agreed(
                x.turn.session, x.model, x.record.id.encode(), x.exclude, x.turn.wishes._replace(near=None)
            )
            if not isinstance(placed, Placed):
                return Why.FAILED
            with placed.lease:
                again = await self._bring(x, placed, rest)
            if again is None:
                x.record.backend, x.record.engine = placed.backend, placed.decision.engine
                return None
            x.record.failures.append((placed.backend, again))
            self._backend_failed(placed.backend, again)
            self._placement.withdraw(x.turn.session, placed.decision)
            if rest.events.tokens >= _PROVEN:
                x.sent = 1
                x.exclude.clear()
            x.exclude.add(placed.backend)

    async def _bring(self, x: InFlight, placed: Placed, rest: Rest) -> Failure | None:
        """Stream the rest from one backend; None if it came whole."""
        pool = self._pools[placed.backend]
        try:
            connection = await pool.connect()
            x.sent += 1
            x.record.attempts += 1
            with Exchange(pool, connection):
                await self._stream(x, placed, rest, connection, pool)
        except UpstreamError as error:
            return replace(error.failure, phase=Phase.STREAM)
        except ValueError as error:
            return Failure(Phase.STREAM, "garbage", f"{placed.backend} went on with what is no stream: {error}")
        if not rest.events.done:
            return Failure(Phase.STREAM, "closed", f"{placed.backend} ended without finishing its answer")
        return None

    async def _stream(self, x: InFlight, placed: Placed, rest: Rest, connection: Connection, pool: Pool) -> None:
        extra = [(b"x-request-id", x.record.id.encode())]
        if placed.decision.engine is not None:
            extra.append((b"x-data-parallel-rank", placed.decision.engine.encode()))
        head = request_head(
            "POST",
            pool.base_path + b"/v1/completions",
            x.request.headers,
            host=pool.host_header,
            body_length=len(rest.body),
            extra=extra,
        )
        connection.send(head, rest.body, head_only=False)
        x.client.on_gone(connection.abandon)
        await connection.read_head()
        if connection.status != 200:
            detail = f"{placed.backend} answered {connection.status} when asked to go on"
            raise UpstreamError(Failure(Phase.STREAM, "refused", detail))
        begun = False
        while data := await connection.read():
            out = rest.events.feed(data)
            if rest.events.tokens and not begun:
                begun = True
                x.record.moved = self._placement.confirm(x.turn.session, placed.decision) or x.record.moved
            if out:
                await self._pass(x, out)

    @staticmethod
    async def _pass(x: InFlight, data: bytes) -> None:
        if x.relay is not None:
            x.relay.note(data)
        await x.client.body(data, more=True)
        await x.client.drained()


def _fields(body: bytes) -> dict[str, Any]:
    """All fields of a request's body; the backend that began to answer it has read them."""
    found = json.loads(body)
    return found if isinstance(found, dict) else {}
