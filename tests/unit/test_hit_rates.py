"""Hit rates: windows of backends and of the fleet, as sums of tokens, and the steps of the history."""

from itertools import pairwise

import pytest

from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec
from warmroute.core.rates import WINDOWS, Hits
from warmroute.fleet.registry import BackendState, Registry
from warmroute.observe.hit_rates import STEP, Tier, fleet_windowed, history, ratio, steps, tier_of, windowed
from warmroute.pins.memory import PinTable

NOW = 10_000.0


def backend(*rows: tuple[float, float, float], tier: Tier = "local", gauge: float | None = None) -> BackendState:
    """A backend with samples (seconds before NOW, queries, hits) of one tier."""
    pins = PinTable(lambda: NOW, idle_expiry=1800, limit=10)
    state = Registry([BackendSpec("a", "http://a")], pins, Thresholds(), 0.0).backends["a"]
    counters = tier_of(state, tier)
    for before, queries, hits in sorted(rows, reverse=True):
        counters.seen = True
        counters.history.add(NOW - before, Hits(queries, hits))
    state.scrape.hit_rate_gauge = gauge
    return state


BUSY = backend((3600, 0, 0), (300, 1000, 100), (60, 2000, 600), (0, 3000, 1500))
CALM = backend((3600, 0, 0), (300, 0, 0), (60, 100, 0), (0, 100, 0))


def test_each_window_holds_what_came_in_it() -> None:
    assert windowed(BUSY, "local", NOW) == {"1m": Hits(1000, 900), "5m": Hits(2000, 1400), "1h": Hits(3000, 1500)}
    assert windowed(BUSY, "external", NOW) == dict.fromkeys(WINDOWS, Hits())


def test_the_fleet_is_a_sum_of_tokens() -> None:
    fleet = fleet_windowed([BUSY, CALM], "local", NOW)
    assert fleet == {"1m": Hits(1000, 900), "5m": Hits(2100, 1400), "1h": Hits(3100, 1500)}
    ratios = [windowed(b, "local", NOW)["5m"].ratio for b in (BUSY, CALM)]
    assert ratios == [0.7, 0.0]
    assert fleet["5m"].ratio == pytest.approx(1400 / 2100)


def test_a_fleet_of_none_has_no_ratio() -> None:
    assert fleet_windowed([], "local", NOW) == dict.fromkeys(WINDOWS, Hits())
    assert all(hits.ratio is None for hits in fleet_windowed([], "local", NOW).values())


def test_the_tiers_are_apart() -> None:
    both = backend((100, 0, 0), (0, 50, 40), tier="external")
    assert windowed(both, "external", NOW)["5m"] == Hits(50, 40)
    assert windowed(both, "local", NOW)["5m"] == Hits()


@pytest.mark.parametrize(
    ("state", "hits", "expected"),
    [
        (backend((60, 0, 0), (0, 10, 4)), Hits(10, 4), 0.4),
        (backend((60, 0, 0), (0, 0, 0)), Hits(), None),
        (backend((60, 0, 0), (0, 10, 4), gauge=0.9), Hits(10, 4), 0.4),
        (backend(gauge=0.9), Hits(), 0.9),
        (backend(), Hits(), None),
    ],
    ids=["counters", "nothing asked", "counters before a gauge", "a gauge alone", "nothing known"],
)
def test_ratio(state: BackendState, hits: Hits, expected: float | None) -> None:
    assert ratio(state, hits) == expected


def test_steps_end_now_and_lie_side_by_side() -> None:
    ends = steps(NOW)
    assert len(ends) == 120
    assert ends[-1] == NOW
    assert {b - a for a, b in pairwise(ends)} == {STEP}
    assert steps(NOW, 90.0) == [NOW - 60, NOW - 30, NOW]


def test_the_steps_of_a_history_add_up_to_its_window() -> None:
    rows = history(BUSY, steps(NOW))
    assert sum(rows, Hits()) == windowed(BUSY, "local", NOW)["1h"]
    assert rows[-1] == Hits(1000, 900)
