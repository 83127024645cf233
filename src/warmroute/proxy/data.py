"""The data listener: the model API by an allowlist, health, and nothing else."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from urllib.parse import unquote

from .. import __version__
from ..core import routes
from ..core.headers import as_lines
from ..core.routes import Protocol, Route
from ..fleet.registry import Registry
from . import errors
from .answers import send_error
from .client import Client
from .errors import RouterError
from .handler import Handler
from .handshake import refusal
from .keys import Keys
from .refusals import Refusals
from .tenants import DEFAULT, Tenant, Tenants

log = logging.getLogger("warmroute.proxy")


_SHORT_BODY = 99_999
"""Bytes of a body that are read and forgotten; a longer one is not worth it for a refusal."""


def health_answer(path: str, not_ready: list[str], stopping: bool) -> tuple[int, bytes] | None:
    """Status and body of /livez, /readyz and /health; None for any other path.

    /health is vLLM's own name and answers as /readyz does, so that whatever watched one server can watch the router.
    """
    if path == "/livez":
        return 200, b'{"status":"alive"}'
    if path not in ("/readyz", "/health"):
        return None
    reasons = ["the router is stopping"] if stopping else not_ready
    body = json.dumps({"status": "not ready" if reasons else "ready", "reasons": reasons}).encode()
    return (503 if reasons else 200), body


class DataApp:
    """Answers the requests of the data port; whatever goes wrong inside becomes one JSON error and one counted log line.

    `handler` and `keys` may be replaced at any time: what runs ends where it began. Without keys everybody is served.
    """

    def __init__(
        self,
        handler: Handler,
        registry: Registry,
        stopping: Callable[[], bool],
        internal_error: Callable[[str], None],
        refusals: Refusals,
        tenants: Tenants,
    ) -> None:
        self.handler = handler
        self._registry = registry
        self._stopping = stopping
        self._internal_error = internal_error
        self._refusals = refusals
        self._tenants = tenants
        self.keys: Keys | None = None

    async def __call__(self, client: Client) -> None:
        """Answer one request, whatever it is."""
        route = routes.find(client.head.path)
        protocol = route.protocol if route else Protocol.OPENAI
        try:
            await self._serve(route, client)
        except asyncio.CancelledError:  # uvicorn's last word when the time for stopping is over
            if not client.started:
                await send_error(client, errors.own_fault("the router is stopping"), protocol)
        except Exception:  # whatever it is: a client is never left without an answer, nor given a traceback
            log.exception("an error of the router itself; please report it")
            self._internal_error("data")
            if not client.started:
                await send_error(client, errors.internal(), protocol)
        finally:
            if not (client.complete or client.gone):  # it broke off: what the client has of it must not look whole
                client.connection.wire.close()

    async def _serve(self, route: Route | None, client: Client) -> None:
        method = client.head.method
        if route is None:
            await self._elsewhere(client)
        elif method == "OPTIONS":
            # A browser asks whether a page may call: what vLLM allows (--allowed-origins) is for vLLM to say.
            await self._handle(replace(route, shape=None, beside=True), client, self._tenants.get(DEFAULT))
        elif (tenant := self._tenant(client)) is None:
            await self._refuse(client, errors.no_key(), route)
        elif method not in route.methods:
            await self._refuse(client, errors.method_not_allowed(route.label, route.methods), route)
        elif route is routes.REALTIME and (error := refusal(client)) is not None:
            await self._refuse(client, error, route)
        elif route is routes.MODELS or route is routes.MODEL:
            await self._models(route, client, tenant)
        else:
            await self._handle(route, client, tenant)

    def _tenant(self, client: Client) -> Tenant | None:
        """Who asks; None for who shows no key where keys are asked for. What is shown goes no further then."""
        if self.keys is None:
            return self._tenants.get(DEFAULT)
        shown, client.head = client.head.headers, client.head.keyless()
        name = self.keys.tenant(shown)
        return None if name is None else self._tenants.get(name)

    async def _handle(self, route: Route, client: Client, tenant: Tenant) -> None:
        refused = tenant.enter()
        if refused is not None:
            await self._refuse(client, refused, route, tenant)
            return
        with tenant:
            await self.handler.handle(route, client, tenant)

    async def _elsewhere(self, client: Client) -> None:
        path = client.head.path.decode("latin-1")  # undecoded, as every other path: %72eadyz is not there
        health = health_answer(path, self._registry.not_ready(), self._stopping())
        if health is None and path == "/":
            health = 200, json.dumps({"name": "warmroute", "version": __version__}).encode()
        if health is None:
            await self._refuse(client, errors.not_found(path))
        elif client.head.method not in ("GET", "HEAD"):
            await self._refuse(client, errors.method_not_allowed(path, ("GET", "HEAD")))
        else:
            await _send_json(client, *health)

    async def _models(self, route: Route, client: Client, tenant: Tenant) -> None:
        """The union of what the backends list; the first that lists a model describes it.

        Where no list could be read (a backend wants a key for it) the client's own request is passed on.
        """
        cards: dict[str, dict[str, object]] = {}
        for backend in self._registry.backends.values():
            if backend.available:
                for card in backend.model_cards:
                    cards.setdefault(str(card["id"]), card)
        name = unquote(client.head.path.removeprefix(b"/v1/models").removeprefix(b"/").decode("latin-1"))
        if not cards and any(backend.available for backend in self._registry.backends.values()):
            await self._handle(route, client, tenant)
        elif not cards:
            await self._refuse(client, errors.none_available(self._registry.unavailable()), route)
        elif not name:
            await _send_json(client, 200, json.dumps({"object": "list", "data": list(cards.values())}).encode())
        elif name in cards:
            await _send_json(client, 200, json.dumps(cards[name]).encode())
        else:
            await self._refuse(client, errors.unknown_model(name, sorted(cards)), route)

    async def _refuse(
        self,
        client: Client,
        error: RouterError,
        route: Route | None = None,
        tenant: Tenant | None = None,
    ) -> None:
        """Refuse a request whose body was not read; the connection ends with it if such a body may follow."""
        head = client.head
        named = head.named
        follows = b"expect" in named or b"transfer-encoding" in named or (client.length or 0) > _SHORT_BODY
        told, body = self._refusals.answer(
            error,
            route,
            method=head.method,
            headers=head.headers,
            since=None,
            tenant=tenant.name if tenant is not None else "",
        )
        if follows:
            client.keep_alive = False
        client.start(error.status, as_lines([*told, *client.for_pages()]), len(body))
        await client.body(body, more=False)


async def _send_json(client: Client, status: int, body: bytes) -> None:
    client.start(status, as_lines([(b"content-type", b"application/json"), *client.for_pages()]), len(body))
    await client.body(body, more=False)
