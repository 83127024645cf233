"""Requests that are refused before they can be routed: each has its record, as every other request has."""

import itertools
import secrets
from collections.abc import Callable

from ..core.headers import Headers, first_values, request_id
from ..core.routes import Protocol, Route
from ..observe.record import RequestRecord
from .errors import RouterError

UNKNOWN = "-"
"""Method and path of a request that has none which the API knows: what a client typed is not logged."""


class Refusals:
    """Makes the answer to a refused request, and settles its record. `clock` and `wall` give seconds."""

    def __init__(
        self, settle: Callable[[RequestRecord], None], clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._settle = settle
        self._clock = clock
        self._wall = wall
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count()

    def __repr__(self) -> str:
        return f"<Refusals {self._id_prefix}>"

    def answer(
        self,
        error: RouterError,
        route: Route | None,
        *,
        method: str = UNKNOWN,
        headers: Headers = (),
        since: float | None,
        tenant: str = "",
    ) -> tuple[Headers, bytes]:
        """Headers and body of the answer, which is to be sent at once. `since` is the time of arrival, None for now."""
        now = self._clock()
        started = now if since is None else since
        given = first_values(headers).get(b"x-request-id")
        identity = request_id(given, f"{self._id_prefix}{next(self._ids):08x}")
        body = error.body(Protocol.OPENAI if route is None else route.protocol)
        record = RequestRecord(
            id=identity,
            method=method,
            path=UNKNOWN if route is None else route.label,
            started=started,
            time=self._wall() - (now - started),
            status=error.status,
            duration_s=now - started,
            bytes_out=len(body),
            error=error.code,
            tenant=tenant,
        )
        self._settle(record)
        return [*error.headers(), (b"x-request-id", identity.encode())], body
