"""The page that tells why prompts were computed that a cache could have had."""

from .panels import BACKEND, ROUTER, Grid, Query, bars, graph, stat
from .queries import (
    CACHED,
    HIT,
    LOSS,
    LOST,
    OUTCOMES,
    RANGE,
    TOKENS_A_SECOND,
    or_zero,
    outcomes,
    rate,
    share_of,
    tokens,
)

_MISSED = "warmroute_missed_prompt_tokens_total"
_TURNS = rate("warmroute_conversation_turns_total", ROUTER)


def tokens_page(grid: Grid) -> None:
    """Where did the missed tokens go, and whose prompts change?"""
    _numbers(grid)
    grid.row("What became of prompt tokens")
    grid.add(
        outcomes(width=24),
        graph(
            "Outcomes as shares",
            "Share of prompt tokens with each outcome.",
            Query(f"{tokens(by='outcome')} / on () group_left () {tokens()}", "{{outcome}}"),
            unit="percentunit",
            top=1,
            stacked=True,
            colors=OUTCOMES,
        ),
        graph(
            "Cached share by backend",
            "Share of the prompt tokens of each server's requests that came from a cache, as its answers say.",
            Query(f"{tokens(CACHED, by='backend')} / {tokens(by='backend')}", "{{backend}}"),
            unit="percentunit",
            top=1,
            decimals=1,
        ),
    )
    grid.row("What was missed, and why")
    grid.add(
        graph(
            "Missed tokens by cause",
            "Prompt tokens per second that a cache could have had, by outcome and cause.",
            Query(rate(_MISSED, by="outcome, cause"), "{{outcome}}: {{cause}}"),
            unit=TOKENS_A_SECOND,
            stacked=True,
            empty="Nothing missed",
        ),
        bars(
            "Missed tokens by cause, in all",
            "The same over the whole time that is shown.",
            Query(
                f"sort_desc({rate(_MISSED, by='outcome, cause', function='increase', over=RANGE)})",
                "{{outcome}}: {{cause}}",
                instant=True,
            ),
            unit="short",
            empty="Nothing missed",
        ),
        graph(
            "Evicted by backend",
            "Share of each server's prompt tokens that it had cached for this conversation and has no more: its cache is too "
            "small for its sessions, or it was restarted.",
            Query(f"{tokens('evicted', by='backend')} / {tokens(by='backend')}", "{{backend}}"),
            unit="percentunit",
            decimals=1,
        ),
        graph(
            "Warm for",
            "How long a conversation may pause and still find nine tenths of its tokens on each server.",
            Query(f"max by (backend) (warmroute_backend_warm_seconds{{{BACKEND}}})", "{{backend}}"),
            unit="s",
            empty="Not known yet",
        ),
    )
    _changes(grid)


def _numbers(grid: Grid) -> None:
    grid.add(
        stat(
            "Cached",
            "Share of prompt tokens that came from a cache: reused on the server, or reloaded from the tier behind.",
            share_of(CACHED),
            unit="percentunit",
            steps=HIT,
            decimals=1,
        ),
        *(
            stat(title, text, share_of(outcome), unit="percentunit", steps=LOSS, decimals=1)
            for title, outcome, text in (
                ("Missed", LOST, "Share that a cache could have had and did not: the next three together."),
                (
                    "Evicted",
                    "evicted",
                    "Share that the server had cached and has no more: more KV memory, or fewer sessions.",
                ),
                ("Prompt changed", "prompt_changed", "Share lost since clients sent other text than the turn before."),
                ("Moved", "moved", "Share lost since conversations went on at another server or engine."),
            )
        ),
        stat(
            "Not known",
            "Share of which no server says whether it was cached; start vLLM with --enable-prompt-tokens-details.",
            share_of("unknown"),
            unit="percentunit",
            steps=LOSS,
            decimals=1,
        ),
    )


def _changes(grid: Grid) -> None:
    changes = "warmroute_prompt_changes_total"
    grid.row("Prompts that change")
    grid.add(
        graph(
            "Changed prompts by cause",
            "Turns per minute whose prompt did not begin with all of the last turn's. The reference tells what to change for "
            "each cause; *edited* and *shorter* are people's own doing.",
            Query(f"60 * {rate(changes, ROUTER, by='cause')}", "{{cause}}"),
            unit="opm",
            stacked=True,
            empty="No changes",
        ),
        graph(
            "Share of turns whose prompt changed, by source",
            "By where the conversation's identity came from, which tells the client.",
            Query(
                f"{rate(changes, ROUTER, by='source')} / {rate('warmroute_conversation_turns_total', ROUTER, by='source')}",
                "{{source}}",
            ),
            unit="percentunit",
            top=1,
            empty="No changes",
        ),
        stat(
            "Turns/s",
            "Turns per second that went on from one that is remembered.",
            or_zero(_TURNS),
            unit="cps",
        ),
        stat(
            "Turns changed",
            "Share of those turns whose prompt changed.",
            f"{or_zero(rate(changes, ROUTER))} / {_TURNS}",
            unit="percentunit",
            steps=LOSS,
            decimals=1,
        ),
        stat(
            "Remembered",
            "Conversations whose last turn is remembered, to tell what became of the next one's tokens.",
            f"sum(warmroute_truth_conversations{{{ROUTER}}})",
            decimals=0,
        ),
    )
