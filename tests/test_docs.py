"""The documents name every decision, command, flag, configuration key and metric that there is."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import yaml
from pydantic import BaseModel

from warmroute.cli import main
from warmroute.config import BackendConfig, Config
from warmroute.core.health import Thresholds
from warmroute.core.identity import SOURCES
from warmroute.core.model import BackendSpec, Reason
from warmroute.fleet.registry import Registry
from warmroute.observe.counters import RequestCounters
from warmroute.observe.metrics import RouterCollector
from warmroute.pins.memory import PinTable
from warmroute.recognition.memory import remember

PROJECT = Path(__file__).parent.parent
PAGES = [PROJECT / "README.md", *sorted((PROJECT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.exists())


def mentioned(word: str) -> bool:
    """Whether the documents hold this word, and not only as a part of a longer one."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", TEXT) is not None


# Decisions, key sources


@pytest.mark.parametrize("reason", list(Reason))
def test_every_decision(reason: Reason) -> None:
    assert mentioned(reason.value)


@pytest.mark.parametrize("source", list(SOURCES))
def test_every_key_source(source: str) -> None:
    assert mentioned(source)


# The command line


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield path, command


COMMANDS = list(commands(main))
FLAGS = sorted(
    (" ".join(path), option)
    for path, command in COMMANDS
    for parameter in command.params
    if isinstance(parameter, click.Option) and not parameter.hidden
    for option in parameter.opts
    if option.startswith("--")
)


@pytest.mark.parametrize("path", [path for path, _ in COMMANDS], ids=" ".join)
def test_every_command(path: tuple[str, ...]) -> None:
    assert mentioned(" ".join(("warmroute", *path)))


@pytest.mark.parametrize(("command", "flag"), FLAGS, ids=lambda value: value)
def test_every_flag(command: str, flag: str) -> None:
    assert mentioned(flag), f"{flag} of warmroute {command}"


# Configuration


def sections(annotation: Any) -> type[BaseModel] | None:
    """The model behind a key's type, if it is a section or a list of sections."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return BackendConfig if BackendConfig in get_args(annotation) else None


def keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        inner = sections(field.annotation)
        if inner is None:
            yield (*path, name)
        else:
            yield from keys(inner, (*path, name))


def examples() -> Iterator[Mapping[str, Any]]:
    """Every YAML example of the documents."""
    for block in re.findall(r"^```ya?ml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        data = yaml.safe_load(block)
        if isinstance(data, Mapping):
            yield data


def shown(data: Any, path: tuple[str, ...]) -> bool:
    """Whether an example has a value at this path; in a list, in one of its items."""
    if not path:
        return True
    if isinstance(data, list):
        return any(shown(item, path) for item in data)
    return isinstance(data, Mapping) and path[0] in data and shown(data[path[0]], path[1:])


@pytest.mark.parametrize("path", list(keys(Config)), ids=".".join)
def test_every_configuration_key(path: tuple[str, ...]) -> None:
    assert mentioned(".".join(path)) or any(shown(data, path) for data in examples())


# Metrics


def metrics() -> list[str]:
    """Every metric that a router of one backend shows."""
    pins = PinTable(lambda: 0.0, idle_expiry=1.0, limit=1)
    registry = Registry([BackendSpec("a", "http://a")], pins, Thresholds(), 0.0)
    memory = remember(lambda: 0.0, idle_expiry=1.0, entries=1, sessions=1, backends=1)
    collector = RouterCollector(RequestCounters(), registry, pins, lambda: 0.0, 60.0, memory)
    return sorted(f"{m.name}_total" if m.type == "counter" else m.name for m in collector.collect())


@pytest.mark.parametrize("name", metrics())
def test_every_metric(name: str) -> None:
    assert name.startswith("warmroute_")
    assert mentioned(name)


def test_there_is_something_to_document() -> None:
    assert len(FLAGS) > 10
    assert len(list(keys(Config))) > 25
    assert len(metrics()) > 20
