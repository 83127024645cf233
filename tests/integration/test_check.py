"""`warmroute check` beyond two turns, against simulated servers: eviction, engines, shared stores, bounds, keys, watching."""

import asyncio
import json
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from warmroute.check import CheckError, eviction, ranks, store, turns
from warmroute.check.probe import Asked, Bounds, Speeds, compared, speeds
from warmroute.check.watch import Watched, watch
from warmroute.sim.backend import SimBackend, SimOptions

from ..serving import COMMAND
from .conftest import StartRouter
from .scripted import Scripted, Talk, free_port
from .test_cli import run as command

BLOCK = 16
BLOCKS = 300
CACHE = BLOCKS * BLOCK
FAST: dict[str, Any] = {"num_blocks": BLOCKS, "prefill_tokens_per_s": 20_000.0, "tokens_per_s": 1000.0}
TIER: dict[str, Any] = {"host_blocks": 4 * BLOCKS, "reload_tokens_per_s": 1e6}

Start = Callable[..., Awaitable[SimBackend]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    started: list[SimBackend] = []

    async def start(**options: Any) -> SimBackend:
        backend = SimBackend(SimOptions(**{**FAST, **options}))
        await backend.start()
        started.append(backend)
        return backend

    yield start
    for backend in started:
        await backend.stop()


def asking(tokens: int = 200, **more: Any) -> dict[str, Any]:
    bounds = Bounds(more.pop("max_tokens", 100_000), 60.0)
    say = more.pop("say", lambda _: None)
    return {"model": None, "key": None, "prompt_tokens": tokens, "bounds": bounds, "say": say, "dice": random.Random(1)}


def requests(backend: SimBackend) -> int:
    return sum(sum(engine.counters.finished.values()) for engine in backend.engines)


# Eviction


async def test_what_was_evicted_comes_back_from_host_memory(start: Start) -> None:
    backend, said = await start(**TIER, prefill_tokens_per_s=2000.0), list[str]()
    report = await eviction.run(backend.url, **asking(say=said.append))
    assert (report.back, report.passed) == (eviction.Back.RELOAD, True)
    assert report.warm_up_to is not None
    assert report.gone_from is not None
    assert CACHE / 2 < report.warm_up_to < report.gone_from <= 1.3 * CACHE
    external = sum(engine.cache.counters.external_hits for engine in backend.engines)
    assert report.reloaded_tokens == external > 0
    assert report.speeds.reload is not None
    assert report.speeds.prefill is not None
    assert report.speeds.reload < report.speeds.prefill
    assert "spares" in report.findings[0]
    assert said[0].endswith(f"out of its cache of {CACHE:,} tokens")
    assert report.asked_tokens == sum(engine.counters.prompt_tokens for engine in backend.engines)
    assert report.requests == requests(backend)
    assert "back by reload" in eviction.as_text(report)
    assert json.loads(json.dumps(eviction.as_dict(report)))["back"] == "reload"


async def test_what_was_evicted_is_computed_anew_where_no_tier_is(start: Start) -> None:
    report = await eviction.run((await start()).url, **asking())
    assert (report.back, report.passed, report.reloaded_tokens) == (eviction.Back.PREFILL, True, 0)
    assert report.speeds.prefill is not None
    assert report.speeds.reload is None
    assert any("--kv-offloading-size" in finding for finding in report.findings)
    assert any("--gpu-memory-utilization" in finding for finding in report.findings)


async def test_a_tier_that_has_nothing_of_it_is_a_fault(start: Start) -> None:
    report = await eviction.run((await start(host_blocks=20)).url, **asking())
    assert (report.back, report.passed) == (eviction.Back.PREFILL, False)
    assert any("raise --kv-offloading-size" in finding for finding in report.findings)


async def test_one_engine_of_several_is_filled(start: Start) -> None:
    backend = await start(data_parallel_size=2, **TIER)
    report = await eviction.run(backend.url, **asking())
    assert (report.back, report.cache_tokens) == (eviction.Back.RELOAD, CACHE)
    assert [engine.counters.prompt_tokens > 0 for engine in backend.engines] == [True, False]


def back(pressure: int, cached: int, reloaded: int) -> eviction.Return:
    return eviction.Return(pressure, Asked(200, cached, reloaded, 0.1), 192)


@pytest.mark.parametrize(
    ("hit", "returns", "how"),
    [
        (0, [], eviction.Back.NO_CACHE),
        (192, [back(10, 192, 0)], eviction.Back.NEVER_GONE),
        (192, [back(10, 192, 0), back(20, 0, 0)], eviction.Back.PREFILL),
        (192, [back(10, 192, 192)], eviction.Back.RELOAD),
        (192, [back(10, 64, 64)], eviction.Back.PARTLY),
        (192, [back(10, 64, 64), back(10, 0, 0)], eviction.Back.PARTLY),
    ],
)
def test_how_prompts_came_back(hit: int, returns: list[eviction.Return], how: eviction.Back) -> None:
    seen = eviction.Seen(1000, 192, hits=[Asked(200, hit, 0, 0.1)], returns=returns)
    assert eviction.how(seen) is how
    verdict, findings = eviction.judge(seen, how, Speeds(1.0, 0.1, 0.2, 5.0, 0.5), 200)
    assert verdict
    assert "\n" not in verdict
    assert bool(findings) == (how is not eviction.Back.NEVER_GONE)


def test_speeds_leave_out_what_a_hit_takes_and_what_others_add() -> None:
    cold = [Asked(1000, 0, 0, 1.1), Asked(1000, 0, 0, 3.0)]
    hits = [Asked(1000, 992, 0, 0.1), Asked(1000, 992, 0, 0.5)]
    found = speeds(cold, hits, [Asked(1000, 992, 500, 0.2)])
    assert found == Speeds(cold_s=1.1, hit_s=0.1, back_s=0.2, prefill=1.0, reload=0.2)
    assert compared(found, 2000).endswith("a reload of 2,000 tokens spares 1.60 s")
    assert speeds([], [], []) == Speeds(None, None, None, None, None)
    assert "spares no time" in compared(Speeds(1.1, 0.1, 2.0, 1.0, 3.0), 2000)


# Engines


async def test_each_engine_keeps_what_is_sent_to_its_rank(start: Start) -> None:
    backend = await start(data_parallel_size=3)
    report = await ranks.run(backend.url, **asking())
    assert (report.passed, report.engines) == (True, ("0", "1", "2"))
    expected = (report.prompt_tokens - 1) // BLOCK * BLOCK
    for rank in report.ranks:
        assert (rank.first.cached, rank.again.cached, rank.elsewhere.cached) == (0, expected, 0)
        assert (rank.first.engines, rank.elsewhere.engines) == ((rank.rank,), (rank.other,))
    assert [engine.counters.prompt_tokens for engine in backend.engines] == [3 * report.prompt_tokens] * 3
    assert "a hit with the rank, none with another" in ranks.as_text(report)


async def test_one_engine_needs_no_rank(start: Start) -> None:
    backend = await start()
    report = await ranks.run(backend.url, **asking())
    assert (report.passed, report.ranks, requests(backend)) == (True, (), 0)


def test_a_rank_that_is_not_obeyed() -> None:
    first, again = Asked(200, 0, 0, 0.1, engines=("0",)), Asked(200, 192, 0, 0.1, engines=("0",))
    good = ranks.Rank("0", first, again, "1", Asked(200, 0, 0, 0.1, engines=("1",)))
    dropped = ranks.Rank("1", first, again, "0", again)
    assert ranks.judge(["0", "1"], [good])[0]
    passed, verdict, findings = ranks.judge(["0", "1"], [good, dropped])
    assert (passed, verdict) == (False, "2 engines, and X-data-parallel-rank was not obeyed for 1")
    assert any("drops the header" in finding for finding in findings)
    assert ranks.judge([], [])[0] is False


# Stores


async def test_servers_without_a_store_share_nothing(start: Start) -> None:
    report = await store.run((await start()).url, (await start()).url, wait=0.0, **asking())
    assert (report.passed, report.reloaded_tokens) == (False, (0, 0, 0))
    assert "no tier" in report.verdict
    assert any("--kv-transfer-config" in finding for finding in report.findings)


async def test_host_memory_of_each_server_is_no_shared_store(start: Start) -> None:
    report = await store.run((await start(**TIER)).url, (await start(**TIER)).url, wait=0.0, **asking())
    assert (report.passed, report.reloaded_tokens) == (False, (0, 0, 0))
    assert "had nothing that the first had computed" in report.verdict


async def test_one_server_by_two_names_is_told(start: Start) -> None:
    url = (await start()).url
    report = await store.run(url, url.replace("127.0.0.1", "localhost"), wait=0.0, **asking())
    assert not report.passed
    assert "by another name" in report.verdict
    with pytest.raises(CheckError, match="are the same"):
        await store.run(url, f"{url}/", wait=0.0, **asking())


def test_a_store_that_gives_all_or_some() -> None:
    found = Speeds(1.0, 0.1, 0.2, 0.5, 0.05)
    whole = store.Seen(192, [], [Asked(200, 192, 192, 0.1)] * 3, [])
    some = store.Seen(192, [], [Asked(200, 192, 192, 0.1), *[Asked(200, 0, 0, 0.1)] * 2], [])
    assert store.judge(whole, found, 200)[:2] == (
        True,
        "shared: the second server reloaded 576 of 576 tokens that the first had computed",
    )
    passed, verdict, _ = store.judge(some, found, 200)
    assert not passed
    assert verdict.startswith("partly shared: the second server reloaded 192 of 576")


# Bounds, keys, wrong addresses


async def test_more_tokens_than_allowed_are_not_asked(start: Start) -> None:
    backend = await start()
    with pytest.raises(CheckError, match=r"--max-tokens allows 1,000: allow more with --max-tokens \d+$") as refused:
        await eviction.run(backend.url, **asking(max_tokens=1000))
    assert requests(backend) == 0
    enough = int(str(refused.value).rsplit(" ", 1)[1])
    report = await eviction.run(backend.url, **asking(max_tokens=enough))
    assert report.asked_tokens <= enough


def test_a_check_ends_at_its_bounds() -> None:
    now = 0.0
    bounds = Bounds(1000, 60.0, clock=lambda: now)
    bounds.take(900)
    with pytest.raises(CheckError, match="900 prompt tokens were asked"):
        bounds.take(200)
    now = 61.0
    with pytest.raises(CheckError, match=r"stopped after 60 s and 900 prompt tokens: .*--max-time"):
        bounds.take(1)
    assert (bounds.used, bounds.requests) == (900, 1)


async def test_a_router_is_not_taken_for_a_server(start_router: StartRouter) -> None:
    async with Scripted() as backend:
        router = await start_router([backend])
        for check in (eviction.run, ranks.run):
            with pytest.raises(CheckError, match=r"is a router; --.* give the address of one behind it"):
                await check(router.data_url, **asking())
        assert backend.posts == []


async def wants_a_key(talk: Talk) -> None:
    if talk.seen.header("authorization") == "Bearer secret":
        talk.json({"data": [{"id": "m"}]})
    else:
        talk.json({"error": "Unauthorized"}, "401 Unauthorized")


async def test_a_key_is_sent_and_asked_for() -> None:
    async with Scripted(models_script=wants_a_key) as backend:
        for words, env, said in (
            ((), {}, "wants a key: set VLLM_API_KEY"),
            (("--api-key", "wrong"), {}, "does not take this key"),
            ((), {"VLLM_API_KEY": "wrong"}, "does not take this key"),
        ):
            result = await command("check", backend.url, *words, env={"VLLM_API_KEY": "", **env})
            assert (result.returncode, result.stderr.count("\n")) == (1, 1)
            assert said in result.stderr
        await command("check", backend.url, env={"VLLM_API_KEY": "secret"})
        assert [seen.header("authorization") for seen in backend.posts] == [
            "Bearer secret"
        ] * 3  # tokenize and two turns


async def test_a_server_without_counters_cannot_be_checked() -> None:
    async with Scripted() as backend:
        with pytest.raises(CheckError, match="shows no prefix cache counters"):
            await eviction.run(backend.url, **asking())
    with pytest.raises(CheckError, match="is a server running at this address"):
        await ranks.run(f"http://127.0.0.1:{free_port()}", **asking())


def test_two_turns_on_several_engines_say_why_they_are_cold() -> None:
    first = turns.Turn(None, None, 100, 0, 100, 0, 0.1)
    assert "send X-data-parallel-rank" in turns.judge((first, first), BLOCK, router=False, engines=2)[3]
    assert "is prefix caching on" in turns.judge((first, first), BLOCK, router=False, engines=1)[3]


# The command


@pytest.mark.parametrize(
    "words",
    [
        ["--eviction", "--watch", "1s"],
        ["--eviction", "--data-parallel"],
        ["--data-parallel", "--store", "x"],
        ["--watch", "soon"],
        ["--max-tokens", "0"],
    ],
)
async def test_wrong_use(words: list[str]) -> None:
    result = await command("check", "http://127.0.0.1:1", *words)
    assert (result.returncode, result.stdout, "Traceback" in result.stderr) == (2, "", False)
    assert words[0] in result.stderr


async def test_the_command_says_first_how_much_it_asks(start: Start) -> None:
    backend = await start(data_parallel_size=2)
    result = await command("check", backend.url.removeprefix("http://"), "--data-parallel", "--prompt-tokens", "100")
    assert (result.returncode, result.stderr) == (0, "")
    assert "prompt tokens will be asked" in result.stdout.splitlines()[0]
    told = await command("check", backend.url, "--data-parallel", "--json")
    assert json.loads(told.stdout)["engines"] == ["0", "1"]


def heed_interrupts() -> None:
    """What a shell has started in the background ignores them, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def test_watching_tells_a_line_each_time_until_it_is_interrupted(start: Start) -> None:
    backend = await start()
    words = [*COMMAND, "check", backend.url, "--watch", "100ms"]
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, preexec_fn=heed_interrupts)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        assert all("  good  warm: turn 2 found" in line for line in lines)
        await backend.stop()
        while "  BAD   not made: " not in (line := (await process.stdout.readline()).decode()):
            assert line
        process.send_signal(signal.SIGINT)
        rest = (await process.stdout.read()).decode()
        assert await process.wait() == 1
    assert "of them failed" in rest.splitlines()[-1]


async def test_what_is_watched_is_counted() -> None:
    clock, told, found, pauses = [0.0], list[object](), [True, False, True], list[float]()

    async def once() -> turns.Report:
        clock[0] += 3.0
        if not found:
            raise CheckError("gone")
        turn = turns.Turn(None, None, 1, 1, 1, 1, 0.1)
        return turns.Report("u", "m", False, 16, (turn, turn), 0, 0, found.pop(0), "said")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise KeyboardInterrupt

    watched = Watched()
    with pytest.raises(KeyboardInterrupt):
        await watch(once, 5.0, told.append, watched, pause, lambda: clock[0])
    assert (watched.made, watched.failed, pauses) == (4, 2, [2.0] * 4)
    assert [isinstance(each, CheckError) for each in told] == [False, False, False, True]
