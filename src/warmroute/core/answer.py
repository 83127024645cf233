"""Reads what an answer says while it passes, so that the next turn that brings it back is recognised."""

from collections.abc import Callable
from typing import Any

from .messages import Message, Shape, answer_message
from .sse import event_data

Decode = Callable[[bytes], object]
"""Reads JSON; gives None for what is none."""

_MOST_HELD = 4 << 20
"""Bytes of an answer that are held at most; one that says more is not recognised by what it says."""


class Answer:
    """Gathers one answer, streamed or not. `message` gives it once it is whole, in the form of the next turn's history.

    Answers that were cut, that hold several choices, or that are not understood give None. With `only_id` nothing is
    gathered: `response_id` alone is looked for, which is known as soon as the answer has named it.
    """

    def __init__(self, shape: Shape, *, event_stream: bool, decode: Decode, only_id: bool = False) -> None:
        self._shape = shape
        self._stream = event_stream
        self._decode = decode
        self._only_id = only_id
        self._rest = b""
        self._pieces: list[bytes] = []
        self._held = 0
        self._given_up = False
        self._whole = False
        self._said: Any = None
        self._texts: list[str] = []
        self._calls: dict[int, dict[str, list[str]]] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self.response_id: str | None = None

    def __repr__(self) -> str:
        return f"<Answer {self._shape} {self._held} bytes held{' whole' if self._whole else ''}>"

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the answer's body. Never raises."""
        if self._given_up or (self._only_id and self.response_id is not None):
            return
        if not self._stream:
            self._pieces.append(data)
            self._hold(len(data))
            return
        data = self._rest + data
        if data.find(b"\r") >= 0:
            data = data.replace(b"\r\n", b"\n")
        *events, self._rest = data.split(b"\n\n")
        for event in events:
            plain = event.startswith(b"data: ") and event.find(b"\n") < 0
            self._event(self._decode(event[6:] if plain else event_data(event)))
        if len(self._rest) > _MOST_HELD:
            self._give_up()

    def message(self) -> Message | None:
        """What the answer said; to be asked once, after its end."""
        if self._pieces:
            self._body(self._decode(b"".join(self._pieces)))
            self._pieces.clear()
        if self._given_up or not self._whole or self._only_id:
            return None
        return answer_message(self._shape, self._said if self._said is not None else self._gathered())

    def _hold(self, size: int) -> None:
        self._held += size
        if self._held > _MOST_HELD:
            self._give_up()

    def _give_up(self) -> None:
        self._given_up = True
        self._rest = b""
        self._pieces.clear()
        self._texts.clear()
        self._calls.clear()
        self._blocks.clear()

    # A whole body

    def _body(self, body: object) -> None:
        if not isinstance(body, dict):
            return
        match self._shape:
            case Shape.MESSAGES:
                self._said = body.get("content")
            case Shape.RESPONSES:
                self._response(body)
            case Shape.CHAT | Shape.COMPLETIONS:
                choice = _only_choice(body)
                self._said = None if choice is None else choice.get("message", choice.get("text"))
        self._whole = self._said is not None

    def _response(self, response: object) -> None:
        if isinstance(response, dict):
            if isinstance(response.get("id"), str):
                self.response_id = response["id"]
            if response.get("status") in ("completed", "incomplete"):
                self._said, self._whole = response.get("output"), True

    # Events

    def _event(self, event: object) -> None:
        if not isinstance(event, dict):
            return
        match self._shape:
            case Shape.MESSAGES:
                self._block(event)
            case Shape.RESPONSES:
                if "response" in event:
                    self._response(event["response"])
            case Shape.CHAT | Shape.COMPLETIONS:
                self._choice(event)

    def _choice(self, event: dict[str, Any]) -> None:
        choices = event.get("choices")
        if not choices:
            return
        choice = _only_choice(event)
        if choice is None:
            self._give_up()
            return
        delta = choice.get("delta")
        said = delta.get("content") if isinstance(delta, dict) else choice.get("text")
        if isinstance(said, str):
            self._texts.append(said)
            self._hold(len(said))
        if isinstance(delta, dict) and delta.get("tool_calls"):
            self._add_calls(delta["tool_calls"])
        if choice.get("finish_reason") is not None:
            self._whole = True

    def _add_calls(self, calls: object) -> None:
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            number = call.get("index", 0) if isinstance(call, dict) else None
            if isinstance(function, dict) and isinstance(number, int):
                known = self._calls.setdefault(number, {"name": [], "arguments": []})
                for key, parts in known.items():
                    if isinstance(said := function.get(key), str):
                        parts.append(said)
                        self._hold(len(said))

    def _block(self, event: dict[str, Any]) -> None:
        number, begun, delta = event.get("index"), event.get("content_block"), event.get("delta")
        match event.get("type"):
            case "content_block_start" if isinstance(number, int) and isinstance(begun, dict):
                self._blocks[number] = {**begun, "parts": []}
            case "content_block_delta" if isinstance(number, int) and isinstance(delta, dict):
                said = delta.get("text", delta.get("partial_json"))
                if number in self._blocks and isinstance(said, str):
                    self._blocks[number]["parts"].append(said)
                    self._hold(len(said))
            case "message_stop":
                self._whole = True

    def _gathered(self) -> object:
        """What the events said, as the protocol writes it in a whole body."""
        if self._shape is Shape.MESSAGES:
            return [_whole_block(block, self._decode) for block in self._blocks.values()]
        text = "".join(self._texts)
        if self._shape is Shape.COMPLETIONS:
            return text
        calls = [{"function": {key: "".join(said) for key, said in call.items()}} for call in self._calls.values()]
        return {"role": "assistant", "content": text, "tool_calls": calls}


def _only_choice(body: dict[str, Any]) -> dict[str, Any] | None:
    """The choice of an answer that has only one."""
    choices = body.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    return choices[0] if choices[0].get("index", 0) == 0 else None


def _whole_block(block: dict[str, Any], decode: Decode) -> dict[str, Any]:
    said = "".join(block.pop("parts"))
    if block.get("type") == "tool_use":
        return {**block, "input": decode(said.encode()) if said else block.get("input")}
    return {**block, "text": str(block.get("text") or "") + said} if block.get("type") == "text" else block
