"""Every key, its type, its default and what is wrong with a value that cannot be used."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, field_serializer, field_validator, model_validator

from ..core.identity import DEFAULT_SOURCES, ladder
from ..core.model import BackendSpec, Trust
from ..core.store_url import read_store_url, without_passwords
from .backends import BackendConfig
from .discovery import DiscoveryConfig
from .forward import ForwardConfig
from .keys import Key, Token
from .tenants import IsolationConfig, ListenKey, TenantConfig, checked_name
from .urls import is_loopback, traces_url
from .values import Bytes, File, Seconds, SecondsOrNone, Section


def pair(cert: str | None, key: str | None, name: str) -> None:
    """Raises ValueError if a key stands without its certificate. One without a key is well: one file may hold both."""
    if key is not None and cert is None:
        raise ValueError(f"{name}_key is of no use without {name}, the certificate that it belongs to")


class ListenConfig(Section):
    """Where the router listens: the model API, for who shows one of the `keys`, and dashboard, metrics and control (admin),
    for who shows the token. Each speaks TLS if it has a certificate; its key may stand in the same file.
    `workers` processes serve the model API.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    admin_host: str = "127.0.0.1"
    admin_port: Annotated[int, Field(ge=0, le=65535)] = 8081
    keys: tuple[ListenKey, ...] = ()
    admin_token: Token | None = None
    admin_open_metrics: bool = False
    cert: File | None = None
    cert_key: File | None = None
    admin_cert: File | None = None
    admin_cert_key: File | None = None
    workers: Annotated[int, Field(ge=1, le=64)] = 1

    @model_validator(mode="after")
    def _guarded(self) -> Self:
        if self.admin_token is None and not is_loopback(self.admin_host):
            raise ValueError(
                f"others can reach the admin port at {self.admin_host}, so it needs a token: set listen.admin_token"
                " (WARMROUTE_LISTEN__ADMIN_TOKEN), or let it listen on 127.0.0.1"
            )
        return self

    @property
    def is_open(self) -> bool:
        """Whether other machines can use the model API without a key."""
        return not is_loopback(self.host) and not self.keys

    @model_validator(mode="after")
    def _whole_pairs(self) -> Self:
        pair(self.cert, self.cert_key, "cert")
        pair(self.admin_cert, self.admin_cert_key, "admin_cert")
        return self


class AffinityConfig(Section):
    """What keeps a conversation on its server."""

    key_sources: tuple[str, ...] = DEFAULT_SOURCES
    max_history: Annotated[int, Field(gt=0)] = 300_000
    idle_expiry: Seconds = 1800.0
    unproven_expiry: Seconds = 300.0
    max_sessions: Annotated[int, Field(gt=0)] = 1_000_000
    session_bound: Annotated[float, Field(ge=1, le=10)] = 1.05
    even_sessions: Annotated[int, Field(ge=0)] = 100
    size_bound: Annotated[float, Field(ge=1, le=10)] = 1.1
    in_flight_bound: Annotated[float, Field(ge=1, le=10)] = 1.25
    when_full: Literal["wait", "spill"] = "wait"
    spills: Annotated[int, Field(ge=1)] = 3
    when_gone: Literal["move", "refuse"] = "move"

    @field_validator("key_sources")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        ladder(value)
        return value


class HealthConfig(Section):
    """Active checks of each backend: GET /health."""

    interval: Seconds = 2.0
    unsettled_interval: Seconds = 1.0
    timeout: Seconds = 2.0
    fall: Annotated[int, Field(ge=1)] = 3
    rise: Annotated[int, Field(ge=1)] = 2


class OutlierConfig(Section):
    """What a backend's own traffic says of it: after failures in a row, or silence while requests wait, it rests."""

    failures: Annotated[int, Field(ge=1)] = 5
    rest: Seconds = 10.0
    longest_rest: Seconds = 300.0
    silence: Seconds = 300.0
    stall: Seconds = 10.0


