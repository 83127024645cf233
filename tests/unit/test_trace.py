"""The router as a hop of a trace: which contexts are taken on, and what is told to the backend."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.trace import FRESH, Hop, hop

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OURS, NEW = bytes(range(1, 9)), bytes(range(9, 25))


def taken(header: str | None, share: float = 1.0) -> Hop:
    return hop(None if header is None else header.encode(), OURS + NEW, share)


@pytest.mark.parametrize(
    ("header", "flags"),
    [
        (f"00-{TRACE}-{SPAN}-01", 1),
        (f"00-{TRACE}-{SPAN}-00", 0),
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f"cc-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", 1),
    ],
)
def test_a_trace_goes_on_below_its_clients_span(header: str, flags: int) -> None:
    found = taken(header, share=0.0)
    assert found == Hop(bytes.fromhex(TRACE), OURS, bytes.fromhex(SPAN), flags)
    assert found.sampled is bool(flags & 1)
    assert found.header.decode() == f"00-{TRACE}-{OURS.hex()}-{flags:02x}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-1",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_without_a_usable_context_a_trace_begins_here(header: str | None) -> None:
    assert taken(header) == Hop(NEW, OURS, None, 1)


@given(st.binary(min_size=FRESH, max_size=FRESH), st.floats(0, 1))
def test_what_a_backend_is_told_is_a_context(fresh: bytes, share: float) -> None:
    begun = hop(None, fresh, share)
    assert re.fullmatch(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", begun.header)
    if any(fresh[:8]) and any(fresh[8:]):
        below = hop(begun.header, OURS + NEW, 0.5)
        assert (below.trace, below.parent, below.sampled) == (begun.trace, begun.span, begun.sampled)


def test_of_traces_that_begin_here_a_share_is_sampled() -> None:
    low, high = OURS + bytes(8) + b"\x3f" + bytes(7), OURS + bytes(8) + b"\x41" + bytes(7)
    assert [hop(None, fresh, 0.25).sampled for fresh in (low, high)] == [True, False]
    assert not hop(None, low, 0.0).sampled
    assert hop(None, OURS + b"\xff" * 16, 1.0).sampled
