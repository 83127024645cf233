"""API keys in the configuration: written there, or where it says that they stand; never shown."""

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, SecretStr

_KEY = re.compile(r"[!-~]+")
_LONG_ENOUGH = 16
"""Characters of a token that nobody can try out."""
_HASHED = "sha256:"
_DIGEST = re.compile(r"sha256:[0-9a-fA-F]{64}")


def _secret(value: object) -> object:
    """A secret that stands elsewhere: `env:NAME`, or the content of `file:PATH`."""
    if isinstance(value, str) and value.startswith("env:"):
        found = os.environ.get(value.removeprefix("env:"))
        if not found:
            raise ValueError(f"{value} is not set in the environment of the router")
        return found
    if isinstance(value, str) and value.startswith("file:"):
        try:
            return Path(value.removeprefix("file:")).read_text(encoding="ascii").strip()
        except OSError as error:
            raise ValueError(f"{value}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ValueError(f"{value}: not a text in ASCII") from None
    return value


def _usable(value: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(value.get_secret_value()):
        raise ValueError("not usable as a key; give one or more printable ASCII characters without spaces")
    return value


def _digest(value: SecretStr) -> SecretStr:
    text = value.get_secret_value()
    if text.startswith(_HASHED) and not _DIGEST.fullmatch(text):
        raise ValueError("sha256: is not followed by 64 hex digits; make them with `printf %s KEY | sha256sum`")
    return value


def _long(value: SecretStr) -> SecretStr:
    if len(value.get_secret_value()) < _LONG_ENOUGH:
        raise ValueError(
            f"too short to be a token; give at least {_LONG_ENOUGH} characters, as of `openssl rand -hex 16`"
        )
    return value


Key = Annotated[SecretStr, BeforeValidator(_secret), AfterValidator(_usable)]
"""A key that is sent: as it is, `env:NAME`, or `file:PATH`."""
ClientKey = Annotated[Key, AfterValidator(_digest)]
"""A key that clients show; in its place there may be `sha256:` and its digest."""
Token = Annotated[Key, AfterValidator(_long)]
"""A key that guards a listener by itself."""
