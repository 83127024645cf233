"""One backend as the configuration names it."""

import re
from typing import Annotated
from urllib.parse import urlsplit

import httpx
from pydantic import Field, SecretStr, field_validator, model_validator

from ..core.model import SYSTEM, BackendSpec, Trust
from .keys import Key
from .values import File, Section, ServerName

_URL = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[!-~]*)?")
"""A server's URL: no user, query or fragment, and no byte that could end a request line."""
_PASSWORD = re.compile(r"(?<=//)[^@/]*@")


class BackendConfig(Section):
    """One vLLM server. `name` defaults to host:port; `key` is what it was started with as `--api-key`.

    `ca` and `server_name` say how to know it by its certificate, if its URL is https.
    """

    url: str
    name: str = ""
    weight: Annotated[float, Field(ge=0.1, le=10)] = 1.0
    key: Key | None = None
    ca: File | None = None
    server_name: ServerName | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _checked_url(cls, value: str) -> str:
        text = (value if "://" in value else f"http://{value}").rstrip("/")
        matched = _URL.fullmatch(text)
        if matched is None or any(mark in text for mark in "?#@\\") or not _is_port(matched[3]):
            shown = _PASSWORD.sub("**********@", value)
            raise ValueError(f"{shown!r} is not the URL of a server; write it like http://127.0.0.1:8000")
        try:
            httpx.URL(text)
        except httpx.InvalidURL as error:
            raise ValueError(f"{value!r} cannot be asked: {error}") from None
        return text

    @field_validator("name")
    @classmethod
    def _checked_name(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError(f"{value!r} is not a name; use printable characters")
        return value

    def spec(self, key: SecretStr | None = None, trust: Trust = SYSTEM) -> BackendSpec:
        """`key`, and the authorities of `trust`, are for those that have none of their own."""
        own = self.key or key
        return BackendSpec(
            self.name or urlsplit(self.url).netloc,
            self.url,
            self.weight,
            own.get_secret_value() if own is not None else None,
            trust if self.ca is None else trust._replace(ca=self.ca),
            self.server_name,
        )


def _is_port(text: str | None) -> bool:
    """Whether `:PORT` can be connected to; None is the scheme's own port."""
    if text is None:
        return True
    return 0 < int(text[1:]) <= 65535
