"""Reads the requests of a simulated server and refuses wrong ones in vLLM's words. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from warmroute.sim.options import SimOptions
from warmroute.sim.tokens import VOCAB_SIZE, Tokenizer

DEFAULT_MAX_TOKENS = 64
_REPORTED_ERRORS = 10
_SHOWN_CHARS = 200
# Parts of an error's place that name a branch of a type, not a field of the request.
_TYPE_NAMES = frozenset({"str", "int", "list", "dict"})

TokenId = Annotated[int, Field(ge=0)]


class ApiError(Exception):
    """A request that is refused, with the status and the fields of OpenAI's error object."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.kind}, {str(self)!r}, param={self.param!r})"


class StreamOptions(BaseModel):
    """What a streamed answer carries besides its text."""

    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class _Generation(BaseModel):
    """What chat and completion requests have in common."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int | None = 1
    temperature: float | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None


class ChatMessage(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str | list[dict[str, Any] | str] | None = None
    tool_calls: list[Any] | None = None


class ChatBody(_Generation):
    """The body of POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


class CompletionBody(_Generation):
    """The body of POST /v1/completions."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None


class TokenizeBody(BaseModel):
    """The body of POST /tokenize: a prompt or a chat."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request that can run: token ids in, at most `max_tokens` out."""

    kind: Literal["chat", "completion"]
    prompt: Sequence[int]
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    salt: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_token_ids: bool


_Body = TypeVar("_Body", bound=BaseModel)


