"""EndpointSlices as backends: which endpoints are ready, at which port, and each pod once."""

from typing import Any

import pytest

from warmroute import settings
from warmroute.discovery.endpoints import backends

from ..integration.apiserver import endpoint, endpoint_slice


def found(*slices: dict[str, Any], scheme: str = "http", port: str | None = None) -> list[tuple[str, str]]:
    return [(spec.name, spec.url) for spec in backends(slices, scheme, port, settings.backend)]


def test_ready_pods_by_their_names() -> None:
    one = endpoint_slice("vllm-x", endpoint("10.0.0.2", "vllm-1"), endpoint("10.0.0.1", "vllm-0"), main=8000)
    other = endpoint_slice("vllm-y", endpoint("10.0.0.3", "vllm-2"), main=8000)
    assert found(one, other) == [
        ("vllm-0", "http://10.0.0.1:8000"),
        ("vllm-1", "http://10.0.0.2:8000"),
        ("vllm-2", "http://10.0.0.3:8000"),
    ]
    assert found(one, scheme="https")[0] == ("vllm-0", "https://10.0.0.1:8000")


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ({"ready": True, "serving": True, "terminating": False}, True),
        ({"ready": None, "serving": None}, True),
        ({}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "terminating": True}, False),  # a Service that publishes addresses that are not ready
    ],
)
def test_conditions(conditions: dict[str, bool | None], ready: bool) -> None:
    one = endpoint("10.0.0.1", "a")
    one["conditions"] = conditions
    assert bool(found(endpoint_slice("s", one, main=80))) is ready


def test_what_may_be_null_or_missing() -> None:
    bare: dict[str, Any] = {"addresses": ["10.0.0.1"], "conditions": None, "targetRef": None}
    nobody: dict[str, Any] = {"addresses": []}
    assert found(endpoint_slice("s", bare, nobody, main=80), endpoint_slice("empty"), {}) == [
        ("10.0.0.1:80", "http://10.0.0.1:80")
    ]


def test_a_pod_of_two_address_families_is_one_backend() -> None:
    six = endpoint_slice("a-six", endpoint("fd00::1", "p"), endpoint("fd00::2", "only-six"), main=80)
    four = endpoint_slice("b-four", endpoint("10.0.0.1", "p"), main=80)
    assert found(six, four) == [("only-six", "http://[fd00::2]:80"), ("p", "http://10.0.0.1:80")]


def test_a_pod_of_two_services_is_there_by_both_ports() -> None:
    one = endpoint_slice("a", endpoint("10.0.0.1", "p"), main=80)
    other = endpoint_slice("b", endpoint("10.0.0.1", "p"), main=81)
    assert found(one, other) == [("p", "http://10.0.0.1:80"), ("p:81", "http://10.0.0.1:81")]


def test_ports() -> None:
    several = endpoint_slice("s", endpoint("10.0.0.1", "p"), http=8000, metrics=9000)
    assert found(several) == [("p", "http://10.0.0.1:8000")]
    assert found(several, port="metrics") == [("p", "http://10.0.0.1:9000")]
    assert found(several, port="7000") == [("p", "http://10.0.0.1:7000")]
    assert found(endpoint_slice("s", endpoint("10.0.0.1", "p")), port="7000") == [("p", "http://10.0.0.1:7000")]


@pytest.mark.parametrize(
    ("ports", "port", "told"),
    [
        ({"one": 1, "two": 2}, None, "s has one (1), two (2): set discovery.kubernetes.port"),
        ({"one": 1}, "two", "s has one (1): set discovery.kubernetes.port"),
        ({}, None, "s has no port: set discovery.kubernetes.port"),
    ],
)
def test_a_port_that_is_not_clear(ports: dict[str, int], port: str | None, told: str) -> None:
    one = endpoint_slice("s", endpoint("10.0.0.1", "p"), **ports)
    with pytest.raises(ValueError) as raised:
        found(one, port=port)
    assert str(raised.value).startswith(told)
    assert found(endpoint_slice("s", endpoint("10.0.0.1", "p", ready=False), **ports), port=port) == []


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(ValueError, match="is not the URL of a server"):
        found(endpoint_slice("s", endpoint("10.0.0.1/\r\nx", "p"), main=80))
