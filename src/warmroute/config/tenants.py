"""Who shows which key: tenants, what each may use, and whether they may share what servers have cached."""

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from .keys import ClientKey
from .values import Bytes, Section

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def checked_name(name: str) -> str:
    """Raises ValueError for a text that cannot name a tenant."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a tenant's name; use at most 64 letters, digits, dots, dashes and underscores"
        )
    return name


class ListenKey(Section):
    """A key that clients show, and whose it is."""

    key: ClientKey
    tenant: str = "default"

    @model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        return value if isinstance(value, dict) else {"key": value}

    @field_validator("tenant")
    @classmethod
    def _named(cls, value: str) -> str:
        return checked_name(value)


class TenantConfig(Section):
    """What one tenant may use; without a value there is no limit of its own.

    `rate` is in requests a second, of which `burst` may come at once (by default as many as in one second). `sessions` are
    conversations that live. `n` and `max_tokens` are of a single request.
    """

    in_flight: Annotated[int, Field(ge=1)] | None = None
    rate: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    burst: Annotated[int, Field(ge=1)] | None = None
    body: Bytes | None = None
    sessions: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _burst_of_a_rate(self) -> "TenantConfig":
        if self.burst is not None and self.rate is None:
            raise ValueError("burst says how many requests of a rate may come at once; set rate too")
        return self


class IsolationConfig(Section):
    """Whose prompts may hit what whose prompts have left in a prefix cache: `cache_salt` is set for a tenant, or a session."""

    cache_salt: Literal["off", "tenant", "session"] = "off"

    @field_validator("cache_salt", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare off as false
