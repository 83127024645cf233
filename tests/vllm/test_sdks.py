"""The official OpenAI and Anthropic clients, as people use them and without any id: a chat stays on its warm server.

Each chat gives back what the client handed out: the assistant's message, the output items, the content blocks. Tools are
called for good: the servers are told to decode along a tool's schema, which even a random model can follow.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

from tests.serving import Serving, serving, until_ready
from tests.vllm.conftest import StartServers
from tests.vllm.servers import MODEL
from tests.vllm.test_main_job import fleet, metric

BLOCK = 32
CHATS = 6
TURNS = 4
ANSWER = 16
"""The most tokens of an answer; a tool's call takes fewer."""
SERVERS = 2

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome", "Lima"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ABOUT: dict[str, Any] = {"name": "get_weather", "description": "The weather of a city, now"}

# A call along its schema ends soon, where any amount of white space would be allowed a random model writes nothing else.
FLAGS = (
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *("--structured-outputs-config", '{"backend":"xgrammar","disable_any_whitespace":true}'),
)
ENVIRONMENT = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0", "VLLM_ENABLE_RESPONSES_API_STORE": "1"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True, slots=True)
class Seen:
    """What the router told of one request; the tokens are None where the client was not told them."""

    backend: str
    decision: str
    key_source: str | None
    prompt: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class Clients:
    """Both clients, aimed at one router."""

    openai: AsyncOpenAI
    anthropic: AsyncAnthropic


class Talk:
    """One chat through a client. `stream` asks for streamed answers; with `tools` every other turn calls one."""

    def __init__(self, clients: Clients, *, stream: bool, tools: bool = False) -> None:
        self.clients, self.stream, self.tools = clients, stream, tools
        self.seen: list[Seen] = []
        self.calls = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} stream={self.stream} tools={self.tools} {len(self.seen)} requests, {self.calls} calls>"

    async def say(self, text: str, *, call: bool) -> None:
        """One turn; with `call` the answer is a call of the tool, whose result is sent in a request of its own."""
        raise NotImplementedError

    def note(self, headers: Mapping[str, str], prompt: int | None = None, cached: int | None = None) -> None:
        """Remember what the router told with one answer."""
        told = headers["x-warmroute-backend"], headers["x-warmroute-decision"], headers.get("x-warmroute-key")
        self.seen.append(Seen(*told, prompt, cached))


class Chat(Talk):
    """Chat completions; the message goes back as `model_dump()` gives it."""

    def __init__(self, clients: Clients, *, stream: bool, tools: bool = False) -> None:
        super().__init__(clients, stream=stream, tools=tools)
        self.messages: list[Any] = []

    async def say(self, text: str, *, call: bool) -> None:
        self.messages.append({"role": "user", "content": text})
        for one in await self._ask(call=call):
            self.messages.append({"role": "tool", "tool_call_id": one.id, "content": _weather(one.function.arguments)})
        if call:
            assert self.messages[-1]["role"] == "tool"
            self.calls += 1
            await self._ask(call=False)

    async def _ask(self, *, call: bool) -> list[Any]:
        options: dict[str, Any] = {"tools": [{"type": "function", "function": ABOUT | {"parameters": SCHEMA}}]}
        if call:
            options["tool_choice"] = {"type": "function", "function": {"name": ABOUT["name"]}}
        raw = await self.clients.openai.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=self.messages,
            max_tokens=60 if call else ANSWER,
            temperature=0,
            stream=self.stream,
            **(options if self.tools else {}),
        )
        answer: Any = raw.parse()
        if self.stream:
            completion = await _gathered(answer)
            self.note(raw.headers)
        else:
            completion = answer
            self.note(raw.headers, *_chat_tokens(completion))
        message = completion.choices[0].message
        # What a stream was gathered into has fields beside those of the API, as None.
        self.messages.append(message.model_dump(exclude_none=self.stream))
        return list(message.tool_calls or ())


class WholeResponses(Talk):
    """Responses with the whole history in `input`; the output items go back as they are."""

    def __init__(self, clients: Clients, *, stream: bool, tools: bool = False) -> None:
        super().__init__(clients, stream=stream, tools=tools)
        self.items: list[Any] = []

    async def say(self, text: str, *, call: bool) -> None:
        self.items.append({"role": "user", "content": text})
        response = await self._ask(call=call)
        if call:
            await self._give_result(response)

    async def _give_result(self, response: Response) -> None:
        for item in response.output:
            if item.type == "function_call":
                said = _weather(item.arguments)
                self.items.append({"type": "function_call_output", "call_id": item.call_id, "output": said})
        assert self.items[-1]["type"] == "function_call_output"
        self.calls += 1
        await self._ask(call=False)

    async def _ask(self, *, call: bool) -> Response:
        response = await _respond(self, self.items, call=call)
        self.items += response.output
        return response


