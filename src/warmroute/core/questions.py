"""What the router asks of a backend beside the client's own question: fields put into a request's body as bytes."""

from typing import NamedTuple, Protocol

from .messages import Shape

TOKENS = b'"return_token_ids":true,'
"""vLLM then tells the tokens of prompt and answer, with which an answer can be gone on with."""
USAGE = b'"stream_options":{"include_usage":true},'
"""The stream then ends with an event that tells how many tokens prompt and answer had, and how many were cached."""

_STREAMS = (Shape.CHAT, Shape.COMPLETIONS)


class Asks(NamedTuple):
    """What may be asked: for tokens, by bodies of at most so many bytes (0: never), and for usage."""

    tokens_up_to: int
    usage: bool


class Fields(Protocol):
    """The top-level fields of a JSON body."""

    def field(self, name: str) -> object: ...

    def has(self, name: str) -> bool: ...


class Asked(NamedTuple):
    """A body as it is sent, and what was put into it that the client did not ask for."""

    body: bytes
    tokens: bool = False
    usage: bool = False


def put_into(body: bytes, shape: Shape | None, fields: Fields, asks: Asks) -> Asked:
    """Ask of a stream what may be asked.

    Tokens are of no use where the client wants several answers, asks for them itself, or offers tools, whose calls cannot be
    told from text after a cut. What the client says of either is left as it is.
    """
    if shape not in _STREAMS or fields.field("stream") is not True:
        return Asked(body)
    tokens = (
        len(body) <= asks.tokens_up_to
        and fields.field("n") in (None, 1)
        and not fields.has("return_token_ids")
        and not fields.has("tools")
    )
    usage = asks.usage and not fields.has("stream_options")
    at = body.find(b"{")
    if at < 0 or not (tokens or usage):
        return Asked(body)
    asked = (TOKENS if tokens else b"") + (USAGE if usage else b"")
    return Asked(body[: at + 1] + asked + body[at + 1 :], tokens, usage)
