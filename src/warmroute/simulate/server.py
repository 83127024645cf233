"""One simulated vLLM server: a real prefix cache, prompts computed one after the other, answers all at once."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ..sim.prefix_cache import CacheSequence, PrefixCache
from .clock import Clock
from .timing import Timing
from .workload import Request


class BlockSequence(CacheSequence):
    """A request's blocks by their names alone; those of its answer that have no name take room and are not found again."""

    def __init__(self, request: Request, block_size: int) -> None:
        super().__init__((), block_size, None)
        self._hashes = [*request.blocks, *request.answer_blocks]
        self._size = self.prompt_tokens = request.prompt

    @property
    def num_tokens(self) -> int:
        return self._size

    def answered(self, tokens: int) -> None:
        """Make room for the answer too."""
        self._size += tokens


@dataclass(slots=True)
class Load:
    """What a server was asked, in all: requests and their prompt tokens, and of those the ones found in the cache."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens that were computed."""
        return self.prompt_tokens - self.cached_tokens


@dataclass(slots=True, eq=False)
class Exchange:
    """A request at a server. `began` is called at its first token, `ended` when it is whole."""

    request: Request
    began: Callable[[], None]
    ended: Callable[[], None]
    sequence: BlockSequence | None = None
    answering: float | None = None


class Server:
    """Prompts are admitted in order of arrival, one at a time, when their blocks and those of their answers are free.

    A stopped server forgets its exchanges and its cache; what was planned for them does not happen.
    """

    def __init__(self, clock: Clock, timing: Timing, *, blocks: int, block_size: int) -> None:
        self._clock = clock
        self._timing = timing
        self._blocks = blocks
        self._block_size = block_size
        self._cache = PrefixCache(blocks + 1, block_size)  # one more: the null block
        self._waiting: deque[Exchange] = deque()
        self._running: dict[Exchange, None] = {}
        self._computing = False
        self._life = 0
        self.load = Load()

    def __repr__(self) -> str:
        return f"<Server {len(self._waiting)} waiting, {len(self._running)} running, {self.load}>"

    def ask(self, exchange: Exchange) -> None:
        """Take a request."""
        self._waiting.append(exchange)
        self._next()

    def stop(self) -> list[Exchange]:
        """Die: the cache is lost. Returns the exchanges that are broken off, the oldest first."""
        broken = [*self._running, *self._waiting]
        self._life += 1
        self._running.clear()
        self._waiting.clear()
        self._computing = False
        self._cache = PrefixCache(self._blocks + 1, self._block_size)
        return broken

    def _next(self) -> None:
        if self._computing or not self._waiting:
            return
        exchange = self._waiting[0]
        request = exchange.request
        sequence = BlockSequence(request, self._block_size)
        if not self._cache.admit(sequence, counted=False):
            return
        cached = sequence.local_hit
        sequence.answered(request.answer)
        # The last token of an answer is never computed: nothing comes after it.
        if not self._cache.extend(sequence, request.prompt + request.answer - 1 - cached):
            self._cache.release(sequence, preempted=True)
            return
        self._waiting.popleft()
        exchange.sequence = sequence
        self._running[exchange] = None
        self.load.requests += 1
        self.load.prompt_tokens += request.prompt
        self.load.cached_tokens += cached
        self._computing = True
        self._plan(self._timing.prefill(request.prompt, cached), self._computed, exchange)

    def _computed(self, exchange: Exchange) -> None:
        self._computing = False
        self._plan(self._timing.first, self._begins, exchange)
        self._next()

    def _begins(self, exchange: Exchange) -> None:
        exchange.answering = self._clock()
        exchange.began()
        self._plan(self._timing.answer * (exchange.request.answer - 1), self._ends, exchange)

    def _ends(self, exchange: Exchange) -> None:
        del self._running[exchange]
        if exchange.sequence is not None:
            self._cache.release(exchange.sequence)
        exchange.ended()
        self._next()

    def _plan(self, seconds: float, what: Callable[[Exchange], None], exchange: Exchange) -> None:
        life = self._life

        def happen() -> None:
            if life == self._life:
                what(exchange)

        self._clock.after(seconds, happen)
