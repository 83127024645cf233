"""Chats as clients send them, turn by turn: clean ones, and ones whose prompts change in ways that clients are known for."""

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Body = dict[str, Any]

_WORDS = re.findall(
    r"\w+",
    "river stone the of window light paper to garden and copper kettle in north lamp is a river with green field carrot"
    " answer question maybe because list item 42 order 2026 three small table over under between house",
)


def text(random: Random, words: int) -> str:
    return " ".join(random.choices(_WORDS, k=words))


def said(role: str, content: Any, **more: Any) -> Body:
    return {"role": role, "content": content, **more}


def tool(name: str, random: Random) -> Body:
    schema = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}, "required": ["q"]}
    return {"type": "function", "function": {"name": name, "description": text(random, 12), "parameters": schema}}


def prompt_of(random: Random, lines: int = 8) -> str:
    """A system prompt."""
    return "\n".join(f"{i}. {text(random, 14)}" for i in range(lines))


def clean(seed: int, turns: int = 4, session: str | None = None) -> list[Body]:
    """One clean chat: each request is the one before it, its answer and a new question; sometimes with tools, without a
    system prompt, with a greeting, or with an answer asked for again or a question edited, as people do."""
    random = Random(seed)
    head: list[Body] = [said("system", prompt_of(Random(seed % 7)))] if seed % 5 else []
    tools = [tool(f"tool_{i}", Random(seed % 3)) for i in range(seed % 4)]
    messages = [*head, said("user", "hello" if seed % 3 == 0 else text(random, 30))]
    bodies: list[Body] = []
    for turn in range(turns):
        body: Body = {"model": "m", "messages": list(messages)}
        if tools:
            body["tools"] = tools
        if session is not None:
            body["session_id"] = session
        bodies.append(body)
        if seed % 11 == 0 and turn == 1:
            bodies.append({**body, "messages": [*messages[:-1], said("user", text(random, 20))]})
            messages = list(bodies[-1]["messages"])
        if seed % 13 == 0 and turn == 2:
            bodies.append(dict(bodies[-1]))
        answer = "Hello!" if turn == 0 and seed % 3 == 0 else text(random, 60)
        messages.append(said("assistant", answer))
        if tools and turn % 2:
            messages[-1]["tool_calls"] = [{"id": f"call_{turn}", "function": {"name": "tool_0", "arguments": "{}"}}]
            messages.append(said("tool", text(random, 40), tool_call_id=f"call_{turn}"))
        messages.append(said("user", text(random, 20)))
    return bodies


# How clients change prompts: each takes the number of a turn and the clean messages, and returns a body.

Change = Callable[[int, list[Body], Random], Body]


def _with_system(line: Callable[[int, Random], str], *, first: bool = True) -> Change:
    def change(turn: int, messages: list[Body], random: Random) -> Body:
        added, prompt = line(turn, random), messages[0]["content"]
        return {"messages": [said("system", f"{added}\n{prompt}" if first else f"{prompt}\n{added}"), *messages[1:]]}

    return change


def _memories(turn: int, random: Random) -> str:
    return "User context:\n" + "\n".join(f"- {text(Random(i), 9)}" for i in range(turn + 1))


def _retrieved(turn: int, random: Random) -> str:
    return f"<context>\n{text(random, 40)}\n</context>"


def _rag_last(turn: int, messages: list[Body], random: Random) -> Body:
    return {"messages": [*messages[:-1], said("user", f"{_retrieved(turn, random)}\n{messages[-1]['content']}")]}


def _window(keep: int) -> Change:
    def change(turn: int, messages: list[Body], random: Random) -> Body:
        return {"messages": [messages[0], *messages[1:][-keep:]]}

    return change


def _next_chat(turn: int, messages: list[Body], random: Random) -> Body:
    dropped = messages[1:-4]
    summary = [said("system", f"Summary of before: {text(random, 30)}")] if dropped else []
    return {"messages": [messages[0], *summary, *messages[1:][-4:]]}


def _compaction(turn: int, messages: list[Body], random: Random) -> Body:
    if turn < 3:
        return {"messages": messages}
    summary = said("user", "This session goes on from one before. Summary: " + text(Random(7), 250))
    return {"messages": [messages[0], summary, *messages[7:]]}


def _compacted_system(turn: int, messages: list[Body], random: Random) -> Body:
    if turn < 3:
        return {"messages": messages}
    system = messages[0]["content"] + "\n[CONVERSATION SUMMARY] " + text(Random(7), 60)
    return {"messages": [said("system", system), *messages[4:]]}


def _tools(choose: Callable[[int, list[Body], Random], list[Body]]) -> Change:
    def change(turn: int, messages: list[Body], random: Random) -> Body:
        return {"messages": messages, "tools": choose(turn, [tool(f"t{i}", Random(i)) for i in range(6)], random)}

    return change


