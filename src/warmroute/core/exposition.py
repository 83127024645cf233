"""Prometheus text of a vLLM server: its values by name, and its own series with a `backend` label added."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite

_PREFIX = "vllm:"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*"'
_SAMPLE = re.compile(
    rf"(vllm:[a-zA-Z0-9_:]*)(?:\{{((?:{_LABEL}(?:,{_LABEL})*)?),?\}})?[ \t]+([^ \t_]+)(?:[ \t]+-?\d+)?[ \t]*"
)
"""A sample as the text format has it: name, labels, value, and a time that is not passed on."""
_OWN_LABEL = re.compile(r'(^|,)backend="')
_LARGEST = 2.0**63
"""No count of tokens or requests reaches this; sums of larger numbers might not be numbers any more."""
_KINDS = frozenset({"counter", "gauge", "histogram", "summary", "untyped"})
_SUFFIXES = ("_bucket", "_sum", "_count", "_created", "_total")


@dataclass(slots=True)
class Family:
    """One metric of one server: its TYPE and HELP lines and its samples as text, each with the label added."""

    kind: str = "untyped"
    help: str = ""
    samples: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Exposition:
    """One scrape. `values` maps a metric's name to {labels as text: value}; `families` keeps what is passed on."""

    values: Mapping[str, Mapping[str, float]]
    families: Mapping[str, Family]


def escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def parse(text: str, backend: str, keep: Callable[[str], bool] = lambda name: True) -> Exposition:
    """Read vLLM's /metrics. Only `vllm:` series are read; lines that are not understood are left out.

    `keep` says by a family's name whether its series are passed on. The samples stay text: they are shown again as they
    were, and only the few counters that the router needs are looked up as numbers.
    """
    values: dict[str, dict[str, float]] = {}
    families: dict[str, Family] = {}
    label = f'backend="{escape_label(backend)}"'
    for line in text.split("\n"):
        line = line.removesuffix("\r")
        if line.startswith(_PREFIX):
            _sample(line, label, values, families, keep)
        elif line.startswith(("# TYPE vllm:", "# HELP vllm:")):
            _, word, name, rest = [*line.split(" ", 3), ""][:4]
            if keep(name):
                family = families.setdefault(name, Family())
                if word == "TYPE":
                    family.kind = rest if rest in _KINDS else "untyped"
                else:
                    family.help = rest
    return Exposition(values, families)


def _sample(
    line: str,
    label: str,
    values: dict[str, dict[str, float]],
    families: dict[str, Family],
    keep: Callable[[str], bool],
) -> None:
    matched = _SAMPLE.fullmatch(line)
    if matched is None:
        return
    name, labels, number = matched[1], matched[2] or "", matched[3]
    try:
        value = float(number)
    except ValueError:
        return
    if not name.endswith("_bucket") and isfinite(value) and abs(value) < _LARGEST:
        values.setdefault(name, {})[labels] = value
    family = _family_of(name, families)
    if keep(family):
        # A label of that name which the server has already becomes what Prometheus would make of it.
        inner = _OWN_LABEL.sub(r'\1exported_backend="', labels)
        joined = f"{label},{inner}" if inner else label
        families.setdefault(family, Family()).samples.append(f"{name}{{{joined}}} {number}")


def _family_of(name: str, families: Mapping[str, Family]) -> str:
    """The family a sample belongs to: histograms and summaries add a suffix to their name."""
    if name in families:
        return name
    for suffix in _SUFFIXES:
        if name.endswith(suffix) and name.removesuffix(suffix) in families:
            return name.removesuffix(suffix)
    return name


def merge(servers: Iterable[Mapping[str, Family]]) -> str:
    """The text of many servers' families, each family once. Where types differ between versions the first one's is kept
    and the others' samples of that family are left out, since one name may have one type only."""
    merged: dict[str, Family] = {}
    for families in servers:
        for name, family in families.items():
            known = merged.get(name)
            if known is None:
                merged[name] = Family(family.kind, family.help, list(family.samples))
            elif known.kind == family.kind:
                known.samples += family.samples
    lines: list[str] = []
    for name, family in sorted(merged.items()):
        if family.samples:
            lines += (f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}", *family.samples)
    return "\n".join(lines) + "\n" if lines else ""
