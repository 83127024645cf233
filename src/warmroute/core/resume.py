"""Going on with a stream whose backend died: by the tokens it had, since text does not tokenize back to the same ones."""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from .messages import Shape
from .tap import MAX_EVENT, TokenTap, numbers

_CARRIED = frozenset(
    {
        *("model", "user", "priority", "cache_salt", "vllm_xargs", "session_id", "stream_options"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "ignore_eos", "stop_token_ids"),
        *("skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output"),
        *("logit_bias", "allowed_token_ids", "detokenize", "length_penalty"),
    }
)
"""Fields that mean the same for the rest of an answer as for the whole. (A repetition penalty counts the prompt too.)"""

_DONE_WITH = frozenset(
    {
        *("messages", "prompt", "stream", "max_tokens", "max_completion_tokens", "min_tokens", "return_token_ids"),
        *("chat_template", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "documents"),
        *("add_special_tokens", "reasoning_effort", "include_reasoning", "parallel_tool_calls", "metadata", "store"),
        *("service_tier", "safety_identifier", "prompt_cache_key", "litellm_session_id", "session_params"),
        *(
            "conversation",
            "conversation_id",
            "request_id",
            "mm_processor_kwargs",
            "verbosity",
            "truncate_prompt_tokens",
        ),
    }
)
"""Fields that have had their effect on the prompt, that are set anew, or that have none on the tokens."""

_ONLY_AS: Mapping[str, Callable[[Any], bool]] = {
    "n": lambda value: value == 1,
    "best_of": lambda value: value in (0, 1),
    "echo": lambda value: value is False,
    "suffix": lambda value: value == "",
    "logprobs": lambda value: value is False,
    "top_logprobs": lambda value: value == 0,
    "prompt_logprobs": lambda value: False,
    "presence_penalty": lambda value: value == 0,
    "frequency_penalty": lambda value: value == 0,
    "stop": lambda value: value in ([], ""),
    "tools": lambda value: value == [],
    "tool_choice": lambda value: value in ("none", "auto"),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "use_beam_search": lambda value: value is False,
}
"""Fields that only with these values (or null) let an answer be gone on with exactly."""


class Why(StrEnum):
    """Why a stream that broke off was not gone on with. A closed set: it labels metrics."""

    OFF = "off"  # resume is switched off
    STOPPING = "stopping"  # the router itself ended it
    PROTOCOL = "protocol"  # not a stream of chat or completions, whose tokens vLLM tells
    TOKENS_UNKNOWN = "tokens_unknown"  # the backend did not tell all of its tokens
    BOUNDARY = "boundary"  # where the client's text ends among the tokens could not be found out
    REASONING = "reasoning"  # cut while the model was thinking
    FIELD = "field"  # the request has a field that cannot be carried over the cut exactly
    LENGTH = "length"  # how long the answer may become is not known
    FAILED = "failed"  # the backends that were asked to go on failed too


class Rest(NamedTuple):
    """What is still to come of an answer: the body that asks for it, and how its events become those of the stream."""

    body: bytes
    events: "RestEvents"
    tap: TokenTap


def rest_of(
    shape: Shape | None, body: Mapping[str, Any], tap: TokenTap | None, context: int | None, *, usage: bool = False
) -> Rest | Why:
    """The request for the rest of a broken stream, or why there is none.

    `body` is the client's request; `context` the model's longest prompt and answer together, None where not known. `usage`
    asks for the usage although the client did not.
    """
    if shape not in (Shape.CHAT, Shape.COMPLETIONS):
        return Why.PROTOCOL
    if tap is None or not tap.prompt or not tap.first or tap.lost:
        return Why.TOKENS_UNKNOWN
    if tap.reasoning:
        return Why.REASONING
    if not all(_carries(name, value) for name, value in body.items()) or _has_media(body.get("messages")):
        return Why.FIELD
    given = body.get("prompt")
    if isinstance(given, list) and len(given) != 1 and not all(isinstance(token, int) for token in given):
        return Why.FIELD
    try:
        prompt, said, _ = numbers(tap.prompt), tap.tokens(), _frame(tap)
    except (ValueError, RecursionError):
        return Why.TOKENS_UNKNOWN
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is None:
        most = 16 if shape is Shape.COMPLETIONS else None if context is None else context - len(prompt)
    if not isinstance(most, int) or most <= len(said):
        return Why.LENGTH
    asked = {name: body[name] for name in _CARRIED if body.get(name) is not None}
    asked |= {"prompt": prompt + said, "max_tokens": most - len(said), "stream": True}
    asked["return_token_ids"] = True  # nosec B105  # no secret: a field of vLLM's
    if usage:
        asked["stream_options"] = {"include_usage": True}
    least = body.get("min_tokens")
    if isinstance(least, int) and least > len(said):
        asked["min_tokens"] = least - len(said)
    return Rest(json.dumps(asked).encode(), RestEvents(shape, tap, len(prompt), len(said)), tap)


