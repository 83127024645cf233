"""The admin API against its own description: whatever schemathesis makes of it, no answer is the router's own fault."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from ..fuzz.parts import parts

ENDLESS = "/api/live"
"""A page that does not end while somebody looks."""
CASES = 15


@pytest.mark.filterwarnings("ignore")  # of what schemathesis and the test client use
def test_no_answer_is_the_routers_own_fault() -> None:
    """Of each operation so many requests, valid and not. Every refusal is JSON that says in words what is wrong."""
    loop = asyncio.new_event_loop()
    asked: dict[str, int] = {}
    try:
        schema = schemathesis.openapi.from_asgi("/openapi.json", parts(loop).made.admin_app)
        found: Any
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path != ENDLESS:
                asked[operation.label] = sum(ask(operation, mode) for mode in GenerationMode)
    finally:
        loop.close()
    assert {"POST /api/explain", "POST /api/reload", "GET /api/sessions"} <= set(asked)
    assert all(asked.values())


def ask(operation: Any, mode: GenerationMode) -> int:
    """Ask for one operation in all ways; returns how often."""
    count = 0

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=CASES,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def one(case: Any) -> None:
        nonlocal count
        count += 1
        response = case.call(headers={"host": "127.0.0.1:8081"})
        told = f"{response.status_code} to {operation.label}: {response.text[:200]}"
        # 502: what was to be told to all backends, of which none is there.
        assert response.status_code < 500 or response.status_code == 502, told
        if 400 <= response.status_code < 500:
            assert isinstance(response.json()["detail"], str), told

    with suppress(Unsatisfiable):  # what takes nothing can be given nothing wrong
        one()
    return count
