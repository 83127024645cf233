"""Asks Kubernetes' API server which pods of a Service are ready, and watches for changes; plain HTTPS with the pod's token."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec

from ..fleet.fetch import FetchError, explained
from .endpoints import Slice, backends
from .source import Read, Source

_LIST_TIMEOUT = 15.0
_WATCH = 60
"""Seconds after which the API server is asked to end a watch, so that a connection that died is soon noticed."""
_WATCH_OVER = 15.0
"""Seconds that it may take for that."""
_PAUSE = 1.0
"""Seconds before a watch that has ended is begun again, or a list after one that cannot be gone on with."""
_LONGEST_PAUSE = 30.0
_PAGE = 500
_LONGEST = 16 << 20
"""Bytes of one page or one event."""
_GONE = 410


class Cluster(NamedTuple):
    """Whom to ask for what. `selector` is of labels of EndpointSlices; without a `token_file` nothing is shown."""

    api: str
    namespace: str
    selector: str
    token_file: Path | None
    ca_file: Path | None


class ApiError(Exception):
    """The API server could not be asked, or refused; the text says why."""


class Outdated(Exception):
    """The changes since what is known are not to be had any more: all has to be listed again."""


class KubernetesWatch:
    """Lists the EndpointSlices, then follows their changes; after any trouble it lists them again."""

    def __init__(self, source: Source, read: Read, cluster: Cluster, scheme: str, port: str | None) -> None:
        self._source = source
        self._read = read
        self._cluster = cluster
        self._scheme = scheme
        self._port = port
        self._slices: dict[str, Slice] = {}

    def __repr__(self) -> str:
        return f"<KubernetesWatch {self._cluster.namespace} {self._cluster.selector}, {self._source!r}>"

    async def run(self) -> None:
        """Follow for ever; ends by cancellation."""
        pause = _PAUSE
        while True:
            try:
                async with self._client() as client:
                    version = await self._list(client)
                    pause = _PAUSE
                    while True:
                        version = await self._watch(client, version)
                        await asyncio.sleep(_PAUSE)
            except Outdated:
                await asyncio.sleep(_PAUSE)
            except (ApiError, FetchError) as error:
                self._source.failed(f"{self._cluster.api}: {error}")
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[httpx.AsyncClient]:
        """With the authority's certificate as it is now. Raises ApiError."""
        verify: ssl.SSLContext | bool = True
        if self._cluster.ca_file is not None and self._cluster.api.startswith("https:"):
            try:
                verify = ssl.create_default_context(cafile=str(self._cluster.ca_file))
            except OSError as error:
                raise ApiError(f"{self._cluster.ca_file}: {error.strerror or error}") from None
        async with httpx.AsyncClient(
            base_url=self._cluster.api, verify=verify, trust_env=False, timeout=None
        ) as client:
            yield client

    async def _list(self, client: httpx.AsyncClient) -> str:
        """Take all slices; returns the version from which on they are to be watched. Raises ApiError, FetchError, Outdated."""
        found: dict[str, Slice] = {}
        more = ""
        while True:
            asked = {"limit": str(_PAGE), **({"continue": more} if more else {})}
            async with self._get(client, asked, _LIST_TIMEOUT) as response:
                page = _object(b"".join([part async for part in _bounded(response)]))
            for one in page.get("items") or ():
                found[_key(one)] = one
            metadata = page.get("metadata") or {}
            more = metadata.get("continue") or ""
            if not more:
                self._slices = found
                self._tell()
                return str(metadata.get("resourceVersion") or "")

    async def _watch(self, client: httpx.AsyncClient, version: str) -> str:
        """Follow the changes since a version; returns the one then, once it has ended. Raises as `_list` does.

        However a watch ends that had begun, it is begun again: whether the server can still be asked shows then.
        """
        begun = False
        asked = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH),
        }
        try:
            async with self._get(client, asked, _WATCH + _WATCH_OVER) as response:
                begun = True
                self._tell()
                buffer = b""
                async for part in response.aiter_bytes():
                    *lines, buffer = (buffer + part).split(b"\n")
                    if len(buffer) > _LONGEST:
                        raise ApiError(f"it sent an event of more than {_LONGEST >> 20} MiB")
                    for line in lines:
                        version = self._event(_object(line)) or version
        except FetchError:
            if not begun:
                raise
        return version

    def _event(self, event: Mapping[str, Any]) -> str | None:
        """Take one change; returns the version after it. Raises ApiError and Outdated."""
        kind, one = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            if one.get("code") == _GONE:
                raise Outdated
            raise ApiError(f"the watch was ended: {one.get('message') or one}")
        if kind in ("ADDED", "MODIFIED"):
            self._slices[_key(one)] = one
        elif kind == "DELETED":
            self._slices.pop(_key(one), None)
        if kind != "BOOKMARK":
            self._tell()
        version = (one.get("metadata") or {}).get("resourceVersion")
        return None if version is None else str(version)

    def _tell(self) -> None:
        try:
            self._source.found(backends(self._slices.values(), self._scheme, self._port, self._read))
        except (KeyError, TypeError, AttributeError):
            raise ApiError("what it sent are no EndpointSlices") from None
        except ValueError as error:
            raise ApiError(str(error)) from None

    @asynccontextmanager
    async def _get(
        self, client: httpx.AsyncClient, asked: Mapping[str, str], seconds: float
    ) -> AsyncIterator[httpx.Response]:
        """A good answer, for so many seconds. Raises ApiError, FetchError, Outdated."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self._cluster.namespace}/endpointslices"
        params = {"labelSelector": self._cluster.selector, **asked}
        with explained():
            async with (
                asyncio.timeout(seconds),
                client.stream("GET", path, params=params, headers=self._shown()) as response,
            ):
                if response.status_code == _GONE:
                    raise Outdated
                if not response.is_success:
                    body = b"".join([part async for part in _bounded(response)])
                    raise ApiError(_refusal(response.status_code, body))
                yield response

    def _shown(self) -> dict[str, str]:
        """The token as it is now: the kubelet renews it every hour. It goes over TLS alone."""
        if self._cluster.token_file is None or not self._cluster.api.startswith("https:"):
            return {}
        try:
            return {"authorization": f"Bearer {self._cluster.token_file.read_text(encoding='ascii').strip()}"}
        except OSError as error:
            raise ApiError(f"{self._cluster.token_file}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ApiError(f"{self._cluster.token_file}: not a token") from None


async def _bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    size = 0
    async for part in response.aiter_bytes():
        size += len(part)
        if size > _LONGEST:
            raise ApiError(f"it sent more than {_LONGEST >> 20} MiB")
        yield part


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        found = None
    if not isinstance(found, dict):
        raise ApiError("what it sent is no JSON object")
    return found


def _key(one: Slice) -> str:
    name = (one.get("metadata") or {}).get("name") if isinstance(one, dict) else None
    if not isinstance(name, str):
        raise ApiError("what it sent are no EndpointSlices")
    return name


def _refusal(status: int, body: bytes) -> str:
    """What an answer that is no success says, and what to do about it."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        found = None
    said = str(found.get("message") or "")[:300] if isinstance(found, dict) else ""
    advice = (
        "; let the service account list and watch endpointslices of discovery.k8s.io" if status in (401, 403) else ""
    )
    return f"it answered {status}{': ' + said if said else ''}{advice}"
