"""What a request's record gives on: to the account of tokens, and to whoever collects traces."""

import pytest

from warmroute.core.residency import Held
from warmroute.core.usage import Usage
from warmroute.observe.record import RequestRecord
from warmroute.observe.spans import Spans
from warmroute.truth.ledger import Answered

HELD = Held(64, 32, 32, True)


def record(**more: object) -> RequestRecord:
    made = RequestRecord("r", "POST", "/v1/chat/completions", 10.0, 1.7e9)
    known = {"status": 200, "backend": "a", "decision": "pin_hit", "first_byte_s": 0.5, "duration_s": 2.0, "held": HELD}
    for name, value in {**known, **more}.items():
        setattr(made, name, value)
    return made


def test_an_answered_request_is_accounted_for() -> None:
    usage = Usage(70, 32, 3)
    assert record(usage=usage, engine="1").answered() == Answered("a", "1", "pin_hit", usage, 10.0, 12.0, HELD)


@pytest.mark.parametrize("more", [{"backend": None}, {"first_byte_s": None}, {"status": 400}, {"status": 502}])
def test_one_that_no_backend_answered_is_not(more: dict[str, object]) -> None:
    assert record(**more).answered() is None


def test_what_one_engine_held_says_nothing_of_an_answer_that_another_went_on_with() -> None:
    answered = record(resumed="resumed").answered()
    assert answered is not None
    assert answered.held is None


class Taken:
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[RequestRecord] = []

    def take(self, record: RequestRecord) -> None:
        self.records.append(record)

    async def close(self, within: float) -> None:
        raise AssertionError("nobody ends it")


def test_only_sampled_requests_become_spans() -> None:
    taken = Taken()
    spans = Spans(taken, share=0.0)
    begun = record(hop=spans.hop(None))
    wanted = record(hop=spans.hop(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
    for one in (begun, wanted, record()):
        spans.settle(one)
    assert taken.records == [wanted]


def test_each_request_is_a_span_of_its_own() -> None:
    spans = Spans(Taken(), share=1.0)
    hops = [spans.hop(None) for _ in range(100)]
    assert len({hop.span for hop in hops}) == len({hop.trace for hop in hops}) == 100
