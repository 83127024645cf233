"""The section `store`: which URLs are understood, what is too short to be a secret, and that neither is ever shown."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from warmroute import cli
from warmroute.config import Config, ConfigError, StoreConfig, load, read_secret

SECRET = "sixteen-letters!"
PASSWORD = "p4ssw0rd-of-redis"


def store(**values: object) -> StoreConfig:
    return load(environment={}, flags={"backends": ["http://a"], "store": values}).store


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("redis://127.0.0.1:6379/0", None),
        ("redis://redis", None),
        ("redis://redis/", None),
        ("redis://[::1]:6379/15", None),
        ("redis://:secret@redis:6379", None),
        ("redis://user:p%40ss@redis", None),
        ("rediss://redis:6380", None),
        ("rediss://redis:6380/1?ssl_ca_certs=/etc/ca.pem&ssl_check_hostname=false", None),
        ("unix:///run/redis.sock", None),
        ("unix://:secret@/run/redis.sock?db=2", None),
        ("127.0.0.1:6379", "redis://127.0.0.1:6379"),
        ("redis.example", "redis://redis.example"),
    ],
)
def test_urls(given: str, meant: str | None) -> None:
    assert store(redis=given).redis == (meant or given)


@pytest.mark.parametrize(
    "given",
    [
        "",
        "http://redis:6379",
        "redis+sentinel://a,b/mymaster",
        "valkey://redis",
        "redis://",
        "redis://:6379",
        "redis://redis:0",
        "redis://redis:99999",
        "redis://redis:port",
        "redis://redis/zero",
        "redis://redis/0/1",
        "redis://redis?socket_timeout=60",
        "redis://redis?ssl_ca_certs=/etc/ca.pem",
        "rediss://redis?retry_on_timeout=true",
        "unix://",
        "unix://run/redis.sock",
        "unix:///run/redis.sock?client_name=x",
    ],
)
def test_what_is_no_url_of_a_store(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        store(redis=given)
    assert str(caught.value).endswith(
        "store.redis: not the URL of a Redis or Valkey; write it like redis://127.0.0.1:6379/0"
    )


def test_a_password_is_not_told_with_a_fault() -> None:
    with pytest.raises(ConfigError) as caught:
        store(redis=f"redis://user:{PASSWORD}@redis/zero")
    assert PASSWORD not in str(caught.value)


def test_without_a_url_there_is_no_store() -> None:
    assert store().redis is None
    assert read_secret(store()) is None


# What is kept secret


def test_neither_password_nor_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMROUTE_STORE__REDIS", f"redis://user:{PASSWORD}@redis:6379/0")
    monkeypatch.setenv("WARMROUTE_STORE__SECRET", SECRET)
    shown = CliRunner().invoke(cli.main, ["config", "show", "http://a"])
    assert shown.exit_code == 0
    assert json.loads(shown.output)["store"] == {
        "redis": "redis://**********@redis:6379/0",
        "prefix": "warmroute:",
        "deadline": 0.015,
        "secret": "**********",
        "secret_file": None,
    }
    config = load(flags={"backends": ["http://a"]})
    assert config.store.redis == f"redis://user:{PASSWORD}@redis:6379/0"
    assert PASSWORD not in repr(config)
    assert SECRET not in repr(config)


def test_a_secret_goes_before_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("seventeen letters\n")
    assert read_secret(store(secret_file=str(file))) == b"seventeen letters"
    assert read_secret(store(secret_file=str(file), secret=SECRET)) == SECRET.encode()


@pytest.mark.parametrize("secret", ["", "fifteen-letters"])
def test_a_secret_that_is_too_short(secret: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.secret: too short to be a secret; give at least 16 characters"):
        store(secret=secret)


@pytest.mark.parametrize("deadline", ["0s", "2s", "1h"])
def test_a_deadline_that_is_none(deadline: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.deadline"):
        store(deadline=deadline)


# The command line


def test_the_flag_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Config] = []

    async def serve(config: Config, log_stream: object, read: object) -> None:
        given.append(config)

    monkeypatch.setenv("WARMROUTE_STORE__REDIS", "redis://other")
    monkeypatch.setattr(cli, "serve", serve)
    done = CliRunner().invoke(cli.main, ["serve", "http://a", "--redis", "redis.example:6379"])
    assert done.exit_code == 0, done.output
    assert [config.store.redis for config in given] == ["redis://redis.example:6379"]


def test_a_flag_of_no_use_is_one_line() -> None:
    done = CliRunner().invoke(cli.main, ["serve", "http://a", "--redis", "http://redis"])
    assert done.exit_code == 2
    assert done.output == (
        "warmroute: store.redis: not the URL of a Redis or Valkey; write it like redis://127.0.0.1:6379/0\n"
    )
