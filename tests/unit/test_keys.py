"""Who is admitted: the keys, where clients put them, and what goes on."""

from hashlib import sha256
from pathlib import Path

import pytest
from pydantic import ValidationError

from warmroute.config import Config
from warmroute.proxy.keys import Keys, without_keys

BACKEND = "http://a:1"


def keys(*texts: str) -> Keys:
    return Keys((text, f"of {text[:3]}") for text in texts)


@pytest.mark.parametrize(
    "shown",
    [
        (b"authorization", b"Bearer one"),
        (b"authorization", b"bearer  one"),
        (b"x-api-key", b"one"),
        (b"api-key", b"one"),
        (b"api-key", b"two"),
    ],
)
def test_a_key_is_found_where_clients_put_it(shown: tuple[bytes, bytes]) -> None:
    assert keys("one", "two").tenant([(b"host", b"x"), shown])


@pytest.mark.parametrize(
    "shown",
    [
        (b"host", b"one"),
        (b"authorization", b"Bearer on"),
        (b"authorization", b"Bearer onee"),
        (b"authorization", b"Basic one"),
        (b"authorization", b""),
        (b"x-api-key", b""),
        (b"x-api-key", b"Bearer one"),
        (b"cookie", b"one"),
    ],
)
def test_everything_else_is_none(shown: tuple[bytes, bytes]) -> None:
    assert keys("one", "two").tenant([shown]) is None
    assert keys("one").tenant([]) is None


def test_each_key_is_its_tenants() -> None:
    known = Keys([("one", "a"), ("two", "b"), ("two", "c")])
    assert known.tenant([(b"x-api-key", b"one")]) == "a"
    assert known.tenant([(b"x-api-key", b"two")]) == "c"
    assert known.tenant([(b"x-api-key", b"two"), (b"authorization", b"Bearer one")]) == "c"


def test_one_good_key_among_several_is_enough() -> None:
    assert keys("one").tenant([(b"authorization", b"Bearer sk-none"), (b"x-api-key", b"one")])


def test_a_key_can_be_known_by_its_digest_alone() -> None:
    hashed = f"sha256:{sha256(b'one').hexdigest().upper()}"
    assert keys(hashed).tenant([(b"api-key", b"one")])
    assert keys(hashed).tenant([(b"api-key", hashed.encode())]) is None


def test_what_shows_a_key_goes_no_further_and_all_else_does() -> None:
    headers = [(b"host", b"x"), (b"authorization", b"a"), (b"x-api-key", b"b"), (b"api-key", b"c"), (b"cookie", b"d")]
    assert without_keys(headers) == [(b"host", b"x"), (b"cookie", b"d")]


def test_repr_shows_no_key() -> None:
    assert repr(keys("one", "two")) == "<Keys 2>"


def test_a_backends_own_key_goes_before_that_of_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANTED", "from-env")
    (tmp_path / "key").write_text("from-file\n")
    config = Config.model_validate(
        {
            "backends": [{"url": "http://a:1", "key": "env:WANTED"}, "http://b:1"],
            "upstream": {"key": f"file:{tmp_path / 'key'}"},
        }
    )
    assert [spec.credentials for spec in config.specs] == [
        {"authorization": "Bearer from-env"},
        {"authorization": "Bearer from-file"},
    ]
    assert "from-" not in repr(config) + str(config.specs) + config.model_dump_json()
    assert Config.from_urls([BACKEND]).specs[0].credentials == {}


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("env:NOT_THERE", "not set in the environment"),
        ("file:/not/there", "No such file"),
        ("with space", "printable ASCII"),
        ("über", "printable ASCII"),
        ("", "printable ASCII"),
        ("a\r\nb", "printable ASCII"),
        ("sha256:12", "64 hex digits"),
    ],
)
def test_what_cannot_be_a_key_is_told(key: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Config.model_validate({"backends": [BACKEND], "listen": {"keys": [key]}})


@pytest.mark.parametrize(
    ("host", "keys", "is_so"),
    [
        ("127.0.0.1", [], False),
        ("127.1.2.3", [], False),
        ("::1", [], False),
        ("localhost", [], False),
        ("0.0.0.0", [], True),
        ("::", [], True),
        ("10.0.0.1", [], True),
        ("gpu-a.example", [], True),
        ("0.0.0.0", ["one"], False),
    ],
)
def test_a_router_that_everybody_can_use_is_told(host: str, keys: list[str], is_so: bool) -> None:
    config = Config.model_validate({"backends": [BACKEND], "listen": {"host": host, "keys": keys}})
    assert config.listen.is_open is is_so
