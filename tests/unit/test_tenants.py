"""What a tenant may use: what is taken is given back, what is too much is refused, and time alone gives more."""

import json
from typing import Any

import pytest

from warmroute.config import Config, ConfigError
from warmroute.core.identity import CONTENT, DEFAULT_SOURCES
from warmroute.core.messages import Shape
from warmroute.core.model import Session
from warmroute.proxy.body import BodyRefused
from warmroute.proxy.errors import Code
from warmroute.proxy.isolation import Isolation
from warmroute.proxy.request import Request, reader_for
from warmroute.proxy.tenants import Limits, Tenant, Tenants
from warmroute.settings import tenants

READER = reader_for(DEFAULT_SOURCES)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def tenant(clock: Clock, **limits: Any) -> Tenant:
    made = Tenant("a", clock, expiry=60.0, unproven=10.0)
    made.limits = Limits(**limits)
    return made


def request(body: bytes | dict[str, Any], path: str = "/v1/chat/completions") -> Request:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Request("POST", path.encode(), path, [], {}, data, READER)


def session(number: int, source: str = "x-session-id") -> Session:
    return Session(number.to_bytes(16, "big"), source)


def test_what_is_in_flight_is_given_back_on_every_way_out(clock: Clock) -> None:
    one = tenant(clock, in_flight=1)
    assert one.enter() is None
    with one:
        second = one.enter()
        assert second is not None
        assert (second.code, second.retry_after) == (Code.TENANT_LIMIT, 1)
        assert one.in_flight == 1
    assert one.in_flight == 0
    assert one.enter() is None
    with pytest.raises(KeyError), one:
        raise KeyError
    assert one.in_flight == 0


def test_a_rate_lets_a_burst_through_and_then_as_many_as_it_says(clock: Clock) -> None:
    one = tenant(clock, rate=2.0, burst=3)
    assert [one.enter() is None for _ in range(4)] == [True, True, True, False]
    clock.now += 0.5
    assert [one.enter() is None for _ in range(2)] == [True, False]
    clock.now += 60.0
    assert [one.enter() is None for _ in range(4)] == [True, True, True, False]
    slow = tenant(clock, rate=0.1)
    assert slow.enter() is None
    refused = slow.enter()
    assert refused is not None
    assert refused.retry_after == 10


def test_sessions_count_until_they_are_idle_for_too_long(clock: Clock) -> None:
    one = tenant(clock, sessions=2)
    one.claim(session(1))
    one.claim(session(2, CONTENT))
    with pytest.raises(BodyRefused):
        one.claim(session(3))
    one.claim(session(1))  # which lives
    clock.now += 11.0
    one.claim(session(3))  # in place of the one without an id
    with pytest.raises(BodyRefused):
        one.claim(session(4))
    clock.now += 50.0
    one.claim(session(4))  # in place of the first one, used 61 s ago
    one.claim(None)


def test_limits_of_a_request(clock: Clock) -> None:
    one = tenant(clock, n=2, max_tokens=100)
    assert one.fields(request({"n": 2, "max_tokens": 100}), Shape.CHAT) == b""
    assert one.fields(request({}), Shape.CHAT) == b'"max_tokens":100,'
    assert one.fields(request({}), Shape.RESPONSES) == b'"max_output_tokens":100,'
    assert one.fields(request({"input": "x"}, "/v1/embeddings"), None) == b""
    assert one.fields(request({"max_completion_tokens": 5}), Shape.CHAT) == b""
    for body in (
        {"n": 3},
        {"max_tokens": 101},
        {"max_tokens": 5, "max_completion_tokens": 101},
        {"max_tokens": "101"},
        {"n": 2.5},
        b'{"max_tokens": NaN}',
        b'{"n":1,"n":3}',
        b'{"\\u006e":3}',
        b"\xff\xfe{\x00}\x00",
    ):
        with pytest.raises(BodyRefused):
            one.fields(request(body), Shape.CHAT)


def test_without_limits_nothing_is_looked_at(clock: Clock) -> None:
    assert Tenant("", clock).fields(request(b"no json"), Shape.CHAT) == b""


@pytest.mark.parametrize("body", [b'{"a":1}', b" {}", b'{ "a":1}', b"{\n}"])
def test_fields_are_put_in_front(body: bytes) -> None:
    one = request(body)
    one.put(b'"cache_salt":"s",')
    assert json.loads(one.body) == {"cache_salt": "s", **json.loads(body)}
    assert one.field("cache_salt") == "s"


def test_salts_tell_tenants_or_sessions_apart_and_stay_the_same(clock: Clock) -> None:
    def salt(mode: Any, name: str, of: Session | None, key: bytes = b"k" * 32) -> str:
        fields = Isolation(mode, key).fields(request({"model": "m"}), Tenant(name, clock), of)
        told = json.loads(b"{" + fields[:-1] + b"}")["cache_salt"]
        assert isinstance(told, str)
        return told

    assert salt("tenant", "a", session(1)) == salt("tenant", "a", session(2)) != salt("tenant", "b", session(1))
    assert salt("session", "a", session(1)) == salt("session", "a", session(1)) != salt("session", "a", session(2))
    assert salt("session", "a", None) != salt("session", "a", None)
    assert salt("tenant", "a", None) != salt("tenant", "a", None, b"j" * 32)
    assert len(salt("tenant", "a", None)) <= 128  # vLLM takes no more


@pytest.mark.parametrize(
    "body", [b'{"cache_salt":"x"}', b'{"cache_salt":null}', b'{"\\u0063ache_salt":"x"}', b'{"a":NaN}', b"{", b"\xff"]
)
def test_no_client_sets_or_hides_a_salt(clock: Clock, body: bytes) -> None:
    with pytest.raises(BodyRefused):
        Isolation("tenant", b"k" * 32).fields(request(body), Tenant("a", clock), None)
    assert Isolation("off", b"k" * 32).fields(request(body), Tenant("a", clock), None) == b""


def configured(**sections: Any) -> Config:
    return Config.model_validate({"backends": ["http://a:1"], **sections})


def test_there_are_tenants_as_soon_as_one_is_named() -> None:
    assert tenants(configured()) == {}
    assert tenants(configured(listen={"keys": ["one", {"key": "two"}]})) == {}
    named = configured(listen={"keys": ["one", {"key": "two", "tenant": "a"}]}, tenants={"b": {"n": 1}})
    assert tenants(named) == {"default": Limits(), "a": Limits(), "b": Limits(n=1)}


def test_what_is_used_stays_counted_over_a_reload(clock: Clock) -> None:
    known = Tenants(clock, expiry=60.0, unproven=10.0)
    assert known.get("a") is known.one
    known.follow({"a": Limits(in_flight=1)})
    held = known.get("a")
    assert held.enter() is None
    with held:
        known.follow({"a": Limits(in_flight=2), "b": Limits()})
        assert known.get("a") is held
        assert held.enter() is None
        assert held.enter() is not None
    known.follow({})
    assert known.get("a") is known.one


@pytest.mark.parametrize(
    "sections",
    [
        {"tenants": {"a b": {}}},
        {"tenants": {"a": {"in_flight": 0}}},
        {"tenants": {"a": {"burst": 2}}},
        {"tenants": {"a": {"sesions": 2}}},
        {"listen": {"keys": [{"key": "k", "tenant": ""}]}},
        {"listen": {"keys": [{"tenant": "a"}]}},
        {"isolation": {"cache_salt": "on"}},
    ],
)
def test_what_is_no_tenant(sections: dict[str, Any]) -> None:
    with pytest.raises((ConfigError, ValueError)):
        configured(**sections)
