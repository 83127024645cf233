"""The ASGI application of one simulated vLLM server: routes, engines, and the way of a request through them."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from prometheus_client import CONTENT_TYPE_LATEST

from warmroute.sim.api import (
    ApiError,
    ChatBody,
    CompletionBody,
    GenerationRequest,
    TokenizeBody,
    read_body,
    read_chat,
    read_completion,
    read_rank,
    read_tokenize,
)
from warmroute.sim.driver import EngineDriver, EngineStopped, TokenStream
from warmroute.sim.engine import Engine, EngineRequest, FinishReason
from warmroute.sim.metrics import EngineMetrics, Latencies, exposition
from warmroute.sim.options import SimOptions
from warmroute.sim.prefix_cache import PrefixCache
from warmroute.sim.replies import (
    DONE,
    VLLM_VERSION,
    Reply,
    ReplyHead,
    error_event,
    json_bytes,
    models_body,
)
from warmroute.sim.tokens import Tokenizer
from warmroute.sim.writer import Answer

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON: Final = b"application/json"
_EVENTS: Final = b"text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One HTTP request being answered."""

    headers: Mapping[bytes, bytes]
    receive: Receive
    send: Send

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self) -> bytes:
        parts, more = [], True
        while more:
            message = await self.receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        return b"".join(parts)

    async def start(
        self, status: int, content_type: bytes, length: int | None = None, *more: tuple[bytes, bytes]
    ) -> None:
        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        if content_type:
            headers.append((b"content-type", content_type))
        await self.send(
            {"type": "http.response.start", "status": status, "headers": [*more, *headers, (b"vary", b"Origin")]}
        )

    async def write(self, body: bytes, *, more: bool) -> None:
        await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def reply(
        self, body: bytes, *extra: tuple[bytes, bytes], status: int = 200, content_type: bytes = _JSON
    ) -> None:
        await self.start(status, content_type, len(body), *extra)
        await self.write(body, more=False)


class SimServer:
    """An ASGI application. Make it inside a running event loop; `close` ends what runs.

    `now` gives the time in seconds since 1970, for the `created` fields; `rng` makes request ids.
    """

    def __init__(self, options: SimOptions, *, now: Callable[[], float], rng: random.Random) -> None:
        self.options = options
        self._now = now
        self._rng = rng
        self._created = int(now())
        self._fingerprint = f"vllm-{VLLM_VERSION}-{hashlib.sha256(repr(options).encode()).hexdigest()[:8]}"
        self._tokenizer = Tokenizer()
        self._latencies = [Latencies() for _ in range(options.data_parallel_size)]
        self.drivers: Sequence[EngineDriver] = [
            EngineDriver(Engine(_cache(options), options.rates(), latencies)) for latencies in self._latencies
        ]
        self._metrics = self._make_metrics()
        self._scan_from = 0
        self._routes: Mapping[str, tuple[str, Callable[[_Exchange], Awaitable[None]]]] = {
            "/health": ("GET", self._health),
            "/ping": ("GET", self._health),
            "/version": ("GET", self._version),
            "/v1/models": ("GET", self._models),
            "/metrics": ("GET", self._metrics_page),
            "/tokenize": ("POST", self._tokenize),
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completion),
        }

    def close(self) -> None:
        """End all requests."""
        for driver in self.drivers:
            driver.close()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        exchange = _Exchange(dict(scope["headers"]), receive, send)
        method, route = self._routes.get(scope["path"], ("", None))
        if route is None:
            await exchange.reply(json_bytes({"detail": "Not Found"}), status=HTTPStatus.NOT_FOUND)
        elif scope["method"] != method:
            body = json_bytes({"detail": "Method Not Allowed"})
            await exchange.reply(body, (b"allow", method.encode()), status=HTTPStatus.METHOD_NOT_ALLOWED)
        else:
            try:
                await route(exchange)
            except ApiError as error:
                await exchange.reply(json_bytes(error.body()), status=error.status)

    async def _health(self, exchange: _Exchange) -> None:
        await exchange.reply(b"", content_type=b"")

    async def _version(self, exchange: _Exchange) -> None:
        await exchange.reply(json_bytes({"version": VLLM_VERSION}))

    async def _models(self, exchange: _Exchange) -> None:
        options = self.options
        await exchange.reply(json_bytes(models_body(options.model, options.context_tokens, self._created)))

    async def _metrics_page(self, exchange: _Exchange) -> None:
        await exchange.reply(exposition(self._metrics), content_type=CONTENT_TYPE_LATEST.encode())

    async def _tokenize(self, exchange: _Exchange) -> None:
        body = read_body(TokenizeBody, exchange.header(b"content-type") or "", await exchange.body())
        ids = read_tokenize(body, self.options, self._tokenizer)
        limit = self.options.context_tokens
        told = {"count": len(ids), "max_model_len": limit, "tokens": ids}
        await exchange.reply(json_bytes({**told, "token_strs": None}))  # nosec B105  # no secret: a field of vLLM's

    async def _chat(self, exchange: _Exchange) -> None:
        body = read_body(ChatBody, exchange.header(b"content-type") or "", await exchange.body())
        await self._generate(exchange, read_chat(body, self.options, self._tokenizer))

    async def _completion(self, exchange: _Exchange) -> None:
        body = read_body(CompletionBody, exchange.header(b"content-type") or "", await exchange.body())
        await self._generate(exchange, read_completion(body, self.options, self._tokenizer))

    async def _generate(self, exchange: _Exchange, request: GenerationRequest) -> None:
        try:
            rank = read_rank(exchange.header(b"x-data-parallel-rank"), len(self.drivers))
        except ApiError as error:
            if not request.stream:
                raise
            # vLLM sends the headers of a stream before it looks at the rank.
            await exchange.start(HTTPStatus.OK, _EVENTS)
            await exchange.write(error_event(error.body()) + DONE, more=False)
            return
        driver = self.drivers[self._least_loaded() if rank is None else rank]
        stream = driver.submit(self._engine_request(driver, request))
        reply = Reply(self._head(exchange, request), request, stream.request)
        answer = self._stream if request.stream else self._answer
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(_abort_when_left(exchange.receive, stream))
            try:
                await answer(exchange, stream, reply)
            except EngineStopped:
                pass  # the connection is closed by whoever stopped the engine
            finally:
                stream.abort()
                watch.cancel()

    async def _stream(self, exchange: _Exchange, stream: TokenStream, reply: Reply) -> None:
        await exchange.start(HTTPStatus.OK, _EVENTS)
        opening, total, wanted = reply.opening(), 0, 1
        finished: FinishReason | None = None
        while finished is None:
            tokens, finished = await stream.take(wanted)
            if finished is FinishReason.ABORT:
                return
            total += len(tokens)
            ids = [token.token_id for token in tokens]
            text = "".join(token.text for token in tokens)
            chunk = reply.chunk(text, ids, total, finished)
            await exchange.write(opening + chunk, more=True)
            opening, wanted = b"", self.options.stream_interval
        await exchange.write(reply.closing(total), more=False)

    async def _answer(self, exchange: _Exchange, stream: TokenStream, reply: Reply) -> None:
        tokens, finished = await stream.take(stream.request.max_tokens)
        if finished is None or finished is FinishReason.ABORT:
            return
        ids = [token.token_id for token in tokens]
        await exchange.reply(reply.whole("".join(token.text for token in tokens), ids, finished))

    def _engine_request(self, driver: EngineDriver, request: GenerationRequest) -> EngineRequest:
        return EngineRequest(
            sequence=driver.engine.cache.sequence(request.prompt, request.salt),
            answer=Answer(request.prompt, self.options.seed),
            max_tokens=request.max_tokens,
            arrived=driver.now(),
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
        )

    def _head(self, exchange: _Exchange, request: GenerationRequest) -> ReplyHead:
        given = exchange.header(b"x-request-id") or f"{self._rng.getrandbits(64):016x}"
        prefix = "chatcmpl" if request.kind == "chat" else "cmpl"
        return ReplyHead(
            reply_id=f"{prefix}-{given}",
            created=int(self._now()),
            model=self.options.model,
            fingerprint=self._fingerprint,
            with_details=self.options.enable_prompt_tokens_details,
        )

    def _least_loaded(self) -> int:
        """vLLM's choice: the lowest load, a queue weighing more where the cache is full; ties go round."""
        count = len(self.drivers)
        order = [(self._scan_from + offset) % count for offset in range(count)]
        self._scan_from = (self._scan_from + 1) % count
        return min(order, key=lambda rank: _load(self.drivers[rank].engine))

    def _make_metrics(self) -> EngineMetrics:
        options = self.options
        engines = [(driver.engine, latencies) for driver, latencies in zip(self.drivers, self._latencies, strict=True)]
        info = {
            "block_size": str(options.block_size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "True",
            "kv_cache_size_tokens": str(options.num_blocks * options.block_size),
            "num_cpu_blocks": str(options.host_blocks) if options.host_blocks else "None",
            # vLLM shows the sum over its engines here.
            "num_gpu_blocks": str(options.num_blocks * options.data_parallel_size),
            "num_gpu_blocks_override": str(options.num_blocks),
            "prefix_caching_hash_algo": "sha256",
        }
        return EngineMetrics(engines, options.model, info, float(self._created))

    def __repr__(self) -> str:
        return f"SimServer(model={self.options.model!r}, engines={list(self.drivers)!r})"


async def _abort_when_left(receive: Receive, stream: TokenStream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.abort()


def _load(engine: Engine) -> float:
    queue_weight = 6.0 * max(0.0, engine.cache.usage - 0.5)
    return engine.waiting + engine.running + engine.waiting * queue_weight


def _cache(options: SimOptions) -> PrefixCache:
    return PrefixCache(options.num_blocks, options.block_size, host_blocks=options.host_blocks)
