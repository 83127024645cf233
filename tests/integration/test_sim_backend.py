"""The simulated server over HTTP: vLLM's shapes, its errors, its metrics, and what happens when somebody leaves."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from warmroute.sim.backend import SimBackend, SimOptions, run

GOLDEN = Path(__file__).parents[1] / "golden"
FAST = SimOptions(model="tiny", prefill_tokens_per_s=1e6, tokens_per_s=1e4)
HI = [{"role": "user", "content": "hi there"}]


@pytest.fixture
async def backend() -> AsyncIterator[SimBackend]:
    async with SimBackend(FAST) as started:
        yield started


@pytest.fixture
async def client(backend: SimBackend) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=backend.url, trust_env=False, timeout=10) as opened:
        yield opened


def events(text: str) -> list[Any]:
    """The JSON of each event, and the end mark as it is."""
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


def kinds(text: str) -> list[Any]:
    """The shapes of the events, once for several alike in a row: a late reader gets several tokens in one event."""
    return [kind for kind, _ in groupby(shape(event) for event in events(text))]


def shape(value: Any) -> Any:
    """Names in their order, and kinds; not the values."""
    if isinstance(value, dict):
        return [(name, shape(inner)) for name, inner in value.items()]
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("the condition did not come true in 5 s")


CHAT = {"model": "tiny", "messages": HI, "max_tokens": 6, "stream": True, "ignore_eos": True}
USAGE = {"stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    ("golden", "path", "body"),
    [
        ("chat-stream", "chat/completions", {**CHAT, **USAGE}),
        ("chat-stream-token-ids", "chat/completions", {**CHAT, **USAGE, "return_token_ids": True}),
        ("completions-stream", "completions", {**CHAT, **USAGE, "prompt": "one two", "max_tokens": 4}),
    ],
)
async def test_a_stream_has_the_events_of_a_real_one(
    client: httpx.AsyncClient, golden: str, path: str, body: dict[str, Any]
) -> None:
    answer = await client.post(f"/v1/{path}", json=body)
    assert kinds(answer.text) == kinds((GOLDEN / f"{golden}.sse").read_text())
    assert answer.text.endswith("data: [DONE]\n\n")


async def test_a_stream_has_the_headers_of_a_real_one(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json=CHAT)
    lines = (GOLDEN / "chat-stream.headers").read_text().splitlines()[1:]
    expected = dict(line.split(": ", 1) for line in lines if line)
    assert list(answer.headers) == list(expected)
    assert {**answer.headers, "date": ""} == {**expected, "date": ""}


async def test_a_stream_without_usage_ends_with_the_fingerprint_on_its_last_chunk(client: httpx.AsyncClient) -> None:
    *chunks, done = events((await client.post("/v1/chat/completions", json=CHAT)).text)
    assert done == "[DONE]"
    assert [chunk for chunk in chunks if "system_fingerprint" in chunk] == chunks[-1:]
    assert all("usage" not in chunk for chunk in chunks)


async def test_usage_can_be_asked_for_on_each_chunk(client: httpx.AsyncClient) -> None:
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *chunks, _ = events((await client.post("/v1/chat/completions", json={**CHAT, **options})).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-2:]) == (0, [6, 6])


async def test_whole_answers_have_the_fields_of_real_ones(client: httpx.AsyncClient) -> None:
    chat = (await client.post("/v1/chat/completions", json={**CHAT, "stream": False})).json()
    # fmt: off
    assert list(chat) == [
        "id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage",
        "prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics",
    ]
    assert list(chat["choices"][0]) == [
        "index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts",
    ]
    assert list(chat["choices"][0]["message"]) == [
        "role", "content", "refusal", "annotations", "audio", "function_call", "reasoning",
    ]
    assert chat["usage"] == {
        "prompt_tokens": 12, "total_tokens": 18, "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0, "multimodal_tokens": None},
        "completion_tokens_details": None,
    }
    text = (await client.post("/v1/completions", json={"prompt": [5, 6, 7], "return_token_ids": True})).json()
    assert list(text["choices"][0]) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs",
        "prompt_token_ids", "routed_experts",
    ]
    # fmt: on
    assert text["choices"][0]["prompt_token_ids"] == [5, 6, 7]
    assert len(text["choices"][0]["token_ids"]) == text["usage"]["completion_tokens"] <= 64


async def test_a_streamed_answer_is_the_whole_one_in_pieces(client: httpx.AsyncClient) -> None:
    body = {**CHAT, "max_tokens": 40, "ignore_eos": False}
    whole = (await client.post("/v1/chat/completions", json={**body, "stream": False})).json()
    *chunks, _ = events((await client.post("/v1/chat/completions", json=body)).text)
    pieces = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]


async def test_the_next_turn_of_a_chat_hits_what_the_last_one_left(client: httpx.AsyncClient) -> None:
    system = {"role": "system", "content": "You are a patient guide to the museums of a small town. " * 20}
    chat = [system, *HI]
    expected = 0
    for question in ("And on Sunday?", "Is it far?", "Thank you."):
        reply = (await client.post("/v1/chat/completions", json={"model": "tiny", "messages": chat})).json()
        usage = reply["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == expected
        expected = (usage["total_tokens"] - 1) // 16 * 16
        content = reply["choices"][0]["message"]["content"]
        chat += [{"role": "assistant", "content": content}, {"role": "user", "content": question}]
    assert expected > 300


@pytest.mark.parametrize("cut", [0, 1, 7, 39])
async def test_an_answer_can_be_resumed_by_its_tokens(client: httpx.AsyncClient, cut: int) -> None:
    body = {**CHAT, "stream": False, "max_tokens": 40, "return_token_ids": True}
    whole = (await client.post("/v1/chat/completions", json=body)).json()
    ids = whole["choices"][0]["token_ids"]
    resumed = {"prompt": whole["prompt_token_ids"] + ids[:cut], "max_tokens": 40 - cut, "ignore_eos": True}
    rest = (await client.post("/v1/completions", json={**resumed, "return_token_ids": True})).json()
    assert ids[:cut] + rest["choices"][0]["token_ids"] == ids


async def test_the_details_of_usage_can_be_switched_off() -> None:
    options = replace(FAST, enable_prompt_tokens_details=False)
    async with SimBackend(options) as backend, httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
        chat = {"messages": HI, "max_tokens": 2}
        whole = (await client.post("/v1/chat/completions", json=chat)).json()
        assert whole["usage"]["prompt_tokens_details"] is None
        stream = await client.post("/v1/chat/completions", json={**chat, "stream": True, **USAGE})
        assert "prompt_tokens_details" not in events(stream.text)[-2]["usage"]


async def test_chunks_can_carry_several_tokens() -> None:
    options = SimOptions(stream_interval=4, prefill_tokens_per_s=1e6, tokens_per_s=200.0)
    async with SimBackend(options) as backend, httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
        body = {"messages": HI, "max_tokens": 10, "stream": True, "ignore_eos": True, "return_token_ids": True}
        *chunks, _ = events((await client.post("/v1/chat/completions", json=body)).text)
        counts = [len(chunk["choices"][0].get("token_ids", ())) for chunk in chunks]
        assert sum(counts) == 10
        assert counts[1] == 1
        assert len(counts) <= 5


FIELD = "1 validation error:\n  {{'type': '{}', 'loc': 'body.{}', 'msg': '{}', 'input': '{}'}}"
ERRORS = [
    ("chat/completions", {"model": "x", "messages": HI}, 404, "model", "The model `x` does not exist."),
    (
        "chat/completions",
        {"model": "tiny"},
        400,
        "body.messages",
        FIELD.format("missing", "messages", "Field required", "<dict of 1 items>"),
    ),
    (
        "chat/completions",
        {"messages": "x"},
        400,
        "body.messages",
        FIELD.format("list_type", "messages", "Input should be a valid list", "x"),
    ),
    ("chat/completions", {"messages": []}, 400, None, "Cannot apply chat template to an empty conversation."),
    ("chat/completions", {"messages": HI, "n": 2, "temperature": 0}, 400, None, "n must be 1 when using greedy"),
    ("chat/completions", {"messages": HI, "n": 2}, 400, None, "n must be 1 on a simulated server, got 2."),
    ("chat/completions", {"messages": HI, "n": 0}, 400, None, "n must be at least 1, got 0."),
    ("chat/completions", {"messages": HI, "max_tokens": 0}, 400, "max_tokens", "max_tokens must be at least 1, got 0."),
    ("chat/completions", {"messages": HI, "max_tokens": 99999}, 400, "max_tokens", "max_tokens=99999 cannot be"),
    ("chat/completions", {"messages": HI, "max_tokens": 2, "min_tokens": 3}, 400, None, "min_tokens must be less"),
    ("chat/completions", {"messages": HI, **USAGE}, 400, "stream_options", "Stream options can only be defined"),
    ("chat/completions", {"messages": HI, "cache_salt": ""}, 400, "cache_salt", "Parameter 'cache_salt' must be"),
    ("chat/completions", {"messages": HI, "continue_final_message": True}, 400, None, "continue_final_message and"),
    ("completions", {"prompt": []}, 400, None, "You must pass at least one prompt"),
    ("completions", {"prompt": [[]]}, 400, None, "You must pass at least one prompt"),
    ("completions", {"prompt": ""}, 400, "prompt", "Either prompt or prompt_embeds must be provided"),
    ("completions", {}, 400, "prompt", "Either prompt or prompt_embeds must be provided"),
    ("completions", {"prompt": ["a", "b"]}, 400, "prompt", "got 2 prompts; this simulated server takes one"),
    ("completions", {"prompt": [5, 999999]}, 400, None, "Token id 999999 is out of vocabulary"),
    ("completions", {"prompt": [5, -6]}, 400, "body.prompt.1", "6 validation errors:\n"),
    ("completions", {"prompt": [5] * 8192}, 400, "input_tokens", "This model's maximum context length is 8192 tokens."),
    ("completions", {"prompt": [5], "stream": "maybe"}, 400, "body.stream", "1 validation error:\n"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "message"), ERRORS)
async def test_wrong_requests_are_refused_in_the_words_of_vllm(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], status: int, param: str | None, message: str
) -> None:
    answer = await client.post(f"/v1/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, status, param)
    assert error["message"].startswith(message)
    assert list(error) == ["message", "type", "param", "code"]
    expected = {404: "NotFoundError"}.get(status, "Bad Request" if "validation error" in message else "BadRequestError")
    assert error["type"] == expected


async def test_the_captured_error_is_answered_byte_for_byte(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/chat/completions", json={"messages": HI, "n": 2, "temperature": 0})
    assert answer.content == (GOLDEN / "chat-stream-n2.sse").read_bytes()


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (b"{bad", "application/json", "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1'"),
        (b"", "application/json", "1 validation error:\n  {'type': 'missing', 'loc': 'body'"),
        (b"[]", "application/json", "1 validation error:\n  {'type': 'model_attributes_type', 'loc': 'body'"),
        (b'{"messages": "\xff"}', "application/json", "There was an error parsing the body"),
        (b"[" * 100_000, "application/json", "There was an error parsing the body"),
        (b"{}", "text/plain", "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"),
    ],
)
async def test_bodies_that_are_no_json_are_refused(
    client: httpx.AsyncClient, content: bytes, kind: str, message: str
) -> None:
    answer = await client.post("/v1/chat/completions", content=content, headers={"content-type": kind})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


async def test_a_long_answer_is_cut_at_the_end_of_the_context(client: httpx.AsyncClient) -> None:
    body = {"prompt": [5] * 8190, "max_tokens": 50, "ignore_eos": True}
    usage = (await client.post("/v1/completions", json=body)).json()["usage"]
    assert usage["total_tokens"] == 8192


async def test_the_other_routes(client: httpx.AsyncClient) -> None:
    health = await client.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert (await client.get("/version")).json() == {"version": "0.32.0"}
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("tiny", 8192, "vllm")
    chat = (await client.post("/tokenize", json={"model": "tiny", "messages": HI})).json()
    assert chat["count"] == len(chat["tokens"]) == 12
    assert (await client.post("/tokenize", json={"prompt": "hi"})).json()["count"] == 1
    missing = await client.post("/tokenize", json={"model": "tiny"})
    assert missing.json()["error"]["message"].startswith("2 validation errors:\n")
    assert (await client.post("/tokenize", json={"model": "x", "prompt": "a"})).status_code == 404
    unknown = await client.get("/nope")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})
    wrong = await client.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


async def test_a_request_id_that_is_given_is_kept(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "abc"})
    assert answer.json()["id"] == "cmpl-abc"
    others = [(await client.post("/v1/completions", json={"prompt": "x"})).json()["id"] for _ in range(2)]
    assert len(set(others)) == 2


def series(page: str) -> dict[str, tuple[str, set[str]]]:
    """Of each family its type and the names of its labels."""
    found = {}
    for name, kind in re.findall(r"^# TYPE (vllm:\S+) (\S+)$", page, re.MULTILINE):
        samples = re.findall(rf"^{re.escape(name)}(?:_bucket|_sum|_count)?\{{(.*)\}} ", page, re.MULTILINE)
        found[name] = (kind, {label for sample in samples for label in re.findall(r'(\w+)="', sample)})
    return found


async def test_metrics_have_the_names_types_and_labels_of_real_ones(client: httpx.AsyncClient) -> None:
    await client.post("/v1/completions", json={"prompt": "x"})
    answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    real, simulated = series((GOLDEN / "metrics-vllm-0.32.0.txt").read_text()), series(answer.text)
    assert len(simulated) >= 15
    config = "vllm:cache_config_info"
    assert simulated[config][1] <= real[config][1]
    assert {"block_size", "num_gpu_blocks"} <= simulated[config][1]
    assert {name: real[name] for name in simulated if name != config} == {
        name: found for name, found in simulated.items() if name != config
    }


def sample(page: str, name: str, **labels: str) -> float:
    for found, inside, value in re.findall(r"^(vllm:\w+)\{(.*)\} (\S+)$", page, re.MULTILINE):
        if found == f"vllm:{name}" and all(f'{label}="{wanted}"' in inside for label, wanted in labels.items()):
            return float(value)
    raise AssertionError(f"no {name} {labels} on the page")


async def test_metrics_count_what_was_done(client: httpx.AsyncClient) -> None:
    for _ in range(2):
        await client.post("/v1/completions", json={"prompt": list(range(100)), "max_tokens": 5, "ignore_eos": True})
    page = (await client.get("/metrics")).text
    assert sample(page, "prefix_cache_queries_total", engine="0", model_name="tiny") == 200
    assert sample(page, "prefix_cache_hits_total") == 96
    assert sample(page, "prompt_tokens_total") == 200
    assert sample(page, "prompt_tokens_by_source_total", source="local_compute") == 104
    assert sample(page, "prompt_tokens_by_source_total", source="local_cache_hit") == 96
    assert sample(page, "generation_tokens_total") == 10
    assert sample(page, "request_success_total", finished_reason="length") == 2
    assert sample(page, "time_to_first_token_seconds_bucket", le="+Inf") == 2
    assert sample(page, "e2e_request_latency_seconds_count") == 2
    assert sample(page, "num_requests_running") == 0
    assert 'num_gpu_blocks="2000"' in page


SLOW = SimOptions(prefill_tokens_per_s=1e5, tokens_per_s=100.0)
LONG = {"messages": HI, "max_tokens": 4000, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_its_request_and_frees_its_blocks(stream: bool) -> None:
    async with SimBackend(SLOW) as backend:
        (engine,) = backend.engines
        async with httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
            asking = asyncio.ensure_future(client.post("/v1/chat/completions", json={**LONG, "stream": stream}))
            await until(lambda: engine.counters.generation_tokens > 3)
            assert (engine.running, engine.cache.usage > 0) == (1, True)
            asking.cancel()
            await until(lambda: engine.due() is None)
            assert (engine.running, engine.cache.usage) == (0, 0)


async def test_load_shows_while_requests_run() -> None:
    async with SimBackend(SLOW) as backend, httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
        asking = asyncio.ensure_future(client.post("/v1/chat/completions", json=LONG))
        await until(lambda: backend.engines[0].running == 1)
        page = (await client.get("/metrics")).text
        assert sample(page, "num_requests_running") == 1
        assert sample(page, "kv_cache_usage_perc") > 0
        asking.cancel()


async def test_engines_have_a_cache_each_and_a_header_picks_one() -> None:
    options = replace(FAST, data_parallel_size=2)
    async with SimBackend(options) as backend, httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
        body = {"prompt": list(range(50)), "max_tokens": 1}

        async def cached(**headers: str) -> int:
            usage = (await client.post("/v1/completions", json=body, headers=headers)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        rank = "X-data-parallel-rank"
        assert [await cached(**{rank: r}) for r in ("1", "1", "0", "0")] == [0, 48, 0, 48]
        assert await cached(**{rank: "no number"}) == 48
        page = (await client.get("/metrics")).text
        assert sample(page, "prefix_cache_hits_total", engine="1") >= 48
        assert page.count('num_gpu_blocks="4000"') == 2
        wrong = await client.post("/v1/completions", json=body, headers={rank: "2"})
        text = "data_parallel_rank 2 is out of range [0, 2)."
        assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, text)
        streamed = await client.post("/v1/completions", json={**body, "stream": True}, headers={rank: "2"})
        assert streamed.status_code == 200
        error, done = events(streamed.text)
        assert (error["error"]["message"], done) == (text, "[DONE]")


async def test_without_a_header_the_engine_with_less_to_do_is_taken() -> None:
    options = SimOptions(data_parallel_size=3, prefill_tokens_per_s=1e5, tokens_per_s=100.0)
    async with SimBackend(options) as backend, httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
        asking = [asyncio.ensure_future(client.post("/v1/chat/completions", json=LONG)) for _ in range(6)]
        await until(lambda: [engine.running for engine in backend.engines] == [2, 2, 2])
        for task in asking:
            task.cancel()


async def _read_all(lines: AsyncIterator[str]) -> None:
    async for line in lines:
        assert line != "data: [DONE]"


async def _stop_in_the_middle() -> None:
    backend = SimBackend(SLOW)
    await backend.start()
    port = backend.port
    async with httpx.AsyncClient(base_url=backend.url, trust_env=False) as client:
        async with client.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            stopping = asyncio.ensure_future(backend.stop())
            with pytest.raises(httpx.TransportError):
                await _read_all(lines)
            await stopping
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
        await backend.start("127.0.0.1", port)
        assert backend.port == port
        assert (await client.get("/health")).status_code == 200
        assert backend.engines[0].cache.counters.queries == 0
        await backend.stop()
        await backend.stop()


async def test_stopping_breaks_streams_and_a_new_start_is_cold() -> None:
    await _stop_in_the_middle()


def test_it_runs_on_uvloop_too() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stop_in_the_middle())


async def test_many_run_side_by_side_and_answer_alike() -> None:
    async with (
        SimBackend() as one,
        SimBackend() as two,
        SimBackend(SimOptions(seed=1)) as other,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        body = {"messages": HI, "max_tokens": 20}
        replies = [await client.post(f"{b.url}/v1/chat/completions", json=body) for b in (one, two, other)]
    texts = [reply.json()["choices"][0]["message"]["content"] for reply in replies]
    assert texts[0] == texts[1] != texts[2]


async def test_misuse_is_told_plainly() -> None:
    backend = SimBackend()
    with pytest.raises(RuntimeError, match="no address yet"):
        _ = backend.url
    with pytest.raises(RuntimeError, match="does not run"):
        _ = backend.engines
    async with backend:
        with pytest.raises(RuntimeError, match="runs already"):
            await backend.start()
        told = rf"cannot listen on 127\.0\.0\.1:{backend.port}: .*; choose another address or port"
        with pytest.raises(OSError, match=told):
            await SimBackend().start("127.0.0.1", backend.port)


async def test_run_announces_its_address_and_serves_until_cancelled() -> None:
    said: list[str] = []
    serving = asyncio.ensure_future(run(SimOptions(model="m"), announce=said.append))
    await until(lambda: bool(said))
    url = said[0].split()[-1]
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        assert (await client.get("/health")).status_code == 200
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        with pytest.raises(httpx.ConnectError):
            await client.get("/health")
    assert said == [f"simulated vLLM server, model m: {url}"]
