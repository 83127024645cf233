"""Goes on with a stream on another backend after its own has died, so that the client sees one unbroken answer."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ..core.headers import request_head
from ..core.model import Failure, Phase
from ..core.resume import Rest, Why, end_of, rest_of
from ..core.retry import MAX_SENT
from ..core.tap import TokenTap
from ..fleet.registry import Registry
from .connection import Connection
from .failures import ClientGone, UpstreamError
from .in_flight import InFlight
from .placement import Placed, Placement
from .pool import Pool
from .request import decoded

_CONTEXT = 48
"""Tokens before the cut that are looked at to see where the text ends."""
_LONGEST_TEXT = 1 << 20
_PROVEN = 32
"""Tokens after which a continuation has shown that it is not the request that kills backends."""


class Resumer:
    """Asks for the rest of a stream that broke off."""

    def __init__(
        self,
        *,
        registry: Registry,
        placement: Placement,
        pools: Mapping[str, Pool],
        backend_failed: Callable[[str, Failure], None],
        freed: Callable[[str], None],
        drop: frozenset[bytes],
        enabled: bool,
    ) -> None:
        self._registry = registry
        self._placement = placement
        self._pools = pools
        self._backend_failed = backend_failed
        self._freed = freed
        self._drop = drop
        self._enabled = enabled

    async def go_on(self, x: InFlight, failure: Failure) -> Why | None:
        """Bring the rest of a stream that broke off after content. None if the client has all of it, else why not."""
        if failure.own:
            return Why.STOPPING
        if not self._enabled:
            return Why.OFF
        relay, shape = x.relay, x.route.shape
        assert relay is not None
        body = _fields(x.request.body)
        while True:
            end = end_of(shape, body, relay.tap)
            if end is not None:
                await self._pass(x, end)
                return None
            rest = self._rest(x, body, relay.tap)
            if isinstance(rest, Why):
                return rest
            if x.sent >= MAX_SENT:
                return Why.FAILED
            placed = await self._placement.place_agreed(
                x.turn.session,
                x.model,
                x.record.id.encode(),
                x.exclude,
                x.turn.wishes._replace(near=None, urgent=True),
                len(x.request.body) >> 10,
            )
            if not isinstance(placed, Placed):
                return Why.FAILED
            had = len(rest.tap.ids)
            try:
                with placed.lease:
                    again = await self._bring(x, placed, body, rest)
            finally:
                self._freed(placed.backend)
            if not isinstance(again, Failure):
                if again is None:
                    x.record.backend, x.record.engine = placed.backend, placed.decision.engine
                else:
                    self._placement.withdraw(x.turn.session, placed.decision)
                return again
            x.record.failures.append((placed.backend, again))
            self._backend_failed(placed.backend, again)
            self._placement.withdraw(x.turn.session, placed.decision)
            if len(rest.tap.ids) - had >= _PROVEN:
                x.sent = 1
                x.exclude.clear()
            x.exclude.add(placed.backend)

    def _rest(self, x: InFlight, body: Mapping[str, Any], tap: TokenTap | None) -> Rest | Why:
        return rest_of(x.route.shape, body, tap, self._registry.context(x.model), usage=x.asked.usage)

    async def _bring(self, x: InFlight, placed: Placed, body: Mapping[str, Any], rest: Rest) -> Failure | Why | None:
        """Stream the rest from one backend; None if it came whole."""
        pool, tap = self._pools[placed.backend], rest.tap
        try:
            if tap.unsure:
                unflushed = await self._unflushed(x, placed, pool, tap)
                if unflushed is None:
                    return Why.BOUNDARY
                tap.cut_back(unflushed)
                longer = self._rest(x, body, tap) if unflushed else rest
                if isinstance(longer, Why):
                    return longer
                rest = longer
            connection = await pool.connect()
            x.sent += 1
            x.record.attempts += 1
            with connection:
                await self._stream(x, placed, rest, connection, pool)
        except UpstreamError as error:
            failure = error.failure
            return failure if failure.phase is Phase.CONNECT else replace(failure, phase=Phase.STREAM)
        except ValueError as error:
            return Failure(Phase.STREAM, "garbage", f"{placed.backend} went on with what is no stream: {error}")
        if not rest.events.done:
            return Failure(Phase.STREAM, "closed", f"{placed.backend} ended without finishing its answer")
        return None

    async def _unflushed(self, x: InFlight, placed: Placed, pool: Pool, tap: TokenTap) -> int | None:
        """How many of the last tokens only begin a character, so that their text has not been sent. None if not to be known.

        vLLM sends a text when it does not end in a replacement character, which is what half a character decodes to.
        """
        tokens = tap.tokens()
        for count in range(tap.unsure + 1):
            asked = {"model": x.model, "tokens": tokens[: len(tokens) - count][-_CONTEXT:]}
            connection = await pool.connect()
            with connection:
                self._send(x, placed, connection, pool, b"/detokenize", msgspec.json.encode(asked))
                await connection.read_head()
                told = b""
                while (data := await connection.read()) and len(told) < _LONGEST_TEXT:
                    told += data
            text = decoded(told) if connection.status == 200 else None
            text = text.get("prompt") if isinstance(text, dict) else None
            if not isinstance(text, str):
                return None
            if not text.endswith("\ufffd"):
                return count
        return None

    def _send(self, x: InFlight, placed: Placed, connection: Connection, pool: Pool, path: bytes, body: bytes) -> None:
        if x.client.gone:
            raise ClientGone
        extra = x.for_backend(placed.decision.engine, self._registry.backends[placed.backend].spec.key)
        lines, target = x.client.head.sent_on(self._drop), pool.base_path + path
        head = request_head("POST", target, lines, host=pool.host_header, body_length=len(body), extra=extra)
        connection.send(head, body, x.client, head_only=False)

    async def _stream(self, x: InFlight, placed: Placed, rest: Rest, connection: Connection, pool: Pool) -> None:
        self._send(x, placed, connection, pool, b"/v1/completions", rest.body)
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
            if out and x.relay is not None and x.relay.hides is not None:
                out = x.relay.hides.take(out)
            if out:
                await self._pass(x, out)

    @staticmethod
    async def _pass(x: InFlight, data: bytes) -> None:
        if x.relay is not None:
            x.relay.note(data)
        await x.client.body(data, more=True)
        await x.client.drained()


def _fields(body: bytes) -> dict[str, Any]:
    """All fields of a request's body; none if they cannot be read here, though the backend has read them."""
    found = decoded(body)
    return found if isinstance(found, dict) else {}
