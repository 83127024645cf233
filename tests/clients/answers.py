"""Owns what a scripted backend answers to an agent: a tool's call, then a sentence, streamed as vLLM streams each protocol."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from tests.integration.scripted import Script, Talk

Event = Mapping[str, Any]

PARTS = ("Hello", " there", " \u2013", " it is", " a fine", " day.\n\n", "What", " shall", " we", " do", "?")
SENTENCE = "".join(PARTS)
"""Two paragraphs with a character of three bytes, in several events: what a client replays is put together from them."""

CREATED = 1795970929


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. The arguments come in pieces, and are written as no client would write them again."""

    id: str
    name: str
    arguments: tuple[str, ...]

    @property
    def whole(self) -> str:
        return "".join(self.arguments)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: its text in pieces, and the call that comes after it, if any.

    `number` is its own within a conversation. It goes into its ids, since a client takes answers of one id for one answer.
    """

    number: int
    parts: tuple[str, ...]
    call: Call | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)


Tools = Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]]
"""For each path the tools to call, the first one that a request offers, with the arguments in pieces."""

_BASH = ('{"description": "Say', ' hello",   "command":"echo hello"}')

SHELL: Tools = {
    "/v1/messages": (("Bash", _BASH),),
    "/v1/responses": (("exec_command", ('{  "cmd":', '"echo hello"}')),),
    "/v1/chat/completions": (("bash", _BASH),),
}
"""The tool of the agent that speaks this protocol which runs a command."""

TASK = "Look around"

SUB_AGENT: Tools = {"/v1/messages": (("Agent", (f'{{"description": "Look", "prompt": "{TASK}"', "}")),)}
"""The tool that starts a sub-agent with this task."""


def reply(path: str, body: Mapping[str, Any], tools: Tools) -> Said:
    """What is said to a request: where it offers one of the tools and brings no result of one, a call comes first."""
    messages = body["input" if path == "/v1/responses" else "messages"]
    answers = [number for number, message in enumerate(messages) if _is_answer(message)]
    newest = messages[answers[-1] + 1 if answers else 0 :]
    offered = {tool.get("name") or tool.get("function", {}).get("name") for tool in body.get("tools") or []}
    calls = [call for call in tools[path] if call[0] in offered]
    if not calls or any(_is_result(message) for message in newest):
        return Said(len(answers), PARTS)
    name, arguments = calls[0]
    return Said(len(answers), ("I will", " look."), Call(f"call_{len(answers)}", name, arguments))


def chat(model: str, said: Said) -> Iterator[Event]:
    """The chunks of POST /v1/chat/completions, without `[DONE]`."""
    head = {"id": f"chatcmpl-{said.number}", "object": "chat.completion.chunk", "created": CREATED, "model": model}

    def chunk(delta: Event, finish_reason: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**head, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    yield from (chunk({"content": part}) for part in said.parts)
    if call := said.call:
        function: Event = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [{"id": call.id, "type": "function", "index": 0, "function": function}]})
        for part in call.arguments:
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
    yield chunk({"content": ""}, "tool_calls" if said.call else "stop")
    usage = {"prompt_tokens": 30, "total_tokens": 30 + len(said.parts), "completion_tokens": len(said.parts)}
    yield {**head, "choices": [], "usage": usage}


def messages(model: str, said: Said) -> Iterator[Event]:
    """The events of POST /v1/messages."""
    message: dict[str, Any] = {"id": f"chatcmpl-{said.number}", "type": "message", "role": "assistant", "content": []}
    message |= {
        "model": model,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 30, "output_tokens": 0},
    }
    yield {"type": "message_start", "message": message}
    yield {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
    for part in said.parts:
        yield {"type": "content_block_delta", "delta": {"type": "text_delta", "text": part}, "index": 0}
    yield {"type": "content_block_stop", "index": 0}
    if call := said.call:
        block: Event = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        yield {"type": "content_block_start", "content_block": block, "index": 1}
        for part in call.arguments:
            delta = {"type": "input_json_delta", "partial_json": part}
            yield {"type": "content_block_delta", "delta": delta, "index": 1}
        yield {"type": "content_block_stop", "index": 1}
    reason = "tool_use" if said.call else "end_turn"
    usage = {"input_tokens": 30, "output_tokens": len(said.parts), "cache_read_input_tokens": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def responses(model: str, said: Said) -> Iterator[Event]:
    """The events of POST /v1/responses."""
    numbers = count()
    response = {"id": f"resp_{said.number}", "object": "response", "created_at": CREATED, "model": model}
    response |= {"status": "in_progress", "output": [], "usage": None}
    output: list[Event] = []
    for event in _response_events(response, said):
        if event["type"] == "response.output_item.done":
            output.append(event["item"])
        yield {**event, "sequence_number": next(numbers)}
    usage = {"input_tokens": 30, "output_tokens": len(said.parts), "total_tokens": 30 + len(said.parts)}
    response |= {"status": "completed", "output": output, "usage": usage}
    yield {"response": response, "sequence_number": next(numbers), "type": "response.completed"}


def stream(path: str, model: str, said: Said) -> Iterator[bytes]:
    """An answer in the protocol of the path: each event as its own bytes."""
    if path == "/v1/chat/completions":
        yield from map(_data, chat(model, said))
        yield b"data: [DONE]\n\n"
    else:
        for event in messages(model, said) if path == "/v1/messages" else responses(model, said):
            yield b"event: %b\n%b" % (event["type"].encode(), _data(event))


def answering(tools: Tools) -> Script:
    """A backend's script: the reply in the protocol of the path, 400 for what is not streamed, 404 for any other path."""

    async def answer(talk: Talk) -> None:
        path = talk.seen.path.partition("?")[0]
        body = json.loads(talk.seen.body or b"{}")
        if path not in tools:
            talk.json({"error": {"message": f"{path} is not scripted", "type": "NotFoundError"}}, "404 Not Found")
        elif not body.get("stream"):
            talk.json({"error": {"message": "only streams are scripted", "type": "BadRequestError"}}, "400 Bad Request")
        else:
            talk.stream_head()
            for event in stream(path, body["model"], reply(path, body, tools)):
                talk.chunk(event)
            talk.end()

    return answer