def _shuffled(turn: int, tools: list[Body], random: Random) -> list[Body]:
    return tools[turn:] + tools[:turn]


def _keys_shuffled(turn: int, tools: list[Body], random: Random) -> list[Body]:
    return [dict(reversed(t.items())) if turn % 2 else t for t in tools]


def _depth_note(turn: int, messages: list[Body], random: Random) -> Body:
    note = said("system", "[Style: write as the captain would, in short sentences, and never leave the ship.]")
    return {"messages": [*messages[:-1], note, messages[-1]]}


def _billing(turn: int, messages: list[Body], random: Random) -> Body:
    line = f"x-anthropic-billing-header: cc_version=2.1.{random.randrange(99)}; cch={random.getrandbits(20):05x};"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": messages[0]["content"]}]
    return {"system": blocks, "messages": messages[1:]}


def _late_system(turn: int, messages: list[Body], random: Random) -> Body:
    later = [*messages[1:3], said("system", "The file has changed on disk."), *messages[3:]] if turn else messages[1:]
    return {"system": messages[0]["content"], "messages": later}


def _sub_agent(turn: int, messages: list[Body], random: Random) -> Body:
    who = "You are Claude Code." if turn % 2 else "You are a Claude agent, built on the SDK."
    return {
        "system": [{"type": "text", "text": who}, {"type": "text", "text": prompt_of(Random(1))}],
        "messages": messages[1:],
    }


def _reminder(turn: int, messages: list[Body], random: Random) -> Body:
    """opencode: a reminder stands in the newest question, then in an older one, then nowhere."""
    reminded = said("user", f"{messages[-1]['content']}\n<system-reminder>Plan mode is active.</system-reminder>")
    return {"messages": [*messages[:-1], reminded]}


def _old_reminder(turn: int, messages: list[Body], random: Random) -> Body:
    first = (
        f"{messages[1]['content']}\n<system-reminder>{'Plan' if turn % 2 else 'Build'} mode is on.</system-reminder>"
    )
    return {"messages": [messages[0], said("user", first), *messages[2:]]}


def _turn_context(turn: int, messages: list[Body], random: Random) -> Body:
    """goose: within one turn, each round of tools rewrites the question's context."""
    question = f"<turn-context>It is 2026-09-12 10:{10 + turn}:00</turn-context>\n{messages[1]['content']}"
    rounds = [said("assistant" if i % 2 == 0 else "tool", m["content"]) for i, m in enumerate(messages[2:])]
    return {"messages": [messages[0], said("user", question), *rounds]}


def _environment(turn: int, messages: list[Body], random: Random) -> Body:
    details = f"<environment_details>open: {text(random, 9)}</environment_details>"
    question = [{"type": "text", "text": messages[-1]["content"]}, {"type": "text", "text": details}]
    return {"messages": [*messages[:-1], said("user", question)]}


def _repository_map(turn: int, messages: list[Body], random: Random) -> Body:
    files = [said("user", f"Here is the repository: {text(random, 80)}"), said("assistant", "Ok.")]
    return {"messages": [messages[0], *files, *messages[1:]]}


def _thoughts_dropped(turn: int, messages: list[Body], random: Random) -> Body:
    newest = max((i for i, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
    thinks = [{**m, "reasoning_content": text(Random(i), 40)} if i == newest else m for i, m in enumerate(messages)]
    return {"messages": thinks}


def _image_dropped(turn: int, messages: list[Body], random: Random) -> Body:
    if turn > 2:
        return {"messages": messages}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 400}}
    return {
        "messages": [
            messages[0],
            said("user", [{"type": "text", "text": messages[1]["content"]}, image]),
            *messages[2:],
        ]
    }


def _pruned(turn: int, messages: list[Body], random: Random) -> Body:
    last = len(messages) - 1
    results = [
        said("tool", m["content"] if last - i < 4 else "[cleared]") if m["role"] == "user" and i > 1 else m
        for i, m in enumerate(messages)
    ]
    return {"messages": results}


def _frozen_time(turn: int, messages: list[Body], random: Random) -> Body:
    return {"messages": [said("system", f"{messages[0]['content']}\nStarted at 2026-09-12T10:00Z"), *messages[1:]]}


def _cache_marks(turn: int, messages: list[Body], random: Random) -> Body:
    mark = {"cache_control": {"type": "ephemeral"}}
    newest = said("user", [{"type": "text", "text": messages[-1]["content"], **mark}])
    return {"system": [{"type": "text", "text": messages[0]["content"], **mark}], "messages": [*messages[1:-1], newest]}


