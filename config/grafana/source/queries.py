"""The PromQL that the pages have in common, and what stands on more than one of them."""

from .panels import BACKEND, GREEN, RED, ROUTER, YELLOW, Panel, Query, Steps, graph

RATE = "[$__rate_interval]"
RANGE = "[$__range]"
"""All of the time that is shown."""

CACHED = "reused|reloaded"
LOST = "moved|evicted|prompt_changed"
"""Outcomes of tokens that a cache could have had and did not."""
TOKENS_A_SECOND = "count:tok/s"

OUTCOMES = {
    "reused": "green",
    "reloaded": "light-green",
    "new": "blue",
    "first_turn": "light-blue",
    "block_rounding": "text",
    "moved": "purple",
    "evicted": "red",
    "prompt_changed": "orange",
    "unknown": "yellow",
}
"""Outcomes of prompt tokens in the colours that they have on every page: green was cached, blue never could be."""

HIT: Steps = ((None, RED), (0.3, YELLOW), (0.5, GREEN))
LOSS: Steps = ((None, GREEN), (0.05, YELLOW), (0.2, RED))
NEVER: Steps = ((None, GREEN), (1e-9, RED))
"""For what should not happen at all."""


def rate(metric: str, where: str = BACKEND, *, by: str = "", function: str = "rate", over: str = RATE) -> str:
    """Increases a second, summed over routers: for what each of them counts of its own requests."""
    return f"sum{f' by ({by})' if by else ''} ({function}({metric}{{{where}}}{over}))"


def seen(metric: str, where: str = BACKEND, *, by: str = "backend") -> str:
    """Increases a second of what a backend counts: several routers see the same, which is taken once."""
    return f"max by ({by}) (rate({metric}{{{where}}}{RATE}))"


def now(metric: str, where: str = BACKEND, *, by: str = "backend", over: str = "max") -> str:
    """Values of now."""
    return f"{over} by ({by}) ({metric}{{{where}}})"


def tokens(outcomes: str = "", *, by: str = "", function: str = "rate", over: str = RATE) -> str:
    """Prompt tokens with one of these outcomes (default: all)."""
    where = f'{BACKEND},outcome=~"{outcomes}"' if outcomes else BACKEND
    return rate("warmroute_prompt_tokens_total", where, by=by, function=function, over=over)


def share_of(outcomes: str) -> str:
    """Which part of the prompt tokens had one of these outcomes."""
    return f"{tokens(outcomes)} / {tokens()}"


def or_zero(expr: str) -> str:
    """Zero while a router runs that has no such series yet."""
    return f"({expr} or 0 * max(warmroute_build_info{{{ROUTER}}}))"


def quantile(q: float, metric: str, by: str = "") -> str:
    """A quantile of a histogram of the router's, by the label too if there is one."""
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', by=f'{by}, le' if by else 'le')})"


def hit_rates() -> Panel:
    """The curve that everything is about."""
    return graph(
        "Hit rate by backend (5 min window)",
        "Share of each server's prompt tokens of the last five minutes that its prefix cache held, by its own "
        "counters; a gap means no prompts.",
        Query(now("warmroute_backend_prefix_cache_hit_ratio", f'{BACKEND},window="5m"'), "{{backend}}"),
        Query(f'max(warmroute_fleet_prefix_cache_hit_ratio{{{ROUTER},window="5m"}})', "fleet"),
        unit="percentunit",
        top=1,
        decimals=1,
        colors={"fleet": "text"},
    )


def outcomes(width: int = 12) -> Panel:
    """Every prompt token, by what became of it."""
    return graph(
        "Prompt tokens by outcome",
        "What became of each prompt token. *reused* and *reloaded* came from a cache; *new*, *first_turn* and "
        "*block_rounding* could not; *moved*, *evicted* and *prompt_changed* could have; of *unknown* nobody says.",
        Query(tokens(by="outcome"), "{{outcome}}"),
        unit=TOKENS_A_SECOND,
        width=width,
        stacked=True,
        colors=OUTCOMES,
    )


def sessions_by_backend() -> Panel:
    return graph(
        "Sessions by backend",
        "Conversations that are kept on each server. With several routers each counts those it has seen.",
        Query(now("warmroute_sessions", over="sum"), "{{backend}}"),
        decimals=0,
    )


def moves() -> Panel:
    """Shown wherever somebody may ask why a conversation is somewhere else."""
    return graph(
        "Moves by reason",
        "Conversations per minute that went on at another server, by the decision that moved them; what their prompts "
        "had cached there is computed anew.",
        Query(f"60 * {rate('warmroute_session_moves_total', ROUTER, by='reason')}", "{{reason}}"),
        unit="opm",
        stacked=True,
        empty="No moves",
    )


def in_flight() -> Panel:
    return graph(
        "In flight by backend",
        "Requests that the router has open at each server, and those that wait for a full one.",
        Query(now("warmroute_requests_in_flight", over="sum"), "{{backend}}"),
        Query(f"sum(warmroute_requests_waiting{{{ROUTER}}})", "waiting"),
        decimals=0,
        colors={"waiting": "red"},
        dashed="waiting",
    )
