"""Model lists of backends that differ, fail or talk nonsense, and what only one server knows of."""

import json

import httpx
import pytest

from warmroute.app import Router

from ..integration.conftest import until, up
from ..integration.scripted import RawClient, Script, Talk, free_port
from .backend import FaultyBackend, everywhere, posts, silence, turn
from .conftest import LONG, StartRouter

HTML = b"<html>hello</html>"


def listing(*cards: dict[str, object]) -> Script:
    async def script(talk: Talk) -> None:
        talk.json({"object": "list", "data": list(cards)})

    return script


def card(name: str, **more: object) -> dict[str, object]:
    return {"id": name, "object": "model", "max_model_len": 4096, "root": f"/models/{name}", "parent": None, **more}


async def html(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(HTML) + HTML)


async def get_models(router: Router, name: str = "") -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.data_url, trust_env=False, timeout=1.5 * LONG) as http:
        return await http.get(f"/v1/models{name}")


@pytest.fixture
async def mixed(backends: list[FaultyBackend]) -> list[FaultyBackend]:
    """One with m and ada, one with m and an adapter, one that hangs, one that refuses, one that speaks HTML."""
    one, two, hung = backends
    one.models_script = listing(card("m"), card("ada"))
    two.models_script = listing(card("m", root="/elsewhere"), card("lora-x", parent="m"))
    hung.health = hung.models_script = hung.metrics_script = hung.script = silence
    return [one, two, hung, FaultyBackend(port=free_port())]


class TestModels:
    async def test_the_list_is_the_union_whatever_some_backends_do(
        self, mixed: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        async with FaultyBackend(health=html, models_script=html, metrics_script=html, script=html) as speaks_html:
            router = await start_router([*mixed, speaks_html], wait=False)
            known = router.registry.backends
            await until(
                lambda: all(known[b.name].models for b in mixed[:2]) and bool(known[speaks_html.name].models_error)
            )
            await until(lambda: not known[mixed[2].name].available)
            lists = [(await get_models(router)).json() for _ in range(10)]
            assert all(found == lists[0] for found in lists)
            assert lists[0]["object"] == "list"
            assert lists[0]["data"] == [card("m"), card("ada"), card("lora-x", parent="m")]
            assert (await get_models(router, "/ada")).json() == card("ada")
            assert (await get_models(router, "/nope")).status_code == 404
            for _ in range(4):
                assert (await turn(router.data_url, model="lora-x")).header("x-warmroute-backend") != mixed[0].name
            await router.__aexit__(None, None, None)

    async def test_a_backend_without_a_list_is_asked_last(
        self, backends: list[FaultyBackend], start_router: StartRouter
    ) -> None:
        """Where others say that they serve the model, one that says nothing of its models is no choice."""
        backends[0].models_script = html
        router = await start_router(backends, wait=False)
        await until(lambda: up(router) == 3 and all(b.models for b in list(router.registry.backends.values())[1:]))
        for i in range(9):
            assert (await turn(router.data_url, f"s{i}")).status == 200
        assert backends[0].posts == []

    async def test_all_down_is_told_and_an_unknown_model_is_not_confused_with_it(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        unknown = await turn(router.data_url, model="nope")
        assert (unknown.status, "m" in str(unknown.json())) == (404, True)
        for backend in backends:
            await backend.stop()
        await until(lambda: up(router) == 0)
        assert (await get_models(router)).status_code == 503
        assert (await turn(router.data_url, model="m")).status == 503
        assert (await turn(router.data_url, model="nope")).status in (404, 503)


STATEFUL = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/sleep?level=2", "/wake_up")


class TestStatefulEndpoints:
    async def test_what_one_replica_alone_would_know_is_refused_with_a_hint(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        for path in STATEFUL:
            async with await RawClient.connect(router.data_url) as client:
                client.post({"lora_name": "x", "lora_path": "/a"}, path=path)
                reply = await client.reply()
            assert reply.status == 404
            assert "docs/reference.md" in json.dumps(reply.json())
        assert posts(backends) == []

    async def test_an_adapter_that_one_backend_lists_is_asked_for_there(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        """Loaded behind the router's back: the lists are read again, at the latest when a backend has come up anew."""
        backends[1].models = ["m", "x"]
        await backends[1].stop()
        await until(lambda: up(router) == 2)
        await backends[1].start()
        await until(lambda: up(router) == 3 and "x" in (router.registry.backends[backends[1].name].models or ()))
        for i in range(10):
            reply = await turn(router.data_url, f"s{i}", model="x")
            assert (reply.status, reply.header("x-warmroute-backend")) == (200, backends[1].name)

    async def test_the_admin_listener_tells_all_backends_and_what_each_said(
        self, router: Router, backends: list[FaultyBackend]
    ) -> None:
        async def yes(talk: Talk) -> None:
            talk.json({})

        async def no(talk: Talk) -> None:
            talk.json({"error": "no such file"}, "400 Bad Request")

        everywhere(backends, yes)
        backends[1].script = no
        async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
            body = {"lora_name": "x", "lora_path": "/a"}
            answered = await http.post("/api/broadcast/v1/load_lora_adapter?level=2", json=body)
        assert not answered.is_success
        assert {name: told["status"] for name, told in answered.json()["backends"].items()} == {
            b.name: 400 if b is backends[1] else 200 for b in backends
        }
        assert {seen.path for seen in posts(backends)} == {"/v1/load_lora_adapter?level=2"}
