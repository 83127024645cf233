"""How pins look in the shared store: names of keys, values, messages. Pure.

A session is known there by a keyed digest of its key, so that nobody who reads the store learns an id. A value is a small
JSON array, `[1,"backend","engine"]`, of which the first item is the version of this form; a message is a sender and a name.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Literal

import msgspec

from ..core.model import Place

NAME_SIZE = 16
SENDER_SIZE = 8
_LONGEST_VALUE = 1024


class _Stored(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    backend: Annotated[str, msgspec.Meta(min_length=1)]
    engine: str | None


_decoder = msgspec.json.Decoder(_Stored)


@lru_cache(maxsize=4096)
def value(backend: str, engine: str | None) -> bytes:
    """The one form in which a place is stored; equal places give the same object."""
    return msgspec.json.encode(_Stored(1, backend, engine))


def read(raw: bytes) -> Place | None:
    """The place that a stored value tells, or None for anything that `value` would not have written."""
    if len(raw) > _LONGEST_VALUE:
        return None
    try:
        stored = _decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    if value(stored.backend, stored.engine) != raw:
        return None
    return Place(stored.backend, stored.engine)


@dataclass(frozen=True, slots=True)
class Naming:
    """Names in the store. Routers share pins when prefix and secret are equal.

    `prefix` begins every key; `secret` is what `key_of` gives.
    """

    prefix: str
    secret: bytes

    def name(self, key: bytes) -> bytes:
        """A session's name: 16 bytes, which tell nothing about `key` to who does not know the secret."""
        return blake2b(key, digest_size=NAME_SIZE, key=self.secret).digest()

    def stored(self, name: bytes) -> bytes:
        """The key under which the pin of this name is stored."""
        return f"{self.prefix}{name.hex()}".encode()

    @property
    def marker(self) -> bytes:
        """The key whose loss shows that the store has lost its data."""
        return f"{self.prefix}marker".encode()

    @property
    def channel(self) -> bytes:
        """Where changes are told."""
        return f"{self.prefix}changes".encode()

    def __repr__(self) -> str:
        return f"<Naming {self.prefix!r}>"


def key_of(secret: bytes | None, prefix: str) -> bytes:
    """32 bytes for `Naming.secret`, out of a secret of any length.

    Without one they come from the prefix: every router of that prefix has the same ones, and so has everybody who knows it.
    """
    if secret is None:
        return blake2b(prefix.encode(), digest_size=32, person=b"wr-pins-prefix").digest()
    return blake2b(secret, digest_size=32, person=b"wr-pins-secret").digest()


def message(sender: bytes, name: bytes) -> bytes:
    """What tells the other routers that the pin of this name has changed."""
    return sender + name


def changed(data: bytes, own: bytes) -> bytes | None:
    """The name that a message tells; None if it comes from the sender `own` or is no message."""
    if len(data) != SENDER_SIZE + NAME_SIZE or data.startswith(own):
        return None
    return data[SENDER_SIZE:]
