"""What a file lists -> backends: as the configuration lists them, or as Prometheus' file_sd_configs do; YAML or JSON."""

import json
from collections.abc import Iterator, Mapping

import yaml

from ..core.model import BackendSpec
from .source import Read

_NAME, _WEIGHT, _SCHEME = "warmroute_name", "warmroute_weight", "__scheme__"
"""Labels of a group of targets that mean something here; all others are Prometheus' own."""


def backends(content: bytes, read: Read) -> list[BackendSpec]:
    """All of a file in its order. Raises ValueError with one line that says what is wrong where."""
    if not content.strip():
        raise ValueError("it is empty; write [] where there should be no backends")
    data = _parse(content)
    if isinstance(data, Mapping) and set(data) == {"backends"}:
        data = data["backends"]
    if not isinstance(data, list):
        raise ValueError("expected a list of backends, or of groups with 'targets'")
    found = []
    for number, entry in enumerate(data, 1):
        try:
            found += [read(one) for one in _entries(entry)]
        except ValueError as error:
            raise ValueError(f"entry {number}: {error}") from None
    return found


def _parse(content: bytes) -> object:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    try:
        return json.loads(text)  # much faster, and indented with tabs it is no YAML
    except (ValueError, RecursionError):
        pass
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or str(error).split("\n")[0]
        raise ValueError(f"{where}neither YAML nor JSON: {problem}") from None
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"holds a value that cannot be read: {type(error).__name__}") from None


def _entries(entry: object) -> Iterator[object]:
    """What one entry of the list stands for: itself, or each target of a group."""
    if not isinstance(entry, Mapping) or "targets" not in entry:
        yield entry
        return
    targets, labels = entry["targets"], entry.get("labels") or {}
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise ValueError("targets: expected a list of host:port")
    if not isinstance(labels, Mapping):
        raise ValueError("labels: expected names and values")
    if _NAME in labels and len(targets) > 1:
        raise ValueError(f"{_NAME} names {len(targets)} targets; give each a group of its own")
    for target in targets:
        one: dict[str, object] = {"url": f"{labels.get(_SCHEME, 'http')}://{target}"}
        if _NAME in labels:
            one["name"] = labels[_NAME]
        if _WEIGHT in labels:
            one["weight"] = labels[_WEIGHT]
        yield one
