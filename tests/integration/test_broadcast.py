"""One thing done on all backends by the admin listener, what each of them said, and where requests go afterwards."""

import asyncio
import json
import logging
import time

import httpx
import pytest

from warmroute import control
from warmroute.app import Router
from warmroute.core.health import Thresholds
from warmroute.core.model import BackendSpec
from warmroute.fleet.broadcast import ANSWER_LIMIT, PATHS
from warmroute.fleet.prober import Prober, ProbeTimes
from warmroute.fleet.registry import Registry
from warmroute.pins.memory import PinTable
from warmroute.web.broadcast import BODY_LIMIT
from warmroute.web.guard import refusal

from ..serving import serving, until_ready
from .conftest import until, up
from .scripted import RawClient, Script, Scripted, Talk, answer
from .test_cli import run

LOAD, UNLOAD = "v1/load_lora_adapter", "v1/unload_lora_adapter"
X = {"lora_name": "x", "lora_path": "/loras/x"}
TAKEN = {"error": {"message": "The lora adapter 'x' has already been loaded.", "type": "InvalidUserInput", "code": 400}}


def says(value: object, status: str = "200 OK") -> Script:
    async def script(talk: Talk) -> None:
        talk.json(value, status)

    return script


def sends(body: bytes) -> Script:
    """An answer of these bytes, which may be no JSON."""

    async def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body) + body)

    return script


async def silence(talk: Talk) -> None:
    await talk.peer_closed(within=30)


def adapters(backend: Scripted) -> Script:
    """Loads and unloads adapters as vLLM does, and answers chats of the models it has alone."""

    async def script(talk: Talk) -> None:
        body = json.loads(talk.seen.body)
        name = body.get("lora_name")
        if talk.seen.path == f"/{LOAD}" and name in backend.models:
            talk.json(TAKEN, "400 Bad Request")
        elif talk.seen.path == f"/{LOAD}":
            backend.models.append(name)
            await sends(b"Success: LoRA adapter 'x' added successfully.")(talk)
        elif talk.seen.path == f"/{UNLOAD}":
            backend.models.remove(name)
            await sends(b"Success: LoRA adapter 'x' removed successfully.")(talk)
        elif body["model"] in backend.models:
            await answer(talk)
        else:
            talk.json({"error": {"message": f"The model {body['model']} does not exist."}}, "404 Not Found")

    return script


async def tell(
    router: Router,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
    **query: str | float | list[str],
) -> httpx.Response:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False, timeout=30) as http:
        return await http.post(f"/api/broadcast/{path}", json=body, headers=headers, params=query or None)


def told(answered: httpx.Response, backend: Scripted) -> dict[str, object]:
    found: dict[str, object] = answered.json()["backends"][backend.name]
    return found


def control_posts(backends: list[Scripted]) -> list[list[str]]:
    """What each backend was told, apart from chats."""
    return [[seen.path for seen in b.posts if seen.path != "/v1/chat/completions"] for b in backends]


# What is sent


async def test_all_are_told_the_same_and_each_answer_is_passed_on(router: Router, backends: list[Scripted]) -> None:
    for number, backend in enumerate(backends):
        backend.script = says({"number": number})
    headers = {"x-backend-authorization": "Bearer key", "authorization": "Bearer other", "x-other": "stays"}
    answered = await tell(router, LOAD, X, headers)
    assert answered.status_code == 200
    assert answered.json() == {
        "path": f"/{LOAD}",
        "ok": True,
        "backends": {
            backend.name: {
                "ok": True,
                "status": 200,
                "body": {"number": number},
                "truncated": False,
                "error": None,
                "models_error": None,
            }
            for number, backend in enumerate(backends)
        },
    }
    for backend in backends:
        (seen,) = backend.posts
        assert (seen.path, json.loads(seen.body)) == (f"/{LOAD}", X)
        named = ("authorization", "content-type", "x-other")
        assert [seen.header(name) for name in named] == ["Bearer key", "application/json", None]


