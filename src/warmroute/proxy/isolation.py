"""Keeps tenants, or conversations, from hitting what others have left in a prefix cache: the router sets `cache_salt`.

Who can measure how soon an answer begins can tell whether a prompt was cached, and so guess what others ask (vLLM's own
security guide). vLLM mixes the salt into the hash of a prompt's first block, so that only prompts with the same salt share.
"""

import secrets
from hashlib import blake2b
from typing import Literal

from ..core.model import Session
from . import errors
from .body import BodyRefused, is_form
from .request import Request
from .tenants import Tenant

SALT = "cache_salt"
Mode = Literal["off", "tenant", "session"]


class Isolation:
    """`key` (16 to 64 bytes) keys the salts; routers that share it give the same ones, and so does one that was restarted."""

    def __init__(self, mode: Mode, key: bytes) -> None:
        self.mode = mode
        self._key = key

    def __repr__(self) -> str:
        return f"<Isolation {self.mode}>"

    def fields(self, request: Request, tenant: Tenant, session: Session | None) -> bytes:
        """The salt as a field with a comma behind it, b"" for what has no prompt. Raises BodyRefused where a client sets one
        itself, or where the body cannot be read, so that it may hold one."""
        if self.mode == "off" or not request.body or is_form(request.named):
            return b""
        if request.unreadable:
            raise BodyRefused(errors.not_readable())
        if request.has(SALT):
            raise BodyRefused(errors.not_for_clients(f"the field {SALT}", "isolation.cache_salt"))
        return b'"%b":"%b",' % (SALT.encode(), self._salt(tenant, session).encode())

    def _salt(self, tenant: Tenant, session: Session | None) -> str:
        if self.mode == "tenant":
            return blake2b(tenant.name.encode(), digest_size=32, key=self._key, person=b"tenant").hexdigest()
        if session is None:
            return secrets.token_hex(32)
        return blake2b(session.key, digest_size=32, key=self._key, person=b"session").hexdigest()
