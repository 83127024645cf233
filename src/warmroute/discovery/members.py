"""Everything that names backends, the hand of an operator included, and who is wanted by all of it together."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ..core.model import SYSTEM, BackendSpec, Trust
from ..core.wanted import Address, Offer, Wanted, address, merge
from .source import Source

CONFIG, HAND = "config", "hand"
"""The sources that are always there; the others have the name of their key below `discovery`."""


class MemberError(Exception):
    """A backend that cannot be added or removed; the text says why. `unknown`: no backend has this name."""

    def __init__(self, reason: str, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.unknown = unknown


class Members:
    """The sources in their order, and what was added and removed by hand, which is forgotten when the process ends.

    `wanted` is what is in force; `changed` is set when that may have to be another.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.by_hand: dict[str, BackendSpec] = {}
        self.hidden: dict[Address, str] = {}
        self.wanted = Wanted()
        self.changed = asyncio.Event()

    def __repr__(self) -> str:
        hand = (
            f", {len(self.by_hand)} added and {len(self.hidden)} removed by hand" if self.by_hand or self.hidden else ""
        )
        return f"<Members {len(self.wanted.specs)} wanted{hand}, {self.sources}>"

    def name_all(self, configured: Sequence[BackendSpec], key: str | None, trust: Trust = SYSTEM) -> Wanted:
        """What all sources name now. `key` and `trust` are for those that have none of their own."""
        offers = [
            Offer(CONFIG, configured),
            Offer(HAND, tuple(self.by_hand.values())),
            *(Offer(source.name, source.specs) for source in self.sources),
        ]
        named = {address(spec) for offer in offers for spec in offer.specs}
        self.hidden = {place: name for place, name in self.hidden.items() if place in named}
        wanted = merge(offers, self.hidden)
        keyed = tuple(
            replace(
                spec,
                key=key if spec.key is None else spec.key,
                trust=trust if spec.trust == SYSTEM else spec.trust,
            )
            for spec in wanted.specs
        )
        return wanted._replace(specs=keyed)

    def add(self, spec: BackendSpec, going: Iterable[BackendSpec], *, named: bool) -> str:
        """Want one more, or again one that was removed by hand or is `going`; returns its name. Raises MemberError.

        One that is going keeps its name unless another was `named`, and its conversations with it.
        """
        place = address(spec)
        same = next((s for s in self.wanted.specs if address(s) == place), None)
        if same is not None:
            by = " and ".join(self.wanted.sources[same.name])
            raise MemberError(f"{spec.url} is there already: it is {same.name}, from {by}")
        before = next((s.name for s in going if address(s) == place), None)
        if before is not None and not named:
            spec = replace(spec, name=before)
        if place in self.hidden:
            return self.hidden.pop(place)  # whoever names it decides what it is called
        if any(s.name == spec.name for s in self.wanted.specs):
            raise MemberError(f"another backend is named {spec.name!r}; give this one a name of its own")
        self.by_hand[spec.name] = spec
        self._want((*self.wanted.specs, spec))
        return spec.name

    def remove(self, name: str) -> None:
        """Want one no more, whoever names it. Raises MemberError."""
        spec = next((s for s in self.wanted.specs if s.name == name), None)
        if spec is None:
            names = ", ".join(s.name for s in self.wanted.specs)
            raise MemberError(f"no backend is named {name!r}; there are {names}", unknown=True)
        if len(self.wanted.specs) == 1:
            raise MemberError(f"{name} is the last backend; add another one before")
        self.by_hand.pop(name, None)
        if set(self.wanted.sources[name]) != {HAND}:
            self.hidden[address(spec)] = name
        self._want(tuple(s for s in self.wanted.specs if s is not spec))

    def _want(self, specs: tuple[BackendSpec, ...]) -> None:
        """Let the next who asks for something hear what this one got, before all of it is in force."""
        sources = {s.name: self.wanted.sources.get(s.name, (HAND,)) for s in specs}
        self.wanted = self.wanted._replace(specs=specs, sources=sources)
