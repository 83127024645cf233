"""Writes the dashboards' files, or tells which of them are not as this code makes them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .backends import backends
from .fleet import fleet
from .panels import ROUTER, SOURCE, TAG, Grid, Json
from .router import router
from .sessions import sessions
from .tenants import tenants
from .tokens import tokens_page

FOLDER = Path(__file__).parent.parent / "dashboards"
_SCHEMA = 39
"""Of Grafana 10.4, the oldest that the pages are for; newer ones bring it up to date when they read it."""


_HAS = {"backend": "warmroute_backend_up", "tenant": "warmroute_tenant_requests_total"}
"""Metrics whose series have the values of a label that can be chosen."""


class Page(NamedTuple):
    """A dashboard. Its uid is its address, and the name of its file; `by` is a label to choose by beside the router."""

    uid: str
    title: str
    text: str
    fill: Callable[[Grid], None]
    by: str | None = "backend"


PAGES = (
    Page("warmroute", "Fleet", "Several vLLM servers behind warmroute: are their caches warm, and is all well?", fleet),
    Page("warmroute-backends", "Backends", "Each vLLM server: state, cache and load.", backends),
    Page(
        "warmroute-tokens",
        "Tokens",
        "What became of each prompt token: why a turn had to be computed anew.",
        tokens_page,
    ),
    Page(
        "warmroute-sessions",
        "Sessions",
        "Conversations: how they are recognised, where they are, why they move.",
        sessions,
    ),
    Page(
        "warmroute-tenants",
        "Tenants",
        "Each tenant: what it asks for, what caches save it, and what it is refused.",
        tenants,
        "tenant",
    ),
    Page(
        "warmroute-router",
        "Router",
        "The router itself: faults, clients, configuration, processes, discovery, shared store.",
        router,
        None,
    ),
)


def made(page: Page) -> Json:
    """The dashboard as Grafana's JSON."""
    grid = Grid()
    page.fill(grid)
    return {
        "uid": page.uid,
        "title": f"warmroute / {page.title}",
        "description": page.text,
        "tags": [TAG, "vllm"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "links": [_others()],
        "annotations": {"list": [_builtin(), _alerts()]},
        "templating": {"list": _variables(page)},
        "panels": grid.panels,
    }


def text(page: Page) -> str:
    """The content of the dashboard's file."""
    return json.dumps(made(page), indent=2, ensure_ascii=False) + "\n"


def _others() -> Json:
    return {
        "type": "dashboards",
        "title": "warmroute dashboards",
        "tags": [TAG],
        "icon": "external link",
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _builtin() -> Json:
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }


def _alerts() -> Json:
    """Marks on every graph when one of the shipped alerts fired."""
    return {
        "datasource": SOURCE,
        "enable": True,
        "expr": 'ALERTS{alertname=~"Warmroute.+",alertstate="firing"}',
        "iconColor": "red",
        "name": "Alerts of warmroute",
        "step": "30s",
        "titleFormat": "{{alertname}}",
        "textFormat": "{{backend}}",
    }


def _variables(page: Page) -> list[Json]:
    source: Json = {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "regex": "",
        "options": [],
        "current": {},
    }
    found = [source, _variable("job", "Job", "warmroute_build_info")]
    found.append(_variable("instance", "Router", 'warmroute_build_info{job=~"$job"}'))
    if page.by is not None:
        found.append(_variable(page.by, page.by.capitalize(), f"{_HAS[page.by]}{{{ROUTER}}}"))
    return found


def _variable(name: str, label: str, series: str) -> Json:
    """A choice among the values of a label. All is any value, and none: requests may have no backend."""
    query = f"label_values({series}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
        "refresh": 2,
        "hide": 0,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "regex": "",
        "options": [],
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def main(arguments: list[str]) -> int:
    """Exit code 1 if `--check` finds a file that is not as it should be."""
    stale = []
    for page in PAGES:
        file, wanted = FOLDER / f"{page.uid}.json", text(page)
        if file.exists() and file.read_text(encoding="utf-8") == wanted:
            continue
        stale.append(file.name)
        if "--check" not in arguments:
            file.write_text(wanted, encoding="utf-8")
    if stale:
        told = "is not as `python -m config.grafana.source` makes it" if "--check" in arguments else "written"
        print("\n".join(f"{name} {told}" for name in stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
