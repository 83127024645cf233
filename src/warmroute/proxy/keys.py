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
    """Admits who shows one of some keys. Each is a text, or `sha256:` and the 64 hex digits of its digest."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [
            bytes.fromhex(key.removeprefix(_HASHED)) if key.startswith(_HASHED) else sha256(key.encode()).digest()
            for key in keys
        ]

    def __repr__(self) -> str:
        return f"<Keys {len(self._digests)}>"

    def admit(self, headers: Headers) -> bool:
        """Whether a request shows a key. All are compared, in the same time whichever it is, and whether it is one."""
        shown = [sha256(_key(name, value)).digest() for name, value in headers if name in CREDENTIALS]
        return sum(hmac.compare_digest(digest, known) for digest in shown for known in self._digests) > 0


def without_keys(headers: Headers) -> list[tuple[bytes, bytes]]:
    """A request's headers as they may be sent on."""
    return [pair for pair in headers if pair[0] not in CREDENTIALS]


def _key(name: bytes, value: bytes) -> bytes:
    return (
        value[len(_BEARER) :].strip()
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER
        else value
    )
