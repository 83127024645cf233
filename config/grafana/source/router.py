"""The page of the router itself: is it healthy, and what does it do beside routing?"""

from .panels import GREEN, RED, ROUTER, YELLOW, Grid, Query, graph, stat, states
from .queries import NEVER, now, rate

_NONE_SHARED = "No shared store"
_ONE_PROCESS = "One process"
_LISTED = "Nothing to ask"


def router(grid: Grid) -> None:
    """Are the routers well?"""
    _numbers(grid)
    grid.row("Work")
    grid.add(
        graph(
            "Tasks",
            "asyncio tasks of each router: a number that only grows tells of a leak.",
            Query(now("warmroute_tasks", ROUTER, by="instance"), "{{instance}}"),
            decimals=0,
        ),
        graph(
            "In flight and waiting",
            "Requests that each router has open at servers, and those that wait for a full one (dashed).",
            Query(now("warmroute_requests_in_flight", ROUTER, by="instance", over="sum"), "{{instance}} in flight"),
            Query(now("warmroute_requests_waiting", ROUTER, by="instance", over="sum"), "{{instance}} waiting"),
            decimals=0,
            dashed=".* waiting",
        ),
        graph(
            "Clients",
            "Connections per minute: clients that left before their answer was whole, that kept the router waiting, "
            "that were refused since there were too many, and that did not bring a TLS handshake to an end.",
            Query(f"60 * {rate('warmroute_client_aborts_total', ROUTER)}", "left"),
            Query(f"60 * {rate('warmroute_client_timeouts_total', ROUTER, by='what')}", "too slow: {{what}}"),
            Query(f"60 * {rate('warmroute_connections_refused_total', ROUTER)}", "refused"),
            Query(f"60 * {rate('warmroute_tls_handshakes_failed_total', ROUTER)}", "no TLS"),
            unit="opm",
        ),
        graph(
            "Answered by the router itself",
            "Requests per second that no server answered, by status: refused for what they are (400, 401, 404, 413) "
            "or since there is no room or nobody to serve them (429, 503), and those whose client left before (499). "
            "Normal: some that clients do wrong, and none of 500 and above. The reference tells the cause and the "
            "cure of each.",
            Query(rate("warmroute_requests_total", f'{ROUTER},backend=""', by="code"), "{{code}}"),
            unit="reqps",
            stacked=True,
            empty="None",
        ),
        graph(
            "Log lines lost",
            "Access log lines per minute that nobody read fast enough.",
            Query(f"60 * {rate('warmroute_log_lines_dropped_total', ROUTER, by='instance')}", "{{instance}}"),
            unit="opm",
        ),
    )
    _processes(grid)
    grid.row("Faults and configuration")
    grid.add(
        graph(
            "Internal errors by place",
            "Faults of the router itself per minute, by where; its log has a traceback of each. *data* is the model "
            "API.",
            Query(f"60 * {rate('warmroute_internal_errors_total', ROUTER, by='where')}", "{{where}}"),
            unit="opm",
        ),
        graph(
            "Reloads",
            "Reloads of the configuration, by result, over the time that Grafana draws as one point.",
            Query(
                rate("warmroute_config_reloads_total", ROUTER, by="result", function="increase"),
                "{{result}}",
            ),
            colors={"ok": "green", "invalid": "red", "refused": "yellow"},
        ),
    )
    _discovery(grid)
    _store(grid)
    grid.row("Reading by Prometheus")
    grid.add(
        graph(
            "Scrape duration",
            "Seconds that Prometheus took to read each router's page.",
            Query(now("scrape_duration_seconds", ROUTER, by="instance"), "{{instance}}"),
            unit="s",
        ),
        graph(
            "Series",
            "Series on each router's page, those of the servers included.",
            Query(now("scrape_samples_scraped", ROUTER, by="instance"), "{{instance}}"),
            decimals=0,
        ),
    )


