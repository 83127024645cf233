"""What each cause of a changed prompt is in one sentence, and which setting of which client turns it off."""

from collections.abc import Mapping
from typing import NamedTuple

from .drift import Cause

SENTENCES: Mapping[Cause, str] = {
    Cause.CLOCK: "A date or time stands in the prompt and is another one each time.",
    Cause.IDENTIFIER: "An id stands in the prompt and is another one each time.",
    Cause.COUNTER: "A number stands in the system prompt and counts (messages, tokens, percent of the context).",
    Cause.WHITESPACE: "The prompt is the same except for white space.",
    Cause.KEY_ORDER: "The same words come in another order: JSON whose keys are not sorted, or a list that is shuffled.",
    Cause.SYSTEM_GROWN: "Something is added to the system prompt: memories, skills, retrieved text.",
    Cause.SYSTEM: "The system prompt changes: memories, retrieved text or settings are exchanged in it.",
    Cause.CLAUDE_BILLING: "Claude Code's first line is another one with each request; vLLM 0.32 leaves it out.",
    Cause.LATE_SYSTEM: "A system message came in the middle; vLLM moves it to the front if the chat template wants only one.",
    Cause.TOOLS_ORDER: "The same tools come in another order.",
    Cause.TOOLS_FLAPPED: "Tools leave and come back.",
    Cause.TOOLS: "Tools are added, removed or described otherwise; they stand before everything else.",
    Cause.TRIMMED: "The oldest messages are left out, so that everything after them stands elsewhere.",
    Cause.SUMMARISED: "Old messages are replaced by a summary.",
    Cause.LAST_USER: "The last turn's question comes back otherwise: retrieved text or details were taken out or added.",
    Cause.REMINDER_MOVED: "A note inside the history (reminder, author's note, lorebook) moves with each turn, comes or goes.",
    Cause.REWRITTEN: "An old message is rewritten where it stands: a reminder, an image or a file in it changes.",
    Cause.ANSWER: "An old answer comes back otherwise: its thoughts are left out, or its text is changed.",
    Cause.PRUNED: "Old results of tools are shortened or taken out.",
    Cause.EDITED: "Somebody edited a message, branched off or asked for another answer.",
    Cause.SHORTER: "Somebody went back to an earlier point of the conversation.",
}
"""One sentence for people for each cause."""


class Cure(NamedTuple):
    """What to change in one client; `sources` are the key sources that tell of the client, none if it sends no id."""

    causes: tuple[Cause, ...]
    sources: tuple[str, ...]
    client: str
    setting: str


_OPEN_WEBUI = ("x-openwebui-chat-id",)
_LIBRECHAT = ("x-conversation-id", "x-librechat-conversation-id")
_CLAUDE_CODE = ("claude-code", "metadata.user_id")
_OPENCODE = ("x-session-affinity", "x-opencode-session")
_GOOSE = ("agent-session-id",)
_ROO = ("x-roo-task-id",)
_ALWAYS_NAMED = frozenset({*_CLAUDE_CODE, *_OPENCODE, *_GOOSE})
"""Clients that send an id without being told to."""

