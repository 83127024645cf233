"""A vLLM server, or a router with several behind it, as the checks see it: what it is, what it answers, what it counts."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import httpx

from ..config.certificates import command_context, command_cure
from ..core import vllm_metrics
from ..core.exposition import parse

_PATIENCE = 30.0
"""Seconds to wait for a router to have read its backends' counters again."""

Json = dict[str, Any]


class CheckError(Exception):
    """The check could not be made; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model by its name; `longest` is how many tokens prompt and answer may have, None where the server does not say."""

    name: str
    longest: int | None


def new_client() -> httpx.AsyncClient:
    """A client whose answers may take long, for prompts that are computed."""
    times = httpx.Timeout(300, connect=5)
    cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
    return httpx.AsyncClient(trust_env=False, timeout=times, cookies=cookies, verify=command_context("https://"))


class Target:
    """One address. `key` is the servers' key and is sent to this address alone, `token` to the router's admin listener."""

    def __init__(
        self,
        http: httpx.AsyncClient,
        url: str,
        admin: str | None = None,
        key: str | None = None,
        token: str | None = None,
    ) -> None:
        self._http = http
        self.url = url.rstrip("/")
        self._admin = admin.rstrip("/") if admin else None
        self._auth = {"authorization": f"Bearer {key}"} if key else {}
        self._admin_auth = {"authorization": f"Bearer {token}"} if token else {}
        self.router = False

    def __repr__(self) -> str:
        return f"<Target {self.url}{' a router' if self.router else ''}>"

    async def find_out(self) -> None:
        """Learn whether this is a router, and where its admin listener is."""
        try:
            answer = await self._http.get(f"{self.url}/", headers=self._auth)
            self.router = answer.is_success and answer.json().get("name") == "warmroute"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError):
            self.router = False
        if self.router and self._admin is None:
            parts = urlsplit(self.url)
            host = parts.hostname or ""
            self._admin = urlunsplit((parts.scheme, f"[{host}]:8081" if ":" in host else f"{host}:8081", "", "", ""))

    async def get(self, url: str) -> httpx.Response:
        """Raises CheckError."""
        admin = self._admin is not None and url.startswith(self._admin)
        try:
            response = await self._http.get(url, headers=self._admin_auth if admin else self._auth)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            hint = "give the router's admin address with --admin" if admin else "is a server running at this address?"
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                hint = command_cure(error)
            raise CheckError(f"GET {url} failed: {error or type(error).__name__}; {hint}") from None
        if admin and response.status_code == 401:
            raise CheckError(f"{url} wants the router's admin token: give it in WARMROUTE_ADMIN_TOKEN")
        self._refuse(response)
        return response

    async def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Ask the model API. Raises CheckError."""
        try:
            response = await self._http.post(f"{self.url}{path}", json=body, headers={**self._auth, **(headers or {})})
        except httpx.HTTPError as error:
            raise CheckError(f"POST {self.url}{path} failed: {error or type(error).__name__}") from None
        self._refuse(response)
        return response

    def _refuse(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        if response.status_code in (401, 403):
            said = "does not take this key" if self._auth else "wants a key: set VLLM_API_KEY, or give --api-key"
            raise CheckError(f"{self.url} answered {response.status_code}: it {said}")
        request = response.request
        raise CheckError(f"{request.method} {request.url} answered {response.status_code}: {response.text[:300]}")

    async def model(self, wanted: str | None) -> Model:
        """The model of this name, or the first one. Raises CheckError."""
        cards = (await self.get(f"{self.url}/v1/models")).json().get("data", [])
        names = [card["id"] for card in cards]
        if wanted is not None and wanted not in names:
            raise CheckError(f"no model {wanted!r} at {self.url}; it has {', '.join(names) or 'none'}")
        if not names:
            raise CheckError(f"{self.url} lists no models; wait until a server there is ready, and try again")
        card = cards[names.index(wanted)] if wanted is not None else cards[0]
        longest = card.get("max_model_len")
        return Model(card["id"], longest if isinstance(longest, int) else None)

    async def values(self, after: float | None = None) -> vllm_metrics.Values:
        """vLLM's numbers by name; from a router, not before it has read them anew after the given time."""
        if not self.router:
            return parse((await self.get(f"{self.url}/metrics")).text, "it").values
        deadline = time.monotonic() + _PATIENCE
        while after is not None and not await self._read_since(after):
            if time.monotonic() > deadline:
                raise CheckError(
                    f"the router has not read its backends' metrics for {_PATIENCE:.0f} s; see its dashboard"
                )
            await asyncio.sleep(0.25)
        return parse((await self.get(f"{self._admin}/metrics")).text, "it").values

    async def _read_since(self, after: float) -> bool:
        asked = time.monotonic()
        state = (await self.get(f"{self._admin}/api/state")).json()
        ages = [b["scrape"]["age_s"] for b in state["backends"] if b["state"] != "down"]
        return all(age is not None and age < asked - after - 0.1 for age in ages)

    async def tokenize(self, model: str, text: str) -> list[int] | None:
        """The tokens of a text, where the server has /tokenize."""
        body = {"model": model, "prompt": text, "add_special_tokens": False}
        try:
            answer = await self._http.post(f"{self.url}/tokenize", json=body, headers=self._auth)
            return [int(token) for token in answer.json()["tokens"]] if answer.is_success else None
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return None


async def one_server(http: httpx.AsyncClient, url: str, key: str | None, what: str) -> Target:
    """The server at this address. Raises CheckError if it is a router, of which `what` cannot be checked."""
    target = Target(http, url, key=key)
    await target.find_out()
    if target.router:
        raise CheckError(f"{target.url} is a router; {what} looks at one server: give the address of one behind it")
    return target


def rise(before: vllm_metrics.Series | None, after: vllm_metrics.Series | None) -> int:
    """By how much counters rose, over all their series."""
    return int(sum((after or {}).values()) - sum((before or {}).values()))


def block_size(values: vllm_metrics.Values) -> int | None:
    """The largest block size that the servers name, so that what is expected is expected of all of them."""
    sizes = [vllm_metrics.label(labels, "block_size") for labels in values.get("vllm:cache_config_info", {})]
    known = [int(size) for size in sizes if size and size.isdigit()]
    return max(known) if known else None