class QueueConfig(Section):
    """How many requests a backend may have in flight, and how many may wait, for how long, when all are full."""

    in_flight: Annotated[int, Field(ge=1)] = 1024
    length: Annotated[int, Field(ge=0)] = 256
    timeout: Seconds = 10.0


class DrainConfig(Section):
    """Emptying a backend: for so long its sessions may stay, if the command gives no other time."""

    deadline: Seconds = 600.0


class RetryConfig(Section):
    """Faulty answers (500, 502, 503, 504) for which another backend is asked: a share of all requests, some at least."""

    share: Annotated[float, Field(ge=0, le=1)] = 0.2
    least: Annotated[int, Field(ge=0)] = 3


class UpstreamConfig(Section):
    """Connections to the backends. vLLM closes idle ones after 5 s, so ours are given up before that.

    `ca`, `cert`, `cert_key` and `verify` are for those whose URL is https.
    """

    connect_timeout: Seconds = 2.0
    key: Key | None = None
    keepalive_expiry: Annotated[Seconds, Field(lt=5)] = 3.0
    ca: File | None = None
    cert: File | None = None
    cert_key: File | None = None
    verify: bool = True

    @model_validator(mode="after")
    def _whole_pair(self) -> Self:
        pair(self.cert, self.cert_key, "cert")
        return self

    @property
    def trust(self) -> Trust:
        return Trust(self.ca, self.cert, self.cert_key, self.verify)


class TruthConfig(Section):
    """What is found out of each turn's prompt tokens."""

    enabled: bool = True
    ask_usage: bool = True
    max_conversations: Annotated[int, Field(ge=1)] = 20_000


class ResumeConfig(Section):
    """Going on with a stream on another server when its own has died. vLLM is asked for the tokens of streamed answers."""

    enabled: bool = True
    max_body: Bytes = 1 << 20


class MetricsConfig(Section):
    """What is read from the backends' /metrics, and which of their own series the router passes on.

    `vllm_series` is "all", "none", or a list of metric names or their beginnings.
    """

    scrape_interval: Seconds = 5.0
    scrape_timeout: Seconds = 4.0
    stale_after: Seconds = 60.0
    vllm_series: str | tuple[str, ...] = "all"

    @field_validator("vllm_series", mode="before")
    @classmethod
    def _known_series(cls, value: object) -> object:
        if value in ("all", "none") or (isinstance(value, list | tuple) and all(isinstance(v, str) for v in value)):
            return value
        raise ValueError("expected 'all', 'none' or a list of names")


class KvEventsConfig(Section):
    """Hearing what backends tell about their caches (--kv-events-config). Wants the extra `kv-events`."""

    enabled: bool = False
    max_blocks: Annotated[int, Field(ge=1)] = 500_000


class StoreConfig(Section):
    """Pins shared by several routers through a Redis or Valkey; without `redis` each router has its own.

    `secret`, or what is in `secret_file`, keys the digests under which sessions are stored.
    """

    redis: Annotated[str | None, Field(repr=False)] = None
    prefix: Annotated[str, Field(min_length=1, max_length=100)] = "warmroute:"
    deadline: Annotated[Seconds, Field(le=1)] = 0.015
    secret: SecretStr | None = None
    secret_file: Path | None = None

    @field_validator("redis")
    @classmethod
    def _checked_redis(cls, value: str | None) -> str | None:
        if value is None:
            return None
        text = value if "://" in value else f"redis://{value}"
        if read_store_url(text) is None:
            raise ValueError(f"not the URL of a Redis or Valkey; write it like {_like(text)}")
        return text

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < 16:
            raise ValueError("too short to be a secret; give at least 16 characters")
        return value

    @field_serializer("redis", when_used="json-unless-none")
    def _without_password(self, value: str) -> str:
        return without_passwords(value)


