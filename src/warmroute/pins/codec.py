"""How pins look in the shared store: names of keys, values, messages. Pure.

A session is known there by a keyed digest of its key, so that nobody who reads the store learns an id. A value is a small
JSON array, `[1,"backend","engine"]`, of which the first item is the version of this form; a message is a sender and a name.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple

import msgspec

from ..core.model import Place, Session

NAME_SIZE = 16
SENDER_SIZE = 8
MOST_HOLDERS = 16
"""Conversations with the very same history that other routers are told of."""
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

    def note(self, kind: bytes, digest: bytes) -> bytes:
        """The key of what routers know about a digest beside pins: `kind` is one letter that is no hex digit."""
        return (
            self.prefix.encode()
            + kind
            + b":"
            + blake2b(kind + digest, digest_size=16, key=self.secret).hexdigest().encode()
        )

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


class Held(NamedTuple):
    """Who said a history up to an answer: the session that went on from there last, and those whose last answer it is."""

    last: bytes
    holders: tuple[bytes, ...]


def read_held(raw: bytes) -> Held | None:
    """Out of what `link.Hold` stores: b"1" and session keys; None for anything else."""
    keys = tuple(raw[at : at + NAME_SIZE] for at in range(1, len(raw), NAME_SIZE))
    if not raw.startswith(b"1") or not keys or len(keys) > MOST_HOLDERS + 1 or len(keys[-1]) != NAME_SIZE:
        return None
    return Held(keys[0], keys[1:])


class _Owner(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    backend: Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
    session: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")]
    source: Annotated[str, msgspec.Meta(max_length=256)]


_owner_decoder = msgspec.json.Decoder(_Owner)


def owner_value(backend: str, session: Session | None) -> bytes:
    """The backend that made a response, and the session it belongs to."""
    key, source = (session.key.hex(), session.source) if session is not None else ("", "")
    return msgspec.json.encode(_Owner(1, backend, key, source))


def read_owner(raw: bytes) -> tuple[str, Session | None] | None:
    """Out of an `owner_value`; None for anything else."""
    if len(raw) > _LONGEST_VALUE:
        return None
    try:
        told = _owner_decoder.decode(raw)
    except msgspec.MsgspecError:
        return None
    return told.backend, Session(bytes.fromhex(told.session), told.source) if told.session else None


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
