"""The dashboard in a browser that is used as people use one: over a running router, and over answers of every size.

Skipped where Chromium is missing, but never in CI.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest

from tests.serving import COMMAND, Serving, serving, until_ready
from warmroute.app import Router
from warmroute.config import Config
from warmroute.core.split import Outcome
from warmroute.demo import DEMO_HABITS, demo_options
from warmroute.sim.backend import SimBackend
from warmroute.sim.workload import Workload

from .browser import Page, browsing, needed
from .test_dashboard_page import DASH, NOW, Answer, Json, admin_server, advice, always, backend, history, request, state

pytestmark = pytest.mark.skipif(needed(), reason="Chromium is not installed")

LIVE = "document.body.dataset.phase === 'live'"
FLOWS = "document.querySelector('[data-field=updated]').textContent.startsWith('live')"
OPEN_ROW = "[data-row=session].open"
HOSTILE = "<img src=x onerror=alert(1)>\u202e\u2066drow\U0001f600" + "W" * 300


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browsing(tmp_path / "profile") as page:
        yield page


def shown(page: Page, root: str, name: str) -> str:
    return page.text(f"{root} [data-field={name}]")


def rows(page: Page, template: str) -> int:
    count = page.js(f"document.querySelectorAll('[data-row={template}]').length")
    assert isinstance(count, int)
    return count


def fits(page: Page) -> bool:
    """Whether nothing has to be scrolled sideways."""
    return bool(page.js("document.documentElement.scrollWidth <= innerWidth"))


def crowded(page: Page) -> list[str]:
    """Cells of all tables that hold more than fits into them, or less than they should show."""
    found: list[str] = page.js(
        """[...document.querySelectorAll('.grid tbody :is(td, th)')].filter((cell) => cell.offsetParent !== null && (
          cell.scrollWidth > cell.clientWidth + 1 ||
          [...cell.querySelectorAll('.clip.two')].some((text) => text.scrollHeight > text.clientHeight + 1)
        )).map((cell) => `${cell.className}: ${cell.textContent.trim()}`)"""
    )
    return found


# ------------------------------------------------------------------------------------------------ a demo that has ended


async def talked(router: Router, users: int, seconds: float) -> Json:
    """Let simulated people talk, wait until the backends' last figures are read, and return the state."""
    workload = Workload(router.data_url, users=users, model="demo", seed=1, habits=DEMO_HABITS)
    await workload.run(seconds)
    async with httpx.AsyncClient(trust_env=False) as http:

        async def read() -> Json:
            found: Json = (await http.get(f"{router.admin_url}/api/state")).json()
            return found

        before = await read()
        async with asyncio.timeout(30):
            while True:
                await asyncio.sleep(0.6)
                now = await read()
                if not now["fleet"]["in_flight"] and now["truth"] == before["truth"] and _settled(now, before):
                    return now
                before = now


def _settled(now: Json, before: Json) -> bool:
    return bool(now["fleet"] == before["fleet"] and now["truth"]["saved_s"] > 0)


async def test_it_shows_the_true_numbers_of_a_demo(page: Page) -> None:
    options = demo_options(9, 2)
    async with SimBackend(options) as one, SimBackend(options) as two:
        sections: dict[str, Any] = {"listen": {"port": 0, "admin_port": 0}, "log": {"format": "off"}}
        sections |= {"metrics": {"scrape_interval": 0.2}, "backends": [one.url, two.url]}
        async with Router(Config.model_validate(sections)) as router:
            facts = await talked(router, 9, 8.0)
            await asyncio.to_thread(compare, page, router.admin_url, facts)


