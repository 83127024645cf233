"""From a Config to the settings of each part, as that part names them."""

import logging
import sys
from collections.abc import Callable
from typing import TextIO

from pydantic import ValidationError

from .config import BackendConfig, Config, unverified
from .core import forward as headers
from .core.health import Thresholds
from .core.model import BackendSpec
from .core.outlier import OutlierLimits
from .core.policy import Bounds
from .core.questions import Asks
from .core.retry import Budget
from .fleet.prober import ProbeTimes
from .fleet.scraper import ScrapeTimes
from .observe.log import AccessLog, as_json, as_text
from .observe.writer import BackgroundWriter
from .proxy.keys import Keys
from .proxy.owned import Forward, Owned
from .proxy.pools import ConnectionTimes
from .proxy.tenants import DEFAULT, NO_LIMITS, Limits

log = logging.getLogger("warmroute")


def backend(entry: object) -> BackendSpec:
    """One backend as a list of them names it: a URL, or a mapping. Raises ValueError with one line that says what is wrong."""
    try:
        found = BackendConfig.model_validate(entry)
        if found.ca is None:
            return found.spec()
        text = "ca: only backends of the configuration can have one; upstream.ca is for those that are found"
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            text = f"unknown key {key!r}; known here are {', '.join(BackendConfig.model_fields)}"
        else:
            told = fault["msg"].removeprefix("Value error, ")
            text = f"{key}: {told}" if key else told
    raise ValueError(text)


def thresholds(config: Config) -> Thresholds:
    return Thresholds(config.health.fall, config.health.rise)


def outlier_limits(config: Config) -> OutlierLimits:
    return OutlierLimits(
        config.outlier.failures, config.outlier.rest, config.outlier.longest_rest, config.outlier.stall
    )


def connection_times(config: Config) -> ConnectionTimes:
    return ConnectionTimes(config.upstream.connect_timeout, config.upstream.keepalive_expiry)


def probe_times(config: Config) -> ProbeTimes:
    health = config.health
    return ProbeTimes(health.interval, health.unsettled_interval, health.timeout)


def scrape_times(config: Config) -> ScrapeTimes:
    return ScrapeTimes(config.metrics.scrape_interval, config.metrics.scrape_timeout)


def budget(config: Config, clock: Callable[[], float]) -> Budget:
    return Budget(clock, share=config.retry.share, least=config.retry.least)


def bounds(config: Config) -> Bounds:
    affinity = config.affinity
    return Bounds(
        affinity.session_bound,
        affinity.even_sessions,
        affinity.in_flight_bound,
        affinity.size_bound,
        full=config.queue.in_flight,
        spill=affinity.when_full == "spill",
        spills=affinity.spills,
        strict=affinity.when_gone == "refuse",
    )


def asks(config: Config) -> Asks:
    """What the router asks of streams for itself."""
    tokens_up_to = config.resume.max_body if config.resume.enabled else 0
    return Asks(tokens_up_to, config.truth.enabled and config.truth.ask_usage)


def forward(config: Config) -> Forward:
    """What of a client's headers and fields a backend gets."""
    wanted = config.forward
    drop = headers.dropped(wanted.priority, wanted.session_id, wanted.drop_headers, wanted.pass_headers)
    return Forward(drop, Owned(wanted.priority, wanted.kv_transfer_params))


def keys(config: Config) -> Keys | None:
    """Whose key is whose; None where no keys are asked for."""
    listed = config.listen.keys
    return Keys((key.key.get_secret_value(), key.tenant) for key in listed) if listed else None


def tenants(config: Config) -> dict[str, Limits]:
    """The limits of every tenant by its name; empty where nobody is told from anybody, and nothing is limited."""
    names = {DEFAULT, *config.tenants, *(key.tenant for key in config.listen.keys)}
    if names == {DEFAULT} and not config.tenants:
        return {}
    limits = {name: Limits(**tenant.model_dump()) for name, tenant in config.tenants.items()}
    return {name: limits.get(name, NO_LIMITS) for name in names}


def access_log(config: Config, stream: TextIO | BackgroundWriter) -> AccessLog | None:
    """What writes a line for each request; None if nothing should."""
    choice = config.log.format
    if choice == "off":
        return None
    if choice == "auto":
        choice = "text" if sys.stderr.isatty() else "json"
    return AccessLog(stream, as_text if choice == "text" else as_json)


def warn(config: Config) -> None:
    """Tell what is dangerous about a configuration that comes into force."""
    if names := unverified(config):
        log.warning("upstream.verify is off: whoever answers in the place of %s is believed", ", ".join(names))