class StoredResponses(Talk):
    """Responses that go on from the one before by its id, which only the server that made it knows."""

    def __init__(self, clients: Clients, *, stream: bool, tools: bool = False) -> None:
        super().__init__(clients, stream=stream, tools=tools)
        self.last: str | None = None

    async def say(self, text: str, *, call: bool) -> None:
        more = {} if self.last is None else {"previous_response_id": self.last}
        self.last = (await _respond(self, text, call=call, **more)).id

    async def look(self) -> Seen:
        """Ask for the last response by its id, which makes no turn; what the router told."""
        assert self.last
        raw = await self.clients.openai.responses.with_raw_response.retrieve(self.last)
        assert raw.parse().id == self.last
        return Seen(raw.headers["x-warmroute-backend"], raw.headers["x-warmroute-decision"], None)


class Messages(Talk):
    """Anthropic's messages; the content blocks go back as they are."""

    def __init__(self, clients: Clients, *, stream: bool, tools: bool = False) -> None:
        super().__init__(clients, stream=stream, tools=tools)
        self.messages: list[Any] = []

    async def say(self, text: str, *, call: bool) -> None:
        self.messages.append({"role": "user", "content": text})
        content = await self._ask(call=call)
        if call:
            results = [
                {"type": "tool_result", "tool_use_id": block.id, "content": _weather(block.input)}
                for block in content
                if block.type == "tool_use"
            ]
            assert results
            self.messages.append({"role": "user", "content": results})
            self.calls += 1
            await self._ask(call=False)

    async def _ask(self, *, call: bool) -> list[Any]:
        options: dict[str, Any] = {"tools": [ABOUT | {"input_schema": SCHEMA}]}
        if call:
            options["tool_choice"] = {"type": "tool", "name": ABOUT["name"]}
        asked: dict[str, Any] = {
            "model": MODEL,
            "messages": self.messages,
            "max_tokens": 60 if call else ANSWER,
            "extra_body": {"temperature": 0},
            **(options if self.tools else {}),
        }
        if self.stream:
            async with self.clients.anthropic.messages.stream(**asked) as stream:
                message: Any = await stream.get_final_message()
                headers: Mapping[str, str] = stream.response.headers
        else:
            raw = await self.clients.anthropic.messages.with_raw_response.create(**asked)
            message, headers = await raw.parse(), raw.headers
        usage, cached = message.usage, message.usage.cache_read_input_tokens or 0
        # The three parts of a prompt: neither in the cache nor put there, put there, and found there.
        self.note(headers, usage.input_tokens + (usage.cache_creation_input_tokens or 0) + cached, cached)
        self.messages.append({"role": "assistant", "content": message.content})
        return list(message.content)


