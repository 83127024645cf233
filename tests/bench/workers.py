"""What further worker processes bring: requests a second, and what each request costs, with one and with N of them.

    python -m tests.bench.workers [--workers 2] [--rounds 3] [--seconds 6] [--connections 64] [--size 8192] [--json OUT]

One worker and many may use the same CPUs, as many as there are workers at most. Load and backends have CPUs of their own
where the machine has more, and share those of the router where it has not: then requests/s say what is left beside the load,
and not what the router can. What it can is told by its CPU time: N CPUs serve N times as much as one where a request costs no
more, and no process has more to do than others. Rounds go over both in turn; medians are shown. Needs taskset and setpriv
(util-linux). `--quick` takes seconds, and only shows that everything works.
"""

import argparse
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from .processes import Cpus, cpu_seconds, free_port, module, program, require_tools, running, until_answers
from .scenarios import Bench, Extent, Scenario, body

_LISTENERS = 3


@dataclass(frozen=True, slots=True)
class Places:
    """CPUs of the router, as taskset writes them, and the one of load and backends; `shared` if that is among them."""

    router: str
    load: int
    shared: bool

    @classmethod
    def of(cls, workers: int) -> "Places":
        """CPUs for so many workers, and one more if there is one."""
        usable = sorted(os.sched_getaffinity(0))
        own = usable[:workers]
        return cls(",".join(map(str, own)), usable[min(workers, len(usable) - 1)], len(usable) <= workers)


def parts_of(root: int) -> dict[str, float]:
    """CPU seconds of the router's processes so far: the first one (the supervisor, if there are workers), and its children."""
    found = {"first": 0.0}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            words = Path(entry.path, "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        if int(entry.name) == root:
            found["first"] = seconds
        elif int(fields[1]) == root:
            name = f"worker {entry.name}" if b"warmroute.workers" in words else "store"
            found[name] = seconds
    return found


def requests_counted(admin: int) -> float:
    """The sum of warmroute_requests_total."""
    with urllib.request.urlopen(f"http://127.0.0.1:{admin}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("warmroute_requests_total{"))


def one_pass(
    workers: int, places: Places, backends: Sequence[int], scenario: Scenario, extent: Extent, scratch: Path
) -> dict[str, float]:
    """One scenario at a fresh router. Raises BenchError."""
    port, admin = free_port(), free_port()
    log = scratch / f"{workers}.log"
    urls = [f"http://127.0.0.1:{backend}" for backend in backends]
    words = ["serve", *urls, "--port", str(port), "--admin-port", str(admin), "--workers", str(workers)]
    with running([sys.executable, "-m", "warmroute", *words], places.router, log) as process:
        until_answers(port, body(scenario.size, stream=False), process, log)
        bench = Bench(extent, Cpus(-1, places.load), scratch)
        before, whole = parts_of(process.pid), cpu_seconds(process.pid)
        figures = bench.measure(scenario, port, process.pid)
        after, whole = parts_of(process.pid), cpu_seconds(process.pid) - whole
        used = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
        busiest = max(used.values())
        found = {name.partition(": ")[2]: value for name, value in figures.items()}
        found["supervisor's share of the CPU time"] = used["first"] / whole if workers > 1 else 0.0
        found["CPUs' worth that it can use"] = min(workers, whole / busiest) if busiest else 1.0
        found["requests counted"] = requests_counted(admin)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.bench.workers", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--size", type=int, default=8 << 10, help="bytes of a request's body")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true", help="takes seconds, and only shows that everything works")
    given = parser.parse_args()
    with program("workers"):
        require_tools()
        found = measure(given)
        print(table(found, given.workers))
        if given.json:
            given.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians by number of workers. Raises BenchError."""
    extent = Extent(1, 0.4, 0.0) if given.quick else Extent(given.rounds, given.seconds, 1.0)
    scenario = Scenario("JSON", "json", given.size, given.connections)
    rounds: dict[str, list[dict[str, float]]] = {"1": [], str(given.workers): []}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        command = module("backend", "--listeners", _LISTENERS)
        places = Places.of(given.workers)
        with running(command, places.load, scratch / "backend.log", pipe=True) as backend:
            assert backend.stdout is not None
            ports: list[int] = json.loads(backend.stdout.readline())["ports"]
            for number in range(extent.rounds):
                for workers in sorted(rounds, key=int, reverse=bool(number % 2)):
                    print(f"round {number + 1}, {workers} workers", file=sys.stderr, flush=True)
                    rounds[workers].append(one_pass(int(workers), places, ports, scenario, extent, scratch))
    return {
        workers: {name: median(one[name] for one in passes if name in one) for name in passes[0]}
        for workers, passes in rounds.items()
    }


def table(found: dict[str, dict[str, float]], workers: int) -> str:
    """Figures beside one another, and what follows of them."""
    one, many = found["1"], found[str(workers)]
    rows = [f"{'':36}{'1 worker':>12}{f'{workers} workers':>12}{'ratio':>8}"]
    for name, value in one.items():
        ratio = f"{many[name] / value:8.2f}" if value and name in many else ""
        rows.append(f"{name:36}{value:12.1f}{many.get(name, 0.0):12.1f}{ratio}")
    cost = one["CPU us/request"] / many["CPU us/request"] if many.get("CPU us/request") else 0.0
    can = many["CPUs' worth that it can use"] * cost
    rows.append(
        f"by CPU time, {workers} workers on {workers} CPUs of their own serve {can:.2f} times what one serves on one"
    )
    if Places.of(workers).shared:
        rows.append("load and backends shared the router's CPUs: requests/s are what was left beside them")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
