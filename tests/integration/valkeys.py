"""Several real Valkey servers: a primary with its replica under a sentinel, and a small cluster."""

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

from .scripted import free_port
from .valkey import Valkey

_PATIENCE = 20.0


async def reached(what: str, true: Any) -> None:
    """Wait until an awaitable condition holds; bounded."""
    async with asyncio.timeout(_PATIENCE):
        while not await true():
            await asyncio.sleep(0.05)


class Watched:
    """A primary, a replica of it and a sentinel that promotes the replica half a second after the primary's death."""

    SERVICE = "warmroute-pins"

    def __init__(self, directory: Path) -> None:
        self.primary = Valkey(_folder(directory, "primary"))
        replica = _folder(directory, "replica")
        self.replica = Valkey(replica, {"replicaof": f"127.0.0.1 {self.primary.port}", "repl-diskless-sync-delay": 0})
        folder = _folder(directory, "sentinel")
        self.sentinel = Valkey(folder, config=folder / "sentinel.conf")
        lines = (
            f"port {self.sentinel.port}",
            "bind 127.0.0.1",
            f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.primary.port} 1",
            f"sentinel down-after-milliseconds {self.SERVICE} 500",
            f"sentinel failover-timeout {self.SERVICE} 3000",
        )
        (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        """Nobody is at the first sentinel."""
        return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.sentinel.port}/{self.SERVICE}/0"

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for server in (self.primary, self.replica, self.sentinel):
                await stack.enter_async_context(server)
            await self._settle()
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._running.aclose()

    async def _settle(self) -> None:

        async def watched() -> bool:
            (told,) = await self.sentinel.do("SENTINEL", "REPLICAS", self.SERVICE) or [None]
            replicated = (await self.replica.do("INFO", "replication"))["master_link_status"] == "up"
            return replicated and told is not None and b"slave" in _values(told)

        await reached("the sentinel knows the replica", watched)


def _values(told: Any) -> list[Any]:
    pairs = told.items() if isinstance(told, dict) else [(k, v) for k, v in itertools.pairwise(told)]
    return [part.encode() if isinstance(part, str) else part for pair in pairs for part in pair]


class Cluster:
    """Three primaries with a third of the slots each, and one replica of the first."""

    SLOTS = ((0, 5460), (5461, 10922), (10923, 16383))

    def __init__(self, directory: Path) -> None:
        self._buses = [free_port() for _ in range(4)]
        own: dict[str, str | int] = {
            "cluster-enabled": "yes",
            "cluster-node-timeout": 500,
            "cluster-replica-validity-factor": 0,
        }
        own |= {"repl-diskless-sync-delay": 0}
        self.nodes = [
            Valkey(_folder(directory, f"node{i}"), {**own, "cluster-port": bus}) for i, bus in enumerate(self._buses)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    @property
    def replica(self) -> Valkey:
        return self.nodes[3]

    def __iter__(self) -> Iterator[Valkey]:
        return iter(self.nodes)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            for node in self.nodes:
                await stack.enter_async_context(node)
            await self._settle()
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._running.aclose()

    async def _settle(self) -> None:
        for node, (first, last) in zip(self.nodes, self.SLOTS, strict=False):
            await node.do("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node in self.nodes[1:]:
            await node.do("CLUSTER", "MEET", "127.0.0.1", self.nodes[0].port, self._buses[0])
        first_id = await self.nodes[0].do("CLUSTER", "MYID")

        async def met() -> bool:
            known = [str(await node.do("CLUSTER", "INFO")) for node in self.nodes]
            return all("cluster_known_nodes:4" in told and "cluster_state:ok" in told for told in known)

        await reached("the nodes know each other", met)
        await self.replica.do("CLUSTER", "REPLICATE", first_id)

        async def replicated() -> bool:
            return bool((await self.replica.do("INFO", "replication")).get("master_link_status") == "up")

        await reached("the replica has the data of the first node", replicated)

    async def pins(self, prefix: str = "warmroute:") -> dict[bytes, bytes]:
        """What is stored for sessions, by all primaries."""
        stored: dict[bytes, bytes] = {}
        for node in self.nodes:
            if node.running and (await node.do("ROLE"))[0] == b"master":
                stored |= await node.pins(prefix)
        return stored


def _folder(directory: Path, name: str) -> Path:
    folder = directory / name
    folder.mkdir()
    return folder
