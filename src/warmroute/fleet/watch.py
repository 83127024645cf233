"""One task a backend, begun when the backend comes and cancelled when it goes."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from .pace import Pace
from .registry import BackendState, Registry

Look = Callable[[BackendState, Pace], Coroutine[Any, Any, None]]


class _Watched(NamedTuple):
    state: BackendState
    pace: Pace
    task: asyncio.Task[None]


class Watchers:
    """Runs `look` for every backend that the registry has, each with a pace of its own."""

    def __init__(self, registry: Registry, look: Look, label: str) -> None:
        self._registry = registry
        self._look = look
        self._label = label
        self._watched: dict[str, _Watched] = {}
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Watchers {self._label} of {len(self._watched)} backends>"

    def nudge(self, name: str) -> None:
        """Let the backend of this name be looked at soon, if it is watched."""
        watched = self._watched.get(name)
        if watched is not None:
            watched.pace.nudge()

    def skip_pauses(self) -> None:
        """Let every backend be looked at now, since the interval has changed."""
        for watched in self._watched.values():
            watched.pace.skip()

    def follow(self) -> None:
        """The registry's backends have changed. Those that went are not looked at any more from this call on."""
        for name, watched in list(self._watched.items()):
            if self._registry.backends.get(name) is not watched.state:
                watched.task.cancel()
                del self._watched[name]
        self._changed.set()

    async def run(self) -> None:
        """Watch for ever; ends by cancellation."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    self._changed.clear()
                    for state in self._registry.backends.values():
                        if state.name not in self._watched:
                            pace = Pace()
                            task = group.create_task(self._look(state, pace), name=f"{self._label} {state.name}")
                            self._watched[state.name] = _Watched(state, pace, task)
                    await self._changed.wait()
        finally:
            self._watched.clear()
