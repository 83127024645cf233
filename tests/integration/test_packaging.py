"""What is shipped beside the code: image, compose file, example configuration."""

import json
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from pydantic import BaseModel

from warmroute import cli
from warmroute.config import BackendConfig, Config, load

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
GOLDEN = ROOT / "tests" / "golden"
EXAMPLE = CONFIG / "warmroute.yaml"


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
    steps = [list(step) for ended, step in groupby(builds[0], "&&".__eq__) if not ended]
    fetching = [step for step in steps if "--no-index" not in step]
    assert len(fetching) == 1
    assert "--require-hashes" in fetching[0]
    assert fetching[0][fetching[0].index("--requirement") + 1] == "requirements.lock"


def pinned(text: str) -> dict[str, str]:
    """Normalised name -> version of every line that pins one."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", text, re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


def required(requirement: str, extras: frozenset[str] = frozenset()) -> set[str]:
    """The names of a distribution and of all that it needs here, by what is installed."""
    found: set[str] = set()
    waiting = [(requirement, extras)]
    while waiting:
        name, wanted = waiting.pop()
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            marker = needed.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (wanted or {""})):
                known = re.sub(r"[-_.]+", "-", needed.name).lower()
                if known not in found:
                    found.add(known)
                    waiting.append((needed.name, frozenset(needed.extras)))
    return found


def test_lock_holds_all_that_the_image_needs_in_the_tested_versions_and_each_by_its_digests() -> None:
    """Made by `make lock`: whoever changes constraints.txt or the dependencies has to make it anew."""
    text = (ROOT / "requirements.lock").read_text()
    locked, tested = pinned(text), pinned((ROOT / "constraints.txt").read_text())
    assert {name: version for name, version in locked.items() if tested.get(name) != version} == {}
    needed = required("warmroute", frozenset({"dns", "kv-events", "otel", "workers"})) | {"hatchling"}
    assert needed - set(locked) == set()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries if "==" in entry)


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
    assert "127.0.0.1:8081/" in command[2]
    code = command[2].replace("127.0.0.1:8081/", f"127.0.0.1:{port}/")
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


# The installer of the test servers


def test_installer_wants_one_folder() -> None:
    script = ROOT / "tests" / "vllm" / "install.sh"
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == "install.sh: name one folder: install.sh DIR\n"
