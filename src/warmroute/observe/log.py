"""The access log: one line a request, gathered and written a few times a second."""

import asyncio
import time
from collections.abc import Callable
from typing import TextIO

import msgspec

from .record import RequestRecord
from .writer import BackgroundWriter

_FLUSH_AFTER = 0.2
"""Seconds that a line may wait, so that a busy router writes many at once."""
_TOGETHER = 32
"""Records that are rendered at once, for which the processor reads the code once; others wait no longer than for a request."""


_encode = msgspec.json.Encoder().encode


def as_json(record: RequestRecord) -> str:
    return _encode(record.line()).decode()


def as_text(record: RequestRecord) -> str:
    """One line for people at a terminal."""
    clock = time.strftime("%H:%M:%S", time.localtime(record.time))
    usage = record.usage
    tokens = "" if usage.prompt is None else f" prompt {usage.prompt}"
    if usage.cached is not None:
        tokens += f" ({usage.cached} cached)"
    if usage.completion is not None:
        tokens += f" answer {usage.completion}"
    first = "" if record.first_byte_s is None else f" first byte {record.first_byte_s * 1e3:.0f} ms"
    engine = "" if record.engine is None else f"/{record.engine}"
    ends = f" {record.error}" if record.error else ""
    ends += " client left" if record.aborted else ""
    ends += f" broke off: {record.resumed}" if record.resumed else ""
    tried = f" attempts {record.attempts} ({'; '.join(record.reasons())})" if record.failures else ""
    return (
        f"{clock} {record.status} {record.path} -> {record.backend or '-'}{engine} {record.decision}"
        f" {record.key_source or 'none'} {record.session or '-'}{tokens}{first} {record.duration_s * 1e3:.0f} ms{tried}{ends}"
    )


class AccessLog:
    """Writes records to a stream as `render` shows them; `close` writes what is left."""

    def __init__(self, stream: TextIO | BackgroundWriter, render: Callable[[RequestRecord], str]) -> None:
        self._stream = stream
        self._render = render
        self._records: list[RequestRecord] = []
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None

    def write(self, record: RequestRecord) -> None:
        self._records.append(record)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_AFTER, self.flush)
        if len(self._records) == _TOGETHER:
            self._render_all()

    def _render_all(self) -> None:
        records, self._records = self._records, []
        self._lines += map(self._render, records)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._render_all()
        if self._lines:
            lines, self._lines = self._lines, []
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()

    close = flush
