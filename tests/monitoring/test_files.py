"""The dashboards are what Grafana can read, ask for what /metrics has, and are found; the rules do what they say."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from config.grafana.source.__main__ import main

from warmroute.config import load

from ..series import names
from .files import (
    CONFIG,
    DASHBOARDS,
    GRAFANA_SAYS,
    PROMETHEUS,
    PROVISIONING,
    ROOT,
    RULES,
    RULES_TEST,
    Asked,
    Rule,
    filled_in,
    known_series,
    metric_names,
    needs_promtool,
    panels,
    promtool,
    queries,
    read_json,
    read_yaml,
    rules,
    selectors,
)

UNITS = {"short", "percentunit", "s", "reqps", "cps", "opm", "count:tok/s"}
"""Names of Grafana's, and `count:`, behind which any words may stand. Another unit is to be looked up, and added here."""
KINDS = {"stat", "timeseries", "state-timeline", "bargauge", "table", "row"}
LABELS = {
    *(
        "job",
        "instance",
        "backend",
        "code",
        "decision",
        "outcome",
        "cause",
        "source",
        "reason",
        "kind",
        "what",
        "where",
    ),
    *("op", "of", "result", "version", "window", "le", "engine", "model_name", "tenant"),
    *("alertname", "alertstate", "severity"),
}
"""Every label of /metrics, and those of Prometheus."""
ALERTS = [rule for rule in rules() if rule.alert]

