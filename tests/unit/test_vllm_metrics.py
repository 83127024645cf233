"""vLLM's metrics over its versions: which counters are taken, once each, and what is not known is None."""

from pathlib import Path

import pytest

from warmroute.core.exposition import parse
from warmroute.core.rates import CounterGroup, Hits
from warmroute.core.vllm_metrics import (
    EngineGauges,
    Values,
    asleep,
    discarded,
    engines,
    external_prefix_cache,
    first,
    hit_rate_gauge,
    label,
    prefix_cache,
)

GOLDEN = Path(__file__).parent.parent / "golden"


def values(text: str) -> Values:
    return parse(text, "b1").values


def golden(name: str) -> Values:
    return values((GOLDEN / f"metrics-vllm-0.32.0{name}.txt").read_text(encoding="utf-8"))


def hits(found: Values) -> Hits | None:
    """Tokens asked and found, as the router adds them up."""
    series = prefix_cache(found)
    return None if series is None else Hits(CounterGroup().observe(series[0]), CounterGroup().observe(series[1]))


# Four servers, each with something of its own

CREATED = 1.76e9


def pair(prefix: str, queries: int, hits: int) -> str:
    labels = '{engine="0",model_name="m"}'
    return "".join(
        f"# TYPE {prefix}_{name}_total counter\n{prefix}_{name}_total{labels} {value}.0\n"
        f"# TYPE {prefix}_{name}_created gauge\n{prefix}_{name}_created{labels} {CREATED}\n"
        for name, value in (("queries", queries), ("hits", hits))
    )


BOTH_PAIRS = (
    pair("vllm:prefix_cache", 1000, 600)
    + pair("vllm:gpu_prefix_cache", 1000, 600)
    + 'vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 999.0\n'
)
OLD_PAIR = pair("vllm:gpu_prefix_cache", 400, 100)
NO_PAIR = 'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
ZERO_PAIR = pair("vllm:prefix_cache", 0, 0)


@pytest.mark.parametrize(
    ("text", "counted", "ratio"),
    [
        (BOTH_PAIRS, Hits(1000, 600), 0.60),
        (OLD_PAIR, Hits(400, 100), 0.25),
        (NO_PAIR, None, None),
        (ZERO_PAIR, Hits(0, 0), None),
    ],
    ids=["both names", "the old names", "caching off", "nothing asked yet"],
)
def test_each_servers_ratio(text: str, counted: Hits | None, ratio: float | None) -> None:
    found = hits(values(text))
    assert found == counted
    assert (None if found is None else found.ratio) == ratio


def test_the_fleets_ratio_is_of_sums() -> None:
    servers = [hits(values(text)) for text in (BOTH_PAIRS, OLD_PAIR, NO_PAIR, ZERO_PAIR)]
    fleet = sum((found for found in servers if found is not None), Hits())
    assert fleet == Hits(1400, 700)
    assert fleet.ratio == 0.50


def test_hits_of_an_external_tier_never_enter_and_are_none_without_its_queries() -> None:
    assert external_prefix_cache(values(BOTH_PAIRS)) is None
    assert hits(values("vllm:external_prefix_cache_hits_total 9\nvllm:external_prefix_cache_queries_total 9\n")) is None


def test_more_hits_than_queries_are_no_ratio() -> None:
    found = hits(values(pair("vllm:prefix_cache", 100, 120)))
    assert found == Hits(100, 120)
    assert found.ratio is None


@pytest.mark.parametrize("missing", ["queries", "hits"])
def test_half_a_pair_is_no_pair(missing: str) -> None:
    text = "\n".join(line for line in OLD_PAIR.splitlines() if f"{missing}_total" not in line)
    assert prefix_cache(values(text)) is None


# Captured pages


@pytest.mark.parametrize(
    ("name", "local", "external"),
    [
        ("", Hits(409_711, 254_624), Hits(0, 0)),
        ("-dp2", Hits(17_652 + 18_605, 7_008 + 7_840), Hits(0, 0)),
        ("-dp2-fresh", Hits(0, 0), Hits(0, 0)),
        ("-shared-store", Hits(2_746, 1_344), Hits(1_402, 1_344)),
    ],
    ids=["one engine", "two engines", "two engines before their first request", "shared store"],
)
def test_golden_counters(name: str, local: Hits, external: Hits) -> None:
    assert hits(golden(name)) == local
    series = external_prefix_cache(golden(name))
    assert series is not None
    assert Hits(sum(series[0].values()), sum(series[1].values())) == external


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", [EngineGauges("0", 0, 0, 0.0)]),
        ("-dp2", [EngineGauges("0", 0, 0, 0.0), EngineGauges("1", 0, 0, 0.0)]),
        ("-dp2-fresh", [EngineGauges("0", None, None, None), EngineGauges("1", None, None, None)]),
        ("-shared-store", [EngineGauges("0", 0, 0, 0.0)]),
    ],
    ids=["one engine", "two engines", "two engines before their first request", "shared store"],
)
def test_golden_engines(name: str, expected: list[EngineGauges]) -> None:
    assert engines(golden(name)) == expected


@pytest.mark.parametrize("name", ["", "-dp2", "-dp2-fresh", "-shared-store"])
def test_a_v1_server_shows_no_rate_of_its_own(name: str) -> None:
    assert hit_rate_gauge(golden(name)) is None


# Engines


def gauges(*rows: tuple[str, str, float]) -> Values:
    return values("".join(f"vllm:{name}{{{labels}}} {value}\n" for name, labels, value in rows))


