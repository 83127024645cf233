"""Time and memory of small pieces of code: CPU time, best of some batches."""

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; a ratio has no unit."""

    what: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Scale:
    """How long and how large: seconds of one batch, batches of which the best counts, keys of the ring's balance, and
    pins of the large table."""

    batch: float = 0.05
    batches: int = 7
    keys: int = 60_000
    pins: int = 1_000_000


QUICK = Scale(batch=0.001, batches=2, keys=6_000, pins=20_000)


def seconds(work: Callable[[], object], scale: Scale, clock: Callable[[], float] = time.process_time) -> float:
    """CPU seconds of one call, its own overhead of about 0.03 us included.

    A batch calls it as often as fills the scale's time. What disturbs a batch only ever adds to it, so the best one
    counts. The garbage collector rests meanwhile.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        calls, spent = 1, _batch(work, 1, clock)
        while spent < scale.batch:
            calls *= 2 if spent <= 0 else min(10, max(2, round(scale.batch / spent) + 1))
            spent = _batch(work, calls, clock)
        return min([spent, *(_batch(work, calls, clock) for _ in range(scale.batches - 1))]) / calls
    finally:
        if collecting:
            gc.enable()


def _batch(work: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in repeat(None, calls):
        work()
    return clock() - start


def micros(what: str, work: Callable[[], object], scale: Scale) -> Row:
    return Row(what, seconds(work, scale) * 1e6, "us")


def millis(what: str, work: Callable[[], object], scale: Scale) -> Row:
    return Row(what, seconds(work, scale) * 1e3, "ms")


def bytes_made(work: Callable[[], object]) -> int:
    """Bytes that a call allocated and that are still in use after it, while what it returned is held."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = work()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        del kept
        return after - before
    finally:
        tracemalloc.stop()
