"""Whether a request may come from where it comes from: a web page of somebody else must not reach the admin port."""

from collections.abc import Sequence
from ipaddress import ip_address

_READING = ("GET", "HEAD", "OPTIONS")


def refusal(method: str, hosts: Sequence[str], origin: str | None, *, guarded: bool) -> str | None:
    """Why a request is refused, None if it is not. `hosts` are its Host headers; `guarded` says that a token is asked for.

    A browser tells which page a POST comes from: only the router's own pages may send one. Where nobody is asked for a token
    the name must be one of this machine, or a page could read what is here by letting its own name point there.
    """
    if (
        not guarded
        and (foreign := next((host for host in hosts if not _loopback(_name(host.lower()))), None)) is not None
    ):
        return f"the Host {foreign!r} is none of this machine's own; ask for 127.0.0.1 or localhost, or set listen.admin_token"
    if method in _READING:
        return None
    if len(hosts) != 1:
        return "a request that changes something needs exactly one Host header"
    if origin is not None and origin.lower().partition("://")[2] != hosts[0].lower():
        return f"a page of {origin!r} may change nothing here"
    return None


def _name(host: str) -> str:
    """A Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        found = ip_address(name)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback
