"""What the real vLLM can be asked for, with everything that flags can switch on, against the allowlist; and its forms."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.conftest import FAST, until
from tests.integration.scripted import RawClient, Scripted
from warmroute.app import Router
from warmroute.config import Config
from warmroute.proxy.isolation import SALT
from warmroute.proxy.owned import KV_FIELDS, PRIORITY_FIELD

MODEL_API = {
    *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/systemone"),
    *("/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/messages", "/v1/messages/count_tokens"),
    *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank"),
    *("/v1/audio/transcriptions", "/v1/audio/translations", "/generative_scoring", "/tokenize", "/detokenize", "/version"),
}  # fmt: skip
"""What clients may ask of a model: passed on."""
OWN = {"/health", "/v1/models"}
"""What the router answers itself, in vLLM's words."""
REALTIME = "/v1/realtime"
"""A WebSocket, which tests of its own ask for."""
CONTROL = {
    # what an operator does
    *("/sleep", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused", "/abort_requests", "/collective_rpc"),
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/release_kv_cache_memory"),
    *("/start_profile", "/stop_profile", "/scale_elastic_ep", "/is_scaling_elastic_ep", "/get_world_size"),
    *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{adapter_name}"),
    *("/fault_tolerance/apply", "/fault_tolerance/status"),
    # what trainers do
    *("/update_weights", "/start_weight_update", "/start_draft_weight_update", "/finish_weight_update", "/weight_info"),
    *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/update_weight_version", "/weight_checker"),
    # what other servers and SageMaker ask; /invocations leads to every API at once
    *("/inference/v1/generate", "/inference/v1/abort_requests", "/invocations", "/ping", "/kv_event_sources"),
    *("/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render", "/v1/responses/render"),
    *("/v1/chat/completions/derender", "/v1/completions/derender"),
    # what tells of a server
    *("/metrics", "/load", "/server_info", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"),
}
"""What nobody reaches through the router."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "QUERY")

pytestmark = pytest.mark.asyncio(loop_scope="module")


def told(vllm_dir: Path, module: str) -> list[list[Any]]:
    """What a module of these tests prints about the installed vLLM, a JSON value a line."""
    variables = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1"}
    found = subprocess.run(
        [vllm_dir / "venv/bin/python", "-m", f"tests.vllm.{module}"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, found.stderr.decode()[-2000:]
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith(b"[")]


@pytest.fixture(scope="module")
def table(vllm_dir: Path) -> set[tuple[str, str]]:
    """Path and methods of every route, as the installed vLLM tells them."""
    return {(path, methods) for path, methods in told(vllm_dir, "route_table")}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def backend(stack: AsyncExitStack) -> Scripted:
    """In place of a server: it answers whatever reaches it, and notes that."""
    return await stack.enter_async_context(Scripted())


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def router(stack: AsyncExitStack, backend: Scripted) -> Router:
    config = Config.model_validate({**FAST, "backends": [backend.url]})
    router = await stack.enter_async_context(Router(config))
    await until(lambda: router.registry.not_ready() == [])
    return router


async def asked(router: Router, method: str, path: str) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer."""
    async with await RawClient.connect(router.data_url) as client:
        client.send(f"{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n".encode())
        client.send(b'content-length: 13\r\n\r\n{"model":"m"}' if method == "POST" else b"content-length: 0\r\n\r\n")
        status, headers = await asyncio.wait_for(client.head(), 10)
        return status, dict(headers)


def reached(backend: Scripted) -> set[str]:
    """What the backend was asked for, but for what the router asks itself."""
    return {seen.line for seen in backend.requests} - {
        f"GET {path} HTTP/1.1" for path in ("/health", "/metrics", "/v1/models")
    }


async def test_every_route_of_vllm_is_decided_on(table: set[tuple[str, str]]) -> None:
    paths = {path for path, _ in table}
    decided = MODEL_API | OWN | CONTROL | {REALTIME}
    assert paths - decided == set(), "vLLM has routes of which nobody has decided whether clients may reach them"
    assert decided - paths == set(), "vLLM has not got these any more"


async def test_no_control_route_is_reached(router: Router, backend: Scripted, table: set[tuple[str, str]]) -> None:
    paths = sorted({path.replace("{adapter_name}", "a") for path, _ in table if path in CONTROL})
    assert len(paths) > 40
    before = reached(backend)
    for path in paths:
        # To ask by GET for a stored response that is called render is another route, also to vLLM.
        methods = ("POST",) if path == "/v1/responses/render" else METHODS
        for method in methods:
            for spelled in (path, f"{path}/", f"/{path}", f"{path}?level=1", f"http://x{path}", f"/v1/models/..{path}"):
                status, _ = await asked(router, method, spelled)
                wrong_method = len(methods) == 1 and spelled.partition("?")[0].removeprefix("http://x") == path
                assert status == (405 if wrong_method else 404), (method, spelled, status)
    assert reached(backend) == before


async def test_every_route_of_the_model_api_is_reached(
    router: Router, backend: Scripted, table: set[tuple[str, str]]
) -> None:
    for path, methods in sorted(table):
        if path in MODEL_API:
            (method,) = methods.split()
            filled = path.replace("{response_id}", "resp_1")
            status, _ = await asked(router, method, filled)
            assert status == 200, (method, path)
            assert f"{method} {filled} HTTP/1.1" in reached(backend)


async def test_what_vllm_tells_the_router_tells_too(router: Router) -> None:
    for path in OWN:
        assert (await asked(router, "GET", path))[0] == 200
    status, headers = await asked(router, "GET", REALTIME)
    assert (status, headers["upgrade"]) == (426, "websocket")


async def test_what_forms_can_say_to_an_engine_is_known(vllm_dir: Path) -> None:
    """The router looks into forms for one thing alone, what steers transfers by the JSON of `vllm_xargs`."""
    forms = dict(told(vllm_dir, "form_fields"))
    assert forms.keys() == {"/v1/audio/transcriptions", "/v1/audio/translations"}
    for path, fields in forms.items():
        assert {"file", "vllm_xargs"} <= set(fields), path
        assert not {PRIORITY_FIELD, SALT, *KV_FIELDS} & set(fields), f"vLLM takes an owned field in a form of {path}"