def compare(page: Page, url: str, facts: Json) -> None:
    page.open(url)
    page.until(f"{LIVE} && document.querySelector('#meter').hidden === false")
    fleet, truth = facts["fleet"], facts["truth"]
    assert shown(page, "#headline", "headline") == percent(fleet["hit_ratio"]["5m"])
    assert shown(page, "#headline", "hit-1h") == percent(fleet["hit_ratio"]["1h"])
    assert shown(page, "#headline", "possible-1h") == percent(fleet["possible_ratio"]["1h"])
    assert fleet["possible_ratio"]["1h"] >= fleet["hit_ratio"]["1h"] > 0.3
    title = page.js("document.querySelector('#tiles [data-field=saved-tokens]').title")
    assert title.startswith(f"{truth['tokens']['reused']:,} prompt tokens")
    assert shown(page, "#tiles", "saved-time")[0] != DASH
    for name in ("sessions", "requests", "moves"):
        assert shown(page, "#tiles", name) == f"{fleet[name]:,}", name
    whole = sum(truth["tokens"].values())
    lost = sum(truth["tokens"][o] for o in (Outcome.MOVED, Outcome.EVICTED, Outcome.PROMPT_CHANGED))
    assert f" {percent(lost / whole)} could have, and did not" in page.text("#missed-sentence")
    page.until(
        "document.querySelectorAll('#missed-legend li').length === 7 && document.querySelector('#chart canvas') !== null"
    )
    legend = dict(zip(page.texts("#missed-legend [data-field=name]"), titles(page, "#missed-legend"), strict=True))
    assert legend["first turn"] == f"{truth['tokens']['first_turn']:,} prompt tokens"
    assert legend["evicted"] == f"{truth['tokens']['evicted']:,} prompt tokens"
    names = [backend["name"] for backend in facts["backends"]]
    assert page.texts("[data-row=backend] [data-field=name]") == names
    assert page.texts("[data-row=warm-row] [data-field=name]") == names
    assert "is up" in " ".join(page.texts("[data-row=event]"))
    check_session(page, url)
    page.until(FLOWS)
    assert page.errors == []


def titles(page: Page, root: str) -> list[str]:
    found: list[str] = page.js(f"[...document.querySelectorAll('{root} [data-field=value]')].map((n) => n.title)")
    return found


def percent(ratio: float) -> str:
    if 0 < ratio < 0.01:
        return "<1%"
    return f"{int(ratio * 1000) / 10:.1f}%" if 0.99 <= ratio < 1 else f"{int(ratio * 100 + 0.5)}%"


def check_session(page: Page, url: str) -> None:
    """The strip of the session used last has a bar for each of its turns, made of their outcomes."""
    page.until("document.querySelectorAll('[data-row=session]').length > 2")
    name = page.text("[data-row=session] [data-field=session]")
    turns = httpx.get(f"{url}/api/sessions/{name}/turns", trust_env=False).json()["turns"]
    page.click("[data-row=session] .opens")
    page.until(f"document.querySelectorAll('{OPEN_ROW} [data-row=turn]').length === {len(turns)}")
    bars = page.js(f"[...document.querySelectorAll('{OPEN_ROW} .stack')].map((n) => n.getAttribute('aria-label'))")
    assert bars == [words(turn["outcomes"]) for turn in turns]
    tokens = [f"{t['cached_tokens']:,} / {t['prompt_tokens']:,}" for t in turns if t["cached_tokens"] is not None]
    assert [t for t in page.texts(f"{OPEN_ROW} [data-field=tokens]") if DASH not in t] == tokens


ORDER = ("reused", "reloaded", "evicted", "moved", "prompt_changed", "unknown", "first_turn", "new", "block_rounding")
NAMES = {"new": "new text"}


def words(outcomes: dict[str, int]) -> str:
    known = [(name, outcomes.get(name, 0)) for name in ORDER]
    return ", ".join(f"{n:,} {NAMES.get(name, name.replace('_', ' '))}" for name, n in known if n)


# ------------------------------------------------------------------------------------------------ restarts, keyboard


