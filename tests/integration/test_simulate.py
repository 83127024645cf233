"""`warmroute simulate` as a command: tables, JSON, pictures, and what it says of wrong use."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from warmroute.cli import main
from warmroute.simulate.policies import Policy

MADE_UP = Path(__file__).parent.parent / "golden" / "made-up-trace.jsonl"
SMALL = ("--trace", str(MADE_UP), "--backends", "2", "--blocks", "40")

SHARE = {"type": "number", "minimum": 0, "maximum": 1}
COUNT = {"type": "integer", "minimum": 0}
ABOVE_ONE = {"type": "number", "minimum": 1}


def exactly(**properties: object) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


LOAD = exactly(
    requests=COUNT, prompt_tokens=COUNT, cached_tokens=COUNT, prefilled_tokens=COUNT, whole_run={"type": "boolean"}
)
POLICY = exactly(
    hit_rate=SHARE,
    share_of_pooled={"type": ["number", "null"]},
    prefilled_max_mean=ABOVE_ONE,
    prompt_max_mean=ABOVE_ONE,
    requests_max_mean=ABOVE_ONE,
    ttft_p50={"type": "number", "exclusiveMinimum": 0},
    ttft_p95={"type": "number", "exclusiveMinimum": 0},
    sessions=COUNT,
    moves=COUNT,
    refused=COUNT,
    resumed=COUNT,
    lost=COUNT,
    decisions={"type": "object", "additionalProperties": COUNT},
    backends={"type": "object", "additionalProperties": LOAD, "minProperties": 1},
)
SCHEMA = exactly(
    workload=exactly(name={"type": "string"}, requests=COUNT, prompt_tokens=COUNT, block_size=COUNT),
    setting=exactly(
        backends=COUNT,
        blocks=COUNT,
        timing={"type": "object", "additionalProperties": {"type": "number"}},
        events={"type": "array", "items": exactly(kind={"enum": ["scale_out", "scale_in", "fail"]}, at={}, lasts={})},
    ),
    pooled_hit_rate=SHARE,
    policies={"type": "object", "additionalProperties": POLICY, "minProperties": 1},
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", *arguments])


def found(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    jsonschema.validate(told, SCHEMA)
    return told


# What comes out


def test_a_table_with_a_row_for_each_policy() -> None:
    result = run(*SMALL)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert "made-up-trace.jsonl: 27 requests on 2 backends of 40 blocks of 512 tokens" in lines[0]
    rows = {
        line.split()[0]: line.split()[1:] for line in lines[1:] if line.split()[:1] and line.split()[0] in list(Policy)
    }
    assert set(rows) == set(Policy)
    assert all(len(row) == 7 and row[0].endswith("%") for row in rows.values())
    assert "refused" not in result.stdout
    assert "…" not in result.stdout
    assert result.stderr == ""  # no bar where there is no terminal


def test_json_has_its_schema() -> None:
    told = found(*SMALL, "--scale-out", "20s", "--scale-in", "30s", "--fail", "25s:5s", "--fail", "40s")
    assert list(told["policies"]) == list(Policy)
    assert [(event["kind"], event["at"], event["lasts"]) for event in told["setting"]["events"]] == [
        ("scale_out", 20.0, None),
        ("scale_in", 30.0, None),
        ("fail", 25.0, 5.0),
        ("fail", 40.0, None),
    ]


def test_the_policies_that_are_asked_for() -> None:
    told = found(*SMALL, "--policy", "ring", "--policy", "round_robin")
    assert list(told["policies"]) == ["round_robin", "ring"]


@pytest.mark.parametrize("profile", ["chat", "agent", "hostile"])
def test_profiles(profile: str) -> None:
    arguments = ("--profile", profile, "--sessions", "12", "--policy", "pins")
    one, same, other = found(*arguments), found(*arguments), found(*arguments, "--seed", "1")
    assert one == same
    assert one["workload"] != other["workload"]


def test_speeds() -> None:
    slow = found(*SMALL, "--policy", "ring", "--prefill-tokens-per-s", "1000", "--tokens-per-s", "10")
    assert slow["setting"]["timing"] == {"first": 0.065, "token": 0.001, "pair": 0.0, "cached": 0.0, "answer": 0.1}
    assert slow["policies"]["ring"]["ttft_p50"] > 1


def test_the_configuration_counts(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("backends: [http://real:8000]\nqueue: {in_flight: 1, length: 0}\n", encoding="utf-8")
    arguments = ("--profile", "hostile", "--sessions", "30", "--policy", "pins", "--config", str(file))
    assert found(*arguments)["policies"]["pins"]["refused"] > 0
    assert found(*arguments, "--in-flight", "1000")["policies"]["pins"]["refused"] == 0


def test_a_trace_on_standard_input() -> None:
    result = CliRunner().invoke(
        main, ["simulate", "--trace", "-", "--blocks", "40", "--policy", "ring"], input=MADE_UP.read_bytes()
    )
    assert result.exit_code == 0, result.output
    assert "27 requests" in result.stdout


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_a_picture(suffix: str, begins: bytes, tmp_path: Path) -> None:
    file = tmp_path / f"out.{suffix}"
    result = run(*SMALL, "--plot", str(file))
    assert result.exit_code == 0, result.output
    assert file.read_bytes().startswith(begins)
    assert file.stat().st_size > 10_000


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "warmroute", "simulate", *SMALL, "--json"],
            stdout=subprocess.PIPE,
            stderr=theirs,
            timeout=60,
            env={**os.environ, "TERM": "xterm"},
        )
        shown = os.read(ours, 65536)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert b"round_robin" in shown
    assert json.loads(done.stdout)


# Wrong use


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "give one of --trace FILE and --profile NAME"),
        ((*SMALL, "--profile", "chat"), "give one of --trace FILE and --profile NAME"),
        ((*SMALL, "--sessions", "3"), "--sessions is for --profile"),
        (("--profile", "poem"), "'poem' is not one of"),
        (("--trace", "/nowhere.jsonl"), "'/nowhere.jsonl' does not exist"),
        ((*SMALL[:-1], "3"), "blocks with its answer; give --blocks at least that"),
        ((*SMALL, "--block-size", "64"), "line 1: "),
        ((*SMALL, "--fail", "soon"), "write it like"),
        ((*SMALL, "--fail", "3s:"), "write it like"),
        ((*SMALL, "--scale-out", "-1"), "write it like"),
        ((*SMALL, "--policy", "best"), "'best' is not one of"),
        ((*SMALL, "--backends", "0"), "--backends"),
        ((*SMALL, "--plot", "out.pdf"), "give a name that ends with .png or .svg"),
        ((*SMALL, "--plot", "/nowhere/out.png"), "there is no directory /nowhere"),
        ((*SMALL, "--scale-in", "1s", "--scale-in", "2s"), "leave no backend"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert "Traceback" not in result.output


def test_a_bad_line_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(MADE_UP.read_text(encoding="utf-8").splitlines()[0] + '\n{"timestamp": 1}\n', encoding="utf-8")
    result = run("--trace", str(file))
    assert result.exit_code == 2
    assert result.stderr == (
        "warmroute: trace.jsonl: line 2 is no request: Object missing required field `input_length`\n"
    )


def test_a_bad_configuration(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("affinity: {session_bind: 2}\n", encoding="utf-8")
    result = run(*SMALL, "--config", str(file))
    assert result.exit_code == 2
    assert "session_bound" in result.stderr


def test_pictures_want_matplotlib(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(*SMALL, "--plot", str(tmp_path / "out.png"))
    assert result.exit_code == 2
    assert result.stderr == "warmroute: --plot wants matplotlib; install it with: pip install 'warmroute[plot]'\n"
    assert result.stdout == ""
