"""Watches a file that lists backends, whether it is replaced (as a mounted ConfigMap is) or edited in place."""

import asyncio
from pathlib import Path

from .entries import backends
from .source import Read, Source

_LIMIT = 1 << 20
"""Bytes of a file that are read at most."""


class FileWatch:
    """Reads the file every `interval` seconds. What has changed is taken once two looks find the same: it is written whole."""

    def __init__(self, source: Source, path: Path, interval: float, read: Read) -> None:
        self._source = source
        self._path = path
        self._interval = interval
        self._read = read
        self._seen: bytes | str | None = None
        self._taken: bytes | str | None = None

    def __repr__(self) -> str:
        return f"<FileWatch {self._path}, {self._source!r}>"

    async def run(self) -> None:
        """Look for ever; ends by cancellation."""
        while True:
            self.look(await asyncio.to_thread(self._content))
            await asyncio.sleep(self._interval)

    def look(self, found: bytes | str) -> None:
        """Take what the file holds now, or why it cannot be read."""
        settled, self._seen = found == self._seen or self._seen is None, found
        if not settled or found == self._taken:
            return
        self._taken = found
        if isinstance(found, str):
            self._source.failed(found)
            return
        try:
            self._source.found(backends(found, self._read))
        except ValueError as error:
            self._source.failed(f"{self._path}: {error}")

    def _content(self) -> bytes | str:
        try:
            with self._path.open("rb") as file:
                content = file.read(_LIMIT + 1)
        except OSError as error:
            return f"{self._path}: {error.strerror}"
        return content if len(content) <= _LIMIT else f"{self._path}: larger than {_LIMIT >> 20} MiB"
