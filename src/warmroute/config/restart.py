"""Which keys are read only at the start, so that a running router cannot take new values of them."""

from pydantic import BaseModel

from .schema import Config

_WHOLE = ("listen", "discovery", "store", "kv_events", "tracing")
"""Sections that a running router has bound to."""
_KEYS = {
    "affinity": ("idle_expiry", "unproven_expiry", "max_sessions", "max_history"),
    "limits": None,
    "truth": ("max_conversations",),
}
"""Keys of other sections: what is remembered has its size, and client connections have their limits, from the start on."""
_LISTEN = ("keys", "admin_token", "admin_open_metrics", "cert", "cert_key", "admin_cert", "admin_cert_key")
_FREE = {"limits": ("body",), "listen": _LISTEN}
"""Keys of those sections that may change all the same."""
_SWITCHES = ("cert", "admin_cert")
"""Keys of `listen` that may have another value, but not begin or cease to have one."""


def needs_restart(now: Config, wanted: Config) -> list[str]:
    """The keys whose values differ and need a restart, as `section.key`."""
    found = []
    for section in (*_WHOLE, *_KEYS):
        before, after = getattr(now, section), getattr(wanted, section)
        assert isinstance(before, BaseModel)
        for key in _KEYS.get(section) or type(before).model_fields:
            if key not in _FREE.get(section, ()) and getattr(before, key) != getattr(after, key):
                found.append(f"{section}.{key}")
    for key in _SWITCHES:
        if (getattr(now.listen, key) is None) != (getattr(wanted.listen, key) is None):
            found.append(f"listen.{key}")
    return found
