"""Where backends are looked for beside the list of the configuration itself."""

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from .values import Seconds, Section

_QUERY = re.compile(r"(?:(?P<scheme>https?)://)?(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*)(?::(?P<port>[0-9]{1,5}))?")
_SERVER = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<v4>[0-9.]+))(?::(?P<port>[0-9]{1,5}))?")
_LABEL = r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$"


def _text(value: object) -> object:
    """A number of a port as YAML reads it is a text too."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


_Port = Annotated[str, BeforeValidator(_text), Field(pattern=_LABEL)]


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


_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds what its service account needs."""


class KubernetesDiscovery(Section):
    """The ready pods of a Service, or of all EndpointSlices with these labels; none without `service` and `selector`.

    `api` and `namespace` are those of the pod that the router runs in, unless given. `port` is a number or a name.
    """

    service: Annotated[str | None, Field(pattern=_LABEL)] = None
    selector: Annotated[str | None, Field(min_length=1)] = None
    namespace: Annotated[str | None, Field(pattern=_LABEL)] = None
    port: _Port | None = None
    scheme: Literal["http", "https"] = "http"
    api: Annotated[str | None, Field(pattern=r"https?://[!-~]+")] = None
    token_file: Path | None = _ACCOUNT / "token"
    ca_file: Path | None = _ACCOUNT / "ca.crt"

    @property
    def labels(self) -> str:
        """What is asked for, as the API server takes it; empty where nothing is."""
        of_service = f"kubernetes.io/service-name={self.service}" if self.service is not None else None
        return ",".join(label for label in (of_service, self.selector) if label is not None)

    def cluster(self, environment: Mapping[str, str]) -> tuple[str, str]:
        """URL of the API server, and the namespace. Raises ValueError if this is no pod and they are not given."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if self.api is None and not host:
            raise ValueError(
                "discovery.kubernetes.api is not set, and the router does not run in a pod, which would tell it"
            )
        shown = f"[{host}]" if host and ":" in host else host
        api = self.api or f"https://{shown}:{port}"
        if self.namespace is not None:
            return api, self.namespace
        try:
            return api, (_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
        except OSError:
            raise ValueError("discovery.kubernetes.namespace is not set, and the router does not run in one") from None


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
    kubernetes: KubernetesDiscovery = KubernetesDiscovery()

    @property
    def sources(self) -> list[str]:
        """The keys of the sources that are to be asked."""
        wanted = {
            "file": self.file.path is not None,
            "dns": bool(self.dns.names),
            "kubernetes": bool(self.kubernetes.labels),
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]
