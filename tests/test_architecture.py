"""The shape of the package: who may import whom, what the core may touch, and how long things may be."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

import warmroute

SOURCE = Path(warmroute.__file__).parent
PROJECT = Path(__file__).parent.parent
MODULES = {str(path.relative_to(SOURCE)): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
LONGEST_MODULE = 350
LONGEST_FUNCTION = 60

PURE = {
    "array",
    "bisect",
    "collections",
    "collections.abc",
    "contextlib",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "json",
    "math",
    "re",
    "typing",
    "urllib.parse",
}
"""The standard library that a decision may use: nothing that knows a clock, a file, a socket or a loop."""

BESIDE: dict[str, set[str]] = {
    "config": {"core"},
    "check": {"core", "config"},
    "control": {"core", "config", "telling"},
    "telling": set(),
    "joining": {"control"},
    "saved": set(),
    "lint": {"core", "proxy"},
    "__main__": {"cli"},
}
"""Modules that the chain of arrows does not name, and what they may import."""

CONFIG_IS_FOR = {
    "settings",
    "keeping",
    "assembly",
    "membership",
    "app",
    "workers",
    "process",
    "cli",
    "check",
    "control",
    "demo",
    "simulate",
}
CATCH_ALL = {("housekeeping.py", "keep"), ("proxy/data.py", "__call__")}
"""The two places where a fault of the router itself is caught, told and counted: a loop beside, and one request."""

HASHES_FOR_ITSELF = {"core/sketch.py", "core/volatile.py", "proxy/parts.py", "truth/ledger.py"}
"""Where Python's own hash is used: digests of prompts that are compared within one process and go nowhere else. It is keyed
by the process, so that nobody can make two prompts look alike, and three times as fast as any digest of the library."""

modules = pytest.mark.parametrize("name", sorted(MODULES))


def imports(name: str) -> Iterator[str]:
    """Full names of everything that a module imports."""
    package = ("warmroute", *Path(name).parts[:-1])
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def part_of(full_name: str) -> str | None:
    """Which part of the package a name belongs to; None for other packages and for the package's own version."""
    names = full_name.split(".")
    if names[0] != "warmroute" or names[1:] == ["__version__"]:
        return None
    return names[1]


def own_part(name: str) -> str:
    return Path(name).parts[0].removesuffix(".py")


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(MODULES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def chain_of_arrows() -> list[set[str]]:
    """The levels of the package as its own docstring tells them, the lowest first."""
    match = re.search(r"Arrows point one way: ([^.]*)\.", warmroute.__doc__ or "")
    assert match, "the package's docstring tells the direction of its imports"
    return [{part.strip() for part in level.split(",")} for level in match[1].split("<-")]


ARROWS = chain_of_arrows()


def allowed(part: str) -> set[str]:
    """The parts that a part may import, itself included."""
    if part in BESIDE:
        return {part, *BESIDE[part]}
    level = next(i for i, parts in enumerate(ARROWS) if part in parts)
    below = set(chain.from_iterable(ARROWS[:level]))
    return {
        part,
        *below,
        *({"config"} if part in CONFIG_IS_FOR else ()),
        *({"check", "control", "joining", "saved", "telling", "lint"} if part == "cli" else ()),
    }


# Imports


def test_the_arrows_name_every_part() -> None:
    named = set(chain.from_iterable(ARROWS)) | set(BESIDE)
    assert {own_part(name) for name in MODULES} - {"__init__"} == named
    assert ARROWS[0] == {"core"}
    assert ARROWS[-1] == {"cli"}


@pytest.mark.parametrize("part", sorted({own_part(name) for name in MODULES} - {"__init__"}))
def test_imports_point_one_way(part: str) -> None:
    found = {
        (name, target)
        for name in MODULES
        if own_part(name) == part
        for target in imports(name)
        if (other := part_of(target)) is not None and other not in allowed(part)
    }
    assert not found


@pytest.mark.parametrize("name", sorted(name for name in MODULES if own_part(name) == "core"))
def test_the_core_is_pure(name: str) -> None:
    for target in imports(name):
        module, _, last = target.rpartition(".")
        assert part_of(target) == "core" or module in PURE or target in PURE, f"{name} imports {last} of {module}"
    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    assert not [node for node in ast.walk(MODULES[name]) if isinstance(node, asynchronous)]
    called = {call.func.id for call in calls(MODULES[name]) if isinstance(call.func, ast.Name)}
    assert not called & {"open", "print", "input", "eval", "exec", "__import__"}


def test_everything_that_is_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = chain.from_iterable(project.get("optional-dependencies", {}).values())
    declared = {re.split(r"[<>=\[;~ ]", text)[0].replace("-", "_") for text in [*project["dependencies"], *extras]}
    imported_as = {"pyyaml": "yaml", "pyzmq": "zmq", "dnspython": "dns", "opentelemetry_sdk": "opentelemetry"}
    declared = {imported_as.get(name, name) for name in declared}
    used = {target.split(".")[0] for name in MODULES for target in imports(name)}
    used -= {"warmroute", *sys.stdlib_module_names}
    assert used <= declared
    assert {"yaml", "httptools"} <= used


# Tasks, faults, hashes


def kept(tree: ast.AST, call: ast.Call) -> bool:
    """Whether somebody holds what a call returned."""
    return not any(isinstance(node, ast.Expr) and node.value is call for node in ast.walk(tree))


def task_groups(tree: ast.AST) -> set[str]:
    """The names under which task groups are entered."""
    return {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name) and "TaskGroup" in ast.unparse(item.context_expr)
    }


@modules
def test_every_task_has_an_owner(name: str) -> None:
    tree = MODULES[name]
    groups = task_groups(tree)
    for call in calls(tree):
        called = ast.unparse(call.func)
        assert called not in ("asyncio.create_task", "create_task"), f"{name}:{call.lineno}"
        if called.endswith((".create_task", "ensure_future")) and called.split(".")[0] not in groups:
            assert kept(tree, call), f"{name}:{call.lineno}: nobody holds this task"


@modules
def test_exceptions_are_caught_by_name(name: str) -> None:
    for function in functions(name):
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and (
                node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            ):
                assert (name, function.name) in CATCH_ALL, f"{name}:{node.lineno}"


@modules
def test_nothing_depends_on_pythons_own_hash(name: str) -> None:
    used = [call for call in calls(MODULES[name]) if isinstance(call.func, ast.Name) and call.func.id == "hash"]
    assert not used or name in HASHES_FOR_ITSELF


# Sizes


@modules
def test_modules_are_short(name: str) -> None:
    assert len((SOURCE / name).read_text(encoding="utf-8").splitlines()) <= LONGEST_MODULE


@modules
def test_functions_are_short(name: str) -> None:
    lengths = {f.name: (f.end_lineno or 0) - f.lineno + 1 for f in functions(name)}
    assert {f: n for f, n in lengths.items() if n > LONGEST_FUNCTION} == {}


@modules
def test_every_module_says_in_one_line_what_it_owns(name: str) -> None:
    docstring = ast.get_docstring(MODULES[name])
    assert docstring
    assert docstring.splitlines()[0].endswith((".", "?"))
