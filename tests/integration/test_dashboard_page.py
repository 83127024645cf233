"""The dashboard page: its files hang together, and a browser shows in it what the admin API says.

The tests that run the page need Chromium, those of its pure functions Node; each group is skipped where its tool is
missing, but never in CI. The admin API is played by a small server in this file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from warmroute.core.model import Reason
from warmroute.core.split import Outcome
from warmroute.fleet.moves import Move
from warmroute.observe.events import Kind
from warmroute.web.access import HEADERS

from .browser import CHROMIUM, needed

STATIC = Path(str(files("warmroute").joinpath("web", "static")))
OWN_SCRIPTS = sorted(STATIC.glob("*.js"))
CSP = HEADERS["content-security-policy"]
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
VOID = {"meta", "link", "img", "br", "path", "input"}
PREFIX = "/some/prefix"
NOW = 1_790_000_000.0
DASH = "\N{EN DASH}"
NODE = shutil.which("node")

needs_browser = pytest.mark.skipif(needed(), reason="Chromium is not installed")
needs_node = pytest.mark.skipif(NODE is None and not os.environ.get("CI"), reason="Node is not installed")

Json = dict[str, Any]
Answer = tuple[int, str]


class Node:
    """One element: tag, attributes, children; a text is a child of type str."""

    def __init__(self, tag: str, attrs: dict[str, str]) -> None:
        self.tag = tag
        self.attrs = attrs
        self.children: list[Node | str] = []

    def __repr__(self) -> str:
        return f"<{self.tag} {self.attrs} with {len(self.children)} children>"

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, **attrs: str) -> list[Node]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attrs.items()}
        return [n for n in self.walk() if all(n.attrs.get(name) == value for name, value in wanted.items())]

    def one(self, **attrs: str) -> Node:
        found = self.all(**attrs)
        assert len(found) == 1, f"{attrs}: {len(found)} elements"
        return found[0]

    def tags(self, tag: str) -> list[Node]:
        return [n for n in self.walk() if n.tag == tag]


class TreeBuilder(HTMLParser):
    """Builds the tree of a well-formed page."""

    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            closed = self.open.pop()
            assert closed.tag == tag, f"</{tag}> closes <{closed.tag}>"

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(html: str) -> Node:
    builder = TreeBuilder()
    builder.feed(html)
    builder.close()
    assert len(builder.open) == 1, f"not closed: {builder.open[1:]}"
    return builder.open[0]


@pytest.fixture(scope="module")
def page() -> Node:
    return parse((STATIC / "index.html").read_text("utf-8"))


# ------------------------------------------------------------------------------------------------ the files


def test_every_reference_of_the_page_is_relative_and_there(page: Node) -> None:
    references = [n.attrs[a] for n in page.walk() for a in ("src", "href") if a in n.attrs]
    local = [r for r in references if not r.startswith(("#", "api/"))]
    assert len(local) >= 5
    for reference in local:
        assert reference.startswith("static/"), reference
        assert (STATIC / reference.removeprefix("static/")).is_file(), reference


def test_the_page_holds_no_inline_script_and_no_handler(page: Node) -> None:
    assert [n for n in page.tags("script") if n.text.strip() or "src" not in n.attrs] == []
    assert [(n, a) for n in page.walk() for a in n.attrs if a.startswith("on")] == []


@pytest.mark.parametrize("script", OWN_SCRIPTS, ids=lambda p: p.name)
def test_a_script_puts_text_in_as_text_and_loads_nothing_from_elsewhere(script: Path) -> None:
    code = script.read_text("utf-8")
    sinks = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|https?://"
    assert re.findall(sinks, code) == []
    for imported in re.findall(r'from "(.+?)"', code):
        assert (STATIC / imported).is_file(), imported


def test_every_row_has_a_cell_for_every_heading(page: Node) -> None:
    tables = {"backends": ("backend", "engine"), "recent": ("request",), "sessions": ("session",)}
    tables |= {"causes": ("cause-row",), "warm-table": ("warm-row",), "session": ("turn",)}
    for table, templates in tables.items():
        headings = [n for n in page.one(id=table).tags("th") if n.attrs.get("scope") == "col"]
        for template in templates:
            row = page.one(id=template).tags("tr")[0]
            cells = [n for n in row.children if isinstance(n, Node)]
            assert len(cells) == len(headings), template
            assert {n.attrs.get("role") for n in cells} <= {"cell", "rowheader"}, template


def test_every_outcome_has_a_name_and_a_colour() -> None:
    words, style = (STATIC / "words.js").read_text("utf-8"), (STATIC / "style.css").read_text("utf-8")
    for outcome in Outcome:
        assert f"  {outcome}: {{ name:" in words
        assert style.count(f"--outcome-{outcome}: #") == 2, "one in light, one in dark"


def test_every_kind_of_event_and_every_cause_of_a_move_has_its_words() -> None:
    script = (STATIC / "timeline.js").read_text("utf-8")
    for word in (*Kind, *Move):
        assert re.search(rf"^  {word}: ", script, re.MULTILINE), word


def test_every_decision_is_explained(page: Node) -> None:
    explained = {n.attrs["id"] for n in page.tags("dt") if "id" in n.attrs}
    assert {f"decision-{reason}" for reason in [*Reason, "none"]} <= explained


def test_ids_are_unique(page: Node) -> None:
    ids = [n.attrs["id"] for n in page.walk() if "id" in n.attrs]
    assert sorted(ids) == sorted(set(ids))


def test_the_vendored_chart_library_is_the_version_its_note_names() -> None:
    note = (STATIC / "vendor" / "README.md").read_text("utf-8")
    banner = (STATIC / "vendor" / "uPlot.iife.min.js").read_text("utf-8")[:200]
    version = re.search(r"\(v([\d.]+)\)", banner)
    assert version is not None
    assert f"| {version[1]} |" in note
    assert "The MIT License" in (STATIC / "vendor" / "uPlot.LICENSE.txt").read_text("utf-8")


# ------------------------------------------------------------------------------------------------ pure functions


FIGURES: list[tuple[str, str | None]] = [
    ("percent(null)", None),
    ("percent(undefined)", None),
    ("percent(NaN)", None),
    ("percent(0)", "0%"),
    ("percent(0.004)", "<1%"),
    ("percent(0.7449)", "74%"),
    ("percent(0.99999)", "99.9%"),
    ("percent(1)", "100%"),
    ("count(null)", None),
    ("count(1234567)", "1,234,567"),
    ("compact(null)", None),
    ("compact(187400)", "187.4K"),
    ("duration(null)", None),
    ("duration(0.1204)", "120 ms"),
    ("duration(0.9996)", "1.0 s"),
    ("duration(9.96)", "10 s"),
    ("duration(59.7)", "1 min"),
    ("duration(11520)", "3 h 12 min"),
    ("duration(172799)", "1 d 23 h"),
    ("duration(-3)", "0 ms"),
    ("age(null)", None),
    ("age(0)", "1 s"),
    ("age(11520)", "3 h"),
    ("pair(992, 1000)", "992 / 1,000"),
    ("pair(null, 1000)", f"{DASH} / 1,000"),
    ("pair(null, null)", None),
    ("lineInWords([null, null])", "no prompts in the last hour"),
    ("lineInWords([0.25, null, 0.5, 0.4])", "lowest 25%, highest 50%, latest 40%"),
    ("sparkPath([])", ""),
    ("sparkPath([0, 1, null, 0.5, null])", "M0.00 22.00L25.00 2.00M75.00 12.00h0.01"),
    (
        "fromFirstFigure({times: [1, 2, 3], fleet: [null, null, 1], backends: {b: [4, 5, 6]}}, 1).backends.b.join()",
        "5,6",
    ),
    (
        "fromFirstFigure({times: [1, 2], fleet: [null, 1], backends: {}, truth: {times: [3, 4], outcomes: {n: [5, 6]}}}, 1)"
        ".truth.outcomes.n.join()",
        "5,6",
    ),
    ("fromFirstFigure({times: [1, 2], fleet: [null, 1], backends: {}}, 1).possible.join()", ","),
    ("stacked([[1, 2], [10, 20], [0, 1]]).join(' ')", "1,2 11,22 11,23"),
    ("stacked([]).join()", ""),
    ("fromFirstFigure({times: [1, 2, 3], fleet: [null, null, 1], backends: {}}, 3).times.join()", "1,2,3"),
    ("fromFirstFigure({times: [1, 2], fleet: [null, null], backends: {}}, 1).times.join()", "1,2"),
    ("fromFirstFigure({times: [], fleet: [], backends: {}}, 20).times.join()", ""),
    ("lonePoints([0.1, null, 0.2, 0.3, null, 0.4]).join()", "0,5"),
]


@needs_node
def test_figures_as_text() -> None:
    module = "data:text/javascript," + quote((STATIC / "figures.js").read_text("utf-8"))
    calls = ", ".join(call for call, _ in FIGURES)
    names = "percent, count, compact, duration, age, pair, lineInWords, sparkPath, fromFirstFigure, lonePoints, stacked"
    code = f"const {{{names}}} = await import({json.dumps(module)}); console.log(JSON.stringify([{calls}]));"
    assert NODE is not None
    command = [NODE, "--input-type=module", "--eval", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answers = json.loads(done.stdout)
    assert {call: answer for (call, _), answer in zip(FIGURES, answers, strict=True)} == dict(FIGURES)


# ------------------------------------------------------------------------------------------------ what the API says


def advice(text: str, **changes: Any) -> Json:
    return {"level": "bad", "text": text, "evidence": "", "settings": []} | changes


def windows(one: float | None = None, five: float | None = None, hour: float | None = None) -> Json:
    return {"1m": one, "5m": five, "1h": hour}


def backend(name: str, **changes: Any) -> Json:
    engine = {"engine": "0", "sessions": 4, "in_flight": 1, "running": 1, "waiting": 0, "kv_cache_usage": 0.3}
    facts: Json = {"name": name, "url": f"http://{name}", "state": "up", "reason": "", "since": NOW - 7_300.0}
    facts |= {"models": ["tiny"], "weight": 1.0, "sessions": 8, "in_flight": 1, "requests": 1_100, "failures": 2}
    facts |= {"running": 1, "waiting": 0, "kv_cache_usage": 0.31, "hit_ratio": windows(0.7, None, 0.6)}
    facts |= {"external_hit_ratio": windows(), "prompt_tokens": windows(12_000, 0, 90_000), "engines": [engine]}
    return facts | {"scrape": {"age_s": 2.1, "stale": False, "error": None}} | changes


def request(**changes: Any) -> Json:
    facts: Json = {"time": NOW - 5, "id": "r1", "method": "POST", "path": "/v1/chat/completions", "status": 200}
    facts |= {"backend": "b1", "engine": None, "decision": "pin_hit", "key_source": "x-session-id"}
    facts |= {"session": "a1b2c3d4", "attempts": 1, "prompt_tokens": 1_000, "cached_tokens": 992}
    return facts | {"completion_tokens": 20, "ttfb_s": 0.12, "duration_s": 1.4, "aborted": False} | changes


def state(backends: list[Json], recent: list[Json], **changes: Any) -> Json:
    fleet: Json = {"hit_ratio": windows(0.74, 0.726, 0.7), "external_hit_ratio": windows(), "sessions": 24}
    fleet |= {"possible_ratio": windows(0.84, 0.826, None)}
    fleet |= {"prompt_tokens": windows(12_000, 61_000, 700_000), "in_flight": 3, "requests": 1_234, "moves": 2}
    fleet |= {"retries": 3, "client_aborts": 5, "backends": len(backends), "backends_up": len(backends)}
    facts: Json = {"version": "0.1.0", "now": NOW, "uptime_s": 12.3, "ready": True, "reasons": [], "advice": []}
    facts["truth"] = None
    return facts | {"fleet": fleet, "backends": backends, "recent": recent} | changes


def history(*names: str) -> Json:
    line = [0.5, None, 0.7, 0.8]
    times = [NOW - 90, NOW - 60, NOW - 30, NOW]
    possible = [None if ratio is None else ratio + 0.1 for ratio in line]
    lines = dict.fromkeys(names, line)
    return {"step_s": 30, "times": times, "fleet": line, "possible": possible, "backends": lines, "truth": None}


def without_traffic(backends: list[Json]) -> Json:
    facts = state([b | {"hit_ratio": windows(), "prompt_tokens": windows(0, 0, 0)} for b in backends], [])
    facts["fleet"] |= {"hit_ratio": windows(), "prompt_tokens": windows(0, 0, 0), "requests": 0}
    return facts


# ------------------------------------------------------------------------------------------------ the page in a browser


@contextmanager
def admin_server(answer: Callable[[str, int], Answer]) -> Iterator[str]:
    """Serves the page below a path prefix; `answer(path, n)` answers the n-th call (from 1) of an API path."""
    calls: dict[str, int] = {}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Keeps the test's output clean."""

        def do_GET(self) -> None:
            path = self.path.removeprefix(PREFIX + "/")
            file = STATIC / ("index.html" if path == "" else path.removeprefix("static/"))
            if path.startswith("api/"):
                calls[path] = calls.get(path, 0) + 1
                status, body = answer(path, calls[path])
                self.reply(status, body.encode(), "application/json")
            elif self.path.startswith(PREFIX) and file.is_file():
                self.reply(200, file.read_bytes(), TYPES[file.suffix])
            else:
                self.reply(404, b"", "text/plain")

        def reply(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(body)))
            self.send_header("content-security-policy", CSP)
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def shown(profile: Path, answer: Callable[[str, int], Answer], page_ms: int = 3_000) -> Node:
    """The page's tree after `page_ms` milliseconds of the browser's own (virtual) time."""
    assert CHROMIUM is not None
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}"]
    flags += ["--window-size=1400,1000", f"--virtual-time-budget={page_ms}", "--dump-dom"]
    with admin_server(answer) as url:
        done = subprocess.run([CHROMIUM, *flags, url], capture_output=True, text=True, timeout=120, check=True)
    return parse(done.stdout)


