"""How long the router waits for a backend: long where a model works, short where nobody is there."""

import asyncio
import json

from warmroute.app import Router
from warmroute.config import Config

from ..integration.conftest import until
from ..integration.scripted import RawClient, Talk, token
from .backend import FaultyBackend, after, by_name, everywhere, homes, silence, stream, turn
from .conftest import StartRouter

PATIENCE = 6.0
"""Seconds: longer than the 5 s that HTTP libraries wait by default, and that vLLM keeps an idle connection."""


async def test_default_settings_let_a_model_think(backends: list[FaultyBackend], start_router: StartRouter) -> None:
    """A late answer, a late first event, a gap in the middle, an idle client: all at the same time, all whole."""
    urls = [b.url for b in backends]
    defaults = Config.from_urls(urls)
    router = await start_router(backends, upstream=defaults.upstream, limits=defaults.limits)

    async def gap(talk: Talk) -> None:
        talk.stream_head()
        talk.event(token("one"))
        await talk.drain()
        await asyncio.sleep(PATIENCE)
        talk.event(b"[DONE]")
        talk.end()

    scripts = {"late answer": after(PATIENCE), "late event": after(PATIENCE, stream), "gap": gap, "quick": after(0)}

    async def by_name(talk: Talk) -> None:
        await scripts[str(json.loads(talk.seen.body)["script"])](talk)

    everywhere(backends, by_name)

    async def idle_client() -> list[int]:
        async with await RawClient.connect(router.data_url) as client:
            first = await client.chat("idle", script="quick")
            await asyncio.sleep(PATIENCE)
            return [first.status, (await client.chat("idle", script="quick")).status]

    late, first, gapped, idle = await asyncio.gather(
        turn(router.data_url, "a", script="late answer"),
        turn(router.data_url, "b", script="late event", stream=True),
        turn(router.data_url, "c", script="gap", stream=True),
        idle_client(),
    )
    assert [reply.status for reply in (late, first, gapped)] == [200] * 3
    assert all(reply.whole for reply in (late, first, gapped))
    assert first.body.endswith(b"[DONE]\n\n")
    assert gapped.body.endswith(b"[DONE]\n\n")
    assert idle == [200, 200]
    assert router.counters.retries == {}
    assert all(b.failures == 0 and b.health.up for b in router.registry.backends.values())


HUNG = {"silence": 1, "rest": 60}


class TestSilence:
    async def test_before_the_first_byte_another_backend_answers(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, outlier=HUNG)
        home = by_name(backends, (await homes(router.data_url, ["s"]))["s"])
        home.script = silence
        reply = await turn(router.data_url, "s")
        assert (reply.status, reply.header("x-warmroute-backend") != home.name) == (200, True)
        assert router.registry.backends[home.name].health.up
        assert "1 s" in router.registry.backends[home.name].reason  # which limit it was
        await until(lambda: home.running == 0)  # and the hung one is not left to work

    async def test_in_the_middle_the_stream_ends_visibly(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        router = await start_router(backends, outlier=HUNG)

        async def stall(talk: Talk) -> None:
            talk.stream_head()
            talk.event({"i": 1})
            await silence(talk)

        everywhere(backends, stall)
        reply = await turn(router.data_url, "s", stream=True)
        assert (b'"error"' in reply.body, b"[DONE]" in reply.body) == (True, False)
        assert b"1 s" in reply.body
        await until(lambda: sum(b.running for b in backends) == 0)

    async def test_waiting_for_a_model_blames_no_backend(self, router: Router, backends: list[FaultyBackend]) -> None:
        everywhere(backends, after(1.0, stream))
        assert (await turn(router.data_url, "s", stream=True)).whole
        assert all(b.failures == 0 and b.health.up for b in router.registry.backends.values())
