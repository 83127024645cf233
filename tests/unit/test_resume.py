"""Going on by tokens: the question, the tap that takes the answer's tokens out, and the rest made part of the stream."""

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.messages import Shape
from warmroute.core.resume import Rest, RestEvents, Why, end_of, rest_of
from warmroute.core.tap import TokenTap

GOLDEN = Path(__file__).parent.parent / "golden"
CONTEXT = 8192
DONE = b"data: [DONE]\n\n"
PROMPT = [1, 5, 9]
BODIES: dict[Shape, dict[str, Any]] = {
    Shape.CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 9},
    Shape.COMPLETIONS: {"model": "m", "prompt": "hi", "stream": True, "max_tokens": 9},
}
CHAT, COMPLETIONS = Shape.CHAT, Shape.COMPLETIONS
both = pytest.mark.parametrize("shape", [CHAT, COMPLETIONS])


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def frame(shape: Shape, **others: object) -> dict[str, Any]:
    if shape is CHAT:
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 7, "model": "m", **others}
    return {"id": "cmpl-1", "object": "text_completion", "created": 7, "model": "m", **others}


def role(prompt: list[int] | None = PROMPT, index: int = 0) -> bytes:
    choice = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    return event(frame(CHAT, choices=[choice], prompt_token_ids=prompt, prompt_text=None))


