"""Traces in Mooncake's format: what is read, and what is told of lines that cannot be."""

import json
from pathlib import Path

import pytest

from warmroute.simulate.trace import TraceError, read_trace

MADE_UP = Path(__file__).parent.parent / "golden" / "made-up-trace.jsonl"


def line(at: float = 0, prompt: int = 1000, answer: int = 10, ids: object = (1, 2), **more: object) -> bytes:
    said = {"timestamp": at, "input_length": prompt, "output_length": answer, "hash_ids": ids, **more}
    return json.dumps({name: value for name, value in said.items() if value is not None}).encode() + b"\n"


def test_a_line_is_a_request() -> None:
    workload = read_trace([line(1500, 1030, 7, [4, 5, 6])], title="t")
    (request,) = workload.requests
    assert (request.at, request.prompt, request.answer, request.session) == (1.5, 1030, 7, None)
    assert len(request.blocks) == 2  # the third one is not full
    assert (workload.name, workload.block_size, workload.largest) == ("t", 512, 3)


def test_equal_ids_after_equal_ids_are_equal_blocks_and_no_others() -> None:
    one, same, other = read_trace([line(ids=[1, 2], prompt=1024)] * 2 + [line(ids=[3, 2], prompt=1024)]).requests
    assert one.blocks == same.blocks
    assert not set(one.blocks) & set(other.blocks)


def test_requests_are_put_in_order_and_empty_lines_are_none() -> None:
    workload = read_trace([line(2000), b"\n", line(1000), b"  \n"])
    assert [request.at for request in workload.requests] == [1.0, 2.0]


def test_an_answer_has_a_first_token() -> None:
    assert read_trace([line(answer=0)]).requests[0].answer == 1


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (b"{\n", "line 3 is no request: Input data was truncated"),
        (b"\xff\n", "malformed"),
        (b"[]\n", "Expected `object`, got `array`"),
        (line(ids=None), "missing required field `hash_ids`"),
        (line(prompt="many"), "Expected `int`, got `str` - at `$.input_length`"),  # type: ignore[arg-type]
        (line(prompt=0, ids=[]), "Expected `int` >= 1 - at `$.input_length`"),
        (line(answer=-1), "`$.output_length`"),
        (line(at=-1), "`$.timestamp`"),
        (line(prompt=1025), "2 hash_ids, but 1025 tokens are 3 blocks of 512; give --block-size"),
    ],
)
def test_a_bad_line_is_named_and_what_is_wrong_with_it(bad: bytes, told: str) -> None:
    with pytest.raises(TraceError, match=r"^line 3") as caught:
        read_trace([line(), b"\n", bad])
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_empty_trace_is_none() -> None:
    with pytest.raises(TraceError, match="no request"):
        read_trace([b"\n"])


def test_blocks_of_another_size() -> None:
    workload = read_trace([line(prompt=33, ids=[1, 2, 3])], block_size=16)
    assert (workload.block_size, len(workload.requests[0].blocks)) == (16, 2)


def test_the_made_up_trace_has_conversations() -> None:
    with MADE_UP.open("rb") as file:
        workload = read_trace(file)
    assert len(workload.requests) == len(MADE_UP.read_text(encoding="utf-8").splitlines())
    ends = {request.blocks[-1] for request in workload.requests}
    assert any(set(request.blocks[:-1]) & ends for request in workload.requests)
