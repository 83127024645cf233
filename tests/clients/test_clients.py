"""Real agents through a real router: a conversation stays on one server, with the ids that they send and without them."""

import json
import re
from collections.abc import Sequence
from contextlib import AsyncExitStack

import httpx
import pytest

from tests.clients.agents import AGENTS, CLAUDE_CODE, Agent
from tests.clients.answers import SENTENCE, delegating
from tests.clients.between import Between
from tests.clients.conftest import Install
from tests.clients.routed import Log, Turn, two_turns
from tests.integration.scripted import Scripted, Seen

MODEL = "m"
ID = re.compile(r"ses_[A-Za-z0-9]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

each_agent = pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)


@each_agent
async def test_both_turns_go_to_one_server_by_the_clients_own_id(
    agent: Agent, install: Install, log: Log, backends: Sequence[Scripted]
) -> None:
    [(first, second)] = await two_turns(install(agent, log.router.data, MODEL), log=log)
    _one_server(agent, first, second, backends)
    assert {row.key_source for row in (*first.side, *first.own, *second.own)} == {agent.key_source}
    # Only the turns' own requests count: a title request comes under the same id, and is no part of the conversation.
    pinned = [(row["source"], row["backend"], row["turns"]) for row in await log.sessions()]
    assert pinned == [(agent.key_source, first.own[0].backend, 4)]


@each_agent
async def test_both_turns_go_to_one_server_by_their_content_where_all_ids_are_taken_out(
    agent: Agent,
    install: Install,
    log: Log,
    backends: Sequence[Scripted],
    stack: AsyncExitStack,
    http: httpx.AsyncClient,
) -> None:
    between = Between(log.router.data, strip=True, http=http)
    listener = await stack.enter_async_context(between.listener())
    # Two side by side that say the same words and get the same answers: only the folder in their prompts tells them apart.
    conversations = [install(agent, listener.url, MODEL) for _ in range(2)]
    turns = await two_turns(*conversations, log=log)
    _nothing_names_the_conversation(between, backends)
    for first, second in turns:
        _one_server(agent, first, second, backends)
        assert {row.key_source for row in (*first.own[1:], *second.own)} == {"content"}
    sessions = [{row.session for row in (*first.own, *second.own)} for first, second in turns]
    assert [len(found) for found in sessions] == [1, 1]
    assert sessions[0] != sessions[1]


async def test_a_sub_agent_of_claude_code_is_put_near_the_agent_that_started_it(
    install: Install, log: Log, backends: Sequence[Scripted]
) -> None:
    for backend in backends:
        backend.script = delegating
    [(first, _)] = await two_turns(install(CLAUDE_CODE, log.router.data, MODEL), log=log)
    start, *sub, end = first.own
    assert [row.decision for row in sub] == ["near_parent", "pin_hit"]
    assert end.decision == "pin_hit"
    assert {row.backend for row in (*sub, end)} == {start.backend}
    # Sessions of their own: the sub-agent may be moved without the agent.
    assert (end.session, sub[1].session) == (start.session, sub[0].session)
    assert start.session != sub[0].session
    assert {row.key_source for row in first.own} == {CLAUDE_CODE.key_source}


async def test_claude_codes_probe_of_its_base_url_is_answered_by_the_router_itself(
    install: Install, log: Log, backends: Sequence[Scripted], stack: AsyncExitStack, http: httpx.AsyncClient
) -> None:
    between = Between(log.router.data, strip=False, http=http)
    listener = await stack.enter_async_context(between.listener())
    claude = install(CLAUDE_CODE, listener.url, MODEL)
    claude.set_up()
    assert (await claude.begin()).code == 0
    asked = {(passed.method, passed.path): passed.status for passed in between.passed}
    assert asked == {("HEAD", "/"): 200, ("POST", "/v1/messages?beta=true"): 200}
    reached = {seen.path for backend in backends for seen in backend.requests}
    assert reached <= {"/health", "/v1/models", "/metrics", "/v1/messages?beta=true"}


def _one_server(agent: Agent, first: Turn, second: Turn, backends: Sequence[Scripted]) -> None:
    """The agent has its answers, the router says that both turns went to one backend, and so say the backends."""
    for turn in (first, second):
        assert turn.ended.code == 0
        assert SENTENCE in turn.ended.output
    # Each turn calls a tool and goes on with its result.
    assert (len(first.side), len(first.own), len(second.own)) == (agent.side, 2, 2)
    own = (*first.own, *second.own)
    assert {(row.path, row.status) for row in (*first.side, *own)} == {(agent.path, 200)}
    assert {row.backend for row in own} == {own[0].backend}
    assert [row.decision for row in own[1:]] == ["pin_hit"] * 3
    assert [row.decision for row in first.side] == ["side"] * agent.side
    for row in (*first.side, *own):
        assert [name for name, _ in _got(row.id, backends)] == [row.backend]
    _is_the_conversation([_got(row.id, backends)[0][1] for row in own])
    # A request beside the conversation is told from its turns by having no tools.
    assert ["tools" in json.loads(_got(row.id, backends)[0][1].body) for row in first.side] == [False] * agent.side


def _is_the_conversation(requests: Sequence[Seen]) -> None:
    """Each request brings back, unchanged and in one piece, what the ones before it were answered."""
    bodies = [seen.body for seen in requests]
    assert [body.count(b'"I will look."') for body in bodies] == [0, 1, 1, 2]
    sentence = json.dumps(SENTENCE, ensure_ascii=False).encode()
    assert [body.count(sentence) for body in bodies] == [0, 0, 1, 1]


def _got(request_id: str, backends: Sequence[Scripted]) -> list[tuple[str, Seen]]:
    """Every post with this id that a backend was sent, with the backend's name."""
    return [(b.name, seen) for b in backends for seen in b.posts if seen.header("x-request-id") == request_id]


def _nothing_names_the_conversation(between: Between, backends: Sequence[Scripted]) -> None:
    """Ids were taken out of every post, and no server was sent one of them in any place."""
    posts = [passed for passed in between.passed if passed.method == "POST"]
    ids = {found for passed in posts for value in passed.taken for found in ID.findall(value)}
    assert posts
    assert ids
    sent = [seen.head + seen.body for backend in backends for seen in backend.posts]
    assert [value for value in sorted(ids) if any(value.encode() in request for request in sent)] == []
