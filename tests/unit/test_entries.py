"""Files that list backends: the configuration's own form and Prometheus', in YAML and JSON, and what is wrong with others."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute import settings
from warmroute.core.model import BackendSpec
from warmroute.discovery.entries import backends
from warmroute.discovery.file import FileWatch
from warmroute.discovery.source import Source

A = BackendSpec("10.0.0.1:8000", "http://10.0.0.1:8000")
B = BackendSpec("b", "https://b.example", 2.0, "k")


def read(text: str | bytes) -> list[BackendSpec]:
    return backends(text if isinstance(text, bytes) else text.encode(), settings.backend)


@pytest.mark.parametrize(
    "text",
    [
        "- 10.0.0.1:8000\n- {url: 'https://b.example', name: b, weight: 2, key: k}\n",
        "backends:\n- http://10.0.0.1:8000\n- {url: 'https://b.example', name: b, weight: 2, key: k}\n",
        '["10.0.0.1:8000",\n\t{"url": "https://b.example", "name": "b", "weight": 2, "key": "k"}\n]',
        '\ufeff["10.0.0.1:8000", {"url": "https://b.example", "name": "b", "weight": 2, "key": "k"}]',
    ],
)
def test_a_list_as_the_configuration_has_it(text: str) -> None:
    assert read(text) == [A, B]


def test_groups_as_prometheus_has_them() -> None:
    groups = [
        {"targets": ["10.0.0.1:8000", "10.0.0.2:8000"], "labels": {"job": "vllm", "__metrics_path__": "/metrics"}},
        {
            "targets": ["b.example"],
            "labels": {"__scheme__": "https", "warmroute_name": "b", "warmroute_weight": "2.0"},
        },
        {"targets": []},
        "c:1",
    ]
    found = read(json.dumps(groups))
    assert [(s.name, s.url, s.weight) for s in found] == [
        ("10.0.0.1:8000", "http://10.0.0.1:8000", 1.0),
        ("10.0.0.2:8000", "http://10.0.0.2:8000", 1.0),
        ("b", "https://b.example", 2.0),
        ("c:1", "http://c:1", 1.0),
    ]


@pytest.mark.parametrize("text", ["[]", "backends: []", '{"backends": []}'])
def test_none_at_all_must_be_said(text: str) -> None:
    assert read(text) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty; write [] where there should be no backends"),
        (" \n", "it is empty"),
        ("# nothing\n", "expected a list of backends"),
        ("servers: []", "expected a list of backends"),
        ("http://a:1", "expected a list of backends"),
        ("[http://a:1, ", "line 1: neither YAML nor JSON"),
        ("- a: b\n c", "line 2: neither YAML nor JSON"),
        (b"\xff\xfe", "not UTF-8 text"),
        ("- ftp://a", "entry 1: url: 'ftp://a' is not the URL of a server"),
        ("- a:1\n- 7", "entry 2: "),
        ("- {url: 'a:1', wieght: 2}", "entry 1: unknown key 'wieght'; known here are url, name, weight, key"),
        ("- {targets: a}", "entry 1: targets: expected a list of host:port"),
        ("- {targets: [a], labels: [b]}", "entry 1: labels: expected names and values"),
        ("- {targets: [a, b], labels: {warmroute_name: x}}", "entry 1: warmroute_name names 2 targets"),
        ("- {targets: [a], labels: {warmroute_weight: heavy}}", "entry 1: weight: Input should be a valid number"),
        ("- {targets: ['a/b c']}", "entry 1: url: 'http://a/b c' is not the URL"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str | bytes, why: str) -> None:
    with pytest.raises(ValueError) as raised:
        read(text)
    assert str(raised.value).startswith(why)
    assert "\n" not in str(raised.value)


@given(st.binary(max_size=60) | st.text(alphabet="[]{}-:&*!'\"\n \tab0,", max_size=40).map(str.encode))
def test_whatever_a_file_holds_is_taken_or_refused(content: bytes) -> None:
    try:
        found = backends(content, settings.backend)
    except ValueError:
        return
    assert all(isinstance(one, BackendSpec) for one in found)


def test_what_has_changed_is_taken_once_it_is_the_same_at_two_looks(tmp_path: Path) -> None:
    source = Source("file", lambda: 0.0, lambda: None)
    watch = FileWatch(source, tmp_path / "x", 1.0, settings.backend)
    watch.look(b"[a:1, b:1]")
    assert len(source.specs) == 2  # the first look counts at once
    watch.look(b"[a:1]")  # half of what is being written
    assert len(source.specs) == 2
    watch.look(b"[a:1, b:1, c:1]")
    watch.look(b"[a:1, b:1, c:1]")
    assert len(source.specs) == 3
    for _ in range(3):
        watch.look(b"[a:1")
    assert (source.failures, len(source.specs)) == (1, 3)  # one version of the file is one failure
    for _ in range(2):
        watch.look("no such file")
    assert (source.failures, source.error) == (2, "no such file")
    for _ in range(2):
        watch.look(b"[a:1, b:1, c:1]")
    assert source.up
