"""`warmroute lint` on logs of chats that are clean, and of chats that are not."""

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner, Result

from warmroute.cli import main
from warmroute.core.cures import ANYWHERE, CURES, SENTENCES, Cure
from warmroute.core.drift import Cause
from warmroute.lint.report import Report
from warmroute.lint.run import lint

from ..chats import CHANGES, Body, changed, clean, prompt_of, said, text


def lines(bodies: Iterable[Any]) -> list[bytes]:
    return [json.dumps(body).encode() + b"\n" for body in bodies]


def mixed(chats: list[list[Body]], seed: int = 1) -> list[Body]:
    """The requests of several chats, as they come to a server: each chat's in order, the chats mixed."""
    random = Random(seed)
    left = [list(reversed(chat)) for chat in chats]
    bodies: list[Body] = []
    while left:
        chat = random.choice(left)
        bodies.append(chat.pop())
        left = [chat for chat in left if chat]
    return bodies


def kinds(report: Report, between: str | None = None) -> set[str]:
    return {finding.kind for finding in report.findings if between in (None, finding.between)}


# The documents


REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_is_documented_as_it_is_told(cause: Cause) -> None:
    assert f"| `{cause}` | {SENTENCES[cause]} | {ANYWHERE[cause]} |" in REFERENCE


@pytest.mark.parametrize("cure", CURES, ids=lambda cure: cure.client)
def test_every_setting_is_documented_as_it_is_told(cure: Cure) -> None:
    assert f"| {cure.client} | {', '.join(f'`{cause}`' for cause in cure.causes)} | {cure.setting} |" in REFERENCE


# Turn against turn


@pytest.mark.parametrize("compact", [False, True], ids=["python", "javascript"])
@pytest.mark.parametrize("name", CHANGES)
def test_what_each_client_does_is_named(name: str, compact: bool) -> None:
    chats = [list(changed(name, seed, session=f"chat-{seed}")) for seed in range(3)]
    separators = (",", ":") if compact else None
    log = [json.dumps(body, separators=separators).encode() for body in mixed(chats)]
    report = lint(log)
    found, expected = kinds(report, "turns"), CHANGES[name][1]
    assert report.conversations == 3
    assert found <= expected
    assert bool(found) == bool(expected)


ONLY_BY_ID = {"Claude Code, compaction"}
"""What leaves nothing of the conversation by which it could be known."""


@pytest.mark.parametrize("name", [name for name in CHANGES if name not in ONLY_BY_ID])
def test_it_is_named_without_an_id_too(name: str) -> None:
    chats = [list(changed(name, seed, turns=8)) for seed in range(3)]
    found, expected = kinds(lint(lines(mixed(chats))), "turns"), CHANGES[name][1]
    assert found <= expected
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("named", [True, False], ids=["with ids", "without ids"])
def test_a_thousand_clean_chats_raise_no_alarm(named: bool) -> None:
    chats = [clean(seed, 3 + seed % 4, f"chat-{seed}" if named else None) for seed in range(1000)]
    report = lint(lines(mixed(chats)))
    assert report.findings == []
    assert report.requests == sum(map(len, chats))
    if named:
        assert report.conversations == 1000
        assert report.by_people > 50


def test_titles_are_no_turns() -> None:
    chat = clean(1, 4, "a")
    title = {"model": "m", "session_id": "a", "messages": [said("user", "### Task:\nA title for this chat: x")]}
    assert lint(lines([chat[0], title, chat[1], title, chat[2]])).findings == []


def test_headers_tell_the_conversation_and_the_client() -> None:
    log = [
        {"path": "/v1/chat/completions", "headers": {"X-OpenWebUI-Chat-Id": "c1"}, "body": body}
        for body in changed("Open WebUI, CURRENT_DATETIME", 1)
    ]
    report = lint(lines(log))
    assert report.conversations == 1
    assert dict(report.findings[0].sources) == {"x-openwebui-chat-id": 5}
    assert any(setting.startswith("Open WebUI: take {{CURRENT_TIME}}") for setting in report.findings[0].settings)
    assert not any("AnythingLLM" in setting for setting in report.findings[0].settings)


# Conversation against conversation


def prompts(line: Any, count: int = 30) -> list[Body]:
    """First requests of so many chats with one system prompt, each with a line of its own in it."""
    fixed = prompt_of(Random(3)).split("\n")
    bodies = []
    for i in range(count):
        system = "\n".join([*fixed[:3], line(i, Random(i)), *fixed[3:]])
        bodies.append({"messages": [said("system", system), said("user", text(Random(i), 9))]})
    return bodies


def examples(number: int, random: Random) -> str:
    return "\n".join(f"Example {i}: {text(random, 8)}\nOutput: {text(random, 5)}" for i in range(4))


