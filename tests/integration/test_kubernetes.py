"""The manifests that are shipped: valid for Kubernetes, true to each other and to the router."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from warmroute import cli
from warmroute.app import Router
from warmroute.config import Config, load

from .conftest import StartRouter
from .scripted import RawClient, Scripted

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "config" / "kubernetes"
KUBECTL = shutil.which("kubectl")
VERSIONS = ("1.31", "1.34", "1.37")
CONFIG = FOLDER / "warmroute.yaml"

LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
CREDENTIALS = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "key": {"type": "string"}},
    "required": ["name", "key"],
    "additionalProperties": False,
}
SELECTOR = {"type": "object", "properties": {"matchLabels": LABELS}, "required": ["matchLabels"]}
ENDPOINT = {
    "type": "object",
    "properties": {
        "port": {"type": "string"},
        "path": {"type": "string", "pattern": "^/"},
        "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
        "authorization": {
            "type": "object",
            "properties": {"credentials": CREDENTIALS},
            "required": ["credentials"],
            "additionalProperties": False,
        },
    },
    "required": ["port"],
    "additionalProperties": False,
}
POD_MONITOR = {
    "type": "object",
    "properties": {
        "selector": SELECTOR,
        "podMetricsEndpoints": {"type": "array", "items": ENDPOINT, "minItems": 1},
    },
    "required": ["selector", "podMetricsEndpoints"],
    "additionalProperties": False,
}
"""What is used of a PodMonitor's spec, as the Prometheus Operator defines it (monitoring.coreos.com/v1)."""


def documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


KUSTOMIZATION = documents((FOLDER / "kustomization.yaml").read_text())[0]
MANIFESTS = [document for name in KUSTOMIZATION["resources"] for document in documents((FOLDER / name).read_text())]


def manifest(kind: str, name: str = "warmroute") -> dict[str, Any]:
    (found,) = [m for m in MANIFESTS if (m["kind"], m["metadata"]["name"]) == (kind, name)]
    return found


def check(document: dict[str, Any], version: str) -> None:
    """Raises if a manifest is not valid, or has a key that nothing knows."""
    if document["kind"] == "PodMonitor":
        assert document["apiVersion"] == "monitoring.coreos.com/v1"
        jsonschema.validate(document["spec"], POD_MONITOR)
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", MANIFESTS, ids=lambda m: f"{m['kind']} {m['metadata']['name']}")
def test_each_manifest_is_valid(document: dict[str, Any], version: str) -> None:
    check(document, version)


@pytest.mark.parametrize("kind", ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "PodMonitor"])
def test_a_key_that_nothing_knows_is_found(kind: str) -> None:
    document = manifest(kind)
    wrong = {**document, "spec": {**document["spec"], "unheardOf": 1}}
    with pytest.raises((kubernetes_validate.ValidationError, jsonschema.ValidationError)):
        check(wrong, VERSIONS[0])


