"""The access log: one line a request, whatever is in it, gathered and written together."""

import asyncio
import io
import json

import pytest

from warmroute.core.model import Failure, Phase
from warmroute.core.usage import Usage
from warmroute.observe.log import AccessLog, as_json, as_text
from warmroute.observe.record import RequestRecord


def record(**changes: object) -> RequestRecord:
    made = RequestRecord(
        id="r1",
        method="POST",
        path="/v1/chat/completions",
        started=100.0,
        time=1_795_970_918.1234,
        status=200,
        backend="a:8000",
        decision="pin_hit",
        key_source="x-session-id",
        session="0123456789ab",
        attempts=1,
        connected_s=0.0012345678,
        first_byte_s=0.25,
        duration_s=1.5,
        bytes_in=10,
        bytes_out=2000,
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


REFUSED = Failure(Phase.CONNECT, "refused", "connection refused by a:8000")


def test_json_has_every_field_in_a_fixed_order() -> None:
    assert json.loads(as_json(record())) == {
        "time": 1_795_970_918.123,
        "id": "r1",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "backend": "a:8000",
        "engine": None,
        "decision": "pin_hit",
        "key_source": "x-session-id",
        "session": "0123456789ab",
        "attempts": 1,
        "failures": [],
        "prompt_tokens": None,
        "cached_tokens": None,
        "completion_tokens": None,
        "connect_s": 0.001235,
        "ttfb_s": 0.25,
        "duration_s": 1.5,
        "bytes_in": 10,
        "bytes_out": 2000,
        "aborted": False,
        "resumed": None,
        "error": None,
        "tenant": None,
    }


def test_json_of_a_request_that_nobody_answered() -> None:
    line = json.loads(as_json(RequestRecord("r1", "POST", "/v1/completions", 0.0, 1.0, status=503)))
    assert (line["backend"], line["ttfb_s"], line["connect_s"], line["decision"]) == (None, None, None, "none")


def test_json_tells_usage_and_failures() -> None:
    line = json.loads(as_json(record(usage=Usage(30, 20, 5), failures=[("a:8000", REFUSED)], attempts=2)))
    assert (line["prompt_tokens"], line["cached_tokens"], line["completion_tokens"]) == (30, 20, 5)
    assert line["failures"] == ["a:8000: connection refused by a:8000"]


@pytest.mark.parametrize("odd", ["a\nb", "a\r\nb", 'a"b', "a\x1b[31mb", "a\x00b", "\u2028", "é😀"], ids=ascii)
def test_odd_characters_stay_on_one_line_of_json(odd: str) -> None:
    failure = Failure(Phase.HEAD, "garbage", odd)
    line = as_json(record(backend=odd, method=odd, failures=[(odd, failure)]))
    assert "\n" not in line
    assert "\r" not in line
    assert "\x1b" not in line
    assert json.loads(line)["backend"] == odd


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "200 /v1/chat/completions -> a:8000 pin_hit x-session-id 0123456789ab first byte 250 ms 1500 ms"),
        (
            {"engine": "1", "usage": Usage(30, 20, 5)},
            "200 /v1/chat/completions -> a:8000/1 pin_hit x-session-id 0123456789ab prompt 30 (20 cached) answer 5"
            " first byte 250 ms 1500 ms",
        ),
        (
            {"usage": Usage(30)},
            "200 /v1/chat/completions -> a:8000 pin_hit x-session-id 0123456789ab prompt 30 first byte 250 ms 1500 ms",
        ),
        (
            {"backend": None, "session": None, "first_byte_s": None, "status": 503, "decision": "none_available"},
            "503 /v1/chat/completions -> - none_available x-session-id - 1500 ms",
        ),
        (
            {"backend": None, "session": None, "first_byte_s": None, "status": 408, "error": "head_timeout"},
            "408 /v1/chat/completions -> - pin_hit x-session-id - 1500 ms head_timeout",
        ),
        (
            {"failures": [("b", REFUSED)], "attempts": 2, "aborted": True},
            "200 /v1/chat/completions -> a:8000 pin_hit x-session-id 0123456789ab first byte 250 ms 1500 ms"
            " attempts 2 (b: connection refused by a:8000) client left",
        ),
    ],
    ids=["plain", "engine and usage", "prompt alone", "nobody", "refused", "retried and left"],
)
def test_text(changes: dict[str, object], expected: str) -> None:
    clock, _, rest = as_text(record(**changes)).partition(" ")
    assert rest == expected
    assert len(clock) == len("12:34:56")


class Stream(io.StringIO):
    """Notes each write, and sets an event at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.flushed = asyncio.Event()

    def write(self, text: str) -> int:
        self.writes.append(text)
        return len(text)

    def flush(self) -> None:
        self.flushed.set()


async def test_lines_are_gathered_and_written_together() -> None:
    stream = Stream()
    log = AccessLog(stream, lambda record: record.id)
    for i in range(3):
        log.write(record(id=f"r{i}"))
    assert stream.writes == []
    async with asyncio.timeout(10):
        await stream.flushed.wait()
    assert stream.writes == ["r0\nr1\nr2\n"]


async def test_many_records_are_rendered_by_the_way_and_all_in_their_order() -> None:
    stream, rendered = Stream(), list[str]()
    log = AccessLog(stream, lambda record: rendered.append(record.id) or record.id)  # type: ignore[func-returns-value]
    ids = [f"r{i}" for i in range(70)]
    for name in ids:
        log.write(record(id=name))
    assert rendered == ids[:64]
    log.close()
    assert (rendered, stream.writes) == (ids, ["\n".join(ids) + "\n"])


async def test_after_a_write_the_next_lines_are_gathered_again() -> None:
    stream = Stream()
    log = AccessLog(stream, lambda record: record.id)
    log.write(record(id="r0"))
    log.flush()
    stream.flushed.clear()
    log.write(record(id="r1"))
    async with asyncio.timeout(10):
        await stream.flushed.wait()
    assert stream.writes == ["r0\n", "r1\n"]


async def test_closing_writes_what_is_left_and_nothing_twice() -> None:
    stream = Stream()
    log = AccessLog(stream, lambda record: record.id)
    log.write(record())
    log.close()
    log.close()
    assert stream.writes == ["r1\n"]


def test_a_log_without_lines_writes_nothing() -> None:
    stream = Stream()
    AccessLog(stream, as_json).close()
    assert stream.writes == []
