"""What the workers tell, put where a single process would have it: sessions, prompts, records, failures, log lines."""

import logging
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from ..core.model import Decision, Failure, PinChange, Reason, Session
from ..core.sketch import Masks, Sketch
from ..observe.record import RequestRecord
from ..pins.memory import PinTable
from ..truth.ledger import NO_PROMPT, Ledger, Prompt
from .rows import Cell, Rows
from .voice import OLDER, Named, record_of


class Intake:
    """Each method takes one kind of message; the first value is always the number of the worker that tells."""

    def __init__(
        self,
        *,
        pins: PinTable,
        rows: Rows,
        ledger: Ledger,
        settle: Callable[[RequestRecord], None],
        backend_failed: Callable[[str, Failure], None],
        succeeded: Callable[[str], None],
    ) -> None:
        self._pins = pins
        self._rows = rows
        self._ledger = ledger
        self._settle = settle
        self.failed = lambda worker, name, failure: backend_failed(name, failure)
        self.succeeded = lambda worker, name: succeeded(name)
        self._prompts: dict[int, dict[int, Prompt]] = {}

    def __repr__(self) -> str:
        return f"<Intake, {sum(map(len, self._prompts.values()))} prompts of requests that run>"

    def forget(self, worker: int) -> int:
        """A worker is dead; returns how many of its requests had told their prompt and will not end."""
        return len(self._prompts.pop(worker, {}))

    # Sessions

    def bound(
        self, worker: int, named: Named, backend: str, engine: str | None, size: int, slots: Sequence[int]
    ) -> None:
        """A worker places a session that is new to it; it may be another worker's, which has told of it first."""
        pins, session = self._pins, Session(*named)
        if pins.get(session.key) is None:
            pins.reserve(session, Decision(Reason.RING, backend, engine, PinChange.BIND), size)
        # Before it is taken for known, so that nobody counts too few.
        self._rows.put(slots[0], Cell.SESSIONS, pins.sessions(backend))
        self._rows.put(slots[0], Cell.SIZE, pins.size(backend))
        for slot in slots[1:]:
            self._rows.put(slot, Cell.SESSIONS, pins.engine_sessions(backend, engine))
        self._rows.heard_of(worker, slots, 1, size)

    def unbound(
        self, worker: int, named: Named, backend: str, engine: str | None, size: int, slots: Sequence[int]
    ) -> None:
        """It does not live there after all."""
        self._rows.heard_of(worker, slots, -1, size)
        self._pins.withdraw(Session(*named), Decision(Reason.RING, backend, engine))

    def lives(self, worker: int, named: Named, backend: str, engine: str | None, size: int) -> None:
        """A turn of this session has been served where it lives; `size` is that of the prompt with which it came there."""
        session = Session(*named)
        pin = self._pins.get(session.key)
        if pin is None or (pin.backend, pin.engine) != (backend, engine):
            change = PinChange.BIND if pin is None else PinChange.MOVE
            self._pins.reserve(session, Decision(Reason.PIN_HIT, backend, engine, change), size)
        self._pins.confirm(session, Decision(Reason.PIN_HIT, backend, engine))

    def spilled(self, worker: int, named: Named) -> None:
        """A turn was served elsewhere this once."""
        self._pins.spilled(Session(*named))

    # Requests

    def looked(
        self,
        worker: int,
        number: int,
        named: Named,
        told: tuple[bytes, bytes, bytes, int, int, bool],
        masks: Masks | None,
        family: int,
        came_from: bytes | None,
        older: bool,
    ) -> None:
        """A request has come with this prompt."""
        digests, lengths, kinds, size, billing, text = told
        now = Sketch(array("q", digests), array("H", lengths), kinds, size, billing, text)
        now.masks = masks
        found = self._ledger.compare(Session(*named), now, family, came_from, older=older)
        self._prompts.setdefault(worker, {})[number] = found

    def settled(self, worker: int, number: int, values: tuple[Any, ...]) -> None:
        """A request has ended."""
        if number >= 0:
            prompt = self._prompts.get(worker, {}).pop(number, NO_PROMPT)  # lost with a batch, which is counted
        else:
            prompt = Prompt(older=True) if number == OLDER else NO_PROMPT
        self._settle(record_of(values, prompt))

    @staticmethod
    def log(worker: int, name: str, level: int, text: str) -> None:
        """A line for the log."""
        logging.getLogger(name).log(level, "worker %d: %s", worker, text)
