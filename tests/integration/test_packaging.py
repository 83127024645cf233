"""What is shipped beside the code: image, compose file, example configuration, Prometheus and Grafana files."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from warmroute import cli
from warmroute.config import BackendConfig, Config, load
from warmroute.core.health import Thresholds
from warmroute.fleet.registry import Registry
from warmroute.observe.counters import RequestCounters
from warmroute.observe.metrics import RouterCollector
from warmroute.pins.memory import PinTable
from warmroute.recognition.memory import remember

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
GOLDEN = ROOT / "tests" / "golden"
EXAMPLE = CONFIG / "warmroute.yaml"
DASHBOARD = CONFIG / "grafana" / "dashboards" / "warmroute.json"

promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is missing"
)


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


# The image


def instructions(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile in order, continued lines joined, comments left out."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    parsed = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(word.upper(), rest.strip()) for word, rest in parsed]


@pytest.fixture(scope="module")
def dockerfile() -> list[tuple[str, str]]:
    return instructions((ROOT / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def runtime(dockerfile: list[tuple[str, str]]) -> dict[str, str]:
    """The instructions of the last stage, each once."""
    start = max(i for i, (word, _) in enumerate(dockerfile) if word == "FROM")
    last = dockerfile[start:]
    assert len({word for word, _ in last}) == len(last)
    return dict(last)


def test_both_stages_have_the_same_base(dockerfile: list[tuple[str, str]]) -> None:
    # A wheel built for another Python or C library would not install.
    bases = [rest.split()[0] for word, rest in dockerfile if word == "FROM"]
    assert bases == ["python:3.13-slim", "python:3.13-slim"]


def test_build_context_has_all_that_is_copied_and_nothing_else(dockerfile: list[tuple[str, str]]) -> None:
    copied = {source for word, rest in dockerfile if word == "COPY" for source in rest.split()[:-1]}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)


def test_image_builds_with_the_tested_versions(dockerfile: list[tuple[str, str]]) -> None:
    builds = [shlex.split(rest) for word, rest in dockerfile if word == "RUN" and "pip wheel" in rest]
    assert len(builds) == 1
    assert builds[0][builds[0].index("--constraint") + 1] == "constraints.txt"


def test_image_runs_as_a_numbered_user_that_is_not_root(runtime: dict[str, str]) -> None:
    user, group = runtime["USER"].split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user}" in runtime["RUN"]


def test_image_serves_the_mounted_configuration_on_the_exposed_ports(runtime: dict[str, str]) -> None:
    assert json.loads(runtime["ENTRYPOINT"]) == ["warmroute"]
    arguments = json.loads(runtime["CMD"])
    flags = dict(zip(arguments[1::2], arguments[2::2], strict=True))
    assert arguments[0] == "serve"
    assert flags == {
        "--config": "/etc/warmroute/warmroute.yaml",
        "--host": "0.0.0.0",
        "--admin-host": "0.0.0.0",
    }
    listen = Config.from_urls(["http://backend"]).listen
    assert runtime["EXPOSE"].split() == [str(listen.port), str(listen.admin_port)]
    assert runtime["STOPSIGNAL"] == "SIGTERM"


class _Livez(BaseHTTPRequestHandler):
    """Answers /livez with the status of its server and everything else with 404."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=[200, 503])
def livez(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """A server whose /livez answers as the parameter says: its port and that status."""
    handler = type("Handler", (_Livez,), {"status": request.param})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port, request.param
        server.shutdown()
        thread.join()


def health_commands() -> list[list[str]]:
    runtime = dict(instructions((ROOT / "Dockerfile").read_text()))
    in_image: list[str] = json.loads(runtime["HEALTHCHECK"].partition("CMD")[2])
    in_compose: list[str] = read_yaml(ROOT / "docker-compose.yml")["services"]["router"]["healthcheck"]["test"][1:]
    return [in_image, in_compose]


@pytest.mark.parametrize("command", health_commands(), ids=["image", "compose"])
def test_health_check_tells_alive_from_not(command: list[str], livez: tuple[int, int]) -> None:
    port, status = livez
    assert command[:2] == ["python", "-c"]
    assert "127.0.0.1:8080/" in command[2]
    code = command[2].replace("127.0.0.1:8080/", f"127.0.0.1:{port}/")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30, check=False)
    assert (done.returncode == 0) == (status == 200)


# What both of them start


def started_commands() -> list[list[str]]:
    """The command lines, after `warmroute`, that the image and the compose file start."""
    in_image = json.loads(dict(instructions((ROOT / "Dockerfile").read_text()))["CMD"])
    services = read_yaml(ROOT / "docker-compose.yml")["services"].values()
    in_compose = [service["command"] for service in services if "build" in service]
    return [in_image, *in_compose]


