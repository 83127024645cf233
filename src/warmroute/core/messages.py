"""What a request and its answer say, message by message, in one form for all protocols and all ways to write the same."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import Any, NamedTuple

Field = Callable[[str], object]
"""Looks up a top-level value of a request's JSON body; None where there is none."""
RawField = Callable[[str], bytes | memoryview | None]
"""The same value as it was written."""


class Shape(StrEnum):
    """How a request says its prompt."""

    CHAT = "chat"  # messages, as /v1/chat/completions has them
    MESSAGES = "messages"  # system and messages, as /v1/messages has them
    RESPONSES = "responses"  # instructions and input, as /v1/responses has them
    COMPLETIONS = "completions"  # prompt, a text that grows


class Message(NamedTuple):
    """Who says what. Equal for all ways to write the same: text or parts, key order, cache marks, ids, nulls."""

    role: str
    text: str


_new = tuple.__new__
"""Makes the messages of a history, of which there are many: their own constructor takes five times as long."""

ASSISTANT, USER, SYSTEM, TOOL = "assistant", "user", "system", "tool"

_ROLES = {"developer": SYSTEM, "function": TOOL, "model": ASSISTANT}
_THOUGHTS = frozenset({"thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text"})
_ANSWERED_ITEMS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "web_search_call", "file_search_call", "computer_call"}
    | {"mcp_call", "code_interpreter_call", "image_generation_call", "tool_search_call"}
)
"""Items of the Responses API that are the model's own; those with the ending `_output` are results of tools."""

_NOT_SAID = frozenset({"cache_control", "prompt_cache_breakpoint", "id", "status", "type", "logprobs", "annotations"})
"""Keys that change between two turns although the message is the same."""

_BILLING = "x-anthropic-billing-header"
"""Claude Code's first system block; it can differ with each request, and vLLM leaves it out of the prompt too."""

_LARGEST_INT = 1100
"""Bits; what a float can hold is less. Python refuses to write out integers of some 14,000."""

_DEEPEST = 32
"""Levels of nested content that are looked at."""


def request_messages(shape: Shape, field: Field, *, beginning: bool = False) -> list[Message]:
    """The messages of a request; whatever is of the wrong type says nothing. Never raises.

    With `beginning` those after the first answer to a user are left out. Consecutive messages of the model are one, since an
    answer comes back as one message or as several items. A text that grows (`Shape.COMPLETIONS`) is one message.
    """
    found: list[Message] = []
    match shape:
        case Shape.CHAT:
            _chat(found, field("messages"), beginning)
        case Shape.MESSAGES:
            _system(found, field("system"))
            _chat(found, field("messages"), beginning)
        case Shape.RESPONSES:
            _system(found, field("instructions"))
            _items(found, field("input"))
        case Shape.COMPLETIONS:
            prompt = field("prompt")
            if isinstance(prompt, str) and prompt:
                found.append(Message(USER, prompt))
    return found


_CHAT, _MESSAGES = Shape.CHAT, Shape.MESSAGES
_ASKED = re.compile(rb'\{\s*"role"\s*:\s*"user"')
_ANSWERED = re.compile(rb'\{\s*"role"\s*:\s*"assistant"')


def has_begun(shape: Shape, field: Field, raw: RawField) -> bool:
    """Whether the model has answered a user in this request, if a look at the roles tells.

    Nearly all clients write a message's role first, and then the first answer is found without decoding what follows.
    """
    if shape is not _CHAT and shape is not _MESSAGES:
        return False
    written = raw("messages") or b""
    first = _ASKED.search(written)
    if first is not None and _ANSWERED.search(written, first.end()) is not None:
        return True
    asked = False
    messages = field("messages")
    for message in messages if isinstance(messages, list) else ():
        role = message.get("role") if isinstance(message, dict) else None
        if role == ASSISTANT and asked:
            return True
        asked = asked or role == USER
    return False


def answer_message(shape: Shape, said: object) -> Message | None:
    """An answer in the form that it will have in the next turn's request; None if it says nothing that could come back.

    `said` is a chat message, the content of an Anthropic message, the output of a response, or a completion's text.
    """
    found: list[Message] = []
    match shape:
        case Shape.CHAT:
            _chat(found, [{**said, "role": ASSISTANT}] if isinstance(said, dict) else [])
        case Shape.MESSAGES:
            _chat(found, [{"role": ASSISTANT, "content": said}])
        case Shape.RESPONSES:
            _items(found, said)
        case Shape.COMPLETIONS:
            if isinstance(said, str):
                found.append(Message(ASSISTANT, said))
    return found[-1] if found and found[-1].role == ASSISTANT else None