def said(
    shape: Shape, text: str, ids: list[int] | None, reason: str | None = None, *, first: bool = False, index: int = 0
) -> bytes:
    """One event of an answer, as vLLM 0.32 writes it when it is asked for tokens (or, with None, when it is not)."""
    choice: dict[str, Any] = {"index": index}
    if shape is CHAT:
        choice |= {"delta": {"content": text}, "logprobs": None, "finish_reason": reason}
        choice |= {"stop_reason": None} if reason else {}
        choice |= {"token_ids": ids}
    else:
        choice |= {"text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
        choice |= {"prompt_token_ids": PROMPT if first and ids is not None else None, "token_ids": ids}
    return event(frame(shape, choices=[choice]))


def began(shape: Shape, *said_so_far: tuple[str, list[int] | None]) -> TokenTap:
    """A tap that has seen the beginning of a stream."""
    tap = TokenTap()
    if shape is CHAT:
        tap.take(role())
    for number, (text, ids) in enumerate(said_so_far):
        tap.take(said(shape, text, ids, first=number == 0))
    return tap


def asked(rest: Rest | Why) -> dict[str, Any]:
    assert isinstance(rest, Rest)
    found: dict[str, Any] = json.loads(rest.body)
    return found


def datas(stream: bytes) -> list[Any]:
    return [json.loads(e[6:]) for e in stream.split(b"\n\n") if e.startswith(b"data: {")]


def unasked(stream: bytes) -> bytes:
    """What the stream would have been without the question."""
    return re.sub(rb'"((?:prompt_)?token_ids)":\[[0-9,]*\]', rb'"\1":null', stream)


def captured() -> dict[str, bytes]:
    """Golden streams with tokens; those captured without have made-up ones put where vLLM puts them."""
    completions = (GOLDEN / "completions-stream.sse").read_bytes()
    events = completions.replace(b'"prompt_token_ids":null', b'"prompt_token_ids":[3,1,4]', 1).split(b"\n\n")
    with_ids = [e.replace(b'"token_ids":null', b'"token_ids":[%d]' % (40 + i)) for i, e in enumerate(events)]
    with_ids[0] = with_ids[0].replace(b'"prompt_token_ids":[40]', b'"prompt_token_ids":[3,1,4]')
    return {
        "chat": (GOLDEN / "chat-stream-token-ids.sse").read_bytes(),
        "completions": b"\n\n".join(with_ids),
    }


STREAMS = captured()
TOLD = {"chat": [915, 1152, 3797, 1041, 3737, 3716], "completions": [40, 41, 42, 43]}
PROMPTS = {"chat": b"1,1543,201,1510,272,318,267,223,516,2,201,1,756,392,776,201", "completions": b"3,1,4"}


# The tap


@pytest.mark.parametrize("name", STREAMS)
@given(at=st.lists(st.integers(0, 2200), max_size=40).map(sorted))
@example(at=list(range(2200)))
@example(at=[])
def test_however_a_stream_is_cut_the_client_gets_it_as_if_nobody_had_asked(name: str, at: list[int]) -> None:
    stream = STREAMS[name]
    tap = TokenTap()
    edges = [0, *at, len(stream)]
    out = b"".join(tap.take(stream[a:b]) for a, b in pairwise(edges) if a < b)
    assert out == unasked(stream)
    assert tap.tokens() == TOLD[name]
    assert tap.prompt == PROMPTS[name]
    assert (tap.finished, tap.usage_sent, tap.clean) == (True, True, True)


def test_the_golden_chat_is_what_was_captured_without_the_question() -> None:
    """Apart from what was said: the same events with the same keys, null where the tokens were."""

    def keys(stream: bytes) -> list[Any]:
        return [(list(e), [list(c) for c in e["choices"]]) for e in datas(stream)]

    assert keys(unasked(STREAMS["chat"])) == keys((GOLDEN / "chat-stream.sse").read_bytes())
    assert unasked(STREAMS["completions"]) == (GOLDEN / "completions-stream.sse").read_bytes()


@given(st.data())
def test_only_whole_events_reach_the_client_and_count(data: st.DataObject) -> None:
    stream = STREAMS["chat"]
    end = data.draw(st.integers(0, len(stream)))
    tap = TokenTap()
    out = tap.take(stream[:end])
    assert out == unasked(stream[: stream.rfind(b"\n\n", 0, end) + 2] if b"\n\n" in stream[:end] else b"")
    assert tap.tokens() == TOLD["chat"][: max(0, out.count(b"\n\n") - 1)]
    assert tap.clean == (end == 0 or stream[:end].endswith(b"\n\n"))
    tap.drop()
    assert tap.clean


@both
def test_tokens_count_once_their_text_has_come(shape: Shape) -> None:
    tap = began(shape, ("a", [10]), ("", [11]), ("", [12]))
    assert tap.tokens() == [10]
    tap.take(said(shape, "é", [13, 14]))
    assert tap.tokens() == [10, 11, 12, 13, 14]
    tap.take(said(shape, "", [15]))
    assert tap.tokens() == [10, 11, 12, 13, 14]
    assert not tap.finished
    tap.take(said(shape, "", [16], "length"))
    assert tap.finished


@both
def test_what_an_answer_quotes_is_not_taken_for_tokens(shape: Shape) -> None:
    text = '{"token_ids":[1,2],"prompt_token_ids":[3],"finish_reason":"stop","content":"","choices":[],"usage":{}}'
    tap = began(shape, ("a", [10]))
    assert tap.take(said(shape, text, [11])) == said(shape, text, None)
    assert tap.tokens() == [10, 11]
    assert (tap.finished, tap.usage_sent) == (False, False)


def test_every_choice_s_prompt_tokens_are_taken_out() -> None:
    """vLLM tells the prompt's tokens in the first event of each choice."""
    chat, completions = TokenTap(), TokenTap()
    out = chat.take(role() + role(index=1) + said(CHAT, "a", [7])) + chat.take(said(CHAT, "b", [8], index=1))
    assert out == role(None) + role(None, index=1) + said(CHAT, "a", None) + said(CHAT, "b", None, index=1)
    first = [said(COMPLETIONS, "a", [7], first=True), said(COMPLETIONS, "b", [8], first=True, index=1)]
    assert b"".join(map(completions.take, first)) == unasked(b"".join(first))


def test_an_event_stream_with_other_line_ends_is_passed_on_whole() -> None:
    stream = (role(None) + said(CHAT, "a", None) + DONE).replace(b"\n", b"\r\n")
    tap = TokenTap()
    out = tap.take(stream)
    assert out == stream
    assert tap.clean


def test_an_event_too_long_to_hold_is_passed_on() -> None:
    tap = TokenTap()
    huge = b"data: " + b"x" * (9 << 20)
    assert tap.take(huge) == huge
    assert tap.clean


# What is asked of the next backend


@both
def test_the_rest_is_asked_for_by_tokens(shape: Shape) -> None:
    tap = began(shape, ("a", [10]), ("b", [11, 12]), ("", [13]))
    body = {
        **BODIES[shape],
        "temperature": 0.5,
        "min_tokens": 5,
        "user": None,
        "stream_options": {"include_usage": True},
    }
    assert asked(rest_of(shape, body, tap, CONTEXT)) == {
        "model": "m",
        "prompt": [*PROMPT, 10, 11, 12],
        "max_tokens": 6,
        "min_tokens": 2,
        "temperature": 0.5,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
    }


CARRIED: list[tuple[str, object]] = [
    ("model", "other"),
    ("user", "u"),
    ("priority", 3),
    ("cache_salt", "s"),
    ("vllm_xargs", {"a": 1}),
    ("stream_options", {"include_usage": True, "continuous_usage_stats": True}),
    ("temperature", 0),
    ("temperature", 1.5),
    ("top_p", 0.5),
    ("top_k", 4),
    ("min_p", 0.1),
    ("repetition_penalty", 1.3),
    ("ignore_eos", True),
    ("stop_token_ids", [5]),
    ("skip_special_tokens", False),
    ("spaces_between_special_tokens", False),
    ("logit_bias", {"5": 1.0}),
    ("allowed_token_ids", [1, 2, 3]),
]
LEFT_OUT: list[tuple[str, object]] = [
    ("chat_template", "{{ messages }}"),
    ("chat_template_kwargs", {"enable_thinking": False}),
    ("add_generation_prompt", True),
    ("continue_final_message", False),
    ("documents", [{"text": "d"}]),
    ("add_special_tokens", True),
    ("reasoning_effort", "low"),
    ("metadata", {"a": "b"}),
    ("store", False),
    ("prompt_cache_key", "k"),
    ("n", 1),
    ("echo", False),
    ("suffix", ""),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("presence_penalty", 0),
    ("frequency_penalty", 0.0),
    ("stop", []),
    ("stop", ""),
    ("tools", []),
    ("tool_choice", "none"),
    ("response_format", {"type": "text"}),
    ("use_beam_search", False),
    ("seed", None),
    ("tools", None),
    ("stop", None),
    ("anything", None),
    # The prompt that was told is the one already cut short; the rest's own must keep all its tokens.
    ("truncate_prompt_tokens", 4),
]
REFUSED: list[tuple[str, object]] = [
    ("n", 2),
    ("best_of", 2),
    ("echo", True),
    ("suffix", "end"),
    ("logprobs", True),
    ("logprobs", 0),
    ("top_logprobs", 2),
    ("prompt_logprobs", 0),
    ("presence_penalty", 0.1),
    ("frequency_penalty", -0.1),
    ("stop", "x"),
    ("stop", ["x"]),
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),
    ("response_format", {"type": "json_object"}),
    ("response_format", "text"),
    ("use_beam_search", True),
    ("seed", 0),
    ("structured_outputs", {"regex": "a"}),
    ("guided_json", {}),
    ("bad_words", ["x"]),
    ("logits_processors", []),
    ("prompt_embeds", "AAAA"),
    ("kv_transfer_params", {}),
    ("anything_new", 1),
    ("anything_new", False),
]


