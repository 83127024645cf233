"""The connections to a Redis Cluster: one to each primary for questions, and one that hears of changes, told cluster-wide.

Each question has one key, so each goes to the one primary that holds the key's slot. Slots that move while the store is in
use are followed; a primary that is lost ends the link, and it is made again once every slot has a primary that can be reached.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, cast

import redis.exceptions as failures
from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from ..core.store_url import Node, StoreUrl
from .link import Answer, Op, Question, StoreError
from .wire import Commands, Wire, call, hear, told, wire_to

_ROUNDS = 4
"""So often is a question sent to a node that another one names: slots move one after the other."""


class ClusterLink:
    """A cluster that answers, once `connect` has returned. `timeout` bounds connecting and every batch, in seconds."""

    def __init__(self, url: StoreUrl, channel: bytes, lifetime: float, timeout: float) -> None:
        self._url = url
        self._commands = Commands(channel, lifetime)
        self._timeout = timeout
        self._wires: dict[Node, Wire] = {}
        self._slots: dict[int, Node] = {}
        self._changes: Wire | None = None

    def __repr__(self) -> str:
        return f"<ClusterLink {len(self._wires)} primaries>"

    async def connect(self) -> None:
        """Believe the first node that names a primary for every slot, if all of these can be reached. Raises StoreError."""
        trouble: StoreError | None = None
        for seed in self._url.nodes:
            try:
                with told(Op.CONNECT):
                    async with asyncio.timeout(self._timeout):
                        await self._believe(seed)
                        return
            except StoreError as error:
                trouble = trouble or error
                await self.close()
        assert trouble is not None
        raise trouble

    async def _believe(self, seed: Node) -> None:
        self._slots = await self._learn(seed)
        for node in dict.fromkeys(self._slots.values()):
            await self._reach(node)
        self._changes = wire_to(self._url.server, self._timeout, seed)
        await self._changes.connect()
        await call(self._changes, b"SUBSCRIBE", self._commands.channel)

    async def _learn(self, seed: Node) -> dict[int, Node]:
        wire = wire_to(self._url.server, self._timeout, seed)
        try:
            await wire.connect()
            slots = slots_of(await call(wire, b"CLUSTER", b"SLOTS"), seed)
        finally:
            await wire.disconnect(nowait=True)
        if len(slots) < REDIS_CLUSTER_HASH_SLOTS:
            raise failures.ClusterError(
                f"only {len(slots)} of the cluster's {REDIS_CLUSTER_HASH_SLOTS} slots are served"
            )
        return slots

    async def _reach(self, node: Node) -> Wire:
        wire = self._wires.get(node)
        if wire is None:
            wire = self._wires[node] = wire_to(self._url.server, self._timeout, node)
            await wire.connect()
        return wire

    async def ask(self, asks: Sequence[Question]) -> list[Answer]:
        """One answer for each, in order. Raises StoreError.

        A connection that was closed is not made anew here: its node may have come back without its data.
        """
        answers: dict[int, Answer] = {}
        with told(Op.PROBE):
            async with asyncio.timeout(self._timeout):
                todo = {i: (self._slots[key_slot(ask.key)], False) for i, ask in enumerate(asks)}
                for _ in range(_ROUNDS):
                    todo = await self._round(asks, todo, answers)
                    if not todo:
                        return [answers[i] for i in range(len(asks))]
                raise failures.ClusterError("its nodes name each other for one slot")

    async def _round(
        self, asks: Sequence[Question], todo: dict[int, tuple[Node, bool]], answers: dict[int, Answer]
    ) -> dict[int, tuple[Node, bool]]:
        """Send each question to its node, after ASKING if so said; returns those that another node has to be asked."""
        shares: defaultdict[Node, list[int]] = defaultdict(list)
        for i, (node, _) in todo.items():
            shares[node].append(i)
        for node, share in shares.items():
            wire = await self._reach(node)
            commands: list[tuple[bytes, ...]] = []
            for i in share:
                commands += [(b"ASKING",)] * todo[i][1]
                commands.append(self._commands.of(asks[i]))
            await wire.send_packed_command(wire.pack_commands(commands))
        elsewhere: dict[int, tuple[Node, bool]] = {}
        for node, share in shares.items():
            wire = self._wires[node]
            for i in share:
                if todo[i][1]:
                    await wire.read_response()
                try:
                    answers[i] = cast("Answer", await wire.read_response())
                except failures.MovedError as moved:
                    there = (moved.host or node[0], moved.port)
                    self._slots[moved.slot_id] = there
                    elsewhere[i] = there, False
                except failures.AskError as moving:
                    elsewhere[i] = (moving.host or node[0], moving.port), True
        return elsewhere

    async def hear(self) -> bytes:
        """The next message, however long that takes. Raises StoreError as soon as the connection proves dead."""
        assert self._changes is not None
        return await hear(self._changes)

    async def close(self) -> None:
        """Close at once; nothing is waited for."""
        for wire in (*self._wires.values(), *([self._changes] if self._changes is not None else [])):
            await wire.disconnect(nowait=True)
        self._wires.clear()
        self._changes = None


def slots_of(answer: Iterable[Any], seed: Node) -> dict[int, Node]:
    """Slot -> primary, out of what CLUSTER SLOTS answers. A node that does not know its own name is the one that was asked."""
    slots: dict[int, Node] = {}
    for first, last, primary, *_ in answer:
        host = primary[0].decode() if primary[0] else ""
        node = (host if host not in ("", "?") else seed[0], int(primary[1]))
        slots.update(dict.fromkeys(range(first, last + 1), node))
    return slots
