"""Owns how each agent is set up and run: headless, in a home of its own, knowing no server but the one it is given."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

TURN_S = 110.0
"""Seconds that one turn may take before the agent is killed."""

NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not answer (the discard port): what an agent asks of any host but loopback fails at once."""

NO_NETWORK = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}


class AgentError(Exception):
    """An agent that took too long."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent: its program, the words of a first and of a following turn, and what the router should make of it.

    `environment` and `files` are made from the server's URL and the model's name; the files lie in the agent's home.
    `path` is the one path of the model API that it posts to, `side` the number of requests before the first turn that are
    no part of the conversation.
    """

    name: str
    program: str
    key_source: str
    path: str
    first: tuple[str, ...]
    again: tuple[str, ...]
    environment: Callable[[str, str], Mapping[str, str]]
    files: Callable[[str, str], Mapping[str, str]]
    side: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run of an agent ended: its exit code, and what it wrote to both its streams."""

    code: int | None
    output: str


@dataclass(frozen=True, slots=True)
class Installed:
    """An agent of a folder that install.sh filled, set up in `home` to use the server at `url`; a turn may take `limit` s."""

    agent: Agent
    programs: Path
    home: Path
    url: str
    model: str
    limit: float = TURN_S

    def set_up(self) -> None:
        """Write the files that the agent reads at its start."""
        (self.home / "work").mkdir(parents=True)
        (self.home / "tmp").mkdir()
        for name, text in self.agent.files(self.url, self.model).items():
            file = self.home / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    async def begin(self) -> Ended:
        """The first turn of a conversation. Raises AgentError if it takes too long."""
        return await self._run(self.agent.first)

    async def go_on(self) -> Ended:
        """The next turn of that conversation. Raises AgentError if it takes too long."""
        return await self._run(self.agent.again)

    async def _run(self, words: tuple[str, ...]) -> Ended:
        process = await asyncio.create_subprocess_exec(
            self.programs / self.agent.program,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=self.home / "work",
            env=self._environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self.limit):
                output, _ = await process.communicate()
        except TimeoutError:
            raise AgentError(f"{self.agent.name} was not done after {self.limit:g} s") from None
        finally:
            # The whole group: an agent's helpers do not outlive the turn either.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        return Ended(process.returncode, output.decode(errors="replace"))

    def _environment(self) -> dict[str, str]:
        """Nothing of the user's own: their keys, their settings and their proxies stay out."""
        home = str(self.home)
        return {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "HOME": home,
            "TMPDIR": f"{home}/tmp",
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_DATA_HOME": f"{home}/.local/share",
            "XDG_STATE_HOME": f"{home}/.local/state",
            "XDG_CACHE_HOME": f"{home}/.cache",
            **self.agent.environment(self.url, self.model),
        }


def _claude_environment(url: str, model: str) -> Mapping[str, str]:
    # No proxy here: with one set, Claude Code leaves out the probe of its base URL. It asks nobody else once told so.
    return {
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "dummy",
        "ANTHROPIC_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }


def _codex_files(url: str, model: str) -> Mapping[str, str]:
    provider = {"name": "warmroute", "base_url": f"{url}/v1", "env_key": "MODEL_API_KEY", "wire_api": "responses"}
    # A JSON string is a TOML string too.
    lines = [f"model = {json.dumps(model)}", 'model_provider = "warmroute"', "[model_providers.warmroute]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in provider.items()]
    return {".codex/config.toml": "\n".join(lines) + "\n"}


def _opencode_files(url: str, model: str) -> Mapping[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "warmroute",
        "options": {"baseURL": f"{url}/v1", "apiKey": "dummy"},
        "models": {model: {"name": model}},
    }
    settings = {"model": f"warmroute/{model}", "provider": {"warmroute": provider}}
    return {".config/opencode/opencode.json": json.dumps(settings)}


CLAUDE_CODE = Agent(
    name="claude-code",
    program="claude",
    key_source="claude-code",
    path="/v1/messages",
    first=("-p", "Say hello"),
    again=("-p", "And again", "-c"),
    environment=_claude_environment,
    files=lambda url, model: {},
)

CODEX = Agent(
    name="codex",
    program="codex",
    key_source="codex",
    path="/v1/responses",
    first=("exec", "--skip-git-repo-check", "Say hello"),
    again=("exec", "--skip-git-repo-check", "resume", "--last", "And again"),
    environment=lambda url, model: {"MODEL_API_KEY": "dummy", **NO_NETWORK},
    files=_codex_files,
)

OPENCODE = Agent(
    name="opencode",
    program="opencode",
    key_source="x-session-affinity",
    path="/v1/chat/completions",
    first=("run", "Say hello"),
    again=("run", "-c", "And again"),
    environment=lambda url, model: NO_NETWORK,
    files=_opencode_files,
    side=1,
)

AGENTS = (CLAUDE_CODE, CODEX, OPENCODE)
