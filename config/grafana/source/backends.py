"""The page of each backend: state, cache and load."""

from .panels import BACKEND, BLUE, GREEN, RED, ROUTER, YELLOW, Column, Grid, Query, graph, states, table
from .queries import HIT, TOKENS_A_SECOND, hit_rates, in_flight, now, quantile, rate, seen

_ENGINE = "backend, model_name, engine"


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
            "Stalled, draining and asleep",
            "Whether an engine makes no steps while requests are there, whether a server is being emptied, and "
            "whether it is in sleep mode. Normal: no to all. One that is asleep is served by nobody until it is woken "
            "(`warmroute broadcast wake_up`), and has lost its cache.",
            Query(now("warmroute_backend_stalled"), "{{backend}} stalled"),
            Query(f"2 * {now('warmroute_backend_draining')}", "{{backend}} draining"),
            Query(f"3 * {now('warmroute_backend_sleeping')}", "{{backend}} asleep"),
            words={0: ("no", GREEN), 1: ("stalled", RED), 2: ("draining", YELLOW), 3: ("asleep", BLUE)},
        ),
        graph(
            "Drains: time left",
            "Time until a server that is being emptied is asked nothing more; 0 from then on. Conversations that are "
            "left then move at their next turn. One that stays at 0 waits for `warmroute undrain`, or for its end.",
            Query(now("warmroute_backend_drain_seconds_left"), "{{backend}}"),
            unit="s",
            width=8,
            empty="None drained",
        ),
        graph(
            "Failures by backend",
            "Exchanges per second that failed at each server: refused, broken off, or answered with a fault.",
            Query(rate("warmroute_backend_failures_total", by="backend"), "{{backend}}"),
            unit="cps",
            width=8,
        ),
        graph(
            "Errors by backend",
            "Requests per second that each server answered with a status of 500 or above.",
            Query(rate("warmroute_requests_total", f'{BACKEND},backend!="",code=~"5.."', by="backend"), "{{backend}}"),
            unit="reqps",
            width=8,
            empty="No errors",
        ),
    )
    _cache_of_each(grid)
    _events_of_each(grid)
    _load_of_each(grid)


_NO_TIER = "No such tier"
_NO_EVENTS = "No KV events"
_YES_NO = {0: "no", 1: "yes"}
_COLUMNS = (
    Column("Up", now("warmroute_backend_up", over="min"), steps=((None, RED), (1, GREEN)), words=_YES_NO),
    Column("Draining", now("warmroute_backend_draining"), words=_YES_NO),
    Column("Stalled", now("warmroute_backend_stalled"), steps=((None, GREEN), (1, RED)), words=_YES_NO),
    Column("Asleep", now("warmroute_backend_sleeping"), words=_YES_NO),
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
    behind = seen("warmroute_backend_external_prefix_cache_hits_total")
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
            "How long a conversation may pause and still find nine tenths of its tokens on each server, as its own "
            "turns show; a gap where too few conversations paused.",
            Query(now("warmroute_backend_warm_seconds"), "{{backend}}"),
            unit="s",
            empty="Not known yet",
        ),
        graph(
            "Hit rate of the tier behind (5 min window)",
            "Share of the tokens not found on the card that came back from host memory or a shared store.",
            Query(now("warmroute_backend_external_prefix_cache_hit_ratio", f'{BACKEND},window="5m"'), "{{backend}}"),
            Query(f'max(warmroute_fleet_external_prefix_cache_hit_ratio{{{ROUTER},window="5m"}})', "fleet"),
            unit="percentunit",
            top=1,
            decimals=1,
            empty=_NO_TIER,
            colors={"fleet": "text"},
        ),
        graph(
            "Tokens looked up in the tier behind",
            "Prompt tokens per second that the card did not hold: found in host memory or a shared store, or not. "
            "Much of it found: conversations pause for longer than the card keeps them, and the tier is worth its "
            "memory. Little found although they pause: it is too small.",
            Query(f"sum({behind})", "found"),
            Query(f"sum({seen('warmroute_backend_external_prefix_cache_queries_total')}) - sum({behind})", "not found"),
            unit=TOKENS_A_SECOND,
            stacked=True,
            empty=_NO_TIER,
            colors={"found": "light-green", "not found": "orange"},
        ),
    )


def _events_of_each(grid: Grid) -> None:
    grid.row("What the caches hold, by KV events")
    grid.add(
        states(
            "Events heard",
            "Whether it is known what each server's caches hold. Normal: yes, but for seconds after a start or a gap. "
            "Where it stays no, see that the router reaches the ports that `--kv-events-config` names.",
            Query(now("warmroute_kv_events_live", over="min"), "{{backend}}"),
            words={0: ("not heard", RED), 1: ("known", GREEN)},
            empty=_NO_EVENTS,
        ),
        graph(
            "Blocks known",
            "Blocks that each engine's cache is known to hold. Normal: it climbs to what the engine has, and stays "
            "there.",
            Query(now("warmroute_kv_blocks", by="backend, engine"), "{{backend}}: {{engine}}"),
            decimals=0,
            empty=_NO_EVENTS,
        ),
        graph(
            "Messages of events",
            "Messages of events that each router takes per second, one for each step of an engine that changes its "
            "cache.",
            Query(seen("warmroute_kv_event_messages_total", by="backend, engine"), "{{backend}}: {{engine}}"),
            unit="cps",
            empty=_NO_EVENTS,
        ),
        graph(
            "Missed events",
            "Times per minute that messages were missed. *replayed* ones were made up for. After *lost* and "
            "*overflow* all is learned anew: give vLLM a longer `buffer_steps`, or raise `kv_events.max_blocks`. "
            "Normal: none.",
            Query(
                f"60 * {rate('warmroute_kv_event_gaps_total', by='backend, result')}",
                "{{backend}}: {{result}}",
            ),
            unit="opm",
            empty=_NO_EVENTS,
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
            "Running requests per minute that had to give up their blocks: the cache is too small for what runs at "
            "once.",
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
        in_flight(),
        graph(
            "Figures up to date",
            "1 while the router can read a server's metrics. Hit rates of a server at 0 are not shown.",
            Query(now("warmroute_backend_metrics_fresh"), "{{backend}}"),
            decimals=0,
            top=1,
        ),
    )
