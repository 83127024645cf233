"""A Kubernetes API server for EndpointSlices on loopback, over TLS: lists in pages, watches, old versions, refusals."""

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

PATH = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"


def endpoint(address: str, pod: str | None = None, **conditions: bool | None) -> dict[str, Any]:
    target = {"kind": "Pod", "name": pod, "namespace": "models"} if pod else None
    return {"addresses": [address], "conditions": conditions or {"ready": True}, "targetRef": target}


def endpoint_slice(name: str, *endpoints: dict[str, Any], **ports: int) -> dict[str, Any]:
    """Ports by their names; IPv6 if the first address is one."""
    kind = "IPv6" if endpoints and ":" in endpoints[0]["addresses"][0] else "IPv4"
    return {
        "metadata": {"name": name, "namespace": "models"},
        "addressType": kind,
        "endpoints": list(endpoints) or None,
        "ports": [{"name": name, "port": port, "protocol": "TCP"} for name, port in ports.items()] or None,
    }


@dataclass
class ApiServer:
    """Holds slices; every change has a version, and watches hear it. `page` is how many a list may have at once."""

    token: str = "first"
    page: int = 500
    refusal: tuple[int, str] | None = None
    ends_watches: bool = False
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    oldest: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    selectors: set[str] = field(default_factory=set)
    tokens: list[str] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._events: list[tuple[int, bytes]] = []
        self._changed = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._watching: set[asyncio.StreamWriter] = set()
        self._ended = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def put(self, one: dict[str, Any]) -> None:
        name = one["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = one
        await self.tell(kind, one)

    async def delete(self, name: str) -> None:
        await self.tell("DELETED", self.slices.pop(name))

    async def tell(self, kind: str, one: dict[str, Any]) -> None:
        """Let all watches hear this."""
        async with self._changed:
            self.version += 1
            metadata = {**one.get("metadata", {}), "resourceVersion": str(self.version)}
            event = {"type": kind, "object": {**one, "metadata": metadata}}
            self._events.append((self.version, json.dumps(event).encode() + b"\n"))
            self._changed.notify_all()

    async def watched(self) -> None:
        """Wait for a watch that has begun since the last one was ended or interrupted."""
        async with asyncio.timeout(10):
            while self.asked["watch"] <= self._ended:
                await asyncio.sleep(0.01)

    async def interrupt(self, event: object) -> None:
        """Send this, and nothing that is remembered, to all that watch."""
        await self.watched()
        self._ended = self.asked["watch"]
        data = json.dumps(event).encode() + b"\n"
        for writer in self._watching:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def break_off(self) -> None:
        """End every connection where it is."""
        self._ended = self.asked["watch"]
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    async def start(self, context: ssl.SSLContext) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.break_off()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._writers.add(writer)
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                shown = next(
                    (line.partition(": ")[2] for line in head if line.lower().startswith("authorization:")), ""
                )
                self.tokens.append(shown)
                target = urlsplit(head[0].split(" ")[1])
                await self._answer(writer, target.path, {k: v[0] for k, v in parse_qs(target.query).items()}, shown)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            self._watching.discard(writer)
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, query: dict[str, str], shown: str) -> None:
        self.selectors.add(query.get("labelSelector", ""))
        if path != PATH:
            return _json(writer, 404, {"message": "the server could not find the requested resource"})
        if shown != f"Bearer {self.token}":
            return _json(writer, 401, {"kind": "Status", "message": "Unauthorized"})
        if self.refusal is not None:
            self.asked["refused"] += 1
            return _json(writer, self.refusal[0], {"kind": "Status", "message": self.refusal[1]})
        if "watch" in query:
            self.asked["watch"] += 1
            return await self._watched(writer, int(query["resourceVersion"]))
        self.asked["list"] += 1
        start = int(query.get("continue", "0"))
        items = [self.slices[name] for name in sorted(self.slices)]
        end = start + min(self.page, int(query["limit"]))
        metadata = {"resourceVersion": str(self.version), "continue": str(end) if end < len(items) else ""}
        return _json(writer, 200, {"metadata": metadata, "items": items[start:end]})

    async def _watched(self, writer: asyncio.StreamWriter, since: int) -> None:
        if since < self.oldest:
            return _json(writer, 410, {"kind": "Status", "code": 410, "message": "too old resource version"})
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        self._watching.add(writer)
        while not self.ends_watches:
            for _, event in [e for e in self._events if e[0] > since]:
                half = len(event) // 2
                for part in (event[:half], event[half:]):  # an event need not come in one piece
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                    await writer.drain()
            since = max([since, *(number for number, _ in self._events)])
            async with self._changed:
                await self._changed.wait_for(lambda seen=since: self.ends_watches or self._last() > seen)  # type: ignore[misc]
        self._watching.discard(writer)
        writer.write(b"0\r\n\r\n")
        return None

    def _last(self) -> int:
        return self._events[-1][0] if self._events else 0

    async def end_watches(self) -> None:
        """End those that run, as their time is over, and let new ones go on."""
        async with self._changed:
            self.ends_watches = True
            self._changed.notify_all()
        before = self.asked["watch"]
        async with asyncio.timeout(10):
            while self.asked["watch"] == before:
                await asyncio.sleep(0.01)
        self.ends_watches = False


def _json(writer: asyncio.StreamWriter, status: int, body: object) -> None:
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)


@dataclass
class Kubernetes:
    """A running API server, and what a pod is given to ask it."""

    server: ApiServer
    tls: ssl.SSLContext
    token_file: Path
    ca_file: Path

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server.port}"


@asynccontextmanager
async def kubernetes(folder: Path) -> AsyncIterator[Kubernetes]:
    """Without any slice yet; `folder` is for the token and the authority's certificate."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    server, ca_file, token_file = ApiServer(), folder / "ca.crt", folder / "token"
    authority.cert_pem.write_to_path(ca_file)
    token_file.write_text(f"{server.token}\n")
    await server.start(tls)
    try:
        yield Kubernetes(server, tls, token_file, ca_file)
    finally:
        await server.stop()
