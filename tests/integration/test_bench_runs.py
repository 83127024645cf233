"""The benchmarks run and their figures can be trusted: failures are counted, all CPU time is seen, nothing is left running."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.bench import processes, report, wrk
from tests.bench.backend import EVENTS_BESIDE_TOKENS
from tests.bench.micro import GROUPS
from tests.bench.processes import ROOT, BenchError, Cpus, cpu_seconds, module, output_of, running, until_answers
from tests.bench.rendezvous import Rendezvous
from tests.bench.routers import DIRECT, ROUTERS
from tests.bench.scenarios import SCENARIOS, body, table_figures
from tests.bench.timing import Scale, bytes_made, seconds

pytestmark = pytest.mark.skipif(
    shutil.which("taskset") is None or shutil.which("setpriv") is None, reason="taskset or setpriv is missing"
)
PAGE = ROOT / "docs" / "benchmarks.md"
CPU = Cpus.available().rest


def bench(name: str, *words: object, within: float = 240.0) -> subprocess.CompletedProcess[str]:
    command = module(name, *words)
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=within)


# Both commands, from end to end


def test_overhead_measures_every_router_that_is_here(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = bench("overhead", "--quick", "--json", out, "--page", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    here = [name for name, router in ROUTERS.items() if router.find()]
    assert "warmroute" in here
    assert found["troubles"] == []
    assert list(found["medians"]) == [*here, DIRECT]
    assert [line.split()[0] for line in found["missing"]] == [name for name in ROUTERS if name not in here]
    for name, figures in found["medians"].items():
        for scenario in SCENARIOS:
            mine = {row.removeprefix(f"{scenario.name}: "): v for row, v in figures.items() if scenario.name in row}
            assert mine.pop("failed") == 0
            expected = {"first byte p50 ms"} if scenario.kind == "stream" else {"requests/s", "p50 ms", "p99 ms"}
            cpu = "CPU us/chunk" if scenario.kind == "stream" else "CPU us/request"
            assert set(mine) == expected | ({cpu} if name != DIRECT else set())
            assert all(value > 0 for row, value in mine.items() if row != cpu)  # 10 ms of CPU may round to none
    assert done.stdout.strip() in page.read_text()
    assert "warmroute" in found["versions"]


def test_micro_measures_every_group(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = bench("micro", "--quick", "--json", out, "--page", page)
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert all(row["value"] > 0 for row in rows)
    begun = {row["what"].split(":")[0].split()[0] for row in rows}
    assert begun >= {
        "decide",
        "ring",
        "rendezvous",
        "recognise",
        "answer",
        "remembered",
        "relay",
        "usage_from",
        "pins",
        "metrics",
        "record",
    }
    assert len({row["what"] for row in rows}) == len(rows)
    assert done.stdout.strip() in page.read_text()


@pytest.mark.parametrize(
    ("name", "words", "told"),
    [
        ("overhead", ["--only", "envoy"], f"overhead: envoy is no router; known are {', '.join(ROUTERS)}\n"),
        ("micro", ["--only", "rings"], f"micro: rings is no group; known are {', '.join(GROUPS)}\n"),
    ],
)
def test_an_unknown_name_is_one_line(name: str, words: list[str], told: str) -> None:
    done = bench(name, *words)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


def started_with(mark: str) -> set[int]:
    """Ids of the live processes whose environment holds this text; one that has ended shows none."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in file.read_bytes():
                found.add(int(file.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running(number: signal.Signals, tmp_path: Path) -> None:
    words = ("--only", "warmroute", "--rounds", 1, "--seconds", 30)
    process = subprocess.Popen(
        ["env", "--default-signal=INT", *module("overhead", *words)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    try:
        while len(started_with(str(tmp_path))) < 4:  # itself, backend, router, load
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(30) != 0
    finally:
        process.kill()
        process.wait()
    while started_with(str(tmp_path)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# The load, and what is counted


@contextmanager
def backend(tmp_path: Path, tokens: int) -> Iterator[int]:
    command = module("backend", "--listeners", 1, "--tokens", tokens, "--gap", 0.001)
    with running(command, CPU, tmp_path / "backend.log", pipe=True) as process:
        assert process.stdout is not None
        port: int = json.loads(process.stdout.readline())["ports"][0]
        yield port


def chat(folder: Path, *, stream: bool = False) -> Path:
    file = folder / "body.json"
    file.write_bytes(body(1000, stream=stream))
    return file


def load(kind: str, port: int, file: Path, tokens: int) -> dict[str, float]:
    words = (kind, port, "--body", file, "--connections", 4, "--seconds", 0.2, "--tokens", tokens)
    found: dict[str, float] = json.loads(output_of(module("loadgen", *words), CPU, 60))
    return found


def test_a_stream_without_all_its_events_is_a_failed_one(tmp_path: Path) -> None:
    file = chat(tmp_path, stream=True)
    with backend(tmp_path, tokens=5) as port:
        whole, short = load("stream", port, file, tokens=5), load("stream", port, file, tokens=6)
    assert whole["failed"] == 0
    assert whole["events"] == whole["requests"] * (5 + EVENTS_BESIDE_TOKENS) > 0
    assert (short["requests"], short["events"]) == (0, 0)
    assert short["failed"] > 0


def test_a_broken_connection_is_a_failed_request(tmp_path: Path) -> None:
    file = chat(tmp_path)
    with backend(tmp_path, tokens=5) as port:
        assert load("json", port, file, tokens=5)["requests"] > 0
    gone = load("json", port, file, tokens=5)
    assert (gone["requests"], gone["failed"]) == (0, 4)


@pytest.mark.skipif(not wrk.available(), reason="wrk is missing")
def test_wrk_gives_the_same_figures_as_the_own_generator(tmp_path: Path) -> None:
    file = chat(tmp_path)
    with backend(tmp_path, tokens=5) as port:
        by_wrk = wrk.run(port, file, 4, 1, CPU, tmp_path)
        own = load("json", port, file, tokens=5)
    assert by_wrk["requests"] > 0
    assert by_wrk["failed"] == 0
    assert set(by_wrk) == set(own) - {"events", "first_p50_ms"}
    assert 0 < by_wrk["p50_ms"] <= by_wrk["p99_ms"]
    with pytest.raises(BenchError, match="unable to connect"):
        wrk.run(port, file, 4, 1, CPU, tmp_path)


def test_an_answer_of_another_status_is_a_failed_request(tmp_path: Path) -> None:
    file, port = chat(tmp_path), processes.free_port()
    refusing = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]  # knows no POST: 501
    with running(refusing, CPU, tmp_path / "server.log") as process:
        with pytest.raises(BenchError, match="gave no answer within 2 s"):
            until_answers(port, b"{}", process, tmp_path / "server.log", within=2.0)
        refused = [load("json", port, file, tokens=5)]
        if wrk.available():
            refused.append(wrk.run(port, file, 4, 1, CPU, tmp_path))
    assert [figures["requests"] for figures in refused] == [0] * len(refused)
    assert all(figures["failed"] > 4 for figures in refused)


def test_cpu_time_is_that_of_children_too_also_of_ended_ones(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"""
import subprocess, sys, time
subprocess.run([sys.executable, "-c", {burn!r}], check=True)
child = subprocess.Popen([sys.executable, "-c", {burn!r} + "\\nprint(1, flush=True); input()"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
print("burnt", flush=True)
child.wait()
"""
    with running([sys.executable, "-c", code], CPU, tmp_path / "log", pipe=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"
        used = cpu_seconds(process.pid)
        assert used >= 0.55
        assert cpu_seconds(os.getpid()) >= used


def test_figures_of_a_scenario() -> None:
    seen = {"requests": 2000.0, "failed": 3.0, "seconds": 4.0, "events": 1000.0, "p50_ms": 1.0, "p99_ms": 2.0}
    named = table_figures(SCENARIOS[0], seen, 0.5)
    assert all(name.startswith("JSON 8 KB, 1 connection: ") for name in named)
    assert {name.split(": ")[1]: value for name, value in named.items()} == {
        "CPU us/request": 250.0,
        "requests/s": 500.0,
        "p50 ms": 1.0,
        "p99 ms": 2.0,
        "failed": 3.0,
    }
    named = table_figures(SCENARIOS[-1], {**seen, "first_p50_ms": 0.7}, 0.5)
    assert list(named.values()) == [500.0, 0.7, 3.0]
    nothing = {"requests": 0.0, "failed": 4.0, "seconds": 4.0, "events": 0.0}
    assert list(table_figures(SCENARIOS[-1], nothing, 0.5).values()) == [4.0]


@pytest.mark.parametrize("size", [8 << 10, 200 << 10])
def test_bodies_are_as_long_as_they_say(size: int) -> None:
    content = body(size, stream=True)
    assert len(content) == size
    assert json.loads(content)["stream"] is True


# Timing, tables


def test_the_best_batch_counts() -> None:
    times = iter([0.0, 1.0, 5.0, 5.5, 9.0, 9.75])  # three batches of one call: 1.0, 0.5 and 0.75 s
    assert seconds(lambda: None, Scale(batch=0.4, batches=3), lambda: next(times)) == 0.5


def test_bytes_made_are_those_that_stay() -> None:
    assert 10_000 <= bytes_made(lambda: bytearray(10_000)) < 11_000
    assert bytes_made(lambda: len(bytearray(10_000))) < 1_000


def test_rendezvous_gives_every_name_once_and_loses_only_the_keys_of_a_lost_one() -> None:
    names = [f"b{i}" for i in range(5)]
    every, fewer = Rendezvous(names), Rendezvous(names[:-1])
    keys = [b"key%d" % i for i in range(500)]
    assert all(sorted(every.order(key)) == names and every.order(key)[0] == every.home(key) for key in keys)
    assert all(fewer.order(key) == [name for name in every.order(key) if name != "b4"] for key in keys)
    assert {every.home(key) for key in keys} == set(names)


def test_medians_and_ratios() -> None:
    rounds = {"a": [{"x": 1.0, "y": 5.0}, {"x": 3.0}, {"x": 100.0}], "ref": [{"x": 2.0}], "gone": []}
    found = report.medians(rounds)
    assert found == {"a": {"x": 3.0, "y": 5.0}, "ref": {"x": 2.0}}
    found["a"]["z"] = 23817.2
    assert report.compared(found, "ref").splitlines() == [
        "|  | a | ref |",
        "| --- | ---: | ---: |",
        "| x | 3 (1.50x) | 2 |",
        "| y | 5 | - |",
        "| z | 23,817 | - |",
    ]


def test_a_section_is_replaced_and_the_rest_of_the_page_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: begin -->\nold\n<!-- a: end -->\nbetween\n<!-- b: begin --><!-- b: end -->\n")
    for _ in range(2):
        report.write_section(page, "a", "new")
        report.write_section(page, "b", "other")
    assert page.read_text() == (
        "before\n<!-- a: begin -->\nnew\n<!-- a: end -->\nbetween\n<!-- b: begin -->\nother\n<!-- b: end -->\n"
    )
    with pytest.raises(BenchError, match="no place for the table: write <!-- c: begin -->"):
        report.write_section(page, "c", "lost")
    with pytest.raises(BenchError, match="No such file"):
        report.write_section(tmp_path / "none.md", "a", "lost")


def test_one_cpu_for_both_is_told() -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    shared, apart = (report.conditions(when, "command", Cpus(0, rest), 0.5) for rest in (0, 1))
    assert shared[:-1] == apart
    assert "one CPU only" in shared[-1]
    assert apart[0].startswith("Measured 2026-01-02 on ")
    assert "`command`" in apart[1]
