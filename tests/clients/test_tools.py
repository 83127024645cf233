"""What the client tests rest on: scripted answers in vLLM's shape, ids that are really taken out, agents that really end."""

import asyncio
import json
import os
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.clients.agents import CODEX, AgentError, Installed
from tests.clients.answers import PARTS, SENTENCE, Said, stream
from tests.clients.between import without_ids

GOLDEN = Path(__file__).parents[1] / "golden"

# What this vLLM adds to OpenAI's and Anthropic's own fields is left out of a scripted answer.
protocols = pytest.mark.parametrize(
    ("path", "golden"),
    [
        ("/v1/chat/completions", "chat-stream.sse"),
        ("/v1/messages", "messages-stream.sse"),
        ("/v1/responses", "responses-stream.sse"),
    ],
)


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n") if line.startswith(b"data: {")]
    return [json.loads(line) for line in lines]


def kind(event: dict[str, Any]) -> str:
    """Which event of its protocol this is; a chunk of a chat has no type, but is told by what it carries."""
    if "type" in event:
        return str(event["type"])
    if not event["choices"]:
        return "usage"
    return (
        "end" if event["choices"][0]["finish_reason"] else "role" if "role" in event["choices"][0]["delta"] else "text"
    )


def fields(value: object, below: str = "") -> set[str]:
    """Every place in an event, by names joined with dots."""
    if isinstance(value, list):
        return set().union(*(fields(item, f"{below}[]") for item in value)) if value else {below}
    if not isinstance(value, dict):
        return {below}
    return {below}.union(*(fields(item, f"{below}.{name}") for name, item in value.items()))


@protocols
def test_a_scripted_answer_has_the_events_and_fields_of_a_real_one(path: str, golden: str) -> None:
    ours, real = b"".join(stream(path, "m", Said(1, PARTS))), (GOLDEN / golden).read_bytes()
    assert [name for name, _ in groupby(events(ours), kind)] == [name for name, _ in groupby(events(real), kind)]
    known = {
        name: set().union(*(fields(e) for e in events(real) if kind(e) == name)) for name in map(kind, events(real))
    }
    unknown = {(kind(event), field) for event in events(ours) for field in fields(event) - known[kind(event)]}
    assert unknown == set()
    assert ours.endswith(b"data: [DONE]\n\n") == real.rstrip().endswith(b"data: [DONE]")


def test_ids_are_taken_out_of_headers_and_body_and_all_else_stays() -> None:
    headers = {"session-id": "s", "x-codex-window-id": "w", "user-agent": "codex", "authorization": "Bearer dummy"}
    text = {"role": "user", "content": SENTENCE}
    body = {
        "input": [text],
        "metadata": {"user_id": "u", "tier": "a"},
        "prompt_cache_key": "p",
        "client_metadata": {"session_id": "c"},
    }
    kept, sent, taken = without_ids(headers, json.dumps(body).encode())
    assert kept == {"authorization": "Bearer dummy"}
    assert json.loads(sent) == {"input": [text], "metadata": {"tier": "a"}}
    assert sorted(taken) == ["codex", "p", "s", "u", "w", '{"session_id": "c"}']


async def test_an_agent_that_hangs_is_ended_together_with_its_helpers(tmp_path: Path) -> None:
    program, pipe = tmp_path / "codex", tmp_path / "pipe"
    program.write_text(f'#!/bin/sh\n(exec 3>"{pipe}"; echo here >&3; sleep 60) &\nwait\n')
    program.chmod(0o755)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    hanging = Installed(CODEX, tmp_path, tmp_path / "home", "http://127.0.0.1:9", "m", limit=2.0)
    hanging.set_up()
    try:
        with pytest.raises(AgentError, match="codex was not done after 2 s"):
            async with asyncio.timeout(20):  # far less than the helper's own 60 s
                await hanging.begin()
        assert os.read(reader, 100) == b"here\n"
        async with asyncio.timeout(10):
            while _is_held(reader):
                await asyncio.sleep(0.05)
    finally:
        os.close(reader)


def _is_held(reader: int) -> bool:
    """Whether a process still has the other end of this empty pipe."""
    try:
        return os.read(reader, 1) != b""
    except BlockingIOError:
        return True
