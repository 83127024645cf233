"""Memory that the supervisor and its workers share: for each process one row of numbers that it alone writes.

A decision of any worker sees what runs in all of them without asking anybody, and there are no locks: each number has one
writer, and readers add up. When a worker has died the supervisor clears its row, and with it all that it had in flight.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

SLOTS: Final = 4096
"""Backends and engines that can have numbers of their own at a time; slot 0 belongs to none."""
_HEAD, _SLOT = 8, 10


class Head(IntEnum):
    """Numbers of a process as a whole."""

    VERSION = 0  # the last state of the backends that this worker has taken over
    GUESTS = 1  # client connections
    WAITING = 2  # requests in the queue


class Cell(IntEnum):
    """Numbers of a backend, or of one of its engines."""

    IN_FLIGHT = 0
    SILENT = 1  # those of them that may be silent for as long as they like
    TRYING = 2  # requests that try a resting backend
    HEARD = 3  # grows whenever the backend was heard
    REQUESTS = 4  # places taken since the start
    BOUND = 5  # of a worker: new sessions told to the supervisor; in `applied`: those that it knows of
    BOUND_SIZE = 6  # the size of their prompts
    SESSIONS = 7  # of the supervisor: live sessions
    DUE = 9  # of a tenant: when its next request is due
    SIZE = 8  # of the supervisor: the size of the prompts with which they came


class Rows:
    """`cells[0]` is the supervisor's row, `cells[n]` that of worker n; `applied[n]` is what was heard from it."""

    def __init__(self, fd: int, workers: int, own: int) -> None:
        """`fd` is of a file made by `shared_file`; `own` is the number of the row that this process writes."""
        size = 8 * (_HEAD + SLOTS * _SLOT)
        self._map = mmap.mmap(fd, (2 * workers + 1) * size)
        self._view = memoryview(self._map)
        rows = [self._view[i * size : (i + 1) * size].cast("q") for i in range(2 * workers + 1)]
        self.cells, self.applied = rows[: workers + 1], [rows[0], *rows[workers + 1 :]]
        self.workers = self.cells[1:]
        self.own = rows[own]
        self.others = [row for row in self.workers if row is not self.own]

    def __repr__(self) -> str:
        return f"<Rows of {len(self.workers)} workers>"

    def sum(self, slot: int, cell: Cell) -> int:
        """This number of a slot, over all workers."""
        at = _HEAD + slot * _SLOT + cell
        return sum([row[at] for row in self.workers])

    def head(self, what: Head) -> int:
        """This number, over all workers."""
        return sum([row[what] for row in self.workers])

    @staticmethod
    def place(slot: int, cell: Cell) -> int:
        """Where a row has this number."""
        return _HEAD + slot * _SLOT + cell

    def add(self, slot: int, cell: Cell, by: int) -> None:
        """Change a number of this process."""
        self.own[_HEAD + slot * _SLOT + cell] += by

    def put(self, slot: int, cell: Cell, value: int) -> None:
        """Set a number of this process."""
        self.own[_HEAD + slot * _SLOT + cell] = value

    def due(self, slot: int) -> int:
        """When the next request of a tenant is due, in microseconds. The one number that all workers write."""
        return self.cells[0][_HEAD + slot * _SLOT + Cell.DUE]

    def set_due(self, slot: int, at: int) -> None:
        """Put that off."""
        self.cells[0][_HEAD + slot * _SLOT + Cell.DUE] = at

    def sessions(self, slot: int) -> int:
        """Live sessions of a slot: those that the supervisor knows, and those that workers have just told it of."""
        return self._known(slot, Cell.SESSIONS, Cell.BOUND)

    def size(self, slot: int) -> int:
        """The size of their prompts, in KiB."""
        return self._known(slot, Cell.SIZE, Cell.BOUND_SIZE)

    def _known(self, slot: int, known: Cell, told: Cell) -> int:
        at = _HEAD + slot * _SLOT
        new = sum([row[at + told] for row in self.workers]) - sum([row[at + told] for row in self.applied[1:]])
        return self.cells[0][at + known] + new

    def heard_of(self, worker: int, slots: Iterable[int], by: int, size: int) -> None:
        """The supervisor has taken a worker's word on a session of this size in these slots."""
        row = self.applied[worker]
        for slot in slots:
            row[_HEAD + slot * _SLOT + Cell.BOUND] += by
            row[_HEAD + slot * _SLOT + Cell.BOUND_SIZE] += by * size

    def of(self, worker: int, slot: int, cell: Cell) -> int:
        """One number of one worker."""
        return self.cells[worker][_HEAD + slot * _SLOT + cell]

    def clear(self, worker: int) -> None:
        """A worker is dead: nothing is in flight there any more."""
        for row in (self.cells[worker], self.applied[worker]):
            row.cast("B")[:] = bytes(row.nbytes)


def shared_file(workers: int) -> int:
    """The descriptor of a file of zeros in memory, or without a name, that processes which inherit it can map."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("warmroute")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, (2 * workers + 1) * 8 * (_HEAD + SLOTS * _SLOT))
    return fd
