"""The command line: flags in, exit code out; no logic."""

import io
import json
import logging
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import click
import uvloop

from . import __version__, control, demo, joining, saved, telling
from .check.command import check_command
from .config import Config, ConfigError, load, read_certificates, unverified
from .lint.command import lint_command
from .listeners import StartError
from .observe.writer import BackgroundWriter
from .process import serve
from .sim import backend as sim_backend
from .simulate.command import simulate_command
from .tuning import quiet_libraries

RUNTIME_ERROR, USAGE_ERROR = 1, 2


def _run(work: Callable[[BackgroundWriter], Coroutine[Any, Any, Any]], level: int = logging.INFO) -> Any:
    """Run to the end on uvloop, with standard error written by a thread. A start that fails is one line and exit code 1."""
    out = BackgroundWriter(sys.stderr)
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=out)
    quiet_libraries()
    try:
        return uvloop.run(work(out))
    except StartError as error:
        _fail(str(error), RUNTIME_ERROR)
    finally:
        out.close()


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"warmroute: {message}", err=True)
    sys.exit(code)


def _config(**kwargs: Any) -> Config:
    try:
        return load(**kwargs)
    except ConfigError as error:
        _fail(str(error), USAGE_ERROR)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="warmroute")
def main() -> None:
    """A router for several vLLM servers: every conversation stays where its prefix cache is warm.

    \b
        warmroute demo                             see it work; no GPU, nothing to set up
        warmroute serve http://10.0.0.1:8000 ...   route to your servers
        warmroute check http://127.0.0.1:8080      does the second turn of a chat find the first one cached?

    The other commands ask or steer a running router by its admin address. Exit codes: 0, 1 for what went wrong at run time,
    2 for wrong use.
    """


@main.command("serve")
@click.argument("urls", nargs=-1, metavar="URL...")
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="YAML file; flags override it.")
@click.option("--host", help="Address of the model API.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the model API.  [default: 8080]")
@click.option("--admin-host", help="Address of dashboard, metrics and control.  [default: 127.0.0.1]")
@click.option("--admin-port", type=click.IntRange(0, 65535), help="Port of the same.  [default: 8081]")
@click.option("--redis", metavar="URL", help="Redis or Valkey through which several routers share their sessions.")
@click.option("--workers", type=click.IntRange(1, 64), metavar="N", help="Processes on the port.  [default: 1]")
@click.option("--log-format", type=click.Choice(["auto", "json", "text", "off"]), help="Access log.  [default: auto]")
def serve_command(
    urls: tuple[str, ...],
    file: Path | None,
    host: str | None,
    port: int | None,
    admin_host: str | None,
    admin_port: int | None,
    redis: str | None,
    workers: int | None,
    log_format: str | None,
) -> None:
    """Route to the vLLM servers at these URLs. No file is needed:

    \b
        warmroute serve http://10.0.0.1:8000 http://10.0.0.2:8000
    """
    flags = {
        "backends": list(urls) or None,
        "listen": {
            "host": host,
            "port": port,
            "admin_host": admin_host,
            "admin_port": admin_port,
            "workers": workers,
        },
        "store": {"redis": redis},
        "log": {"format": log_format},
    }
    config = _config(file=file, flags=flags)
    _run(lambda out: serve(config, out, partial(load, file, flags=flags)))


@main.group("config")
def config_group() -> None:
    """Look at configurations without starting anything."""


@config_group.command("check", short_help="Check a file.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def config_check(file: Path) -> None:
    """Check a file; exit code 2 and the faults with their lines if it cannot be used."""
    config = _config(file=file)
    try:
        read_certificates(config)
    except ConfigError as error:
        _fail(str(error), USAGE_ERROR)
    for name in unverified(config):
        click.echo(
            f"{file}: whoever answers in the place of {name} is believed, since upstream.verify is off", err=True
        )
    more = f", more by {' and '.join(config.discovery.sources)}" if config.discovery.sources else ""
    click.echo(f"{file}: good, {len(config.backends)} backends{more}")


@config_group.command("show")
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="YAML file.")
@click.argument("urls", nargs=-1, metavar="[URL...]")
def config_show(file: Path | None, urls: tuple[str, ...]) -> None:
    """Print the configuration in force, every default included, as JSON."""
    config = _config(file=file, flags={"backends": list(urls) or None})
    click.echo(json.dumps(config.model_dump(mode="json"), indent=2))


