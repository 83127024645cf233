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
_FREE = {"limits": ("body",), "listen": ("keys", "admin_token", "admin_open_metrics")}
"""Keys of those sections that may change all the same."""


def needs_restart(now: Config, wanted: Config) -> list[str]:
    """The keys whose values differ and need a restart, as `section.key`."""
    found = []
    for section in (*_WHOLE, *_KEYS):
        before, after = getattr(now, section), getattr(wanted, section)
        assert isinstance(before, BaseModel)
        for key in _KEYS.get(section) or type(before).model_fields:
            if key not in _FREE.get(section, ()) and getattr(before, key) != getattr(after, key):
                found.append(f"{section}.{key}")
    return found