def test_every_file_is_part_of_the_whole() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    generated = {name for generator in KUSTOMIZATION["configMapGenerator"] for name in generator["files"]}
    assert files == {*KUSTOMIZATION["resources"], *generated}


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
def test_kubectl_puts_them_together() -> None:
    assert KUBECTL is not None
    done = subprocess.run([KUBECTL, "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    built = documents(done.stdout)
    for document in built:
        check(document, VERSIONS[-1])
    assert len(built) == len(MANIFESTS) + 1  # and the ConfigMap
    (deployment,) = [d for d in built if d["kind"] == "Deployment" and d["metadata"]["name"] == "warmroute"]
    (config,) = [d for d in built if d["kind"] == "ConfigMap"]
    pod = deployment["spec"]["template"]["spec"]
    assert pod["volumes"][0]["configMap"]["name"] == config["metadata"]["name"]
    assert pod["containers"][0]["image"] == "registry.example/warmroute:0.1.0"
    assert config["data"]["warmroute.yaml"] == CONFIG.read_text()


# True to each other


def pods() -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    for document in MANIFESTS:
        if document["kind"] == "Deployment":
            template = document["spec"]["template"]
            assert document["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            yield template["metadata"]["labels"], template["spec"]


def ports_of(selector: dict[str, str]) -> set[str]:
    """The named ports of the one pod that these labels select."""
    (pod,) = [pod for labels, pod in pods() if selector.items() <= labels.items()]
    return {port["name"] for container in pod["containers"] for port in container["ports"]}


def test_what_selects_pods_selects_one_kind_of_them_and_ports_that_they_have() -> None:
    for document in MANIFESTS:
        spec = document["spec"]
        match document["kind"]:
            case "Service":
                assert {port["targetPort"] for port in spec["ports"]} <= ports_of(spec["selector"])
            case "PodDisruptionBudget":
                assert ports_of(spec["selector"]["matchLabels"])
            case "PodMonitor":
                told = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
                assert told <= ports_of(spec["selector"]["matchLabels"])
            case "NetworkPolicy":
                told = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
                assert told == ports_of(spec["podSelector"]["matchLabels"])


def test_no_pod_has_a_right_that_it_does_not_need() -> None:
    for _, pod in pods():
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}


def test_nobody_but_prometheus_reaches_the_admin_port() -> None:
    rules = manifest("NetworkPolicy")["spec"]["ingress"]
    (admin,) = [rule for rule in rules if {"port": "admin"} in rule["ports"]]
    assert admin["ports"] == [{"port": "admin"}]
    (source,) = admin["from"]
    assert set(source) == {"namespaceSelector", "podSelector"}
    assert all(
        port["port"] != "admin" and port["targetPort"] != "admin" for port in manifest("Service")["spec"]["ports"]
    )


# True to the router


@pytest.fixture
def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("Deployment")["spec"]["template"]["spec"]
    return spec


SECRET = {
    "WARMROUTE_STORE__SECRET": "0123456789" * 4,
    "WARMROUTE_LISTEN__ADMIN_TOKEN": "9876543210" * 4,
    "WARMROUTE_LISTEN__KEYS": '["' + "0123456789abcdef" * 2 + '"]',
}
"""As kustomization.yaml says that it is made; digits alone are what YAML is most likely to read as something else."""


@pytest.fixture
def config() -> Config:
    return load(CONFIG, environment=SECRET, flags={})


def test_the_configuration_and_the_secret_are_understood(config: Config) -> None:
    assert config.store.secret is not None
    assert config.store.secret.get_secret_value() == SECRET["WARMROUTE_STORE__SECRET"]
    assert config.listen.admin_token is not None
    assert config.listen.admin_token.get_secret_value() == SECRET["WARMROUTE_LISTEN__ADMIN_TOKEN"]
    assert len(config.listen.keys) == 1
    named = set(re.findall(r"WARMROUTE_[A-Z_]+", (FOLDER / "kustomization.yaml").read_text()))
    assert named == set(SECRET)


def test_the_store_is_the_one_of_the_manifests(config: Config) -> None:
    service = manifest("Service", "warmroute-valkey")
    assert config.store.redis == f"redis://warmroute-valkey:{service['spec']['ports'][0]['port']}/0"


def test_a_pod_has_the_time_that_a_router_takes_to_stop(pod: dict[str, Any], config: Config) -> None:
    assert config.limits.pre_drain + config.limits.shutdown + 5 < pod["terminationGracePeriodSeconds"]
    probe = pod["containers"][0]["readinessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] < config.limits.pre_drain


def test_the_container_is_that_of_the_image(pod: dict[str, Any], config: Config) -> None:
    container = pod["containers"][0]
    assert (
        f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
        in (ROOT / "Dockerfile").read_text()
    )
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": config.listen.port, "admin": config.listen.admin_port}
    (mount,) = container["volumeMounts"]
    command, flag, file = container["args"]
    assert file == f"{mount['mountPath']}/{CONFIG.name}"
    assert flag in CliRunner().invoke(cli.main, [command, "--help"]).output


async def test_what_probes_ask_is_answered(router: Router, pod: dict[str, Any]) -> None:
    container = pod["containers"][0]
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = container[name]["httpGet"]
        assert asked["port"] == "http"
        async with await RawClient.connect(router.data_url) as client:
            client.send(f"GET {asked['path']} HTTP/1.1\r\nhost: 10.0.0.1:8080\r\n\r\n".encode())
            assert (await client.reply("GET")).status == 200


async def test_prometheus_reads_the_metrics_with_the_token_of_the_secret(
    backends: list[Scripted], start_router: StartRouter, pod: dict[str, Any]
) -> None:
    (endpoint,) = manifest("PodMonitor")["spec"]["podMetricsEndpoints"]
    credentials = endpoint["authorization"]["credentials"]
    assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": credentials["name"]}}]
    token = SECRET[credentials["key"]]
    router = await start_router(backends, listen={"port": 0, "admin_port": 0, "admin_token": token})
    for shown, status in ((f"authorization: Bearer {token}\r\n", 200), ("", 401)):
        async with await RawClient.connect(router.admin_url) as client:
            client.send(f"GET {endpoint['path']} HTTP/1.1\r\nhost: 10.0.0.1:8081\r\n{shown}\r\n".encode())
            reply = await client.reply("GET")
        assert reply.status == status
        assert (b"warmroute_build_info" in reply.body) == (status == 200)
