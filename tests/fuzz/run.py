"""Runs targets: so many cases each, in batches, and the kept ones first."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from hypothesis import HealthCheck, Phase, given, seed, settings

from . import admin, guard, keys, relay
from . import settings as configuration
from .pieces import Case, Dice, cases

CORPUS = Path(__file__).parent / "corpus"
_BATCH = 2000
"""Cases after which hypothesis begins anew: what it remembers of them would grow without end."""


class Target(Protocol):
    """Something that reads bytes: `build` makes a case, `check` raises what it should not. `share` is its part of all."""

    name: str
    share: float

    def build(self, dice: Dice) -> Case: ...
    def check(self, case: Case) -> None: ...
    def close(self) -> None: ...


TARGETS: dict[str, Callable[[], Target]] = {
    made.name: made for made in (guard.Target, keys.Target, relay.Target, configuration.Target, admin.Target)
}


def kept(name: str) -> Iterator[tuple[str, Case]]:
    """The corpus of a target: why a case is in it, and the case."""
    for entry in json.loads((CORPUS / f"{name}.json").read_text(encoding="utf-8")):
        yield entry["why"], tuple(piece.encode("latin-1") for piece in entry["case"])


def as_entry(case: Sequence[bytes]) -> str:
    """A case as the corpus holds it."""
    return json.dumps({"why": "", "case": [piece.decode("latin-1") for piece in case]})


def fuzz(target: Target, count: int, first: int, say: Callable[[str], None] = lambda _: None) -> int:
    """Try so many cases, from seed `first` on; returns how many were tried. Raises what a case raised, with the case told."""
    tried, number, begun = 0, first, time.monotonic()
    while tried < count:
        done = _batch(target, min(_BATCH, count - tried), number)
        tried, number = tried + done, number + 1
        if number % 20 == 0:
            say(f"{target.name}: {tried} cases, {tried / (time.monotonic() - begun):.0f} a second")
    return tried


def _batch(target: Target, count: int, number: int) -> int:
    tried = 0

    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(cases(target.build))
    def one(case: Case) -> None:
        nonlocal tried
        tried += 1
        try:
            target.check(case)
        except BaseException as error:
            error.add_note(f"{target.name}, seed {number}: {as_entry(case)}")
            raise

    one()
    return tried
