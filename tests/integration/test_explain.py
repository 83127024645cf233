"""`warmroute explain`: it tells what the router would do, and does none of it."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from warmroute import control
from warmroute.app import Router
from warmroute.saved import read

from .conftest import StartRouter
from .scripted import Scripted

CHAT = "/v1/chat/completions"


def asks(*said: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]}


async def explained(router: Router, body: dict[str, Any], *headers: str, path: str | None = None) -> dict[str, Any]:
    saved = read(json.dumps(body).encode(), path=path, headers=headers)
    return await asyncio.to_thread(control.explain, router.admin_url, saved)


async def test_an_id_wins_and_what_was_refused_is_told(router: Router) -> None:
    found = await explained(
        router,
        {**asks("hi"), "prompt_cache_key": "k"},
        "X-Session-ID: s",
        "x-openwebui-chat-id: {{CHAT_ID}}",
        "chatui-conversation-id:",
    )
    assert found["source"] == "x-session-id"
    assert found["refused"] == [{"source": "x-openwebui-chat-id", "reason": "template"}]
    assert found["not_asked"] == ["chatui-conversation-id", "prompt_cache_key"]
    assert (found["known"], found["decision"] in ("ring", "ring_spill")) == (False, True)
    text = control.explain_text(found)
    assert "x-openwebui-chat-id (template)" in text
    assert found["backend"] in text


async def test_it_foretells_what_happens_and_changes_nothing(router: Router) -> None:
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        first = await client.post(CHAT, json=asks("hi"))
        answer = first.json()["choices"][0]["message"]["content"]
        before = router.state()["fleet"], router.memory.entries(), len(router.pins)
        told = [await explained(router, asks("hi", answer, "and now")) for _ in range(2)]
        assert told[0] == told[1]
        assert (router.state()["fleet"], router.memory.entries(), len(router.pins)) == before
        second = await client.post(CHAT, json=asks("hi", answer, "and now"))
    assert told[0]["known"] is True
    assert "answer that this session was given" in told[0]["recognised"]
    assert told[0]["backend"] == second.headers["x-warmroute-backend"] == first.headers["x-warmroute-backend"]
    assert told[0]["decision"] == second.headers["x-warmroute-decision"] == "pin_hit"
    assert told[0]["session"] == router.counters.recent[0].session


@pytest.mark.parametrize(
    ("body", "headers", "path", "recognised", "decision"),
    [
        ({**asks("### Task: a title"), "stream": False}, (), None, "beside a conversation", "side"),
        ({"model": "m", "input": [1.5]}, (), "/v1/embeddings", "nothing in it names", "no_session"),
        ({"model": "else", "messages": []}, (), None, "nothing in it names", "unknown_model"),
        (asks("hi", "ho", "hu"), (), None, "a new conversation", "ring"),
    ],
)
async def test_what_has_no_session_is_told(
    router: Router, body: dict[str, Any], headers: tuple[str, ...], path: str | None, recognised: str, decision: str
) -> None:
    found = await explained(router, body, *headers, path=path)
    assert recognised in found["recognised"]
    assert found["decision"] in (decision, f"{decision}_spill")


async def test_a_path_that_reaches_no_backend_is_an_error(router: Router) -> None:
    with pytest.raises(control.ControlError, match="/metrics reaches no backend"):
        await explained(router, asks("hi"), path="/metrics")


async def test_with_several_engines_the_engine_is_told(start_router: StartRouter, backends: list[Scripted]) -> None:
    router = await start_router(backends[:1])
    router.registry.set_engines(router.config.specs[0].name, ["0", "1"])
    found = await explained(router, asks("hi"), "X-Session-ID: s")
    assert found["engine"] in ("0", "1")
    assert f"engine {found['engine']}" in control.explain_text(found)


async def test_a_header_that_came_twice_is_told_and_its_first_value_used(router: Router) -> None:
    lines = ["POST /v1/chat/completions HTTP/1.1", "X-Session-ID: one", "X-Session-ID: two", "", json.dumps(asks("hi"))]
    saved = read("\r\n".join(lines).encode())
    found = await asyncio.to_thread(control.explain, router.admin_url, saved)
    alone = await explained(router, asks("hi"), "X-Session-ID: one")
    assert found["refused"] == [{"source": "x-session-id", "reason": "repeated"}]
    assert (found["source"], found["session"]) == ("x-session-id", alone["session"])
    async with httpx.AsyncClient(base_url=router.data_url) as client:
        twice = [("x-session-id", "one"), ("x-session-id", "two"), ("content-type", "application/json")]
        await client.post(CHAT, content=json.dumps(asks("hi")), headers=twice)
    assert router.counters.refused_keys["x-session-id", "repeated"] == 1
