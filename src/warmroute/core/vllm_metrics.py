"""vLLM's metric names over its versions -> the few numbers that the router uses."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Series = Mapping[str, float]
"""Labels as text -> value."""
Values = Mapping[str, Series]

_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_EXTERNAL_QUERIES = ("vllm:external_prefix_cache_queries_total",)
_EXTERNAL_HITS = ("vllm:external_prefix_cache_hits_total",)
_FROM_THE_START = "vllm:request_prompt_tokens_count"
"""A series that each engine has before its first request; with several API servers the gauges only come with traffic."""
_V0_HIT_RATE = "vllm:gpu_prefix_cache_hit_rate"
_RUNNING = ("vllm:num_requests_running",)
_WAITING = ("vllm:num_requests_waiting",)
_STEPS = ("vllm:iteration_tokens_total_count",)
_BEGAN = ("vllm:prompt_tokens_created", "vllm:prefix_cache_queries_created")
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_FROM_BEHIND = "external_kv_transfer"
_CACHE_CONFIG = "vllm:cache_config_info"
_COMPUTED = ("vllm:request_prefill_kv_computed_tokens_sum",)
_PREFILL = ("vllm:request_prefill_time_seconds_sum",)
_SLEEP = "vllm:engine_sleep_state"
_AWAKE, _EMPTY = "awake", ("weights_offloaded", "discard_all")
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """One engine's state at the last scrape; None where its version does not say."""

    engine: str
    running: int | None
    waiting: int | None
    kv_cache_usage: float | None


def first(values: Values, names: tuple[str, ...]) -> Series | None:
    """The series of the first name that is there: old and new names side by side are counted once."""
    for name in names:
        if name in values:
            return values[name]
    return None


def prefix_cache(values: Values) -> tuple[Series, Series] | None:
    """Queried and hit tokens by series, or None where the server has no prefix cache counters.

    Early versions of the V1 engine put `gpu_` into the names; the V0 engine had a gauge alone (see `hit_rate_gauge`).
    """
    return _pair(values, _QUERIES, _HITS)


def external_prefix_cache(values: Values) -> tuple[Series, Series] | None:
    """The same for the tier behind the cache: host memory, or a store shared by servers."""
    return _pair(values, _EXTERNAL_QUERIES, _EXTERNAL_HITS)


def hit_rate_gauge(values: Values) -> float | None:
    """The rate that the V0 engine shows of itself, between 0 and 1; its -1 means that nothing was asked yet."""
    rates = [rate for rate in (values.get(_V0_HIT_RATE) or {}).values() if 0.0 <= rate <= 1.0]
    return sum(rates) / len(rates) if rates else None


def _pair(values: Values, queries: tuple[str, ...], hits: tuple[str, ...]) -> tuple[Series, Series] | None:
    asked, had = first(values, queries), first(values, hits)
    return None if asked is None or had is None else (asked, had)


def engines(values: Values) -> list[EngineGauges]:
    """One entry for each engine label, in numeric order. A server of a version without the label has one engine "0"."""
    running, waiting, usage = (_by_engine(first(values, names)) for names in (_RUNNING, _WAITING, _USAGE))
    early = _by_engine(values.get(_FROM_THE_START))
    names = sorted({*early, *running, *waiting, *usage}, key=lambda e: (len(e), e))
    return [EngineGauges(name, _whole(running.get(name)), _whole(waiting.get(name)), usage.get(name)) for name in names]


def steps(values: Values) -> float | None:
    """Steps of all engines since their start; None where the server does not say."""
    series = first(values, _STEPS)
    return None if series is None else sum(series.values())


def began(values: Values) -> float | None:
    """When the server's engines began to count, in seconds since 1970: another time is another process with an empty cache."""
    series = first(values, _BEGAN)
    return None if not series else max(series.values())


def reloaded(values: Values) -> float | None:
    """Prompt tokens that came from the tier behind the cache since the server's start; None where there is no such tier."""
    by_source = values.get(_BY_SOURCE)
    if by_source is not None:
        told = [value for labels, value in by_source.items() if label(labels, "source") == _FROM_BEHIND]
        if told:
            return sum(told)
    hits = first(values, _EXTERNAL_HITS)
    return None if hits is None else sum(hits.values())


def asleep(values: Values) -> bool:
    """Whether an engine sleeps (vLLM's sleep mode), or is only half awake; a server that does not say is awake."""
    return any(label(labels, "sleep_state") == _AWAKE and not value for labels, value in _sleep(values))


def discarded(values: Values) -> bool:
    """Whether an engine sleeps so deeply (level 1 or 2) that its cache is gone."""
    return any(label(labels, "sleep_state") in _EMPTY and value > 0 for labels, value in _sleep(values))


def _sleep(values: Values) -> Iterable[tuple[str, float]]:
    return (values.get(_SLEEP) or {}).items()


def block_size(values: Values) -> int | None:
    """Tokens of a block of the prefix cache; None where the server does not say."""
    for labels in values.get(_CACHE_CONFIG) or ():
        size = label(labels, "block_size")
        if size is not None and size.isdigit() and int(size) > 0:
            return int(size)
    return None


def prefill(values: Values) -> tuple[float, float] | None:
    """Prompt tokens computed and the seconds that this took, since the server's start, over all requests."""
    tokens, seconds = first(values, _COMPUTED), first(values, _PREFILL)
    return None if tokens is None or seconds is None else (sum(tokens.values()), sum(seconds.values()))


def label(labels: str, name: str) -> str | None:
    """The value of one label in the text between the braces, for values without escapes."""
    _, found, rest = f",{labels}".partition(f',{name}="')
    return rest.partition('"')[0] if found else None


def _by_engine(series: Series | None) -> dict[str, float]:
    """Sum over models within an engine, which is right for counts; a usage has one series for each engine."""
    total: dict[str, float] = {}
    for labels, value in (series or {}).items():
        engine = label(labels, "engine") or "0"
        total[engine] = total.get(engine, 0.0) + value
    return total


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)