async def test_they_are_told_at_the_same_time(router: Router, backends: list[Scripted]) -> None:
    there = asyncio.Barrier(len(backends))

    async def together(talk: Talk) -> None:
        await there.wait()
        talk.json({})

    for backend in backends:
        backend.script = together
    assert (await tell(router, "reset_prefix_cache", deadline=10)).status_code == 200


async def test_the_query_is_sent_on_as_it_came_but_for_what_is_the_routers(
    router: Router, backends: list[Scripted]
) -> None:
    ours = f"backend={backends[2].name}&%62ackend={backends[0].name}&deadline=5"
    answered = await tell(router, f"wake_up?tags=a%2Cb&{ours}&tags=c&x")
    assert answered.status_code == 200
    assert list(answered.json()["backends"]) == [backends[2].name, backends[0].name]
    assert control_posts(backends) == [["/wake_up?tags=a%2Cb&tags=c&x"], [], ["/wake_up?tags=a%2Cb&tags=c&x"]]


async def test_a_backend_named_twice_is_told_once(router: Router, backends: list[Scripted]) -> None:
    name = backends[1].name
    assert (await tell(router, "sleep", level=1, backend=[name, name])).status_code == 200
    assert control_posts(backends) == [[], ["/sleep?level=1"], []]


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_of_the_list_is_sent(router: Router, backends: list[Scripted], path: str) -> None:
    assert (await tell(router, path[1:])).status_code == 200
    assert control_posts(backends) == [[path]] * 3


# What is refused


@pytest.mark.parametrize(
    "path",
    [
        "collective_rpc",
        "v1/chat/completions",
        "SLEEP",
        "sleep/",
        "/sleep",
        "x/../sleep",
        "x%2F..%2Fsleep",
        "sleep%3F",
        "",
    ],
)
async def test_other_paths_are_refused_with_the_list(router: Router, backends: list[Scripted], path: str) -> None:
    async with await RawClient.connect(router.admin_url) as client:
        client.send(f"POST /api/broadcast/{path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        reply = await client.reply()
    assert reply.status == 404
    assert all(known in str(reply.json()["detail"]) for known in PATHS)
    assert control_posts(backends) == [[], [], []]


async def test_an_unknown_backend_is_refused_and_nobody_is_told(router: Router, backends: list[Scripted]) -> None:
    answered = await tell(router, "sleep", backend=[backends[0].name, "nobody"])
    assert answered.status_code == 404
    assert "'nobody'" in answered.json()["detail"]
    assert backends[1].name in answered.json()["detail"]
    assert control_posts(backends) == [[], [], []]


@pytest.mark.parametrize("deadline", ["0", "-1", "nan", "inf", "soon", "3601"])
async def test_a_deadline_that_makes_no_sense_is_refused(
    router: Router, backends: list[Scripted], deadline: str
) -> None:
    answered = await tell(router, "sleep", deadline=deadline)
    assert (answered.status_code, "deadline" in answered.json()["detail"]) == (422, True)
    assert control_posts(backends) == [[], [], []]


async def test_a_huge_body_is_refused(router: Router, backends: list[Scripted]) -> None:
    assert (await tell(router, LOAD, "x" * (BODY_LIMIT - 2))).status_code == 200
    assert (await tell(router, LOAD, "x" * (BODY_LIMIT - 1))).status_code == 413
    assert control_posts(backends) == [[f"/{LOAD}"]] * 3


async def test_it_is_done_by_post_alone(router: Router, backends: list[Scripted]) -> None:
    async with httpx.AsyncClient(base_url=router.admin_url, trust_env=False) as http:
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            assert (await http.request(method, "/api/broadcast/sleep")).status_code == 405
        assert (await http.get("/api/broadcast/v1/load_lora_adapter")).status_code == 405
    assert control_posts(backends) == [[], [], []]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("host: localhost:1", 200),
        ("host: a.localhost", 200),
        ("host: [::1]:80", 200),
        ("host: 127.0.0.1:8081\r\norigin: http://127.0.0.1:8081", 200),
        ("host: warmroute.example", 403),
        ("host: 127.0.0.1.example:8081", 403),
        ("host: 192.0.2.1", 403),
        ("host: evil.example\r\norigin: http://evil.example", 403),
        ("host: localhost\r\nhost: localhost", 403),
        ("x: y", 403),
        ("host: 127.0.0.1:8081\r\norigin: http://127.0.0.1:9000", 403),
        ("host: 127.0.0.1:8081\r\norigin: https://evil.example", 403),
        ("host: 127.0.0.1:8081\r\norigin: null", 403),
    ],
)
async def test_a_page_of_somebody_else_changes_nothing(
    router: Router, backends: list[Scripted], lines: str, status: int
) -> None:
    for path in ("broadcast/reset_prefix_cache", f"backends/{backends[0].name}/drain"):
        async with await RawClient.connect(router.admin_url) as client:
            client.send(f"POST /api/{path} HTTP/1.1\r\n{lines}\r\ncontent-length: 0\r\n\r\n".encode())
            assert (await client.reply()).status == status
    assert control_posts(backends) == [["/reset_prefix_cache"] if status == 200 else []] * 3
    assert router.registry.backends[backends[0].name].draining is (status == 200)


