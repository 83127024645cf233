"""Flags, environment and one YAML file -> a validated, frozen Config. Unknown keys are errors that say where."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from .schema import Config

ENV_PREFIX = "WARMROUTE_"
_NOT_KEYS = re.compile(r"ADMIN(_TOKEN)?|SERVICE_(HOST|PORT(_\w+)?)|PORT(_\w+)?")
"""Variables of that prefix which are no keys: the address that the commands ask, the token that they show, and what Kubernetes
sets for a Service named warmroute."""

_TEXTS = frozenset(
    {
        ("backends",),
        ("listen", "admin_token"),
        ("store", "redis"),
        ("store", "secret"),
        ("store", "secret_file"),
        ("store", "prefix"),
        ("discovery", "dns", "server"),
    }
)
"""Values that are taken as they are, whatever YAML would make of them; secrets among them are never shown."""

KeyPath = tuple[str | int, ...]
Lines = dict[KeyPath, int]

_WORDS = {
    "missing": "is missing",
    "tuple_type": "expected a list",
    "model_type": "expected keys below it, such as 'key: value'",
    "model_attributes_type": "expected keys below it, such as 'key: value'",
    "dict_type": "expected keys below it, such as 'key: value'",
}
"""What is said in place of words that only programmers of Python know."""


class ConfigError(Exception):
    """A configuration that cannot be used. The text is one line a fault and says what to do."""


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Flags over environment over file over defaults. `flags` is nested like the file. Raises ConfigError."""
    data, lines = _read(file) if file else ({}, {})
    env_data, env_names = _from_environment(os.environ if environment is None else environment)
    given = _merge({}, flags or {})
    merged = _merge(_merge(_merge({}, data), env_data), given)
    if not merged.get("backends") and not merged.get("discovery"):
        raise ConfigError(_no_backends(file, lines))
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        origin = _Origin(file, lines, env_data, env_names, given)
        told = [_explain(dict(fault), origin) for fault in error.errors()]
        raise ConfigError("\n".join(dict.fromkeys(told))) from None


def _no_backends(file: Path | None, lines: Lines) -> str:
    if file is None:
        return "no backends: give the URLs of your vLLM servers, or a --config FILE that lists them"
    line = lines.get(("backends",))
    where = str(file) if line is None else f"{file}:{line}"
    return f"{where}: no backends: list the URLs of your vLLM servers, as in 'backends: [http://127.0.0.1:8000]'"


def _read(file: Path) -> tuple[dict[str, Any], Lines]:
    """The file's content, and the line on which each key stands."""
    lines: Lines = {}
    try:
        text = file.read_text(encoding="utf-8-sig")
        _note_lines(yaml.compose(text, Loader=yaml.SafeLoader), (), lines, file, [])
        data = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ConfigError(f"{where}: not YAML: {problem}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{file}: holds a value that cannot be read: {type(error).__name__}: {error}") from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: expected keys such as 'backends:' at the top")
    return data, lines


def _note_lines(node: yaml.Node | None, path: KeyPath, lines: Lines, file: Path, within: list[yaml.Node]) -> None:
    """Note where each key stands; refuse what YAML lets pass but nobody means."""
    if node in within:
        assert node is not None
        raise ConfigError(f"{file}:{within[-1].start_mark.line + 1}: not YAML: an alias holds itself")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            line = key.start_mark.line + 1
            here = (*path, str(key.value))
            if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise ConfigError(f"{file}:{line}: {key.value}: Keys should be strings")
            if here in lines:
                raise ConfigError(
                    f"{file}:{line}: {key.value!r} stands here a second time; the first is in line {lines[here]}"
                )
            lines[here] = line
            _note_lines(value, here, lines, file, [*within, node])
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[(*path, i)] = value.start_mark.line + 1
            _note_lines(value, (*path, i), lines, file, [*within, node])


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[KeyPath, str]]:
    """WARMROUTE_SECTION__KEY=value, in YAML's notation; WARMROUTE_BACKENDS may be URLs with commas or spaces."""
    data: dict[str, Any] = {}
    names: dict[KeyPath, str] = {}
    for name, text in environment.items():
        word = name.removeprefix(ENV_PREFIX)
        if not name.startswith(ENV_PREFIX) or _NOT_KEYS.fullmatch(word):
            continue
        path = tuple(word.lower().split("__"))
        try:
            value = text if path in _TEXTS else yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
            raise ConfigError(f"environment variable {name}: what it holds cannot be read as a value") from None
        if path == ("backends",):
            value = text.replace(",", " ").split() or None
        names[path] = name
        # Below a section a mapping is never meant: it is an address such as :: that YAML takes for one.
        data = _merge(data, _nested(path, text if isinstance(value, dict) and len(path) > 1 else value))
    return data, names


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    return {path[0]: value if len(path) == 1 else _nested(path[1:], value)}


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """The values of both, the higher ones first; None is no value."""
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        elif value is not None:
            merged[key] = value
    return merged


class _Origin:
    """Where a value in force comes from."""

    def __init__(
        self,
        file: Path | None,
        lines: Lines,
        env_data: Mapping[str, Any],
        env_names: Mapping[KeyPath, str],
        flags: Mapping[str, Any],
    ) -> None:
        self._file, self._lines = file, lines
        self._env_data, self._env_names, self._flags = env_data, env_names, flags

    def of(self, path: KeyPath) -> str:
        """The beginning of a message about the value at this path: file and line, or the variable; "" for a flag."""
        if path and _holds(self._flags, path):
            return ""
        if path and _holds(self._env_data, path):
            name = next((self._env_names[p] for p in _shorter(path) if p in self._env_names), None)
            return f"environment variable {name}: " if name else ""
        line = next((self._lines[p] for p in _shorter(path) if p in self._lines), None)
        if line is not None:
            return f"{self._file}:{line}: "
        return f"{self._file}: " if self._file and not path else ""


def _shorter(path: KeyPath) -> list[KeyPath]:
    return [path[:length] for length in range(len(path), 0, -1)]


def _holds(data: object, path: KeyPath) -> bool:
    """Whether these data give the value at a path, or a list or text that the path goes into."""
    for part in path:
        if not isinstance(data, Mapping):
            return True
        if part not in data:
            return False
        data = data[part]
    return True


def _explain(fault: Mapping[str, Any], origin: _Origin) -> str:
    """One line: where it stands, what is wrong, what to do."""
    path: KeyPath = tuple(fault["loc"])
    key = ".".join(str(part) for part in path)
    if fault["type"] == "extra_forbidden":
        return f"{origin.of(path)}unknown key {key!r}{_nearest(path)}"
    text = _WORDS.get(fault["type"], fault["msg"].removeprefix("Value error, "))
    return origin.of(path) + (f"{key}: {text}" if key else text)


def _nearest(path: KeyPath) -> str:
    """The key that was probably meant, or those that exist."""
    names = list(_section(path[:-1]).model_fields)
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here are {', '.join(names)}"


def _section(path: KeyPath) -> type[BaseModel]:
    """The keys that may stand at a path, which goes through sections, lists of them and sections by name."""
    found: Any = Config
    for part in path:
        if get_origin(found) is tuple:
            found = get_args(found)[0]
        elif get_origin(found) is dict:
            found = get_args(found)[1]
        else:
            found = found.model_fields[part].annotation
    section: type[BaseModel] = found
    return section
