"""What people see: /metrics, the JSON state, the access log, all agreeing with what was done."""

import asyncio
import io
import json
import re
import shutil
import subprocess
import time

import httpx
import pytest

from warmroute.app import Router
from warmroute.observe.log import AccessLog, as_json, as_text

from .conftest import StartRouter, until
from .scripted import RawClient, Scripted, Talk, role, token


def page(queries: int, hits: int, engine: str = "0") -> str:
    return (
        "# HELP vllm:prefix_cache_queries_total Prefix cache queries.\n# TYPE vllm:prefix_cache_queries_total counter\n"
        f'vllm:prefix_cache_queries_total{{engine="{engine}",model_name="m"}} {queries}.0\n'
        "# HELP vllm:prefix_cache_hits_total Prefix cache hits.\n# TYPE vllm:prefix_cache_hits_total counter\n"
        f'vllm:prefix_cache_hits_total{{engine="{engine}",model_name="m"}} {hits}.0\n'
    )


async def metrics_of(router: Router) -> str:
    async with httpx.AsyncClient() as http:
        return (await http.get(f"{router.admin_url}/metrics")).text


def value(text: str, series: str) -> float | None:
    found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.M)
    return float(found[1]) if found else None


async def until_scraped(router: Router, within: float = 5.0) -> None:
    """Wait until every backend has been read again."""
    now = time.monotonic()
    await until(lambda: all((b.scrape.at or 0) > now for b in router.registry.backends.values()), within)


async def test_hit_ratios_are_sums_and_nothing_is_no_sample(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    backends[0].metrics, backends[1].metrics = page(1000, 600), page(400, 100)
    router = await start_router(backends)
    await until_scraped(router)
    text = await metrics_of(router)
    assert value(text, f'warmroute_backend_prefix_cache_queries_total{{backend="{backends[0].name}"}}') == 1000
    assert value(text, f'warmroute_backend_prefix_cache_hits_total{{backend="{backends[1].name}"}}') == 100
    assert "hit_ratio{" not in text  # nothing has come since the router began to look
    backends[0].metrics, backends[1].metrics = page(2000, 1400), page(500, 100)
    await until_scraped(router)
    text = await metrics_of(router)
    assert value(text, f'warmroute_backend_prefix_cache_hit_ratio{{backend="{backends[0].name}",window="1m"}}') == 0.8
    assert value(text, f'warmroute_backend_prefix_cache_hit_ratio{{backend="{backends[1].name}",window="5m"}}') == 0.0
    assert value(text, 'warmroute_fleet_prefix_cache_hit_ratio{window="1h"}') == pytest.approx(800 / 1100)
    assert backends[2].name not in "".join(line for line in text.splitlines() if "hit_ratio" in line)


async def test_a_restarted_backend_loses_no_tokens_of_its_counters(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    backends[0].metrics = page(1000, 600)
    router = await start_router(backends)
    await until_scraped(router)
    backends[0].metrics = page(50, 10)  # restarted: everything it shows is new
    await until_scraped(router)
    text = await metrics_of(router)
    assert value(text, f'warmroute_backend_prefix_cache_queries_total{{backend="{backends[0].name}"}}') == 1050
    assert value(text, f'warmroute_backend_prefix_cache_hits_total{{backend="{backends[0].name}"}}') == 610
    assert value(text, 'warmroute_fleet_prefix_cache_hit_ratio{window="1m"}') == 0.2


async def test_vllms_own_series_are_passed_on_with_a_backend_label(
    backends: list[Scripted], start_router: StartRouter
) -> None:
    for i, backend in enumerate(backends):
        backend.metrics = page(10 + i, i) + 'process_open_fds 3.0\n# TYPE vllm:x gauge\nvllm:x{le="a b"} 1\n'
    router = await start_router(backends)
    await until_scraped(router)
    text = await metrics_of(router)
    rows = re.findall(r"^vllm:prefix_cache_queries_total\{.*", text, re.M)
    assert rows == [
        f'vllm:prefix_cache_queries_total{{backend="{b.name}",engine="0",model_name="m"}} {10 + i}.0'
        for i, b in enumerate(backends)
    ]
    assert text.count("# TYPE vllm:prefix_cache_queries_total counter") == 1
    assert "process_open_fds" not in text
    assert value(text, f'vllm:x{{backend="{backends[0].name}",le="a b"}}') == 1


@pytest.mark.parametrize(
    ("choice", "names"), [("none", set()), (["vllm:prefix_cache_hits"], {"vllm:prefix_cache_hits_total"})]
)
async def test_the_series_passed_on_can_be_chosen(
    backends: list[Scripted], start_router: StartRouter, choice: object, names: set[str]
) -> None:
    backends[0].metrics = page(1, 1)
    router = await start_router(backends, metrics={"scrape_interval": 0.2, "vllm_series": choice})
    await until_scraped(router)
    text = await metrics_of(router)
    assert set(re.findall(r"^(vllm:[a-z_]+)", text, re.M)) == names


async def test_promtool_finds_nothing(router: Router, backends: list[Scripted]) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    backends[0].script = reset_now
    async with await RawClient.connect(router.data_url) as client:
        for i in range(9):
            await client.chat(f"s{i}")
    own = "".join(line + "\n" for line in (await metrics_of(router)).splitlines() if "vllm:" not in line)
    checked = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=own, capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


async def reset_now(talk: Talk) -> None:
    talk.reset()


async def test_a_slow_metrics_page_slows_nothing(backends: list[Scripted], start_router: StartRouter) -> None:
    async def hang(talk: Talk) -> None:
        await asyncio.sleep(30)

    backends[1].metrics_script = hang
    router = await start_router(backends)
    await asyncio.sleep(0.7)
    slowest = 0.0
    async with httpx.AsyncClient() as http:
        for _ in range(10):
            started = time.monotonic()
            assert (await http.get(f"{router.admin_url}/metrics")).status_code == 200
            slowest = max(slowest, time.monotonic() - started)
    assert slowest < 0.3
    state = router.state()
    stuck = next(b for b in state["backends"] if b["name"] == backends[1].name)  # type: ignore[attr-defined]
    assert stuck["scrape"] == {"age_s": None, "stale": True, "error": "timed out"}
    assert stuck["state"] == "up"
    assert (backends[1].connections - len(backends[1].posts)) < 40


async def test_counters_agree_with_what_the_clients_saw(router: Router, backends: list[Scripted]) -> None:
    seen: dict[tuple[str, int], int] = {}
    async with await RawClient.connect(router.data_url) as client:
        for i in range(30):
            reply = await client.chat(f"s{i % 7}", model="m" if i % 5 else "unknown")
            key = (reply.header("x-warmroute-backend") or "", reply.status)
            seen[key] = seen.get(key, 0) + 1
    counted: dict[tuple[str, int], int] = {}
    for (backend, code, _), count in router.counters.requests.items():
        counted[backend, code] = counted.get((backend, code), 0) + count
    assert counted == seen
    text = await metrics_of(router)
    shown = sum(float(v) for v in re.findall(r"^warmroute_requests_total\{.*\} (\S+)$", text, re.M))
    assert shown == 30
    assert sum(float(v) for v in re.findall(r"^warmroute_sessions\{.*\} (\S+)$", text, re.M)) == len(router.pins)


async def test_one_log_line_a_request_tells_all_and_keeps_secrets(router: Router, backends: list[Scripted]) -> None:
    async def stream(talk: Talk) -> None:
        talk.stream_head()
        talk.event(role())
        talk.event(token("secret answer"))
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 96}}
        talk.event({"choices": [], "usage": usage})
        talk.event(b"[DONE]")
        talk.end()

    for backend in backends:
        backend.script = stream
    lines, texts = io.StringIO(), io.StringIO()
    router._access_log = AccessLog(lines, as_json)
    async with await RawClient.connect(router.data_url) as client:
        sent = {"x-session-id": "canary-session", "authorization": "Bearer canary-key", "x-request-id": "id-1"}
        client.post({"model": "m", "stream": True, "messages": [{"role": "user", "content": "canary-prompt"}]}, sent)
        await client.reply()
    router._access_log.close()
    AccessLog(texts, as_text)
    (line,) = lines.getvalue().splitlines()
    record = json.loads(line)
    assert record["id"] == "id-1"
    assert (record["prompt_tokens"], record["cached_tokens"], record["completion_tokens"]) == (100, 96, 7)
    assert (record["status"], record["decision"], record["key_source"], record["attempts"]) == (
        200,
        "ring",
        "x-session-id",
        1,
    )
    assert 0 < record["connect_s"] <= record["ttfb_s"] <= record["duration_s"]
    assert record["bytes_out"] > 0
    everything = line + as_text(router.counters.recent[0]) + json.dumps(router.state()) + await metrics_of(router)
    assert not [word for word in ("canary", "secret", "Bearer") if word in everything]


