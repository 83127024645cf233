"""Whose conversation is it: any headers and any body, through key sources, recogniser and the account of tokens."""

import asyncio
import json

from warmroute.core import routes
from warmroute.core.headers import first_values
from warmroute.core.identity import DEFAULT_SOURCES, SOURCES
from warmroute.core.model import Decision, PinChange, Reason
from warmroute.core.questions import TOKENS, USAGE, Asks, put_into
from warmroute.proxy.looking import look
from warmroute.proxy.request import Request, reader_for
from warmroute.recognition.recognizer import FIELDS

from .parts import parts
from .pieces import Case, Dice

_PATHS = (
    b"/v1/chat/completions",
    b"/v1/completions",
    b"/v1/messages",
    b"/v1/responses",
    b"/v1/embeddings",
    b"/v1/realtime?model=m&session_id=%ff",
    b"/v1/responses/resp_1",
    b"/v1/audio/transcriptions",
)
_HEADERS = sorted(
    {name.encode() for name in (*SOURCES, *DEFAULT_SOURCES) if "." not in name}
    | {
        b"x-session-id",
        b"session-id",
        b"x-claude-code-session-id",
        b"user-agent",
        b"cookie",
        b"baggage",
        b"content-type",
        b"x-openwebui-task",
        b"x-parent-session-id",
        b"x-claude-code-agent-id",
        b"traceparent",
    }
)
_VALUES = [
    b"s",
    b"",
    b"{{id}}",
    b"null",
    b"undefined",
    b"\xff\xfe",
    b"a" * 600,
    b"session.id=1,x=%zz",
    b"multipart/form-data; boundary=x",
    b"application/json",
    b"codex_cli_rs/1",
    b"0b5c1f9e-3a77-4a53-9a61-0c2a4c1b7d11",
    b"sid=1; sid=2",
    b"[object Object]",
]
_WORDS = [
    *(b'"%s":' % name.encode() for name in FIELDS),
    b'"role":"user"',
    b'"role":"assistant"',
    b'"role":"system"',
    b'"role":1,',
    b'"content":',
    b'"type":"text"',
    b'"text":',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b'"',
    b'""',
    b"null",
    b"true",
    b'"\\ud800"',
    b'"\\u0000"',
    b"NaN",
    b"-",
    b"\\",
    b'"tool_calls":[',
    b'"arguments":"{}"',
    b'"metadata":{"user_id":"user_a_account__session_0b5c1f9e-3a77-4a53-9a61-0c2a4c1b7d11"}',
    b'"metadata":{"user_id":"{\\"session_id\\":[]}"}',
    b"[" * 3000,
    b'{"a":' * 2000,
    b'name="model"\r\n\r\nm\r\n',
    b"\xef\xbb\xbf",
    b'"stream_options":',
    b'"return_token_ids":',
    b'"n":',
    b"\r\n--x\r\n",
]
_CHATS: list[object] = [
    {"model": "m", "messages": [{"role": "user", "content": "hello"}]},
    {
        "model": "m",
        "stream": True,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": "hi",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "content": [{"type": "text", "text": "x"}], "tool_call_id": "c"},
            {"role": "user", "content": "go on"},
        ],
    },
    {
        "model": "m",
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "f", "input_schema": {}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image", "source": {}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        ],
    },
    {
        "model": "m",
        "instructions": "i",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "reasoning", "summary": []},
        ],
        "previous_response_id": "resp_1",
    },
    {"model": "m", "prompt": ["a", [1, 2, 3]], "max_tokens": 1, "session_id": 7, "vllm_xargs": {"session_id": "s"}},
]
_WHOLE = [json.dumps(chat).encode() for chat in _CHATS] + [
    json.dumps(chat, separators=(",", ":")).encode() for chat in _CHATS
]
_ANSWERS = [
    b'{"id":"resp_1","choices":[{"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1}}',
    b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n',
    b"event: content_block_start\n"
    b'data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n',
    b'data: {"type":"response.completed","response":{"id":"resp_1",'
    b'"output":[{"type":"message","role":"assistant","content":[]}]}}\n\n',
]


def build(dice: Dice) -> Case:
    """Path, body, answer, and then name and value of each header."""
    path, body, answer = dice.pick(_PATHS), dice.text(_WHOLE, _WORDS), dice.spoiled(_ANSWERS, _WORDS)
    headers = [(dice.pick(_HEADERS), dice.word(_VALUES)) for _ in range(dice.below(5))]
    return (path, body, answer, *(part for pair in headers for part in pair))


class Target:
    """Does with a request what the handler does before and after it is sent."""

    name = "keys"
    share = 0.3

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._parts = parts(self._loop)
        self._reader = reader_for(self._parts.config.affinity.key_sources)
        self._asks = Asks(1 << 20, True)

    def close(self) -> None:
        self._loop.close()

    build = staticmethod(build)

    def check(self, case: Case) -> None:
        path, body, answer, *flat = case
        headers = list(zip(flat[::2], flat[1::2], strict=True))
        raw_path = path.partition(b"?")[0]
        route = routes.find(raw_path)
        assert route is not None
        request = Request("POST", path, route.label, headers, first_values(headers), body, self._reader)
        recognizer, ledger = self._parts.made.recognizer, self._parts.kept.ledger
        turn = recognizer.recognise(request, route, request.model, routes.response_id(route, raw_path))
        turn.refused += recognizer.repeated(turn, headers)
        look(ledger, request, route, turn)
        asked = put_into(body, route.shape, request, self._asks)
        assert asked.body.replace(TOKENS, b"").replace(USAGE, b"") == body.replace(TOKENS, b"").replace(USAGE, b"")
        recognizer.goes(turn)
        decision = Decision(Reason.RING, "127.0.0.1:9", None, PinChange.BIND if turn.session else PinChange.NONE)
        recognizer.served(turn, decision)
        listener = recognizer.listener(turn, decision, event_stream=answer.startswith((b"data", b"event")))
        if listener is not None:
            for at in range(0, len(answer), 37):
                listener.hear(answer[at : at + 37])
            listener.whole()
