"""The page of conversations: how they are recognised, where they are put, and why they move."""

from .panels import BACKEND, GREEN, RED, ROUTER, YELLOW, Grid, Query, graph, stat
from .queries import NEVER, moves, now, or_zero, rate, sessions_by_backend

_REQUESTS = rate("warmroute_requests_total")


def sessions(grid: Grid) -> None:
    """Where are the conversations, and do they stay there?"""
    _numbers(grid)
    grid.row("Placement")
    grid.add(
        sessions_by_backend(),
        graph(
            "Requests/s by decision",
            "Why each request went where it went: *pin_hit* is a conversation at its own server.",
            Query(rate("warmroute_requests_total", by="decision"), "{{decision}}"),
            unit="reqps",
            stacked=True,
        ),
        moves(),
        graph(
            "Sessions forgotten",
            "Conversations per minute that were forgotten: idle for too long, or since the table was full.",
            Query(f"60 * {rate('warmroute_sessions_expired_total', ROUTER)}", "idle"),
            Query(f"60 * {rate('warmroute_sessions_evicted_total', ROUTER)}", "table full"),
            unit="opm",
            colors={"idle": "blue", "table full": "red"},
        ),
    )
    _recognition(grid)
    _trouble(grid)


def _numbers(grid: Grid) -> None:
    at_home = rate("warmroute_requests_total", f'{BACKEND},decision="pin_hit"')
    each = now("warmroute_sessions", over="sum")
    sources = "warmroute_requests_by_key_source_total"
    nobody = rate(sources, f'{ROUTER},source="none"')
    broken = rate("warmroute_broken_streams_total", f'{ROUTER},outcome!~"resumed|stopping"')
    grid.add(
        stat(
            "Sessions",
            "Conversations that are kept on a server now. With several routers each counts those it has seen.",
            f"sum(warmroute_sessions{{{BACKEND}}})",
            decimals=0,
        ),
        stat(
            "Fullest / mean",
            "Sessions of the fullest server over the mean: 1 is an even spread (of servers of the same weight).",
            f"max({each}) / avg({each})",
            steps=((None, GREEN), (1.5, YELLOW), (2, RED)),
            decimals=2,
            empty="No sessions",
        ),
        stat(
            "At their server",
            "Share of requests that went to the server which holds their conversation.",
            f"{or_zero(at_home)} / {_REQUESTS}",
            unit="percentunit",
            decimals=1,
        ),
        stat(
            "Moves/min",
            "Conversations that had to change their server, per minute; each costs a prefill there.",
            f"60 * {or_zero(rate('warmroute_session_moves_total', ROUTER))}",
            steps=((None, GREEN), (1, YELLOW), (10, RED)),
            decimals=1,
        ),
        stat(
            "Without identity",
            "Share of requests of which nothing tells whose conversation they belong to.",
            f"{or_zero(nobody)} / {rate(sources, ROUTER)}",
            unit="percentunit",
            decimals=1,
        ),
        stat(
            "Broken answers/min",
            "Streams per minute whose server died after content, and that could not be gone on with.",
            f"60 * {broken}",
            steps=NEVER,
            decimals=2,
        ),
    )


def _recognition(grid: Grid) -> None:
    grid.row("Recognition")
    grid.add(
        graph(
            "Requests/s by key source",
            "Where the identity of each request's conversation came from: *content* where the client sends no id.",
            Query(rate("warmroute_requests_by_key_source_total", ROUTER, by="source"), "{{source}}"),
            unit="reqps",
            stacked=True,
        ),
        graph(
            "Refused ids",
            "Values per minute that cannot name one conversation, by source and reason; *template* is a placeholder that "
            "nobody filled in.",
            Query(
                f"60 * {rate('warmroute_key_values_refused_total', ROUTER, by='source, reason')}",
                "{{source}}: {{reason}}",
            ),
            unit="opm",
            empty="None refused",
        ),
        graph(
            "What is remembered",
            "Entries that conversations are recognised by, of each kind.",
            Query(now("warmroute_recognition_entries", ROUTER, by="kind", over="sum"), "{{kind}}"),
            decimals=0,
        ),
        graph(
            "Not remembered any more",
            "Per minute: entries of histories forgotten since there was no room, and requests that named a response of which "
            "no maker is known.",
            Query(f"60 * {rate('warmroute_history_evicted_total', ROUTER)}", "history"),
            Query(f"60 * {rate('warmroute_response_owner_unknown_total', ROUTER)}", "response"),
            unit="opm",
        ),
    )


def _trouble(grid: Grid) -> None:
    grid.row("When something breaks")
    grid.add(
        graph(
            "Retries by reason",
            "Attempts per minute that were made again at another server before anybody saw content, by what failed.",
            Query(f"60 * {rate('warmroute_retries_total', ROUTER, by='reason')}", "{{reason}}"),
            unit="opm",
            stacked=True,
            empty="No retries",
        ),
        graph(
            "Broken streams by outcome",
            "Streams per minute whose server died after content: *resumed* went on elsewhere unnoticed, all others ended with "
            "an error.",
            Query(f"60 * {rate('warmroute_broken_streams_total', ROUTER, by='outcome')}", "{{outcome}}"),
            unit="opm",
            stacked=True,
            colors={"resumed": "green"},
        ),
    )
