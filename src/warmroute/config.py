"""Flags, environment and one YAML file -> a validated, frozen Config. Unknown keys are errors that say where."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from .core.identity import SOURCES
from .core.model import BackendSpec

ENV_PREFIX = "WARMROUTE_"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB)")
_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class ConfigError(Exception):
    """A configuration that cannot be used. The text is one line a fault and says what to do."""


def _duration(value: object) -> object:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration; write it like 500ms, 2s, 30m or 1h")
    return value


def _size(value: object) -> object:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2]])
    if isinstance(value, str) and not value.strip().isdigit():
        raise ValueError(f"{value!r} is not a size; write it like 512KiB or 64MiB")
    return value


Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class BackendConfig(_Section):
    """One vLLM server. `name` defaults to host:port."""

    url: str
    name: str = ""
    weight: Annotated[float, Field(gt=0, le=100)] = 1.0

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _checked_url(cls, value: str) -> str:
        text = value if "://" in value else f"http://{value}"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{value!r} is not a URL ({error}); write it like http://127.0.0.1:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or (port is not None and port == 0):
            raise ValueError(f"{value!r} is not the URL of a server; write it like http://127.0.0.1:8000")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError(f"{value!r} must be scheme, host, port and path alone")
        return text.rstrip("/")

    def spec(self) -> BackendSpec:
        return BackendSpec(self.name or urlsplit(self.url).netloc, self.url, self.weight)


class ListenConfig(_Section):
    """Where the router listens: the model API on host:port, dashboard, metrics and control on admin_host:admin_port."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    admin_host: str = "127.0.0.1"
    admin_port: Annotated[int, Field(ge=0, le=65535)] = 8081


class AffinityConfig(_Section):
    """What keeps a conversation on its server."""

    key_sources: tuple[str, ...] = tuple(SOURCES)
    idle_expiry: Seconds = 1800.0
    max_sessions: Annotated[int, Field(gt=0)] = 1_000_000
    session_bound: Annotated[float, Field(ge=1, le=10)] = 1.05
    even_sessions: Annotated[int, Field(ge=0)] = 100
    in_flight_bound: Annotated[float, Field(ge=1, le=10)] = 1.25

    @field_validator("key_sources")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in SOURCES:
                raise ValueError(f"{name!r} is no key source; known are {', '.join(SOURCES)}")
        return value


class HealthConfig(_Section):
    """Active checks of each backend: GET /health."""

    interval: Seconds = 2.0
    unsettled_interval: Seconds = 1.0
    timeout: Seconds = 2.0
    fall: Annotated[int, Field(ge=1)] = 3
    rise: Annotated[int, Field(ge=1)] = 2


class UpstreamConfig(_Section):
    """Connections to the backends. vLLM closes idle ones after 5 s, so ours are given up before that."""

    connect_timeout: Seconds = 2.0
    keepalive_expiry: Annotated[Seconds, Field(lt=5)] = 3.0


class MetricsConfig(_Section):
    """What is read from the backends' /metrics, and which of their own series the router passes on.

    `vllm_series` is "all", "none", or a list of metric names or their beginnings.
    """

    scrape_interval: Seconds = 5.0
    scrape_timeout: Seconds = 4.0
    stale_after: Seconds = 60.0
    vllm_series: Literal["all", "none"] | tuple[str, ...] = "all"


class LimitsConfig(_Section):
    """Bounds on what one client may send, and on how long stopping may take."""

    body: Bytes = 64 << 20
    shutdown: Seconds = 30.0


class LogConfig(_Section):
    """The access log, one line a request on standard error. `auto` is text on a terminal, else JSON lines."""

    format: Literal["auto", "json", "text", "off"] = "auto"


class Config(_Section):
    """Everything the router is told. Only `backends` has no default."""

    backends: Annotated[tuple[BackendConfig, ...], Field(min_length=1)]
    listen: ListenConfig = ListenConfig()
    affinity: AffinityConfig = AffinityConfig()
    health: HealthConfig = HealthConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    metrics: MetricsConfig = MetricsConfig()
    limits: LimitsConfig = LimitsConfig()
    log: LogConfig = LogConfig()
    response_headers: bool = True

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [spec.name for spec in self.specs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two backends are named {name!r}; give each a name of its own")
        return self

    @property
    def specs(self) -> tuple[BackendSpec, ...]:
        return tuple(backend.spec() for backend in self.backends)

    @classmethod
    def from_urls(cls, urls: Sequence[str], **listen: Any) -> Self:
        """A configuration of defaults for these backends; keyword arguments are keys of `listen`."""
        return cls.model_validate({"backends": list(urls), "listen": listen})


def load(
    file: Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Flags over environment over file over defaults. `flags` is nested like the file. Raises ConfigError."""
    data, lines = _read(file) if file else ({}, {})
    env_data, env_names = _from_environment(os.environ if environment is None else environment)
    merged = _merge(_merge(data, env_data), flags or {})
    if not merged.get("backends"):
        raise ConfigError("no backends: give the URLs of your vLLM servers, or a --config FILE that lists them")
    try:
        return Config.model_validate(merged)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, file, lines, env_names))) from None


def _read(file: Path) -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    """The file's content, and the line on which each key stands."""
    try:
        text = file.read_text()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise ConfigError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from None
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise ConfigError(f"{file}: expected keys such as 'backends:' at the top")
    lines: dict[tuple[str | int, ...], int] = {}
    _note_lines(node, (), lines)
    return data, lines


def _note_lines(node: yaml.Node | None, path: tuple[str | int, ...], lines: dict[tuple[str | int, ...], int]) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            lines[here] = key.start_mark.line + 1
            _note_lines(value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[(*path, i)] = value.start_mark.line + 1
            _note_lines(value, (*path, i), lines)


def _from_environment(environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """WARMROUTE_SECTION__KEY=value, the value in YAML's notation; WARMROUTE_BACKENDS may be URLs with commas or spaces."""
    data: dict[str, Any] = {}
    names: dict[tuple[str, ...], str] = {}
    for name, text in environment.items():
        if not name.startswith(ENV_PREFIX):
            continue
        path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
        try:
            value = text.replace(",", " ").split() if path == ("backends",) else yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"environment variable {name}: {text!r} cannot be read as a value") from None
        names[path] = name
        data = _merge(data, _nested(path, value))
    return data, names


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    return {path[0]: value if len(path) == 1 else _nested(path[1:], value)}


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(below if isinstance(below, Mapping) else {}, value)
        elif value is not None:
            merged[key] = value
    return merged


def _explain(
    error: ValidationError,
    file: Path | None,
    lines: Mapping[tuple[str | int, ...], int],
    env_names: Mapping[tuple[str, ...], str],
) -> list[str]:
    """One line a fault: where it stands, what is wrong, what to do."""
    told: list[str] = []
    for fault in error.errors():
        path = tuple(fault["loc"])
        while path and path not in lines and path not in env_names and len(path) > 1:
            path = path[:-1]
        key = ".".join(str(part) for part in fault["loc"])
        if path in env_names:
            where = f"environment variable {env_names[tuple(str(p) for p in path)]}: "
        elif path in lines:
            where = f"{file}:{lines[path]}: "
        else:
            where = f"{file}: " if file and not fault["loc"] else ""
        if fault["type"] == "extra_forbidden":
            message = f"unknown key {key!r}{_nearest(tuple(fault['loc']))}"
        else:
            text = fault["msg"].removeprefix("Value error, ")
            message = f"{key}: {text}" if key else text
        line = where + message
        if line not in told:
            told.append(line)
    return told


def _nearest(path: tuple[str | int, ...]) -> str:
    model: Any = Config
    for part in path[:-1]:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = BackendConfig if part == "backends" else annotation
    names = list(model.model_fields)
    close = difflib.get_close_matches(str(path[-1]), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known here are {', '.join(names)}"
