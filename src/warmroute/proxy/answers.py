"""What the router says itself: errors as whole answers, and its own headers on all answers."""

from collections.abc import Mapping

from ..core.headers import as_lines
from ..core.model import Decision, Phase, Reason
from ..core.routes import Protocol
from ..fleet.registry import Registry
from ..observe.record import RequestRecord
from . import errors
from .client import Client
from .errors import RouterError
from .in_flight import InFlight
from .pool import Pool

_MOST_LINES = 4096
"""Combinations of decision, backend and source whose lines are remembered: there are far fewer, but backends come and go."""


class Answers:
    """Finds the error that fits, and sends it. `tell` switches the headers on that say where a request went, and why."""

    def __init__(self, registry: Registry, pools: Mapping[str, Pool], tell: bool) -> None:
        self._registry = registry
        self._pools = pools
        self._tell = tell
        self._lines: dict[tuple[str, str | None, str | None], bytes] = {}

    def __repr__(self) -> str:
        return f"<Answers{' with headers' if self._tell else ''}>"

    def refusal(self, x: InFlight, decision: Decision) -> RouterError:
        """The error for a request that has no backend to go to, or none any more."""
        if any(failure.phase is not Phase.CONNECT for _, failure in x.record.failures):
            return errors.all_failed(x.record.reasons())
        match decision.reason:
            case Reason.BUSY:
                return errors.busy(decision.full)
            case Reason.PIN_GONE:
                return errors.pin_gone(decision.full)
            case Reason.OWNER_GONE:
                return errors.owner_gone(x.turn.wishes.owner or "")
            case Reason.UNKNOWN_MODEL:
                return errors.unknown_model(x.model or "", sorted(self._registry.fleet().models()))
            case _:
                return errors.none_available(self._registry.unavailable())

    async def give(self, x: InFlight, error: RouterError) -> None:
        """Answer a request with an error."""
        record = x.record
        record.status, record.error = error.status, error.code
        record.backend = record.engine = None  # none of them answered; the failures name those that were asked
        x.may_close()
        await send_error(x.client, error, x.route.protocol, self.told(record))

    def told(self, record: RequestRecord) -> bytes:
        """The lines of our own headers of a routed answer; its id is there even where the others are switched off."""
        lines = b""
        if self._tell:
            key = (record.decision, record.backend, record.key_source)
            found = self._lines.get(key)
            lines = self._told(*key) if found is None else found
        return b"x-request-id: %b\r\n%b" % (record.id.encode(), lines)

    def _told(self, decision: str, backend: str | None, key_source: str | None) -> bytes:
        headers = [(b"x-warmroute-decision", decision.encode())]
        if backend is not None:
            headers.append((b"x-warmroute-backend", self._pools[backend].shown_name))
        if key_source is not None:
            headers.append((b"x-warmroute-key", key_source.encode()))
        if len(self._lines) > _MOST_LINES:
            self._lines.clear()
        lines = self._lines[decision, backend, key_source] = as_lines(headers)
        return lines


async def send_error(client: Client, error: RouterError, protocol: Protocol, told: bytes = b"") -> None:
    """Send one of the router's own errors as a whole answer; `told` are further lines of its head."""
    body = error.body(protocol)
    client.start(error.status, as_lines([*error.headers(), *client.for_pages()]) + told, len(body))
    await client.body(body, more=False)
