"""`warmroute lint`: flags in, exit code out."""

import json
import sys
from typing import BinaryIO

import click

from .log import LogError
from .report import as_dict, as_text
from .run import lint

FOUND, UNREADABLE = 1, 2


@click.command("lint", short_help="What keeps the prompts of a log out of the cache?")
@click.argument("file", type=click.File("rb"))
@click.option("--show-text", is_flag=True, help="Show up to 40 characters of the prompts at each example.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON alone.")
def lint_command(file: BinaryIO, show_text: bool, as_json: bool) -> None:
    """Read a log of requests and tell what keeps their prompts out of the cache, and which setting of which client does it.

    FILE (- for standard input) has a request a line, as JSON: its body alone, or an object with "headers", "path" and "body".
    Nothing is sent, no tokenizer is needed. Exit code 0 if nothing was found, 1 if something was, 2 if a line is no request.
    """
    try:
        report = lint(file, show_text=show_text)
    except LogError as error:
        click.echo(f"warmroute: {getattr(file, 'name', '<stdin>')}: {error}", err=True)
        sys.exit(UNREADABLE)
    click.echo(json.dumps(as_dict(report), indent=2) if as_json else as_text(report))
    sys.exit(FOUND if report.findings else 0)
