"""Handshakes judged, frames followed over any cuts, and what a quiet WebSocket says of its backend (nothing)."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec, Decision, Reason
from warmroute.core.outlier import OutlierLimits, Rest
from warmroute.core.websocket import Frames, asks, close_frame, fault, is_version, switches
from warmroute.fleet.registry import Registry
from warmroute.pins.memory import PinTable

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
GOOD = [
    (b"host", b"x"),
    (b"connection", b"keep-alive, Upgrade"),
    (b"upgrade", b"websocket"),
    (b"sec-websocket-key", KEY),
    (b"sec-websocket-version", b"13"),
]


def without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [pair for pair in GOOD if pair[0] != name]


def instead(name: bytes, *values: bytes) -> list[tuple[bytes, bytes]]:
    return without(name) + [(name, value) for value in values]


def frame(opcode: int, payload: bytes, *, masked: bool = False, fin: bool = True) -> bytes:
    """One frame by RFC 6455, 5.2."""
    first = (0x80 if fin else 0) | opcode
    mark = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = bytes((first, mark | size))
    elif size < 1 << 16:
        head = bytes((first, mark | 126)) + size.to_bytes(2)
    else:
        head = bytes((first, mark | 127)) + size.to_bytes(8)
    if not masked:
        return head + payload
    mask = os.urandom(4)
    return head + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


class TestHandshake:
    def test_a_good_one(self) -> None:
        assert asks(GOOD)
        assert fault(GOOD, "1.1") is None
        assert is_version(GOOD)

    @pytest.mark.parametrize(
        "headers",
        [
            without(b"upgrade"),
            without(b"connection"),
            instead(b"upgrade", b"h2c"),
            instead(b"connection", b"close"),
            instead(b"connection", b"not-upgrade"),
        ],
    )
    def test_what_asks_for_none(self, headers: list[tuple[bytes, bytes]]) -> None:
        assert not asks(headers)

    def test_names_and_tokens_may_be_spread_and_in_any_case(self) -> None:
        spread = [*instead(b"connection", b"Keep-Alive", b"x, UPGRADE ")]
        assert asks([(n, b"WebSocket") if n == b"upgrade" else (n, v) for n, v in spread])

    @pytest.mark.parametrize(
        ("headers", "version", "word"),
        [
            (GOOD, "1.0", "HTTP/1.0"),
            (without(b"sec-websocket-key"), "1.1", "Sec-WebSocket-Key"),
            (instead(b"sec-websocket-key", KEY, KEY), "1.1", "Sec-WebSocket-Key"),
            (instead(b"sec-websocket-key", b"short"), "1.1", "Sec-WebSocket-Key"),
            (instead(b"sec-websocket-key", KEY + b"\n"), "1.1", None),
            (instead(b"sec-websocket-key", b"?" * 22 + b"=="), "1.1", "Sec-WebSocket-Key"),
            ([*GOOD, (b"content-length", b"5")], "1.1", "body"),
            ([*GOOD, (b"transfer-encoding", b"chunked")], "1.1", "body"),
            ([*GOOD, (b"content-length", b"0")], "1.1", None),
        ],
    )
    def test_what_is_wrong_is_named(self, headers: list[tuple[bytes, bytes]], version: str, word: str | None) -> None:
        why = fault(headers, version)
        assert why is None if word is None else word in (why or "")

    @pytest.mark.parametrize("values", [(), (b"12",), (b"13", b"8"), (b"13", b"13"), (b"",)])
    def test_there_is_one_version(self, values: tuple[bytes, ...]) -> None:
        assert not is_version(instead(b"sec-websocket-version", *values))

    def test_a_switch_to_what_was_asked_for(self) -> None:
        assert switches([(b"connection", b"upgrade"), (b"upgrade", b"WebSocket")])

    @pytest.mark.parametrize(
        "headers",
        [
            [(b"connection", b"upgrade"), (b"upgrade", b"h2c")],
            [(b"upgrade", b"websocket")],
            [(b"connection", b"upgrade")],
            [(b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"upgrade", b"h2c")],
        ],
    )
    def test_a_switch_to_anything_else(self, headers: list[tuple[bytes, bytes]]) -> None:
        assert not switches(headers)


class TestCloseFrame:
    def test_its_bytes(self) -> None:
        assert close_frame(1012, "bye") == frame(8, (1012).to_bytes(2) + b"bye")

    def test_a_long_reason_is_cut_between_characters(self) -> None:
        sent = close_frame(1012, "ü" * 100)
        assert sent == frame(8, (1012).to_bytes(2) + ("ü" * 61).encode())
        assert len(sent) <= 2 + 125


FRAMES = st.lists(
    st.builds(
        frame,
        st.sampled_from([0, 1, 2, 9, 10]),
        st.sampled_from([0, 1, 125, 126, 127, 300, 65535, 65536]).map(bytes),
        masked=st.booleans(),
        fin=st.booleans(),
    ),
    max_size=6,
)


class TestFrames:
    @given(FRAMES, st.lists(st.integers(0, 1 << 18), max_size=8))
    def test_the_border_is_known_over_any_cuts(self, sent: list[bytes], cuts: list[int]) -> None:
        whole = b"".join(sent)
        borders = {sum(map(len, sent[:i])) for i in range(len(sent) + 1)}
        frames, at = Frames(), 0
        for cut in [*sorted(c for c in cuts if c < len(whole)), len(whole)]:
            frames.feed(whole[at:cut])
            at = cut
            assert frames.between is (at in borders)

    def test_byte_by_byte(self) -> None:
        frames, whole = Frames(), frame(1, b"a" * 130) + frame(2, b"", masked=True)
        seen = []
        for i in range(len(whole)):
            frames.feed(whole[i : i + 1])
            seen.append(frames.between)
        assert [i for i, between in enumerate(seen) if between] == [133, len(whole) - 1]

    def test_nothing_goes_behind_a_close_frame(self) -> None:
        frames = Frames()
        frames.feed(frame(1, b"x") + frame(8, b"\x03\xe8"))
        assert frames.closed
        assert not frames.between

    def test_what_is_no_websocket_has_no_borders(self) -> None:
        frames = Frames()
        frames.feed(b"\x83\x00")
        assert not frames.between
        frames.feed(frame(1, b"x"))
        assert not frames.between
        assert not frames.closed


class TestSilence:
    """A quiet WebSocket is no request that waits."""

    STALL = 10.0

    @pytest.fixture
    def registry(self) -> Registry:
        pins = PinTable(lambda: 0.0, idle_expiry=1.0, limit=1)
        specs = [BackendSpec(name, f"http://{name}") for name in "ab"]
        registry = Registry(specs, pins, Thresholds(), 0.0)
        for name in "ab":
            registry.probed(name, None, 0.0)
            registry.probed(name, None, 0.0)
        return registry

    def silent_at(self, registry: Registry, now: float) -> list[str]:
        return registry.sweep(lambda name: False, now, self.STALL)

    def test_alone_it_does_not_make_its_backend_rest(self, registry: Registry) -> None:
        lease = registry.lease(Decision(Reason.RING, "a"))
        with lease:
            lease.may_be_silent()
            assert self.silent_at(registry, 100.0) == []
            assert registry.backends["a"].in_flight == 1
        assert registry.backends["a"].in_flight == registry.backends["a"].silent == 0

    def test_beside_a_request_it_changes_nothing(self, registry: Registry) -> None:
        lease = registry.lease(Decision(Reason.RING, "a"))
        with lease, registry.lease(Decision(Reason.RING, "a")):
            lease.may_be_silent()
            assert self.silent_at(registry, 100.0) == ["a"]

    def test_it_tries_a_resting_backend_only_until_it_has_begun(self, registry: Registry) -> None:
        state = registry.backends["a"]
        state.outlier.rest("test", 0.0, OutlierLimits())
        state.outlier.tick(1e6)
        assert state.outlier.state is Rest.TRIAL
        lease = registry.lease(Decision(Reason.RING, "a"))
        with lease:
            assert not state.outlier.admits
            lease.may_be_silent()
            assert state.outlier.admits
