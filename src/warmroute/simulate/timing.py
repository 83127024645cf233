"""How long a server takes for a prompt and for an answer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds for what a server does.

    The defaults are a fit, to 6 %, of what was measured on one H200 with vLLM 0.24 and a model of Qwen3-8B's shape (the table
    is in docs/simulate.md). `first` is what a first token takes at least, and occupies nobody; `token` and `pair` are the
    computing of a prompt token, and of its attention to one token before it; `cached` is a token that was found in the
    cache. `answer` is a token of an answer: 40 of them a second were not measured there, but are the speed of
    `warmroute sim-backend`.
    """

    first: float = 0.065
    token: float = 1.5e-5
    pair: float = 1.434e-9
    cached: float = 1.4e-6
    answer: float = 1 / 40

    def prefill(self, prompt: int, cached: int) -> float:
        """Seconds for which an engine is busy with a prompt of so many tokens, of which so many are in the cache."""
        pairs = (prompt * prompt - cached * cached) / 2
        return self.token * (prompt - cached) + self.pair * pairs + self.cached * cached


H200 = Timing()
