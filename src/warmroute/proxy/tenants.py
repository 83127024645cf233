"""Tenants: who shows which key, what each of them may use at once, and what it uses now."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import ceil, inf
from types import TracebackType

from ..core.identity import CONTENT
from ..core.messages import Shape
from ..core.model import Session
from . import errors
from .body import BodyRefused
from .errors import RouterError
from .request import Request

DEFAULT = "default"
"""The tenant of keys that name none, and of everybody where there are no keys."""
_MOST_TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
_SAYS_MOST: Mapping[Shape, bytes] = {
    Shape.CHAT: b"max_tokens",
    Shape.COMPLETIONS: b"max_tokens",
    Shape.MESSAGES: b"max_tokens",
    Shape.RESPONSES: b"max_output_tokens",
}
"""How a request says how long its answer may be."""
_WAIT_FOR_PLACE = 1
_LONGEST_WAIT = 60
"""Seconds at most that a refused client is told to wait; a session may take longer to end."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tenant may use; None is no limit. Requests in flight, requests a second and how many at once, bytes, sessions."""

    in_flight: int | None = None
    rate: float | None = None
    burst: int | None = None
    body: int | None = None
    sessions: int | None = None
    n: int | None = None
    max_tokens: int | None = None


NO_LIMITS = Limits()


class Tenant:
    """One tenant. `name` is "" where there are no tenants. Limits may change at any time; what is used stays counted."""

    def __init__(self, name: str, clock: Callable[[], float], *, expiry: float = inf, unproven: float = inf) -> None:
        """`expiry` is the time in seconds after which an idle session is none any more, `unproven` of one without an id."""
        self.name = name
        self.limits = NO_LIMITS
        self.in_flight = 0
        self._clock = clock
        self._due = -inf
        self._sessions: tuple[OrderedDict[bytes, float], ...] = (OrderedDict(), OrderedDict())
        self._expiries = (expiry, unproven)

    def __repr__(self) -> str:
        return f"<Tenant {self.name or 'everybody'}, {self.in_flight} in flight>"

    def enter(self) -> RouterError | None:
        """Take a place for one request, or tell why there is none. Once taken it is given back at the end of `with tenant`."""
        limits = self.limits
        if limits.in_flight is not None and self.in_flight >= limits.in_flight:
            return errors.tenant_limit(self.name, "in_flight", limits.in_flight, _WAIT_FOR_PLACE)
        if limits.rate is not None:
            now, each = self._clock(), 1 / limits.rate
            due = max(self._due, now)
            early = due - now - (self._burst(limits.rate) - 1) * each
            if early > 1e-9:
                return errors.tenant_limit(self.name, "rate", limits.rate, min(_LONGEST_WAIT, ceil(early)))
            self._due = due + each
        self.in_flight += 1
        return None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1

    def _burst(self, rate: float) -> int:
        return self.limits.burst or max(1, ceil(rate))

    def fields(self, request: Request, shape: Shape | None) -> bytes:
        """What has to be put into a request's body, each field with a comma behind it.

        Raises BodyRefused for one that asks for too much, or that cannot be read.
        """
        limits = self.limits
        if limits.n is None and limits.max_tokens is None:
            return b""
        if request.unreadable:
            raise BodyRefused(errors.not_readable())
        n = request.field("n")
        if limits.n is not None and isinstance(n, int | float) and n > limits.n:
            raise BodyRefused(errors.asks_too_much(self.name, "n", limits.n))
        if limits.max_tokens is None or shape is None:
            return b""
        asked = [value for name in _MOST_TOKENS if (value := request.field(name)) is not None]
        if any(not isinstance(value, int | float) or value > limits.max_tokens for value in asked):
            raise BodyRefused(errors.asks_too_much(self.name, "max_tokens", limits.max_tokens))
        return b"" if asked else b'"%b":%d,' % (_SAYS_MOST[shape], limits.max_tokens)

    def claim(self, session: Session | None) -> None:
        """A session's turn has come. Raises BodyRefused for a new one where as many live as may."""
        if self.limits.sessions is None or session is None:
            return
        now, key = self._clock(), session.key
        for held, expiry in zip(self._sessions, self._expiries, strict=True):
            while held and next(iter(held.values())) <= now - expiry:
                held.popitem(last=False)
        known = next((held for held in self._sessions if key in held), None)
        if known is None:
            if sum(map(len, self._sessions)) >= self.limits.sessions:
                raise BodyRefused(errors.tenant_limit(self.name, "sessions", self.limits.sessions, _LONGEST_WAIT))
            known = self._sessions[session.source == CONTENT]
        known[key] = now
        known.move_to_end(key)


class Tenants:
    """All tenants by name, kept over reloads. Without any everybody is `one`, who has no name."""

    def __init__(self, clock: Callable[[], float], *, expiry: float, unproven: float) -> None:
        self._clock = clock
        self._expiry = expiry
        self._unproven = unproven
        self._known: dict[str, Tenant] = {}
        self.one = Tenant("", clock)

    def __repr__(self) -> str:
        return f"<Tenants {' '.join(self._known)}>"

    def follow(self, limits: Mapping[str, Limits]) -> None:
        """These tenants there are from now on; those that are gone are forgotten once nobody refers to them."""
        for name, wanted in limits.items():
            if name not in self._known:
                self._known[name] = self._new(name)
            self._known[name].limits = wanted
        for name in self._known.keys() - limits.keys():
            del self._known[name]

    def _new(self, name: str) -> Tenant:
        return Tenant(name, self._clock, expiry=self._expiry, unproven=self._unproven)

    def get(self, name: str) -> Tenant:
        """The tenant of this name; `one` where there are no tenants."""
        return self._known.get(name, self.one)

    def all(self) -> list[Tenant]:
        return list(self._known.values())