@both
@pytest.mark.parametrize(("name", "value"), CARRIED, ids=str)
def test_fields_that_mean_the_same_for_the_rest_are_carried(shape: Shape, name: str, value: object) -> None:
    tap = began(shape, ("a", [10]))
    assert asked(rest_of(shape, {**BODIES[shape], name: value}, tap, CONTEXT))[name] == value


@both
@pytest.mark.parametrize(("name", "value"), LEFT_OUT, ids=str)
def test_fields_that_have_had_their_effect_are_left_out(shape: Shape, name: str, value: object) -> None:
    tap = began(shape, ("a", [10]))
    plain = asked(rest_of(shape, BODIES[shape], began(shape, ("a", [10])), CONTEXT))
    assert asked(rest_of(shape, {**BODIES[shape], name: value}, tap, CONTEXT)) == plain


@both
@pytest.mark.parametrize(("name", "value"), REFUSED, ids=str)
def test_fields_that_cannot_be_carried_exactly_end_it(shape: Shape, name: str, value: object) -> None:
    assert rest_of(shape, {**BODIES[shape], name: value}, began(shape, ("a", [10])), CONTEXT) is Why.FIELD


@pytest.mark.parametrize("part", ["image_url", "input_audio", "video_url", "file"])
def test_media_ends_it_and_text_in_parts_does_not(part: str) -> None:
    def body(kind: str) -> dict[str, Any]:
        return {**BODIES[CHAT], "messages": [{"role": "user", "content": [{"type": "text"}, {"type": kind}]}]}

    assert rest_of(CHAT, body(part), began(CHAT, ("a", [10])), CONTEXT) is Why.FIELD
    assert isinstance(rest_of(CHAT, body("text"), began(CHAT, ("a", [10])), CONTEXT), Rest)


