"""Builds the parts of a Grafana dashboard: panels that know their metrics, laid out from left to right in rows."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS = 24
TAG = "warmroute"
NO_TRAFFIC = "No traffic"

ROUTER = 'job=~"$job",instance=~"$instance"'
"""The series of the routers that are chosen."""
BACKEND = f'{ROUTER},backend=~"$backend"'
"""Of those the series of the backends that are chosen; requests that no backend answered have an empty name there."""

GREEN, YELLOW, RED, BLUE = "green", "yellow", "red", "blue"
Steps = Sequence[tuple[float | None, str]]
PLAIN: Steps = ((None, BLUE),)


@dataclass(frozen=True)
class Query:
    """One line of a panel: PromQL, and the name under which its series stand in the legend."""

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """A panel before it has a place. `metrics` of its queries are named below the words that explain it."""

    kind: str
    title: str
    text: str
    queries: tuple[Query, ...]
    width: int
    height: int
    defaults: Json
    options: Json
    overrides: tuple[Json, ...] = ()
    transformations: tuple[Json, ...] = ()
    format: str = "time_series"

    def at(self, number: int, x: int, y: int) -> Json:
        """The panel as Grafana has it."""
        found: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": f"{self.text}\n\n{_named(self.queries)}",
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "datasource": SOURCE,
            "targets": [self._target(i, query) for i, query in enumerate(self.queries)],
            "fieldConfig": {"defaults": self.defaults, "overrides": list(self.overrides)},
            "options": self.options,
        }
        if self.transformations:
            found["transformations"] = list(self.transformations)
        return found

    def _target(self, index: int, query: Query) -> Json:
        return {
            "datasource": SOURCE,
            "editorMode": "code",
            "expr": query.expr,
            "format": self.format,
            "instant": query.instant,
            "range": not query.instant,
            "legendFormat": query.legend or "__auto",
            "refId": chr(ord("A") + index),
        }


@dataclass
class Grid:
    """Places panels from left to right, and below each other where a line is full."""

    panels: list[Json] = field(default_factory=list)
    _x: int = 0
    _y: int = 0
    _height: int = 0

    def row(self, title: str) -> None:
        """Begin a part of the page that can be folded away."""
        self._break()
        place = {"x": 0, "y": self._y, "w": COLUMNS, "h": 1}
        number = len(self.panels) + 1
        self.panels.append(
            {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        self._y += 1

    def add(self, *panels: Panel) -> None:
        """Put panels behind those that are there."""
        for panel in panels:
            if self._x + panel.width > COLUMNS:
                self._break()
            self.panels.append(panel.at(len(self.panels) + 1, self._x, self._y))
            self._x += panel.width
            self._height = max(self._height, panel.height)

    def _break(self) -> None:
        self._x, self._y, self._height = 0, self._y + self._height, 0


def stat(
    title: str,
    text: str,
    *queries: Query | str,
    unit: str = "short",
    steps: Steps = PLAIN,
    width: int = 4,
    empty: str = NO_TRAFFIC,
    decimals: int | None = None,
) -> Panel:
    """One number, or one for each query, coloured by its steps; its course is behind it."""
    defaults = _defaults(unit, empty, decimals) | {"color": {"mode": "thresholds"}, "thresholds": _thresholds(steps)}
    options = {
        "colorMode": "none" if steps is PLAIN else "value",
        "graphMode": "area" if len(queries) == 1 else "none",
        "justifyMode": "auto",
        "orientation": "auto",
        "reduceOptions": _last(),
        "textMode": "value" if len(queries) == 1 else "value_and_name",
        "wideLayout": True,
    }
    return Panel("stat", title, text, _queries(queries), width, 4, defaults, options)


def graph(
    title: str,
    text: str,
    *queries: Query | str,
    unit: str = "short",
    width: int = 12,
    stacked: bool = False,
    top: float | None = None,
    empty: str = NO_TRAFFIC,
    decimals: int | None = None,
    colors: Mapping[str, str] | None = None,
    dashed: str | None = None,
    table: bool = False,
) -> Panel:
    """Lines over time. `dashed` is a pattern of the names that are dashed, `table` shows mean, maximum and last value."""
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 25 if stacked else 10,
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
    }
    defaults = _defaults(unit, empty, decimals) | {"color": {"mode": "palette-classic"}, "custom": custom, "min": 0}
    if top is not None:
        defaults["max"] = top
    overrides = [_override("byName", name, _fixed(color)) for name, color in (colors or {}).items()]
    if dashed is not None:
        line = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [8, 6]}}
        overrides.append(_override("byRegexp", dashed, line))
    return Panel(
        "timeseries", title, text, _queries(queries), width, 8, defaults, _graph_options(table), tuple(overrides)
    )


def states(
    title: str,
    text: str,
    *queries: Query,
    words: Mapping[int, tuple[str, str]],
    width: int = 12,
    empty: str = "Unknown",
) -> Panel:
    """When each series had which of a few whole values; `words` are the text and colour of each value."""
    shown = {str(value): {"text": word, "color": color, "index": i} for i, (value, (word, color)) in _numbered(words)}
    defaults: Json = {
        "mappings": [{"type": "value", "options": shown}],
        "noValue": empty,
        "color": {"mode": "thresholds"},
        "thresholds": _thresholds(((None, BLUE),)),
        "custom": {"fillOpacity": 70, "lineWidth": 0},
    }
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.9,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel("state-timeline", title, text, queries, width, 8, defaults, options)


def bars(title: str, text: str, query: Query, *, unit: str, width: int = 12, empty: str = NO_TRAFFIC) -> Panel:
    """One bar for each series, over the whole of the time that is shown."""
    defaults = _defaults(unit, empty, None) | {"color": {"mode": "palette-classic"}, "min": 0}
    options = {
        "displayMode": "basic",
        "namePlacement": "auto",
        "orientation": "horizontal",
        "reduceOptions": _last(),
        "showUnfilled": True,
        "sizing": "auto",
        "valueMode": "text",
    }
    return Panel("bargauge", title, text, (query,), width, 8, defaults, options)


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, an instant query that gives a value for each row, and how the values are shown."""

    name: str
    expr: str
    unit: str = "short"
    decimals: int | None = None
    steps: Steps | None = None
    words: Mapping[int, str] | None = None