def _spaces(turn: int, random: Random) -> str:
    return "Answer in  two sentences." if turn % 2 else "Answer in two sentences. "


CHANGES: dict[str, tuple[Change, set[str]]] = {
    "Open WebUI, CURRENT_DATETIME": (_with_system(lambda n, r: f"Now: 2026-09-12 10:{10 + n}:0{n % 9}"), {"clock"}),
    "Open WebUI, CURRENT_DATE at midnight": (
        _with_system(lambda n, r: f"Today is September {10 + n}, 2026."),
        {"clock"},
    ),
    "Open WebUI, memories that grow": (_with_system(_memories, first=False), {"system_grown"}),
    "Open WebUI, memories chosen anew": (_with_system(_retrieved, first=False), {"system"}),
    "Open WebUI, retrieved text in the question": (_rag_last, {"last_user"}),
    "Open WebUI, retrieved text in the system prompt": (_with_system(_retrieved), {"system"}),
    "Open WebUI, context compaction": (_compacted_system, {"summarised"}),
    "Open WebUI, a feature switched on": (_tools(lambda n, t, r: t[: 2 + n]), {"tools"}),
    "LibreChat, milliseconds": (
        _with_system(lambda n, r: f"# web_search: 2026-09-12T10:1{n % 9}:07.{101 + n}Z"),
        {"clock"},
    ),
    "AnythingLLM, the window": (_window(4), {"trimmed"}),
    "AnythingLLM, datetime": (
        _with_system(lambda n, r: f"Time: 9/12/2026, 9:{10 + n} AM\n{_retrieved(n, r)}"),
        {"clock"},
    ),
    "NextChat, summary and window": (_next_chat, {"summarised", "trimmed", "system_grown", "system"}),
    "big-AGI, a day": (_with_system(lambda n, r: f"Current date: {('Monday', 'Tuesday', 'Friday')[n % 3]}"), {"clock"}),
    "Cherry Studio, tools in another order": (_tools(_shuffled), {"tools_order"}),
    "Cherry Studio, seconds since 1970": (_with_system(lambda n, r: f"ts={1789200000 + 61 * n}"), {"clock"}),
    "SillyTavern, a note at depth 1": (_depth_note, {"reminder_moved"}),
    "SillyTavern, a lorebook at the top": (_with_system(lambda n, r: text(r, 30)), {"system"}),
    "Chatbox, a count of messages": (_window(6), {"trimmed"}),
    "Claude Code, billing": (_billing, {"claude_billing"}),
    "Claude Code, a late system message": (_late_system, {"late_system"}),
    "Claude Code, an MCP server flaps": (_tools(lambda n, t, r: t[: 6 if n % 2 else 3]), {"tools", "tools_flapped"}),
    "Claude Code, a sub-agent is resumed": (_sub_agent, {"system"}),
    "Claude Code, compaction": (_compaction, {"summarised"}),
    "opencode, a reminder in the newest question": (_reminder, {"last_user"}),
    "opencode, a reminder in an old question": (_old_reminder, {"last_user", "rewritten"}),
    "goose, turn-context": (_turn_context, {"clock"}),
    "Roo Code, environment details": (_environment, {"last_user"}),
    "Aider, the repository map": (_repository_map, {"last_user", "rewritten"}),
    "Cline, the day": (_with_system(lambda n, r: f"Date: 2026-09-{10 + n}"), {"clock"}),
    "thoughts dropped": (_thoughts_dropped, {"answer"}),
    "an image dropped": (_image_dropped, {"rewritten"}),
    "results of tools cleared": (_pruned, {"pruned", "last_user"}),
    "a request id": (_with_system(lambda n, r: f"Request: req_{r.getrandbits(40):010x}"), {"identifier"}),
    "percent of the context": (_with_system(lambda n, r: f"Context used: {7 + n} %"), {"counter"}),
    "white space": (_with_system(_spaces), {"whitespace"}),
    "keys in another order": (_tools(_keys_shuffled), {"key_order"}),
    "a time that is frozen": (_frozen_time, set()),
    "cache marks that move": (_cache_marks, set()),
}
"""Who changes what, how, and as which causes it has to be told; none where it is no fault."""


def changed(name: str, seed: int, turns: int = 6, session: str | None = None) -> Iterator[Body]:
    """A chat whose client changes prompts in the way of this name."""
    change, _ = CHANGES[name]
    random = Random(seed)
    messages = [said("system", prompt_of(random)), said("user", text(random, 25))]
    for turn in range(turns):
        body = {"model": "m", **change(turn, list(messages), random)}
        if session is not None:
            body["session_id"] = session
        yield body
        messages += [said("assistant", text(random, 400)), said("user", text(random, 25))]
