"""`warmroute check`: flags in, exit code out."""

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from ..config.values import Seconds
from . import eviction, ranks, store, turns
from .probe import Bounds
from .target import CheckError
from .watch import Judged, Watched, watch

FAILED = 1
_SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
_PROMPT_TOKENS, _RANK_TOKENS = 2000, 600


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of check: makes a report, and shows it."""

    once: Callable[[Callable[[str], None]], Awaitable[Any]]
    text: Callable[[Any], str]
    as_dict: Callable[[Any], Mapping[str, object]]


def _seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A duration, written as in the configuration."""
    try:
        return None if value is None else _SECONDS.validate_python(value)
    except ValidationError as error:
        raise click.BadParameter(error.errors()[0]["msg"].removeprefix("Value error, "), ctx, param) from None


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return f"http://{value}" if value is not None and "://" not in value else value


@click.command("check", short_help="Does the second turn of a chat find the first one cached?")
@click.argument("url", callback=_address)
@click.option(
    "--eviction", "evict", is_flag=True, help="Fill the cache, come back: gone when, back by reload or prefill?"
)
@click.option("--data-parallel", is_flag=True, help="Does X-data-parallel-rank choose the engine?")
@click.option("--store", "other", metavar="URL", callback=_address, help="Do URL and this server share a KV store?")
@click.option(
    "--watch", "every", callback=_seconds, metavar="TIME", help="Again every so often, one line each, until Ctrl-C."
)
@click.option(
    "--prompt-tokens", type=click.IntRange(64), help="Length of prompts.  [default: 2000, or 600 of each engine]"
)
@click.option(
    "--max-tokens", default=1_000_000, show_default=True, type=click.IntRange(1), help="Prompt tokens at most."
)
@click.option("--max-time", default="10m", show_default=True, callback=_seconds, metavar="TIME", help="Time at most.")
@click.option("--admin", help="Admin address of the router at URL.  [default: port 8081 of its host]")
@click.option(
    "--token", envvar="WARMROUTE_ADMIN_TOKEN", metavar="TOKEN", help="Its token; better in WARMROUTE_ADMIN_TOKEN."
)
@click.option("--model", help="Which model to ask.  [default: the first one listed]")
@click.option("--api-key", envvar="VLLM_API_KEY", metavar="KEY", help="The servers' key; better in VLLM_API_KEY.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON alone.")
def check_command(
    url: str,
    evict: bool,
    data_parallel: bool,
    other: str | None,
    every: float | None,
    prompt_tokens: int | None,
    max_tokens: int,
    max_time: float,
    admin: str | None,
    token: str | None,
    model: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Send two turns of a fresh conversation to a vLLM server or a router, and judge by the counters whether the second
    one found the first in the cache. Exit code 0 if it did, else 1.

    \b
        warmroute check URL --eviction         fill one server's cache: when is a conversation gone, how does it come back?
        warmroute check URL --data-parallel    does each engine of a server keep what is sent to it?
        warmroute check URL --store OTHER      does one server get what another has computed?

    These send prompts of their own making to one vLLM server, and say first how much; --eviction pushes the conversations of
    others out of its cache.
    """
    if evict + data_parallel + (other is not None) > 1:
        raise click.UsageError("--eviction, --data-parallel and --store are checks of their own: give one of them")
    if evict and every is not None:
        raise click.UsageError("--eviction empties the cache of others each time: it is not for --watch")

    def asking(tokens: int) -> dict[str, Any]:
        bounds = Bounds(max_tokens, max_time)
        dice = random.Random()  # nosec B311  # of prompts, not of secrets
        length = prompt_tokens or tokens
        return {"model": model, "key": api_key, "prompt_tokens": length, "bounds": bounds, "dice": dice}

    kind = _Kind(
        lambda say: turns.run(url, admin=admin, token=token, model=model, say=say, key=api_key),
        turns.as_text,
        turns.as_dict,
    )
    if evict:
        kind = _Kind(
            lambda say: eviction.run(url, say=say, **asking(_PROMPT_TOKENS)), eviction.as_text, eviction.as_dict
        )
    elif data_parallel:
        kind = _Kind(lambda say: ranks.run(url, say=say, **asking(_RANK_TOKENS)), ranks.as_text, ranks.as_dict)
    elif other is not None:
        second = other
        kind = _Kind(
            lambda say: store.run(url, second, say=say, **asking(_PROMPT_TOKENS)), store.as_text, store.as_dict
        )
    sys.exit(_once(kind, as_json) if every is None else _again(kind, every, as_json))


def _once(kind: _Kind, as_json: bool) -> int:
    say: Callable[[str], None] = (lambda _: None) if as_json else click.echo
    try:
        report = asyncio.run(_made(kind, say))
    except CheckError as error:
        click.echo(f"warmroute: {error}", err=True)
        return FAILED
    except KeyboardInterrupt:
        return 128 + 2
    click.echo(json.dumps(kind.as_dict(report), indent=2) if as_json else kind.text(report))
    return 0 if report.passed else FAILED


async def _made(kind: _Kind, say: Callable[[str], None]) -> Any:
    return await kind.once(say)


def _again(kind: _Kind, every: float, as_json: bool) -> int:
    """Exit code 0 if every check until Ctrl-C passed."""
    watched = Watched()
    tell = partial(_line, as_dict=kind.as_dict if as_json else None)
    try:
        asyncio.run(watch(lambda: kind.once(lambda _: None), every, tell, watched))
    except KeyboardInterrupt:
        if not as_json:
            click.echo(f"{watched.made} checks, {watched.failed} of them failed")
    return FAILED if watched.failed else 0


def _line(found: Judged | CheckError, as_dict: Callable[[Any], Mapping[str, object]] | None) -> None:
    error = str(found) if isinstance(found, CheckError) else None
    passed = not isinstance(found, CheckError) and found.passed
    if as_dict is not None:
        told = {"error": error, "passed": False} if isinstance(found, CheckError) else as_dict(found)
        text = json.dumps({"time": round(time.time(), 3), **told})
    else:
        verdict = found.verdict if not isinstance(found, CheckError) else f"not made: {error}"
        text = f"{time.strftime('%H:%M:%S')}  {'good' if passed else 'BAD '}  {verdict}"
    click.echo(text)
    sys.stdout.flush()
