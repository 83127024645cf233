"""The benchmarks run and their figures can be trusted: failures are counted, all CPU time is seen, nothing is left running."""

import asyncio
import json
import os
import random
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

from tests.bench import overload, processes, report, soak, wrk
from tests.bench.askers import Asked, Clients, Got, Habits, Tally, explained, history, length_of, outcome
from tests.bench.backend import EVENTS_BESIDE_TOKENS
from tests.bench.batching import Pace
from tests.bench.faulty import KINDS, answer_to, follow, prompt_ids, text_of
from tests.bench.flat import FEW, KNOWN, OLD, WIDE
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


def test_crowd_opens_all_its_streams_through_every_router(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = bench("crowd", "--quick", "--only", "warmroute", "--json", out, "--page", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == ["warmroute", DIRECT]
    for figures in found.values():
        assert (figures["streams"] >= 90, figures["failed"]) == (True, 0)
        assert 0 < figures["first byte p50 ms"] <= figures["first byte p99 ms"]
    assert "first byte p99 ms" in page.read_text()


def test_flat_asks_routers_that_know_and_have_more(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = bench("flat", "--quick", "--json", out, "--page", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == [FEW, KNOWN, WIDE, OLD]
    for figures in found.values():
        assert figures.pop("nothing to do: % of a CPU") >= 0
        assert len(figures) >= 2
        assert min(figures.values()) > 0
    assert "a new conversation" in page.read_text()


def test_workers_are_measured_beside_one(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = bench("workers", "--quick", "--json", out)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert list(found) == ["1", "2"]
    for figures in found.values():
        assert figures["failed"] == 0
        assert figures["CPU us/request"] > 0
    assert 0 <= found["2"]["supervisor's share of the CPU time"] < 1


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
        ("overload", ["--only", "none"], f"overload: none is not known; known are {'; '.join(overload.ROUTES)}\n"),
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
    assert set(by_wrk) == set(own) - {"events", "first_p50_ms", "first_p99_ms"}
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


# A soak: every answer is known to its last letter, and each failure must have a cause


def asked(*, stream: bool = True, resumable: bool = True, leaves: str | None = None) -> Asked:
    return Asked("r1", 1, 1, stream, resumable, leaves)


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
TOLD = b'data: {"error":{"message":"it broke off"}}\n\n'
TEXT = answer_to(history(1, 1), length_of(1, 1))


def test_a_soak_runs_from_end_to_end(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = bench("soak", "--minutes", 0.1, "--json", out, "--page", page)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    held = {check["what"]: check["held"] for check in found["checks"]}
    assert held.pop("memory after warm-up") is None  # too short a time to tell
    assert set(held.values()) == {True}
    assert {"tasks after the load", "failures that no fault explains"} <= held.keys()
    assert found["seen"]["whole"] > 100
    assert 0.1 < found["seen"]["left"] / sum(found["seen"].values()) < 0.3
    assert max(sample["in_flight"] for sample in found["samples"]) > 0
    assert max(sample["descriptors"] for sample in found["samples"]) > found["after"]["descriptors"]
    assert found["after"]["rss"] > 1 << 20
    assert done.stdout.strip() in page.read_text()


def test_an_answer_is_whole_to_the_last_letter_or_wrong() -> None:
    whole = Got(200, event(TEXT[:5]) + event(TEXT[5:]) + DONE, "whole")
    assert outcome(asked(), whole) == "whole"
    for data in (event(TEXT[:-1]), event(TEXT + " "), event(TEXT[:5]) + event(TEXT[4:]), b"data: {half\n\n", b""):
        assert outcome(asked(), whole._replace(body=data + DONE)) == "wrong"
    assert outcome(asked(), Got(200, event(TEXT), "whole")) == "wrong"
    assert outcome(asked(), Got(200, event(TEXT[:9]) + TOLD, "whole")) == "broken, and told"
    assert outcome(asked(), Got(200, event(TEXT[:9]) + TOLD + DONE, "whole")) == "wrong"
    assert outcome(asked(), Got(200, event("other") + TOLD, "whole")) == "wrong"
    assert outcome(asked(), Got(200, event(TEXT[:9]) + b"data: {ha", "cut")) == "broken off"
    assert outcome(asked(), Got(503, b"{}", "whole")) == "status 503"
    one = json.dumps({"choices": [{"message": {"content": TEXT}}]}).encode()
    assert outcome(asked(stream=False), Got(200, one, "whole")) == "whole"
    assert outcome(asked(stream=False), Got(200, one[:-5], "cut")) == "broken off"


def test_only_the_faults_that_it_met_explain_what_a_client_saw() -> None:
    plain, fixed, single = asked(), asked(resumable=False), asked(stream=False)
    assert explained("broken, and told", fixed, ["cut"])
    assert not explained("broken, and told", fixed, ["hang"])
    assert not explained("broken, and told", plain, ["cut"])  # it can be gone on with
    assert explained("broken, and told", plain, ["cut", "reset"])
    assert not explained("broken off", fixed, ["cut"])  # an event stream must say so
    assert explained("broken off", single, ["cut"])
    assert explained("late", plain, ["hang"])
    assert explained("status 502", plain, ["reset", "500"])
    assert explained("left", asked(leaves="amid"), [])
    assert not any(
        explained(seen, plain, KINDS) for seen in ("wrong", "left", "status 503", "not reached", "broken off")
    )
    assert not any(explained(seen, plain, [kind]) for seen in ("status 502", "status 0") for kind in KINDS)
    tally = Tally()
    tally.add(plain, "whole")
    tally.add(fixed, "broken, and told")
    assert tally.unexplained({"r1": ["cut"]}) == []
    assert [line.split(" (")[0] for line in tally.unexplained({"other": ["cut"]})] == ["r1: broken, and told"]


def test_an_answer_goes_on_where_it_was_cut() -> None:
    prompt = prompt_ids(history(3, 2))
    whole = follow(prompt[-1], 12)
    assert len(prompt) == 5
    assert whole == whole[:4] + follow(whole[3], 8)
    assert answer_to(history(3, 2), 12) == text_of(whole)
    assert answer_to(history(3, 1), 12) != answer_to(history(3, 2), 12)


@pytest.mark.parametrize(("faults", "explains"), [(0.0, True), (1.0, False)])
def test_without_a_router_the_faults_of_servers_are_seen(tmp_path: Path, faults: float, explains: bool) -> None:
    with running(module("faulty", "--faults", faults), CPU, tmp_path / "log", pipe=True) as process:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["port"]
        clients = Clients(port, Habits(rate=200, leave=0.2, patience=3.0), random.Random(1))
        asyncio.run(clients.run(20, 1.0))
        told = json.loads(soak.fetch(port, "/faults"))
    tally = clients.tally
    assert tally.seen["left"] > 0
    assert (tally.seen["whole"] > 50) is explains
    assert (tally.unexplained(told["faults"]) == []) is explains
    assert {kind for met in told["faults"].values() for kind in met} == (set() if explains else set(KINDS))
    assert told["running"] == 0


def sample(
    at: float, rss: float, descriptors: int = 10, tasks: int = 5, in_flight: int = 0, waiting: int = 0
) -> soak.Sample:
    return soak.Sample(at, int(rss * (1 << 20)), descriptors, tasks, in_flight, waiting, 0, 0)


def test_memory_is_judged_by_its_slope_after_warm_up() -> None:
    assert soak.slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert soak.slope([(0, 5), (1, 1), (2, 5), (3, 1)]) == pytest.approx(-0.8)
    warming = [sample(at, at) for at in range(0, 120, 5)]
    for growth, held in ((0.9, True), (1.1, False)):
        check = soak.growth([*warming, *(sample(at, 100 + growth * at / 60) for at in range(120, 600, 5))], 600)
        assert (check.held, check.found) == (held, f"{growth:+.3f} MiB/min")
    assert soak.growth(warming, 120).held is None


def test_what_is_not_given_back_is_a_miss() -> None:
    before = [sample(0, 50), sample(0, 50, tasks=7)]
    assert all(check.held for check in soak.given_back(before, sample(9, 90, tasks=7)))
    for more in (
        sample(9, 50, descriptors=11),
        sample(9, 50, tasks=8),
        sample(9, 50, in_flight=1),
        sample(9, 50, waiting=1),
    ):
        assert [check.held for check in soak.given_back(before, more)].count(False) == 1


def test_a_metric_that_is_missing_is_told() -> None:
    page = 'a{backend="x"} 1.0\na{backend="y"} 2.0\nab 9\n'
    assert soak.total(page, "a") == 3
    with pytest.raises(BenchError, match="shows no b"):
        soak.total(page, "b")


# Overload


def test_overload_runs_from_end_to_end(tmp_path: Path) -> None:
    page, out = tmp_path / "page.md", tmp_path / "out.json"
    shutil.copy(PAGE, page)
    done = bench("overload", "--quick", "--only", "limits; unlimited", "--json", out, "--page", page)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["found"]
    limited, unlimited = found["limits"]["2.0"], found["unlimited"]["2.0"]
    assert limited["of use/s"] > 0
    assert limited["refused/s"] > 0
    assert limited["refused at once p50 ms"] < 1e3 * 0.5
    assert unlimited["refused/s"] == limited["failed"] == unlimited["failed"] == 0
    assert done.stdout.strip() in page.read_text()


def test_capacity_is_that_of_a_full_batch() -> None:
    pace = Pace(max_num_seqs=4, step=0.02, per_seq=0.005, prefill=0.01)
    assert pace.capacity(10) == pytest.approx(4 / (10 * 0.04 + 4 * 0.01))


def test_what_counts_is_what_ended_in_time_and_in_the_seconds_that_count() -> None:
    extent = overload.Extent(seconds=12, skipped=2, slo=1)
    good = overload.Served(5, 200, 0.5, 3.0, "whole")
    rest = [
        overload.Served(1, 200, 0.5, 1.0, "whole"),  # too early to count
        overload.Served(13, 200, 0.5, 1.0, "whole"),
        overload.Served(6, 200, 1.5, 3.0, "whole"),
        overload.Served(6, 200, 0.5, 3.0, "cut"),
        overload.Served(7, 0, None, 4.0, "late"),
        *[overload.Served(8, 503, 0.01, 0.01, "whole")] * 3,
        *[overload.Served(8, 503, 1.0, 1.0, "whole")] * 2,
    ]
    found = overload.figures([good, *rest], 20.0, extent)
    assert {name: found[name] for name in ("of use/s", "answered too late/s", "gave up/s", "refused/s", "failed")} == {
        "of use/s": 0.1,
        "answered too late/s": 0.1,
        "gave up/s": 0.1,
        "refused/s": 0.5,
        "failed": 1.0,
    }
    assert found["refused at once p99 ms"] == pytest.approx(10)
    assert found["refused after waiting p50 ms"] == pytest.approx(1000)


def test_a_promise_that_is_not_kept_is_told() -> None:
    rows = {1.0: {"of use/s": 20.0}, 2.0: {"of use/s": 18.5, "refused at once p99 ms": 99.0}}
    assert overload.missed({"limits": rows, "unlimited": {1.0: {"of use/s": 9.0}, 2.0: {"of use/s": 1.0}}}) == []
    assert len(overload.missed({"limits": {**rows, 1.5: {"of use/s": 21.0}}})) == 1
    assert len(overload.missed({"limits": {**rows, 3.0: {"of use/s": 1.0, "refused at once p99 ms": 101.0}}})) == 1


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
