"""The JSON of a simulated server's answers, whole and in streamed chunks, in the shapes of vLLM 0.32. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from warmroute.sim.api import GenerationRequest
from warmroute.sim.engine import EngineRequest, FinishReason

VLLM_VERSION: Final = "0.32.0"
DONE: Final = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What every chunk of an answer repeats. `created` is in seconds since 1970."""

    reply_id: str
    created: int
    model: str
    fingerprint: str
    with_details: bool


def json_bytes(value: object) -> bytes:
    """Compact UTF-8 JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def error_event(body: Mapping[str, Any]) -> bytes:
    """The event of an error that is found after the headers of a stream are sent; vLLM spaces its JSON."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


class Reply:
    """Shapes one answer of one kind (chat or completion)."""

    def __init__(self, head: ReplyHead, request: GenerationRequest, run: EngineRequest) -> None:
        self._head = head
        self._request = request
        self._run = run
        self._is_chat = request.kind == "chat"

    def opening(self) -> bytes:
        """What a stream sends before its first token: the role in a chat, nothing in a completion."""
        if not self._is_chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        body = self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], 0)
        prompt = list(self._request.prompt) if self._request.return_token_ids else None
        return event({**body, "prompt_token_ids": prompt, "prompt_text": None})

    def chunk(self, text: str, ids: Sequence[int], total: int, finished: FinishReason | None) -> bytes:
        """New tokens of a stream; `total` counts all so far."""
        reason = None if finished is None else str(finished)
        wants_ids = self._request.return_token_ids
        choice: dict[str, Any] = {"index": 0}
        choice |= {"delta": {"content": text}} if self._is_chat else {"text": text}
        choice |= {"logprobs": None, "finish_reason": reason}
        if reason is not None or not self._is_chat:
            choice["stop_reason"] = None
        if not self._is_chat:
            is_first = total == len(ids)
            choice["prompt_token_ids"] = list(self._request.prompt) if wants_ids and is_first else None
        choice["token_ids"] = list(ids) if wants_ids else None
        body = self._chunk([choice], total)
        if finished is not None and not self._request.include_usage:
            body["system_fingerprint"] = self._head.fingerprint
        return event(body)

    def closing(self, total: int) -> bytes:
        """What a stream sends after its last token: usage if asked for, and the end mark."""
        if not self._request.include_usage:
            return DONE
        usage: dict[str, Any] = self._counts(total)
        if self._head.with_details:
            usage["prompt_tokens_details"] = self._details()
        body = {**self._base(), "choices": [], "usage": usage, "system_fingerprint": self._head.fingerprint}
        return event(body) + DONE

    def whole(self, text: str, ids: Sequence[int], finished: FinishReason) -> bytes:
        """The answer in one piece."""
        wants_ids = self._request.return_token_ids
        end: dict[str, Any] = {"logprobs": None, "finish_reason": str(finished), "stop_reason": None}
        end["token_ids"] = list(ids) if wants_ids else None
        prompt = list(self._request.prompt) if wants_ids else None
        tail: dict[str, Any] = {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
        if self._is_chat:
            nothing = ("refusal", "annotations", "audio", "function_call", "reasoning")
            message = {"role": "assistant", "content": text, **dict.fromkeys(nothing)}
            choice = {"index": 0, "message": message, **end, "routed_experts": None}
            tail = {"prompt_logprobs": None, "prompt_token_ids": prompt, "prompt_text": None, **tail}
        else:
            choice = {"index": 0, "text": text, **end, "prompt_logprobs": None}
            choice |= {"prompt_token_ids": prompt, "routed_experts": None}
        body = {**self._base(whole=True), "choices": [choice], "service_tier": None}
        body |= {"system_fingerprint": self._head.fingerprint, "usage": self._whole_usage(len(ids))}
        return json_bytes({**body, **tail})

    def _base(self, *, whole: bool = False) -> dict[str, Any]:
        kind = "text_completion"
        if self._is_chat:
            kind = "chat.completion" if whole else "chat.completion.chunk"
        return {
            "id": self._head.reply_id,
            "object": kind,
            "created": self._head.created,
            "model": self._head.model,
        }

    def _chunk(self, choices: list[dict[str, Any]], total: int) -> dict[str, Any]:
        body = {**self._base(), "choices": choices}
        if self._request.continuous_usage:
            nothing = {"completion_tokens_details": None} if self._is_chat else {}
            body["usage"] = self._counts(total) | nothing
        return body

    def _counts(self, total: int) -> dict[str, int]:
        prompt = len(self._request.prompt)
        return {"prompt_tokens": prompt, "total_tokens": prompt + total, "completion_tokens": total}

    def _details(self) -> dict[str, Any]:
        details = {"cached_tokens": self._run.cached_tokens}
        return {**details, "created_cache_tokens": self._run.created_tokens} if self._is_chat else details

    def _whole_usage(self, total: int) -> dict[str, Any]:
        created = {"created_cache_tokens": None, **self._details(), "multimodal_tokens": None}
        ordered = {name: created[name] for name in ("cached_tokens", "created_cache_tokens", "multimodal_tokens")}
        details = ordered if self._head.with_details else None
        return {**self._counts(total), "prompt_tokens_details": details, "completion_tokens_details": None}

    def __repr__(self) -> str:
        return f"Reply({self._head.reply_id}, {self._request.kind}, {self._run!r})"


def models_body(model: str, context_tokens: int, created: int) -> dict[str, Any]:
    """The body of GET /v1/models; `created` in seconds since 1970."""
    permission = {
        "id": f"modelperm-{model}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": model,
        "parent": None,
        "max_model_len": context_tokens,
        "permission": [permission],
    }
    return {"object": "list", "data": [card]}
