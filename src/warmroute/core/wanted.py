"""Which backends are wanted: what several sources name -> one list in which each name and each address stands once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from .model import BackendSpec

Address = tuple[bool, str, int, str]
"""Where a backend answers: over TLS or not, host, port, path. Two URLs that have it in common are one backend's."""


class Offer(NamedTuple):
    """The backends that one source names."""

    source: str
    specs: Sequence[BackendSpec]


class Wanted(NamedTuple):
    """What all sources name, together. `sources` has those of each name, `refused` a sentence for what was left out."""

    specs: tuple[BackendSpec, ...] = ()
    sources: Mapping[str, tuple[str, ...]] = {}
    refused: tuple[str, ...] = ()


class Plan(NamedTuple):
    """The backends that are to be there: those wanted, and those that are `leaving`, by name, until they are empty."""

    wanted: Wanted
    specs: tuple[BackendSpec, ...]
    leaving: frozenset[str]


def address(spec: BackendSpec) -> Address:
    return spec.tls, spec.host.lower(), spec.port, spec.base_path


def merge(offers: Iterable[Offer], hidden: Collection[Address] = ()) -> Wanted:
    """All offers in one: of two sources that name one address the first decides its name and weight.

    A backend whose name another one has goes by its host and port instead; if that is taken too, it is refused. Nobody wants
    what is `hidden`. Within one source the same address may stand under several names.
    """
    found: dict[str, BackendSpec] = {}
    sources: dict[str, tuple[str, ...]] = {}
    by_address: dict[Address, tuple[str, str]] = {}
    refused = []
    for source, specs in offers:
        for spec in specs:
            place = address(spec)
            if place in hidden:
                continue
            name, first = by_address.get(place, ("", source))
            if first != source:
                if source not in sources[name]:
                    sources[name] = (*sources[name], source)
                continue
            taken = found.get(spec.name)
            if taken is not None and address(taken) != place:
                spec = replace(spec, name=_plain(spec))
                taken = found.get(spec.name)
            if taken is not None:
                if address(taken) != place:
                    refused.append(f"{spec.url} ({source}) is left out: {taken.url} has its name, {spec.name}")
                continue
            found[spec.name] = spec
            sources[spec.name] = (source,)
            by_address.setdefault(place, (spec.name, source))
    return Wanted(tuple(found.values()), sources, tuple(refused))


def plan(wanted: Wanted, now: Iterable[BackendSpec], cut: Collection[str] = ()) -> Plan:
    """What is to follow upon the backends of `now`: who is not wanted any more leaves, and who is `cut` is gone at once.

    So is who has the address of one that is wanted under another name: it is the same server, or it has gone.
    """
    names = {spec.name for spec in wanted.specs}
    addresses = {address(spec) for spec in wanted.specs}
    leaving = [s for s in now if s.name not in names and s.name not in cut and address(s) not in addresses]
    return Plan(wanted, (*wanted.specs, *leaving), frozenset(spec.name for spec in leaving))


def _plain(spec: BackendSpec) -> str:
    host = f"[{spec.host}]" if ":" in spec.host else spec.host
    return f"{host}:{spec.port}"