def read_body(model: type[_Body], content_type: str, raw: bytes) -> _Body:
    """The validated body. Raises ApiError as vLLM's server would answer."""
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise _invalid(["Unsupported Media Type: Only 'application/json' is allowed"], None)
    if not raw:
        raise _refused([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    try:
        value = json.loads(raw)
    except json.JSONDecodeError as error:
        found = {"type": "json_invalid", "loc": (error.pos,), "msg": "JSON decode error", "input": {}}
        raise _refused([{**found, "ctx": {"error": error.msg}}]) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ApiError("There was an error parsing the body", kind="Bad Request") from error
    try:
        return model.model_validate(value, from_attributes=True)
    except ValidationError as error:
        raise _refused(error.errors(include_url=False)) from error


def read_chat(body: ChatBody, options: SimOptions, tokenizer: Tokenizer) -> GenerationRequest:
    """A chat request, ready to run. Raises ApiError."""
    _check(body, options)
    if not body.messages:
        raise ApiError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompt = _chat_ids(body, body.messages, tokenizer)
    newer, older = body.max_completion_tokens, body.max_tokens
    return _request("chat", body, prompt, older if newer is None else newer, options)


def read_completion(body: CompletionBody, options: SimOptions, tokenizer: Tokenizer) -> GenerationRequest:
    """A completion request, ready to run. Raises ApiError."""
    _check(body, options)
    prompt = body.prompt
    if prompt is None or prompt == "":
        text = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
        raise ApiError(text, param="prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise ApiError(f"got {len(prompt)} prompts; this simulated server takes one a request", param="prompt")
        prompt = prompt[0]
    if not prompt:
        raise ApiError("You must pass at least one prompt")
    if isinstance(prompt, str):
        return _request("completion", body, tokenizer.encode(prompt), body.max_tokens, options)
    ids = [token for token in prompt if isinstance(token, int)]
    beyond = next((token for token in ids if token >= VOCAB_SIZE), None)
    if beyond is not None:
        raise ApiError(f"Token id {beyond} is out of vocabulary")
    return _request("completion", body, ids, body.max_tokens, options)


def read_tokenize(body: TokenizeBody, options: SimOptions, tokenizer: Tokenizer) -> list[int]:
    """The token ids asked for. Raises ApiError."""
    _check_model(body.model, options)
    if body.messages is not None:
        return _chat_ids(body, body.messages, tokenizer)
    if body.prompt is None:
        missing = [("prompt",), ("messages",)]
        given = body.model_dump(exclude_unset=True)
        raise _refused([{"type": "missing", "loc": at, "msg": "Field required", "input": given} for at in missing])
    return tokenizer.encode(body.prompt)


def read_rank(value: str | None, engines: int) -> int | None:
    """The data-parallel rank that a header asks for; None when it asks for none. Raises ApiError if there is no such.

    A value that is no number is no wish, as in vLLM.
    """
    if value is None:
        return None
    try:
        rank = int(value)
    except ValueError:
        return None
    if not 0 <= rank < engines:
        raise ApiError(f"data_parallel_rank {rank} is out of range [0, {engines}).")
    return rank


def _chat_ids(body: ChatBody | TokenizeBody, messages: Sequence[ChatMessage], tokenizer: Tokenizer) -> list[int]:
    if body.continue_final_message and body.add_generation_prompt:
        raise ApiError(
            "continue_final_message and add_generation_prompt are not compatible. Use continue_final_message when you "
            "want the model to continue the final message, and add_generation_prompt when you want to add a header "
            "that will prompt it to start a new assistant message instead."
        )
    return tokenizer.encode_chat(
        [message.model_dump() for message in messages],
        tools=body.tools or (),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )


def _check(body: _Generation, options: SimOptions) -> None:
    _check_model(body.model, options)
    if body.stream_options is not None and not body.stream:
        text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
        raise ApiError(text, param="stream_options")
    if body.cache_salt == "":
        text = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
        raise ApiError(text, param="cache_salt")
    if body.n is not None and body.n < 1:
        raise ApiError(f"n must be at least 1, got {body.n}.")
    if body.n is not None and body.n > 1:
        greedy = "when using greedy sampling" if body.temperature == 0 else "on a simulated server"
        raise ApiError(f"n must be 1 {greedy}, got {body.n}.")


def _check_model(model: str | None, options: SimOptions) -> None:
    if model is not None and model != options.model:
        text = f"The model `{model}` does not exist. Valid aliases: {options.model}."
        raise ApiError(text, status=HTTPStatus.NOT_FOUND, kind="NotFoundError", param="model")


def _request(
    kind: Literal["chat", "completion"],
    body: _Generation,
    prompt: Sequence[int],
    max_tokens: int | None,
    options: SimOptions,
) -> GenerationRequest:
    wanted = DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens
    _check_lengths(len(prompt), wanted, options.context_tokens)
    if body.min_tokens > wanted:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={wanted}, got {body.min_tokens}.")
    stream_options = body.stream_options
    return GenerationRequest(
        kind=kind,
        prompt=prompt,
        max_tokens=min(wanted, options.context_tokens - len(prompt)),
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        salt=body.cache_salt,
        stream=bool(body.stream),
        include_usage=stream_options is not None and bool(stream_options.include_usage),
        continuous_usage=stream_options is not None and bool(stream_options.continuous_usage_stats),
        return_token_ids=bool(body.return_token_ids),
    )


def _check_lengths(prompt: int, max_tokens: int, limit: int) -> None:
    if prompt >= limit:
        text = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains {prompt} input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            f"prompt. (parameter=input_tokens, value={prompt})"
        )
        raise ApiError(text, param="input_tokens")
    if max_tokens < 1:
        text = f"max_tokens must be at least 1, got {max_tokens}. (parameter=max_tokens, value={max_tokens})"
        raise ApiError(text, param="max_tokens")
    if max_tokens > limit:
        text = (
            f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}. "
            f"Please request fewer output tokens. (parameter=max_tokens, value={max_tokens})"
        )
        raise ApiError(text, param="max_tokens")


def _refused(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    shown = [_shown(error) for error in errors]
    return _invalid([str(error) for error in shown], shown[0]["loc"])


def _invalid(lines: Sequence[str], param: str | None) -> ApiError:
    label = "error" if len(lines) == 1 else "errors"
    text = f"{len(lines)} validation {label}:\n" + "\n".join(f"  {line}" for line in lines[:_REPORTED_ERRORS])
    if len(lines) > _REPORTED_ERRORS:
        text += f"\n  ...and {len(lines) - _REPORTED_ERRORS} more {label}"
    return ApiError(text, kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


def _shown(error: Mapping[str, Any]) -> dict[str, Any]:
    place = [str(part) for part in error["loc"]]
    named = [part for part in place if "[" not in part and part not in _TYPE_NAMES]
    shown = {"type": error["type"], "loc": ".".join(["body", *named]), "msg": error["msg"]}
    shown["input"] = _abridged(error["input"])
    if "ctx" in error:
        shown["ctx"] = error["ctx"]
    return shown


def _abridged(value: object) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...[truncated]"