def always(facts: Json, past: Json | None = None) -> Callable[[str, int], Answer]:
    """An admin API that always says the same, by polling only."""
    past = past or history(*(b["name"] for b in facts["backends"]))
    told = {"api/state": facts, "api/history": past, "api/events": {"events": []}}
    told["api/sessions"] = {"total": 0, "sessions": []}

    def answer(path: str, _: int) -> Answer:
        found = told.get(path.partition("?")[0])
        return (404, "{}") if found is None else (200, json.dumps(found))

    return answer


def visible_text(tree: Node) -> str:
    main = tree.tags("main")[0]
    return re.sub(r"\s+", " ", main.text)


def field(root: Node, name: str) -> Node:
    return root.one(data_field=name)


@needs_browser
def test_it_shows_fleet_backends_engines_and_requests(tmp_path: Path) -> None:
    engines = [
        {"engine": str(i), "sessions": 4 + i, "in_flight": i, "running": 1, "waiting": i, "kv_cache_usage": 0.2 + i / 2}
        for i in range(2)
    ]
    gone: Json = {"state": "down", "reason": "connection refused", "running": None, "waiting": None}
    gone |= {"kv_cache_usage": None, "scrape": {"age_s": 62.0, "stale": True, "error": "timed out"}}
    same = gone | {"scrape": {"age_s": None, "stale": True, "error": "connection refused"}}
    backends = [backend("b1"), backend("b2", engines=engines, weight=2.0), backend("b3", **gone), backend("b4", **same)]
    lost = request(
        backend="b2", engine="1", decision="pin_lost", attempts=2, cached_tokens=None, failures=["b3: reset"]
    )
    refused = request(backend=None, session=None, key_source=None, status=0, ttfb_s=None, decision="none")
    tree = shown(tmp_path, always(state(backends, [request(), lost, refused], advice=[advice("do <b>this</b>")])))

    assert tree.tags("body")[0].attrs["data-phase"] == "live"
    assert tree.tags("title")[0].text == "73% · warmroute"
    assert field(tree.one(id="headline"), "headline").text == "73%"
    assert "72.6% of 61,000 prompt tokens" in field(tree.one(id="headline"), "headline").attrs["title"]
    (told,) = tree.one(id="advice-list").all(data_row="advice-item")
    assert [field(told, f).text for f in ("level", "text", "evidence")] == ["mend", "do <b>this</b>", ""]

    assert field(tree.one(id="headline"), "headline-possible").text == "83% was possible."
    assert field(tree.one(id="headline"), "possible-1h").attrs["title"] == "what was possible is not known"

    tiles = [n.tags("dt")[0].text for n in tree.one(id="tiles").tags("div") if "hidden" not in n.attrs]
    assert tiles == ["Backends up", "Sessions", "In flight", "Requests", "Moves", "Retries", "Client aborts"]
    assert field(tree.one(id="tiles"), "client_aborts").text == "5"

    first, second, third, fourth = tree.all(data_row="backend")
    assert [field(first, f).text for f in ("name", "state", "since", "load", "kv")] == [
        "b1",
        "up",
        "for 2 h",
        "1 / 0",
        "31%",
    ]
    assert field(first, "requests").text == "1,100"
    assert first.all(data_row="engine") == []
    assert first.tags("path")[0].attrs["d"].startswith("M0.00 12.00h0.01M66.67 8.00L100.00")
    assert [field(n, "name").text for n in second.all(data_row="engine")] == ["engine 0", "engine 1"]
    assert [field(n, "kv").text for n in second.all(data_row="engine")] == ["20%", "70%"]
    assert third.attrs["data-state"] == "down"
    assert field(third, "reason").text == "connection refused"
    assert field(third, "scrape").text == "metrics 1 min old: timed out"
    assert field(fourth, "scrape").text == "no metrics yet"
    assert field(third, "kv").attrs["title"] == "not reported by the server"

    rows = tree.all(data_row="request")
    assert [field(r, "tokens").text for r in rows] == ["992 / 1,000", f"{DASH} / 1,000", "992 / 1,000"]
    assert [field(r, "status-note").text for r in rows] == ["", "2 attempts", ""]
    assert field(rows[1], "status-note").attrs["title"] == "b3: reset"
    assert field(rows[1], "engine").text == "engine 1"
    assert "moved to another" in field(rows[1], "decision").attrs["title"]
    assert field(rows[2], "ttfb").text.startswith(DASH)
    assert field(rows[2], "status").attrs["title"] == "no status was sent"
    assert [n.attrs["data-series"] for n in tree.one(id="legend").tags("li")] == [
        "fleet",
        "possible",
        *["backend"] * 4,
    ]
    assert len(tree.one(id="chart").tags("canvas")) == 1


