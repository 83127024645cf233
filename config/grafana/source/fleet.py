"""The first two pages: the fleet as a whole, and each backend."""

from .panels import BACKEND, GREEN, RED, ROUTER, YELLOW, Column, Grid, Panel, Query, graph, stat, states, table
from .queries import (
    CACHED,
    HIT,
    LOST,
    NEVER,
    TOKENS_A_SECOND,
    hit_rates,
    moves,
    now,
    or_zero,
    outcomes,
    quantile,
    rate,
    seen,
    sessions_by_backend,
    share_of,
)

_ENGINE = "backend, model_name, engine"
_REQUESTS = rate("warmroute_requests_total")


def fleet(grid: Grid) -> None:
    """Is all well; and if not, which page tells more."""
    _numbers(grid)
    grid.row("Caches")
    grid.add(
        graph(
            "Cached, and what was possible",
            "Share of prompt tokens that came from a cache, and what that share had been if no conversation had been moved, "
            "evicted or changed. What is above the upper line is new text. The page Tokens tells where the gap comes from.",
            Query(share_of(CACHED), "cached"),
            Query(share_of(f"{CACHED}|{LOST}"), "possible"),
            unit="percentunit",
            top=1,
            decimals=1,
            colors={"cached": "green", "possible": "text"},
            dashed="possible",
        ),
        outcomes(),
        hit_rates(),
        sessions_by_backend(),
    )
    grid.row("Traffic")
    grid.add(
        graph(
            "Requests/s by backend",
            "Requests finished per second at each server, and by the router itself where no server answered.",
            Query(
                f'label_replace({rate("warmroute_requests_total", by="backend")}, "backend", "no backend", "backend", "")',
                "{{backend}}",
            ),
            unit="reqps",
        ),
        graph(
            "Requests/s by status",
            "Requests finished per second by status; 499 where the client left before an answer.",
            Query(rate("warmroute_requests_total", by="code"), "{{code}}"),
            unit="reqps",
            stacked=True,
        ),
        _quantiles("Time to first byte", "had their first content", "warmroute_time_to_first_byte_seconds"),
        _quantiles("Request duration", "were answered in full", "warmroute_request_duration_seconds"),
        _in_flight(),
        moves(),
    )


def _numbers(grid: Grid) -> None:
    errors = or_zero(rate("warmroute_requests_total", f'{BACKEND},code=~"5.."'))
    grid.add(
        stat(
            "Hit rate (5 min)",
            "Share of all prompt tokens of the last five minutes that the servers found in their prefix caches, by their "
            "own counters.",
            f'max(warmroute_fleet_prefix_cache_hit_ratio{{{ROUTER},window="5m"}})',
            unit="percentunit",
            steps=HIT,
            decimals=1,
        ),
        stat("Requests/s", "Requests finished per second, whatever the answer.", _REQUESTS, unit="reqps"),
        stat(
            "Error share",
            "Share of requests that ended with a status of 500 or above, from a server or from the router.",
            f"{errors} / {_REQUESTS}",
            unit="percentunit",
            steps=((None, GREEN), (0.01, YELLOW), (0.05, RED)),
            decimals=2,
        ),
        stat(
            "Sessions",
            "Conversations that are kept on a server now. With several routers each counts those it has seen.",
            f"sum(warmroute_sessions{{{BACKEND}}})",
            decimals=0,
        ),
        stat(
            "Backends up",
            "Servers that pass their health checks, and all that are configured.",
            Query(f"sum({now('warmroute_backend_up')})", "up"),
            Query(f"count({now('warmroute_backend_up')})", "configured"),
            empty="None",
            decimals=0,
        ),
        stat(
            "Alerts",
            "Alerts of the shipped rules that fire now; Prometheus lists them under /alerts.",
            'count(ALERTS{alertname=~"Warmroute.+",alertstate="firing"}) or vector(0)',
            steps=NEVER,
            empty="None",
            decimals=0,
        ),
    )


def _quantiles(title: str, what: str, metric: str) -> Panel:
    return graph(
        title,
        f"Half of the requests, and 19 of 20, {what} within this time, counted from their arrival.",
        Query(quantile(0.5, metric), "p50"),
        Query(quantile(0.95, metric), "p95"),
        unit="s",
    )


def _in_flight() -> Panel:
    return graph(
        "In flight by backend",
        "Requests that the router has open at each server, and those that wait for a full one.",
        Query(now("warmroute_requests_in_flight", over="sum"), "{{backend}}"),
        Query(f"sum(warmroute_requests_waiting{{{ROUTER}}})", "waiting"),
        decimals=0,
        colors={"waiting": "red"},
        dashed="waiting",
    )


