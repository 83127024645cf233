"""The model API: the only paths that reach a backend, by exact bytes, with their methods."""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import unquote_to_bytes

from .messages import Shape


class Protocol(StrEnum):
    """Whose API a path belongs to; it decides the shape of errors."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Route:
    """One path of the model API. `label` names it in logs, so that client-chosen paths never do.

    `shape` says how its requests tell their prompt, None if they have none that a conversation could build on. `beside` says
    that the prompt is not computed, so that no cache matters.
    """

    label: str
    methods: tuple[str, ...]
    protocol: Protocol = Protocol.OPENAI
    shape: Shape | None = None
    beside: bool = False


_CONVERSATIONS = (
    Route("/v1/chat/completions", ("POST",), shape=Shape.CHAT),
    Route("/v1/completions", ("POST",), shape=Shape.COMPLETIONS),
    Route("/v1/responses", ("POST",), Protocol.RESPONSES, Shape.RESPONSES),
    Route("/v1/messages", ("POST",), Protocol.ANTHROPIC, Shape.MESSAGES),
)
_WITHOUT_COMPUTING = (
    Route("/v1/messages/count_tokens", ("POST",), Protocol.ANTHROPIC, beside=True),
    Route("/tokenize", ("POST",), beside=True),
    Route("/detokenize", ("POST",), beside=True),
    Route("/version", ("GET", "HEAD")),
)
_POSTS = (
    "/v1/chat/completions/batch",
    "/v1/systemone",
    "/generative_scoring",
    "/v1/embeddings",
    "/v2/embed",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/rerank",
    "/v2/rerank",
    "/v1/score",
    "/rerank",
    "/score",
    "/pooling",
    "/classify",
)

_EXACT: dict[bytes, Route] = {
    **{route.label.encode(): route for route in (*_CONVERSATIONS, *_WITHOUT_COMPUTING)},
    **{path.encode(): Route(path, ("POST",)) for path in _POSTS},
}
MODELS = Route("/v1/models", ("GET", "HEAD"))
REALTIME = Route("/v1/realtime", ("GET",))
"""A WebSocket; every other route is one exchange."""
MODEL = Route("/v1/models/{model}", ("GET", "HEAD"))
_MODEL_NAME = re.compile(rb"/v1/models/((?:[A-Za-z0-9._~:@!$&'()*+,=/-]|%[0-9A-Fa-f]{2}){1,512})")
_STORED_RESPONSE = re.compile(rb"/v1/responses/([A-Za-z0-9_-]{1,128})(/cancel)?")
_RESPONSE = Route("/v1/responses/{id}", ("GET",), Protocol.RESPONSES)
_CANCEL = Route("/v1/responses/{id}/cancel", ("POST",), Protocol.RESPONSES)


def find(raw_path: bytes) -> Route | None:
    """The route of a path as it came over the wire (before any decoding), or None.

    Only the literal bytes of a listed path match: `//v1/...`, `%2e`, `;` and upper case are different bytes and find none.
    What is found is sent on in the same bytes, so that nobody behind can take them for another path than was decided on.
    """
    route = _EXACT.get(raw_path)
    if route is not None:
        return route
    if raw_path == b"/v1/models":
        return MODELS
    if raw_path == b"/v1/realtime":
        return REALTIME
    named = _MODEL_NAME.fullmatch(raw_path)
    if named is not None:
        return MODEL if _is_model(unquote_to_bytes(named[1])) else None
    stored = _STORED_RESPONSE.fullmatch(raw_path)
    return None if stored is None else _CANCEL if stored[2] else _RESPONSE


def _is_model(name: bytes) -> bool:
    """Whether this names a model to whoever reads the path, however often they decode it and whatever they tidy up in it."""
    steps = name.replace(b"\\", b"/").split(b"/")
    plain = b"%" not in name and b";" not in name and b"?" not in name and b"#" not in name
    return plain and min(name) >= 0x20 and 0x7F not in name and not {b"", b".", b".."}.intersection(steps)


def response_id(route: Route, raw_path: bytes) -> str | None:
    """The stored response that a path names, if it names one."""
    if route is not _RESPONSE and route is not _CANCEL:
        return None
    stored = _STORED_RESPONSE.fullmatch(raw_path)
    return stored[1].decode() if stored else None
