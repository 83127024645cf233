"""Results as a table for people, and as JSON."""

from collections.abc import Mapping
from dataclasses import asdict

from rich import box
from rich.table import Table

from .policies import Policy
from .result import Result
from .run import Setting
from .workload import Workload

Results = Mapping[Policy, Result]


def heading(workload: Workload, setting: Setting, pooled: float) -> str:
    """What was asked of what, and what could be had at most."""
    return (
        f"{workload.name}: {len(workload.requests):,} requests on {setting.backends} backends of {setting.blocks:,} "
        f"blocks of {workload.block_size} tokens; one cache of all blocks would hit {pooled:.1%}"
    )


def as_table(pooled: float, results: Results) -> Table:
    """One row a policy."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("policy", no_wrap=True)
    titles = (
        "hit\nrate",
        "of\npooled",
        "prefill\nmax/mean",
        "request\nmax/mean",
        "TTFT ms\np50",
        "TTFT ms\np95",
        "moves",
    )
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    more = [name for name in ("refused", "resumed", "lost") if any(getattr(r, name) for r in results.values())]
    for name in more:
        table.add_column(name, justify="right", no_wrap=True)
    for policy, result in results.items():
        table.add_row(
            policy.value,
            f"{result.hit_rate:.1%}",
            _share(result, pooled),
            f"{result.uneven('prefilled_tokens'):.2f}",
            f"{result.uneven('requests'):.2f}",
            f"{result.ttft(0.5) * 1000:,.0f}",
            f"{result.ttft(0.95) * 1000:,.0f}",
            f"{len(result.moves):,}",
            *(f"{getattr(result, name):,}" for name in more),
        )
    return table


def _share(result: Result, pooled: float) -> str:
    return f"{result.hit_rate / pooled:.1%}" if pooled else "-"


def as_dict(workload: Workload, setting: Setting, pooled: float, results: Results) -> dict[str, object]:
    """All of it. Times are in seconds."""
    return {
        "workload": {
            "name": workload.name,
            "requests": len(workload.requests),
            "prompt_tokens": sum(request.prompt for request in workload.requests),
            "block_size": workload.block_size,
        },
        "setting": {
            "backends": setting.backends,
            "blocks": setting.blocks,
            "timing": asdict(setting.timing),
            "events": [asdict(event) for event in setting.events],
        },
        "pooled_hit_rate": pooled,
        "policies": {policy.value: _result(result, pooled) for policy, result in results.items()},
    }


def _result(result: Result, pooled: float) -> dict[str, object]:
    return {
        "hit_rate": result.hit_rate,
        "share_of_pooled": result.hit_rate / pooled if pooled else None,
        "prefilled_max_mean": result.uneven("prefilled_tokens"),
        "prompt_max_mean": result.uneven("prompt_tokens"),
        "requests_max_mean": result.uneven("requests"),
        "ttft_p50": result.ttft(0.5),
        "ttft_p95": result.ttft(0.95),
        "sessions": result.sessions,
        "moves": len(result.moves),
        "refused": result.refused,
        "resumed": result.resumed,
        "lost": result.lost,
        "decisions": dict(sorted(result.decisions.items())),
        "backends": {
            name: {**asdict(load), "prefilled_tokens": load.prefilled_tokens, "whole_run": name in result.steady}
            for name, load in result.loads.items()
        },
    }
