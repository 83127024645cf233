"""The HTTP client for all that is asked of backends beside requests: it goes to them directly, and keeps nothing they say."""

import ssl
from collections.abc import Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from ..core.model import BackendSpec, Trust

_TRUST = "warmroute.trust"
"""The key of a request's extensions that says how its backend is known."""
_NONE_KEPT = httpx.Limits(max_keepalive_connections=0)


def extensions(spec: BackendSpec) -> dict[str, Any]:
    """What a request to this backend has to tell the client: how to know it over TLS."""
    if not spec.tls:
        return {}
    return {_TRUST: spec.trust, "sni_hostname": spec.server_name or spec.host}


class Asking(httpx.AsyncClient):
    """Asks backends, without proxies of the environment, redirects, cookies, or deadlines of its own.

    `follow` takes other TLS contexts: what runs ends as it began.
    """

    def __init__(self, contexts: Mapping[Trust, ssl.SSLContext]) -> None:
        self._ways = _Ways(contexts)
        super().__init__(
            transport=self._ways, trust_env=False, follow_redirects=False, timeout=None, cookies=no_cookies()
        )

    def follow(self, contexts: Mapping[Trust, ssl.SSLContext]) -> None:
        """Take the contexts of another configuration for all that begins from now on."""
        self._ways.follow(contexts)


def no_cookies() -> CookieJar:
    """A jar that takes none and gives none."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))


class _Ways(httpx.AsyncBaseTransport):
    """One transport for plain HTTP, and one for each TLS context."""

    def __init__(self, contexts: Mapping[Trust, ssl.SSLContext]) -> None:
        # The context is for nothing: this way is not taken for TLS, and reading authorities takes 20 ms.
        self._plain = httpx.AsyncHTTPTransport(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), limits=_NONE_KEPT)
        self._contexts = contexts
        self._secure: dict[Trust, tuple[ssl.SSLContext, httpx.AsyncHTTPTransport]] = {}

    def follow(self, contexts: Mapping[Trust, ssl.SSLContext]) -> None:
        # Ways that are not wanted any more are not closed: nothing is kept open by them but what runs.
        self._contexts = contexts

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme == "http":
            return await self._plain.handle_async_request(request)
        return await self._way(request.extensions[_TRUST]).handle_async_request(request)

    def _way(self, trust: Trust) -> httpx.AsyncHTTPTransport:
        context, known = self._contexts.get(trust), self._secure.get(trust)
        if context is None:
            raise httpx.TransportError("it is not configured any more")
        if known is None or known[0] is not context:
            known = self._secure[trust] = (context, httpx.AsyncHTTPTransport(verify=context, limits=_NONE_KEPT))
        return known[1]

    async def aclose(self) -> None:
        for transport in (self._plain, *(transport for _, transport in self._secure.values())):
            await transport.aclose()