async def test_session_ids_models_and_odd_paths_grow_no_label(router: Router) -> None:
    async with await RawClient.connect(router.data_url) as client:

        async def ask(numbers: range) -> int:
            for i in numbers:
                await client.chat(f"session-{i}", model="m" if i % 4 else f"model-{i}")
                await client.chat(f"session-{i}")
                client.post({}, path=f"/odd/{i}")
                await client.reply()
            return len(await metrics_of(router))

        before = await ask(range(20))
        assert await ask(range(20, 220)) < before * 1.05


async def test_state_history_and_sessions_are_served(backends: list[Scripted], start_router: StartRouter) -> None:
    backends[0].metrics = page(1000, 600)
    router = await start_router(backends)
    await until_scraped(router)
    backends[0].metrics = page(2000, 1400)
    await until_scraped(router)
    async with await RawClient.connect(router.data_url) as client:
        for session in ("a", "a", "b"):
            await client.chat(session)
    async with httpx.AsyncClient(base_url=router.admin_url) as http:
        history = (await http.get("/api/history")).json()
        assert len(history["times"]) == len(history["fleet"]) == 120
        assert history["fleet"][-1] == history["backends"][backends[0].name][-1] == 0.8
        assert history["fleet"][0] is None
        sessions = (await http.get("/api/sessions")).json()
        assert sessions["total"] == 2
        assert sorted(s["turns"] for s in sessions["sessions"]) == [1, 2]
        state = (await http.get("/api/state")).json()
        assert state["fleet"]["hit_ratio"]["1m"] == 0.8
        assert [r["path"] for r in state["recent"]] == ["/v1/chat/completions"] * 3
        page_ = await http.get("/")
        assert "default-src 'none'" in page_.headers["content-security-policy"]
        assert (await http.get("/nothing")).status_code == 404
        assert (await http.get("/livez")).status_code == 200
