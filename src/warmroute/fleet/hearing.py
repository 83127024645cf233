"""Hears KV events where that is wanted; only then is pyzmq loaded."""

from typing import TYPE_CHECKING

import httpx

from .heard import HeardResidents
from .registry import Registry

if TYPE_CHECKING:
    from .kv_events import KvEvents


def hear(registry: Registry, client: httpx.AsyncClient, residents: HeardResidents | None) -> "KvEvents | None":
    """What keeps `residents` at what the backends tell; None where there are none to keep."""
    if residents is None:
        return None
    from .kv_events import KvEvents

    return KvEvents(registry, client, residents)
