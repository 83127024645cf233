"""warmroute keeps every conversation on the vLLM server whose prefix cache is warm for it.

A map of the package, in the order in which a request meets it:

    cli, config, app    flags and one YAML file -> a validated Config -> a running Router (settings, keeping, assembly: parts;
                        app runs and reloads; membership: backends come and go; housekeeping: loops beside; process: signals;
                        tuning: memory; notify: systemd; listeners: sockets)
    workers/            several processes on the data port: one supervisor, and workers that have the data path alone
    proxy/              the data path. server, reading: a client's connection, whose bytes become requests; data: which paths
                        exist; handler: one request, hop by hop; request and client: its two ends; placement: decide,
                        reserve, lease; connection, hearing, pool: the backends; handshake, tunnel: WebSockets; errors: our own
    core/               every decision, without I/O: identity, messages and history (whose turn is it), ring and policy (who
                        serves it), relay and sse (when has an answer begun), retry (may it be tried again), health, rates
    recognition/        identity that needs a memory: conversations known by content, ids that are none, who made a response
    fleet/              the backends now: registry owns their state; prober and scraper watch them
    discovery/          which backends there should be: a watched file, DNS, Kubernetes, the hand of an operator
    pins/               session -> backend and engine
    truth/              what became of each prompt token: expected of the cache, against what the backends say they had
    observe/            one record a request -> counters, metrics, access log, state as JSON
    web/                the admin listener and the dashboard
    sim/                a simulated vLLM with a real prefix cache, and a chat workload
    check, control      `warmroute check URL`; the commands that talk to a running router (joining: a backend more or less;
                        telling: what they print); saved: a request kept in a file
    simulate/           `warmroute simulate`: ways of placing requests compared on a workload, in simulated time
    lint/               `warmroute lint FILE`: prompts that change, found in a log of requests
    demo                simulated servers, router and chat in one process

Arrows point one way: core <- pins <- recognition <- fleet <- discovery <- truth <- observe <- proxy <- web, sim <- listeners,
notify, tuning <- settings <- keeping <- assembly, simulate <- housekeeping, membership <- app <- workers <- process, demo
<- cli. core imports only itself and the pure standard library. State changes are synchronous and whole; async code only moves
bytes.
"""

__version__ = "0.1.0"