@pytest.mark.parametrize("command", started_commands(), ids=lambda command: command[0])
def test_command_line_knows_what_is_started(command: list[str]) -> None:
    known = {name for parameter in cli.main.commands[command[0]].params for name in parameter.opts}
    given = {argument.split("=")[0] for argument in command if argument.startswith("--")}
    assert given - known == set()


# The compose file


@pytest.fixture(scope="module")
def compose() -> Any:
    return read_yaml(ROOT / "docker-compose.yml")


def test_compose_file_is_valid(compose: Any) -> None:
    schema = json.loads((GOLDEN / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(compose)


def test_schema_refuses_what_is_no_compose_file(compose: Any) -> None:
    # The check above is only worth something if a misspelt key fails it.
    schema = json.loads((GOLDEN / "compose-spec.json").read_text())
    broken = {**compose, "services": {"router": {**compose["services"]["router"], "healthchek": {}}}}
    with pytest.raises(jsonschema.ValidationError, match="healthchek"):
        jsonschema.Draft7Validator(schema).validate(broken)


def test_every_service_is_checked_and_restarted(compose: Any) -> None:
    for name, service in compose["services"].items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name


def test_images_are_named_by_version(compose: Any) -> None:
    for service in compose["services"].values():
        assert re.search(r":(v?\d+\.\d+|local)", service["image"])


def test_ports_are_published_on_loopback_only(compose: Any) -> None:
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_services_depend_on_services_that_always_run(compose: Any) -> None:
    services = compose["services"]
    needed = [name for service in services.values() for name in service.get("depends_on", {})]
    assert needed
    assert all("profiles" not in services[name] for name in needed)


def test_mounts_exist_and_cannot_be_written(compose: Any) -> None:
    mounts = [mount.split(":") for service in compose["services"].values() for mount in service.get("volumes", [])]
    files = [mount for mount in mounts if mount[0].startswith("./")]
    assert len(files) == 4
    for source, _, mode in files:
        assert (ROOT / source).exists()
        assert mode == "ro"
    assert {mount[0] for mount in mounts if not mount[0].startswith("./")} == set(compose["volumes"])


def test_router_may_drain_before_it_is_killed(compose: Any) -> None:
    grace = re.fullmatch(r"(\d+)s", compose["services"]["router"]["stop_grace_period"])
    assert grace
    limits = load(EXAMPLE, environment={}).limits
    assert float(grace[1]) > limits.pre_drain + limits.shutdown


def test_router_reads_the_mounted_example(compose: Any) -> None:
    router = compose["services"]["router"]
    assert "./config:/etc/warmroute:ro" in router["volumes"]
    assert f"--config=/etc/warmroute/{EXAMPLE.name}" in router["command"]


def test_simulated_servers_are_those_of_the_example(compose: Any) -> None:
    simulated = {name: service for name, service in compose["services"].items() if service.get("profiles") == ["demo"]}
    ports = {command[command.index("--port") + 1] for command in (s["command"] for s in simulated.values())}
    assert ports == {"8000"}
    assert [f"http://{name}:8000" for name in simulated] == [b.url for b in load(EXAMPLE, environment={}).backends]


# The example configuration


def keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a configuration that holds a value, by its path."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys(field.annotation, (*path, name))
        else:
            yield (*path, name)


def test_example_changes_nothing_but_the_backends() -> None:
    example = load(EXAMPLE, environment={})
    defaults = Config.from_urls([backend.url for backend in example.backends])
    assert example.model_dump(exclude={"backends"}) == defaults.model_dump(exclude={"backends"})
    assert example.specs == defaults.specs


def test_example_names_every_key() -> None:
    example = read_yaml(EXAMPLE)
    for path in keys(Config):
        value = example
        for part in path:
            assert part in value, f"config/warmroute.yaml lacks {'.'.join(path)}"
            value = value[part]
    named = set().union(*(backend for backend in example["backends"] if isinstance(backend, dict)))
    assert named == set(BackendConfig.model_fields)


def test_example_explains_every_key() -> None:
    values = [line for line in EXAMPLE.read_text().splitlines() if re.match(r"[ -]*[a-z_]+: ", line)]
    assert len(values) == len(list(keys(Config))) - 1 + len(BackendConfig.model_fields)
    assert [line for line in values if " # " not in line] == []


# Prometheus


@promtool
def test_prometheus_accepts_its_configuration() -> None:
    done = run_promtool("check", "config", str(CONFIG / "prometheus" / "prometheus.yml"))
    assert done.returncode == 0, done.stderr


def test_prometheus_scrapes_the_admin_listener_as_often_as_it_is_renewed(compose: Any) -> None:
    jobs = read_yaml(CONFIG / "prometheus" / "prometheus.yml")["scrape_configs"]
    example = load(EXAMPLE, environment={})
    assert [job["job_name"] for job in jobs] == ["warmroute"]
    assert jobs[0]["scrape_interval"] == "5s"
    assert example.metrics.scrape_interval == 5.0
    host, port = jobs[0]["static_configs"][0]["targets"][0].split(":")
    assert host in compose["services"]
    assert int(port) == example.listen.admin_port


def run_promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)


# Grafana


@pytest.fixture(scope="module")
def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


@pytest.fixture(scope="module")
def panels(dashboard: Any) -> list[Any]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


@pytest.fixture(scope="module")
def expressions(panels: list[Any]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel["targets"]]


def metric_names(expression: str) -> set[str]:
    """The metrics of a PromQL expression: its identifiers outside of strings, selectors and label lists, less functions."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    identifiers = set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*(?!\s*\(|[a-zA-Z0-9_:])", bare))
    return identifiers - {"or", "and", "unless", "bool"} - set(re.findall(r"([a-z_0-9]+)\s*\(", bare))


def router_metric_names() -> set[str]:
    """Every series name of the router's own /metrics, from the collector that makes them."""
    pins = PinTable(lambda: 0.0, idle_expiry=1.0, limit=1)
    config = Config.from_urls(["http://127.0.0.1:1"])
    registry = Registry(config.specs, pins, Thresholds(), 0.0)
    families = RouterCollector(
        RequestCounters(),
        registry,
        pins,
        lambda: 0.0,
        60.0,
        remember(lambda: 0.0, idle_expiry=1.0, entries=1, sessions=1, backends=1),
    ).collect()
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}
    return {family.name + suffix for family in families for suffix in suffixes[family.type]}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le, backend) (rate(a_total{code=~"b_total"}[1m])) / on (c) max(d)', {"a_total", "d"}),
        ("60 * sum(rate(e:f[$__rate_interval])) or 0 * g", {"e:f", "g"}),
        ('label_replace(h, "i", "j", "k", "")', {"h"}),
    ],
)
def test_metric_names_are_found_in_expressions(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def test_dashboard_asks_only_for_metrics_that_exist(expressions: list[str]) -> None:
    vllm = set(re.findall(r"^# TYPE (vllm:\S+)", (GOLDEN / "metrics-vllm-0.32.0.txt").read_text(), re.MULTILINE))
    used = set().union(*map(metric_names, expressions))
    assert used - vllm - router_metric_names() == set()
    assert len(used) >= 12


@promtool
def test_dashboard_expressions_are_promql(expressions: list[str], tmp_path: Path) -> None:
    fixed = [e.replace("$__rate_interval", "1m").replace("$backend", ".*") for e in expressions]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(fixed)]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = run_promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stderr
    assert f"{len(rules)} rules found" in done.stdout


