"""One simulated engine: its queue, its running requests and what they cost in time. Pure: the caller tells the time."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from warmroute.sim.prefix_cache import CacheSequence, PrefixCache
from warmroute.sim.writer import Token


class FinishReason(StrEnum):
    """Why a request ended, by vLLM's names."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class EngineRates:
    """How fast an engine is, in tokens per second, and how much it takes at a time.

    One prefill runs after the other, in chunks of `max_num_batched_tokens`; every running stream gets `decode` tokens
    per second; `reload` is the rate at which blocks come back from host memory, beside the computing.
    """

    prefill: float
    decode: float
    reload: float
    max_num_seqs: int
    max_num_batched_tokens: int

    def __post_init__(self) -> None:
        for name in ("prefill", "decode", "reload", "max_num_seqs", "max_num_batched_tokens"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name} is {value}; give a number above 0")


class AnswerSource(Protocol):
    """Where generated tokens come from."""

    def next(self, *, may_end: bool) -> Token:
        """The next token; one that ends the answer only where `may_end`."""


@dataclass(eq=False, slots=True)
class EngineRequest:
    """One request in an engine. Times are those of the caller's clock, in seconds.

    `created_tokens` counts prompt tokens that this request computed and that are cached now.
    """

    sequence: CacheSequence
    answer: AnswerSource
    max_tokens: int
    arrived: float
    min_tokens: int = 0
    ignore_eos: bool = False
    first_token_at: float | None = None
    cached_tokens: int = 0
    created_tokens: int = 0
    generated: int = 0
    preemptions: int = 0
    finished: FinishReason | None = None

    def __repr__(self) -> str:
        return (
            f"EngineRequest(prompt={self.sequence.prompt_tokens}, generated={self.generated}/{self.max_tokens}, "
            f"cached={self.cached_tokens}, preemptions={self.preemptions}, finished={self.finished})"
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens for one request at one time, and the reason if they are its last ones."""

    request: EngineRequest
    tokens: Sequence[Token]
    finished: FinishReason | None
    at: float


@dataclass(slots=True)
class EngineCounters:
    """What the engine did so far; tokens unless the name says otherwise. Latencies of finished requests in seconds."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    computed_tokens: int = 0
    prefills: int = 0
    prefill_seconds: float = 0.0
    local_hit_tokens: int = 0
    external_tokens: int = 0
    preemptions: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


class Observer(Protocol):
    """Is told the latencies, in seconds."""

    def first_token(self, seconds: float) -> None:
        """A request got its first token this long after it arrived."""

    def completed(self, seconds: float) -> None:
        """A request ended, by itself, this long after it arrived."""


class Engine:
    """The scheduler of one engine over one prefix cache.

    Requests are admitted in order, each when its whole prompt fits and the prefill before it is done. Where a running
    request needs a block and none is free, the request admitted last gives up its blocks and starts anew, at the head
    of the queue. Call `advance` when `due` says so; `submit` and `abort` may make that sooner.
    """

    def __init__(self, cache: PrefixCache, rates: EngineRates, observer: Observer) -> None:
        self.cache = cache
        self.counters = EngineCounters()
        self._rates = rates
        self._observer = observer
        self._arriving: deque[EngineRequest] = deque()
        self._waiting: deque[EngineRequest] = deque()
        self._loading: deque[tuple[float, EngineRequest]] = deque()
        self._loaded: deque[EngineRequest] = deque()
        self._running: list[EngineRequest] = []
        self._decoding: list[EngineRequest] = []
        self._prefill: tuple[float, EngineRequest] | None = None
        self._tick_at: float | None = None
        self._look_at: float | None = None
        self._out: list[Delivery] = []

    @property
    def running(self) -> int:
        """Requests that compute."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for capacity or for blocks from the host tier."""
        return len(self._arriving) + len(self._waiting) + self.deferred

    @property
    def deferred(self) -> int:
        """Requests that wait for blocks from the host tier."""
        return len(self._loading) + len(self._loaded)

    def submit(self, request: EngineRequest) -> None:
        """Queue a request, those that arrived earlier first. Nothing happens to it before the next `advance`."""
        self._arriving.append(request)

    def abort(self, request: EngineRequest, now: float) -> None:
        """Drop a request that nobody waits for any more. One that has finished already is left as it is."""
        if request.finished is None:
            self._finish(request, FinishReason.ABORT)
            self._look_at = now

    def due(self) -> float | None:
        """When something happens next; None when the engine is idle."""
        times = [self._look_at, self._tick_at]
        times.append(self._arriving[0].arrived if self._arriving else None)
        times.append(self._prefill[0] if self._prefill else None)
        times.append(self._loading[0][0] if self._loading else None)
        return min((at for at in times if at is not None), default=None)

    def advance(self, now: float) -> list[Delivery]:
        """Do everything that is due by `now`, in order, and hand out the tokens of it."""
        while (at := self.due()) is not None and at <= now:
            if self._arriving and self._arriving[0].arrived == at:
                self._waiting.append(self._arriving.popleft())
            elif self._loading and self._loading[0][0] == at:
                self._end_loading()
            elif self._prefill is not None and self._prefill[0] == at:
                self._end_prefill_chunk(at)
            elif self._tick_at == at:
                self._tick(at)
            else:
                self._look_at = None
            self._schedule(at)
        delivered, self._out = self._out, []
        return delivered

    def _schedule(self, at: float) -> None:
        """Start the next prefill where none runs, and the loading of blocks for those that have some to load."""
        while self._prefill is None and len(self._running) < self._rates.max_num_seqs:
            if self._loaded:
                request = self._loaded[0]
                if not self._has_room_for_chunk(request):
                    return
                self._loaded.popleft()
            elif self._waiting and self._admit(self._waiting[0]):
                request = self._waiting.popleft()
                if request.sequence.external_hit:
                    self._start_loading(request, at)
                    continue
            else:
                return
            self._running.append(request)
            self._start_prefill_chunk(request, at)

    def _admit(self, request: EngineRequest) -> bool:
        sequence = request.sequence
        if not self.cache.admit(sequence, counted=not request.preemptions):
            return False
        if not request.preemptions:
            request.cached_tokens = sequence.local_hit + sequence.external_hit
        return True

    def _start_loading(self, request: EngineRequest, at: float) -> None:
        begins = max(at, self._loading[-1][0]) if self._loading else at
        self._loading.append((begins + request.sequence.external_hit / self._rates.reload, request))

    def _end_loading(self) -> None:
        _, request = self._loading.popleft()
        self.cache.load(request.sequence)
        self._loaded.append(request)

    def _chunk(self, request: EngineRequest) -> int:
        sequence = request.sequence
        return min(sequence.num_tokens - sequence.computed, self._rates.max_num_batched_tokens)

    def _has_room_for_chunk(self, request: EngineRequest) -> bool:
        sequence = request.sequence
        reached = sequence.computed + self._chunk(request)
        return -(-reached // self.cache.block_size) - len(sequence.blocks) <= self.cache.free_blocks

    def _start_prefill_chunk(self, request: EngineRequest, at: float) -> None:
        chunk = self._chunk(request)
        if self._extend(request, chunk):
            seconds = chunk / self._rates.prefill
            self._prefill = (at + seconds, request)
            if not request.generated:
                self.counters.prefill_seconds += seconds

    def _end_prefill_chunk(self, at: float) -> None:
        assert self._prefill is not None
        _, request = self._prefill
        self._prefill = None
        if request.sequence.computed < request.sequence.num_tokens:
            self._start_prefill_chunk(request, at)
            return
        if not request.generated:
            self._note_prefill(request, at)
        self._decoding.append(request)
        self._emit(request, at)
        self._take_next_slot(request)
        if self._decoding and self._tick_at is None:
            self._tick_at = at + 1 / self._rates.decode

    def _note_prefill(self, request: EngineRequest, at: float) -> None:
        sequence, counters = request.sequence, self.counters
        size = self.cache.block_size
        request.first_token_at = at
        request.created_tokens = max(0, sequence.prompt_tokens // size * size - request.cached_tokens)
        if not request.preemptions:
            counters.local_hit_tokens += sequence.local_hit
            counters.external_tokens += sequence.external_hit
        counters.prompt_tokens += sequence.prompt_tokens
        counters.computed_tokens += sequence.prompt_tokens - request.cached_tokens
        counters.prefills += 1
        self._observer.first_token(at - request.arrived)

    def _tick(self, at: float) -> None:
        """One decode step: a token for every stream that decodes."""
        for request in list(self._decoding):
            self._emit(request, at)
        for request in list(self._decoding):
            self._take_next_slot(request)
        self._tick_at = at + 1 / self._rates.decode if self._decoding else None

    def _emit(self, request: EngineRequest, at: float) -> None:
        token = request.answer.next(may_end=not request.ignore_eos and request.generated >= request.min_tokens)
        request.generated += 1
        self.counters.generation_tokens += 1
        ends = self._end_of(request, token)
        if ends is FinishReason.STOP:
            # The next step is scheduled before this token is known to be the last one: its slot is taken for nothing.
            self.cache.extend(request.sequence)
        request.sequence.append(token.token_id)
        self._out.append(Delivery(request, (token,), ends, at))
        if ends is not None:
            self._finish(request, ends)
            self._observer.completed(at - request.arrived)

    def _take_next_slot(self, request: EngineRequest) -> None:
        if request in self._decoding:
            self._extend(request, 1)

    def _end_of(self, request: EngineRequest, token: Token) -> FinishReason | None:
        if token.is_end:
            return FinishReason.STOP
        return FinishReason.LENGTH if request.generated >= request.max_tokens else None

    def _extend(self, request: EngineRequest, count: int) -> bool:
        """Slots for the next tokens; where none are free, running requests are preempted, the last admitted first."""
        while not self.cache.extend(request.sequence, count):
            victim = self._running[-1]
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: EngineRequest) -> None:
        self._leave(request)
        self.cache.release(request.sequence, preempted=True)
        request.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.appendleft(request)

    def _finish(self, request: EngineRequest, reason: FinishReason) -> None:
        self._leave(request)
        self.cache.release(request.sequence)
        request.finished = reason
        self.counters.finished[reason] += 1

    def _leave(self, request: EngineRequest) -> None:
        """Take the request out of wherever it is."""
        if self._prefill is not None and self._prefill[1] is request:
            self._prefill = None
        for requests in (self._running, self._decoding, self._waiting, self._loaded, self._arriving):
            if request in requests:
                requests.remove(request)
        self._loading = deque(entry for entry in self._loading if entry[1] is not request)

    def __repr__(self) -> str:
        return f"Engine(running={self.running}, waiting={self.waiting}, due={self.due()}, cache={self.cache!r})"