@needs_browser
def test_no_data_is_a_dash_with_its_reason_and_never_a_number(tmp_path: Path) -> None:
    idle = backend("b1", running=None, waiting=None, kv_cache_usage=None)
    past: Json = {"step_s": 30, "times": [NOW - 30, NOW], "fleet": [None, None], "backends": {"b1": [None, None]}}
    past |= {"possible": [None, None], "truth": None}
    tree = shown(tmp_path, always(without_traffic([idle]), past))
    row = tree.one(data_row="backend")
    for name in ("hit-1m", "hit-5m", "hit-1h"):
        for root in (row, tree.one(id="headline")):
            assert field(root, name).text.startswith(DASH)
            assert field(root, name).attrs["title"] == "no prompts in this window"
    assert tree.tags("title")[0].text == "warmroute"
    assert row.tags("path")[0].attrs["d"] == ""
    assert "hidden" not in tree.one(id="chart-empty").attrs
    assert "No prompts yet." in visible_text(tree)
    assert "hidden" not in tree.one(id="recent-empty").attrs
    assert re.findall(r"NaN|undefined|null|Infinity", visible_text(tree)) == []


@needs_browser
def test_hostile_text_stays_text(tmp_path: Path) -> None:
    names = ["<img src=x onerror=alert(1)>" + "W" * 172, "__proto__", "a\"b'c</script><script>alert(1)</script>"]
    not_in_history = "constructor"
    bad: Json = {"reason": "<i>reason</i>", "state": "<b>down</b>", "models": ["<u>m</u>" * 25]}
    recent = [request(backend=names[0], path="/<s>path</s>", decision="<em>x</em>", session="<q>s</q>")]
    backends = [backend(name, **bad) for name in [*names, not_in_history]]
    facts = state(backends, recent, ready=False, reasons=["<a>why</a>"])
    tree = shown(tmp_path, always(facts, history(*names)))
    rows = tree.all(data_row="backend")
    assert [field(n, "name").text for n in rows] == [*names, not_in_history]
    assert [field(n, "name").text for n in tree.one(id="legend").tags("li")] == ["fleet", "possible", *names]
    assert [n.tags("path")[0].attrs["d"] != "" for n in rows] == [True, True, True, False]
    assert field(tree.one(data_row="request"), "decision").text == "<em>x</em>"
    for tag in ("i", "b", "u", "s", "em", "q"):
        assert tree.tags(tag) == [], tag
    assert [n for n in tree.walk() if "onerror" in n.attrs] == []
    assert "<a>why</a>" in tree.one(id="banner").text