@pytest.mark.parametrize("prompt", [["a", "b"], [[1, 2], [3]]], ids=["texts", "lists of tokens"])
def test_several_prompts_in_one_request_end_it(prompt: object) -> None:
    """Their answers come mixed in one stream, and nothing tells a tap whose tokens are whose."""
    tap = TokenTap()
    tap.take(said(COMPLETIONS, "a", [7], first=True) + said(COMPLETIONS, "b", [8], first=True, index=1))
    assert isinstance(rest_of(COMPLETIONS, {**BODIES[COMPLETIONS], "prompt": prompt}, tap, CONTEXT), Why)


@pytest.mark.parametrize("prompt", ["a", ["a"], [1, 2], [[1, 2]]], ids=str)
def test_one_prompt_in_any_form_can_be_gone_on_with(prompt: object) -> None:
    rest = rest_of(COMPLETIONS, {**BODIES[COMPLETIONS], "prompt": prompt}, began(COMPLETIONS, ("a", [10])), CONTEXT)
    assert asked(rest)["prompt"] == [*PROMPT, 10]


@pytest.mark.parametrize("shape", [Shape.MESSAGES, Shape.RESPONSES, None])
def test_other_protocols_tell_no_tokens(shape: Shape | None) -> None:
    assert rest_of(shape, BODIES[CHAT], began(CHAT, ("a", [10])), CONTEXT) is Why.PROTOCOL


@both
def test_without_tokens_there_is_no_rest(shape: Shape) -> None:
    assert rest_of(shape, BODIES[shape], None, CONTEXT) is Why.TOKENS_UNKNOWN
    assert rest_of(shape, BODIES[shape], TokenTap(), CONTEXT) is Why.TOKENS_UNKNOWN
    silent = TokenTap()
    silent.take((role(None) if shape is CHAT else b"") + said(shape, "a", None))
    assert rest_of(shape, BODIES[shape], silent, CONTEXT) is Why.TOKENS_UNKNOWN


@both
def test_text_whose_tokens_were_not_told_ends_it(shape: Shape) -> None:
    """vLLM hides the tokens of an answer whose reasoning is not shown, yet tells the prompt's."""
    tap = began(shape, ("a", [10]), ("b", None), ("c", [12]))
    assert rest_of(shape, BODIES[shape], tap, CONTEXT) is Why.TOKENS_UNKNOWN
    hidden = began(CHAT, ("a", None), ("b", None))
    assert rest_of(CHAT, {**BODIES[CHAT], "include_reasoning": False}, hidden, CONTEXT) is Why.TOKENS_UNKNOWN


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_a_thought_under_way_ends_it_and_one_that_is_over_does_not(name: str) -> None:
    tap = began(CHAT)
    thought = {"index": 0, "delta": {name: "hm"}, "finish_reason": None, "token_ids": [10]}
    tap.take(event(frame(CHAT, choices=[thought])))
    assert rest_of(CHAT, BODIES[CHAT], tap, CONTEXT) is Why.REASONING
    tap.take(said(CHAT, "", [11]))
    assert rest_of(CHAT, BODIES[CHAT], tap, CONTEXT) is Why.REASONING
    tap.take(said(CHAT, "a", [12]))
    assert asked(rest_of(CHAT, BODIES[CHAT], tap, CONTEXT))["prompt"] == [*PROMPT, 10, 11, 12]


@pytest.mark.parametrize(
    ("shape", "lengths", "context", "most"),
    [
        (CHAT, {"max_tokens": 9}, None, 7),
        (CHAT, {"max_completion_tokens": 5, "max_tokens": 9}, None, 3),
        (CHAT, {"max_tokens": None}, 100, 95),
        (CHAT, {}, 100, 95),
        (CHAT, {}, None, None),
        (CHAT, {}, 5, None),
        (COMPLETIONS, {}, 100, 14),
        (COMPLETIONS, {"max_tokens": 3}, 100, 1),
        (COMPLETIONS, {"max_tokens": 2}, 100, None),
        (COMPLETIONS, {"max_tokens": "9"}, 100, None),
    ],
)
def test_how_much_may_still_come(
    shape: Shape, lengths: dict[str, object], context: int | None, most: int | None
) -> None:
    body = {name: value for name, value in BODIES[shape].items() if name != "max_tokens"} | lengths
    rest = rest_of(shape, body, began(shape, ("a", [10]), ("b", [11])), context)
    assert (rest if isinstance(rest, Why) else asked(rest)["max_tokens"]) == (most or Why.LENGTH)


