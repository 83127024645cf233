"""One request to several backends at once, and what each of them said."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

import httpx
import msgspec

from ..core.model import BackendSpec
from .asking import extensions
from .fetch import FetchError, explained
from .registry import BackendState

log = logging.getLogger("warmroute.broadcast")

_LORA = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
_CACHES = ("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache")
_SLEEP = ("/sleep", "/wake_up", "/pause", "/resume")
_PROFILE = ("/start_profile", "/stop_profile")

PATHS = (*_LORA, *_CACHES, *_SLEEP, *_PROFILE)
"""What may be asked of all backends: vLLM's routes that mean the same on every server, and that nobody steals data by."""

ANSWER_LIMIT = 64 << 10
"""Bytes of each backend's answer that are kept."""

_CONNECT = 5.0
"""Seconds to connect to a backend, within the deadline: a host that has gone should not hold up the answer."""


class Order(NamedTuple):
    """What to POST: one of `PATHS`, a query as it came over the wire, headers, a body, and seconds for each answer."""

    path: str
    query: str
    headers: Iterable[tuple[str, str]]
    body: bytes
    deadline: float


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What one backend said: a status and a body (JSON as it is, or text), or an error in words.

    `truncated`: the body is only the beginning, as text. `models_error`: why its models could not be read afterwards.
    """

    ok: bool
    status: int | None = None
    body: msgspec.Raw | str | None = None
    truncated: bool = False
    error: str | None = None
    models_error: str | None = None


class Broadcaster:
    """Asks backends for the same thing. `read_models` and `read_metrics` read of one anew what may have changed."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        read_models: Callable[[BackendState], Awaitable[None]],
        read_metrics: Callable[[BackendState], Awaitable[None]],
    ) -> None:
        self._client = client
        self._read_models = read_models
        self._read_metrics = read_metrics

    def __repr__(self) -> str:
        return f"<Broadcaster of {len(PATHS)} paths>"

    async def tell(self, backends: Iterable[BackendState], order: Order) -> Mapping[str, Told]:
        """POST to all of these at once; returns what each said, by name, once the last one has or its time is over."""
        async with asyncio.TaskGroup() as group:
            tasks = {b.name: group.create_task(self._tell_one(b, order)) for b in backends}
        told = {name: task.result() for name, task in tasks.items()}
        failed = [f"{name}: {found.error or found.status}" for name, found in told.items() if not found.ok]
        level = logging.WARNING if failed else logging.INFO
        log.log(level, "%s was sent to %s; %s", order.path, ", ".join(told), "; ".join(failed) or "all did it")
        return told

    async def _tell_one(self, backend: BackendState, order: Order) -> Told:
        try:
            told = await self._ask(backend.spec, order)
        except FetchError as error:
            told = Told(ok=False, error=str(error))
        if order.path in _SLEEP:  # the metrics tell whether it sleeps
            await self._read_metrics(backend)
        if order.path not in _LORA:
            return told
        await self._read_models(backend)  # whatever it said: after a timeout it may have done it
        return msgspec.structs.replace(told, models_error=backend.models_error)

    async def _ask(self, spec: BackendSpec, order: Order) -> Told:
        """Raises FetchError."""
        target = f"{spec.url}{order.path}{'?' if order.query else ''}{order.query}"
        own = spec.credentials
        headers = [("accept-encoding", "identity"), *own.items(), *(h for h in order.headers if h[0] not in own)]
        times = httpx.Timeout(None, connect=_CONNECT)
        with explained():
            try:
                async with (
                    asyncio.timeout(order.deadline),
                    self._client.stream(
                        "POST", target, content=order.body, headers=headers, timeout=times, extensions=extensions(spec)
                    ) as response,
                ):
                    body = bytearray()
                    async for part in response.aiter_raw():
                        body += part
                        if len(body) > ANSWER_LIMIT:
                            break
                    return _told(response, bytes(body))
            except TimeoutError:
                late = f"no answer within {order.deadline:g} s; it may still do what it was told"
                raise FetchError(late) from None


def _told(response: httpx.Response, body: bytes) -> Told:
    """An answer that says {"success": false} has not done it, whatever its status: so does vLLM with a cache in use."""
    status, text = response.status_code, body[:ANSWER_LIMIT].decode("utf-8", "replace")
    if len(body) > ANSWER_LIMIT:
        return Told(ok=response.is_success, status=status, body=text, truncated=True)
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return Told(ok=response.is_success, status=status, body=text)
    refused = isinstance(found, dict) and found.get("success") is False
    return Told(ok=response.is_success and not refused, status=status, body=msgspec.Raw(body))