@contextmanager
def running(backend: str, before: Serving) -> Iterator[None]:
    """A router on the addresses of one that is gone."""
    data, admin = (str(urlsplit(url).port) for url in (before.data, before.admin))
    process = subprocess.Popen(
        [*COMMAND, "serve", backend, "--port", data, "--admin-port", admin], stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def test_it_survives_a_restart_of_the_router(page: Page) -> None:
    async with SimBackend() as sim:
        with serving(sim.url) as router:
            await until_ready(router.admin)
            await asyncio.to_thread(page.open, router.admin)
            await asyncio.to_thread(page.until, LIVE)
            await asyncio.to_thread(page.until, FLOWS)
        await asyncio.to_thread(page.until, "document.body.dataset.phase === 'stale'")
        assert "does not answer" in page.text("#banner")
        assert "retrying" in page.text("#age")
        with running(sim.url, router):
            await asyncio.to_thread(page.until, f"{LIVE} && document.querySelector('#banner').textContent === ''", 40)
            await asyncio.to_thread(page.until, FLOWS, 40)


def test_a_keyboard_reaches_a_sessions_strip(page: Page) -> None:
    with admin_server(answers(sessions(30))) as url:
        page.open(url)
        page.until(f"{LIVE} && document.querySelectorAll('[data-row=session]').length === 10")
        for _ in range(80):
            page.key("Tab", 9)
            if page.js("document.activeElement.className === 'opens'"):
                break
        assert page.js("document.activeElement.textContent") == "digest-0"
        assert page.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.key("Enter", 13, "\r")
        page.until(f"document.querySelectorAll('{OPEN_ROW} [data-row=turn]').length === 3")
        assert page.js("document.activeElement.getAttribute('aria-expanded')") == "true"
        controls = page.js("document.activeElement.getAttribute('aria-controls')")
        assert page.js(f"document.getElementById({json.dumps(controls)}).hidden") is False
        assert page.texts(f"{OPEN_ROW} [data-field=why]") == ["", "400 evicted", "300 prompt changed"]
        assert page.texts(f"{OPEN_ROW} .turn-rows [data-field=cause]") == ["", "", "system grown"]
        page.key("Escape", 27)
        page.until(f"document.querySelector('{OPEN_ROW}') === null")
        assert page.js("document.activeElement.textContent") == "digest-0"
    assert only_live_is_missing(page)


def only_live_is_missing(page: Page) -> bool:
    """The played admin API has no events, which the browser tells its console."""
    return [error for error in page.errors if "api/live" not in error] == []


# ------------------------------------------------------------------------------------------------ many and hostile


def sessions(count: int, **changes: Any) -> Json:
    def row(number: int) -> Json:
        facts: Json = {"session": f"digest-{number}", "source": "x-session-id", "backend": "b1", "engine": None}
        facts |= {"turns": 3, "idle_s": number / 10, "hit_ratio": 0.5, "prompt_tokens": 1_000}
        return facts | {"last_decision": "pin_hit", "last_cause": ""} | changes

    return {"total": count, "sessions": [row(number) for number in range(count)]}


def turns(name: str) -> Json:
    def turn(number: int, outcomes: dict[str, int], cause: str) -> Json:
        facts: Json = {"time": NOW + number, "backend": "b1", "decision": "pin_hit", "prompt_tokens": 1_000}
        facts |= {"cached_tokens": outcomes.get("reused", 0), "idle_s": 2.0 if number else None}
        return facts | {"outcomes": outcomes, "cause": cause, "meaning": "because"}

    first = turn(0, {"first_turn": 1_000}, "")
    second = turn(1, {"reused": 600, "evicted": 400}, "evicted")
    third = turn(2, {"reused": 700, "prompt_changed": 300}, "system_grown")
    return {"session": name, "source": "x-session-id", "turns": [first, second, third]}


def accounted(names: list[str], **changes: Any) -> Json:
    """What the router says of tokens."""
    idle: list[Json] = [
        {"up_to_s": bound, "turns": 9, "share": share} for bound, share in ((5, 0.99), (15, 0.95), (30, 0.4))
    ]
    idle.append({"up_to_s": None, "turns": 0, "share": None})
    tokens = dict.fromkeys(Outcome, 0) | {"reused": 70_000, "evicted": 20_000, "new": 10_000}
    of_backend: Json = {"tokens": tokens, "prefill_tokens_per_s": 5_000.0, "saved_s": 14.0, "warm_s": 15.0}
    of_backend |= {"always_warm": False, "idle": idle}
    row = {"backend": names[0], "outcome": "evicted", "cause": "evicted", "meaning": "It went.", "tokens": 20_000}
    facts: Json = {"tokens": tokens, "backends": dict.fromkeys(names, of_backend), "missed": [row], "stability": []}
    return facts | {"saved_s": 14.0, "conversations": 3} | changes


def answers(found: Json, facts: Json | None = None, events: list[Json] | None = None) -> Callable[[str, int], Answer]:
    """An admin API with sessions and an account of tokens; like the router's, it searches and limits."""
    facts = facts or state([backend("b1"), backend("b2")], [request()])
    names = [b["name"] for b in facts["backends"]]
    facts["truth"] = facts["truth"] or accounted(names)
    past = history(*names)
    steps = {outcome: [0, 10, 20, 30] for outcome in Outcome}
    past["truth"] = {"step_s": 30, "times": past["times"], "outcomes": steps}

    def answer(path: str, _: int) -> Answer:
        path, query = path.partition("?")[::2]
        if path == "api/live":
            return 404, "{}"
        if path.endswith("/turns"):
            return 200, json.dumps(turns(unquote(path.split("/")[2])))
        if path == "api/sessions":
            wanted = parse_qs(query)
            search = wanted.get("search", [""])[0]
            rows = [row for row in found["sessions"] if search in row["session"]]
            return 200, json.dumps(
                {**found, "sessions": rows if "unlimited" in found else rows[: int(wanted["limit"][0])]}
            )
        told = {"api/state": facts, "api/history": past, "api/events": {"events": events or []}}
        return 200, json.dumps(told[path])

    return answer


@pytest.mark.parametrize("limited", [True, False])
def test_ten_thousand_sessions_do_not_freeze_it(page: Page, limited: bool) -> None:
    """Also where the answer has all of them, as that of another version may."""
    many = sessions(10_000) | ({} if limited else {"unlimited": True})
    with admin_server(answers(many)) as url:
        page.open(url)
        page.until(f"{LIVE} && document.querySelectorAll('[data-row=session]').length === 10")
        assert page.text("#sessions-count") == "the 10 used last of 10,000"
        page.js("document.querySelector('#sessions-more').click()")
        assert rows(page, "session") == 60
        for _ in range(9):
            page.js("document.querySelector('#sessions-more').click()")
        assert rows(page, "session") == 200
        assert page.js("document.querySelector('#sessions-more').hidden")
        slowest = """new Promise((done) => {
            const began = performance.now();
            let last = began, worst = 0;
            const tick = () => {
                const now = performance.now();
                worst = Math.max(worst, now - last);
                last = now;
                if (now - began < 4000) setTimeout(tick, 0); else done(worst);
            };
            tick();
        })"""
        assert page.js(slowest) < 1_000, "the page was stuck for so many milliseconds"
        page.js("document.querySelector('#sessions-search').focus()")
        page.order("Input.insertText", text="digest-9999")
        page.until("document.querySelectorAll('[data-row=session]').length === 1")
        assert page.text("#sessions-count") == "1 found"
        page.order("Input.insertText", text="nobody")
        page.until("document.querySelector('#sessions').hidden")
        assert page.text("#sessions-empty") == "No session has this text."
    assert only_live_is_missing(page)


@pytest.mark.parametrize("width", [1280, 360])
def test_hostile_words_do_nothing_and_break_no_layout(page: Page, width: int) -> None:
    found = sessions(3, source=HOSTILE, backend=HOSTILE, last_decision=HOSTILE, last_cause=HOSTILE)
    found["sessions"][0]["session"] = HOSTILE
    truth = accounted([HOSTILE])
    truth["missed"] = [{"backend": HOSTILE, "outcome": HOSTILE, "cause": HOSTILE, "meaning": HOSTILE, "tokens": 5}]
    told = [advice(HOSTILE, evidence=HOSTILE, settings=[HOSTILE], level="cost")]
    facts = state(
        [backend(HOSTILE, state=HOSTILE, reason=HOSTILE)], [request(backend=HOSTILE)], truth=truth, advice=told
    )
    kinds = ("state", "move", "spill", "failure", "resumed", "broken", "reload", "reload_failed", HOSTILE)
    event: Json = {
        "time": NOW,
        "last": NOW + 5,
        "backend": HOSTILE,
        "to": HOSTILE,
        "why": HOSTILE,
        "count": 2,
        "tokens": 3,
    }
    with admin_server(answers(found, facts, [{**event, "kind": kind} for kind in kinds])) as url:
        page.open(url, width)
        page.until(f"{LIVE} && document.querySelectorAll('[data-row=session]').length === 3")
        page.until("document.querySelectorAll('[data-row=event]').length > 0")
        page.click("#timeline-more")
        page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.click("[data-row=session] .opens")
        page.until(f"document.querySelectorAll('{OPEN_ROW} [data-row=turn]').length === 3")
        assert rows(page, "event") == len(kinds)
        assert page.js("document.querySelectorAll('img[onerror], [onerror]').length") == 0
        assert page.text("[data-row=session] [data-field=session]") == HOSTILE
        assert page.text("[data-row=cause-row] [data-field=outcome]") == HOSTILE
        assert page.text("[data-row=advice-item] li") == HOSTILE
        assert fits(page)
    assert only_live_is_missing(page)


# ------------------------------------------------------------------------------------------------ looks


def test_light_and_dark_and_a_phone(page: Page) -> None:
    kept = advice("Do it.", level="cost", evidence="5 of 9", settings=["Open WebUI: x=false"])
    facts = state([backend("b1"), backend("b2")], [request()], advice=[kept, advice("Broken.")])
    with admin_server(answers(sessions(40), facts)) as url:
        page.open(url)
        page.until(f"{LIVE} && document.querySelectorAll('[data-row=session]').length === 10")
        assert page.texts("[data-row=advice-item] [data-field=level]") == ["mend", "costs tokens"]
        assert page.texts("[data-row=warm-row] [data-field=warm]") == ["up to 15 s"] * 2
        assert page.js("document.querySelector('#warm-chart canvas').width") > 0
        light = colours(page)
        page.scheme("dark")
        dark = colours(page)
        assert light["paper"] > 600 > light["ink"]
        assert dark["paper"] < 150 < 600 < dark["ink"]
        for width in (1480, 1240, 1000, 900, 768, 560, 390, 360):
            page.resize(width)
            page.until("document.querySelector('#chart canvas').getBoundingClientRect().right <= innerWidth")
            assert fits(page), width
            assert crowded(page) == [], width
        page.click("[data-row=session] .opens")
        page.until(f"document.querySelectorAll('{OPEN_ROW} [data-row=turn]').length === 3")
        assert fits(page)
        small = "[...document.querySelectorAll('#content button')].filter((b) => b.offsetParent && b.offsetHeight < 20).length"
        assert page.js(small) == 0, "buttons that a thumb cannot hit"
    assert only_live_is_missing(page)


def colours(page: Page) -> dict[str, int]:
    """Brightness of paper and ink, from 0 to 765."""
    return {
        name: sum(map(int, re.findall(r"\d+", page.js(f"getComputedStyle(document.body).{what}"))[:3]))
        for name, what in (("paper", "backgroundColor"), ("ink", "color"))
    }


def test_a_screen_reader_finds_tables_labels_and_few_live_regions(page: Page) -> None:
    with admin_server(answers(sessions(3))) as url:
        page.open(url)
        page.until(f"{LIVE} && document.querySelectorAll('[data-row=session]').length === 3")
        tree = page.order("Accessibility.getFullAXTree")["nodes"]
    named = {(n["role"]["value"], n.get("name", {}).get("value", "")) for n in tree if not n.get("ignored")}
    for table in ("Backends", "Sessions", "Recent requests", "How long a paused conversation stays warm"):
        assert ("table", table) in named
    for heading in ("Fleet hit rate", "Where the missed tokens went", "Advice", "Sessions", "Moves and failures"):
        assert ("heading", heading) in named
    assert ("searchbox", "Search sessions by digest, source or backend") in named
    assert ("rowheader", "digest-0") in named
    assert [
        n for n in tree if n["role"].get("value") in ("button", "searchbox") and not n.get("name", {}).get("value")
    ] == []
    live = page.js(
        "[...document.querySelectorAll('main [aria-live], main [role=status]')].map((n) => n.id || n.dataset.field)"
    )
    assert set(live) == {"sessions-empty", "told"}


def test_without_an_account_of_tokens_the_rest_is_there(page: Page) -> None:
    with admin_server(always(state([backend("b1")], []))) as url:
        page.open(url)
        page.until(LIVE)
        assert page.js("['missed', 'warm'].every((id) => document.getElementById(id).hidden)")
        page.until("!document.querySelector('#sessions-empty').textContent.startsWith('Asking')")
        assert page.text("#sessions-empty").startswith("No sessions yet")
        assert page.text("#timeline-empty") == "Nothing happened since the router started."
    assert only_live_is_missing(page)
