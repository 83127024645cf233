"""The ring: even shares, minimal movement, and an order that is a stable contract between processes and versions."""

import json
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.ring import POINTS_PER_BACKEND, Ring, position

GOLDEN = Path(__file__).parent.parent / "golden" / "ring.json"
KEYS = [b"session-%d" % i for i in range(60_000)]
SOME_KEYS = KEYS[:2_000]

names = st.text(min_size=1, max_size=12)
fleets = st.lists(names, min_size=1, max_size=6, unique=True)
keys = st.binary(max_size=40)


def equal(count: int) -> dict[str, float]:
    return {f"10.0.0.{i}:8000": 1.0 for i in range(1, count + 1)}


def homes(ring: Ring, of: Iterable[bytes]) -> list[str]:
    return [next(ring.order(key)) for key in of]


@pytest.mark.parametrize("count", [4, 8, 16])
def test_equal_backends_get_equal_shares(count: int) -> None:
    shares = Counter(homes(Ring(equal(count)), KEYS))
    assert len(shares) == count
    assert max(shares.values()) / (len(KEYS) / count) <= 1.10


@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_lost_backend_moves_only_its_own_keys_and_they_spread_over_all_the_rest(count: int) -> None:
    weights = equal(count)
    lost = "10.0.0.2:8000"
    before = homes(Ring(weights), KEYS)
    after = homes(Ring({name: weight for name, weight in weights.items() if name != lost}), KEYS)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != lost)
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == lost)
    assert set(moved) == set(weights) - {lost}
    fair = before.count(lost) / (count - 1)
    assert all(0.6 * fair <= share <= 1.5 * fair for share in moved.values())


@pytest.mark.parametrize("count", [4, 8, 16])
def test_a_new_backend_takes_keys_only_for_itself_and_no_more_than_its_share(count: int) -> None:
    weights = equal(count)
    before = homes(Ring(weights), KEYS)
    after = homes(Ring(weights | {"new:8000": 1.0}), KEYS)
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"new:8000"}
    assert len(moved) / len(KEYS) == pytest.approx(1 / (count + 1), rel=0.10)


def test_a_backend_that_returns_gets_exactly_its_keys_back() -> None:
    weights = equal(4)
    first = homes(Ring(weights), SOME_KEYS)
    without = {name: weight for name, weight in weights.items() if name != "10.0.0.3:8000"}
    assert homes(Ring(without), SOME_KEYS) != first
    assert homes(Ring(without | {"10.0.0.3:8000": 1.0}), SOME_KEYS) == first


@pytest.mark.parametrize(
    "weights",
    [{"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 1.0, "c": 4.0}, {"a": 0.5, "b": 1.0, "c": 1.5, "d": 2.0}],
    ids=["1:2", "1:1:4", "halves"],
)
def test_weights_are_respected(weights: dict[str, float]) -> None:
    shares = Counter(homes(Ring(weights), KEYS))
    total = sum(weights.values())
    for name, weight in weights.items():
        assert shares[name] / len(KEYS) == pytest.approx(weight / total, rel=0.10)


@pytest.mark.parametrize("weight", [0.0001, 100.0], ids=["tiny", "huge"])
def test_an_extreme_weight_still_gives_a_ring_with_everybody_on_it(weight: float) -> None:
    ring = Ring({"a": weight, "b": 1.0})
    assert set(ring.order(b"key")) == {"a", "b"}


@given(fleets, keys)
def test_order_yields_each_backend_once(fleet: list[str], key: bytes) -> None:
    assert sorted(Ring(dict.fromkeys(fleet, 0.05)).order(key)) == sorted(fleet)


@given(fleets.flatmap(lambda fleet: st.tuples(st.just(fleet), st.permutations(fleet))), keys)
def test_order_does_not_depend_on_the_order_of_the_backends(fleets: tuple[list[str], list[str]], key: bytes) -> None:
    one, other = (Ring(dict.fromkeys(fleet, 0.05)) for fleet in fleets)
    assert list(one.order(key)) == list(other.order(key))
    assert one.names == other.names


@given(fleets.flatmap(lambda fleet: st.tuples(st.just(fleet), st.sets(st.sampled_from(fleet), min_size=1))), keys)
def test_order_restricted_to_some_is_the_ring_of_those_alone(case: tuple[list[str], set[str]], key: bytes) -> None:
    fleet, some = case
    weights = {name: 0.02 * (i + 1) for i, name in enumerate(fleet)}
    whole = Ring(weights)
    alone = Ring({name: weights[name] for name in some})
    assert [name for name in whole.order(key) if name in some] == list(alone.order(key))


@given(fleets, keys)
def test_order_is_by_the_nearest_point_going_on_from_the_key(fleet: list[str], key: bytes) -> None:
    ring = Ring({name: 0.0005 * (i + 1) for i, name in enumerate(fleet)})
    nearest: dict[str, int] = {}
    for point, owner in zip(ring._keys, ring._owners, strict=True):
        distance = (point - position(key) - 1) % 2**64
        name = ring.names[owner]
        nearest[name] = min(distance, nearest.get(name, distance))
    assert list(ring.order(key)) == sorted(nearest, key=nearest.__getitem__)


def test_second_choices_differ_from_key_to_key() -> None:
    ring = Ring(equal(4))
    pairs = {tuple(ring.order(key))[:2] for key in SOME_KEYS}
    assert len(pairs) == 4 * 3


def test_an_empty_ring_has_no_order() -> None:
    assert list(Ring({}).order(b"key")) == []


def test_one_backend_is_home_to_all() -> None:
    assert set(homes(Ring({"only": 1.0}), SOME_KEYS)) == {"only"}


def test_position_is_a_fixed_digest() -> None:
    assert position(b"") == 0xE4A6A0577479B2B4
    assert position(b"session") == int(GOLDEN_DATA["position_of_session"], 16)


GOLDEN_DATA = json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", GOLDEN_DATA["orders"], ids=lambda case: case["key"] or "empty")
def test_golden_order(case: dict[str, object]) -> None:
    ring = Ring(GOLDEN_DATA["weights"])
    assert list(ring.order(bytes.fromhex(str(case["key"])))) == case["order"]


def test_golden_orders_are_worth_comparing() -> None:
    orders = [tuple(case["order"]) for case in GOLDEN_DATA["orders"]]
    assert len(orders) >= 50
    assert {order[0] for order in orders} == set(GOLDEN_DATA["weights"])
    assert sum(a != b for a, b in pairwise(orders)) > 40


def test_a_backend_has_points_by_its_weight_and_at_least_one() -> None:
    assert POINTS_PER_BACKEND == 2048
    points = {weight: len(Ring({"a": weight})._keys) for weight in (1.0, 2.0, 0.3, 0.0001)}
    assert points == {1.0: 2048, 2.0: 4096, 0.3: 614, 0.0001: 1}


def test_repr_tells_the_size() -> None:
    assert repr(Ring({"a": 1.0, "b": 0.5})) == f"<Ring 2 backends, {POINTS_PER_BACKEND * 3 // 2} points>"
