"""A publisher of KV events as vLLM's: numbered batches, a replay socket, and faults on demand."""

import asyncio
from collections import deque
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
import zmq.asyncio

from .scripted import Scripted, Talk, answer

Event = dict[str, Any]


class Publisher:
    """One engine's publisher on loopback ports. `lose` keeps the next batches from subscribers, `forget` from the replay."""

    def __init__(self, replays: bool = True, port: int = 0) -> None:
        self._replays = replays
        self._port = port
        self._seq = 0
        self._buffer: deque[tuple[int, bytes]] = deque()
        self.lose = False
        self.asked: list[int] = []

    async def __aenter__(self) -> Self:
        self._context = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.XPUB)  # a PUB that tells of its subscribers
        self._replay = self._context.socket(zmq.ROUTER)
        self._port = _bind(self._pub, self._port)
        self._replay_port = _bind(self._replay, 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.destroy(linger=0)

    @property
    def source(self) -> dict[str, Any]:
        """What /kv_event_sources says of it."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self._port}",
            "replay_endpoint": f"tcp://*:{self._replay_port}" if self._replays else None,
            "topic": "",
        }

    async def subscribed(self) -> None:
        """Wait for the next subscriber."""
        async with asyncio.timeout(15):
            while await self._pub.recv() != b"\x01":
                pass

    async def publish(self, *events: Event) -> None:
        await self.publish_raw(msgspec.msgpack.encode([1.5, events, 0]))

    async def publish_raw(self, payload: bytes) -> None:
        if not self.lose:
            await self._pub.send_multipart([b"", self._seq.to_bytes(8, "big"), payload])
        self._buffer.append((self._seq, payload))
        self._seq += 1

    def forget(self) -> None:
        """The buffer was too short for what was published until now."""
        self._buffer.clear()

    def restart(self) -> None:
        """Count from 0 again, as another process would."""
        self._seq = 0
        self._buffer.clear()

    async def serve_one_replay(self) -> None:
        async with asyncio.timeout(15):
            client, empty, start = await self._replay.recv_multipart()
        self.asked.append(int.from_bytes(start, "big"))
        for seq, payload in self._buffer:
            if seq >= self.asked[-1]:
                await self._replay.send_multipart([client, empty, b"", seq.to_bytes(8, "big"), payload])
        await self._replay.send_multipart([client, empty, b"", (-1).to_bytes(8, "big", signed=True), b""])


def _bind(socket: zmq.asyncio.Socket, port: int) -> int:
    socket.bind(f"tcp://127.0.0.1:{port or '*'}")
    return int(socket.get_string(zmq.LAST_ENDPOINT).rpartition(":")[2])


def stored(session: str | None, *blocks: int, parent: int | None = None) -> Event:
    return {
        "type": "BlockStored",
        "block_hashes": blocks,
        "parent_block_hash": parent,
        "token_ids": [1] * 16 * len(blocks),
        "block_size": 16,
        "medium": "GPU",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": session,
    }


def removed(*blocks: int) -> Event:
    return {"type": "BlockRemoved", "block_hashes": blocks, "medium": "GPU", "group_idx": 0}


CLEARED: Event = {"type": "AllBlocksCleared"}


def tells_of(*publishers: Publisher) -> Scripted:
    """A backend that names these publishers, one an engine."""

    async def script(talk: Talk) -> None:
        if talk.seen.path == "/kv_event_sources":
            talk.json({str(rank): publisher.source for rank, publisher in enumerate(publishers)})
        else:
            await answer(talk)

    return Scripted(script=script)