def tools_text(field: Field) -> str:
    """The tools that a request offers, as one text."""
    return "\n".join(_flat(field("tools")))


def _chat(into: list[Message], messages: object, beginning: bool = False) -> None:
    asked = False
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        role, content = message.get("role"), message.get("content")
        said = content if isinstance(content, str) else _content(content)
        if role == USER:
            asked = True
            into.append(_new(Message, (USER, said.strip())))
        elif role == ASSISTANT or role == "model":
            said = _without_thoughts(said)
            if "tool_calls" in message or "function_call" in message:
                said += _calls(message)
            _add_answer(into, said)
            if beginning and asked:
                return
        else:
            role = _ROLES.get(role, role) if isinstance(role, str) else ""
            into.append(Message(role, (_without_billing(said) if role == SYSTEM else said).strip()))


def _add_answer(into: list[Message], said: str) -> None:
    if into and into[-1].role == ASSISTANT:
        said = into.pop().text + said
    into.append(_new(Message, (ASSISTANT, said)))


def _system(into: list[Message], value: object) -> None:
    said = _without_billing(_content(value)).strip()
    if said:
        into.append(Message(SYSTEM, said))


def _items(into: list[Message], value: object) -> None:
    if isinstance(value, str):
        into.append(Message(USER, value.strip()))
    for item in value if isinstance(value, list) else ():
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        if kind is None or kind == "message":
            _chat(into, [item])
        elif not isinstance(kind, str):
            continue
        elif kind in _ANSWERED_ITEMS:
            _add_answer(into, _call(item.get("name", kind), item.get("arguments", item.get("input"))))
        elif kind not in _THOUGHTS:
            said = item["output"] if "output" in item else {k: v for k, v in item.items() if k not in _NOT_SAID}
            into.append(Message(TOOL, _content(said).strip()))


def _content(content: object, depth: int = 0) -> str:
    """What a message's content says: its texts, then the calls of tools in it, as a chat message has them."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or depth > _DEEPEST:
        return "\n".join(_flat(content))
    texts, calls = [], []
    for part in content:
        if isinstance(part, dict) and part.get("type") in ("tool_use", "server_tool_use"):
            calls.append(_call(part.get("name"), part.get("input")))
        elif text := (_part(part, depth) or "").strip():
            texts.append(text)
    return "\n".join(texts) + "".join(calls)


def _part(part: object, depth: int) -> str | None:
    """What a part of a message says; None for the model's thoughts, which clients leave out of the next turn."""
    if not isinstance(part, dict):
        return "\n".join(_flat(part))
    kind, text = part.get("type"), part.get("text")
    if isinstance(kind, str) and kind in _THOUGHTS:
        return None
    if isinstance(text, str):
        return None if text.startswith(_BILLING) else text
    if kind == "tool_result":
        return _content(part.get("content"), depth + 1)
    return "\n".join(_flat({name: value for name, value in part.items() if name not in _NOT_SAID}))


def _calls(message: Mapping[str, Any]) -> str:
    """The calls of tools in a chat message, each as `_call` has it."""
    calls, legacy = message.get("tool_calls"), message.get("function_call")
    if not calls and not legacy:
        return ""
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return "".join(_call(f.get("name"), f.get("arguments")) for f in [*functions, legacy] if isinstance(f, dict))


def _call(name: object, arguments: object) -> str:
    """A call of a tool. Clients may write its arguments anew, so that only what they mean counts."""
    if isinstance(arguments, str) and not arguments.strip():
        arguments = None
    elif isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # what is no JSON counts as it is
            arguments = json.loads(arguments)
    return "\0" + "\n".join([*_flat(name), *_flat(arguments)])


def _without_thoughts(text: str) -> str:
    """An answer without the thoughts that stand before it where the server does not part them."""
    text = text.strip()
    if text.startswith("<think>"):
        _, closed, after = text.partition("</think>")
        return after.strip() if closed else text
    return text


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _flat(value: object, depth: int = 0) -> Iterator[str]:
    """The strings of a JSON value with the keys that lead to them, in one order; nulls are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping) and depth < _DEEPEST:
        for key in sorted(value):
            if value[key] is not None:
                yield key
                yield from _flat(value[key], depth + 1)
    elif isinstance(value, list) and depth < _DEEPEST:
        for item in value:
            yield from _flat(item, depth + 1)
    elif isinstance(value, float) and value.is_integer():  # JavaScript writes 1.0 as 1
        yield str(int(value))
    elif isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < _LARGEST_INT):
        yield repr(value)
