"""The command as people run it: start, signals, errors that are one line, the commands that ask a running router."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from ..serving import COMMAND, serving, until_ready
from .scripted import RawClient, Scripted, Talk, free_port, role, token


async def run(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **(env or {})},
    )


async def test_sigterm_lets_streams_end_and_tells_readiness() -> None:
    go_on = asyncio.Event()

    async def long(talk: Talk) -> None:
        talk.stream_head()
        talk.event(role())
        talk.event(token("one"))
        await go_on.wait()
        talk.event(b"[DONE]")
        talk.end()

    async with Scripted(script=long) as backend:
        with serving(backend.url) as router:
            await until_ready(router.admin)
            async with await RawClient.connect(router.data) as client:
                client.post({"model": "m", "stream": True})
                await client.head()
                router.process.send_signal(signal.SIGTERM)
                await asyncio.sleep(0.5)
                assert router.process.poll() is None
                go_on.set()
                body = b""
                while part := await client.chunk():
                    body += part
                assert body.endswith(b"[DONE]\n\n")
            assert await asyncio.to_thread(router.process.wait, 30) == 0
            assert "Traceback" not in (router.process.stderr.read() if router.process.stderr else "")


async def test_status_sessions_drain_and_their_errors() -> None:
    async with Scripted() as backend:
        with serving(backend.url) as router:
            await until_ready(router.admin)
            async with await RawClient.connect(router.data) as client:
                await client.chat("secret-id")
            status = await run("status", "--admin", router.admin)
            assert status.returncode == 0
            assert f"{backend.name}  up" in status.stdout
            assert json.loads((await run("status", "--json", "--admin", router.admin)).stdout)["fleet"]["sessions"] == 1
            sessions = await run("sessions", "--admin", router.admin)
            assert backend.name in sessions.stdout
            assert "secret-id" not in sessions.stdout
            assert "draining, with 1 sessions" in (await run("drain", backend.name, "--admin", router.admin)).stdout
            assert f"{backend.name} is up" in (await run("undrain", backend.name, "--admin", router.admin)).stdout
            unknown = await run("drain", "nobody", "--admin", router.admin)
            assert (unknown.returncode, unknown.stdout) == (1, "")
            assert backend.name in unknown.stderr
    nobody = await run("status", "--admin", f"http://127.0.0.1:{free_port()}")
    assert (nobody.returncode, nobody.stderr.count("\n")) == (1, 1)
    assert "--admin" in nobody.stderr


async def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = await run("serve", "http://127.0.0.1:9", "--port", str(taken.getsockname()[1]), "--admin-port", "0")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "cannot listen on 127.0.0.1:" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["serve"], "no backends"),
        (["serve", "ftp://x"], "write it like http://127.0.0.1:8000"),
        (["serve", "http://a:1", "http://a:1"], "two backends are named 'a:1'"),
        (["serve", "http://a:1", "--config", "/nowhere.yaml"], "/nowhere.yaml: No such file"),
    ],
)
async def test_wrong_use_is_exit_code_2_and_says_what_to_do(words: list[str], said: str) -> None:
    result = await run(*words)
    assert result.returncode == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


async def test_config_check_and_show(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text("backends: [http://a:1]\naffinity:\n  idle_expiry: 10m\n")
    assert (await run("config", "check", str(good))).returncode == 0
    shown = await run("config", "show", "--config", str(good), env={"WARMROUTE_LISTEN__PORT": "9999"})
    values = json.loads(shown.stdout)
    assert (values["affinity"]["idle_expiry"], values["listen"]["port"]) == (600.0, 9999)
    bad = tmp_path / "bad.yaml"
    bad.write_text("backends: [http://a:1]\naffinity:\n  idle_expirey: 10m\n")
    result = await run("config", "check", str(bad))
    assert (result.returncode, result.stderr) == (
        2,
        f"warmroute: {bad}:3: unknown key 'affinity.idle_expirey'; did you mean 'idle_expiry'?\n",
    )


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "backends:\n", "health: {rise: 1}\n"])
async def test_a_file_without_backends_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "none.yaml"
    file.write_text(text)
    result = await run("config", "check", str(file))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(f"warmroute: {file}:")
    assert "no backends: list the URLs" in result.stderr


async def test_an_address_that_is_not_the_admin_listeners_is_told_in_one_line() -> None:
    async with Scripted() as backend:
        with serving(backend.url) as router:
            await until_ready(router.admin)
            short = await run("status", "--admin", router.admin.removeprefix("http://"))
            assert (short.returncode, short.stderr) == (0, "")
            said = f"what answers at {router.data} is not warmroute's admin listener (by default on port 8081)"
            for address, words in ((router.data, said), (backend.url, "is --admin the admin address of a router")):
                result = await run("status", "--admin", address)
                assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
                assert words in result.stderr


async def test_check_tells_a_server_without_a_cache_from_one_that_cannot_be_asked() -> None:
    async with Scripted() as backend:
        started = time.monotonic()
        result = await run("check", backend.url)
        assert result.returncode == 1
        assert "nothing to judge by" in result.stdout
        assert time.monotonic() - started < 30
    gone = await run("check", f"http://127.0.0.1:{free_port()}")
    assert (gone.returncode, gone.stderr.count("\n")) == (1, 1)
