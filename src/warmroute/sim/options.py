"""What a simulated server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from warmroute.sim.engine import EngineRates

_LONGEST_DEFAULT: Final = 8192


@dataclass(frozen=True)
class SimOptions:
    """The flags of a simulated vLLM server, by vLLM's names where it has them.

    `num_blocks` of `block_size` tokens is the KV cache of each engine (one block is the null block), `host_blocks`
    the blocks each has in host memory, 0 for none. The rates are tokens per second: of prefill (one after the other),
    of each decoding stream, and of reloading from host memory. `max_model_len` None is 8192, or what the cache holds
    if that is less. `stream_interval` is how many tokens a streamed chunk has after the first. `seed` changes the
    answers, nothing else: servers with the same seed give the same answer to the same prompt.

    Raises ValueError, naming the field, for values that no server could start with.
    """

    model: str = "sim"
    block_size: int = 16
    num_blocks: int = 2000
    host_blocks: int = 0
    data_parallel_size: int = 1
    prefill_tokens_per_s: float = 8000.0
    tokens_per_s: float = 40.0
    reload_tokens_per_s: float = 80_000.0
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    stream_interval: int = 1
    enable_prompt_tokens_details: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty; give the name under which the server offers its model")
        least = {"block_size": 1, "num_blocks": 2, "host_blocks": 0, "data_parallel_size": 1, "stream_interval": 1}
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least {minimum}")
        if self.max_model_len is not None and not 2 <= self.max_model_len <= self.cache_tokens:
            raise ValueError(
                f"max_model_len is {self.max_model_len}, but the cache holds {self.cache_tokens} tokens; "
                "give 2 to that many, or more num_blocks"
            )
        self.rates()

    @property
    def cache_tokens(self) -> int:
        """Tokens that the cache of one engine holds."""
        return (self.num_blocks - 1) * self.block_size

    @property
    def context_tokens(self) -> int:
        """The longest prompt and answer together."""
        return self.max_model_len or min(_LONGEST_DEFAULT, self.cache_tokens)

    def rates(self) -> EngineRates:
        """The speed of one engine."""
        return EngineRates(
            prefill=self.prefill_tokens_per_s,
            decode=self.tokens_per_s,
            reload=self.reload_tokens_per_s,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )
