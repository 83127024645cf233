"""Configuration: what wins over what, what is refused and with which words, and what every value means."""

import types
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from warmroute.config import BackendConfig, Config, ConfigError, load
from warmroute.core.model import BackendSpec, Trust

FILES = Path(__file__).parent.parent / "config"

LIST_THEM = "no backends: list the URLs of your vLLM servers, as in 'backends: [http://127.0.0.1:8000]'"

BAD: dict[str, list[str]] = {
    "a-list": ["{file}: expected keys such as 'backends:' at the top"],
    "admin-token-too-short": [
        "{file}:3: listen.admin_token: too short to be a token; give at least 16 characters, as of `openssl rand -hex 16`"
    ],
    "admin-without-token": [
        "{file}:2: listen: others can reach the admin port at 10.0.0.1, so it needs a token: set listen.admin_token"
        " (WARMROUTE_LISTEN__ADMIN_TOKEN), or let it listen on 127.0.0.1"
    ],
    "backend-is-a-number": ["{file}:3: backends.1: expected keys below it, such as 'key: value'"],
    "backend-without-url": ["{file}:3: backends.1.url: is missing"],
    "backends-empty": [f"{{file}}:1: {LIST_THEM}"],
    "backends-one-text": ["{file}:1: backends: expected a list"],
    "bound-below-one": ["{file}:3: affinity.session_bound: Input should be greater than or equal to 1"],
    "client-key-without-certificate": [
        "{file}:2: upstream: cert_key is of no use without cert, the certificate that it belongs to"
    ],
    "control-character": ["{file}: not YAML: unacceptable character #x0001: special characters are not allowed"],
    "duration-in-parts": [
        "{file}:3: affinity.idle_expiry: '1h30m' is not a duration; write it like 500ms, 2s, 30m or 1h"
    ],
    "duration-negative": ["{file}:3: upstream.connect_timeout: Input should be greater than 0"],
    "duration-no-number": ["{file}:3: metrics.scrape_interval: Input should be greater than 0"],
    "duration-of-nothing": ["{file}:3: health.timeout: Input should be greater than 0"],
    "duration-of-words": ["{file}:3: health.interval: 'soon' is not a duration; write it like 500ms, 2s, 30m or 1h"],
    "empty": [f"{{file}}: {LIST_THEM}"],
    "endless-alias": ["{file}:1: not YAML: an alias holds itself"],
    "fall-zero": ["{file}:3: health.fall: Input should be greater than or equal to 1"],
    "keepalive-longer-than-vllms": ["{file}:3: upstream.keepalive_expiry: Input should be less than 5"],
    "header-that-cannot-pass": [
        "{file}:3: forward.pass_headers: X-Data-Parallel-Rank cannot be passed on: the router sets it, or it is of one"
        " connection alone"
    ],
    "key-is-a-number": ["{file}:2: 8080: Keys should be strings"],
    "key-source-one-text": ["{file}:3: affinity.key_sources: expected a list"],
    "key-source-unknown": [
        "{file}:3: affinity.key_sources: 'cookie' is no key source; add one as header:NAME, body:PATH or cookie:NAME"
    ],
    "latin-1": ["{file}: not UTF-8 text"],
    "log-format-unknown": ["{file}:3: log.format: Input should be 'auto', 'json', 'text' or 'off'"],
    "name-with-control-characters": ["{file}:2: backends.0.name: 'gpu\\na' is not a name; use printable characters"],
    "no-backends": [f"{{file}}: {LIST_THEM}"],
    "no-yaml": ["{file}:2: not YAML: expected ',' or ']', but got ':'"],
    "only-backend-is-bad": [
        "{file}:2: backends.0.url: 'ftp://127.0.0.1:8000' is not the URL of a server; write it like http://127.0.0.1:8000"
    ],
    "port-is-a-word": [
        "{file}:3: listen.admin_port: Input should be a valid integer, unable to parse string as an integer"
    ],
    "port-out-of-range": ["{file}:3: listen.port: Input should be less than or equal to 65535"],
    "python-object": [
        "{file}:2: not YAML: could not determine a constructor for the tag 'tag:yaml.org,2002:python/object:os.system'"
    ],
    "repeated-key": ["{file}:4: 'listen' stands here a second time; the first is in line 2"],
    "section-is-a-text": ["{file}:2: listen: expected keys below it, such as 'key: value'"],
    "server-key-without-certificate": [
        "{file}:2: listen: admin_cert_key is of no use without admin_cert, the certificate that it belongs to"
    ],
    "server-name-with-a-scheme": [
        "{file}:3: backends.0.server_name: 'https://gpu-a.example' is not a name that a certificate can hold;"
        " write it like gpu-a.example or 10.0.0.1"
    ],
    "several": [
        "{file}:3: backends.1.url: 'ftp://127.0.0.1:8001' is not the URL of a server; write it like http://127.0.0.1:8000",
        "{file}:5: listen.port: Input should be greater than or equal to 0",
        "{file}:6: unknown key 'listen.hst'; did you mean 'host'?",
    ],
    "size-in-other-units": ["{file}:3: limits.body: '64MB' is not a size; write it like 512KiB or 64MiB"],
    "size-in-pieces": ["{file}:3: limits.body: Input should be a valid integer, got a number with a fractional part"],
    "size-of-nothing": ["{file}:3: limits.body: Input should be greater than 0"],
    "switch-is-a-word": ["{file}:2: response_headers: Input should be a valid boolean, unable to interpret input"],
    "tab": ["{file}:2: not YAML: found character '\\t' that cannot start any token"],
    "two-documents": ["{file}:2: not YAML: but found another document"],
    "two-of-one-name": ["{file}: two backends are named 'gpu'; give each a name of its own"],
    "two-of-one-url": ["{file}: two backends are named '127.0.0.1:8000'; give each a name of its own"],
    "undefined-alias": ["{file}:1: not YAML: found undefined alias 'servers'"],
    "unknown-key": ["{file}:4: unknown key 'listen.prot'; did you mean 'port'?"],
    "unknown-key-like-none": ["{file}:3: unknown key 'log.zzzz'; known here are format"],
    "unknown-key-of-a-backend": ["{file}:4: unknown key 'backends.1.wieght'; did you mean 'weight'?"],
    "unknown-key-of-a-client-key": ["{file}:5: unknown key 'listen.keys.0.tennant'; did you mean 'tenant'?"],
    "unknown-key-of-a-tenant": ["{file}:4: unknown key 'tenants.red.rates'; did you mean 'rate'?"],
    "unknown-section": ["{file}:2: unknown key 'helth'; did you mean 'health'?"],
    "vllm-series-unknown": ["{file}:3: metrics.vllm_series: expected 'all', 'none' or a list of names"],
    "weight-too-large": ["{file}:4: backends.1.weight: Input should be less than or equal to 10"],
    "weight-zero": ["{file}:3: backends.1.weight: Input should be greater than or equal to 0.1"],
}
"""File -> its message, one line a fault."""

