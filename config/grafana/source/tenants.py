"""The page of tenants: what each of them asks for, gets, and is refused."""

from .panels import GREEN, RED, ROUTER, YELLOW, Column, Grid, Query, Steps, bars, graph, stat, table
from .queries import HIT, RANGE, TOKENS_A_SECOND, or_zero, rate

_TENANT = f'{ROUTER},tenant=~"$tenant"'
_NONE = "No tenants"
_REFUSED: Steps = ((None, GREEN), (0.01, YELLOW), (0.1, RED))
_REQUESTS = rate("warmroute_tenant_requests_total", _TENANT)
_EACH = rate("warmroute_tenant_requests_total", _TENANT, by="tenant")
_REFUSALS = rate("warmroute_tenant_refused_total", _TENANT)
_EACH_REFUSALS = rate("warmroute_tenant_refused_total", _TENANT, by="tenant")


def _tokens(kind: str, by: str = "") -> str:
    return rate("warmroute_tenant_tokens_total", f'{_TENANT},kind="{kind}"', by=by)


def tenants(grid: Grid) -> None:
    """Who uses the servers, how well do their caches serve each, and whom do its limits stop?"""
    _numbers(grid)
    grid.add(
        table(
            "Tenants",
            "Each tenant now. Normal: nobody is refused for long, and tenants of like clients have like cached "
            "shares. Click a name to see that tenant alone.",
            "tenant",
            _COLUMNS,
            link="/d/warmroute-tenants?var-tenant=${__value.raw}&${__url_time_range}",
        )
    )
    grid.row("Requests")
    grid.add(
        graph(
            "Requests/s by tenant",
            "Requests finished per second of each tenant, refused ones too. One that suddenly asks for many times as "
            "much is bounded by `tenants.NAME` in the configuration.",
            Query(_EACH, "{{tenant}}"),
            unit="reqps",
            stacked=True,
            empty=_NONE,
        ),
        graph(
            "Refused by tenant",
            "Requests per minute that were refused since their tenant uses, or asks for, more than `tenants.NAME` "
            "allows: status 429, or 400 where a single request asks for too much. Normal: none, or short peaks. Where "
            "it lasts, the access log tells which limit: raise it, or tell the tenant to slow down.",
            Query(f"60 * {_EACH_REFUSALS}", "{{tenant}}"),
            unit="opm",
            empty="No refusals",
        ),
    )
    grid.row("Tokens")
    grid.add(
        graph(
            "Prompt tokens computed by tenant",
            "Prompt tokens per second that no cache had: what a tenant's prompts really cost.",
            Query(f"{_tokens('prompt', 'tenant')} - {_tokens('cached', 'tenant')}", "{{tenant}}"),
            unit=TOKENS_A_SECOND,
            stacked=True,
            empty=_NONE,
        ),
        graph(
            "Cached share by tenant",
            "Share of each tenant's prompt tokens that came from a cache. Normal: long chats and agents have 70 % and "
            "more, single questions little. One far below the others has a client that changes its prompts (the page "
            "Tokens tells the cause), or servers that do not say what was cached (--enable-prompt-tokens-details).",
            Query(f"{_tokens('cached', 'tenant')} / {_tokens('prompt', 'tenant')}", "{{tenant}}"),
            unit="percentunit",
            top=1,
            decimals=1,
            empty=_NONE,
        ),
        graph(
            "Completion tokens by tenant",
            "Tokens per second of the answers that each tenant got.",
            Query(_tokens("completion", "tenant"), "{{tenant}}"),
            unit=TOKENS_A_SECOND,
            stacked=True,
            empty=_NONE,
        ),
        bars(
            "Tokens by tenant, in all",
            "All tokens over the time that is shown; *cached* ones are a part of the *prompt*'s. Take a month to "
            "share costs out.",
            Query(
                "sort_desc("
                + rate("warmroute_tenant_tokens_total", _TENANT, by="tenant, kind", function="increase", over=RANGE)
                + ")",
                "{{tenant}}: {{kind}}",
                instant=True,
            ),
            unit="short",
            empty=_NONE,
        ),
    )


_COLUMNS = (
    Column("Requests/s", _EACH, "reqps"),
    Column("Refused", f"{_EACH_REFUSALS} / {_EACH}", "percentunit", 1, _REFUSED),
    Column("Prompt tokens", _tokens("prompt", "tenant"), TOKENS_A_SECOND),
    Column("Cached", f"{_tokens('cached', 'tenant')} / {_tokens('prompt', 'tenant')}", "percentunit", 1, HIT),
    Column("Completion tokens", _tokens("completion", "tenant"), TOKENS_A_SECOND),
)


def _numbers(grid: Grid) -> None:
    asked = rate("warmroute_tenant_requests_total", _TENANT, by="tenant", function="increase", over=RANGE)
    grid.add(
        stat(
            "Tenants that asked",
            "Tenants that had requests in the time that is shown.",
            f"count({asked} > 0)",
            empty=_NONE,
            decimals=0,
        ),
        stat(
            "Requests/s",
            "Requests of these tenants per second, refused ones too.",
            _REQUESTS,
            unit="reqps",
            empty=_NONE,
        ),
        stat(
            "Refused",
            "Share of their requests that were refused since a tenant uses, or asks for, more than it may. Normal: 0.",
            f"{or_zero(_REFUSALS)} / {_REQUESTS}",
            unit="percentunit",
            steps=_REFUSED,
            empty=_NONE,
            decimals=1,
        ),
        stat(
            "Prompt tokens",
            "Prompt tokens per second as the servers told them, cached ones too.",
            _tokens("prompt"),
            unit=TOKENS_A_SECOND,
            empty=_NONE,
        ),
        stat(
            "Cached",
            "Share of these prompt tokens that came from a cache.",
            f"{_tokens('cached')} / {_tokens('prompt')}",
            unit="percentunit",
            steps=HIT,
            empty=_NONE,
            decimals=1,
        ),
        stat(
            "Completion tokens",
            "Tokens of answers per second.",
            _tokens("completion"),
            unit=TOKENS_A_SECOND,
            empty=_NONE,
        ),
    )
