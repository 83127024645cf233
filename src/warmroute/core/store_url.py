"""Which store a URL means: one server, the primary that sentinels know, or a cluster. Pure.

redis://[[user:]password@]host[:6379][/db]        rediss:// for TLS, unix:///path for a socket
redis+sentinel://[[user:]password@]host[:26379][,host2...]/service[/db]
redis+cluster://[[user:]password@]host[:6379][,host2...]
"""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

Node = tuple[str, int]
"""Host and port."""

_SENTINEL_OPTIONS = {"sentinel_username", "sentinel_password"}
_DEFAULT_PORTS = {"sentinel": 26379, "cluster": 6379}
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:,/@?#\s]+)(?::(\d{1,5}))?")


class StoreKind(StrEnum):
    """How the server that takes writes is found."""

    SERVER = "server"  # the URL names it
    SENTINEL = "sentinel"  # sentinels name it
    CLUSTER = "cluster"  # for each key another one, and each of them knows which


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A store. `server` is the URL of a server of it, as Redis clients read them: the host is of use only if `kind` is SERVER.

    `nodes` are the sentinels, or some of the cluster's servers. `service` is the primary's name at the sentinels, and
    `sentinel` a URL with the credentials that they want.
    """

    kind: StoreKind
    server: str = field(repr=False)
    nodes: tuple[Node, ...] = ()
    service: str = ""
    sentinel: str = field(default="", repr=False)


def read_store_url(text: str) -> StoreUrl | None:
    """What a URL means; None if not all of it is understood: scheme, user, password, hosts, database, TLS options."""
    scheme, plus, kind = text.partition("://")[0].partition("+")
    if not plus:
        return StoreUrl(StoreKind.SERVER, text) if _is_server(text) else None
    if scheme not in ("redis", "rediss") or kind not in _DEFAULT_PORTS:
        return None
    parts = urlsplit(text)
    user, at, hosts = parts.netloc.rpartition("@")
    nodes = _nodes(hosts, _DEFAULT_PORTS[kind])
    options = {name: values[-1] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
    own = {name: options.pop(name) for name in _SENTINEL_OPTIONS & options.keys() if kind == "sentinel"}
    path = [unquote(part) for part in parts.path.strip("/").split("/")] if parts.path.strip("/") else []
    service = path.pop(0) if kind == "sentinel" and path else ""
    database = path.pop(0) if kind == "sentinel" and path else "0"
    if not nodes or path or not database.isdecimal() or (kind == "sentinel") != bool(service) or parts.fragment:
        return None
    query = f"?{urlencode(options)}" if options else ""
    server = f"{scheme}://{user}{at}host/{database}{query}"
    if not _is_server(server):
        return None
    asked_by = f"{quote(own.get('sentinel_username', ''), safe='')}:{quote(own.get('sentinel_password', ''), safe='')}@"
    sentinel = f"{scheme}://{asked_by if own else ''}host{query}" if kind == "sentinel" else ""
    return StoreUrl(StoreKind(kind), server, nodes, service, sentinel)


def _nodes(text: str, default_port: int) -> tuple[Node, ...]:
    """Hosts with their ports; nothing if one of them is none."""
    found = [_HOST.fullmatch(part) for part in text.split(",")]
    nodes = tuple((match[1].strip("[]"), int(match[2] or default_port)) for match in found if match)
    return nodes if len(nodes) == len(found) and all(0 < port <= 65535 for _, port in nodes) else ()


def _is_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    options = parse_qs(parts.query, keep_blank_values=True)
    if parts.scheme == "unix":
        return bool(parts.path) and not parts.netloc.rpartition("@")[2] and set(options) <= {"db"}
    known = parts.scheme in ("redis", "rediss") and all(o.startswith("ssl_") for o in options)
    if options and parts.scheme != "rediss":
        return False
    return known and bool(parts.hostname) and port != 0 and re.fullmatch(r"(/\d*)?", parts.path) is not None


def without_passwords(text: str) -> str:
    """A store's URL as it may be shown."""
    return re.sub(r"(?<=sentinel_password=)[^&#]*", "*" * 10, re.sub(r"(?<=://)[^@/]*@", "**********@", text))
