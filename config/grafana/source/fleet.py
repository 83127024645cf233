"""The first page: the fleet as a whole."""

from .panels import BACKEND, GREEN, RED, ROUTER, YELLOW, Grid, Panel, Query, graph, stat
from .queries import (
    CACHED,
    HIT,
    LOST,
    NEVER,
    hit_rates,
    in_flight,
    moves,
    now,
    or_zero,
    outcomes,
    quantile,
    rate,
    sessions_by_backend,
    share_of,
)

_REQUESTS = rate("warmroute_requests_total")


def fleet(grid: Grid) -> None:
    """Is all well; and if not, which page tells more."""
    _numbers(grid)
    grid.row("Caches")
    grid.add(
        graph(
            "Cached, and what was possible",
            "Share of prompt tokens that came from a cache, and what that share had been if no conversation had been "
            "moved, evicted or changed. What is above the upper line is new text. The page Tokens tells where the gap "
            "comes from.",
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
        in_flight(),
        moves(),
    )


def _numbers(grid: Grid) -> None:
    errors = or_zero(rate("warmroute_requests_total", f'{BACKEND},code=~"5.."'))
    grid.add(
        stat(
            "Hit rate (5 min)",
            "Share of all prompt tokens of the last five minutes that the servers found in their prefix caches, by "
            "their own counters.",
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
            "Servers that pass their health checks, and all that are configured or found. Those that are asleep pass them "
            "too, and get no requests until they are woken.",
            Query(f"sum({now('warmroute_backend_up')})", "up"),
            Query(f"count({now('warmroute_backend_up')})", "configured"),
            Query(f"sum({now('warmroute_backend_sleeping')})", "asleep"),
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