def test_where_a_token_is_asked_for_the_admin_port_may_be_called_by_any_name() -> None:
    assert refusal("POST", ["warmroute.example:8081"], None, guarded=True) is None
    assert refusal("POST", ["warmroute.example"], "https://warmroute.example", guarded=True) is None
    assert refusal("POST", ["warmroute.example"], "https://evil.example", guarded=True) is not None
    assert refusal("POST", ["::ffff:127.0.0.1"], None, guarded=False) is not None
    assert refusal("GET", ["warmroute.example"], "https://evil.example", guarded=True) is None
    assert refusal("GET", ["warmroute.example"], None, guarded=False) is not None
    assert refusal("GET", ["[::ffff:127.0.0.1]"], None, guarded=False) is None


# What goes wrong


async def test_one_that_is_down_one_that_hangs_and_one_that_says_no(
    router: Router, backends: list[Scripted], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warmroute.broadcast")
    down, hangs, refuses = backends
    await down.stop()
    hangs.script, refuses.script = silence, says(TAKEN, "400 Bad Request")
    began = time.monotonic()
    answered = await tell(router, LOAD, X, deadline=0.5)
    assert 0.5 <= time.monotonic() - began < 10
    assert (answered.status_code, answered.json()["ok"]) == (502, False)
    assert told(answered, down)["error"] == "connection refused"
    assert told(answered, hangs)["error"] == "no answer within 0.5 s; it may still do what it was told"
    assert [told(answered, b)["status"] for b in backends] == [None, None, 400]
    assert told(answered, refuses)["body"] == TAKEN
    assert told(answered, down)["models_error"] == "connection refused"
    (line,) = [record.getMessage() for record in caplog.records if record.name == "warmroute.broadcast"]
    assert f"{refuses.name}: 400" in line
    assert "/loras/x" not in line


async def test_one_failure_is_enough_for_a_502_and_the_others_have_done_it(
    router: Router, backends: list[Scripted]
) -> None:
    backends[1].script = says({}, "500 Internal Server Error")
    answered = await tell(router, "sleep")
    assert answered.status_code == 502
    assert [told(answered, b)["ok"] for b in backends] == [True, False, True]
    assert control_posts(backends) == [["/sleep"]] * 3


async def test_a_redirect_is_not_followed_and_is_no_success(router: Router, backends: list[Scripted]) -> None:
    async def elsewhere(talk: Talk) -> None:
        talk.json({}, "307 Temporary Redirect", "location: /collective_rpc\r\n")

    backends[0].script = elsewhere
    answered = await tell(router, "sleep")
    assert (answered.status_code, told(answered, backends[0])["status"]) == (502, 307)
    assert control_posts(backends)[0] == ["/sleep"]


async def test_a_cache_in_use_was_not_reset_whatever_the_status(router: Router, backends: list[Scripted]) -> None:
    backends[0].script, backends[1].script = says({"success": False}), says({"success": True})
    answered = await tell(router, "reset_prefix_cache")
    assert answered.status_code == 502
    assert [told(answered, b)["ok"] for b in backends] == [False, True, True]


async def test_a_huge_answer_is_cut(router: Router, backends: list[Scripted]) -> None:
    backends[0].script = sends(b"x" * ANSWER_LIMIT)
    backends[1].script = sends(b"y" * (8 * ANSWER_LIMIT))
    answered = await tell(router, "sleep")
    assert answered.status_code == 200
    whole, cut = told(answered, backends[0]), told(answered, backends[1])
    assert (whole["body"], whole["truncated"]) == ("x" * ANSWER_LIMIT, False)
    assert (cut["body"], cut["truncated"]) == ("y" * ANSWER_LIMIT, True)


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        (b"", ""),
        (b"done", "done"),
        (b"\xff{", "\ufffd{"),
        (b'{"a": NaN}', '{"a": NaN}'),
        (b"[" * 5000 + b"]" * 5000, "[" * 5000 + "]" * 5000),
        (b" [1,\n2] ", [1, 2]),
        (b"null", None),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\ud83d"', '"\\ud83d"'),
    ],
)
async def test_what_is_no_json_is_shown_as_text(
    router: Router, backends: list[Scripted], body: bytes, shown: object
) -> None:
    backends[0].script = sends(body)
    answered = await tell(router, "sleep", backend=backends[0].name)
    assert (answered.status_code, told(answered, backends[0])["body"]) == (200, shown)