@needs_browser
def test_not_ready_is_a_banner_with_the_reasons(tmp_path: Path) -> None:
    facts = state([backend("b1", state="down", reason="refused")], [], ready=False, reasons=["no backend is up", "two"])
    tree = shown(tmp_path, always(facts))
    banner = tree.one(id="banner")
    assert banner.attrs["aria-live"] == "polite"
    assert [n.text for n in banner.tags("p")] == ["no backend is up", "two"]
    assert tree.tags("title")[0].text == "not ready · warmroute"


@needs_browser
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((500, "oops"), "api/state answered HTTP 500."),
        ((200, "<html>"), "did not answer JSON"),
        ((200, "{}"), "Reload"),
    ],
)
def test_a_router_that_never_answers_well_is_an_error(tmp_path: Path, answer: Answer, words: str) -> None:
    tree = shown(tmp_path, lambda path, n: answer)
    assert tree.tags("body")[0].attrs["data-phase"] == "error"
    assert words in tree.one(id="banner").text
    assert tree.one(id="age").text == "No answer yet, retrying."


@needs_browser
def test_a_router_that_stops_answering_leaves_the_last_figures_marked_stale(tmp_path: Path) -> None:
    good = always(state([backend("b1")], [request()]))
    tree = shown(tmp_path, lambda path, n: good(path, n) if n == 1 else (503, ""), page_ms=9_000)
    assert tree.tags("body")[0].attrs["data-phase"] == "stale"
    assert field(tree.one(id="headline"), "headline").text == "73%"
    assert re.fullmatch(r"Last update \d+ s ago, retrying\.", tree.one(id="age").text)
    assert "hidden" not in tree.one(id="age").attrs
    assert tree.tags("title")[0].text == "no answer · warmroute"


@needs_browser
def test_a_router_that_comes_back_clears_the_banner(tmp_path: Path) -> None:
    good = always(state([backend("b1")], [request()]))
    tree = shown(tmp_path, lambda path, n: good(path, n) if n > 2 else (503, ""), page_ms=9_000)
    assert tree.tags("body")[0].attrs["data-phase"] == "live"
    assert tree.one(id="banner").text == ""
    assert "hidden" in tree.one(id="age").attrs


@needs_browser
def test_columns_for_an_external_store_show_only_where_one_is_used(tmp_path: Path) -> None:
    plain = shown(tmp_path / "a", always(state([backend("b1")], [])))
    used = backend("b1", external_hit_ratio=windows(0.2, 0.18, None))
    tree = shown(tmp_path / "b", always(state([used], [])))
    assert "with-external" not in plain.tags("body")[0].attrs.get("class", "")
    assert "with-external" in tree.tags("body")[0].attrs["class"]
    assert field(tree.one(data_row="backend"), "external").text == "18%"
