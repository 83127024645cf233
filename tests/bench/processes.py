"""The processes of a benchmark: each on one CPU, its CPU time read from /proc, always stopped by its id."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Self

ROOT = Path(__file__).parents[2]
"""The checkout: where `python -m tests.bench...` finds its modules."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_STOP_S = 10.0
_POLL_S = 0.02
_TOOLS = ("taskset", "setpriv")


class BenchError(Exception):
    """The benchmark cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Cpus:
    """One CPU for the router alone, one for the load and the backends; the same one where there is only one."""

    router: int
    rest: int

    @classmethod
    def available(cls) -> Self:
        """The first two CPUs that this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[0], usable[min(1, len(usable) - 1)])

    @property
    def shared(self) -> bool:
        return self.router == self.rest


def require_tools() -> None:
    """Raises BenchError if a program is missing that no run can do without."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise BenchError(f"{' and '.join(missing)} not found; install util-linux")


def unwind_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does: through every `with` block, so that nothing it started is left."""

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)


@contextlib.contextmanager
def program(name: str) -> Iterator[None]:
    """The block is one of the benchmark's programs: what stops it is told in a line, and SIGTERM unwinds it."""
    unwind_on_sigterm()
    try:
        yield
    except BenchError as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{name}: stopped")


def pinned(cpu: int | str, command: Sequence[str]) -> list[str]:
    """The command on one CPU, or on some (as in "0,1"); the kernel ends it too if this process is killed outright."""
    return ["setpriv", "--pdeathsig", "TERM", "taskset", "-c", str(cpu), *command]


def module(name: str, *words: object) -> list[str]:
    """The command that runs one of the benchmark's own programs."""
    return [sys.executable, "-m", f"tests.bench.{name}", *map(str, words)]


@contextlib.contextmanager
def running(
    command: Sequence[str], cpu: int | str, log: Path, *, pipe: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """Run a command on one CPU for the length of the block. Its output is appended to `log`; `pipe` keeps stdout apart.

    It has a session of its own, so Ctrl-C reaches this process alone, which then stops it. Its id is that of the command.
    """
    with log.open("ab") as sink:
        process = subprocess.Popen(
            pinned(cpu, command),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else sink,
            stderr=sink,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        stop(process)
        if process.stdout:
            process.stdout.close()


def stop(process: subprocess.Popen[str]) -> None:
    """End a process and the group that it leads: SIGTERM, and SIGKILL after 10 s or a second Ctrl-C."""
    ended = process.poll() is not None
    try:
        if not ended:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_STOP_S)
            ended = True
    except subprocess.TimeoutExpired:
        pass
    finally:
        if not ended:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def output_of(command: Sequence[str], cpu: int, within: float, environment: Mapping[str, str] | None = None) -> str:
    """Run a command on one CPU to its end; returns its stdout. Raises BenchError if it fails or takes too long."""
    try:
        done = subprocess.run(
            pinned(cpu, command),
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
        )
    except subprocess.TimeoutExpired:
        raise BenchError(f"{command[0]} took longer than {within:.0f} s") from None
    if done.returncode:
        raise BenchError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout


def cpu_seconds(root: int) -> float:
    """CPU time that a process and all it started have used so far, those that have ended included."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may hold spaces. After it: state, parent, ..., and four times in clock ticks.
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        seconds[int(entry.name)] = sum(map(int, fields[11:15])) / _TICKS_PER_S
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        total += seconds.get(pid, 0.0)
        todo += children.get(pid, [])
    return total


def free_port() -> int:
    """A port of the loopback on which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def until_answers(port: int, body: bytes, process: subprocess.Popen[str], log: Path, within: float = 60.0) -> None:
    """Wait until a chat request through this port is answered 200. Raises BenchError if it never is."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BenchError(f"it ended with {process.returncode} at its start: {_end_of(log)}")
        if _answers(port, body):
            return
        time.sleep(_POLL_S)
    raise BenchError(f"it gave no answer within {within:.0f} s: {_end_of(log)}")


def _answers(port: int, body: bytes) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-400:] or "it said nothing"
