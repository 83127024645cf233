"""An answer on its way: any bytes of a backend, in any pieces, through gate, taps and filters, and after a death."""

from pathlib import Path
from typing import Any

import msgspec

from warmroute.core.messages import Shape
from warmroute.core.relay import Relay
from warmroute.core.resume import Rest, end_of, rest_of
from warmroute.core.tap import TokenTap
from warmroute.core.unasked import UsageFilter

from .pieces import Case, Dice

_GOLDEN = Path(__file__).parent.parent / "golden"
_STREAMS = [path.read_bytes() for path in sorted(_GOLDEN.glob("*.sse"))]
_SHORT = [
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}],"prompt_token_ids":[1,2]}\n\n'
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[3]}]}\n\n'
    b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"b"},'
    b'"finish_reason":"stop","token_ids":[4,5]}]}\n\n'
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":2,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":1}}}\n\ndata: [DONE]\n\n',
    b'data: {"id":"c","choices":[{"index":0,"text":"a","finish_reason":null,"prompt_token_ids":[1],'
    b'"token_ids":[2]}]}\n\ndata: [DONE]\n\n',
    b'event: message_start\ndata: {"type":"message_start",'
    b'"message":{"usage":{"input_tokens":1}}}\n\nevent: ping\ndata: {"type":"ping"}\n\n',
    b'data: {"type":"response.output_text.delta","sequence_number":4,"delta":"a"}\n\n: keep-alive\n\n',
    b'{"id":"c","choices":[{"message":{"content":"a"}}],"usage":{"prompt_tokens":2,"completion_tokens":3}}',
]
_WORDS = [
    b"data: ",
    b"data:",
    b"event: ping\n",
    b": comment\n",
    b"\n",
    b"\n\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\r",
    b"[DONE]",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b'"',
    b'"prompt_token_ids":[',
    b'"token_ids":[',
    b'"token_ids":[1,"x"]',
    b'"token_ids":[',
    b'"token_ids":null',
    b'"finish_reason":"',
    b'"finish_reason":null',
    b'"usage":{',
    b'"choices":[]',
    b'"choices":null',
    b'"content":"',
    b'"text":"',
    b'"reasoning":"x"',
    b'"delta":[]',
    b'"prompt_tokens":',
    b'"cached_tokens":',
    b'"sequence_number": ',
    b"\\ud800",
    b"\xff",
    b"\xef\xbb\xbf",
    b"[" * 3000,
    b'{"a":' * 2000,
    b"null",
]
_BODIES: list[dict[str, Any]] = [
    {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 50},
    {"model": "m", "prompt": "a"},
    {"model": "m", "prompt": [1], "max_tokens": 9, "stream_options": {"include_usage": True}, "min_tokens": 5},
]


def build(dice: Dice) -> Case:
    """Three bytes of choices, and then the answer's pieces."""
    chosen = bytes((dice.below(8), dice.below(3), dice.below(7)))
    return (chosen, *dice.cut(dice.text(dice.pick((_SHORT, _SHORT, _STREAMS)), _WORDS)))


class Target:
    """Relays an answer, and at some place lets its backend die."""

    name = "relay"
    share = 0.3

    def close(self) -> None:
        pass

    build = staticmethod(build)

    def check(self, case: Case) -> None:
        (options, body, dies), *pieces = case
        told = b"".join(pieces)
        relay, came = self._through(options, pieces)
        if not options & 6:
            assert came == told
        relay, _ = self._through(options, pieces[:dies], dead=True)
        self._go_on(relay, body, told)

    @staticmethod
    def _through(options: int, pieces: list[bytes], dead: bool = False) -> tuple[Relay, bytes]:
        events = options & 1
        relay = Relay(200, {b"content-type": b"text/event-stream" if events else b"application/json"})
        if events and options & 2:
            relay.tap = TokenTap()
        if events and options & 4:
            relay.hides = UsageFilter()
        out = b"".join([relay.feed(piece) for piece in pieces])
        out += relay.flush() if dead else relay.finish()
        relay.usage()
        assert relay.next_number >= 0
        assert isinstance(relay.ends_on_blank_line, bool)
        return relay, out

    @staticmethod
    def _go_on(relay: Relay, number: int, again: bytes) -> None:
        """As the resumer does; what goes on may be no stream, which is a ValueError and told as the backend's fault."""
        shape, body = (Shape.CHAT, Shape.COMPLETIONS, Shape.COMPLETIONS)[number], _BODIES[number]
        tap = relay.tap
        end_of(shape, body, tap)
        if tap is None:
            return
        tap.counted()
        if not isinstance(rest_of(shape, body, tap, 8192, usage=True), Rest):
            return
        tap.cut_back(min(tap.unsure, 1))
        rest = rest_of(shape, body, tap, 8192, usage=True)
        if isinstance(rest, Rest):
            assert msgspec.json.decode(rest.body)["stream"] is True
            try:
                rest.events.feed(again)
            except ValueError:
                return
