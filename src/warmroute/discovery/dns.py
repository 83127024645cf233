"""Asks the DNS for backends again and again: the addresses of a name, or the servers of a service (SRV)."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import dns.asyncresolver
import dns.exception
import dns.resolver
from dns.rdtypes.IN.SRV import SRV

from ..core.model import BackendSpec
from .source import Read, Source

_LEAST = 1.0
"""Seconds between two lookups at least, unless the interval is shorter: many answers have a time to live of 0."""
_AFTER_FAILURE = 2.0
_TIMEOUT = 5.0
"""Seconds that one question may take, with all its repetitions."""
_LIGHTEST, _HEAVIEST = 0.1, 10.0


class Query(NamedTuple):
    """What is asked: addresses of `name`, which serve at `port`; or with None for a port, the servers of a service."""

    scheme: str
    name: str
    port: int | None


class Answer(NamedTuple):
    """Backends, and the seconds for which that is true."""

    specs: tuple[BackendSpec, ...]
    ttl: float


class LookupFailed(Exception):
    """A name could not be resolved, or to nothing; the text says why."""


class DnsWatch:
    """Resolves each query every `interval` seconds, or as soon as its answer is out of date. What fails keeps its last answer.

    `server` is the address and port of a nameserver; without one those of the system are asked.
    """

    def __init__(
        self,
        source: Source,
        read: Read,
        queries: Sequence[Query],
        interval: float,
        server: tuple[str, int] | None = None,
    ) -> None:
        self._source = source
        self._read = read
        self._queries = queries
        self._interval = interval
        self._server = server
        self._answers: dict[Query, Answer] = {}

    def __repr__(self) -> str:
        return f"<DnsWatch {len(self._queries)} names, {self._source!r}>"

    async def run(self) -> None:
        """Ask for ever; ends by cancellation."""
        while True:
            pause = await self.look()
            await asyncio.sleep(pause)

    async def look(self) -> float:
        """Ask once for everything; returns the seconds until it should be asked for again."""
        async with asyncio.TaskGroup() as group:
            tasks = {query: group.create_task(self._try(query)) for query in self._queries}
        failed = []
        for query, task in tasks.items():
            found = task.result()
            if isinstance(found, Answer):
                self._answers[query] = found
            else:
                failed.append(found)
        specs = {spec.name: spec for answer in self._answers.values() for spec in answer.specs}
        if failed:
            self._source.failed("; ".join(failed), list(specs.values()))
            return min(self._interval, _AFTER_FAILURE)
        self._source.found(list(specs.values()))
        return min(self._interval, max(_LEAST, min(answer.ttl for answer in self._answers.values())))

    async def _try(self, query: Query) -> Answer | str:
        try:
            return await self._resolve(query)
        except LookupFailed as error:
            return str(error)
        except ValueError as error:
            return f"{query.name}: {error}"

    async def _resolve(self, query: Query) -> Answer:
        resolver = self._resolver()
        if query.port is not None:
            found = await _addresses(resolver, query.name)
            urls = sorted(f"{_host(address)}:{query.port}" for address in found.hosts)
            return Answer(tuple(self._read(f"{query.scheme}://{url}") for url in urls), found.ttl)
        records, ttl = await _servers(resolver, query.name)
        lightest = min((record.weight for record in records if record.weight), default=None)
        specs = []
        for record in records:
            host, weight = record.target.to_text(omit_final_dot=True), _weight(record.weight, lightest)
            if query.scheme == "https":  # its certificate is for the name
                specs.append(self._read({"url": f"https://{host}:{record.port}", "weight": weight}))
                continue
            found = await _addresses(resolver, host)
            ttl = min(ttl, found.ttl)
            for address in sorted(found.hosts):
                shown = host if len(found.hosts) == 1 else _host(address)
                url, name = f"http://{_host(address)}:{record.port}", f"{shown}:{record.port}"
                specs.append(self._read({"url": url, "name": name, "weight": weight}))
        return Answer(tuple(specs), ttl)

    def _resolver(self) -> dns.asyncresolver.Resolver:
        """Made anew, so that a change of the system's own configuration is seen. Raises LookupFailed."""
        try:
            resolver = dns.asyncresolver.Resolver(configure=self._server is None)
        except dns.exception.DNSException as error:
            raise LookupFailed(f"no nameserver is known: {error}") from None
        if self._server is not None:
            resolver.nameservers, resolver.port = [self._server[0]], self._server[1]
        return resolver


class _Addresses(NamedTuple):
    hosts: frozenset[str]
    ttl: float


async def _addresses(resolver: dns.asyncresolver.Resolver, name: str) -> _Addresses:
    """IPv4 addresses, or where there are none IPv6 ones: a server that has both is one backend. Raises LookupFailed."""
    for kind in ("A", "AAAA"):
        answer = await _ask(resolver, name, kind)
        if answer.rrset:
            return _Addresses(frozenset(record.to_text() for record in answer.rrset), float(answer.rrset.ttl))
    raise LookupFailed(f"{name} has no address")


async def _servers(resolver: dns.asyncresolver.Resolver, name: str) -> tuple[list[SRV], float]:
    """The records of the lowest priority number, in the order of their names. Raises LookupFailed."""
    answer = await _ask(resolver, name, "SRV")
    records = [r for r in answer.rrset or () if isinstance(r, SRV) and r.target.to_text() != "."]
    if not records or answer.rrset is None:
        raise LookupFailed(f"{name} has no server (SRV)")
    first = min(record.priority for record in records)
    chosen = [record for record in records if record.priority == first]
    return sorted(chosen, key=lambda r: (r.target.to_text(), r.port)), float(answer.rrset.ttl)


async def _ask(resolver: dns.asyncresolver.Resolver, name: str, kind: str) -> dns.resolver.Answer:
    """Raises LookupFailed."""
    try:
        return await resolver.resolve(name, kind, lifetime=_TIMEOUT, search=True, raise_on_no_answer=False)
    except dns.resolver.NXDOMAIN:
        raise LookupFailed(f"{name} does not exist") from None
    except dns.exception.Timeout:
        raise LookupFailed(f"no nameserver answered for {name} within {_TIMEOUT:g} s") from None
    except (dns.exception.DNSException, OSError) as error:
        raise LookupFailed(f"{name} could not be resolved: {' '.join(str(error).split())}") from None


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _weight(weight: int, lightest: int | None) -> float:
    """Relative to the lightest that is not 0, so that one that comes changes no other's; 0 is next to nothing."""
    return 1.0 if lightest is None else min(_HEAVIEST, max(_LIGHTEST, weight / lightest))
