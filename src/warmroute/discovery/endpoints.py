"""Kubernetes' EndpointSlices -> backends: which pods of a Service are ready, and at which port."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..core.model import BackendSpec
from .source import Read

Slice = Mapping[str, Any]
"""One object of discovery.k8s.io/v1, as the API server sends it; lists and mappings in it may be null."""

_USUAL = "http"
"""The name of the port that is meant where there are several and none was chosen."""
_ORDER = {"IPv4": 0, "IPv6": 1}


def backends(slices: Iterable[Slice], scheme: str, port: str | None, read: Read) -> list[BackendSpec]:
    """The ready endpoints of all slices by name, each pod once although it may have an address of either kind.

    `port` is a number, the name of a port, or None for the only one. Raises ValueError if that is none or not clear,
    or an address is none.
    """
    found: dict[str, BackendSpec] = {}
    known: dict[tuple[str, int], str] = {}
    for one in sorted(slices, key=lambda s: (_ORDER.get(s.get("addressType", ""), 2), _name(s))):
        ready = [endpoint for endpoint in one.get("endpoints") or () if _is_ready(endpoint)]
        if not ready:
            continue
        number = _port(one, port)
        for endpoint in ready:
            address = endpoint["addresses"][0]  # the others are the same
            place = f"[{address}]:{number}" if ":" in address else f"{address}:{number}"
            name = _pod(endpoint) or place
            if (name, number) in known:
                continue
            known[name, number] = place
            if name in found:  # another of its ports, of another Service
                name = f"{name}:{number}"
            found[name] = read({"url": f"{scheme}://{place}", "name": name})
    return [found[name] for name in sorted(found)]


def _is_ready(endpoint: Mapping[str, Any]) -> bool:
    """Whether it may get new work; an unknown condition is a good one, as the API says."""
    conditions = endpoint.get("conditions") or {}
    return (
        bool(endpoint.get("addresses")) and conditions.get("ready") is not False and not conditions.get("terminating")
    )


def _pod(endpoint: Mapping[str, Any]) -> str | None:
    target = endpoint.get("targetRef") or {}
    return target.get("name") if target.get("kind") == "Pod" else None


def _port(one: Slice, wanted: str | None) -> int:
    if wanted is not None and wanted.isdigit():
        return int(wanted)
    ports = {p.get("name") or "": p["port"] for p in one.get("ports") or () if p.get("port")}
    chosen = wanted if wanted is not None else _USUAL if len(ports) > 1 else next(iter(ports), None)
    if chosen is None or chosen not in ports:
        names = ", ".join(f"{name or 'without a name'} ({number})" for name, number in ports.items()) or "no port"
        raise ValueError(f"{_name(one)} has {names}: set discovery.kubernetes.port to one of them, or to a number")
    number: int = ports[chosen]
    return number


def _name(one: Slice) -> str:
    name: str = (one.get("metadata") or {}).get("name") or ""
    return name
