"""Headers: what passes, what is dropped, and the exact bytes of the request that is sent on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.headers import Headers, first_values, request_head, request_id, response_headers, sent_on

HOP_BY_HOP = [
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
]
OUR_OWN = [b"host", b"expect", b"content-length", b"x-request-id", b"x-data-parallel-rank"]


def head(headers: Headers, *, body_length: int | None = 2, extra: Headers = ()) -> bytes:
    return request_head("POST", b"/v1/x", sent_on(headers), host=b"b1:8000", body_length=body_length, extra=extra)


def sent(headers: Headers, **kwargs: Headers) -> list[bytes]:
    """The header lines of our own request, without the request line and the two that are always there."""
    lines = head(headers, body_length=None, **kwargs).split(b"\r\n")
    assert lines[:2] == [b"POST /v1/x HTTP/1.1", b"host: b1:8000"]
    assert lines[-2:] == [b"", b""]
    return lines[2:-2]


# The request to a backend


def test_the_bytes_of_a_request() -> None:
    headers = [(b"content-type", b"application/json"), (b"authorization", b"Bearer x"), (b"content-length", b"99")]
    assert head(headers, body_length=2, extra=[(b"x-request-id", b"r1")]) == (
        b"POST /v1/x HTTP/1.1\r\n"
        b"host: b1:8000\r\n"
        b"content-type: application/json\r\n"
        b"authorization: Bearer x\r\n"
        b"x-request-id: r1\r\n"
        b"content-length: 2\r\n"
        b"\r\n"
    )


@pytest.mark.parametrize(
    "target",
    [b"/v1/models/org%2Fname%20x?q=a%2Bb&q=c%20d&e=&x=%E4%BD%A0&flag", b"/v1/chat/completions?timeout=5;v=1", b"/?"],
)
def test_the_target_is_sent_as_it_came(target: bytes) -> None:
    sent_head = request_head("GET", target, sent_on([]), host=b"h", body_length=None)
    assert sent_head == b"GET " + target + b" HTTP/1.1\r\nhost: h\r\n\r\n"


@pytest.mark.parametrize(("length", "line"), [(None, None), (0, b"content-length: 0"), (7, b"content-length: 7")])
def test_the_length_is_that_of_the_body_or_none(length: int | None, line: bytes | None) -> None:
    lines = head([(b"content-length", b"99"), (b"transfer-encoding", b"chunked")], body_length=length).split(b"\r\n")
    assert [one for one in lines if one.startswith((b"content-length", b"transfer-encoding"))] == (
        [line] if line else []
    )


@pytest.mark.parametrize("name", [*HOP_BY_HOP, *OUR_OWN])
def test_headers_of_one_connection_and_our_own_are_not_sent_on(name: bytes) -> None:
    assert sent([(name, b"1"), (b"x-kept", b"1")]) == [b"x-kept: 1"]


def test_a_header_of_ours_takes_the_place_of_the_clients() -> None:
    given = [(b"x-session-id", b"theirs"), (b"a", b"1"), (b"x-session-id", b"again")]
    assert sent(given, extra=[(b"x-session-id", b"ours")]) == [b"a: 1", b"x-session-id: ours"]
    assert sent(given, extra=[(b"b", b"2")]) == [b"x-session-id: theirs", b"a: 1", b"x-session-id: again", b"b: 2"]


def test_headers_named_in_connection_are_not_sent_on() -> None:
    headers = [(b"connection", b"close, X-Hop ,x-other"), (b"x-hop", b"s"), (b"x-other", b"s"), (b"x-kept", b"1")]
    assert sent(headers) == [b"x-kept: 1"]
    assert sent([(b"connection", b"x-a"), (b"connection", b"x-b"), (b"x-a", b"1"), (b"x-b", b"1")]) == []


def test_close_and_keep_alive_name_no_header() -> None:
    assert sent([(b"connection", b"keep-alive, close"), (b"close", b"1"), (b"x", b"2")]) == [b"close: 1", b"x: 2"]


def test_repeated_headers_stay_repeated_and_in_order() -> None:
    headers = [(b"cookie", b"a=1"), (b"x-tag", b"1"), (b"cookie", b"b=2"), (b"x-tag", b"2")]
    assert sent(headers) == [b"cookie: a=1", b"x-tag: 1", b"cookie: b=2", b"x-tag: 2"]


def test_odd_bytes_in_a_value_pass() -> None:
    assert sent([(b"x-session-id", b"caf\xc3\xa9\xff")]) == [b"x-session-id: caf\xc3\xa9\xff"]


tokens = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=12).map(str.encode)
values = st.binary(max_size=12).map(lambda v: bytes(b for b in v if b not in b"\r\n\0")).map(bytes.strip)
header_lists = st.lists(st.tuples(tokens | st.sampled_from(HOP_BY_HOP), values), max_size=8)


@given(header_lists, st.lists(tokens, max_size=3))
def test_everything_else_passes_unchanged(headers: Headers, named: list[bytes]) -> None:
    given_headers = [*headers, (b"connection", b", ".join(named))] if named else headers
    in_connection = {t.strip().lower() for n, v in given_headers if n == b"connection" for t in v.split(b",")}
    gone = set(HOP_BY_HOP) | (in_connection - {b"close", b"keep-alive"})
    assert response_headers(given_headers) == [(name, value) for name, value in headers if name not in gone]
    kept = [(name, value) for name, value in headers if name not in gone | set(OUR_OWN)]
    assert sent(given_headers) == [name + b": " + value for name, value in kept]


# The answer to the client


def test_an_answer_keeps_what_it_says_of_itself() -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"5"), (b"content-encoding", b"gzip")]
    assert response_headers(headers) == headers


def test_repeated_headers_of_an_answer_stay_repeated() -> None:
    cookies = [
        (b"set-cookie", b"a=1; Path=/"),
        (b"set-cookie", b"b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
        (b"warning", b"199 x"),
        (b"warning", b"199 y"),
    ]
    assert response_headers(cookies, cookies=True) == cookies
    assert response_headers(cookies) == cookies[2:]


@pytest.mark.parametrize("name", HOP_BY_HOP)
def test_headers_of_the_backends_connection_stay_behind(name: bytes) -> None:
    assert response_headers([(name, b"1"), (b"x-kept", b"1")]) == [(b"x-kept", b"1")]


def test_what_the_backend_names_in_connection_stays_behind() -> None:
    headers = [(b"x-internal", b"1"), (b"connection", b"keep-alive, X-Internal"), (b"x-kept", b"1")]
    assert response_headers(headers) == [(b"x-kept", b"1")]


# One value


def test_of_a_repeated_header_the_first_value_is_found() -> None:
    headers = [(b"x-a", b"1"), (b"x-b", b""), (b"x-a", b"2")]
    assert first_values(headers) == {b"x-a": b"1", b"x-b": b""}
    assert first_values([]) == {}


@pytest.mark.parametrize(
    "value", [b"a", b"req_1.2-3", b"A" * 64, b"chatcmpl-98f2dd45600429a8"], ids=lambda v: v.decode()[:20]
)
def test_a_plain_request_id_is_kept(value: bytes) -> None:
    assert request_id(value, "fresh") == value.decode()


@pytest.mark.parametrize(
    "value",
    [None, b"", b" ", b"a b", b"a\n", b"a\r\nb", b"A" * 65, b"caf\xc3\xa9", b"a/b", b"a:b", b"{}", b"\0"],
    ids=ascii,
)
def test_any_other_request_id_is_replaced(value: bytes | None) -> None:
    assert request_id(value, "fresh") == "fresh"
