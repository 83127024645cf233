"""The section `store`: which URLs are understood, what is too short to be a secret, and that neither is ever shown."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from warmroute import cli
from warmroute.config import Config, ConfigError, StoreConfig, load, read_secret
from warmroute.core.store_url import StoreKind, StoreUrl, read_store_url

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
        ("redis+sentinel://a,b/mymaster", None),
        ("redis+sentinel://user:p%40ss@a:26380,[::1]:26381/my%20master/3", None),
        ("rediss+sentinel://a/m/0?ssl_ca_certs=/etc/ca.pem&sentinel_password=x", None),
        ("redis+cluster://a", None),
        ("rediss+cluster://:secret@a:6380,b:6381/?ssl_ca_certs=/etc/ca.pem", None),
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


@pytest.mark.parametrize(
    "given",
    [
        "redis+sentinel://a,b",
        "redis+sentinel:///mymaster",
        "redis+sentinel://a,/mymaster",
        "redis+sentinel://a:0/mymaster",
        "redis+sentinel://a:99999/mymaster",
        "redis+sentinel://a/mymaster/zero",
        "redis+sentinel://a/mymaster/0/1",
        "redis+sentinel://a/mymaster?ssl_ca_certs=/etc/ca.pem",
        "redis+sentinel://a/mymaster?password=x",
        "unix+sentinel://a/mymaster",
        "redis+cluster://",
        "redis+cluster://a:port",
        "redis+cluster://a/1",
        "redis+cluster://a?sentinel_password=x",
        "redis+other://a",
    ],
)
def test_what_is_no_url_of_sentinels_or_a_cluster(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        store(redis=given)
    kind = given.partition("://")[0].partition("+")[2]
    like = {"sentinel": "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/SERVICE/0"}
    like["cluster"] = "redis+cluster://10.0.0.1:6379,10.0.0.2:6379"
    wanted = like.get(kind, "redis://127.0.0.1:6379/0")
    assert str(caught.value).endswith(f"store.redis: not the URL of a Redis or Valkey; write it like {wanted}")


def test_what_a_url_means() -> None:
    url = "rediss+sentinel://user:p%40ss@a,[::1]:26381/my%20master/3?ssl_ca_certs=/ca&sentinel_password=s%2Fp"
    assert read_store_url(url) == StoreUrl(
        StoreKind.SENTINEL,
        "rediss://user:p%40ss@host/3?ssl_ca_certs=%2Fca",
        (("a", 26379), ("::1", 26381)),
        "my master",
        "rediss://:s%2Fp@host?ssl_ca_certs=%2Fca",
    )
    assert read_store_url("redis+cluster://:secret@a:7000,b") == StoreUrl(
        StoreKind.CLUSTER, "redis://:secret@host/0", (("a", 7000), ("b", 6379))
    )
    assert read_store_url("redis://a/1") == StoreUrl(StoreKind.SERVER, "redis://a/1")


def test_no_password_of_sentinels_is_shown() -> None:
    url = f"redis+sentinel://user:{PASSWORD}@a/m?sentinel_username=u&sentinel_password={PASSWORD}"
    config = load(environment={}, flags={"backends": ["http://a"], "store": {"redis": url}})
    assert PASSWORD not in config.model_dump_json()
    assert (
        "redis+sentinel://**********@a/m?sentinel_username=u&sentinel_password=**********" in config.model_dump_json()
    )
    assert PASSWORD not in repr(config)
    assert PASSWORD not in repr(read_store_url(url))


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
