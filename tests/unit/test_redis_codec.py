"""How pins look in the shared store: what is written can be read, by every router alike, and nothing else can."""

import json
from hashlib import blake2b

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.model import Place
from warmroute.pins import codec
from warmroute.pins.codec import Naming

KEY = bytes(range(16))
NAMES = st.text(min_size=1, max_size=60)
ENGINES = st.none() | st.text(max_size=10)


def naming(secret: bytes | None = b"s" * 16, prefix: str = "warmroute:") -> Naming:
    return Naming(prefix, codec.key_of(secret, prefix))


# Values


@given(NAMES, ENGINES)
@example("127.0.0.1:8000", None)
@example('gpu "a"\\/\n\0é', "0")
def test_a_place_is_read_as_it_was_written(backend: str, engine: str | None) -> None:
    raw = codec.value(backend, engine)
    assert codec.read(raw) == Place(backend, engine)
    assert json.loads(raw) == [1, backend, engine]


def test_the_form_is_fixed() -> None:
    # Routers of different releases read each other's values: a change of these bytes needs a new version number.
    assert codec.value("gpu-a:8000", "1") == b'[1,"gpu-a:8000","1"]'
    assert codec.value("gpu-a:8000", None) == b'[1,"gpu-a:8000",null]'


def test_equal_places_are_one_object() -> None:
    # A table of a million pins holds one value for each backend and engine, not a million.
    assert codec.value("gpu-a", "1") is codec.value("gpu-" + "a", "1")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"gpu-a",
        b"[]",
        b'[1,"gpu-a"]',
        b'[1,"",null]',
        b'[1,"gpu-a",null,0]',
        b'[2,"gpu-a",null]',
        b'["1","gpu-a",null]',
        b'[true,"gpu-a",null]',
        b'[1.0,"gpu-a",null]',
        b"[1,7,null]",
        b'[1,"gpu-a",1]',
        b'[1, "gpu-a",null]',
        b' [1,"gpu-a",null]',
        b'[1,"gpu-\\u0061",null]',
        b'{"version":1,"backend":"gpu-a","engine":null}',
        b'[1,"gpu-\xff",null]',
        b"\x80\x04\x95\x00\x00.",
        b"[" * 5000,
        b'[1,"' + b"a" * 2000 + b'",null]',
    ],
)
def test_anything_else_is_no_place(raw: bytes) -> None:
    assert codec.read(raw) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(raw: bytes) -> None:
    place = codec.read(raw)
    assert place is None or codec.value(*place) == raw


# Names


def test_a_name_is_the_same_in_every_router() -> None:
    key = blake2b(b"s" * 16, digest_size=32, person=b"wr-pins-secret").digest()
    assert naming().name(KEY) == blake2b(KEY, digest_size=16, key=key).digest()
    assert naming().name(KEY).hex() == "8e7ceccb473d1270c5bcd16dc0043f11"
    assert naming(None).name(KEY).hex() == "8c3db467365af62f4c94f6f4074839b8"
    assert naming().stored(naming().name(KEY)) == b"warmroute:8e7ceccb473d1270c5bcd16dc0043f11"


@pytest.mark.parametrize(
    "other",
    [naming(b"t" * 16), naming(b"s" * 17), naming(None), naming(None, "other:")],
    ids=["secret", "longer secret", "no secret", "other prefix and no secret"],
)
def test_another_secret_gives_other_names(other: Naming) -> None:
    assert other.name(KEY) != naming().name(KEY)


def test_without_a_secret_the_prefix_decides() -> None:
    assert naming(None).name(KEY) == naming(None).name(KEY)
    assert naming(None).name(KEY) != naming(None, "other:").name(KEY)


@pytest.mark.parametrize("length", [1, 16, 64, 65, 5000])
def test_a_secret_may_have_any_length(length: int) -> None:
    assert len(naming(b"x" * length).name(KEY)) == codec.NAME_SIZE


def test_every_key_and_the_channel_begin_with_the_prefix() -> None:
    names = naming(prefix="chat:é")
    for key in (names.stored(names.name(KEY)), names.marker, names.channel):
        assert key.startswith("chat:é".encode())
    assert len({names.stored(names.name(KEY)), names.marker, names.channel}) == 3


def test_neither_key_nor_secret_can_be_seen() -> None:
    names = naming()
    assert KEY.hex() not in names.stored(names.name(KEY)).decode()
    assert repr(names) == "<Naming 'warmroute:'>"


# Messages

OWN, OTHER = b"o" * 8, b"x" * 8


def test_what_another_router_changed() -> None:
    assert codec.changed(codec.message(OTHER, KEY), OWN) == KEY


@pytest.mark.parametrize("data", [codec.message(OWN, KEY), b"", KEY, OTHER + KEY + b"x", OTHER + KEY[1:]])
def test_own_messages_and_other_bytes_are_none(data: bytes) -> None:
    assert codec.changed(data, OWN) is None