def _like(url: str) -> str:
    """An example of what such a URL should have been."""
    scheme = url.partition("://")[0]
    if scheme.endswith("+sentinel"):
        return "redis+sentinel://10.0.0.1:26379,10.0.0.2:26379/SERVICE/0"
    return "redis+cluster://10.0.0.1:6379,10.0.0.2:6379" if scheme.endswith("+cluster") else "redis://127.0.0.1:6379/0"


class LimitsConfig(Section):
    """Bounds on what clients may send, on how slow and how many they may be, and on how long stopping may take.

    `min_body_rate` is in bytes a second, over `body_timeout`. `pre_drain`, `shutdown` and the five seconds in which ended
    requests may say so are together the half minute that Kubernetes gives by default.
    """

    body: Bytes = 64 << 20
    head_timeout: Seconds = 10.0
    body_timeout: Seconds = 30.0
    min_body_rate: Bytes = 512
    idle_timeout: Seconds = 75.0
    send_timeout: Seconds = 60.0
    tunnel_timeout: Seconds = 3600.0
    max_connections: Annotated[int, Field(gt=0)] = 10_000
    pre_drain: SecondsOrNone = 5.0
    shutdown: Seconds = 20.0


class TracingConfig(Section):
    """A span for each request, to a collector of traces (OTLP over HTTP). Wants the extra `otel`.

    `share` is that of traces which begin here.
    """

    endpoint: str | None = None
    share: Annotated[float, Field(ge=0, le=1)] = 1.0

    @field_validator("endpoint")
    @classmethod
    def _whole(cls, value: str | None) -> str | None:
        return None if value is None else traces_url(value)


class LogConfig(Section):
    """The access log, one line a request on standard error. `auto` is text on a terminal, else JSON lines."""

    format: Literal["auto", "json", "text", "off"] = "auto"

    @field_validator("format", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare off as false


class Config(Section):
    """Everything the router is told. `backends` may be empty only where `discovery` finds some."""

    backends: tuple[BackendConfig, ...] = ()
    discovery: DiscoveryConfig = DiscoveryConfig()
    listen: ListenConfig = ListenConfig()
    affinity: AffinityConfig = AffinityConfig()
    health: HealthConfig = HealthConfig()
    queue: QueueConfig = QueueConfig()
    outlier: OutlierConfig = OutlierConfig()
    drain: DrainConfig = DrainConfig()
    retry: RetryConfig = RetryConfig()
    upstream: UpstreamConfig = UpstreamConfig()
    forward: ForwardConfig = ForwardConfig()
    resume: ResumeConfig = ResumeConfig()
    truth: TruthConfig = TruthConfig()
    metrics: MetricsConfig = MetricsConfig()
    kv_events: KvEventsConfig = KvEventsConfig()
    store: StoreConfig = StoreConfig()
    limits: LimitsConfig = LimitsConfig()
    tracing: TracingConfig = TracingConfig()
    tenants: dict[str, TenantConfig] = Field(default_factory=dict)
    isolation: IsolationConfig = IsolationConfig()
    log: LogConfig = LogConfig()
    response_headers: bool = True

    @field_validator("tenants")
    @classmethod
    def _named(cls, value: dict[str, TenantConfig]) -> dict[str, TenantConfig]:
        for name in value:
            checked_name(name)
        return value

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        if not self.backends and not self.discovery.sources:
            raise ValueError("there are no backends; name at least one, or let discovery find them")
        names = [spec.name for spec in self.specs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two backends are named {name!r}; give each a name of its own")
        return self

    @property
    def specs(self) -> tuple[BackendSpec, ...]:
        return tuple(backend.spec(self.upstream.key, self.upstream.trust) for backend in self.backends)

    @classmethod
    def from_urls(cls, urls: Sequence[str], **listen: Any) -> Self:
        """A configuration of defaults for these backends; keyword arguments are keys of `listen`."""
        return cls.model_validate({"backends": list(urls), "listen": listen})
