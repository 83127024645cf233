"""What the DNS says as backends, against a nameserver on loopback: addresses, services, times to live, failures."""

from collections.abc import AsyncIterator

import pytest

from warmroute import settings
from warmroute.config.discovery import nameserver as address_of
from warmroute.config.discovery import query
from warmroute.discovery import dns as dns_discovery
from warmroute.discovery.dns import DnsWatch, Query
from warmroute.discovery.source import Source

from ..integration.nameserver import Nameserver, nameserver


@pytest.fixture
async def server() -> AsyncIterator[Nameserver]:
    async with nameserver() as found:
        yield found


def watch(server: Nameserver, *names: str, interval: float = 30.0) -> tuple[DnsWatch, Source]:
    source = Source("dns", lambda: 0.0, lambda: None)
    return DnsWatch(
        source, settings.backend, [Query(*query(name)) for name in names], interval, ("127.0.0.1", server.port)
    ), source


def backends(source: Source) -> list[tuple[str, str, float]]:
    return [(spec.name, spec.url, spec.weight) for spec in source.specs]


async def test_the_addresses_of_a_name(server: Nameserver) -> None:
    server.zone["vllm.test", "A"] = ["10.0.0.2", "10.0.0.1"]
    server.zone["vllm.test", "AAAA"] = ["fd00::1"]  # the same servers, by their other addresses
    server.zone["six.test", "AAAA"] = ["fd00::2"]
    looking, source = watch(server, "vllm.test:8000", "https://six.test:8443")
    await looking.look()
    assert backends(source) == [
        ("10.0.0.1:8000", "http://10.0.0.1:8000", 1.0),
        ("10.0.0.2:8000", "http://10.0.0.2:8000", 1.0),
        ("[fd00::2]:8443", "https://[fd00::2]:8443", 1.0),
    ]
    assert (source.up, source.failures) == (True, 0)
    assert server.asked["vllm.test", "AAAA"] == 0


async def test_the_servers_of_a_service(server: Nameserver) -> None:
    server.zone["_vllm._tcp.test", "SRV"] = ["10 20 8001 b.test.", "10 10 8000 a.test.", "20 1 9 spare.test."]
    server.zone["a.test", "A"] = ["10.0.0.1"]
    server.zone["b.test", "A"] = ["10.0.0.2", "10.0.0.3"]
    looking, source = watch(server, "_vllm._tcp.test")
    await looking.look()
    assert backends(source) == [
        ("a.test:8000", "http://10.0.0.1:8000", 1.0),
        ("10.0.0.2:8001", "http://10.0.0.2:8001", 2.0),
        ("10.0.0.3:8001", "http://10.0.0.3:8001", 2.0),
    ]
    looking, source = watch(server, "https://_vllm._tcp.test")
    await looking.look()
    assert [url for _, url, _ in backends(source)] == ["https://a.test:8000", "https://b.test:8001"]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((0, 0), [1.0, 1.0]), ((5, 5), [1.0, 1.0]), ((1, 3), [1.0, 3.0]), ((0, 1), [0.1, 1.0]), ((1, 500), [1.0, 10.0])],
)
async def test_weights_are_relative_to_the_lightest(
    server: Nameserver, weights: tuple[int, int], expected: list[float]
) -> None:
    server.zone["_s._tcp.test", "SRV"] = [f"0 {w} {port} a.test." for port, w in enumerate(weights, 1)]
    server.zone["a.test", "A"] = ["10.0.0.1"]
    looking, source = watch(server, "_s._tcp.test")
    await looking.look()
    assert [weight for _, _, weight in backends(source)] == expected