def test_a_comment_before_the_first_event_is_no_first_event() -> None:
    tap = TokenTap()
    tap.take(b": keep-alive\n\n" + role() + said(CHAT, "a", [10]))
    assert asked(rest_of(CHAT, BODIES[CHAT], tap, CONTEXT))["prompt"] == [*PROMPT, 10]
    alone = TokenTap()
    alone.take(b": keep-alive\n\n")
    alone.take(role() + said(CHAT, "a", [10]))
    assert alone.tokens() == [10]
    assert isinstance(rest_of(CHAT, BODIES[CHAT], alone, CONTEXT), Rest)


# The rest made part of the stream


def rest_event(text: str, ids: list[int], reason: str | None = None, *, first: bool = False, **others: object) -> bytes:
    """An event of the continuation; its prompt is the longer one, its id another's."""
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    choice |= {"prompt_token_ids": [*PROMPT, 10] if first else None, "token_ids": ids}
    return event(
        {"id": "cmpl-9", "object": "text_completion", "created": 99, "model": "m", "choices": [choice], **others}
    )


def counted(prompt: int, completion: int, cached: int | None = None) -> dict[str, Any]:
    usage: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    return usage if cached is None else {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


def usage_event(usage: dict[str, Any]) -> bytes:
    return event(
        {"id": "cmpl-9", "object": "text_completion", "created": 99, "model": "m", "choices": [], "usage": usage}
    )


def resumed(shape: Shape) -> tuple[TokenTap, RestEvents]:
    tap = began(shape, ("a", [10]))
    rest = rest_of(shape, BODIES[shape], tap, CONTEXT)
    assert isinstance(rest, Rest)
    return tap, rest.events


CONTINUATION = [
    rest_event("", [20], first=True),
    rest_event("é", [21]),
    b": keep-alive\n\n",
    rest_event("", [22]),
    rest_event("b\n", [23, 24]),
    rest_event("", [2], "stop", system_fingerprint="f"),
    usage_event(counted(4, 6, 4)),
    DONE,
]


@both
@given(at=st.lists(st.integers(0, 1700), max_size=20).map(sorted))
def test_the_rest_s_events_become_the_stream_s_own(shape: Shape, at: list[int]) -> None:
    stream = b"".join(CONTINUATION)
    tap, events = resumed(shape)
    edges = [0, *at, len(stream)]
    out = b"".join(events.feed(stream[a:b]) for a, b in pairwise(edges) if a < b)
    assert out.count(DONE) == 1
    assert out.endswith(DONE)
    assert events.done
    assert out.count(b": keep-alive\n\n") == 1
    shown = datas(out)
    begun = frame(shape)
    assert all({name: e[name] for name in begun} == begun for e in shown)
    choices = [choice for e in shown for choice in e["choices"]]
    assert "".join(text_of(shape, choices)) == "éb\n"
    assert all(c["index"] == 0 and c["token_ids"] is None and "role" not in c.get("delta", {}) for c in choices)
    assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["stop"]
    assert [e["usage"] for e in shown if "usage" in e] == [counted(3, 7, 3)]
    assert shown[-1]["choices"] == []
    assert (tap.tokens(), tap.finished, events.tokens) == ([10, 20, 21, 22, 23, 24], True, 6)


def text_of(shape: Shape, choices: Iterable[dict[str, Any]]) -> Iterable[str]:
    return (c["delta"]["content"] if shape is CHAT else c["text"] for c in choices)


@both
def test_with_running_usage_every_event_counts_the_whole_answer(shape: Shape) -> None:
    _, events = resumed(shape)
    out = events.feed(rest_event("b", [20], usage=counted(4, 1)) + rest_event("c", [21], "length", usage=counted(4, 2)))
    assert [e["usage"] for e in datas(out)] == [counted(3, 2), counted(3, 3)]
    assert [len(e["choices"]) for e in datas(out)] == [1, 1]


@both
def test_usage_without_figures_is_no_failure(shape: Shape) -> None:
    _, events = resumed(shape)
    none = {"prompt_tokens": 4, "total_tokens": 4, "completion_tokens": None, "prompt_tokens_details": None}
    (shown,) = datas(events.feed(usage_event(none)))
    assert shown["usage"] == {**none, "prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}
    assert datas(events.feed(rest_event("b", [20], usage=None)))[0].get("usage") is None


GARBAGE: list[bytes] = [
    event({"error": {"message": "no", "code": 500}}),
    event({"error": "no"}),
    b"data: {\n\n",
    b"data: hello\n\n",
    b"data: \xff\xfe\n\n",
    event({"id": "x"}),
    event({"choices": None}),
    event({"choices": {}}),
    event({"choices": "ab"}),
    event({"choices": [1]}),
    event({"choices": [None]}),
    event({"choices": [{"index": 0, "text": 5}]}),
    event({"choices": [{"index": 0, "text": "b", "token_ids": 7}]}),
    event({"choices": [], "usage": {"completion_tokens": "many"}}),
    event([]),
    event(5),
    event(None),
    event("x"),
    b"data: " + b"[" * 100_000 + b"\n\n",
]


@both
@pytest.mark.parametrize("data", GARBAGE, ids=lambda data: data[6:40].decode("latin-1"))
def test_what_is_no_stream_is_refused_and_crashes_nothing(shape: Shape, data: bytes) -> None:
    _, events = resumed(shape)
    assert datas(events.feed(rest_event("b", [20])))
    with pytest.raises(ValueError):
        events.feed(data)
    assert not events.done


@both
@given(data=st.binary(max_size=60))
@example(data=b"5")
@example(data=b"{}")
def test_no_bytes_raise_anything_else(shape: Shape, data: bytes) -> None:
    _, events = resumed(shape)
    with suppress(ValueError):
        events.feed(b"data: " + data + b"\n\n")
    assert not events.done or b"[DONE]" in data


@both
def test_a_second_cut_is_gone_on_with_by_all_tokens_so_far(shape: Shape) -> None:
    tap = began(shape, ("a", [10]), ("", [11]))
    first = rest_of(shape, BODIES[shape], tap, CONTEXT)
    assert isinstance(first, Rest)
    first.events.feed(rest_event("", [11], first=True) + rest_event("é", [12]) + rest_event("", [13]) + b"data: {")
    second = rest_of(shape, BODIES[shape], tap, CONTEXT)
    assert isinstance(second, Rest)
    assert asked(second) == {**asked(second), "prompt": [*PROMPT, 10, 11, 12], "max_tokens": 6}
    out = second.events.feed(rest_event("b", [13, 14], "length") + usage_event(counted(6, 2)) + DONE)
    assert [e["usage"] for e in datas(out) if "usage" in e] == [counted(3, 5)]
    assert tap.tokens() == [10, 11, 12, 13, 14]


# Only the end is missing

USAGE_ASKED = {"stream_options": {"include_usage": True}}


@both
def test_after_the_last_token_only_the_end_is_missing(shape: Shape) -> None:
    tap = began(shape, ("a", [10]), ("", [11]))
    assert end_of(shape, BODIES[shape], tap) is None
    tap.take(said(shape, "", [12], "length"))
    assert end_of(shape, BODIES[shape], tap) == DONE
    assert end_of(shape, {**BODIES[shape], "stream_options": {"include_usage": False}}, tap) == DONE
    assert end_of(shape, {**BODIES[shape], "stream_options": None}, tap) == DONE
    end = end_of(shape, {**BODIES[shape], **USAGE_ASKED}, tap)
    assert end == event(frame(shape, choices=[], usage=counted(3, 3))) + DONE
    tap.take(event(frame(shape, choices=[], usage=counted(3, 3))))
    assert end_of(shape, {**BODIES[shape], **USAGE_ASKED}, tap) == DONE


@both
def test_the_end_of_a_continuation_is_an_end_too(shape: Shape) -> None:
    body = {**BODIES[shape], **USAGE_ASKED}
    tap, events = resumed(shape)
    events.feed(rest_event("b", [20], "stop"))
    assert end_of(shape, body, tap) == event(frame(shape, choices=[], usage=counted(3, 2))) + DONE
    events.feed(usage_event(counted(4, 1)))
    assert end_of(shape, body, tap) == DONE


@both
def test_no_end_is_made_up_for_what_is_not_known(shape: Shape) -> None:
    assert end_of(shape, BODIES[shape], None) is None
    assert end_of(shape, BODIES[shape], TokenTap()) is None
    silent = TokenTap()
    silent.take((role(None) if shape is CHAT else b"") + said(shape, "a", None, "stop"))
    assert end_of(shape, BODIES[shape], silent) is None


def test_reprs_tell_how_far_it_has_come() -> None:
    tap, events = resumed(CHAT)
    assert "1" in repr(tap)
    events.feed(rest_event("b", [20], "length") + DONE)
    assert repr(events) == "<RestEvents 1 tokens done>"


def test_an_event_alone_is_taken_as_one_among_others() -> None:
    """Most events come alone and are looked at in a shorter way, which must come to the same."""
    tricky = [
        b'{"choices":[{"index":0,"delta":{"content":""},"finish_reason":null,"token_ids":[7]}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[]}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":null}]}',
        b'{"choices":[{"index":0,"delta":{"content":"\\"token_ids\\":[1]"},"finish_reason":null,"token_ids":[1,2]}]}',
        b'{"choices":[{"index":0,"delta":{"reasoning":"a"},"finish_reason":null,"token_ids":[3]}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null,"token_ids":[3]}],"prompt_token_ids":[1]}',
        b'{"choices":[{"index":0,"text":"b","finish_reason":null,"token_ids":[4]}]}',
        b'{"choices":[{"index":0,"text":"","finish_reason":"stop","token_ids":[5]}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"length","token_ids":[6]}]}',
        b'{"choices":[{"token_ids":[8],"index":0,"text":"b","finish_reason":null}]}',
        b'{"choices":[],"usage":{"prompt_tokens":1}}',
        b"[DONE]",
    ]
    golden = [
        event.removeprefix(b"data: ") for event in (GOLDEN / "chat-stream-token-ids.sse").read_bytes().split(b"\n\n")
    ]
    for events in (golden[1:-1], tricky, tricky[::-1], *([event] for event in tricky)):
        alone, together = TokenTap(), TokenTap()
        for tap in (alone, together):
            tap.take(b"data: " + golden[0] + b"\n\n")
        whole = [b"data: " + event + b"\n\n" for event in events]
        got = b"".join([alone.take(event) for event in whole])
        assert got == together.take(b": so that no event is alone\n\n" + b"".join(whole)).partition(b"\n\n")[2]
        for name in ("ids", "flushed", "lost", "reasoning", "finished", "usage_sent"):
            assert getattr(alone, name) == getattr(together, name), (name, events)


# Backends that send what is no stream of vLLM's


@pytest.mark.parametrize("mark", [b'"token_ids":[', b'"prompt_token_ids":['])
def test_a_list_that_does_not_end_is_passed_on_and_ends_nothing_else(mark: bytes) -> None:
    """Without its end it could be looked for and for, and the router with it."""
    tap = TokenTap()
    first = b'data: {"prompt_token_ids":[1],"x":1}'
    broken = b"data: {" + mark + b"1,2"
    assert tap.take(first + b"\n\n" + broken + b"\n\n") == first.replace(b"[1]", b"null") + b"\n\n" + broken + b"\n\n"
    assert TokenTap().take(b"data: {" + mark + b"\n\n") == b"data: {" + mark + b"\n\n"


@pytest.mark.parametrize(
    "first",
    [
        b'{"prompt_token_ids":["x"]}',
        b'{"prompt_token_ids":[1],',
        b'["prompt_token_ids":[1]]',
        b"[" * 99_999 + b'"prompt_token_ids":[1]',
    ],
)
@pytest.mark.parametrize("ids", [b"3", b'"x"', b"9" * 5000, b"1.5"], ids=["number", "text", "long", "fraction"])
def test_what_is_no_stream_is_not_gone_on_with(first: bytes, ids: bytes) -> None:
    tap = TokenTap()
    tap.take(b"data: " + first + b"\n\n")
    tap.take(b'data: {"choices":[{"text":"a","finish_reason":"stop","token_ids":[' + ids + b"]}]}\n\n")
    body = {"model": "m", "prompt": "a", "max_tokens": 9, "stream_options": {"include_usage": True}}
    assert rest_of(Shape.COMPLETIONS, body, tap, None) is Why.TOKENS_UNKNOWN
    assert end_of(Shape.COMPLETIONS, body, tap) is None
