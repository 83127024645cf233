"""Requests beside a conversation: titles, tags, suggestions and probes, whose prompts no later turn builds on."""

from collections.abc import Sequence

from .identity import RequestView
from .messages import ASSISTANT, SYSTEM, USER, Message, Shape
from .refusal import refusal

NOT_A_TURN = "a request beside a conversation (a title, a tag, a probe, a count), which no later turn builds on"
"""What people are told of such a request."""

_TASK_HEADER = b"x-openwebui-task"
_TASK_PROMPT = "### Task:"
"""How the prompts of Open WebUI's background tasks begin (0.12.4, config.py)."""
_TITLE_PROMPTS = ("You are a title generator",)
"""How the system prompts of agents' title requests begin (opencode 1.18.33)."""


def is_side_request(view: RequestView, shape: Shape, messages: Sequence[Message]) -> bool:
    """Whether a request is one that a client makes about a conversation or beside it, and not a turn of one.

    Only what is certain counts: a header that says so, a known prompt alone in its request, or an answer of one token.
    """
    if says_so(view):
        return True
    if not messages or any(message.role == ASSISTANT for message in messages):
        return False
    first = messages[0]
    if first.role == SYSTEM and first.text.startswith(_TITLE_PROMPTS):
        return True
    asked = [message for message in messages if message.role == USER]
    if len(asked) != 1:
        return False
    if asked[0].text.startswith(_TASK_PROMPT) and view.field("stream") is not True:
        return True
    if (
        shape is Shape.COMPLETIONS
    ):  # there one token is a score of the prompt, which may share a long beginning with others
        return False
    return any(view.field(name) == 1 for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"))


def says_so(view: RequestView) -> bool:
    """Whether a header says that this is a task beside a conversation."""
    task = view.named.get(_TASK_HEADER)
    return task is not None and refusal(task.strip()) is None
