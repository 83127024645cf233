"""Side requests: only what is certain is one."""

from dataclasses import dataclass, field

import pytest

from warmroute.core.messages import ASSISTANT, SYSTEM, USER, Message, Shape
from warmroute.core.side import is_side_request


@dataclass
class View:
    named: dict[bytes, bytes] = field(default_factory=dict)
    fields: dict[str, object] = field(default_factory=dict)

    def may_name(self) -> bool:
        return True

    def field(self, name: str) -> object:
        return self.fields.get(name)


HELLO = Message(USER, "hello")
TASK = Message(USER, "### Task:\nGenerate a title")
TITLE = Message(SYSTEM, "You are a title generator. You output only a title.")
ANSWER = Message(ASSISTANT, "hi")


@pytest.mark.parametrize(
    ("headers", "fields", "messages", "side"),
    [
        ({}, {}, [HELLO], False),
        ({b"x-openwebui-task": b"title_generation"}, {}, [HELLO], True),
        ({b"x-openwebui-task": b"title_generation"}, {}, [], True),
        ({b"x-openwebui-task": b""}, {}, [HELLO], False),
        ({b"x-openwebui-task": b"{{TASK}}"}, {}, [HELLO], False),
        ({b"x-openwebui-task": b"None"}, {}, [HELLO], False),
        ({}, {}, [TASK], True),
        ({}, {"stream": False}, [TASK], True),
        ({}, {"stream": True}, [TASK], False),
        ({}, {}, [TASK, ANSWER, HELLO], False),
        ({}, {}, [HELLO, Message(USER, "### Task:")], False),
        ({}, {"stream": True}, [TITLE, HELLO], True),
        ({}, {}, [TITLE, HELLO, ANSWER, HELLO], False),
        ({}, {}, [Message(USER, TITLE.text)], False),
        ({}, {"max_tokens": 1}, [HELLO], True),
        ({}, {"max_completion_tokens": 1}, [HELLO], True),
        ({}, {"max_output_tokens": 1}, [HELLO], True),
        ({}, {"max_tokens": 2}, [HELLO], False),
        ({}, {"max_tokens": "1"}, [HELLO], False),
        ({}, {"max_tokens": 1}, [HELLO, ANSWER, HELLO], False),
        ({}, {"max_tokens": 1}, [], False),
    ],
)
def test_what_is_beside_a_conversation(
    headers: dict[bytes, bytes], fields: dict[str, object], messages: list[Message], side: bool
) -> None:
    assert is_side_request(View(headers, fields), Shape.CHAT, messages) is side


def test_one_token_of_a_text_is_a_score() -> None:
    assert not is_side_request(View(fields={"max_tokens": 1}), Shape.COMPLETIONS, [HELLO])