each_dashboard = pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
each_query = pytest.mark.parametrize("asked", queries(), ids=str)


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ('sum by (le, backend) (rate(a_total{code=~"b_total"}[1m])) / on (c) max(d)', {"a_total", "d"}),
        ("60 * sum(rate(e:f[$__rate_interval])) or 0 * g", {"e:f", "g"}),
        ('label_replace(h, "i", "j", "k", "")', {"h"}),
        ("a:b < 0.5 * (c:d offset 10m) unless on (e) f == 1e9", {"a:b", "c:d", "f"}),
        ("a / on (b) group_left () (sum(c) > 0)", {"a", "c"}),
    ],
)
def test_metric_names_are_found_in_expressions(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names


def test_selectors_are_found_in_expressions() -> None:
    found = selectors('a_total{x="1"} + rate(a_total[5m]) and b:a_total offset 1m')
    assert sorted(found) == ["a_total", 'a_total{x="1"}', "b:a_total"]


# Dashboards


def test_dashboards_are_as_their_source_makes_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert len(DASHBOARDS) == 6


def test_each_dashboard_has_an_address_and_a_title_of_its_own() -> None:
    found = [read_json(path) for path in DASHBOARDS]
    assert [page["uid"] for page in found] == [path.stem for path in DASHBOARDS]
    assert len({page["title"] for page in found}) == len(found)
    assert all(re.fullmatch(r"[\w-]{1,40}", page["uid"]) for page in found)


@each_dashboard
def test_a_dashboard_works_with_any_prometheus(path: Path) -> None:
    page = read_json(path)
    source = {"type": "prometheus", "uid": "${datasource}"}
    variables = {variable["name"]: variable for variable in page["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    used = [panel["datasource"] for panel in panels(page)]
    used += [target["datasource"] for panel in panels(page) for target in panel["targets"]]
    used += [variable["datasource"] for variable in page["templating"]["list"] if variable["type"] == "query"]
    used += [mark["datasource"] for mark in page["annotations"]["list"] if not mark.get("builtIn")]
    assert used
    assert all(one == source for one in used)
    assert "id" not in page  # a number of one installation


@each_dashboard
def test_panels_are_distinct_and_do_not_overlap(path: Path) -> None:
    found = read_json(path)["panels"]
    ids = [panel["id"] for panel in found]
    assert len(set(ids)) == len(ids)
    assert all(isinstance(number, int) and number > 0 for number in ids)
    assert {panel["type"] for panel in found} <= KINDS
    cells: set[tuple[int, int]] = set()
    for place in (panel["gridPos"] for panel in found):
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + dx, place["y"] + dy) for dx in range(place["w"]) for dy in range(place["h"])}
        assert own
        assert not cells & own
        cells |= own


@each_dashboard
def test_panels_have_titles_of_their_own_and_queries_with_letters_of_their_own(path: Path) -> None:
    found = panels(read_json(path))
    assert [title for title, count in Counter(panel["title"] for panel in found).items() if count > 1] == []
    for panel in found:
        letters = [target["refId"] for target in panel["targets"]]
        assert letters == [chr(ord("A") + number) for number in range(len(letters))]
        assert letters
        instant = panel["type"] in ("table", "bargauge")
        assert all(target["instant"] is instant for target in panel["targets"]), panel["title"]
        assert all(target["range"] is not instant for target in panel["targets"]), panel["title"]


def units(panel: Any) -> list[str]:
    overridden = [
        item["value"]
        for override in panel["fieldConfig"]["overrides"]
        for item in override["properties"]
        if item["id"] == "unit"
    ]
    return [
        *overridden,
        *([panel["fieldConfig"]["defaults"]["unit"]] if "unit" in panel["fieldConfig"]["defaults"] else []),
    ]


@each_dashboard
def test_values_have_units_and_steps_that_grafana_knows(path: Path) -> None:
    for panel in panels(read_json(path)):
        assert set(units(panel)) <= UNITS, panel["title"]
        assert units(panel) or panel["type"] == "state-timeline", panel["title"]
        thresholds = panel["fieldConfig"]["defaults"].get("thresholds")
        if thresholds is not None:
            values = [step["value"] for step in thresholds["steps"]]
            assert values[0] is None
            assert values[1:] == sorted(set(values[1:]))


@each_dashboard
def test_nothing_is_told_from_zero(path: Path) -> None:
    for panel in panels(read_json(path)):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["noValue"]
        if panel["type"] in ("stat", "timeseries", "bargauge"):
            options = [mapping["options"] for mapping in defaults["mappings"] if mapping["type"] == "special"]
            assert [(o["match"], o["result"]["text"]) for o in options] == [("null+nan", defaults["noValue"])]
            assert panel["options"].get("reduceOptions", {"calcs": ["last"]})["calcs"] == ["last"]


@each_dashboard
def test_every_panel_says_what_it_shows_and_of_what(path: Path) -> None:
    for panel in panels(read_json(path)):
        names = {name for target in panel["targets"] for name in metric_names(target["expr"])}
        shown = {re.sub(r"_bucket$", "", name) for name in names}
        if shown != {"warmroute_build_info"}:
            shown -= {"warmroute_build_info"}  # it stands for zero
            told = set(re.findall(r"`([\w:]+)`", panel["description"].rpartition("\n\nMetric")[2]))
            assert told == shown, panel["title"]
        assert len(panel["description"].partition("\n")[0]) > 20, panel["title"]


@each_dashboard
def test_variables_are_there_where_they_are_used(path: Path) -> None:
    page = read_json(path)
    known = {variable["name"] for variable in page["templating"]["list"]}
    used = {
        name for panel in panels(page) for target in panel["targets"] for name in re.findall(r"\$(\w+)", target["expr"])
    }
    assert used - known - set(GRAFANA_SAYS) == set()
    assert known - used == {"datasource"}


@each_dashboard
def test_links_lead_to_dashboards(path: Path) -> None:
    page = read_json(path)
    urls = re.findall(r'"url": "([^"]*)"', json.dumps(page))
    assert all(re.fullmatch(r"/d/([\w-]+)\?.*", url) for url in urls)
    assert {url.split("/")[2].split("?")[0] for url in urls} <= {other.stem for other in DASHBOARDS}
    assert page["links"][0]["tags"] == ["warmroute"]
    assert "warmroute" in page["tags"]


@each_query
def test_a_query_asks_for_metrics_that_there_are(asked: Asked) -> None:
    names = metric_names(asked.expr)
    assert names
    assert names - known_series() == set()


@pytest.mark.parametrize("name", names())
def test_a_metric_of_the_router_is_shown_or_watched(name: str) -> None:
    """One that no panel draws and no rule looks at is of use only to who knows of it."""
    used = {
        found for expr in (*(q.expr for q in queries()), *(r.expr for r in rules())) for found in metric_names(expr)
    }
    assert used & {name, f"{name}_bucket"}


@each_query
def test_a_query_is_of_the_routers_that_are_chosen(asked: Asked) -> None:
    """Each selector is; rates are over what Grafana takes for the scrape interval, sums over what it shows."""
    for selector in selectors(asked.expr):
        if not selector.startswith("ALERTS"):
            assert 'job=~"$job",instance=~"$instance"' in selector
    assert set(re.findall(r"\[([^]]*)\]", asked.expr)) <= {"$__rate_interval", "$__range"}


@pytest.mark.parametrize(
    "expr", [*{asked.expr: None for asked in queries()}, *(rule.expr for rule in rules())], ids=lambda expr: expr[:60]
)
def test_labels_are_those_that_there_are(expr: str) -> None:
    bare = re.sub(r'"[^"]*"', '""', expr)
    listed = re.findall(r"\b(?:by|on|group_left|without|ignoring)\s*\(([^)]*)\)", bare)
    used = {label.strip() for labels in listed for label in labels.split(",")} - {""}
    used |= set(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*""', bare))
    assert used <= LABELS


@needs_promtool
def test_queries_are_promql(tmp_path: Path) -> None:
    found = [{"record": f"panel:{number}", "expr": filled_in(asked.expr)} for number, asked in enumerate(queries())]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": found}]}))
    done = promtool("check", "rules", str(file))
    assert done.returncode == 0, done.stderr
    assert f"{len(found)} rules found" in done.stdout


# How they are found


def test_grafana_finds_dashboards_and_data_source() -> None:
    services = read_yaml(ROOT / "docker-compose.yml")["services"]
    (source,) = read_yaml(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    (provider,) = read_yaml(PROVISIONING / "dashboards" / "warmroute.yaml")["providers"]
    grafana = services["grafana"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert source["url"].removeprefix("http://").split(":")[0] in services
    folder = provider["options"]["path"]
    assert f"./config/grafana/dashboards:{folder}:ro" in grafana["volumes"]
    assert "./config/grafana/provisioning:/etc/grafana/provisioning:ro" in grafana["volumes"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in [f"{folder}/{path.name}" for path in DASHBOARDS]


def test_grafana_and_prometheus_agree_on_the_scrape_interval() -> None:
    (source,) = read_yaml(PROVISIONING / "datasources" / "prometheus.yaml")["datasources"]
    (job,) = read_yaml(PROMETHEUS)["scrape_configs"]
    assert source["jsonData"]["timeInterval"] == job["scrape_interval"]


def test_prometheus_scrapes_the_admin_listener_as_often_as_it_is_renewed() -> None:
    services = read_yaml(ROOT / "docker-compose.yml")["services"]
    (job,) = read_yaml(PROMETHEUS)["scrape_configs"]
    example = load(CONFIG / "warmroute.yaml", environment={})
    assert job["job_name"] == "warmroute"
    assert job["scrape_interval"] == "5s"
    assert example.metrics.scrape_interval == 5.0
    host, port = job["static_configs"][0]["targets"][0].split(":")
    assert host in services
    assert int(port) == example.listen.admin_port


def test_prometheus_finds_its_files() -> None:
    prometheus = read_yaml(ROOT / "docker-compose.yml")["services"]["prometheus"]
    assert "./config/prometheus:/etc/prometheus:ro" in prometheus["volumes"]
    assert f"--config.file=/etc/prometheus/{PROMETHEUS.name}" in prometheus["command"]
    assert [PROMETHEUS.parent / name for name in read_yaml(PROMETHEUS)["rule_files"]] == [RULES]


# Rules


@needs_promtool
def test_prometheus_accepts_its_configuration_and_its_rules() -> None:
    done = promtool("check", "config", str(PROMETHEUS))
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout


@needs_promtool
def test_rules_do_what_they_are_for() -> None:
    done = promtool("test", "rules", str(RULES_TEST))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@needs_promtool
@pytest.mark.parametrize("rule", rules(), ids=str)
def test_a_rule_that_finds_nothing_is_noticed(rule: Rule, tmp_path: Path) -> None:
    """The tests of the rules see each of them: without it they fail."""
    broken, test = read_yaml(RULES), read_yaml(RULES_TEST)
    tests = [one for one in test["tests"] if rule.name in json.dumps(one)]
    assert tests
    for group in broken["groups"]:
        for one in group["rules"]:
            if rule.name in (one.get("record"), one.get("alert")):
                one["expr"] = "vector(0) > 1"
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(broken))
    (tmp_path / "test.yml").write_text(yaml.safe_dump({**test, "rule_files": ["rules.yml"], "tests": tests}))
    done = promtool("test", "rules", str(tmp_path / "test.yml"))
    assert done.returncode == 1, done.stderr
    assert rule.name in done.stdout + done.stderr


@pytest.mark.parametrize("rule", ALERTS, ids=str)
def test_an_alert_is_tried_when_all_is_well_and_when_not(rule: Rule) -> None:
    cases = [case for test in read_yaml(RULES_TEST)["tests"] for case in test.get("alert_rule_test", [])]
    expected = [bool(case["exp_alerts"]) for case in cases if case["alertname"] == rule.name]
    assert True in expected
    assert False in expected


@pytest.mark.parametrize("rule", rules(), ids=str)
def test_a_rule_is_of_metrics_that_there_are(rule: Rule) -> None:
    names = metric_names(rule.expr)
    assert names
    assert names - known_series() - {other.name for other in rules() if not other.alert} == set()


@pytest.mark.parametrize("rule", ALERTS, ids=str)
def test_an_alert_says_what_is_wrong_and_where_to_look(rule: Rule) -> None:
    assert set(rule.annotations) == {"summary", "description", "dashboard"}
    assert rule.annotations["dashboard"] in {path.stem for path in DASHBOARDS}
    assert rule.name.startswith("Warmroute")
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert f"`{rule.name}`" in page


def test_the_page_names_every_dashboard() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
    assert [path.name for path in DASHBOARDS if f"`{path.name}`" not in page] == []
    assert set(re.findall(r"`(Warmroute\w+)`", page)) == {rule.name for rule in ALERTS}
