"""Where backends are looked for beside the list of the configuration itself."""

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from .values import Seconds, Section

_QUERY = re.compile(r"(?:(?P<scheme>https?)://)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>[0-9]{1,5}))?")
_SERVER = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?")


class FileDiscovery(Section):
    """A file that lists backends and is looked at every `interval`; none without a `path`."""

    path: Path | None = None
    interval: Annotated[Seconds, Field(ge=0.1)] = 1.0


class DnsDiscovery(Section):
    """Names that are resolved at least every `interval`: `host:port`, or `_service._proto.name` (SRV); none without `names`.

    `server` is the address of a nameserver, with a port unless it is 53; by default those of the system are asked.
    """

    names: tuple[str, ...] = ()
    interval: Annotated[Seconds, Field(ge=0.1)] = 30.0
    server: str | None = None

    @field_validator("names")
    @classmethod
    def _checked_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            query(text)
        return value

    @field_validator("server")
    @classmethod
    def _checked_server(cls, value: str | None) -> str | None:
        if value is not None:
            nameserver(value)
        return value


def query(text: str) -> tuple[str, str, int | None]:
    """Scheme, name and port of what is to be resolved; no port for the servers of a service. Raises ValueError."""
    matched = _QUERY.fullmatch(text)
    port = int(matched["port"]) if matched is not None and matched["port"] else None
    if matched is None or (port is None) != (matched["name"][0] == "_") or (port is not None and not 0 < port <= 65535):
        raise ValueError(
            f"{text!r} is not what can be resolved; write host:port, or _service._proto.name for SRV records"
        )
    return matched["scheme"] or "http", matched["name"], port


def nameserver(text: str) -> tuple[str, int]:
    """Address and port. Raises ValueError."""
    matched = _SERVER.fullmatch(text)
    try:
        if matched is None:
            raise ValueError
        address, port = str(ip_address(matched["v6"] or matched["v4"])), int(matched["port"] or 53)
        if not 0 < port <= 65535:
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{text!r} is not the address of a nameserver; write it like 10.0.0.10 or 127.0.0.1:8600"
        ) from None
    return address, port


class DiscoveryConfig(Section):
    """Sources of backends that may change while the router runs."""

    file: FileDiscovery = FileDiscovery()
    dns: DnsDiscovery = DnsDiscovery()

    @property
    def sources(self) -> list[str]:
        """The keys of the sources that are to be asked."""
        wanted = {"file": self.file.path is not None, "dns": bool(self.dns.names)}
        return [name for name, is_wanted in wanted.items() if is_wanted]
