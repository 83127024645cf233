"""What the router says itself: errors as whole answers, and its own headers on all answers."""

from collections.abc import Mapping

from ..core.model import Decision, Phase, Reason
from ..core.routes import Protocol
from ..fleet.registry import Registry
from ..observe.record import RequestRecord
from . import errors
from .client import Client
from .errors import RouterError
from .in_flight import InFlight
from .pool import Pool


class Answers:
    """Finds the error that fits, and sends it. `tell` switches the headers on that say where a request went, and why."""

    def __init__(self, registry: Registry, pools: Mapping[str, Pool], tell: bool) -> None:
        self._registry = registry
        self._pools = pools
        self._tell = tell

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
        await send_error(x.client, error, x.route.protocol, self.told(record) + x.closing())

    def told(self, record: RequestRecord) -> list[tuple[bytes, bytes]]:
        """Our own headers of a routed request's answer; its id is there even where the others are switched off."""
        headers = [(b"x-request-id", record.id.encode())]
        if self._tell:
            headers.append((b"x-warmroute-decision", record.decision.encode()))
            if record.backend is not None:
                headers.append((b"x-warmroute-backend", self._pools[record.backend].shown_name))
            if record.key_source is not None:
                headers.append((b"x-warmroute-key", record.key_source.encode()))
        return headers


async def send_error(
    client: Client, error: RouterError, protocol: Protocol, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Send one of the router's own errors as a whole answer."""
    body = error.body(protocol)
    headers = [*error.headers(), (b"content-length", str(len(body)).encode()), *client.for_pages(), *(extra or [])]
    client.start(error.status, headers)
    await client.body(body, more=False)