def test_engines_are_in_numeric_order() -> None:
    rows = [("num_requests_running", f'engine="{i}"', float(i)) for i in (10, 2, 0, 1)]
    assert [(e.engine, e.running) for e in engines(gauges(*rows))] == [("0", 0), ("1", 1), ("2", 2), ("10", 10)]


def test_a_server_without_the_label_has_one_engine() -> None:
    found = gauges(("num_requests_running", 'model_name="m"', 3.0), ("gpu_cache_usage_perc", 'model_name="m"', 0.5))
    assert engines(found) == [EngineGauges("0", 3, None, 0.5)]


def test_requests_of_all_models_of_an_engine_count() -> None:
    found = gauges(
        ("num_requests_running", 'engine="0",model_name="m"', 3.0),
        ("num_requests_running", 'engine="0",model_name="lora"', 2.0),
        ("num_requests_waiting", 'engine="1",model_name="m"', 7.0),
    )
    assert engines(found) == [EngineGauges("0", 5, None, None), EngineGauges("1", None, 7, None)]


def test_requests_that_wait_for_a_reason_are_not_counted_again() -> None:
    found = gauges(
        ("num_requests_waiting", 'engine="0"', 3.0),
        ("num_requests_waiting_by_reason", 'engine="0",reason="capacity"', 3.0),
    )
    assert engines(found) == [EngineGauges("0", None, 3, None)]


def test_an_engine_that_has_no_gauges_yet_is_known_by_its_prompts() -> None:
    found = gauges(
        ("request_prompt_tokens_count", 'engine="0"', 4.0),
        ("request_prompt_tokens_count", 'engine="1"', 0.0),
        ("num_requests_running", 'engine="0"', 2.0),
    )
    assert engines(found) == [EngineGauges("0", 2, None, None), EngineGauges("1", None, None, None)]


def test_a_server_without_these_gauges_has_no_engines() -> None:
    assert engines(gauges(("num_preemptions_total", 'engine="0"', 3.0))) == []
    assert engines({}) == []


def test_the_new_name_of_a_gauge_is_taken_before_the_old() -> None:
    found = gauges(("gpu_cache_usage_perc", 'engine="0"', 0.9), ("kv_cache_usage_perc", 'engine="0"', 0.1))
    assert engines(found) == [EngineGauges("0", None, None, 0.1)]


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_a_gauge_that_is_no_number_is_not_known(value: str) -> None:
    found = values(f'vllm:num_requests_running{{engine="0"}} {value}\nvllm:num_requests_waiting{{engine="0"}} 2\n')
    assert engines(found) == [EngineGauges("0", None, 2, None)]


# The V0 engine's gauge


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([0.4], 0.4),
        ([0.4, 0.6], 0.5),
        ([-1.0], None),
        ([-1.0, 0.5], 0.5),
        ([0.0], 0.0),
        ([1.0], 1.0),
        ([9.0], None),
        ([], None),
    ],
    ids=["one", "two", "nothing asked", "one asked", "none hit", "all hit", "no rate", "absent"],
)
def test_hit_rate_gauge(rates: list[float], expected: float | None) -> None:
    rows = [("gpu_prefix_cache_hit_rate", f'model_name="m{i}"', rate) for i, rate in enumerate(rates)]
    assert hit_rate_gauge(gauges(*rows)) == expected


# Lookups


@pytest.mark.parametrize(
    ("labels", "value"),
    [
        ('engine="0"', "0"),
        ('engine="0",model_name="m"', "0"),
        ('model_name="m",engine="12"', "12"),
        ('my_engine="1",engine="2"', "2"),
        ('my_engine="1"', None),
        ('engine=""', ""),
        ("", None),
    ],
    ids=ascii,
)
def test_label(labels: str, value: str | None) -> None:
    assert label(labels, "engine") == value


def test_first_takes_the_first_name_that_is_there() -> None:
    found = {"a": {"": 1.0}, "b": {"": 2.0}}
    assert first(found, ("x", "b", "a")) == {"": 2.0}
    assert first(found, ("x",)) is None


# Sleep mode


def sleep_state(**told: int) -> str:
    series = "vllm:engine_sleep_state"
    return "".join(f'{series}{{engine="{e[-1]}",sleep_state="{e[:-1]}"}} {value}.0\n' for e, value in told.items())


@pytest.mark.parametrize("name", ["", "-dp2", "-shared-store"])
def test_a_real_server_is_awake(name: str) -> None:
    found = golden(name)
    assert "vllm:engine_sleep_state" in found
    assert (asleep(found), discarded(found)) == (False, False)


@pytest.mark.parametrize(
    ("text", "sleeps", "empty"),
    [
        ("", False, False),
        (sleep_state(awake0=0, weights_offloaded0=1, discard_all0=0), True, True),
        (sleep_state(awake0=0, weights_offloaded0=0, discard_all0=1), True, True),
        (sleep_state(awake0=0, weights_offloaded0=0, discard_all0=0), True, False),  # level 0: paused
        (sleep_state(awake0=1, weights_offloaded0=0, awake1=0, weights_offloaded1=1), True, True),
        (sleep_state(awake0=1, awake1=1), False, False),
    ],
)
def test_a_server_sleeps_if_one_engine_does(text: str, sleeps: bool, empty: bool) -> None:
    found = values(text)
    assert (asleep(found), discarded(found)) == (sleeps, empty)
