"""Backends that Kubernetes starts and ends, told by a scripted API server over TLS."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trustme

from warmroute.app import Router
from warmroute.config import Config, ConfigError, require_extras
from warmroute.config.discovery import KubernetesDiscovery
from warmroute.discovery import kubernetes as kubernetes_discovery
from warmroute.discovery.kubernetes import Cluster, KubernetesWatch
from warmroute.discovery.source import Source
from warmroute.listeners import StartError
from warmroute.settings import backend

from .apiserver import Kubernetes, endpoint, endpoint_slice, kubernetes
from .conftest import FAST, until
from .scripted import Scripted
from .test_discovery import discovered, names, ready, state
from .test_reload import homes


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_discovery, "_PAUSE", 0.05)
    monkeypatch.setattr(kubernetes_discovery, "_LONGEST_PAUSE", 0.2)


@pytest.fixture
async def cluster(stack: AsyncExitStack, tmp_path: Path) -> Kubernetes:
    return await stack.enter_async_context(kubernetes(tmp_path))


@pytest.fixture
async def source(cluster: Kubernetes) -> AsyncIterator[Source]:
    """What is found, while it is watched."""
    found = Source("kubernetes", lambda: 0.0, lambda: None)
    asked = Cluster(cluster.url, "models", "app=vllm", cluster.token_file, cluster.ca_file)
    task = asyncio.ensure_future(KubernetesWatch(found, backend, asked, "http", None).run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def pods(source: Source) -> list[str]:
    return [spec.name for spec in source.specs]


def of_pods(name: str, *names: str, **conditions: bool | None) -> dict[str, Any]:
    return endpoint_slice(name, *(endpoint(f"10.0.0.{n[-1]}", n, **conditions) for n in names), main=8000)


# The API


async def test_what_is_listed_and_then_told(cluster: Kubernetes, source: Source) -> None:
    await until(lambda: source.up)
    assert pods(source) == []
    server = cluster.server
    await server.put(of_pods("x", "vllm-0", "vllm-1"))
    await until(lambda: pods(source) == ["vllm-0", "vllm-1"])
    await server.put(of_pods("y", "vllm-2"))
    await until(lambda: pods(source) == ["vllm-0", "vllm-1", "vllm-2"])
    await server.put(of_pods("x", "vllm-1"))
    await until(lambda: pods(source) == ["vllm-1", "vllm-2"])
    await server.put(of_pods("x", "vllm-1", ready=False))
    await until(lambda: pods(source) == ["vllm-2"])
    await server.delete("y")
    await until(lambda: pods(source) == [])
    assert (server.asked["list"], source.failures, server.selectors) == (1, 0, {"app=vllm"})


async def test_a_watch_that_ends_is_gone_on_with(cluster: Kubernetes, source: Source) -> None:
    server = cluster.server
    await server.put(of_pods("x", "vllm-0"))
    await until(lambda: pods(source) == ["vllm-0"])
    await server.tell("BOOKMARK", {"metadata": {}})
    await server.end_watches()
    await server.put(of_pods("x", "vllm-1"))
    await until(lambda: pods(source) == ["vllm-1"])
    await server.watched()
    await server.break_off()
    await server.watched()
    await server.put(of_pods("x", "vllm-2"))
    await until(lambda: pods(source) == ["vllm-2"])
    assert (server.asked["list"], source.failures) == (1, 0)


@pytest.mark.parametrize("by_event", [True, False])
async def test_what_is_too_old_is_listed_anew(cluster: Kubernetes, source: Source, by_event: bool) -> None:
    server = cluster.server
    await server.put(of_pods("x", "vllm-0"))
    await until(lambda: pods(source) == ["vllm-0"] and server.asked["watch"] > 0)
    server.slices = {"y": of_pods("y", "vllm-9")}  # of which the watch hears nothing
    if by_event:
        await server.interrupt({"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}})
    else:
        await server.watched()
        server.oldest = server.version + 1
        await server.break_off()
        await until(lambda: server.asked["list"] > 1)
        server.oldest = 0
    await until(lambda: pods(source) == ["vllm-9"])
    assert source.failures == 0


async def test_a_list_of_several_pages(cluster: Kubernetes, source: Source) -> None:
    server = cluster.server
    server.page = 2
    server.slices = {f"s{i}": of_pods(f"s{i}", f"vllm-{i}") for i in range(5)}
    await server.stop()
    await server.start(cluster.tls)
    await until(lambda: len(pods(source)) == 5)
    assert server.asked["list"] >= 3


async def test_a_server_that_goes_keeps_everything_and_is_found_again(
    cluster: Kubernetes, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    server = cluster.server
    await server.put(of_pods("x", "vllm-0"))
    await until(lambda: pods(source) == ["vllm-0"])
    await server.stop()
    await until(lambda: source.failures >= 3)
    assert (source.up, source.error, pods(source)) == (False, f"{cluster.url}: connection refused", ["vllm-0"])
    assert caplog.text.count("connection refused") == 1
    server.slices = {"x": of_pods("x", "vllm-1")}
    await server.start(cluster.tls)
    await until(lambda: pods(source) == ["vllm-1"])
    assert source.up


async def test_the_token_is_read_again(cluster: Kubernetes, source: Source) -> None:
    server = cluster.server
    await server.watched()
    server.token = "second"
    await server.break_off()
    await until(lambda: source.failures > 0)
    assert source.error.endswith(
        "it answered 401: Unauthorized; let the service account list and watch endpointslices of discovery.k8s.io"
    )
    cluster.token_file.write_text("second")
    await until(lambda: source.up)
    assert set(server.tokens) == {"Bearer first", "Bearer second"}
    await server.watched()
    cluster.token_file.unlink()
    await server.break_off()
    await until(lambda: not source.up)
    assert source.error == f"{cluster.url}: {cluster.token_file}: No such file or directory"


@pytest.mark.parametrize("status", [403, 500, 429])
async def test_a_refusal_is_told_and_outlived(cluster: Kubernetes, source: Source, status: int) -> None:
    server = cluster.server
    await server.put(of_pods("x", "vllm-0"))
    await until(lambda: pods(source) == ["vllm-0"])
    await server.watched()
    server.refusal = (status, "because")
    await server.break_off()
    await until(lambda: source.failures > 0)
    assert source.error.startswith(f"{cluster.url}: it answered {status}: because")
    server.refusal = None
    await until(lambda: source.up)
    assert pods(source) == ["vllm-0"]


async def test_what_makes_no_sense_is_a_failure(cluster: Kubernetes, source: Source) -> None:
    server = cluster.server
    await until(lambda: source.up)
    for event in ({"type": "ERROR", "object": {"code": 500, "message": "etcd"}}, {"type": "ADDED", "object": {}}, 7):
        failures = source.failures
        await server.interrupt(event)
        await until(lambda before=failures: source.failures > before)  # type: ignore[misc]
        await until(lambda: source.up)
    await server.put(endpoint_slice("x", endpoint("10.0.0.1", "p"), one=1, two=2))
    await until(lambda: "set discovery.kubernetes.port" in source.error)
    await server.put(endpoint_slice("x", endpoint("10.0.0.1", "p"), one=1))
    await until(lambda: source.up and pods(source) == ["p"])


async def test_a_server_with_another_certificate_is_told_nothing(cluster: Kubernetes, tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    trustme.CA().cert_pem.write_to_path(other)
    found = Source("kubernetes", lambda: 0.0, lambda: None)
    asked = Cluster(cluster.url, "models", "app=vllm", cluster.token_file, other)
    task = asyncio.ensure_future(KubernetesWatch(found, backend, asked, "http", None).run())
    await until(lambda: found.failures > 0)
    assert "TLS failed" in found.error
    other.write_text("no certificate")
    await until(lambda: "other.crt" in found.error)
    other.unlink()
    await until(lambda: found.error.endswith("other.crt: No such file or directory"))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert cluster.server.tokens == []


# A router


def settings(cluster: Kubernetes, **changes: Any) -> dict[str, Any]:
    wanted = {
        "service": "vllm",
        "namespace": "models",
        "api": cluster.url,
        "token_file": str(cluster.token_file),
        "ca_file": str(cluster.ca_file),
        **changes,
    }
    return {**FAST, "discovery": {"kubernetes": wanted}}


async def test_a_router_follows_its_service(
    stack: AsyncExitStack, backends: list[Scripted], cluster: Kubernetes
) -> None:
    a, b, c = backends
    server = cluster.server

    def pod(number: int, backend: Scripted, **conditions: bool) -> dict[str, Any]:
        """Each in a slice of its own, since they listen on one address at several ports."""
        return endpoint_slice(f"s{number}", endpoint("127.0.0.1", f"vllm-{number}", **conditions), main=backend.port)

    server.slices = {"s0": pod(0, a), "s1": pod(1, b)}
    router = await stack.enter_async_context(Router(Config.model_validate(settings(cluster))))
    assert names(router) == {"vllm-0", "vllm-1"}
    assert server.selectors == {"kubernetes.io/service-name=vllm"}
    known = router.registry.backends
    await until(lambda: all(known[name].health.up for name in ("vllm-0", "vllm-1")))
    before = await homes(router, [f"s{i}" for i in range(8)])

    await server.put(pod(2, c))
    await until(lambda: "vllm-2" in known and bool(known["vllm-2"].health.up))
    assert await homes(router, list(before)) == {s: (home, "pin_hit") for s, (home, _) in before.items()}

    await server.put(pod(0, a, ready=False, serving=True, terminating=True))  # it has until its grace period is over
    await until(lambda: known["vllm-0"].state == "draining")
    assert await homes(router, list(before)) == {s: (home, "pin_hit") for s, (home, _) in before.items()}
    await server.delete("s0")
    await a.stop()
    await until(lambda: "vllm-0" not in names(router))
    moved = await homes(router, list(before))
    assert {moved[s][1] for s, (home, _) in before.items() if home == "vllm-0"} == {"pin_lost"}

    await server.stop()
    await until(lambda: not router._kept.members.sources[0].up)
    assert names(router) == {"vllm-1", "vllm-2"}
    assert discovered(await state(router), "kubernetes")["error"] == f"{cluster.url}: connection refused"
    server.slices["s3"] = pod(3, b)  # the same server under another name: the pod's address was given anew
    del server.slices["s1"]
    await server.start(cluster.tls)
    await until(lambda: names(router) == {"vllm-2", "vllm-3"})
    assert not ready(router, a)


# Where it runs


def test_a_pod_knows_where_to_ask() -> None:
    of = KubernetesDiscovery(service="vllm", namespace="n")
    assert of.cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}) == (
        "https://10.96.0.1:6443",
        "n",
    )
    assert of.cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}) == ("https://[fd00::1]:443", "n")
    assert KubernetesDiscovery(service="a", selector="b=c").labels == "kubernetes.io/service-name=a,b=c"
    assert KubernetesDiscovery(selector="b=c").labels == "b=c"
    assert KubernetesDiscovery().labels == ""


async def test_elsewhere_it_must_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    config = Config.model_validate({**FAST, "discovery": {"kubernetes": {"service": "vllm", "namespace": "n"}}})
    with pytest.raises(
        ConfigError, match=r"discovery\.kubernetes\.api is not set, and the router does not run in a pod"
    ):
        require_extras(config)
    with pytest.raises(StartError, match=r"discovery\.kubernetes\.api is not set"):
        async with Router(config):
            pass
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    config = Config.model_validate({**FAST, "discovery": {"kubernetes": {"service": "vllm"}}})
    with pytest.raises(ConfigError, match=r"discovery\.kubernetes\.namespace is not set"):
        require_extras(config)


def test_a_token_goes_over_tls_alone(cluster: Kubernetes) -> None:
    source = Source("kubernetes", lambda: 0.0, lambda: None)
    for url, shown in (("http://127.0.0.1:8001", {}), ("https://127.0.0.1", {"authorization": "Bearer first"})):
        asked = Cluster(url, "models", "app=vllm", cluster.token_file, cluster.ca_file)
        assert KubernetesWatch(source, backend, asked, "http", None)._shown() == shown
    assert isinstance(cluster.tls, ssl.SSLContext)
