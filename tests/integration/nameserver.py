"""A nameserver on loopback that knows what a test tells it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

Zone = dict[tuple[str, str], list[str]]
"""(name without its last dot, type) -> records as text. A name without any record of any type does not exist."""


@dataclass
class Nameserver(asyncio.DatagramProtocol):
    """Answers from `zone`, with this time to live; a question whose name is in `broken` is answered SERVFAIL or not at all."""

    zone: Zone = field(default_factory=dict)
    ttl: int = 0
    broken: dict[str, bool] = field(default_factory=dict)
    """Name -> whether an answer comes that says so."""
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    port: int = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self.asked[name, kind] += 1
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA | dns.flags.AA
        if name in self.broken:
            if not self.broken[name]:
                return
            answer.set_rcode(dns.rcode.SERVFAIL)
        elif not any(known == name for known, _ in self.zone):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        elif records := self.zone.get((name, kind)):
            answer.answer.append(dns.rrset.from_text(question.name, self.ttl, "IN", kind, *records))
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def nameserver() -> AsyncIterator[Nameserver]:
    """One that knows nothing yet."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Nameserver, local_addr=("127.0.0.1", 0))
    try:
        yield protocol
    finally:
        transport.close()
