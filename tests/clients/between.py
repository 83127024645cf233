"""Owns the proxy between an agent and the router: it notes what passes, and can take out all that names a conversation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.integration.scripted import Scripted, Talk

ID_HEADERS = frozenset(
    {
        "x-claude-code-session-id",
        "x-claude-code-agent-id",
        "session-id",
        "thread-id",
        "x-client-request-id",
        "originator",
        "user-agent",
        "x-session-affinity",
        "x-session-id",
    }
)
"""Headers that name a conversation, or the client that could be known by; those of Codex's own beginning go as well."""

ID_PREFIX = "x-codex-"
ID_FIELDS = ("prompt_cache_key", "client_metadata")
"""Fields of a body that are taken out whole; of `metadata` it is `user_id`."""

_OWN_HOP = frozenset({"connection", "content-length", "host", "transfer-encoding"})


@dataclass(frozen=True, slots=True)
class Passed:
    """One exchange: what was asked, what the router answered, and the values that were taken out on the way."""

    method: str
    path: str
    status: int
    taken: tuple[str, ...]


@dataclass
class Between:
    """A proxy to `target`, a URL without a slash at its end; `strip` takes the ids out of all that passes."""

    target: str
    strip: bool
    http: httpx.AsyncClient
    passed: list[Passed] = field(default_factory=list)

    def listener(self) -> Scripted:
        """The proxy's server, on a free port once it is started."""
        forward = self._forward
        return Scripted(script=forward, health=forward, models_script=forward, metrics_script=forward)

    async def _forward(self, talk: Talk) -> None:
        method = talk.seen.line.partition(" ")[0]
        headers, body = _headers(talk.seen.head), talk.seen.body
        taken: tuple[str, ...] = ()
        if self.strip:
            headers, body, taken = without_ids(headers, body)
        request = httpx.Request(method, self.target + talk.seen.path, headers=headers, content=body)
        response = await self.http.send(request, stream=True)
        try:
            self.passed.append(Passed(method, talk.seen.path, response.status_code, taken))
            await _relay(talk, response, with_body=method != "HEAD")
        finally:
            await response.aclose()


def without_ids(headers: Mapping[str, str], body: bytes) -> tuple[dict[str, str], bytes, tuple[str, ...]]:
    """The request without what names its conversation or its client, and the values taken out of it."""
    gone = {name for name in headers if name in ID_HEADERS or name.startswith(ID_PREFIX)}
    kept = {name: value for name, value in headers.items() if name not in gone}
    taken = [headers[name] for name in sorted(gone)]
    if body:
        fields: dict[str, Any] = json.loads(body)
        found = [fields.pop(name, None) for name in ID_FIELDS]
        if isinstance(fields.get("metadata"), dict):
            found.append(fields["metadata"].pop("user_id", None))
        taken += [value if isinstance(value, str) else json.dumps(value) for value in found if value is not None]
        body = json.dumps(fields, ensure_ascii=False).encode()
    return kept, body, tuple(taken)


async def _relay(talk: Talk, response: httpx.Response, *, with_body: bool) -> None:
    lines = [f"HTTP/1.1 {response.status_code} {response.reason_phrase}"]
    lines += [f"{name}: {value}" for name, value in response.headers.multi_items() if name.lower() not in _OWN_HOP]
    lines += ["transfer-encoding: chunked"] if with_body else ["content-length: 0"]
    talk.send("\r\n".join([*lines, "", ""]).encode("latin-1"))
    if with_body:
        async for data in response.aiter_raw():
            if data:  # an empty chunk would end the body
                talk.chunk(data)
                await talk.drain()
        talk.end()


def _headers(head: bytes) -> dict[str, str]:
    """The headers of this hop's request that go on, names in lower case."""
    pairs = (line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:] if line)
    return {name.lower(): value.strip() for name, _, value in pairs if name.lower() not in _OWN_HOP}
