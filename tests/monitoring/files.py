"""Reads the shipped files: dashboards with their queries, rules with their expressions."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from ..series import series

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "config"
PROVISIONING = CONFIG / "grafana" / "provisioning"
PROMETHEUS = CONFIG / "prometheus" / "prometheus.yml"
RULES = CONFIG / "prometheus" / "rules.yml"
RULES_TEST = Path(__file__).parent / "rules.test.yml"
GOLDEN = ROOT / "tests" / "golden" / "metrics-vllm-0.32.0.txt"
DASHBOARDS = sorted((CONFIG / "grafana" / "dashboards").glob("*.json"))

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is missing"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus (Debian package prometheus) is missing"
)

OF_PROMETHEUS = {"up", "scrape_duration_seconds", "scrape_samples_scraped", "ALERTS"}
"""Series that Prometheus adds."""
GRAFANA_SAYS = {"__rate_interval": "1m", "__range": "1m"}
"""Variables that every dashboard has."""


@dataclass(frozen=True)
class Asked:
    """One query of a panel."""

    dashboard: str
    panel: str
    ref: str
    expr: str
    instant: bool
    legend: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel} {self.ref}"


@dataclass(frozen=True)
class Rule:
    """A recorded series, or an alert."""

    name: str
    expr: str
    alert: bool
    annotations: Mapping[str, str]

    def __str__(self) -> str:
        return self.name


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def panels(dashboard: Any) -> list[Any]:
    """All panels that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def queries() -> list[Asked]:
    """Every query of every panel."""
    return [
        Asked(path.stem, panel["title"], target["refId"], target["expr"], target["instant"], target["legendFormat"])
        for path in DASHBOARDS
        for panel in panels(read_json(path))
        for target in panel["targets"]
    ]


def rules() -> list[Rule]:
    """Every rule, in the order in which they are evaluated."""
    return [
        Rule(rule.get("record") or rule["alert"], rule["expr"], "alert" in rule, rule.get("annotations", {}))
        for group in read_yaml(RULES)["groups"]
        for rule in group["rules"]
    ]


def filled_in(expr: str, **chosen: str) -> str:
    """A query as Grafana sends it when these are chosen, and everything of all others."""
    said = {**GRAFANA_SAYS, **{name: re.escape(value).replace("\\", "\\\\") for name, value in chosen.items()}}
    return re.sub(r"\$(\w+)", lambda found: said.get(found[1], ".*"), expr)


_KEYWORDS = {"or", "and", "unless", "bool", "offset", "by", "without", "on", "ignoring", "group_left", "group_right"}


def metric_names(expression: str) -> set[str]:
    """The metrics of a PromQL expression: its identifiers outside of strings, selectors and label lists, less functions."""
    bare = re.sub(r'"[^"]*"', "", expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]|\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    identifiers = set(re.findall(r"(?<![\w:.])[a-zA-Z_:][\w:]*(?!\s*\(|[\w:])", bare))
    return identifiers - _KEYWORDS


def selectors(expression: str) -> Iterator[str]:
    """The metrics of an expression with the labels that are asked for, each without its range and offset."""
    for name in metric_names(expression):
        yield from (
            found[0] for found in re.finditer(rf"(?<![\w:]){re.escape(name)}(?![\w:])(\{{[^}}]*\}})?", expression)
        )


def vllm_series() -> set[str]:
    """What a real vLLM server has."""
    return set(re.findall(r"^(vllm:\w+)", GOLDEN.read_text(encoding="utf-8"), re.MULTILINE))


def known_series() -> set[str]:
    """What Prometheus can know of a router."""
    return series() | vllm_series() | OF_PROMETHEUS


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
