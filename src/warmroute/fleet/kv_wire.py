"""How vLLM tells about its cache: where its publishers are, and what their messages mean."""

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from ..core.residency import BlockHash

_ANY_HOST = re.compile(r"tcp://(\*|0\.0\.0\.0|\[::\]):(\d+)")
_HERE = re.compile(r"tcp://[^\s/]+:\d+|ipc://\S+")

BlockSize = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
"""Tokens of a block: vLLM's have up to some thousands."""


class Source(msgspec.Struct, frozen=True):
    """The publisher of one engine, as GET /kv_event_sources tells it."""

    endpoint: str = ""
    publisher: str = ""
    enable_kv_cache_events: bool = False
    replay_endpoint: str | None = None
    topic: str = ""


class BlockStored(msgspec.Struct, tag=True, gc=False):
    """Blocks of `block_size` tokens were filled, each following the one before it, and the first one `parent_block_hash`."""

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    block_size: BlockSize
    medium: str | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    session_id: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, gc=False):
    """Blocks were dropped."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, gc=False):
    """The whole cache was emptied."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True, gc=False):
    """What happened in one step of an engine. The tokens that vLLM sends along are not read."""

    ts: float
    events: list[Event]


_batches = msgspec.msgpack.Decoder(Batch)
_sources = msgspec.json.Decoder(dict[str, Source])


def batch(payload: bytes) -> Batch:
    """One message of a publisher. Raises ValueError for what is none."""
    try:
        return _batches.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from None


def sources(page: bytes, url: str) -> dict[str, Source]:
    """Engine -> its publisher with addresses that can be connected to, by the page of the backend at this URL.

    Empty where no publisher is on. Raises ValueError for a page that cannot be read or an address of no use.
    """
    try:
        found = _sources.decode(page)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise ValueError("/kv_event_sources is not what vLLM answers there") from None
    host = urlsplit(url).hostname or ""
    return {
        engine: msgspec.structs.replace(
            source,
            endpoint=_reachable(source.endpoint, host),
            replay_endpoint=_reachable(source.replay_endpoint, host) if source.replay_endpoint else None,
        )
        for engine, source in found.items()
        if source.enable_kv_cache_events and source.publisher == "zmq"
    }


def _reachable(endpoint: str, host: str) -> str:
    """An address on any interface of the backend's machine is one at the backend's own host."""
    matched = _ANY_HOST.fullmatch(endpoint)
    if matched is not None:
        return f"tcp://{f'[{host}]' if ':' in host else host}:{matched[2]}"
    if _HERE.fullmatch(endpoint) is None:
        raise ValueError(f"its KV events are at {endpoint!r}, which is no tcp:// or ipc:// address")
    return endpoint
