"""The keys that clients must show: known by their digests alone, and never sent on."""

import hmac
from collections.abc import Iterable
from hashlib import sha256

from ..core.headers import Headers

CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key"})
"""Where clients of OpenAI's, Anthropic's and Azure's APIs put their keys."""
_HASHED = "sha256:"
_BEARER = b"bearer "


class Keys:
    """Tells whose key is shown. Each is a text, or `sha256:` and the 64 hex digits of its digest, and is some tenant's."""

    def __init__(self, keys: Iterable[tuple[str, str]]) -> None:
        """`keys` are pairs of a key and its tenant's name."""
        self._tenants = [
            (
                bytes.fromhex(key.removeprefix(_HASHED)) if key.startswith(_HASHED) else sha256(key.encode()).digest(),
                name,
            )
            for key, name in keys
        ]

    def __repr__(self) -> str:
        return f"<Keys {len(self._tenants)}>"

    def tenant(self, headers: Headers) -> str | None:
        """Whose key a request shows, None if it shows none. All are compared, in the same time whichever it is, and whether it
        is one; of several that are shown the one that stands last among the keys counts."""
        shown = [sha256(_key(name, value)).digest() for name, value in headers if name in CREDENTIALS]
        found = None
        for digest, name in self._tenants:
            if sum([hmac.compare_digest(digest, one) for one in shown]):
                found = name
        return found


def without_keys(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A request's headers as they may be sent on."""
    return [pair for pair in headers if pair[0] not in CREDENTIALS]


def _key(name: bytes, value: bytes) -> bytes:
    return (
        value[len(_BEARER) :].strip()
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER
        else value
    )