def test_rates_follow_the_scrape_interval(expressions: list[str]) -> None:
    ranges = [found for expression in expressions for found in re.findall(r"\[([^]]*)\]", expression)]
    assert set(ranges) == {"$__rate_interval"}


def test_every_panel_says_what_it_shows(panels: list[Any]) -> None:
    for panel in panels:
        for target in panel["targets"]:
            shown = {re.sub(r"_bucket$", "", name) for name in metric_names(target["expr"])} - {"warmroute_build_info"}
            assert shown
            assert all(name in panel["description"] for name in shown), panel["title"]


def test_every_panel_tells_no_traffic_from_zero(panels: list[Any]) -> None:
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["noValue"] == "No traffic"
        options = [mapping["options"] for mapping in defaults["mappings"] if mapping["type"] == "special"]
        assert [(o["match"], o["result"]["text"]) for o in options] == [("null+nan", "No traffic")]


def test_dashboard_works_with_any_prometheus(dashboard: Any, panels: list[Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    used = [panel["datasource"] for panel in panels]
    used += [target["datasource"] for panel in panels for target in panel["targets"]]
    used.append(variables["backend"]["datasource"])
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in used)


def test_panels_are_distinct_and_do_not_overlap(dashboard: Any) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in dashboard["panels"]):
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert not cells & own
        cells |= own


def test_grafana_finds_dashboard_and_data_source(compose: Any, dashboard: Any) -> None:
    provisioning = CONFIG / "grafana" / "provisioning"
    (source,) = read_yaml(provisioning / "datasources" / "prometheus.yaml")["datasources"]
    (provider,) = read_yaml(provisioning / "dashboards" / "warmroute.yaml")["providers"]
    grafana = compose["services"]["grafana"]
    assert dashboard["uid"] == "warmroute"
    assert source["type"] == "prometheus"
    assert source["isDefault"] is True
    assert source["url"].removeprefix("http://").split(":")[0] in compose["services"]
    folder = provider["options"]["path"]
    assert f"./config/grafana/dashboards:{folder}:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{folder}/{DASHBOARD.name}"
    assert "./config/grafana/provisioning:/etc/grafana/provisioning:ro" in grafana["volumes"]


# The installer of the test servers


def test_installer_wants_one_folder() -> None:
    script = ROOT / "tests" / "vllm" / "install.sh"
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == "install.sh: name one folder: install.sh DIR\n"