class Completions(Talk):
    """Completions of a text that grows by each answer and what follows it."""

    def __init__(self, clients: Clients, *, stream: bool, tools: bool = False) -> None:
        super().__init__(clients, stream=stream, tools=tools)
        self.text = ""

    async def say(self, text: str, *, call: bool) -> None:
        self.text += f"\nQ: {text}\nA:"
        raw = await self.clients.openai.completions.with_raw_response.create(
            model=MODEL, prompt=self.text, max_tokens=ANSWER, temperature=0, stream=self.stream
        )
        answer: Any = raw.parse()
        if self.stream:
            async for chunk in answer:
                self.text += "".join(choice.text for choice in chunk.choices)
            self.note(raw.headers)
        else:
            self.text += cast(Completion, answer).choices[0].text
            self.note(raw.headers, *_chat_tokens(answer))


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """What the servers of this module need beside their flags."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def router(environment: None, vllm_servers: StartServers) -> AsyncIterator[Serving]:
    servers = await asyncio.to_thread(vllm_servers, SERVERS, *FLAGS)
    with serving(*(s.url for s in servers), "--log-format", "off") as router:
        await until_ready(router.admin, up=SERVERS)
        yield router


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def clients(router: Serving) -> AsyncIterator[Clients]:
    openai = AsyncOpenAI(base_url=f"{router.data}/v1", api_key="none", max_retries=0)
    anthropic = AsyncAnthropic(base_url=router.data, api_key="none", max_retries=0)
    async with openai, anthropic:
        yield Clients(openai, anthropic)


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TOOLS = pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])


@STREAM
@TOOLS
@pytest.mark.parametrize("kind", [Chat, WholeResponses, Messages])
async def test_chats_stay_where_they_began(
    router: Serving, clients: Clients, kind: type[Talk], tools: bool, stream: bool
) -> None:
    talks = [kind(clients, stream=stream, tools=tools) for _ in range(CHATS)]
    await _hold(router, talks, f"{kind.__name__} {stream} {tools}")


@STREAM
async def test_a_text_that_grows_stays_where_it_began(router: Serving, clients: Clients, stream: bool) -> None:
    await _hold(router, [Completions(clients, stream=stream) for _ in range(CHATS)], f"completions {stream}")


@STREAM
async def test_responses_go_on_where_the_one_before_was_made(router: Serving, clients: Clients, stream: bool) -> None:
    talks = [StoredResponses(clients, stream=stream) for _ in range(CHATS)]
    await _hold(router, talks, f"stored {stream}", later="owner")
    for talk in talks:
        seen = await talk.look()
        assert (seen.backend, seen.decision) == (talk.seen[0].backend, "owner")


async def test_all_kinds_at_once(router: Serving, clients: Clients) -> None:
    kinds: list[Callable[..., Talk]] = [Chat, WholeResponses, Messages, Completions]
    await _hold(router, [kind(clients, stream=stream) for kind in kinds for stream in (False, True)], "all")


async def _hold(router: Serving, talks: Sequence[Talk], seed: str, later: str = "pin_hit") -> None:
    """Hold all talks turn by turn, those of one turn at once, and assert that each stays on one server and is known.

    What is said follows from `seed`. `later` is the decision about all requests of a talk but its first.
    """
    before = (await fleet(router))["sessions"]
    assert isinstance(before, int)
    dice = [random.Random(f"{seed}/{number}") for number in range(len(talks))]
    for turn in range(TURNS):
        async with asyncio.TaskGroup() as group:
            for talk, die in zip(talks, dice, strict=True):
                group.create_task(talk.say(_question(die), call=talk.tools and turn % 2 == 1))
    for talk in talks:
        print(talk, *(f"{seen.decision} {seen.cached}/{seen.prompt}" for seen in talk.seen))
        assert talk.calls == (TURNS // 2 if talk.tools else 0)
        assert len(talk.seen) == TURNS + talk.calls
        assert len({seen.backend for seen in talk.seen}) == 1
        assert {seen.key_source for seen in talk.seen} == {"content"}
        assert [seen.decision for seen in talk.seen[1:]] == [later] * (len(talk.seen) - 1)
        _assert_warm(talk)
    homes = [talk.seen[0].backend for talk in talks]
    assert sorted(homes.count(home) for home in set(homes)) == [len(talks) // SERVERS] * SERVERS
    assert (await fleet(router))["sessions"] == before + len(talks)
    assert await metric(router, "warmroute_session_moves_total") == 0


def _assert_warm(talk: Talk) -> None:
    """Each prompt was in the cache as far as the one before reached, in whole blocks, where the client is told of it."""
    known = [(seen.prompt, seen.cached) for seen in talk.seen if seen.prompt is not None and seen.cached is not None]
    told = not (talk.stream and isinstance(talk, Chat | Completions))
    assert len(known) == (len(talk.seen) if told else 0)
    for (before, _), (_, cached) in pairwise(known):
        # The last token of a prompt can become another one together with the answer's first.
        assert cached >= (before - 1) // BLOCK * BLOCK


async def _respond(talk: Talk, given: object, *, call: bool, **more: Any) -> Response:
    """One request to the Responses API, noted in its talk; the client's response, put together from its stream if streamed."""
    options: dict[str, Any] = {"tools": [{"type": "function", **ABOUT, "parameters": SCHEMA, "strict": True}]}
    if call:
        options["tool_choice"] = {"type": "function", "name": ABOUT["name"]}
    raw = await talk.clients.openai.responses.with_raw_response.create(
        model=MODEL,
        input=cast(Any, given),
        max_output_tokens=60 if call else ANSWER,
        temperature=0,
        stream=talk.stream,
        **(options if talk.tools else {}),
        **more,
    )
    answer: Any = raw.parse()
    if talk.stream:
        response = None
        async for event in answer:
            if event.type in ("response.completed", "response.incomplete"):
                response = event.response
    else:
        response = answer
    assert isinstance(response, Response)
    usage = response.usage
    assert usage
    talk.note(raw.headers, usage.input_tokens, usage.input_tokens_details.cached_tokens)
    return response


async def _gathered(stream: Any) -> ChatCompletion:
    """A streamed chat completion, put together by the client's own means."""
    state: Any = ChatCompletionStreamState()
    async for chunk in stream:
        state.handle_chunk(chunk)
    completion: ChatCompletion = state.current_completion_snapshot
    return completion


def _chat_tokens(answer: Any) -> tuple[int, int]:
    """The prompt's tokens, and how many of them were cached."""
    return answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens


def _weather(arguments: object) -> str:
    """What the tool says. The arguments are checked, so that a call that is none cannot pass."""
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert isinstance(given, dict)
    assert given["city"] in SCHEMA["properties"]["city"]["enum"]
    return f"It rains in {given['city']}."


def _question(dice: random.Random) -> str:
    """Some 60 words, no two alike: what is said is all by which a chat can be known."""
    return " ".join("".join(dice.choices("aeioubdfgklmnprstvz", k=dice.randint(3, 7))) for _ in range(60))