def backends(grid: Grid) -> None:
    """Which server is it?"""
    grid.add(
        table(
            "Backends",
            "Each server as the routers see it now.",
            "backend",
            _COLUMNS,
            link="/d/warmroute-backends?var-backend=${__value.raw}&${__url_time_range}",
        )
    )
    grid.row("State")
    grid.add(
        states(
            "Up and down",
            "Whether each server passes its health checks.",
            Query(now("warmroute_backend_up", over="min"), "{{backend}}"),
            words={0: ("down", RED), 1: ("up", GREEN)},
        ),
        states(
            "Stalled and draining",
            "Whether an engine makes no steps while requests are there, and whether a server is being emptied.",
            Query(now("warmroute_backend_stalled"), "{{backend}} stalled"),
            Query(f"2 * {now('warmroute_backend_draining')}", "{{backend}} draining"),
            words={0: ("no", GREEN), 1: ("stalled", RED), 2: ("draining", YELLOW)},
        ),
        graph(
            "Failures by backend",
            "Exchanges per second that failed at each server: refused, broken off, or answered with a fault.",
            Query(rate("warmroute_backend_failures_total", by="backend"), "{{backend}}"),
            unit="cps",
        ),
        graph(
            "Errors by backend",
            "Requests per second that each server answered with a status of 500 or above.",
            Query(rate("warmroute_requests_total", f'{BACKEND},backend!="",code=~"5.."', by="backend"), "{{backend}}"),
            unit="reqps",
            empty="No errors",
        ),
    )
    _cache_of_each(grid)
    _load_of_each(grid)


_YES_NO = {0: "no", 1: "yes"}
_COLUMNS = (
    Column("Up", now("warmroute_backend_up", over="min"), steps=((None, RED), (1, GREEN)), words=_YES_NO),
    Column("Draining", now("warmroute_backend_draining"), words=_YES_NO),
    Column("Stalled", now("warmroute_backend_stalled"), steps=((None, GREEN), (1, RED)), words=_YES_NO),
    Column(
        "Hit rate (5 min)",
        now("warmroute_backend_prefix_cache_hit_ratio", f'{BACKEND},window="5m"'),
        "percentunit",
        1,
        HIT,
    ),
    Column("Warm for", now("warmroute_backend_warm_seconds"), "s"),
    Column("Sessions", now("warmroute_sessions", over="sum"), decimals=0),
    Column("In flight", now("warmroute_requests_in_flight", over="sum"), decimals=0),
    Column("Requests/s", rate("warmroute_requests_total", f'{BACKEND},backend!=""', by="backend"), "reqps"),
    Column("TTFB p95", quantile(0.95, "warmroute_time_to_first_byte_seconds", "backend"), "s"),
)


def _cache_of_each(grid: Grid) -> None:
    found = seen("warmroute_backend_prefix_cache_hits_total")
    asked = seen("warmroute_backend_prefix_cache_queries_total")
    grid.row("Caches")
    grid.add(
        hit_rates(),
        graph(
            "Prompt tokens found and computed",
            "Prompt tokens per second that were found in a prefix cache, and those that were not.",
            Query(f"sum({found})", "found"),
            Query(f"sum({asked}) - sum({found})", "not found"),
            unit=TOKENS_A_SECOND,
            stacked=True,
            colors={"found": "green", "not found": "orange"},
        ),
        graph(
            "Warm for",
            "How long a conversation may pause and still find nine tenths of its tokens on each server, as its own turns "
            "show; a gap where too few conversations paused.",
            Query(now("warmroute_backend_warm_seconds"), "{{backend}}"),
            unit="s",
            empty="Not known yet",
        ),
        graph(
            "Hit rate of the tier behind (5 min window)",
            "Share of the tokens not found on the card that came back from host memory or a shared store.",
            Query(now("warmroute_backend_external_prefix_cache_hit_ratio", f'{BACKEND},window="5m"'), "{{backend}}"),
            unit="percentunit",
            top=1,
            decimals=1,
            empty="No such tier",
        ),
    )


def _load_of_each(grid: Grid) -> None:
    grid.row("Load, by vLLM's own figures")
    running = now("vllm:num_requests_running", by=_ENGINE)
    waiting = now("vllm:num_requests_waiting", by=_ENGINE)
    grid.add(
        graph(
            "Running and waiting",
            "Requests that each vLLM server computes, and those in its own queue (dashed).",
            Query(f"sum by (backend) ({running})", "{{backend}} running"),
            Query(f"sum by (backend) ({waiting})", "{{backend}} waiting"),
            decimals=0,
            dashed=".* waiting",
        ),
        graph(
            "KV cache in use",
            "Share of each server's KV blocks that running requests hold; the fullest engine of a server counts.",
            Query(now("vllm:kv_cache_usage_perc"), "{{backend}}"),
            unit="percentunit",
            top=1,
            decimals=1,
        ),
        graph(
            "Preemptions",
            "Running requests per minute that had to give up their blocks: the cache is too small for what runs at once.",
            Query(
                f"60 * sum by (backend) ({seen('vllm:num_preemptions_total', by=_ENGINE)})",
                "{{backend}}",
            ),
            unit="opm",
        ),
        graph(
            "Time to first byte (p95) by backend",
            "19 of 20 requests at each server had their first content within this time, as the router saw it.",
            Query(quantile(0.95, "warmroute_time_to_first_byte_seconds", "backend"), "{{backend}}"),
            unit="s",
            table=True,
        ),
        _in_flight(),
        graph(
            "Figures up to date",
            "1 while the router can read a server's metrics. Hit rates of a server at 0 are not shown.",
            Query(now("warmroute_backend_metrics_fresh"), "{{backend}}"),
            decimals=0,
            top=1,
        ),
    )
