"""Writes to a stream from a thread of its own, so that a reader who is stuck never stops the router."""

import queue
import threading
from typing import TextIO

_PENDING = 1 << 20
"""Characters that may wait for the stream; what comes beyond is dropped and counted."""


class BackgroundWriter:
    """Looks like a text stream to `logging` and to the access log; `dropped` counts the lines that were lost."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._taken = 0
        self._written = 0
        self.dropped = 0
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<BackgroundWriter {self._taken - self._written} waiting, {self.dropped} dropped>"

    def write(self, text: str) -> int:
        if self._taken - self._written + len(text) > _PENDING:
            self.dropped += text.count("\n")
        else:
            self._taken += len(text)
            self._texts.put(text)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: the thread writes as fast as the stream takes it."""

    def close(self, timeout: float = 1.0) -> None:
        """Write what is left, for at most so many seconds."""
        self._texts.put(None)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (text := self._texts.get()) is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more, or the stream was closed
                self.dropped += text.count("\n")
            self._written += len(text)
