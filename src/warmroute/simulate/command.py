"""`warmroute simulate`: flags in, a table out."""

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import Progress

from ..config import Config, ConfigError, load
from ..config.values import Seconds
from . import plot
from .events import Event, Kind
from .policies import Policy
from .profiles import Profile, make
from .report import as_dict, as_table, heading
from .result import Result
from .run import Setting, ceiling, known, simulate
from .timing import H200, Timing
from .trace import BLOCK_SIZE, TraceError, read_trace
from .workload import Workload

FAILED, USAGE = 1, 2
_SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
_NARROWEST = 100
"""Columns of a table that is cut nowhere."""
ALL = "all"


def _time(text: str) -> float:
    try:
        return _SECONDS.validate_python(text)
    except ValidationError as error:
        raise click.BadParameter(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _times(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[float]:
    return [_time(value) for value in values]


def _failures(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[tuple[float, float | None]]:
    parts = (value.partition(":") for value in values)
    return [(_time(at), _time(lasts) if colon else None) for at, colon, lasts in parts]


_TRACE = click.Path(exists=True, dir_okay=False, allow_dash=True)


@click.command("simulate", short_help="What would each way of routing make of a workload?")
@click.option("--trace", type=_TRACE, help="Requests in Mooncake's format, a JSON object a line (-: stdin).")
@click.option("--profile", type=click.Choice([p.value for p in Profile]), help="Made-up requests instead.")
@click.option("--sessions", type=click.IntRange(1, 100_000), help="How many sessions a profile has.")
@click.option("--seed", default=0, show_default=True, help="Another seed, another workload of the same profile.")
@click.option("--backends", default=4, show_default=True, type=click.IntRange(1, 256), help="Simulated servers.")
@click.option("--blocks", default=2000, show_default=True, type=click.IntRange(1), help="Blocks of each one's cache.")
@click.option("--block-size", type=click.IntRange(1), help="Tokens in a block.  [default: 512, or the profile's]")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    default=[ALL],
    show_default=True,
    type=click.Choice([ALL, *(p.value for p in Policy)]),
    help="How requests are placed.",
)
@click.option("--config", "file", type=click.Path(path_type=Path, dir_okay=False), help="The router's configuration.")
@click.option("--in-flight", type=click.IntRange(1), help="Requests with which a backend is full (queue.in_flight).")
@click.option("--scale-out", multiple=True, callback=_times, metavar="TIME", help="Then one backend more.")
@click.option("--scale-in", multiple=True, callback=_times, metavar="TIME", help="Then the last one is drained.")
@click.option(
    "--fail", multiple=True, callback=_failures, metavar="TIME[:TIME]", help="Then the first one dies, so long."
)
@click.option("--prefill-tokens-per-s", type=click.FloatRange(1), help="Speed of prompts.  [default: an H200 with 8B]")
@click.option(
    "--tokens-per-s", default=40.0, show_default=True, type=click.FloatRange(0.1), help="Speed of each answer."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON alone.")
@click.option(
    "--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it: FILE.png or FILE.svg."
)
def simulate_command(
    trace: str | None,
    profile: str | None,
    sessions: int | None,
    seed: int,
    backends: int,
    blocks: int,
    block_size: int | None,
    policies: tuple[str, ...],
    picture: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Replay a workload on simulated prefix caches and compare ways of placing it; nothing is sent, no time is waited for.

    \b
        warmroute simulate --profile chat
        warmroute simulate --trace conversation_trace.jsonl --backends 8 --fail 20m:60s --plot out.svg
    """
    if (trace is None) == (profile is None):
        raise click.UsageError("give one of --trace FILE and --profile NAME")
    if trace is not None and sessions is not None:
        raise click.UsageError("--sessions is for --profile; a trace has the sessions that it has")
    try:
        if picture is not None:
            plot.check(picture)
        config = _config(options["file"], options["in_flight"], backends)
        workload = known(_workload(trace, profile, sessions, seed, block_size), config)
    except (plot.PlotError, ConfigError, TraceError) as error:
        _fail(str(error), USAGE)
    if workload.largest > blocks:
        _fail(
            f"the largest request takes {workload.largest} blocks with its answer; give --blocks at least that", USAGE
        )
    setting = Setting(backends, blocks, config, _timing(options), _events(options, backends))
    chosen = [policy for policy in Policy if ALL in policies or policy.value in policies]
    with _set_aside(), _progress(len(workload.requests), chosen) as told:
        pooled = ceiling(workload, backends * blocks)
        results: dict[Policy, Result] = {}
        for policy in chosen:
            pins = results.get(Policy.PINS)
            # Where no backend is ever full nothing spills.
            same = policy is Policy.PINS_SPILL and pins is not None and pins.most < config.queue.in_flight
            results[policy] = pins if same and pins is not None else simulate(workload, setting, policy, told(policy))
    if as_json:
        click.echo(json.dumps(as_dict(workload, setting, pooled, results), indent=2))
    else:
        click.echo(heading(workload, setting, pooled))
        console = Console(highlight=False)
        console.width = max(console.width, _NARROWEST)
        console.print(as_table(pooled, results))
    if picture is not None:
        try:
            plot.plot(picture, workload, pooled, results)
        except plot.PlotError as error:
            _fail(str(error), FAILED)


def _fail(message: str, code: int) -> NoReturn:
    click.echo(f"warmroute: {message}", err=True)
    sys.exit(code)


def _config(file: Path | None, in_flight: int | None, backends: int) -> Config:
    """The router's configuration, but for its backends, which are simulated."""
    names = [f"http://backend-{number}:8000" for number in range(1, backends + 1)]
    return load(file, flags={"backends": names, "queue": {"in_flight": in_flight}})


def _workload(
    trace: str | None, profile: str | None, sessions: int | None, seed: int, block_size: int | None
) -> Workload:
    if profile is not None:
        return make(Profile(profile), seed=seed, sessions=sessions, block_size=block_size)
    assert trace is not None
    name = "standard input" if trace == "-" else Path(trace).name
    try:
        with click.open_file(trace, "rb") as file:
            return read_trace(file, title=name, block_size=block_size or BLOCK_SIZE)
    except TraceError as error:
        raise TraceError(f"{name}: {error}") from None


def _timing(options: dict[str, Any]) -> Timing:
    rate, answer = options["prefill_tokens_per_s"], 1 / options["tokens_per_s"]
    if rate is None:
        return Timing(answer=answer)
    return Timing(H200.first, 1 / rate, pair=0.0, cached=0.0, answer=answer)


def _events(options: dict[str, Any], backends: int) -> Sequence[Event]:
    if len(options["scale_in"]) >= backends + len(options["scale_out"]):
        raise click.UsageError("so many --scale-in leave no backend")
    return [
        *(Event(Kind.SCALE_OUT, at) for at in options["scale_out"]),
        *(Event(Kind.SCALE_IN, at) for at in options["scale_in"]),
        *(Event(Kind.FAIL, at, lasts) for at, lasts in options["fail"]),
    ]


@contextmanager
def _set_aside() -> Iterator[None]:
    """The workload lives until the end: the garbage collector need not look through it, which takes a fifth of the time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def _progress(requests: int, policies: Sequence[Policy]) -> Iterator[Callable[[Policy], Callable[[int], None]]]:
    """A bar a policy while it runs, on standard error and on a terminal only."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bars = {policy: progress.add_task(policy.value, total=requests) for policy in policies}
        yield lambda policy: lambda done: progress.update(bars[policy], completed=done)