async def delegating(talk: Talk) -> None:
    """A backend's script: the agent is told to start a sub-agent, and the sub-agent to run a command."""
    told = TASK.encode() in talk.seen.body
    await answering(SHELL if told else SUB_AGENT)(talk)


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant" or message.get("type") == "function_call"


def _is_result(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    kinds = {message.get("role"), message.get("type"), *(part.get("type") for part in parts)}
    return bool(kinds & {"tool", "function_call_output", "tool_result"})


def _response_events(response: Event, said: Said) -> Iterator[Event]:
    """The events of a response but its last one, without their numbers."""
    place = {"item_id": f"msg_{said.number}", "output_index": 0, "content_index": 0}
    item = {"id": f"msg_{said.number}", "type": "message", "role": "assistant"}
    text = {"type": "output_text", "annotations": []}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": {**response}}
    begun = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "item": begun, "output_index": 0}
    yield {"type": "response.content_part.added", **place, "part": {**text, "text": ""}}
    for part in said.parts:
        yield {"type": "response.output_text.delta", **place, "delta": part, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": said.text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": {**text, "text": said.text}}
    done = {**item, "status": "completed", "content": [{**text, "text": said.text}]}
    yield {"type": "response.output_item.done", "item": done, "output_index": 0}
    if said.call:
        yield from _call_events(said.call)


def _call_events(call: Call) -> Iterator[Event]:
    place = {"item_id": f"fc_{call.id}", "output_index": 1}
    item = {"id": place["item_id"], "type": "function_call", "call_id": call.id, "name": call.name}
    begun, done = {"arguments": "", "status": "in_progress"}, {"arguments": call.whole, "status": "completed"}
    yield {"type": "response.output_item.added", "item": {**item, **begun}, "output_index": 1}
    for part in call.arguments:
        yield {"type": "response.function_call_arguments.delta", **place, "delta": part}
    yield {"type": "response.function_call_arguments.done", **place, "arguments": call.whole, "name": call.name}
    yield {"type": "response.output_item.done", "item": {**item, **done}, "output_index": 1}


def _data(event: Event) -> bytes:
    return b"data: %b\n\n" % json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
