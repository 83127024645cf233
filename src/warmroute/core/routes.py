"""The model API: the only paths that reach a backend, by exact bytes, with their methods."""

import re
from dataclasses import dataclass
from enum import StrEnum


class Protocol(StrEnum):
    """Whose API a path belongs to; it decides the shape of errors."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the model API. `label` names it in logs, so that client-chosen paths never do."""

    label: str
    methods: tuple[str, ...]
    protocol: Protocol = Protocol.OPENAI


_POSTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/rerank",
    "/score",
    "/pooling",
    "/classify",
    "/tokenize",
    "/detokenize",
)
_ANTHROPIC_POSTS = ("/v1/messages", "/v1/messages/count_tokens")

_EXACT: dict[bytes, Route] = {
    **{path.encode(): Route(path, ("POST",)) for path in _POSTS},
    **{path.encode(): Route(path, ("POST",), Protocol.ANTHROPIC) for path in _ANTHROPIC_POSTS},
    b"/version": Route("/version", ("GET", "HEAD")),
}
MODELS = Route("/v1/models", ("GET", "HEAD"))
MODEL = Route("/v1/models/{model}", ("GET", "HEAD"))
_PATTERNS = (
    (re.compile(rb"/v1/responses/[A-Za-z0-9_-]{1,128}"), Route("/v1/responses/{id}", ("GET",))),
    (re.compile(rb"/v1/responses/[A-Za-z0-9_-]{1,128}/cancel"), Route("/v1/responses/{id}/cancel", ("POST",))),
)


def find(raw_path: bytes) -> Route | None:
    """The route of a path as it came over the wire (before any decoding), or None.

    Only the literal bytes of a listed path match: `//v1/...`, `%2e`, `;` and upper case are different bytes and find none.
    """
    route = _EXACT.get(raw_path)
    if route is not None:
        return route
    if raw_path == b"/v1/models":
        return MODELS
    if raw_path.startswith(b"/v1/models/") and len(raw_path) > len(b"/v1/models/"):
        return MODEL
    for pattern, candidate in _PATTERNS:
        if pattern.fullmatch(raw_path):
            return candidate
    return None
