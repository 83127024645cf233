"""Which URLs of other services can be used, whole."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Whether what listens at this address can be reached from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def traces_url(text: str) -> str:
    """Where a collector takes traces over HTTP: its URL as given, with the usual path where none is. Raises ValueError."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and text.isprintable()
    except ValueError:
        usable = False
    if not usable or "@" in text or " " in text:
        raise ValueError("not the URL of a collector; write it like http://127.0.0.1:4318")
    return text.rstrip("/") + "/v1/traces" if parts.path in ("", "/") and not parts.query else text
