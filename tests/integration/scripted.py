"""Backends whose every byte is scripted, and a client that is a raw socket: for what no well-behaved peer does."""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

CHAT_PATH = "/v1/chat/completions"


@dataclass
class Seen:
    """One request as a backend saw it: raw head, body, and on which of its connections as which one."""

    head: bytes
    body: bytes
    connection: int
    place: int

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode()

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]

    def header(self, name: str) -> str | None:
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.decode().lower() == name:
                return value.strip().decode()
        return None


@dataclass
class Talk:
    """One request being answered: the script writes through it."""

    seen: Seen
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def drain(self) -> None:
        await self.writer.drain()

    def json(self, value: object, status: str = "200 OK", headers: str = "") -> None:
        body = json.dumps(value).encode()
        self.send(
            f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n".encode()
        )
        self.send(body)

    def stream_head(self) -> None:
        self.send(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def chunk(self, data: bytes) -> None:
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, value: object) -> None:
        self.chunk(b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n")

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def reset(self) -> None:
        """Close with RST, as a killed process's kernel does with unread data."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def close(self) -> None:
        self.writer.close()

    async def peer_closed(self, within: float) -> bool:
        """True if the router closes this connection within so many seconds."""
        try:
            async with asyncio.timeout(within):
                while await self.reader.read(65536):
                    pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


Script = Callable[[Talk], Awaitable[None]]


def role() -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}


def token(text: str) -> dict[str, object]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


async def answer(talk: Talk) -> None:
    """The ordinary answer."""
    talk.json({"choices": [{"message": {"content": "hello"}}], "usage": {"prompt_tokens": 8, "completion_tokens": 1}})


@dataclass
class Scripted:
    """A backend on a loopback port. `script` answers POSTs; health, models and metrics can be changed at any time."""

    script: Script = answer
    models: list[str] = field(default_factory=lambda: ["m"])
    metrics: str = ""
    health: Script | None = None
    metrics_script: Script | None = None
    models_script: Script | None = None
    port: int = 0
    host: str = "127.0.0.1"
    tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        self.requests: list[Seen] = []
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.name}"

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def posts(self) -> list[Seen]:
        return [seen for seen in self.requests if seen.line.startswith("POST")]

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.host, self.port, backlog=2048, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        """Go away as a killed process does: no listener, every connection reset."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        self._writers.add(writer)
        place = 0
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                seen = Seen(head, b"", number, place)
                place += 1
                length = int(seen.header("content-length") or 0)
                seen.body = await reader.readexactly(length) if length else b""
                self.requests.append(seen)
                await self._answer(Talk(seen, reader, writer))
                if seen.header("connection") == "close":
                    break
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, talk: Talk) -> None:
        path = talk.seen.path
        if path == "/health":
            await (self.health(talk) if self.health else _ok(talk))
        elif path == "/v1/models" and self.models_script:
            await self.models_script(talk)
        elif path == "/v1/models":
            talk.json(
                {"object": "list", "data": [{"id": m, "object": "model", "max_model_len": 8192} for m in self.models]}
            )
        elif path == "/metrics":
            await (self.metrics_script(talk) if self.metrics_script else _text(talk, self.metrics))
        else:
            await self.script(talk)


async def _ok(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


async def _text(talk: Talk, text: str) -> None:
    body = text.encode()
    talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@dataclass
class Reply:
    """A whole answer as the raw client saw it. `whole` is False if the connection ended before the framing said so."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    whole: bool

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def json(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.body)
        return found


class RawClient:
    """One client connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(
        cls, url: str, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None
    ) -> "RawClient":
        host, port = url.partition("://")[2].split(":")
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        server_hostname = host if tls else None
        return cls(
            *await asyncio.open_connection(
                sock=sock, limit=receive_buffer or 2**16, ssl=tls, server_hostname=server_hostname
            )
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def post(self, body: object, headers: dict[str, str] | None = None, path: str = CHAT_PATH) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n{lines}"
        self.send(head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data)

    async def head(self) -> tuple[int, list[tuple[str, str]]]:
        raw = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.partition(":") for line in raw[1:] if line]
        return int(raw[0].split(" ")[1]), [(key.lower(), value.strip()) for key, _, value in pairs]

    async def chunk(self) -> bytes:
        """The next chunk of a chunked body, b"" for the last one."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self, method: str = "POST") -> Reply:
        status, headers = await self.head()
        named = dict(headers)
        body = bytearray()
        try:
            if method == "HEAD" or status in (204, 304):
                pass
            elif "content-length" in named:
                body += await self.reader.readexactly(int(named["content-length"]))
            else:
                while part := await self.chunk():
                    body += part
        except asyncio.IncompleteReadError as error:
            return Reply(status, headers, bytes(body) + error.partial, False)
        return Reply(status, headers, bytes(body), True)

    async def chat(self, session: str | None = None, **fields: object) -> Reply:
        self.post({"model": "m", "messages": [], **fields}, {"x-session-id": session} if session else {})
        return await self.reply()


def free_port() -> int:
    """A port on which nothing listens: bound once, closed, and not given out again soon."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
