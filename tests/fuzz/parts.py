"""The parts of a router that no socket is needed for, made as a router makes them."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from warmroute import assembly, keeping, settings
from warmroute.config import Config
from warmroute.core.headers import Headers
from warmroute.discovery.members import MemberError
from warmroute.fleet.asking import Asking
from warmroute.fleet.broadcast import Broadcaster
from warmroute.fleet.registry import BackendState
from warmroute.observe.reloads import ReloadError
from warmroute.proxy.pools import Pools


@dataclass(frozen=True)
class Parts:
    """What is kept, what is made anew, and the configuration of both."""

    config: Config
    kept: keeping.Kept
    made: assembly.Made


def parts(loop: asyncio.AbstractEventLoop) -> Parts:
    """Over two backends that nobody listens for."""
    config = Config.from_urls(["http://127.0.0.1:9", "http://127.0.0.1:10"])
    kept = keeping.keep(config, None, time.monotonic)
    pools = Pools(loop, time.monotonic)
    pools.follow(pools.planned(config.specs, settings.connection_times(config), {}), settings.connection_times(config))

    async def reload() -> dict[str, object]:
        raise ReloadError("nothing to read", refused=True)

    async def read(state: BackendState) -> None:
        pass

    async def explain(method: str, path: bytes, headers: Headers, body: bytes) -> dict[str, Any]:
        return await made.explainer.explain(method, path, headers, body)

    async def add(entry: dict[str, object]) -> dict[str, object]:
        raise MemberError(f"{settings.backend(entry).url} cannot be added here")

    async def remove(name: str, now: bool) -> dict[str, object]:
        raise MemberError(f"no backend is named {name!r}", unknown=True)

    hooks = assembly.Hooks(
        settle=lambda record: None,
        backend_failed=lambda name, failure: None,
        stopping=lambda: False,
        reload=reload,
        explain=explain,
        add_backend=add,
        remove_backend=remove,
        broadcaster=Broadcaster(Asking({}), read, read),
    )
    made = assembly.make(config, kept, pools, hooks)
    return Parts(config, kept, made)