def shuffled(number: int, random: Random) -> str:
    keys = ["alpha", "beta", "gamma", "delta"]
    random.shuffle(keys)
    return json.dumps({key: key.upper() for key in keys})


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("clock", lambda n, r: f"Current time: 2026-09-11T08:{n:02}:00Z"),
        ("identifier", lambda n, r: f"Request id: req_{r.getrandbits(40):010x}"),
        ("user_in_system", lambda n, r: f"user: {text(r, 1)}{n}@example.com"),
        ("key_order", shuffled),
        ("whitespace", lambda n, r: f"Be{' ' * (1 + n)}brief.{' ' * n}"),
        ("whitespace", lambda n, r: "".join("é" if n >> bit & 1 else "e\u0301" for bit in range(5))),
        ("volatile_fewshot", examples),
    ],
)
def test_what_keeps_conversations_from_sharing_is_named(kind: str, line: Any) -> None:
    report = lint(lines(prompts(line)))
    assert kinds(report) == {kind}
    assert report.findings[0].between == "conversations"
    assert report.findings[0].offset > 100
    assert report.findings[0].bytes_lost > 1000


def test_prompts_without_a_common_beginning() -> None:
    bodies = [{"messages": [said("user", f"{i} {text(Random(i), 40)}")]} for i in range(20)]
    assert kinds(lint(lines(bodies))) == {"short_prefix"}


def test_applications_of_their_own_raise_no_alarm() -> None:
    prompt = "You are the assistant of {}.\n" + prompt_of(Random(1)) + "\nValid from 2026-0{}-01."
    bodies = [
        {
            "messages": [
                said("system", prompt.format(("Acme", "Globex")[i % 2], 1 + i % 2)),
                said("user", text(Random(i), 9)),
            ]
        }
        for i in range(60)
    ]
    assert lint(lines(bodies)).findings == []


# The command


def run(log: bytes, *words: str) -> Result:
    return CliRunner().invoke(main, ["lint", "-", *words], input=log)


CLOCKED = b"".join(lines(changed("Open WebUI, CURRENT_DATETIME", 1, session="secret-chat")))


def test_findings_are_exit_code_1_and_tell_what_to_change() -> None:
    result = run(CLOCKED)
    assert result.exit_code == 1
    assert "clock: about " in result.stdout
    assert "Open WebUI: take {{CURRENT_TIME}}" in result.stdout
    assert "tokens are estimated as bytes / 4" in result.stdout


def test_text_is_shown_only_when_asked_for() -> None:
    assert "2026-09-12" not in run(CLOCKED).stdout + run(CLOCKED, "--json").stdout
    shown = json.loads(run(CLOCKED, "--json", "--show-text").stdout)["findings"][0]["texts"]
    assert all(0 < len(example) <= 40 for example in shown)
    assert "10:1" in shown[0]


def test_json_has_all_of_a_finding() -> None:
    told = json.loads(run(CLOCKED, "--json").stdout)
    assert told["requests"] == 6
    finding = told["findings"][0]
    assert finding["kind"] == "clock"
    assert finding["between"] == "turns"
    assert finding["part"] == "system"
    assert finding["requests"] == 5
    assert finding["lines"] == [1, 2]
    assert finding["tokens_lost"] > 1000
    assert "secret-chat" not in json.dumps(told)


def test_a_clean_log_is_exit_code_0() -> None:
    result = run(b"".join(lines(clean(1))))
    assert result.exit_code == 0
    assert result.stdout == "nothing found in 4 requests of 1 conversation\n"


@pytest.mark.parametrize(
    ("log", "named"),
    [
        (b"", "line 1"),
        (b"\n\n", "line 1"),
        (CLOCKED + b"no json\n" + CLOCKED + b"[1]\n", "line 7, 14:"),
        (b"{" * 10 + b"\n", "line 1:"),
        (b'{"messages": [}\n' * 9, "line 1, 2, 3, 4, 5 and 4 more:"),
        (b'{"body": "{"}\n', "line 1:"),
        (b"\xff\xfe\n", "line 1:"),
    ],
)
def test_lines_that_cannot_be_read_are_exit_code_2(log: bytes, named: str) -> None:
    result = run(log)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_odd_requests_are_no_fault(tmp_path: Path) -> None:
    odd: list[Any] = [
        {},
        {"messages": "x"},
        {"messages": [1, None, {"role": 3}]},
        {"messages": []},
        {"prompt": ["a", "b"]},
        {"headers": 3, "body": {"input": "hi"}},
        {"headers": [["a"], ["x-session-id", "1"], [1, 2]], "body": json.dumps({"prompt": "x"}), "path": 7},
        {"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {"input": "hi"}},
    ]
    log = tmp_path / "log"
    log.write_bytes(b"".join(lines(odd)))
    assert CliRunner().invoke(main, ["lint", str(log)]).exit_code == 0
