"""The router as a service of systemd: what it tells over a real socket, and the unit that is shipped."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from warmroute import cli
from warmroute.config.schema import LimitsConfig
from warmroute.notify import Notifier

from ..serving import COMMAND
from .scripted import Scripted, free_port

UNIT = Path(__file__).parents[2] / "config" / "systemd" / "warmroute.service"
ANALYZE = shutil.which("systemd-analyze")


class Systemd:
    """Its end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.settimeout(15)

    def heard(self) -> dict[str, str]:
        """The next message."""
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().split("\n"))

    def heard_but_life(self) -> dict[str, str]:
        """The next message that is no sign of life."""
        for _ in range(1000):
            if (told := self.heard()) != {"WATCHDOG": "1"}:
                return told
        raise AssertionError("nothing but signs of life")

    def waiting(self) -> list[dict[str, str]]:
        """All that has come and was not looked at."""
        found = []
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                found.append(self.heard())
        self._socket.settimeout(15)
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["a path", "an abstract name"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    listens = Systemd(str(tmp_path / "n") if request.param == "a path" else f"@warmroute-{os.getpid()}-{free_port()}")
    yield listens
    listens.close()


@contextmanager
def service(config: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    words = ["serve", "--config", str(config), "--port", "0", "--admin-port", "0"]
    process = subprocess.Popen(
        [*COMMAND, *words],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def write(config: Path, backends: list[Scripted], **sections: object) -> None:
    limits = {"limits": {"pre_drain": "100ms"}}
    config.write_text(
        yaml.safe_dump({"backends": [b.url for b in backends], "log": {"format": "off"}, **limits, **sections})
    )


async def test_a_service_tells_its_life(backends: list[Scripted], systemd: Systemd, tmp_path: Path) -> None:
    config = tmp_path / "warmroute.yaml"
    write(config, backends)
    with service(config, NOTIFY_SOCKET=systemd.address, WATCHDOG_USEC="400000") as process:
        told = await asyncio.to_thread(systemd.heard_but_life)
        assert told["READY"] == "1"
        assert backends[0].name in told["STATUS"]
        for _ in range(3):
            assert await asyncio.to_thread(systemd.heard) == {"WATCHDOG": "1"}
        write(config, backends[:2])
        before = time.monotonic() * 1e6
        process.send_signal(signal.SIGHUP)
        told = await asyncio.to_thread(systemd.heard_but_life)
        assert told["RELOADING"] == "1"
        assert before <= int(told["MONOTONIC_USEC"]) <= time.monotonic() * 1e6
        assert await asyncio.to_thread(systemd.heard_but_life) == {"READY": "1"}
        config.write_text("backends: 5")  # of no use: the one of before stays, and it is ready all the same
        process.send_signal(signal.SIGHUP)
        assert (await asyncio.to_thread(systemd.heard_but_life))["RELOADING"] == "1"
        assert await asyncio.to_thread(systemd.heard_but_life) == {"READY": "1"}
        process.send_signal(signal.SIGTERM)
        told = await asyncio.to_thread(systemd.heard_but_life)
        assert told["STOPPING"] == "1"
        assert "requests are taken for 0.1 s more" in told["STATUS"]
        assert await asyncio.to_thread(process.wait, 15) == 0


async def test_a_service_whose_event_loop_is_stuck_gives_no_sign_of_life(systemd: Systemd) -> None:
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "20000", "WATCHDOG_PID": str(os.getpid())}
    with Notifier(environment, time.monotonic, os.getpid()):
        await asyncio.sleep(0.1)
        assert len(systemd.waiting()) >= 2
        time.sleep(0.1)  # noqa: ASYNC251 - this is what is tested
        assert systemd.waiting() == []
        await asyncio.sleep(0.05)
        assert systemd.waiting()
    await asyncio.sleep(0.05)
    assert len(systemd.waiting()) <= 1


@pytest.mark.parametrize("other", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "soon"}])
async def test_a_watchdog_that_means_another_process_is_not_fed(systemd: Systemd, other: dict[str, str]) -> None:
    environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "20000", **other}
    with Notifier(environment, time.monotonic, os.getpid()):
        await asyncio.sleep(0.05)
    assert systemd.waiting() == []


async def test_without_systemd_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with Notifier({"WATCHDOG_USEC": "1000"}, time.monotonic, os.getpid()) as notifier:
        notifier.ready("serves")
        notifier.stopping()
        await asyncio.sleep(0.01)
    assert caplog.text == ""


async def test_a_socket_that_is_gone_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1000"}
    with Notifier(environment, time.monotonic, os.getpid()) as notifier:
        notifier.ready("serves")
        await asyncio.sleep(0.02)
    assert len(caplog.records) == 1
    assert "systemd cannot be told anything" in caplog.text


# The unit


def settings() -> dict[str, str]:
    lines = (line for line in UNIT.read_text().splitlines() if "=" in line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.skipif(ANALYZE is None, reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    assert ANALYZE is not None
    unit = tmp_path / "warmroute.service"
    unit.write_text(UNIT.read_text().replace("/opt/warmroute/bin/warmroute", sys.executable))
    done = subprocess.run([ANALYZE, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "warmroute" in line]
    assert (done.returncode, ours) == (0, [])
    unit.write_text(unit.read_text() + "[Service]\nUnheardOf=yes\n")
    done = subprocess.run([ANALYZE, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert "Unknown key" in done.stderr


def test_the_unit_gives_the_router_the_time_that_it_takes_to_stop() -> None:
    limits = LimitsConfig()
    assert limits.pre_drain + limits.shutdown + 5 < int(settings()["TimeoutStopSec"])
    assert settings()["Type"] == "notify"
    assert settings()["ExecReload"].endswith("-HUP $MAINPID")


def test_the_units_commands_are_commands_of_the_router() -> None:
    for key in ("ExecStart", "ExecStartPre"):
        program, *words = settings()[key].split()
        assert program.endswith("/bin/warmroute")
        words = words[: words.index("/etc/warmroute/warmroute.yaml")]
        done = CliRunner().invoke(cli.main, [*[word for word in words if word != "--config"], "--help"])
        assert done.exit_code == 0
        assert "--config" not in words or "--config" in done.output
