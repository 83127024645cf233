"""Which URLs of other services can be used, whole."""

import re
from urllib.parse import parse_qs, urlsplit


def is_redis_url(text: str) -> bool:
    """Whether all of a URL is understood: scheme, user, password, host, port, database, and TLS options of rediss://."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return False
    options = parse_qs(parts.query)
    if parts.scheme == "unix":
        return bool(parts.path) and not parts.netloc.rpartition("@")[2] and set(options) <= {"db"}
    known = parts.scheme in ("redis", "rediss") and all(o.startswith("ssl_") for o in options)
    if options and parts.scheme != "rediss":
        return False
    return known and bool(parts.hostname) and port != 0 and re.fullmatch(r"(/\d*)?", parts.path) is not None


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
