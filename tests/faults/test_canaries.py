"""Secrets that come out nowhere: distinct ones are put in wherever one is taken, and all that comes out is searched.

What is searched: log and access log, metrics, the admin API and its pages, every answer to a client, the store, what the
commands print, and the messages about configurations that cannot be used.
"""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from click.testing import CliRunner
from pydantic import BaseModel, SecretStr

from warmroute.app import Router
from warmroute.cli import main
from warmroute.config import BackendConfig, Config, ConfigError, load

from ..integration.conftest import until
from ..integration.scripted import RawClient, Talk
from ..integration.valkey import Valkey
from .backend import FaultyBackend, everywhere, posts, raw_answer, reset, stream
from .conftest import StartRouter

MARK = "canary"
SECRETS = {
    "backends.key": f"{MARK}-of-one-backend",
    "listen.keys": f"{MARK}-of-a-client-0123456789",
    "listen.admin_token": f"{MARK}-of-the-operator-0123456789",
    "upstream.key": f"{MARK}-of-all-backends",
    "store.secret": f"{MARK}-of-the-store-0123456789",
    "store.redis": f"{MARK}-password",
}
"""Each key of the configuration that takes a secret, and the secret that is put there."""
SAID = {
    "model": "m",
    "user": f"{MARK}-user",
    "metadata": {"user_id": f"{MARK}-person"},
    "session_id": f"{MARK}-session",
}
MESSAGES = [{"role": "system", "content": f"{MARK}-system"}, {"role": "user", "content": f"{MARK}-prompt"}]
HEADERS = {
    "authorization": f"Bearer {SECRETS['listen.keys']}",
    "x-session-id": f"{MARK}-session-header",
    "x-openwebui-chat-id": f"{MARK}-chat",
    "x-openwebui-user-email": f"{MARK}@example.org",
    "x-request-id": f"{MARK} is no good id",
    "cookie": f"sid={MARK}-cookie",
    "x-forwarded-for": f"{MARK}-address",
}
QUERY = f"/v1/chat/completions?secret={MARK}-query"


