"""Usage: the token counts of every protocol, and nothing that only looks like them."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.usage import NO_USAGE, Usage, usage_from

GOLDEN = Path(__file__).parent.parent / "golden"


@pytest.mark.parametrize(
    ("file", "usage"),
    [
        ("chat-stream.sse", Usage(21, 0, 6)),
        ("chat-stream-token-ids.sse", Usage(16, 0, 6)),
        ("completions-stream.sse", Usage(11, 0, 4)),
        ("messages-stream.sse", Usage(30, 0, 5)),
        ("responses-stream.sse", Usage(21, 0, 5)),
        ("messages.json", Usage(30, 0, 5)),
        ("chat-stream-n2.sse", NO_USAGE),
    ],
)
def test_golden_answers(file: str, usage: Usage) -> None:
    assert usage_from((GOLDEN / file).read_bytes()) == usage


@pytest.mark.parametrize(
    ("given_usage", "usage"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(10, None, 2)),
        (
            {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}},
            Usage(10, 8, 2),
        ),
        ({"prompt_tokens": 10, "prompt_tokens_details": None}, Usage(10, None, None)),
        ({"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}}, Usage(10, 8, 2)),
        ({"input_tokens": 2, "output_tokens": 1}, Usage(2, None, 1)),
        ({"input_tokens": 2, "cache_read_input_tokens": 8, "output_tokens": 1}, Usage(10, 8, 1)),
        (
            {"input_tokens": 2, "cache_read_input_tokens": 8, "cache_creation_input_tokens": 5, "output_tokens": 1},
            Usage(15, 8, 1),
        ),
        ({"input_tokens": 2, "cache_read_input_tokens": None, "output_tokens": 1}, Usage(2, None, 1)),
        ({"cache_read_input_tokens": 8}, Usage(None, 8, None)),
        ({"prompt_tokens": 10, "total_tokens": 10}, Usage(10, None, None)),
        ({}, NO_USAGE),
        ({"prompt_tokens": "10", "completion_tokens": -1}, NO_USAGE),
        ({"prompt_tokens": True, "completion_tokens": 1.5}, NO_USAGE),
        ({"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": "8"}}, Usage(1, None, None)),
        ({"prompt_tokens": 1, "prompt_tokens_details": [8]}, Usage(1, None, None)),
    ],
    ids=[
        "openai",
        "openai with cached tokens",
        "details are null",
        "responses",
        "anthropic without cache",
        "anthropic: input leaves out what was cached",
        "anthropic: nor what was written",
        "anthropic: null",
        "anthropic: cached alone",
        "embeddings",
        "empty",
        "not numbers",
        "not whole numbers",
        "cached is text",
        "details are a list",
    ],
)
@pytest.mark.parametrize("indent", [None, 2], ids=["compact", "pretty"])
def test_usage_of_one_body(given_usage: dict[str, object], usage: Usage, indent: int | None) -> None:
    assert usage_from(json.dumps({"id": "x", "usage": given_usage}, indent=indent).encode()) == usage


def test_the_last_usage_of_a_stream_counts() -> None:
    tail = b"".join(b'data: {"usage":{"prompt_tokens":5,"completion_tokens":%d}}\n\n' % i for i in range(4))
    assert usage_from(tail + b"data: [DONE]\n\n") == Usage(5, None, 3)


def test_a_null_usage_after_a_real_one_hides_nothing() -> None:
    tail = b'data: {"usage":{"prompt_tokens":5}}\n\ndata: {"usage":null}\n\ndata: [DONE]\n\n'
    assert usage_from(tail) == Usage(prompt=5)


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        b"data: [DONE]\n\n",
        b'{"usage":null}',
        b'{"usage":7}',
        b'{"usage":[{"prompt_tokens":5}]}',
        b'{"usage":{"prompt_tokens":5',
        b'{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":1}',
        b'{"usage":{',
        b'{"usage":',
        b'{"usage":{"prompt_tokens":' + b"9" * 5_000 + b"}}",
        b'{"usage":{"a":' + b"[" * 100_000,
        b'{"usage":{\xff}}',
    ],
    ids=[
        "nothing",
        "end alone",
        "null",
        "a number",
        "a list",
        "cut in a number",
        "cut after details",
        "cut at once",
        "cut at the colon",
        "an endless number",
        "endless nesting",
        "no text",
    ],
)
def test_no_usage(tail: bytes) -> None:
    assert usage_from(tail) == NO_USAGE


LOOKS_LIKE_USAGE = '"usage":{"prompt_tokens":666,"completion_tokens":666}'
AS_JSON_TEXT = '{"usage":{"prompt_tokens":666,"completion_tokens":666}}'


@pytest.mark.parametrize(
    "text", [LOOKS_LIKE_USAGE, AS_JSON_TEXT, "\\" + LOOKS_LIKE_USAGE, "\\\\" + AS_JSON_TEXT], ids=ascii
)
def test_text_of_an_answer_that_looks_like_usage_is_not_taken(text: str) -> None:
    said = json.dumps({"choices": [{"delta": {"content": text}}]}).encode()
    assert usage_from(b"data: " + said + b"\n\n") == NO_USAGE
    real = b'data: {"usage":{"prompt_tokens":5}}\n\n'
    assert usage_from(real + b"data: " + said + b"\n\n") == Usage(prompt=5)


@given(st.text(), st.text())
@example(AS_JSON_TEXT, LOOKS_LIKE_USAGE)
@example("\\", '"usage":{}')
def test_no_text_of_an_answer_is_ever_taken(before: str, after: str) -> None:
    body = {"content": before, "usage": {"prompt_tokens": 5}, "user": after}
    assert usage_from(json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")) == Usage(prompt=5)


@pytest.mark.parametrize("after", [b"", b',"usage":null', b',"usage":7}'], ids=ascii)
def test_a_tail_may_begin_with_the_very_word(after: bytes) -> None:
    assert usage_from(b'"usage":{"prompt_tokens":5}' + after) == Usage(prompt=5)


@given(st.integers(0, 2_000))
def test_a_tail_that_begins_in_the_middle_of_an_answer_is_read_all_the_same(start: int) -> None:
    stream = (GOLDEN / "chat-stream.sse").read_bytes()
    usage = usage_from(stream[start:])
    assert usage == (Usage(21, 0, 6) if start <= stream.rindex(b'"usage":') else NO_USAGE)


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_no_tail_raises(before: bytes, after: bytes) -> None:
    assert isinstance(usage_from(before + b'"usage":' + after), Usage)
    assert isinstance(usage_from(before + b'"usage":{' + after + b"}"), Usage)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
fields = st.sampled_from(
    [
        "prompt_tokens",
        "completion_tokens",
        "input_tokens",
        "output_tokens",
        "prompt_tokens_details",
        "input_tokens_details",
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
    ]
)


@given(st.dictionaries(fields, json_values | st.fixed_dictionaries({"cached_tokens": json_values})))
def test_no_object_raises_and_counts_are_never_negative(usage: dict[str, object]) -> None:
    found = usage_from(json.dumps({"usage": usage}).encode())
    assert all(count is None or count >= 0 for count in (found.prompt, found.cached, found.completion))


@pytest.mark.parametrize("digits", [14, 400, 4000, 5000])
def test_counts_beyond_all_measure_are_none(digits: int) -> None:
    """Sums of them would not fit into a float, and no metric could be shown any more."""
    tail = b'{"usage":{"prompt_tokens":%s,"completion_tokens":2}}' % (b"9" * digits)
    assert usage_from(tail).prompt is None
    assert usage_from(b'{"usage":{"input_tokens":%s,"cache_read_input_tokens":1}}' % (b"9" * digits)).prompt is None


@given(
    st.tuples(*[st.integers(0, 10**13)] * 3, st.none() | st.integers(0, 10**13)),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.sampled_from([{}, {"created_cache_tokens": 3}, {"of_the_future": 1}, {"cached_tokens_of_old": 2}]),
    st.sampled_from([{}, {"completion_tokens_details": None}, {"cache_read_input_tokens": 5}]),
    st.sampled_from([b"", b'"usage":null,', b'"usage":{"prompt_tokens":1,']),
)
def test_vllms_own_way_to_write_it_is_read_as_any_other(
    counts: tuple[int, int, int, int | None],
    separators: tuple[str, str],
    details: dict[str, int],
    more: dict[str, int | None],
    before: bytes,
) -> None:
    prompt, total, completion, cached = counts
    known = None if cached is None else {"cached_tokens": cached, **details}
    told = {
        "prompt_tokens": prompt,
        "total_tokens": total,
        "completion_tokens": completion,
        "prompt_tokens_details": known,
    }
    written = json.dumps({"usage": told | more}, separators=separators).encode()
    other_order = json.dumps({"usage": dict(reversed((told | more).items()))}, separators=separators).encode()
    assert usage_from(before + written) == usage_from(before + other_order)
    if not more:
        most = 1 << 40
        expected = [None if count is None or count > most else count for count in (prompt, cached, completion)]
        assert usage_from(written) == Usage(*expected)


@pytest.mark.parametrize("wrong", [b"007", b"1.5", b"-1", b"1e3", b'"5"'])
def test_what_is_no_count_is_none_in_vllms_own_way_too(wrong: bytes) -> None:
    told = b'{"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":%b,"prompt_tokens_details":null}}'
    assert usage_from(told % b"2") == Usage(5, None, 2)
    assert usage_from(told % wrong) == (NO_USAGE if wrong == b"007" else Usage(5, None, None))
