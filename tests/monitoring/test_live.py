"""A real Prometheus reads a running demo and two routers more; every query, rule and alert is asked of it."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ..integration.scripted import free_port
from .files import (
    DASHBOARDS,
    PROMETHEUS,
    RULES,
    Asked,
    Rule,
    filled_in,
    needs_prometheus,
    queries,
    read_json,
    read_yaml,
    rules,
    selectors,
)
from .others import BOUNDED, BUSY, PROCESSES, Others, others

pytestmark = needs_prometheus


@dataclass(frozen=True)
class Running:
    """A Prometheus that reads a demo and others, and the demo's two addresses."""

    http: httpx.Client
    data: str
    admin: str
    others: Others

    @property
    def demo(self) -> str:
        """As Prometheus calls the demo's router."""
        return instance(self.admin)

    def get(self, path: str, **parameters: str | list[str]) -> Any:
        """Ask Prometheus; fails with its words if it says that this cannot be answered."""
        answer = self.http.get(f"/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", answer
        assert not answer.get("warnings"), answer
        return answer["data"]

    def values(self, expr: str, *, instant: bool = True) -> list[float]:
        """The numbers of a query, of now or of the last minute; what is no number counts as nothing."""
        if instant:
            found = [series["value"][1] for series in self.get("query", query=expr)["result"]]
        else:
            end = time.time()
            data = self.get("query_range", query=expr, start=str(end - 60), end=str(end), step="5")
            found = [value for series in data["result"] for _, value in series["values"]]
        return [float(value) for value in found if value != "NaN"]


@contextmanager
def process(words: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is gone when the block ends; what it says is in the log."""
    with log.open("w") as out, subprocess.Popen(words, stdout=out, stderr=out, text=True, **options) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()


def wait_for(true: Callable[[], object], what: str, within: float = 60.0) -> Any:
    """The first value that counts; fails loudly when it does not come."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if found := true():
                return found
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    pytest.fail(f"after {within:g} s: {what}")


def instance(admin: str) -> str:
    return admin.removeprefix("http://")


def configured(folder: Path, *routers: str) -> Path:
    """The shipped configuration and rules, quickened, of these routers."""
    config, quick = read_yaml(PROMETHEUS), read_yaml(RULES)
    (job,) = config["scrape_configs"]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    job["static_configs"][0]["targets"] = [instance(admin) for admin in routers]
    for group in quick["groups"]:
        group["interval"] = "1s"
    (folder / RULES.name).write_text(yaml.safe_dump(quick))
    file = folder / PROMETHEUS.name
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("prometheus")
    demo = [sys.executable, "-m", "warmroute", "demo", "--users", "6", "--backends", "2", "--duration", "300"]
    with ExitStack() as stack:
        beside = stack.enter_context(others(folder))
        log = folder / "demo.log"
        stack.enter_context(process(demo, log))
        found = wait_for(lambda: re.findall(r"http://[\d.]+:\d+", log.read_text()), "the demo tells its addresses")
        address = f"127.0.0.1:{free_port()}"
        read = configured(folder, found[0], beside.kinds, beside.processes)
        words = ["prometheus", f"--config.file={read}", f"--web.listen-address={address}"]
        words += [f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
        stack.enter_context(process(words, folder / "prometheus.log"))
        http = stack.enter_context(httpx.Client(base_url=f"http://{address}", timeout=30))
        it = Running(http, data=found[1], admin=found[0], others=beside)
        wait_for(lambda: http.get("/-/ready").status_code == 200, "Prometheus is ready")
        wait_for(lambda: it.values(f'sum(warmroute_backend_up{{instance="{it.demo}"}}) == 2'), "both servers are up")
        _trouble(it)
        yield it


def _trouble(it: Running) -> None:
    """What the demo's own users do not do: prompts that change, an id that is none, conversations that have to move."""
    with httpx.Client(timeout=30) as http:

        def ask(system: str, session: str) -> None:
            messages = [{"role": "system", "content": system * 40}, {"role": "user", "content": "hello"}]
            body = {"model": "demo", "messages": messages, "max_tokens": 4}
            http.post(f"{it.data}/v1/chat/completions", json=body, headers={"x-session-id": session}).raise_for_status()

        for minute in range(3):
            ask(f"It is 2026-11-30 12:0{minute}. You are a helpful assistant. ", "changes")
            ask("You are a helpful assistant. ", "{{CHAT_ID}}")
        name = next(iter(http.get(f"{it.admin}/api/state").json()["backends"]))["name"]
        http.post(f"{it.admin}/api/backends/{name}/drain", json={"deadline": 0.1}).raise_for_status()
        wait_for(lambda: it.values(f'sum(warmroute_session_moves_total{{instance="{it.demo}"}}) > 0'), "they move")
        http.post(f"{it.admin}/api/backends/{name}/undrain").raise_for_status()


@pytest.mark.parametrize("asked", queries(), ids=str)
def test_a_query_is_answered(running: Running, asked: Asked) -> None:
    expr = filled_in(asked.expr)

    def values() -> list[float]:
        return running.values(expr, instant=asked.instant)

    wait_for(values, f"no value of {expr}")
    told = set(re.findall(r"{{(\w+)}}", asked.legend))

    def labelled() -> bool:
        """A series that the legend has a name for."""
        found = running.get("query", query=f"last_over_time(({expr})[1m:1s])")["result"]
        return any(told <= set(series["metric"]) for series in found)

    wait_for(labelled, f"no series of {expr} has all labels of {asked.legend}")


@pytest.mark.parametrize("rule", rules(), ids=str)
def test_a_rule_is_evaluated(running: Running, rule: Rule) -> None:
    """What is recorded is there. An alert has nothing to say, but all that it looks at is there."""
    running.values(rule.expr)
    there = selectors(rule.expr) if rule.alert else [rule.expr, rule.name]
    for expr in there:
        wait_for(partial(running.values, expr), f"no value of {expr}")


def test_prometheus_finds_no_fault_with_the_rules_and_none_fires(running: Running) -> None:
    def found() -> list[Any]:
        return [rule for group in running.get("rules")["groups"] for rule in group["rules"]]

    wait_for(lambda: all(rule["health"] == "ok" for rule in found()), "not every rule is well")
    assert sorted(rule["name"] for rule in found()) == sorted(rule.name for rule in rules())
    assert [rule["name"] for rule in found() if rule.get("state") == "firing"] == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_there_is_something_to_choose_from(running: Running, path: Path) -> None:
    for variable in read_json(path)["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert found
            assert running.get(f"label/{found[2]}/values", **{"match[]": filled_in(found[1])}), variable["name"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_marks_of_alerts_can_be_asked_for(running: Running, path: Path) -> None:
    (expr,) = [mark["expr"] for mark in read_json(path)["annotations"]["list"] if "expr" in mark]
    assert running.values(expr) == []


def test_what_is_shown_agrees_with_the_router(running: Running) -> None:
    """The numbers are those that the router itself tells, and shares are shares."""
    by_title = {(q.dashboard, q.panel, q.ref): filled_in(q.expr, instance=running.demo) for q in queries()}

    def sessions() -> bool:
        state = httpx.get(f"{running.admin}/api/state").json()
        return running.values(by_title["warmroute", "Sessions", "A"]) == [float(state["fleet"]["sessions"])]

    wait_for(sessions, "as many sessions as the router has")
    assert running.values(by_title["warmroute", "Backends up", "B"]) == [2.0]
    assert running.values(by_title["warmroute", "Backends up", "C"]) == [0.0]
    assert sum(running.values(by_title["warmroute-tokens", "Outcomes as shares", "A"])) == pytest.approx(1.0)
    (cached,) = running.values(by_title["warmroute", "Cached, and what was possible", "A"])
    (possible,) = running.values(by_title["warmroute", "Cached, and what was possible", "B"])
    assert 0.2 < cached <= possible < 1.0

    def alike() -> bool:
        """What the servers count, and what their answers say; the one is read later than the other."""
        ((counted,), (said,)) = (running.values(by_title["warmroute-tokens", "Cached", "A"]), running.values(rate))
        return abs(counted - said) < 0.1

    rate = by_title["warmroute", "Hit rate (5 min)", "A"]
    wait_for(alike, "the servers' counters and their answers tell the same")
    assert running.values(by_title["warmroute", "Alerts", "A"]) == [0.0]


def test_what_is_shown_of_the_others_is_so(running: Running) -> None:
    others = running.others

    def shown(dashboard: str, panel: str, ref: str = "A", *, admin: str = others.kinds, **chosen: str) -> list[float]:
        (expr,) = [q.expr for q in queries() if (q.dashboard, q.panel, q.ref) == (dashboard, panel, ref)]
        return running.values(filled_in(expr, instance=instance(admin), **chosen))

    backends, router, tenants = "warmroute-backends", "warmroute-router", "warmroute-tenants"
    behind, refused = "Tokens looked up in the tier behind", "Refused"
    wait_for(lambda: shown(backends, behind) > [0.0], "blocks come back from the tier")
    wait_for(lambda: shown(tenants, refused, tenant=BOUNDED) > [0.0], "a tenant is refused")
    wait_for(lambda: shown(backends, "Errors by backend") > [0.0], "servers answer 500")
    wait_for(lambda: shown("warmroute-sessions", "Retries by reason") > [0.0], "requests are tried again")
    (left,) = shown(backends, "Drains: time left")
    assert 0 < left < 600
    state = "Stalled, draining and asleep"
    assert [shown(backends, state, ref, backend=others.drained) for ref in "ABC"] == [[0.0], [2.0], [0.0]]
    assert [shown(backends, state, ref, backend=others.asleep) for ref in "ABC"] == [[0.0], [0.0], [3.0]]
    assert shown(backends, "Events heard") == [1.0]
    assert shown(backends, "Blocks known", backend=others.publishes)[0] > 1
    assert shown(backends, behind, "B") > [0.0]
    assert shown(router, "Discovery works") == [1.0]
    assert sorted(shown(router, "Backends by who names them")) == [0.0, 0.0, 6.0]  # configuration, hand, file
    assert shown(router, "Processes that serve", admin=others.processes) == [float(PROCESSES)]
    assert shown(router, "Store", admin=others.processes) == [1.0]
    assert shown(tenants, "Tenants that asked") == [2.0]
    assert shown(tenants, refused, tenant=BUSY) == [0.0]
    assert shown(tenants, refused, tenant=BOUNDED) < [1.0]
    (cached,) = shown(tenants, "Cached", tenant=BUSY)
    assert 0.2 < cached < 1