def end_of(shape: Shape | None, body: Mapping[str, Any], tap: TokenTap | None) -> bytes | None:
    """What is missing of a stream whose backend died after the answer's last token was told; None if more is missing."""
    if tap is None or not tap.finished or not tap.first or not tap.prompt:
        return None
    options = body.get("stream_options")
    end = b"data: [DONE]\n\n"
    if not isinstance(options, dict) or not options.get("include_usage") or tap.usage_sent:
        return end
    try:
        prompt, said, frame = len(numbers(tap.prompt)), sum(len(numbers(item)) for item in tap.ids), _frame(tap)
    except (ValueError, RecursionError):
        return None
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + said, "completion_tokens": said}
    shown = {**frame, "choices": [], "usage": usage}
    return b"data: " + json.dumps(shown, separators=(",", ":")).encode() + b"\n\n" + end


def _frame(tap: TokenTap) -> dict[str, Any]:
    """What all events of a stream have alike. Raises ValueError or RecursionError where its first one is no JSON object."""
    begun = json.loads(tap.first.partition(b"data:")[2])
    if not isinstance(begun, dict):
        raise ValueError("no object")
    return {name: begun[name] for name in ("id", "object", "created", "model") if name in begun}


def _carries(name: str, value: object) -> bool:
    """Whether a field lets the answer be gone on with exactly. One that is not known here does not."""
    if value is None or name in _CARRIED or name in _DONE_WITH:
        return True
    return name in _ONLY_AS and _ONLY_AS[name](value)


def _has_media(messages: object) -> bool:
    """Whether some message holds more than text: what an image became cannot be told in tokens."""
    return isinstance(messages, list) and any(
        isinstance(part, dict) and part.get("type") not in ("text", None)
        for message in messages
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for part in message["content"]
    )


class RestEvents:
    """Makes the events of a continuation those of the stream that broke: same id, no second beginning, usage added."""

    def __init__(self, shape: Shape, tap: TokenTap, prompt: int, said: int) -> None:
        self._shape = shape
        self._tap = tap
        self._prompt, self._said = prompt, said
        self._buffer = b""
        self._frame = _frame(tap)
        tap.drop()
        del tap.ids[tap.flushed :]
        self.tokens = 0
        self.done = False

    def __repr__(self) -> str:
        return f"<RestEvents {self.tokens} tokens{' done' if self.done else ''}>"

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the continuation; return events for the client. Raises ValueError for what is no such stream."""
        *events, self._buffer = (self._buffer + data).split(b"\n\n")
        if len(self._buffer) > MAX_EVENT:
            raise ValueError("an event without an end")
        try:
            return b"".join([self._event(event) for event in events])
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"not an event of completions ({type(error).__name__})") from None

    def _event(self, event: bytes) -> bytes:
        if not event.startswith(b"data:"):
            return event + b"\n\n"  # a comment that keeps the connection alive
        data = event[5:].strip()
        if data == b"[DONE]":
            if not self._tap.finished:
                raise ValueError("an end without a finish_reason")
            self.done = True
            return event + b"\n\n"
        value = json.loads(data)
        if "error" in value:
            raise ValueError(str(value["error"])[:200])
        if not isinstance(value["choices"], list):
            raise TypeError
        shown = {**self._frame, "choices": [self._choice(choice) for choice in value["choices"]]}
        if isinstance(value.get("usage"), dict):
            shown["usage"] = self._usage(value["usage"])
            self._tap.usage_sent = self._tap.usage_sent or not shown["choices"]
        return b"data: " + json.dumps(shown, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        text, reason, ids = choice["text"], choice.get("finish_reason"), choice.get("token_ids") or []
        if not isinstance(text, str) or not all(isinstance(token, int) for token in ids):
            raise TypeError
        self.tokens += len(ids)
        if ids:
            self._tap.ids.append(",".join(map(str, ids)).encode())
        if text:
            self._tap.lost = self._tap.lost or not ids
            self._tap.flushed = len(self._tap.ids)
        self._tap.finished = self._tap.finished or reason is not None
        stopped = {"finish_reason": reason, "stop_reason": choice.get("stop_reason")}
        same = {"logprobs": None, **stopped, "token_ids": None}  # nosec B105  # no secret: a field of vLLM's
        if self._shape is Shape.COMPLETIONS:
            return {"index": 0, "text": text, **same}
        return {"index": 0, "delta": {"content": text}, **same}

    def _usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Tokens of the whole answer: those said before count as the answer's and not as the prompt's."""
        completion = (usage.get("completion_tokens") or 0) + self._said
        told = {**usage, "prompt_tokens": self._prompt, "completion_tokens": completion}
        told["total_tokens"] = self._prompt + completion
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict) and isinstance(details.get("cached_tokens"), int):
            told["prompt_tokens_details"] = {**details, "cached_tokens": min(details["cached_tokens"], self._prompt)}
        return told
