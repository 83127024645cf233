"""Text to token ids and back: a small deterministic tokenizer with Qwen's chat layout, about 4 characters a token."""

from __future__ import annotations

import json
import re
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from warmroute.sim.words import WORDS

VOCAB_SIZE = 151_936
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
_SPECIAL = {"<|endoftext|>": 151_643, IM_START: 151_644, IM_END: 151_645}
IM_START_ID = _SPECIAL[IM_START]
IM_END_ID = _SPECIAL[IM_END]
NEWLINE_ID = 198

# Words that answers are made of have ids of their own, so that their text can be told from their id.
_KNOWN_FROM = 1_000
_KNOWN = {text: _KNOWN_FROM + index for index, text in enumerate(WORDS)} | {"\n": NEWLINE_ID}
_TEXT = {token: text for text, token in _KNOWN.items()} | dict.fromkeys(_SPECIAL.values(), "")
_HASHED_FROM = 10_000
_HASHED_SPAN = _SPECIAL["<|endoftext|>"] - _HASHED_FROM

_SPLIT_SPECIAL = re.compile("(" + "|".join(re.escape(text) for text in _SPECIAL) + ")")
# A newline is always a token of its own: so the line that opens an answer cannot grow together with its first word.
_PIECE = re.compile(r"\n| ?[^\W\d_]+(?:'[^\W\d_]+)?| ?\d{1,3}| ?(?:[^\w\s]|_){1,4}|[^\S\n]{1,8}")
_LONGEST_PIECE = 7
_CHOP = 4


def token_text(token: int) -> str | None:
    """The text of a token of a generated answer ('' for a special one); None for a token that cannot be spelled."""
    return _TEXT.get(token)


class Tokenizer:
    """Encodes text and chats. Encoded messages are remembered (up to `remembered`), since chats repeat their history.

    The ids of a text followed by a special token do not depend on what comes after: so the ids of a conversation
    are a prefix of its ids some turns later.
    """

    def __init__(self, *, remembered: int = 4096) -> None:
        self._remembered = remembered
        self._messages: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`; special tokens written out in it are recognised."""
        ids: list[int] = []
        for part in _SPLIT_SPECIAL.split(text):
            special = _SPECIAL.get(part)
            if special is not None:
                ids.append(special)
            else:
                ids.extend(_encode_plain(part))
        return ids

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Any] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The token ids of a chat as a chat template would lay it out.

        `messages` are OpenAI messages (content a string, a list of parts, or None). `continue_final_message` leaves
        the last message open, to be written on.
        """
        ids: list[int] = []
        if tools:
            ids.extend(self._message(f"{IM_START}system\n{_tools_text(tools)}{IM_END}\n"))
        for index, message in enumerate(messages):
            is_open = continue_final_message and index == len(messages) - 1
            text = f"{IM_START}{message.get('role', 'user')}\n{message_text(message)}"
            ids.extend(self._message(text if is_open else f"{text}{IM_END}\n"))
        if add_generation_prompt:
            ids.extend(self._message(f"{IM_START}assistant\n"))
        return ids

    def _message(self, text: str) -> tuple[int, ...]:
        known = self._messages.get(text)
        if known is not None:
            self._messages.move_to_end(text)
            return known
        ids = self._messages[text] = tuple(self.encode(text))
        if len(self._messages) > self._remembered:
            self._messages.popitem(last=False)
        return ids

    def __repr__(self) -> str:
        return f"Tokenizer(vocab={VOCAB_SIZE}, remembered={len(self._messages)}/{self._remembered})"


def message_text(message: Mapping[str, Any]) -> str:
    """What a chat template shows of one message: its text, then its tool calls. Parts that are no text are named."""
    content = message.get("content")
    if isinstance(content, str):
        text = content
    elif isinstance(content, Iterable):
        text = "".join(_part_text(part) for part in content)
    else:
        text = ""
    for call in message.get("tool_calls") or ():
        text += f"\n<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"
    return text


def _part_text(part: Any) -> str:
    if not isinstance(part, Mapping):
        return str(part)
    text = part.get("text")
    if isinstance(text, str):
        return text
    return f"[{json.dumps(part, ensure_ascii=False, default=str)}]"


def _tools_text(tools: Sequence[Any]) -> str:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"# Tools\n\n{lines}"


def _encode_plain(text: str) -> list[int]:
    ids: list[int] = []
    for piece in _PIECE.findall(text):
        known = _KNOWN.get(piece)
        if known is not None:
            ids.append(known)
        elif len(piece) <= _LONGEST_PIECE:
            ids.append(_hashed(piece))
        else:
            ids.extend(_hashed(piece[start : start + _CHOP]) for start in range(0, len(piece), _CHOP))
    return ids


def _hashed(piece: str) -> int:
    return _HASHED_FROM + zlib.crc32(piece.encode()) % _HASHED_SPAN