def table(title: str, text: str, label: str, columns: Sequence[Column], *, link: str | None = None) -> Panel:
    """A row for each value of a label; `link` is the address that a row's first cell leads to."""
    refs = [f"Value #{chr(ord('A') + i)}" for i in range(len(columns))]
    names = dict(zip(refs, (column.name for column in columns), strict=True))
    organize = {
        "excludeByName": {"Time": True},
        "indexByName": {name: i for i, name in enumerate((label, *refs))},
        "renameByName": {label: label.capitalize(), **names},
    }
    overrides = [_override("byName", column.name, *_cell(column)) for column in columns]
    if link is not None:
        target = [{"title": "Show this one", "url": link}]
        overrides.append(_override("byName", label.capitalize(), {"id": "links", "value": target}))
    defaults = {"custom": {"align": "auto", "filterable": True}, "noValue": "-", "thresholds": _thresholds(PLAIN)}
    options = {"cellHeight": "sm", "showHeader": True, "footer": {"show": False, "reducer": ["sum"], "fields": ""}}
    return Panel(
        "table",
        title,
        text,
        tuple(Query(column.expr, instant=True) for column in columns),
        COLUMNS,
        8,
        defaults,
        options,
        tuple(overrides),
        ({"id": "merge", "options": {}}, {"id": "organize", "options": organize}),
        "table",
    )


def _cell(column: Column) -> Iterable[Json]:
    yield {"id": "unit", "value": column.unit}
    if column.decimals is not None:
        yield {"id": "decimals", "value": column.decimals}
    if column.steps is not None:
        yield {"id": "thresholds", "value": _thresholds(column.steps)}
        yield {"id": "custom.cellOptions", "value": {"type": "color-text"}}
    if column.words is not None:
        words = {str(value): {"text": word, "index": i} for i, (value, word) in enumerate(column.words.items())}
        yield {"id": "mappings", "value": [{"type": "value", "options": words}]}


def _queries(queries: Iterable[Query | str]) -> tuple[Query, ...]:
    return tuple(Query(query) if isinstance(query, str) else query for query in queries)


def _numbered(words: Mapping[int, tuple[str, str]]) -> Iterable[tuple[int, tuple[int, tuple[str, str]]]]:
    return enumerate(words.items())


def _defaults(unit: str, empty: str, decimals: int | None) -> Json:
    """How values are shown; neither a missing value nor 0/0 looks like zero."""
    nothing = {"match": "null+nan", "result": {"index": 0, "text": empty}}
    found: Json = {"unit": unit, "noValue": empty, "mappings": [{"type": "special", "options": nothing}]}
    return found if decimals is None else found | {"decimals": decimals}


def _graph_options(table: bool) -> Json:
    legend: Json = {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
    if table:
        legend |= {"calcs": ["mean", "max", "last"], "displayMode": "table"}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def _last() -> Json:
    """The newest value even if it is none: an old one would look like one of now."""
    return {"calcs": ["last"], "fields": "", "values": False}


def _thresholds(steps: Steps) -> Json:
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for value, color in steps]}


def _fixed(color: str) -> Json:
    return {"id": "color", "value": {"fixedColor": color, "mode": "fixed"}}


def _override(matcher: str, options: str, *properties: Json) -> Json:
    return {"matcher": {"id": matcher, "options": options}, "properties": list(properties)}


def _named(queries: Iterable[Query]) -> str:
    """The metrics of some queries, for a panel's description."""
    found = re.findall(r"\b(?:warmroute_|vllm:|ALERTS|up\b|scrape_)\w*", " ".join(query.expr for query in queries))
    names = sorted({re.sub(r"_bucket$", "", name) for name in found if name != "warmroute_build_info"})
    return f"Metric{'s' if len(names) > 1 else ''}: " + ", ".join(f"`{name}`" for name in names)
