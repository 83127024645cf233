"""Which backend made a response? vLLM keeps stored responses in its own process, so any other one answers 404."""

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from ..core.model import Session
from .recent import Recent


class Owner(NamedTuple):
    """The backend that made a response, and the session it belongs to, if any."""

    backend: str
    session: Session | None


class Owners:
    """Response ids, as digests, of answers that were relayed; about 0.3 KB each."""

    def __init__(self, clock: Callable[[], float], *, expiry: float, limit: int) -> None:
        self._owners: Recent[Owner] = Recent(clock, expiry=expiry, limit=limit)
        self.unknown = 0

    def __repr__(self) -> str:
        return f"<Owners {len(self)} responses, {self.unknown} asked for and unknown>"

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, response_id: str) -> Owner | None:
        return self._owners.get(digest_of(response_id))

    def learn(self, digest: bytes, owner: Owner) -> None:
        """Another router knows who made the response of this digest; what is known here already stays."""
        if self._owners.get(digest) is None:
            self._owners.put(digest, owner)

    def made(self, response_id: str, owner: Owner) -> None:
        """Note who made a response."""
        self._owners.put(digest_of(response_id), owner)


def digest_of(response_id: str) -> bytes:
    return blake2b(response_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
