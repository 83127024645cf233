"""Owns one real vLLM server process: its start, its readiness, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

MODEL = "tiny"

# Small on purpose: 800 blocks of 32 tokens hold 25,600 tokens, so that eviction happens. The CPU backend refuses 16.
_FLAGS = (
    "--served-model-name", MODEL,
    "--load-format", "safetensors",
    "--dtype", "bfloat16",
    "--enforce-eager",
    "--max-model-len", "8192",
    "--max-num-seqs", "16",
    "--block-size", "32",
    "--num-gpu-blocks-override", "800",
    "--enable-prompt-tokens-details",
)  # fmt: skip

# One thread a server lets three share two cores; nothing may be asked of the network.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

_READY_S = 600.0
_POLL_S = 0.25
_STOP_S = 15.0
_TRACKER_S = 2.0
_GONE_S = 60.0


class VllmServerError(Exception):
    """A server that did not start, or did not end; the message carries the end of its log."""


class VllmServer:
    """One `vllm serve` on loopback with the tiny model, started by `start()` or by entering it.

    `folder` is what install.sh filled, `log` the file its output is appended to, `flags` come after the usual ones and
    so override them. The port is free at the first start and kept by later ones: `kill()` and then `start()` is the
    same backend coming back, with an empty cache. All methods block; in an event loop call them by `asyncio.to_thread`.
    """

    def __init__(self, folder: Path, log: Path, flags: Sequence[str] = ()) -> None:
        self.folder = folder
        self.log = log
        self.flags = tuple(flags)
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch = ""
        self._wanted = False

    def __repr__(self) -> str:
        return f"<VllmServer {self.url} {f'pid {self.pid}' if self.running else 'not running'}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """`http://127.0.0.1:PORT`, without a slash at the end; port 0 before the first start."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id of the API server, which is also the id of the session that its engines run in."""
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        """Whether the API server process lives; it can live and yet not be ready."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when `GET /health` answers 200; raises VllmServerError after 600 s or a second death at start."""
        if self.running:
            raise VllmServerError(f"{self!r} is running already; stop it first")
        chosen = self.port
        self._wanted = True
        for attempts_left in (1, 0):
            self.port = chosen or free_port()
            self._spawn()
            try:
                ready = self._wait_ready()
            except BaseException:  # an interrupted wait leaves no server behind either
                self.kill()
                raise
            if ready:
                return
            self.kill()
            if not self._wanted:
                raise VllmServerError(f"vllm on port {self.port} was stopped while it started")
            if not attempts_left:
                raise VllmServerError(f"vllm on port {self.port} died at start, twice:\n{self._log_end()}")

    def kill(self) -> None:
        """SIGKILL to every process of the server, engines too, as when a machine dies; returns when all are gone.

        Spared for a moment is Python's resource tracker: it serves nothing, and frees the shared memory of the dead.
        """
        process = self._process  # another thread may be in here too: one starts, and one stops all
        if process is None:
            return
        session = process.pid
        started = time.monotonic()
        while members := _session_members(session):
            waited = time.monotonic() - started
            if waited > _GONE_S:
                raise VllmServerError(f"processes {members} of the vllm on port {self.port} outlive SIGKILL")
            for member in members:
                if waited > _TRACKER_S or not _is_resource_tracker(member):
                    _signal(member, signal.SIGKILL)
            process.poll()
            time.sleep(0.02)
        process.wait()
        self._process = None
        shutil.rmtree(self._scratch, ignore_errors=True)

    def stop(self) -> None:
        """SIGTERM, and `kill()` for what still runs after 15 s; harmless when nothing runs. A start under way fails."""
        self._wanted = False
        process = self._process
        if process is None:
            return
        _signal(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_S
        while (process.poll() is None or _session_members(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.kill()

    def give_way(self, niceness: int = 15) -> None:
        """Lower its priority, so that another server which starts beside it gets the CPU first; 0 takes that back.

        Taking back is root's right; for anybody else the priority stays low.
        """
        with contextlib.suppress(OSError):
            for process in _session_members(self.pid) if self.pid else ():
                for thread in Path(f"/proc/{process}/task").iterdir():
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
        # Where Linux groups processes by session, a priority counts only within its session: the group has one of its own.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/autogroup").write_text(str(niceness))

    def _spawn(self) -> None:
        # A short folder of its own for sockets and temporary files, which a killed server cannot remove.
        self._scratch = tempfile.mkdtemp(prefix="vllm-")
        program = self.folder / "venv" / "bin" / "vllm"
        command = [str(program), "serve", str(self.folder / "model"), "--host", "127.0.0.1", "--port", str(self.port)]
        environment = {**os.environ, **_ENVIRONMENT, "TMPDIR": self._scratch, "VLLM_RPC_BASE_PATH": self._scratch}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *_FLAGS, *self.flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def _wait_ready(self) -> bool:
        """True once ready, False when the process died first."""
        deadline = time.monotonic() + _READY_S
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while self.running:
                if _is_healthy(client, f"{self.url}/health"):
                    return True
                if time.monotonic() > deadline:
                    raise VllmServerError(f"vllm on port {self.port} not ready in {_READY_S:.0f} s:\n{self._log_end()}")
                time.sleep(_POLL_S)
        return False

    def _log_end(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def start_servers(servers: Sequence[VllmServer]) -> None:
    """Starts all of them side by side; when one fails, none is left running and its error is raised."""
    with ThreadPoolExecutor(max_workers=len(servers) or 1) as pool:
        starts = [pool.submit(server.start) for server in servers]
    errors = [error for start in starts if (error := start.exception())]
    if errors:
        stop_servers(servers)
        raise errors[0]


def stop_servers(servers: Sequence[VllmServer]) -> None:
    """Stops all of them side by side."""
    with ThreadPoolExecutor(max_workers=len(servers) or 1) as pool:
        for stop in [pool.submit(server.stop) for server in servers]:
            stop.result()


def free_port() -> int:
    """A loopback port that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _is_healthy(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 200
    except httpx.TransportError:
        return False


def _signal(process: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def _is_resource_tracker(process: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _session_members(session: int) -> list[int]:
    """The processes of a session that still run: those that only wait to be reaped by their parent do not count."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # "pid (name) state parent group session ..."; the name may hold spaces and brackets.
        state, _, _, its_session = stat.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state not in ("Z", "X"):
            members.append(int(entry.name))
    return members