def _show(found: Callable[[], dict[str, Any]], text: Callable[[dict[str, Any]], str], as_json: bool) -> dict[str, Any]:
    try:
        answer = found()
    except control.ControlError as error:
        _fail(str(error), RUNTIME_ERROR)
    try:
        shown = json.dumps(answer, indent=2) if as_json else text(answer)
    except KeyError as missing:
        _fail(f"the answer has no {missing}: is --admin the admin address of a router of this version?", RUNTIME_ERROR)
    click.echo(shown)
    return answer


@main.command("status")
@control.admin_options
def status_command(admin: control.Admin, as_json: bool) -> None:
    """How a running router and its backends are doing."""
    _show(lambda: control.call(admin, "/api/state"), telling.status_text, as_json)


@main.command("sessions")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="How many to show.")
@control.admin_options
def sessions_command(limit: int, admin: control.Admin, as_json: bool) -> None:
    """The conversations used last and where they live. Ids are shown as digests."""
    _show(lambda: control.call(admin, f"/api/sessions?limit={limit}"), telling.sessions_text, as_json)


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A duration, written as in the configuration."""
    try:
        return None if value is None else control.seconds(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@main.command("drain", short_help="Give a backend no new sessions.")
@click.argument("name")
@click.option(
    "--deadline",
    callback=_seconds,
    metavar="TIME",
    help="After it the sessions that are left move.  [default: drain.deadline of the configuration, 10m]",
)
@click.option("--wait", is_flag=True, help="Wait until no session and no request is left.")
@control.admin_options
def drain_command(name: str, deadline: float | None, wait: bool, admin: control.Admin, as_json: bool) -> None:
    """Give a backend no new sessions; those it has stay until the deadline. Undo with `undrain`."""

    def say(text: str) -> None:
        if not as_json:
            click.echo(text)

    def drained() -> dict[str, Any]:
        answer = control.drain(admin, name, True, deadline)
        return control.wait_until_empty(admin, name, say) if wait else answer

    _show(drained, _drained, as_json)


@main.command("undrain")
@click.argument("name")
@control.admin_options
def undrain_command(name: str, admin: control.Admin, as_json: bool) -> None:
    """Give a backend new sessions again."""
    _show(lambda: control.drain(admin, name, False), _drained, as_json)


@main.command("add")
@click.argument("url")
@click.option("--name", help="How logs, metrics and the ring know it.  [default: host:port]")
@click.option("--weight", type=click.FloatRange(0.1, 10), help="Its share of new conversations.  [default: 1]")
@control.admin_options
def add_command(url: str, name: str | None, weight: float | None, admin: control.Admin, as_json: bool) -> None:
    """Let a running router use one backend more, until it is removed or the router ends. No conversation moves to it."""
    _show(lambda: joining.add(admin, url, name, weight), joining.added_text, as_json)


@main.command("remove")
@click.argument("name")
@click.option("--now", is_flag=True, help="Do not drain it: its conversations move at their next turn.")
@control.admin_options
def remove_command(name: str, now: bool, admin: control.Admin, as_json: bool) -> None:
    """Drain a backend of a running router, then forget it, until it is added again or the router is started anew."""
    _show(lambda: joining.remove(admin, name, now), joining.removed_text, as_json)


@main.command("reload")
@control.admin_options
def reload_command(admin: control.Admin, as_json: bool) -> None:
    """Let a running router read its configuration again. Exit code 1 if it cannot; then nothing has changed."""
    _show(lambda: control.call(admin, "/api/reload", post=True), control.reload_text, as_json)


def _json_body(ctx: click.Context, param: click.Parameter, value: str | None) -> bytes | None:
    try:
        return None if value is None else control.json_body(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@main.command("broadcast")
@click.argument("path")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="One of some.  [default: every backend]")
@click.option("--body", callback=_json_body, metavar="JSON|@FILE", help="What to send; @- is standard input.")
@click.option(
    "--deadline",
    callback=_seconds,
    default="60s",
    show_default=True,
    metavar="TIME",
    help="How long a backend may take to answer.",
)
@click.option("--api-key", envvar="VLLM_API_KEY", metavar="KEY", help="The servers' key; better in VLLM_API_KEY.")
@control.admin_options
def broadcast_command(
    path: str,
    backends: tuple[str, ...],
    body: bytes | None,
    deadline: float,
    api_key: str | None,
    admin: control.Admin,
    as_json: bool,
) -> None:
    """Do one thing on all backends: POST to a path of vLLM there. Exit code 1 if one of them did not do it.

    \b
        warmroute broadcast v1/load_lora_adapter --body '{"lora_name": "x", "lora_path": "/loras/x"}'
        warmroute broadcast 'sleep?level=1' --backend 10.0.0.1:8000
    """
    told = _show(
        lambda: control.broadcast(admin, path, backends, body, deadline, api_key), control.broadcast_text, as_json
    )
    sys.exit(0 if told["ok"] else RUNTIME_ERROR)


@main.command("explain", short_help="Where would a saved request go, and why?")
@click.argument("file", type=click.File("rb"))
@click.option("--path", help="Path of the request, where the file does not tell it.")
@click.option("--header", "-H", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header more, or instead.")
@control.admin_options
def explain_command(
    file: BinaryIO, path: str | None, headers: tuple[str, ...], admin: control.Admin, as_json: bool
) -> None:
    """Tell whose conversation a saved request belongs to and where it would go; nothing is sent.

    FILE (- for standard input) holds raw HTTP, a JSON object with "headers" and "body", or the JSON body alone.
    """
    try:
        request = saved.read(file.read(), path=path, headers=headers)
    except saved.SavedError as error:
        _fail(str(error), USAGE_ERROR)
    _show(lambda: control.explain(admin, request), control.explain_text, as_json)


main.add_command(check_command)
main.add_command(lint_command)
main.add_command(simulate_command)


def _drained(answer: dict[str, Any]) -> str:
    return f"{answer['backend']} is {answer['state']}, with {answer['sessions']} sessions"


@main.command("sim-backend", short_help="Run one simulated vLLM server.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port to listen on.")
@click.option("--model", default="sim", show_default=True, help="Name under which the model is offered.")
@click.option("--block-size", default=16, show_default=True, help="Tokens in a block of the prefix cache.")
@click.option("--num-blocks", default=2000, show_default=True, help="Blocks of each engine's cache.")
@click.option(
    "--host-blocks", default=0, show_default=True, help="Blocks that each engine has in host memory behind it."
)
@click.option("--data-parallel-size", default=1, show_default=True, help="Engines, each with a cache of its own.")
@click.option("--prefill-tokens-per-s", default=8000.0, show_default=True, help="Speed of computing a prompt.")
@click.option("--tokens-per-s", default=40.0, show_default=True, help="Speed of each answer.")
@click.option("--max-model-len", type=int, help="Longest prompt and answer.  [default: 8192, or what the cache holds]")
def sim_backend_command(host: str, port: int, **options: Any) -> None:
    """Run one simulated vLLM server: a real prefix cache with eviction, vLLM's API and metrics, made-up answers."""
    try:
        chosen = sim_backend.SimOptions(**options)
    except ValueError as error:
        _fail(str(error), USAGE_ERROR)
    try:
        _run(lambda out: sim_backend.run(chosen, host, port))
    except OSError as error:
        _fail(error.strerror or str(error), RUNTIME_ERROR)


@main.command("demo", short_help="Simulated servers, router, chat and dashboard.")
@click.option(
    "--duration", type=click.FloatRange(min=1), help="Seconds until it ends by itself.  [default: until Ctrl-C]"
)
@click.option("--users", default=24, show_default=True, type=click.IntRange(1, 1000), help="People chatting at once.")
@click.option("--backends", default=3, show_default=True, type=click.IntRange(1, 32), help="Simulated vLLM servers.")
def demo_command(duration: float | None, users: int, backends: int) -> None:
    """Simulated vLLM servers, the router and a lively chat, with the dashboard to watch; no GPU, nothing to set up."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # each line at once, into a pipe too
    try:
        code = _run(lambda out: demo.run(duration, users=users, backends=backends), logging.WARNING)
    except KeyboardInterrupt:
        code = 0
    sys.exit(code)
