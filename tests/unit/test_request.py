"""A request: its bytes are kept as they came, and its JSON is looked into without ever failing on it."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.headers import Headers, first_values
from warmroute.core.identity import BODY_FIELDS, SOURCES, identify
from warmroute.proxy import errors
from warmroute.proxy.body import BodyRefused, ClientLeft, Incoming
from warmroute.proxy.errors import RouterError
from warmroute.proxy.request import FieldReader, Request, reader_for

JSON: Headers = [(b"content-type", b"application/json")]


ROUTING = reader_for(SOURCES)


def request(body: bytes, headers: Headers = JSON, reader: FieldReader = ROUTING) -> Request:
    target = "/v1/chat/completions"
    return Request("POST", target.encode(), target, headers, first_values(headers), body, reader)


# Fields


@pytest.mark.parametrize("name", [*BODY_FIELDS, "chat"])
def test_whether_a_body_may_name_its_conversation(name: str) -> None:
    reader = reader_for(["session_id", "body:chat.id"])
    assert request(json.dumps({"model": "m", name: None}).encode(), reader=reader).may_name()
    for other in (b'{"model":"m","messages":[],"chats":1}', b"{}", b"[]", b"", b"{"):
        assert not request(other, reader=reader).may_name()


def test_the_fields_of_a_body() -> None:
    body = b'{"model":"m","session_id":"s","stream":true,"messages":[{"role":"user"}],"n":1.5,"x":null}'
    found = request(body, reader=FieldReader(["model", "session_id", "stream", "messages", "n", "x", "not there"]))
    assert found.model == "m"
    assert found.field("session_id") == "s"
    assert found.field("stream") is True
    assert found.field("messages") == [{"role": "user"}]
    assert found.field("n") == 1.5
    assert found.field("x") is None
    assert found.field("not there") is None


def test_only_top_level_fields_count() -> None:
    body = json.dumps({"messages": [{"session_id": "inner", "model": "inner"}], "extra": {"session_id": "inner"}})
    found = request(body.encode())
    assert (found.field("session_id"), found.model) == (None, None)
    assert identify(found, None).session is None


def test_of_a_repeated_field_the_last_counts() -> None:
    assert request(b'{"model":"a","model":"b"}').model == "b"


ODD_BODIES = {
    "empty": b"",
    "cut off": b'{"model":',
    "bytes that are no text": b'{"model":"\xff\xfe"}',
    "a byte-order mark": b'\xef\xbb\xbf{"model":"m"}',
    "a list": b"[1,2]",
    "a string": b'"hi"',
    "null": b"null",
    "two objects": b'{"model":"m"}{}',
    "half a surrogate": b'{"model":"\\ud800"}',
    "a number": b'{"model":7}',
    "deep nesting": b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b',"model":"m"}',
    "only spaces": b"   ",
    "zeros": b"\0\0\0\0",
}


@pytest.mark.parametrize("body", ODD_BODIES.values(), ids=ODD_BODIES)
def test_an_odd_body_names_no_model_and_is_kept_as_it_is(body: bytes) -> None:
    found = request(body)
    assert found.model is None
    assert identify(found, None).session is None
    assert found.body == body


def test_a_field_that_cannot_be_read_does_not_hide_the_others() -> None:
    found = request(b'{"session_id":"\xff","model":"m"}')
    assert (found.field("session_id"), found.model) == (None, "m")


def test_a_body_that_is_no_json_has_no_fields() -> None:
    """NaN is no JSON (RFC 8259), though Python writes it: routed without a session, and the backend says what it thinks."""
    assert request(b'{"model":"m","metadata":{"score":NaN}}').model is None


@given(st.binary(max_size=60))
@example(b'{"":"')
@example(b'{"model":"\\ud800"}')
def test_no_body_raises(body: bytes) -> None:
    for headers in (JSON, [(b"content-type", b"multipart/form-data; boundary=x")]):
        found = request(body, headers)
        assert found.model is None or isinstance(found.model, str)
        found.field("session_id")
        assert found.body == body


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), min_size=1, max_size=5)


@given(st.dictionaries(names, values, max_size=5), st.booleans(), st.sampled_from([None, 2]))
def test_every_field_is_what_json_says(fields: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    found = request(body, reader=FieldReader(fields))
    assert {name: found.field(name) for name in fields} == fields


def test_only_the_fields_that_routing_looks_at_are_read() -> None:
    found = request(b'{"logit_bias":[1],"model":"m","metadata":{"user_id":"u"}}')
    assert (found.field("logit_bias"), found.field("model"), found.field("metadata")) == (None, "m", {"user_id": "u"})
    assert (found.has("logit_bias"), found.has("tools"), found.has("metadata")) == (False, False, True)
    assert request(b'{"model":"m","tools":null}').has("tools")


def test_looking_for_the_model_of_an_upload_takes_no_longer_for_a_crafted_one() -> None:
    crafted = b'name="model"\r\na\r\n' * 200_000  # a pattern that looks back would need hours
    assert request(crafted, MULTIPART).model is None


def test_of_a_repeated_header_the_first_value_counts() -> None:
    found = request(b"", [(b"x-session-id", b"s"), (b"x-session-id", b"t")])
    assert found.header(b"x-session-id") == b"s"
    assert found.header(b"x-other") is None


# Uploads

UPLOAD = (
    b"--b\r\n"
    b'Content-Disposition: form-data; name="file"; filename="model.wav"\r\n'
    b"Content-Type: audio/wav\r\n"
    b"\r\n" + bytes(range(256)) * 4 + b"\r\n"
    b"--b\r\n"
    b'Content-Disposition: form-data; name="model"\r\n'
    b"%s"
    b"\r\n"
    b"whisper\r\n"
    b"--b--\r\n"
)
MULTIPART: Headers = [(b"content-type", b'Multipart/Form-Data; boundary="b"')]


@pytest.mark.parametrize(
    "more", [b"", b"Content-Type: text/plain\r\n", b"A: 1\r\nB: 2\r\n"], ids=["bare", "one", "two"]
)
def test_the_model_of_an_upload_is_found_in_its_form(more: bytes) -> None:
    assert request(UPLOAD.replace(b"%s", more), MULTIPART).model == "whisper"


@pytest.mark.parametrize(
    "body",
    [b"", b"--b--\r\n", UPLOAD.replace(b'name="model"', b'name="models"'), UPLOAD.replace(b"whisper\r\n", b"\r\n")],
    ids=["empty", "no parts", "another field", "an empty field"],
)
def test_an_upload_without_a_model_names_none(body: bytes) -> None:
    assert request(body.replace(b"%s", b""), MULTIPART).model is None


def test_an_upload_has_no_json_fields_even_if_it_looks_like_json() -> None:
    assert request(b'{"session_id":"s","model":"m"}', MULTIPART).field("session_id") is None


# Reading the body

Message = dict[str, Any]


def receiver(*messages: Message) -> Callable[[], Any]:
    async def each() -> AsyncIterator[Message]:
        for message in messages:
            yield message
        raise AssertionError("read beyond the end")

    return each().__anext__


@dataclass
class Source:
    """Where a body comes from: what is taken of it each time, None where the client has left; `whole` if it ends with that."""

    pieces: list[bytes | None]
    ends: bool = True
    broken: RouterError | None = None
    length: int | None = None

    @property
    def whole(self) -> bool:
        return self.ends and not self.pieces

    async def take(self) -> bytes:
        return self.here()

    def here(self) -> bytes:
        piece = self.pieces.pop(0)
        if piece is None:
            raise ClientLeft
        return piece


@pytest.mark.parametrize(
    "pieces",
    [[b"whole"], [b"in ", b"two"], [b"a", b"", b"b", b""], [b""]],
    ids=["whole", "two pieces", "with empty pieces", "no body"],
)
async def test_a_body_is_read_whole(pieces: list[bytes | None]) -> None:
    body = b"".join(filter(None, pieces))
    assert await Incoming(Source(pieces), 5_000).whole() == body


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    assert await Incoming(Source([b"12345"], length=5), 5).whole() == b"12345"


class Whole(Source):
    """A source all of which has come."""

    whole = True


@pytest.mark.parametrize(
    ("source", "body"),
    [
        (Whole([b"12345"], length=5), b"12345"),
        (Whole([b"123456"], length=6), None),
        (Whole([b"123"]), None),
        (Source([b"123"], length=5), None),
    ],
    ids=["whole", "too long", "of no announced length", "not all of it"],
)
async def test_only_a_whole_body_of_a_known_length_is_taken_at_once(source: Source, body: bytes | None) -> None:
    incoming = Incoming(source, 5)
    assert incoming.at_once() == body
    assert (incoming.ended, incoming.read) == (body is not None, len(body or b""))
    if body is not None:
        assert incoming.at_once() is None
        assert await incoming.whole() == b""


async def test_an_announced_length_over_the_limit_is_refused_before_reading() -> None:
    with pytest.raises(BodyRefused, match="larger than 5 bytes"):
        await Incoming(Source([], length=6), 5).whole()


@pytest.mark.parametrize("announced", [None, 3], ids=["none", "a lie"])
async def test_a_body_that_grows_over_the_limit_is_refused_at_once(announced: int | None) -> None:
    with pytest.raises(BodyRefused, match="larger than 5 bytes"):
        await Incoming(Source([b"123", b"456"], ends=False, length=announced), 5).whole()


async def test_a_body_that_breaks_off_is_refused_with_the_connections_reason() -> None:
    source = Source([b"123"], ends=False, broken=errors.body_too_slow())
    with pytest.raises(BodyRefused) as caught:
        await Incoming(source, 5).whole()
    assert caught.value.error is source.broken


async def test_a_whole_body_is_taken_though_what_follows_it_is_broken() -> None:
    assert await Incoming(Source([b"123"], broken=errors.not_http()), 5).whole() == b"123"


@pytest.mark.parametrize("pieces", [[None], [b"half", None]], ids=["at once", "half way"])
async def test_a_client_that_leaves_is_noticed(pieces: list[bytes | None]) -> None:
    with pytest.raises(ClientLeft):
        await Incoming(Source(pieces, ends=False), 100).whole()


def test_repr_shows_nothing_of_the_conversation() -> None:
    assert repr(request(b'{"secret":1}')) == "<Request POST /v1/chat/completions 12 bytes>"