PYTHONS_WORDS = ("tuple", "dictionary", "instance of", "literal[")
GOOD = ["every-key", "one-backend", "log-off", "nothing-in-a-section"]


def told(file: Path) -> list[str]:
    """The lines of the error that a file makes."""
    with pytest.raises(ConfigError) as caught:
        load(file, environment={})
    return str(caught.value).replace(str(file), "{file}").split("\n")


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_file_is_refused_with_its_message(name: str) -> None:
    assert told(FILES / f"{name}.bad.yaml") == BAD[name]


def test_every_bad_file_has_its_message() -> None:
    assert {path.name.removesuffix(".bad.yaml") for path in FILES.glob("*.bad.yaml")} == set(BAD)


@pytest.mark.parametrize("name", sorted(BAD))
def test_no_message_speaks_of_python(name: str) -> None:
    message = "\n".join(told(FILES / f"{name}.bad.yaml")).lower()
    assert not [word for word in PYTHONS_WORDS if word in message]


# Good files


def keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every key that a configuration may hold."""
    for name, field in model.model_fields.items():
        inner = BackendConfig if name == "backends" else field.annotation
        if isinstance(inner, type) and not isinstance(inner, types.GenericAlias) and issubclass(inner, BaseModel):
            yield from keys(inner, (*path, name))
        else:
            yield (*path, name)


def value_at(config: object, path: tuple[str, ...]) -> object:
    for name in path:
        config = getattr(config, name)
        if name == "backends":
            config = config[0]  # type: ignore[index]
    return config


@pytest.mark.parametrize("path", list(keys(Config)), ids=".".join)
def test_every_key_can_be_set(path: tuple[str, ...]) -> None:
    every = load(FILES / "every-key.good.yaml", environment={})
    default = load(FILES / "one-backend.good.yaml", environment={})
    assert value_at(every, path) != value_at(default, path)


def test_what_is_set_is_what_is_in_force() -> None:
    config = load(FILES / "every-key.good.yaml", environment={})
    trust = Trust("/etc/warmroute/ca.pem", "/etc/warmroute/client.pem", "/etc/warmroute/client.key", verify=False)
    assert config.specs == (
        BackendSpec(
            "gpu-a",
            "https://gpu-a.example:8443/base",
            2.5,
            "of-gpu-a",
            trust._replace(ca="/etc/warmroute/gpu-a.pem"),
            "gpu-a.internal",
        ),
        BackendSpec("gpu-b.example:8000", "http://gpu-b.example:8000", 1.0, "of-all-others", trust),
    )
    assert (config.listen.host, config.listen.port) == ("::", 9080)
    assert (config.affinity.key_sources, config.affinity.idle_expiry) == (("session_id",), 7200.0)
    assert (config.health.unsettled_interval, config.health.timeout) == (0.5, 1.5)
    assert config.limits.body == 3 << 19
    assert config.metrics.vllm_series == ("vllm:prefix_cache", "vllm:num_requests")
    assert (config.log.format, config.response_headers) == ("json", False)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_file_is_taken(name: str) -> None:
    assert load(FILES / f"{name}.good.yaml", environment={}).specs


def test_every_good_file_is_tried() -> None:
    others = {path.name for path in FILES.iterdir()} - {f"{name}.bad.yaml" for name in BAD}
    assert others == {f"{name}.good.yaml" for name in GOOD}


# What wins


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "warmroute.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("flag", [None, 3], ids=["no flag", "flag"])
@pytest.mark.parametrize("environment", [None, 2], ids=["no environment", "environment"])
@pytest.mark.parametrize("in_file", [None, 1], ids=["no file", "file"])
def test_flags_over_environment_over_file_over_default(
    tmp_path: Path, in_file: int | None, environment: int | None, flag: int | None
) -> None:
    file = written(tmp_path, f"backends: [http://a]\nlisten: {{port: {in_file}}}\n") if in_file else None
    env = {"WARMROUTE_LISTEN__PORT": str(environment)} if environment else {}
    flags = {"backends": ["http://a"], "listen": {"port": flag, "host": None}}
    config = load(file, environment=env, flags=flags)
    assert config.listen.port == (flag or environment or in_file or 8080)
    assert config.listen.host == "127.0.0.1"


def test_a_section_is_merged_key_by_key(tmp_path: Path) -> None:
    file = written(tmp_path, "backends: [http://a]\nlisten: {port: 1, host: 10.0.0.1, admin_port: 5}\n")
    config = load(file, environment={"WARMROUTE_LISTEN__PORT": "2"}, flags={"listen": {"admin_port": 6}})
    assert (config.listen.port, config.listen.host, config.listen.admin_port) == (2, "10.0.0.1", 6)


def test_a_list_is_replaced_whole(tmp_path: Path) -> None:
    file = written(tmp_path, "backends: [http://a, http://b]\n")
    assert [s.name for s in load(file, environment={"WARMROUTE_BACKENDS": "http://c"}).specs] == ["c"]
    assert [s.name for s in load(file, environment={}, flags={"backends": ["http://d"]}).specs] == ["d"]


def test_no_file_is_needed() -> None:
    config = load(environment={}, flags={"backends": ["http://a:8000", "b:8000"]})
    assert [spec.name for spec in config.specs] == ["a:8000", "b:8000"]
    assert config == Config.from_urls(["http://a:8000", "b:8000"])


def test_from_urls_takes_keys_of_listen() -> None:
    assert Config.from_urls(["http://a"], port=0, admin_port=0).listen.port == 0


def test_the_process_environment_is_read_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMROUTE_BACKENDS", "http://from-the-environment")
    assert load().specs[0].name == "from-the-environment"
    with pytest.raises(ConfigError, match="no backends"):
        load(environment={})


# The environment

URLS = {"WARMROUTE_BACKENDS": "http://a:1,http://b:2"}


@pytest.mark.parametrize(
    "text", ["http://a:1,http://b:2", "http://a:1 http://b:2", " http://a:1, http://b:2 ,", "a:1\nb:2"]
)
def test_backends_are_urls_with_commas_or_blanks(text: str) -> None:
    assert [spec.name for spec in load(environment={"WARMROUTE_BACKENDS": text}).specs] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("LISTEN__PORT", "9000", ("listen", "port"), 9000),
        ("LISTEN__PORT", "", ("listen", "port"), 8080),
        ("LISTEN__HOST", "0.0.0.0", ("listen", "host"), "0.0.0.0"),
        ("LISTEN__HOST", "::1", ("listen", "host"), "::1"),
        ("listen__port", "9000", ("listen", "port"), 9000),
        ("LISTEN", "{port: 9000}", ("listen", "port"), 9000),
        ("RESPONSE_HEADERS", "false", ("response_headers",), False),
        ("AFFINITY__IDLE_EXPIRY", "5m", ("affinity", "idle_expiry"), 300.0),
        ("AFFINITY__KEY_SOURCES", "[session_id]", ("affinity", "key_sources"), ("session_id",)),
        ("LIMITS__BODY", "1MiB", ("limits", "body"), 1 << 20),
        ("METRICS__VLLM_SERIES", "none", ("metrics", "vllm_series"), "none"),
        ("METRICS__VLLM_SERIES", "[vllm:a]", ("metrics", "vllm_series"), ("vllm:a",)),
        ("LISTEN__HOST", "::", ("listen", "host"), "::"),
        ("LOG__FORMAT", "off", ("log", "format"), "off"),
    ],
    ids=lambda value: str(value),
)
def test_a_key_from_the_environment(name: str, text: str, path: tuple[str, ...], value: object) -> None:
    assert value_at(load(environment=URLS | {f"WARMROUTE_{name}": text}), path) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "LISTEN__PRT",
            "1",
            "environment variable WARMROUTE_LISTEN__PRT: unknown key 'listen.prt'; did you mean 'port'?",
        ),
        (
            "LISTEN__PORT",
            "x",
            "environment variable WARMROUTE_LISTEN__PORT: listen.port: Input should be a valid integer,"
            " unable to parse string as an integer",
        ),
        ("LISTEN__PORT", "[1", "environment variable WARMROUTE_LISTEN__PORT: what it holds cannot be read as a value"),
        (
            "HEALTH__INTERVAL",
            "soon",
            "environment variable WARMROUTE_HEALTH__INTERVAL: health.interval: 'soon' is not a duration;"
            " write it like 500ms, 2s, 30m or 1h",
        ),
    ],
    ids=["unknown", "no number", "no YAML", "no duration"],
)
def test_a_fault_of_the_environment_names_its_variable(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment=URLS | {f"WARMROUTE_{name}": text})
    assert str(caught.value) == message


def test_other_variables_are_none_of_ours() -> None:
    assert (
        load(environment=URLS | {"WARMROUTER": "1", "PATH": "/bin", "warmroute_listen__port": "9"}).listen.port == 8080
    )


def test_the_variables_that_kubernetes_sets_for_a_service_named_warmroute_do_no_harm() -> None:
    links = {
        "WARMROUTE_SERVICE_HOST": "10.0.0.1",
        "WARMROUTE_SERVICE_PORT": "8080",
        "WARMROUTE_SERVICE_PORT_HTTP": "8080",
        "WARMROUTE_PORT": "tcp://10.0.0.1:8080",
        "WARMROUTE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
        "WARMROUTE_PORT_8080_TCP_PROTO": "tcp",
        "WARMROUTE_PORT_8080_TCP_PORT": "8080",
        "WARMROUTE_PORT_8080_TCP_ADDR": "10.0.0.1",
    }
    assert load(environment=URLS | links).listen.port == 8080


def test_backends_left_empty_in_the_environment_are_those_of_the_file() -> None:
    assert load(FILES / "one-backend.good.yaml", environment={"WARMROUTE_BACKENDS": ""}).specs


@pytest.mark.parametrize("by", ["environment", "flag"])
def test_a_fault_that_hides_a_value_of_the_file_is_not_blamed_on_the_file(tmp_path: Path, by: str) -> None:
    file = written(tmp_path, "backends:\n  - url: http://a\n  - url: http://b\n")
    env = {"WARMROUTE_BACKENDS": "http://a,ftp://x"} if by == "environment" else {}
    flags = {"backends": ["http://a", "ftp://x"]} if by == "flag" else {}
    with pytest.raises(ConfigError, match="ftp://x") as caught:
        load(file, environment=env, flags=flags)
    assert str(file) not in str(caught.value)


# Files that cannot be read


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert told(tmp_path / "none.yaml") == ["{file}: No such file or directory"]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert told(tmp_path) == ["{file}: Is a directory"]


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "windows.yaml"
    file.write_bytes(b"\xef\xbb\xbfbackends: [http://a]\r\n")
    assert load(file, environment={}).specs[0].name == "a"


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99_999) | st.text("ab1:/.-sm", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["url", "port", "a"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([*Config.model_fields, "other"]), yaml_values, max_size=4))
def test_any_data_is_taken_or_refused_line_by_line(data: dict[str, object]) -> None:
    environment = {f"WARMROUTE_{name.upper()}": yaml.safe_dump(value) for name, value in data.items()}
    try:
        outcome = load(environment=environment, flags={"backends": ["http://a"]}).specs[0].name
    except ConfigError as error:
        outcome = str(error)
    assert outcome == "a" or all("WARMROUTE_" in line or "backends" in line for line in outcome.split("\n"))


# URLs and names


@pytest.mark.parametrize(
    ("url", "name", "host", "port", "base_path", "tls"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "127.0.0.1", 8000, "", False),
        ("http://gpu-a", "gpu-a", "gpu-a", 80, "", False),
        ("https://gpu-a", "gpu-a", "gpu-a", 443, "", True),
        ("gpu-a:8000", "gpu-a:8000", "gpu-a", 8000, "", False),
        ("gpu-a", "gpu-a", "gpu-a", 80, "", False),
        ("http://gpu-a:8000/", "gpu-a:8000", "gpu-a", 8000, "", False),
        ("https://gpu-a/x/y/", "gpu-a", "gpu-a", 443, "/x/y", True),
        ("http://[::1]:8000", "[::1]:8000", "::1", 8000, "", False),
        ("[::1]:8000", "[::1]:8000", "::1", 8000, "", False),
        ("10.0.0.1:8000/base", "10.0.0.1:8000", "10.0.0.1", 8000, "/base", False),
    ],
    ids=lambda value: str(value),
)
def test_good_urls(url: str, name: str, host: str, port: int, base_path: str, tls: bool) -> None:
    spec = BackendConfig(url=url).spec()
    assert (spec.name, spec.host, spec.port, spec.base_path, spec.tls) == (name, host, port, base_path, tls)


NEARLY = {
    "http://@gpu": "an empty user name stays in the name and in the Host header",
    "http://gpu?": "an empty query stays in the URL, and /health is put behind it",
    "http://gpu#": "an empty fragment stays in the URL, and /health is put behind it",
    "http://gpu:": "an empty port stays in the name",
    "http://gpu a": "a blank in the host",
    " http://gpu": "a blank before the scheme",
    "http://gpu/a b": "a blank in the path would end the request line's target",
    "http://gpu\n": "a line end",
    "http://gpu/a\r\nx:y": "a line end in the path",
    "http://gpu\\a": "a backslash in the host",
}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/",
        "http://",
        "http://:8000",
        "http://gpu:0",
        "http://gpu:65536",
        "http://gpu:http",
        "ftp://gpu",
        "unix:///run/vllm.sock",
        "http://user:secret@gpu",
        "http://user@gpu",
        "http://gpu?x=1",
        "http://gpu#x",
        "http://[::1",
        "::1",
        *NEARLY,
    ],
    ids=ascii,
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ValidationError) as caught:
        BackendConfig(url=url)
    assert [error["loc"] for error in caught.value.errors()] == [("url",)]


@given(st.text("ab0:/.[]@?#%\\ \n-", max_size=12))
def test_a_url_that_is_taken_names_a_host_and_a_port(text: str) -> None:
    try:
        spec = BackendConfig(url=text).spec()
    except ValidationError:
        return
    assert spec.host
    assert 0 < spec.port <= 65535
    assert spec.base_path == urlsplit(spec.url).path.rstrip("/")
    assert not spec.url.endswith("/")


def test_a_name_of_its_own_replaces_host_and_port() -> None:
    assert BackendConfig(url="http://10.0.0.1:8000", name="gpu a/é").spec().name == "gpu a/é"


# Durations and sizes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("2s", 2.0),
        ("1.5s", 1.5),
        ("30m", 1800.0),
        ("1h", 3600.0),
        (" 2 s ", 2.0),
        (7, 7.0),
        (0.25, 0.25),
    ],
    ids=str,
)
def test_durations(text: object, seconds: float) -> None:
    config = Config.model_validate({"backends": ["http://a"], "health": {"interval": text}})
    assert config.health.interval == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "2", "s", "2 seconds", "-2s", "2S", "1e3s", "1h30m", "2,5s", "0s", "0", 0, -1, [1], {}], ids=str
)
def test_no_durations(text: object) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"backends": ["http://a"], "health": {"interval": text}})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512KiB", 512 << 10),
        ("64MiB", 64 << 20),
        ("1GiB", 1 << 30),
        ("1.5MiB", 3 << 19),
        (" 2 KiB ", 2048),
        (77, 77),
        ("77", 77),
    ],
    ids=str,
)
def test_sizes(text: object, size: int) -> None:
    assert Config.model_validate({"backends": ["http://a"], "limits": {"body": text}}).limits.body == size


@pytest.mark.parametrize(
    "text", ["", "64MB", "64M", "64 mib", "MiB", "-1MiB", "0", "0.0001KiB", 0, -1, 1.5, [1]], ids=str
)
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValidationError):
        Config.model_validate({"backends": ["http://a"], "limits": {"body": text}})


# The result


def test_a_configuration_does_not_change() -> None:
    config = Config.from_urls(["http://a"])
    with pytest.raises(ValidationError, match="frozen"):
        config.listen.port = 1


def test_the_defaults_are_those_that_are_told() -> None:
    config = Config.from_urls(["http://a"])
    assert (config.listen.host, config.listen.port, config.listen.admin_host, config.listen.admin_port) == (
        "127.0.0.1",
        8080,
        "127.0.0.1",
        8081,
    )
    assert config.affinity.idle_expiry == 1800.0
    assert config.upstream.keepalive_expiry < 5
    assert config.backends[0].weight == 1.0
