"""The documents name every decision, command, flag, configuration key and metric that there is."""

import ast
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
from warmroute.core.identity import SOURCES
from warmroute.core.model import Reason
from warmroute.core.resume import Why
from warmroute.core.routes import Protocol
from warmroute.proxy import errors
from warmroute.proxy.errors import Code

from .series import names
from .unit.test_errors import ALL

PROJECT = Path(__file__).parent.parent
SOURCE = Path(errors.__file__).parent.parent
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


@pytest.mark.parametrize("name", names())
def test_every_metric(name: str) -> None:
    assert name.startswith("warmroute_")
    assert mentioned(name)


# Errors


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading of the page on errors."""
    page = (PROJECT / "docs" / "errors.md").read_text(encoding="utf-8")
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    return [cells for cells in found[2:] if not set("".join(cells)) <= {"-"}]


def worded(pattern: str, message: str) -> bool:
    """Whether a message is one that the page shows, where an ellipsis stands for anything."""
    return re.fullmatch(".+".join(map(re.escape, pattern.split("…"))), message) is not None


def test_the_errors_documented_are_those_that_there_are() -> None:
    assert [row[0] for row in rows("By code")] == [f"`{code}`" for code in Code]
    assert {row[0] for row in rows("Causes and cures")} == {f"`{code}`" for code in Code}


@pytest.mark.parametrize("code", list(Code))
def test_what_the_page_says_of_an_error_is_so(code: Code) -> None:
    row = next(row for row in rows("By code") if row[0] == f"`{code}`")
    made = [error for error, _, _ in ALL.values() if error.code is code]
    waits = {error.retry_after for error in made} - {None}
    assert row[1] == str(code.status)
    assert row[2:4] == [f"`{made[0].type(protocol)}`" for protocol in (Protocol.OPENAI, Protocol.ANTHROPIC)]
    varies = "1 to 60 s" if code is Code.TENANT_LIMIT else ""  # as long as it takes
    assert row[4] == (varies or f"{waits.pop()} s" if waits else "-")
    assert varies or not waits
    assert row[5] == ("yes" if code.status in (408, 429) or code.status >= 500 else "no")
    assert row[6] == ("yes" if code in {errors.broke_off("x", why).code for why in Why} else "no")


MADE = [
    *(error for name, (error, _, _) in ALL.items() if name != "own_fault"),  # whose words are those of its callers:
    errors.own_fault("the router is stopping"),
    errors.own_fault("the router cannot open a connection: x"),
    errors.broke_off("the router is stopping", Why.STOPPING),
]


@pytest.mark.parametrize("error", MADE, ids=lambda error: error.message[:40])
def test_every_message_has_a_cause_and_a_cure(error: errors.RouterError) -> None:
    found = [row for row in rows("Causes and cures") if row[0] == f"`{error.code}`" and worded(row[1], error.message)]
    assert len(found) == 1
    assert all(found[0])


def test_every_message_of_the_page_is_one_that_there_is() -> None:
    for code, pattern, *_ in rows("Causes and cures"):
        assert [error for error in MADE if f"`{error.code}`" == code and worded(pattern, error.message)], pattern


def test_every_reason_why_a_stream_was_not_gone_on_with() -> None:
    found = {outcome.strip("`"): told for outcome, told in rows("When a stream breaks off")[-len(Why) :]}
    assert list(found) == list(Why)
    for why, told in found.items():
        assert told in errors.broke_off("the router is stopping", Why(why)).message


def admin_statuses() -> set[int]:
    """Every status of an error that the modules of the admin listener write down."""
    pages = [*(SOURCE / "web").glob("*.py"), SOURCE / "proxy" / "data.py"]
    trees = [ast.parse(page.read_text(encoding="utf-8")) for page in pages]
    constants = [node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return {value for value in constants if isinstance(value, int) and 400 <= value <= 599}


def test_every_status_of_the_admin_listener() -> None:
    documented = {int(row[0]) for row in rows("The admin listener")}
    of_the_framework = {405}
    assert documented == admin_statuses() | of_the_framework


def test_there_is_something_to_document() -> None:
    assert len(FLAGS) > 10
    assert len(list(keys(Config))) > 25
    assert len(names()) > 20