def secret_keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every key that takes a secret, by its type; and the one URL that may hold a password."""
    for name, field in model.model_fields.items():
        inner = BackendConfig if name == "backends" else field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from secret_keys(inner, (*path, name))
        elif SecretStr in types_in(inner) or (*path, name) == ("store", "redis"):
            yield ".".join((*path, name))


def types_in(annotation: Any) -> set[Any]:
    """A type, those that it is made of, and those of the fields of models among them."""
    inner = list(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        inner += [field.annotation for field in annotation.model_fields.values()]
    return {annotation, *(found for one in inner for found in types_in(one))}


def test_every_key_that_takes_a_secret_has_one_here() -> None:
    assert set(secret_keys(Config)) == set(SECRETS)


async def ask(router: Router, body: object, path: str = QUERY, **headers: str) -> str:
    """Everything that a client is told, of which nothing may be a secret of anybody."""
    async with await RawClient.connect(router.data_url) as client:
        client.post(body, {**HEADERS, **headers}, path)
        reply = await client.reply()
        return f"{reply.status} {reply.headers} {reply.body!r}"


async def traffic(router: Router, backends: list[FaultyBackend]) -> list[str]:
    """Good requests and every kind of bad ones."""
    body = {**SAID, "messages": MESSAGES}
    told = [await ask(router, body), await ask(router, {**SAID, "input": f"{MARK}-input"}, "/v1/responses")]
    told.append(await ask(router, {**SAID, "prompt": f"{MARK}-text"}, "/v1/completions"))
    told.append(await ask(router, {**body, "max_tokens": 5}, "/v1/messages"))
    everywhere(backends, stream)
    told.append(await ask(router, {**body, "stream": True}))
    told.append(await ask(router, {**body, "kv_transfer_params": {MARK: MARK}}))
    told.append(await ask(router, {**body, "model": "another"}))
    told.append(await ask(router, f'{{"kv_transfer_params":NaN,"x":"{MARK}"'.encode()))
    told.append(await ask(router, {**body, "padding": "x" * 70_000}))
    told.append(await ask(router, body, authorization=f"Bearer {MARK}-of-nobody"))
    told.append(await ask(router, body, host=f"{MARK}.example"))
    told.append(await ask(router, body, **{"x-tag": f"{MARK}\x01"}))
    told.append(await ask(router, body, "/v1/responses/resp_1/cancel"))

    async def broken(talk: Talk) -> None:
        talk.stream_head()
        talk.event({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]})
        await talk.drain()
        talk.reset()

    for script in (
        broken,
        reset,
        raw_answer(b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"),
        raw_answer(b"nonsense\r\n\r\n"),
    ):
        everywhere(backends, script)
        told.append(await ask(router, {**body, "stream": True}))
    return told


async def admin(router: Router) -> list[str]:
    """What the admin port tells to its operator, to somebody who is not, and to a browser."""
    bearer = {"authorization": f"Bearer {SECRETS['listen.admin_token']}"}
    saved = {"path": QUERY, "headers": list(HEADERS.items()), "body": ""}
    told = []
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False, timeout=20) as http:
        answers = [
            await http.get(path) for path in ("/", "/api/state", f"/api/state?token={SECRETS['listen.admin_token']}")
        ]
        answers.append(await http.post("/login", data={"token": f"{MARK}-no-token"}))
        answers.append(await http.post("/login", data={"token": SECRETS["listen.admin_token"]}))
        sessions = await http.get("/api/sessions", headers=bearer)
        turns = [f"/api/sessions/{one['session']}/turns" for one in sessions.json()["sessions"]]
        assert turns
        for path in ("/", "/metrics", "/api/state", "/api/history", "/api/events", "/openapi.json", *turns):
            answers.append(await http.get(path, headers=bearer))
            assert answers[-1].status_code in (200, 404), path
        answers.append(await http.post("/api/explain", headers=bearer, json=saved))
        keyed = {**bearer, "x-backend-authorization": f"Bearer {MARK}-by-hand"}
        answers.append(await http.post("/api/broadcast/sleep", headers=keyed, json={"x": f"{MARK}-order"}))
        answers.append(await http.post("/api/reload", headers=bearer))
        password = {"url": f"http://u:{MARK}-password@gpu:8000"}
        answers.append(await http.post("/api/backends", headers=bearer, json=password))
        assert answers[-1].status_code == 400
        answers.append(sessions)
        told += [f"{answer.headers} {answer.text}" for answer in answers]
        async with http.stream("GET", "/api/live", headers=bearer) as live:
            told.append(await anext(live.aiter_text()))
    return told


async def stored(valkey: Valkey) -> list[str]:
    """Every key and value of the store."""
    found = []
    async with valkey.client() as client:
        for key in await client.keys("*"):
            found.append(repr(key) + repr(await client.dump(key)))
            found.append(repr(await client.get(key)) if await client.type(key) in (b"string", "string") else "")
    return found


async def commands(router: Router, configuration: Path) -> list[str]:
    token = {"WARMROUTE_ADMIN_TOKEN": SECRETS["listen.admin_token"]}
    told = []
    for words in (["status"], ["status", "--json"], ["sessions"], ["sessions", "--json"], ["reload"]):
        found = await asyncio.to_thread(CliRunner().invoke, main, [*words, "--admin", router.admin_url], env=token)
        told.append(found.output)
    shown = CliRunner().invoke(main, ["config", "show", "--config", str(configuration)])
    assert shown.exit_code == 0, shown.output
    return [*told, shown.output, CliRunner().invoke(main, ["config", "check", str(configuration)]).output]


def written(path: Path, backends: list[FaultyBackend]) -> Path:
    """A file with each secret in its place."""
    listed: list[object] = [{"url": backends[0].url, "key": SECRETS["backends.key"]}, *(b.url for b in backends[1:])]
    sections: dict[str, object] = {"backends": listed}
    for key, secret in SECRETS.items():
        section, name = key.split(".")
        if section != "backends":
            value = f"redis://u:{secret}@127.0.0.1:1/0" if name == "redis" else [secret] if name == "keys" else secret
            sections.setdefault(section, {})[name] = value  # type: ignore[index]
    path.write_text(json.dumps(sections))
    return path


async def test_what_goes_in_secret_comes_out_nowhere(
    backends: list[FaultyBackend],
    start_router: StartRouter,
    valkey: Valkey,
    access_log: io.StringIO,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level("DEBUG")
    configuration = written(tmp_path / "warmroute.json", backends)
    from_file = load(configuration, environment={})
    listed: list[dict[str, object]] = [{"url": b.url} for b in backends]
    listed[0]["key"] = SECRETS["backends.key"]
    sections: dict[str, Any] = {
        "listen": {"keys": [SECRETS["listen.keys"]], "admin_token": SECRETS["listen.admin_token"]},
        "upstream": {"key": SECRETS["upstream.key"]},
        "limits": {"body": 65536},
        "log": {"format": "json"},
    }
    secret = {"secret": SECRETS["store.secret"], "deadline": "500ms"}
    router = await start_router(backends, listed=listed, store={"redis": valkey.url, **secret}, **sections)
    shown = await traffic(router, backends)
    everywhere(backends, stream)
    shown += await admin(router)
    await until(lambda: router.shared is not None and router.shared.store.up)
    found = await stored(valkey)
    assert len(found) > 1
    # a store that wants another password, and says so
    locked = f"redis://u:{SECRETS['store.redis']}@127.0.0.1:{valkey.port}/0"
    other = await start_router(backends, listed=listed, store={"redis": locked, **secret}, **sections)
    shown += [
        await ask(other, {**SAID, "messages": MESSAGES}),
        json.dumps(other.state()),
        *await commands(router, configuration),
    ]
    assert other.shared is not None
    assert not other.shared.store.up
    for log in (router._access_log, other._access_log):
        assert log is not None
        log.flush()
    assert access_log.getvalue().count("\n") > 15
    # httpx is what this test asks with too; of a router it logs warnings alone
    logged = [f"{r.name} {r.getMessage()} {r.exc_text}" for r in caplog.records if not r.name.startswith("http")]
    assert any(line.startswith("warmroute") for line in logged)
    shown += [*found, access_log.getvalue(), *logged, other.shared.store.reason]
    shown += [
        repr(thing)
        for thing in (
            router,
            router.config,
            from_file,
            from_file.specs,
            router._admin_app.access,
            *router.registry.backends.values(),
        )
    ]
    assert [text[max(0, text.index(MARK) - 200) :][:400] for text in shown if MARK in text] == []
    heads = b"".join(seen.head for seen in posts(backends))  # and yet it was all there
    assert SECRETS["upstream.key"].encode() in heads
    assert SECRETS["listen.keys"].encode() not in heads
    assert f"{MARK}-prompt".encode() in b"".join(seen.body for seen in posts(backends))


@pytest.mark.parametrize(
    "sections",
    [
        {"listen": {"keys": [f"sha256:{MARK}"]}},
        {"listen": {"keys": [f"{MARK} in two words"]}},
        {"listen": {"keys": f"{MARK}-that-is-no-list"}},
        {"listen": {"admin_token": MARK}},
        {"listen": {"admin_token": [MARK]}},
        {"upstream": {"key": f"{MARK} in two words"}},
        {"backends": [{"url": "gpu:8000", "key": f"{MARK}\n{MARK}"}]},
        {"backends": [f"http://{MARK}:{MARK}@gpu:8000"]},
        {"store": {"secret": MARK}},
        {"store": {"redis": f"redis://u:{MARK}@127.0.0.1:0/x"}},
        {"store": {"redis": f"redis://u:{MARK}@[::1/0"}},
        {"tracing": {"endpoint": f"http://{MARK}:{MARK}@127.0.0.1:4318"}},
    ],
    ids=lambda sections: json.dumps(sections)[:50],
)  # fmt: skip
def test_no_message_about_a_configuration_shows_it(sections: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"backends": ["gpu:8000"], **sections}))
    for given in ({"file": file}, {"flags": {"backends": ["gpu:8000"], **sections}}):
        with pytest.raises(ConfigError) as caught:
            load(**given, environment={})
        assert MARK not in str(caught.value)