CURES: tuple[Cure, ...] = (
    Cure(
        (Cause.CLOCK,),
        _OPEN_WEBUI,
        "Open WebUI",
        "take {{CURRENT_TIME}} and {{CURRENT_DATETIME}} out of the system prompt ({{CURRENT_DATE}} changes once a day); the"
        " built-in time tool tells the time without them",
    ),
    Cure(
        (Cause.CLOCK,),
        _LIBRECHAT,
        "LibreChat",
        "take {{current_datetime}} out of the instructions; turn web search off where it is not needed, or upgrade (it put a"
        " time with milliseconds into the system prompt)",
    ),
    Cure((Cause.CLOCK,), (), "AnythingLLM", "write a system prompt without {datetime} in the workspace's settings"),
    Cure(
        (Cause.CLOCK,), (), "NextChat", "turn off 'Inject System Prompts' in the model's settings: it brings the time"
    ),
    Cure((Cause.CLOCK,), (), "big-AGI", "take {{LocaleNow}} out of the persona"),
    Cure((Cause.CLOCK,), (), "Cherry Studio", "take {{time}} and {{datetime}} out of the assistant's prompt"),
    Cure(
        (Cause.CLOCK,), (), "SillyTavern", "take {{time}}, {{date}} and {{random}} out of prompts, notes and lorebooks"
    ),
    Cure(
        (Cause.CLOCK,),
        (),
        "Cline and Continue",
        "nothing to do: their system prompts hold the day, and change once a day",
    ),
    Cure((Cause.CLOCK, Cause.LAST_USER), _GOOSE, "goose", "disable the `tom` extension, which rewrites <turn-context>"),
    Cure(
        (Cause.SYSTEM, Cause.SYSTEM_GROWN),
        _OPEN_WEBUI,
        "Open WebUI",
        "ENABLE_MEMORY_SYSTEM_CONTEXT=false keeps memories out of the system prompt, RAG_SYSTEM_CONTEXT=false (the default)"
        " retrieved text",
    ),
    Cure(
        (Cause.SYSTEM,),
        (),
        "AnythingLLM",
        "its retrieved text always goes into the system prompt: pin documents instead",
    ),
    Cure(
        (Cause.SYSTEM,), (), "SillyTavern", "let lorebook entries and vector storage go in at depth 0, not at the top"
    ),
    Cure(
        (Cause.SYSTEM,),
        _CLAUDE_CODE,
        "Claude Code",
        "a sub-agent that is resumed has another first line: nothing to do",
    ),
    Cure((Cause.SUMMARISED,), _OPEN_WEBUI, "Open WebUI", "context compaction does this once in a while: nothing to do"),
    Cure((Cause.SUMMARISED,), (), "NextChat", "raise History Compression Threshold in the model's settings"),
    Cure(
        (Cause.SUMMARISED,), _CLAUDE_CODE, "Claude Code", "compaction does this when the context is full: nothing to do"
    ),
    Cure(
        (Cause.CLAUDE_BILLING,),
        _CLAUDE_CODE,
        "Claude Code",
        "CLAUDE_CODE_ATTRIBUTION_HEADER=0 in its environment, or a vLLM that leaves the line out (0.32 does)",
    ),
    Cure(
        (Cause.LATE_SYSTEM,),
        _CLAUDE_CODE,
        "Claude Code",
        "start vLLM with a --chat-template that takes system messages where they stand",
    ),
    Cure(
        (Cause.TOOLS, Cause.TOOLS_FLAPPED, Cause.TOOLS_ORDER),
        _CLAUDE_CODE,
        "Claude Code",
        "an MCP server connects late or loses its connection: fix it, or take it out (`claude mcp list`)",
    ),
    Cure(
        (Cause.TOOLS, Cause.TOOLS_FLAPPED),
        _OPEN_WEBUI,
        "Open WebUI",
        "switching web search, code interpreter or tools on and off in a chat changes the prompt's beginning: leave them",
    ),
    Cure(
        (Cause.TOOLS, Cause.TOOLS_FLAPPED, Cause.TOOLS_ORDER),
        (),
        "Cherry Studio",
        "MCP servers whose lists of tools change: leave them on, or off",
    ),
    Cure((Cause.TOOLS_ORDER,), _GOOSE, "goose", "upgrade: an old version put its tools into random order"),
    Cure((Cause.TRIMMED,), (), "AnythingLLM", "raise Chat History (20) in the workspace's settings"),
    Cure((Cause.TRIMMED,), (), "NextChat", "raise Attached Messages Count (4) in the model's settings"),
    Cure((Cause.TRIMMED,), (), "Chatbox", "set Max Message Count in Context to no limit"),
    Cure((Cause.TRIMMED,), (), "SillyTavern", "raise the context size, so that old messages need not go"),
    Cure(
        (Cause.TRIMMED,), ("prompt_cache_key",), "LobeChat", "turn the limit of the history's length off, or raise it"
    ),
    Cure(
        (Cause.LAST_USER,),
        _OPEN_WEBUI,
        "Open WebUI",
        "retrieved text stands in the last question only: about one exchange a turn; turn File Context and Citations off in"
        " the model's settings where they are not needed",
    ),
    Cure(
        (Cause.LAST_USER,), _ROO, "Roo Code", "environment details stand in the last message only: minor, nothing to do"
    ),
    Cure(
        (Cause.REMINDER_MOVED, Cause.REWRITTEN, Cause.LAST_USER),
        _OPENCODE,
        "opencode",
        "<system-reminder> moves from message to message: upgrade, nothing can be set",
    ),
    Cure(
        (Cause.REMINDER_MOVED,),
        (),
        "SillyTavern",
        "set the depth of author's note, lorebook entries and vector storage to 0",
    ),
    Cure(
        (Cause.REWRITTEN,),
        (),
        "Aider",
        "the repository map and edited files stand before the chat: expected; --map-tokens 0",
    ),
    Cure((Cause.ANSWER,), _OPEN_WEBUI, "Open WebUI", "thoughts are left out when a chat goes on: nothing to do"),
    Cure((Cause.ANSWER,), _OPENCODE, "opencode", "thoughts are left out of old answers: nothing to do"),
)
"""What to change, client by client."""

ANYWHERE: Mapping[Cause, str] = {
    Cause.CLOCK: "put the time at the end of the last message, or into a tool",
    Cause.IDENTIFIER: "leave the id out of the prompt, or send it as a header",
    Cause.COUNTER: "put the number at the end of the last message",
    Cause.WHITESPACE: "make the text the same way each time: one line ending, no trailing spaces",
    Cause.KEY_ORDER: "write JSON with sorted keys, and lists in one order",
    Cause.SYSTEM_GROWN: "put what comes later into the last message",
    Cause.SYSTEM: "put what changes into the last message, after everything that stays",
    Cause.CLAUDE_BILLING: "use a vLLM that leaves the line out (0.32 does)",
    Cause.LATE_SYSTEM: "start vLLM with a --chat-template that takes system messages where they stand",
    Cause.TOOLS_ORDER: "sort the tools by name",
    Cause.TOOLS_FLAPPED: "keep the tools as they are for a conversation's life",
    Cause.TOOLS: "keep the tools as they are for a conversation's life",
    Cause.TRIMMED: "send the whole history, or leave out much at once and seldom",
    Cause.SUMMARISED: "summarise seldom, and much at once",
    Cause.LAST_USER: "send a question in history exactly as it was asked, or add retrieved text as a message of its own",
    Cause.REMINDER_MOVED: "put notes behind the last message, and leave them where they were",
    Cause.REWRITTEN: "leave old messages as they were sent",
    Cause.ANSWER: "send answers back as they came, thoughts included, if the chat template keeps them",
    Cause.PRUNED: "shorten results of tools when they come, not later",
    Cause.EDITED: "nothing: people do that",
    Cause.SHORTER: "nothing: people do that",
}
"""What to change in a client that is not known, or is your own."""


def cures(cause: Cause, source: str | None = None) -> tuple[Cure, ...]:
    """What to change against a cause: in the client that this key source tells of, else in all that may come without one."""
    named = {name for cure in CURES for name in cure.sources}
    if source in named:
        return tuple(cure for cure in CURES if cause in cure.causes and source in cure.sources)
    return tuple(cure for cure in CURES if cause in cure.causes and _ALWAYS_NAMED.isdisjoint(cure.sources))
