"""What is asked: requests with the names of their blocks, in order of time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..core.model import Session


class Request(NamedTuple):
    """One request. `at` is in seconds from the start; `prompt` and `answer` are tokens.

    `blocks` names the whole blocks of the prompt, each by all that is said up to its end, so equal names are equal
    prefixes; `answer_blocks` those that the answer fills up, as far as they are known. `session` is the conversation that the
    router sees, by an id or by the messages; None in a trace, which tells neither.
    """

    at: float
    prompt: int
    answer: int
    blocks: tuple[bytes, ...]
    answer_blocks: tuple[bytes, ...] = ()
    session: Session | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of time, and how many tokens a block has."""

    name: str
    block_size: int
    requests: Sequence[Request]

    def __repr__(self) -> str:
        return f"<Workload {self.name}: {len(self.requests)} requests, blocks of {self.block_size} tokens>"

    @property
    def largest(self) -> int:
        """Blocks that the largest request takes, its answer included."""
        return max(-(-(r.prompt + r.answer) // self.block_size) for r in self.requests)


def name(number: int) -> bytes:
    """A block's name, of a number that no other block has."""
    return number.to_bytes(8, "big")