async def test_an_answer_that_breaks_off_is_told_in_words(router: Router, backends: list[Scripted]) -> None:
    async def broken(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await talk.drain()
        talk.close()

    async def garbage(talk: Talk) -> None:
        talk.send(b"\x00\x01\x02\r\n\r\n")
        await talk.drain()
        talk.close()

    backends[0].script, backends[1].script = broken, garbage
    answered = await tell(router, "sleep")
    assert answered.status_code == 502
    assert [told(answered, b)["status"] for b in backends] == [None, None, 200]
    assert all(told(answered, b)["error"] for b in backends[:2])


# Where requests go


@pytest.fixture
async def with_adapters(router: Router, backends: list[Scripted]) -> Router:
    for backend in backends:
        backend.script = adapters(backend)
    return router


async def served_by(router: Router, model: str, sessions: int = 12) -> set[tuple[int, str | None]]:
    """Statuses and backends of one chat of each of some sessions."""
    async with await RawClient.connect(router.data_url) as client:
        replies = [await client.chat(f"{model} {i}", model=model) for i in range(sessions)]
    return {(reply.status, reply.header("x-warmroute-backend")) for reply in replies}


async def test_an_adapter_is_asked_for_as_soon_as_it_is_loaded(with_adapters: Router, backends: list[Scripted]) -> None:
    """The lists are read at other times every ten seconds: no chat waits for that."""
    router = with_adapters
    assert {status for status, _ in await served_by(router, "x")} == {404}
    for _ in range(3):
        assert (await tell(router, LOAD, X)).status_code == 200
        assert await served_by(router, "x") == {(200, b.name) for b in backends}
        assert (await tell(router, UNLOAD, {"lora_name": "x"})).status_code == 200
        assert await served_by(router, "x", 1) == {(404, None)}


async def test_an_adapter_is_asked_for_only_where_it_is(with_adapters: Router, backends: list[Scripted]) -> None:
    router = with_adapters
    refused = backends[1]
    refused.script = says({"error": "no such file"}, "400 Bad Request")
    assert (await tell(router, LOAD, X)).status_code == 502
    refused.script = adapters(refused)
    assert await served_by(router, "x", 24) == {(200, b.name) for b in backends if b is not refused}
    assert await served_by(router, "m", 24) == {(200, b.name) for b in backends}
    assert (await tell(router, LOAD, X, backend=refused.name)).status_code == 200
    assert refused.name in {name for _, name in await served_by(router, "x", 48)}


async def test_two_named_backends_alone_get_an_adapter(with_adapters: Router, backends: list[Scripted]) -> None:
    router = with_adapters
    named = [backends[0].name, backends[2].name]
    answered = await tell(router, LOAD, X, backend=named)
    assert (answered.status_code, list(answered.json()["backends"])) == (200, named)
    assert control_posts(backends) == [[f"/{LOAD}"], [], [f"/{LOAD}"]]
    assert await served_by(router, "x", 24) == {(200, name) for name in named}


async def test_a_conversation_of_an_adapter_moves_where_the_adapter_is(
    with_adapters: Router, backends: list[Scripted]
) -> None:
    router = with_adapters
    await tell(router, LOAD, X)
    async with await RawClient.connect(router.data_url) as client:
        home = (await client.chat("s", model="x")).header("x-warmroute-backend") or ""
        assert (await tell(router, UNLOAD, {"lora_name": "x"}, backend=home)).status_code == 200
        for decision in ("pin_lost", "pin_hit"):
            moved = await client.chat("s", model="x")
            assert (moved.status, moved.header("x-warmroute-decision")) == (200, decision)
            assert moved.header("x-warmroute-backend") != home


async def test_a_backend_that_was_restarted_without_the_adapter_is_not_asked_for_it(
    with_adapters: Router, backends: list[Scripted]
) -> None:
    """It is up only when its list has been read again: no chat comes between."""
    router, gone = with_adapters, backends[0]
    await tell(router, LOAD, X)
    await gone.stop()
    await until(lambda: up(router) == 2)
    gone.models = ["m"]
    await gone.start()
    stop = asyncio.Event()

    async def chat() -> set[tuple[int, str | None]]:
        found: set[tuple[int, str | None]] = set()
        while not stop.is_set():
            found |= await served_by(router, "x", 4)
        return found

    async with asyncio.TaskGroup() as group:
        chats = group.create_task(chat())
        await until(lambda: up(router) == 3)
        assert await served_by(router, "x", 24) == {(200, b.name) for b in backends[1:]}
        stop.set()
    assert chats.result() == {(200, b.name) for b in backends[1:]}


def alone(backend: Scripted, http: httpx.AsyncClient) -> tuple[Registry, Prober]:
    """One backend, and a prober that reads only when it is told to."""
    pins = PinTable(lambda: 0.0, idle_expiry=1.0, limit=1)
    registry = Registry([BackendSpec(backend.name, backend.url)], pins, Thresholds(), 0.0)
    return registry, Prober(registry, http, ProbeTimes(1.0, 1.0, 10.0), lambda: 0.0, came_up=lambda name: None)


def waits_for(go_on: asyncio.Event, asked: asyncio.Event) -> Script:
    """The list with m alone, once it may go on."""

    async def script(talk: Talk) -> None:
        asked.set()
        await go_on.wait()
        talk.json({"data": [{"id": "m"}]})

    return script


async def test_a_list_that_was_asked_for_before_does_not_come_after(backends: list[Scripted]) -> None:
    """A read that began before an adapter was loaded, and ends after one that began later, changes nothing."""
    backend, go_on, asked = backends[0], asyncio.Event(), asyncio.Event()
    async with httpx.AsyncClient(trust_env=False, timeout=None) as http, asyncio.TaskGroup() as group:
        registry, prober = alone(backend, http)
        state = registry.backends[backend.name]
        backend.models_script = waits_for(go_on, asked)
        first = group.create_task(prober.read_models(state))
        await asked.wait()
        backend.models_script, backend.models = None, ["m", "x"]
        await prober.read_models(state)
        go_on.set()
        await first
    assert state.models == frozenset({"m", "x"})


async def test_a_list_of_a_backend_that_was_removed_meanwhile_changes_nothing(backends: list[Scripted]) -> None:
    backend, go_on, asked = backends[0], asyncio.Event(), asyncio.Event()
    async with httpx.AsyncClient(trust_env=False, timeout=None) as http, asyncio.TaskGroup() as group:
        registry, prober = alone(backend, http)
        state = registry.backends.pop(backend.name)
        backend.models_script = waits_for(go_on, asked)
        read = group.create_task(prober.read_models(state))
        await asked.wait()
        go_on.set()
        await read
    assert (state.models, state.models_error) == (None, None)


# The command


async def test_the_command_shows_what_each_said(backends: list[Scripted]) -> None:
    for backend in backends:
        backend.script = adapters(backend)
    backends[1].models.append("x")
    with serving(*(b.url for b in backends)) as router:
        await until_ready(router.admin, up=3)
        body = ["--body", json.dumps(X), "--admin", router.admin]
        result = await run("broadcast", LOAD, *body)
        assert (result.returncode, result.stderr) == (1, "")
        lines = result.stdout.splitlines()
        assert lines[0].split() == ["backend", "done", "status", "said"]
        assert lines[1] == f"{backends[0].name}  yes   200     Success: LoRA adapter 'x' added successfully."
        assert lines[2] == f"{backends[1].name}  NO    400     {TAKEN['error']['message']}"
        assert lines[4:] == [f"/{LOAD}: done by 2 of 3 backends"]
        one = await run("broadcast", f"/{UNLOAD}", "--backend", backends[1].name, *body, "--json")
        assert one.returncode == 0
        assert list(json.loads(one.stdout)["backends"]) == [backends[1].name]
        slept = await run("broadcast", "sleep?level=2&mode=wait", "--admin", router.admin, env={"VLLM_API_KEY": "k"})
        assert (slept.returncode, slept.stdout.count("\n")) == (1, 5)  # these backends know no sleep
        assert backends[0].posts[-1].path == "/sleep?level=2&mode=wait"
        assert backends[0].posts[-1].header("authorization") == "Bearer k"
        unknown = await run("broadcast", "collective_rpc", "--admin", router.admin)
        assert (unknown.returncode, unknown.stdout, unknown.stderr.count("\n")) == (1, "", 1)
        assert "/reset_prefix_cache" in unknown.stderr


@pytest.mark.parametrize("words", [["--body", "{"], ["--body", "@/nowhere.json"], ["--deadline", "soon"]])
async def test_wrong_use_of_the_command(words: list[str]) -> None:
    result = await run("broadcast", "sleep", *words)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False)
    assert words[0] in result.stderr


def test_a_body_may_come_from_a_file(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    with open("body.json", "wb") as file:
        file.write(b'{"lora_name": "\xc3\xa9"}\n')
    assert control.json_body("@body.json") == b'{"lora_name": "\xc3\xa9"}\n'
    assert control.json_body(" [1] ") == b" [1] "
    with pytest.raises(ValueError, match="no JSON"):
        control.json_body("[" * 100_000)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (None, ""),
        ("two\nlines \x1b[31m", "two lines ?[31m"),
        ({"error": "no such file"}, "no such file"),
        ({"error": {"message": "no"}}, "no"),
        ({"detail": "Not Found"}, "Not Found"),
        ({"detail": [1]}, '{"detail": [1]}'),
        ({"error": {"code": 1}}, '{"error": {"code": 1}}'),
        ({"success": True}, '{"success": true}'),
        ("x" * 101, "x" * 97 + "..."),
    ],
)
def test_an_answer_is_one_line_of_the_table(body: object, said: str) -> None:
    one = {"ok": True, "status": 200, "body": body, "error": None, "models_error": None}
    text = control.broadcast_text({"path": "/sleep", "backends": {"b": one}})
    assert text.splitlines()[1] == f"b        yes   200     {said}".rstrip()
    unread = {**one, "ok": False, "status": None, "error": "timed out", "models_error": "timed out"}
    text = control.broadcast_text({"path": "/sleep", "backends": {"b": unread}})
    assert text.splitlines()[1:] == [
        "b        NO    -       timed out",
        "the models of b could not be read afterwards: timed out",
        "/sleep: done by 0 of 1 backends",
    ]