@pytest.mark.parametrize(
    ("ttl", "interval", "pause"), [(0, 30.0, 1.0), (7, 30.0, 7.0), (600, 30.0, 30.0), (600, 0.5, 0.5)]
)
async def test_it_is_asked_again_when_the_answer_is_out_of_date(
    server: Nameserver, ttl: int, interval: float, pause: float
) -> None:
    server.zone["vllm.test", "A"], server.ttl = ["10.0.0.1"], ttl
    looking, _ = watch(server, "vllm.test:80", interval=interval)
    assert await looking.look() == pause


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nobody.test:80", "nobody.test does not exist"),
        ("empty.test:80", "empty.test has no address"),
        ("_none._tcp.test", "_none._tcp.test has no server (SRV)"),
        ("_off._tcp.test", "_off._tcp.test has no server (SRV)"),
        ("_lost._tcp.test", "gone.test does not exist"),
        ("https://_odd._tcp.test", "_odd._tcp.test: url: 'https://a\\\\032b.test:80' is not the URL of a server"),
        ("broken.test:80", "broken.test could not be resolved: "),
        ("mute.test:80", "no nameserver answered for mute.test within 0.3 s"),
    ],
)
async def test_what_fails_keeps_its_last_answer_beside_what_works(
    server: Nameserver, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    monkeypatch.setattr(dns_discovery, "_TIMEOUT", 0.3)
    asked = name.removeprefix("https://").partition(":")[0]
    server.zone = {("good.test", "A"): ["10.0.0.9"], (asked, "A"): ["10.0.0.1"], ("a.test", "A"): ["10.0.0.1"]}
    server.zone[asked, "SRV"] = ["0 0 80 a.test."]
    looking, source = watch(server, "good.test:80", name)
    await looking.look()
    assert len(source.specs) == 2
    before = source.specs[1]
    server.zone = {
        ("good.test", "A"): ["10.0.0.8"],
        ("empty.test", "TXT"): ["x"],
        ("_none._tcp.test", "TXT"): ["x"],
        ("_off._tcp.test", "SRV"): ["0 0 0 ."],
        ("_lost._tcp.test", "SRV"): ["0 0 80 gone.test."],
        ("_odd._tcp.test", "SRV"): ["0 0 80 a\\032b.test."],
        ("broken.test", "A"): ["10.0.0.7"],
    }
    server.broken = {"broken.test": True, "mute.test": False}
    assert await looking.look() == 2.0
    assert source.error.startswith(why)
    assert source.failures == 1
    assert [spec.url for spec in source.specs] == ["http://10.0.0.8:80", before.url]
    server.zone, server.broken = {("good.test", "A"): ["10.0.0.8"], (asked, "A"): ["10.0.0.2"]}, {}
    server.zone |= {(asked, "SRV"): ["0 0 81 a.test."], ("a.test", "A"): ["10.0.0.2"]}
    await looking.look()
    assert source.up
    assert len(source.specs) == 2
    assert before not in source.specs


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("vllm:8000", ("http", "vllm", 8000)),
        ("https://vllm.example:443", ("https", "vllm.example", 443)),
        ("_http._tcp.vllm.ns.svc.cluster.local", ("http", "_http._tcp.vllm.ns.svc.cluster.local", None)),
    ],
)
def test_what_can_be_resolved(text: str, found: tuple[str, str, int | None]) -> None:
    assert query(text) == found


@pytest.mark.parametrize(
    "text", ["vllm", "vllm:0", "vllm:99999", "_http._tcp.x:80", "ftp://x:1", "a b:1", "", ":80", "x:1/y"]
)
def test_what_cannot_be_resolved(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not what can be resolved; write host:port"):
        query(text)


def test_nameservers() -> None:
    assert address_of("10.0.0.10") == ("10.0.0.10", 53)
    assert address_of("127.0.0.1:8600") == ("127.0.0.1", 8600)
    assert address_of("[::1]:53") == ("::1", 53)
    for text in ("localhost", "10.0.0.1:0", "10.0.0.300", "::1", "10.0.0.1:x"):
        with pytest.raises(ValueError, match="is not the address of a nameserver"):
            address_of(text)