def _numbers(grid: Grid) -> None:
    grid.add(
        stat(
            "Routers",
            "Routers that Prometheus can read, and all that it should.",
            Query(f"sum(up{{{ROUTER}}})", "up"),
            Query(f"count(up{{{ROUTER}}})", "configured"),
            empty="None",
            decimals=0,
        ),
        stat(
            "Versions",
            "How many routers run each version.",
            Query(f"count by (version) (warmroute_build_info{{{ROUTER}}})", "{{version}}"),
            empty="None",
            decimals=0,
        ),
        stat(
            "Configuration",
            "0 while the last reload of a router has failed, so that the configuration of before is in force.",
            f"min(warmroute_config_reload_ok{{{ROUTER}}})",
            steps=((None, RED), (1, GREEN)),
            empty="None",
            decimals=0,
        ),
        stat(
            "Internal errors",
            "Faults of the router itself in the time that is shown.",
            rate("warmroute_internal_errors_total", ROUTER, function="increase", over="[$__range]"),
            steps=NEVER,
            decimals=0,
        ),
        stat(
            "Waiting",
            "Requests that wait for a full server now.",
            f"sum(warmroute_requests_waiting{{{ROUTER}}})",
            steps=((None, GREEN), (1, YELLOW), (100, RED)),
            decimals=0,
        ),
        stat(
            "Store",
            "1 while every router uses the shared store.",
            f"min(warmroute_store_up{{{ROUTER}}})",
            steps=((None, RED), (1, GREEN)),
            empty=_NONE_SHARED,
            decimals=0,
        ),
    )


def _processes(grid: Grid) -> None:
    deaths = rate("warmroute_worker_restarts_total", ROUTER, by="instance", function="increase")
    lost = rate("warmroute_worker_requests_lost_total", ROUTER, by="instance", function="increase")
    grid.row("Several processes (--workers)")
    grid.add(
        graph(
            "Processes that serve",
            "Processes of each router that serve the model API. Normal: as many as `--workers` says, but for a second "
            "after one died; at 0 nobody is served, and the log tells why they do not start.",
            Query(now("warmroute_workers", ROUTER, by="instance"), "{{instance}}"),
            decimals=0,
            empty=_ONE_PROCESS,
        ),
        graph(
            "Processes that died",
            "Processes that died and were replaced, and requests that were broken off with them, over the time that "
            "Grafana draws as one point. Normal: none. The log tells how each ended; one that was killed has lacked "
            "memory.",
            Query(deaths, "{{instance}} died"),
            Query(lost, "{{instance}} requests lost"),
            empty=_ONE_PROCESS,
            dashed=".* lost",
        ),
    )


def _discovery(grid: Grid) -> None:
    grid.row("Discovery of backends")
    grid.add(
        states(
            "Discovery works",
            "Whether each of what `discovery` asks answers with what can be used. Normal: yes. Meanwhile the backends "
            "of before stay in use; `warmroute status` and the log tell why.",
            Query(now("warmroute_discovery_up", ROUTER, by="source", over="min"), "{{source}}"),
            words={0: ("fails", RED), 1: ("works", GREEN)},
            width=8,
            empty=_LISTED,
        ),
        graph(
            "Backends by who names them",
            "Backends in use that each source names: *config* is the configuration, *hand* an operator. Normal: the "
            "same at all routers; each router is drawn for itself. A sudden fall means that a source names fewer, and "
            "those that are gone are being drained.",
            Query(now("warmroute_discovery_backends", ROUTER, by="source, instance"), "{{instance}} {{source}}"),
            decimals=0,
            width=8,
            empty="None",
        ),
        graph(
            "Failures of discovery",
            "Times per minute that a source could not be asked, or that its answer could not be used. Normal: none.",
            Query(f"60 * {rate('warmroute_discovery_failures_total', ROUTER, by='source')}", "{{source}}"),
            unit="opm",
            width=8,
            empty=_LISTED,
        ),
    )


def _store(grid: Grid) -> None:
    errors = rate("warmroute_store_errors_total", ROUTER, by="op")
    dropped = rate("warmroute_store_dropped_total", ROUTER, by="op")
    ignored = rate("warmroute_store_ignored_total", ROUTER, by="reason")
    grid.row("Shared store")
    grid.add(
        graph(
            "Store trouble",
            "Uses of the store per minute that failed or took too long, questions that were not asked since too many "
            "waited, and values that were of no use.",
            Query(f"60 * {errors}", "failed: {{op}}"),
            Query(f"60 * {dropped}", "not asked: {{op}}"),
            Query(f"60 * {ignored}", "of no use: {{reason}}"),
            unit="opm",
            width=8,
            empty=_NONE_SHARED,
        ),
        graph(
            "Sessions found in the store",
            "Conversations per minute that another router had placed.",
            Query(f"60 * {rate('warmroute_store_adopted_total', ROUTER, by='instance')}", "{{instance}}"),
            unit="opm",
            width=8,
            empty=_NONE_SHARED,
        ),
        graph(
            "Turns known by the store",
            "Turns per minute of which only other routers knew what was said before, by what was found. Normal: many "
            "where a load balancer deals turns out, few where it keeps each client at one router.",
            Query(f"60 * {rate('warmroute_store_recalled_total', ROUTER, by='of')}", "{{of}}"),
            unit="opm",
            width=8,
            empty=_NONE_SHARED,
        ),
    )
