"""What many keys have in common: durations, sizes, and sections that refuse keys they do not know."""

import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB)")
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:-]{0,252}")
_BYTES = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _duration(value: object) -> object:
    if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        return float(match[1]) * _SECONDS[match[2]]
    if isinstance(value, str):
        raise ValueError(f"{value!r} is not a duration; write it like 500ms, 2s, 30m or 1h")
    return value


def _size(value: object) -> object:
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        return int(float(match[1]) * _BYTES[match[2]])
    if isinstance(value, str) and not value.strip().isdigit():
        raise ValueError(f"{value!r} is not a size; write it like 512KiB or 64MiB")
    return value


def _path(value: str) -> str:
    if not value or "\0" in value:
        raise ValueError(f"{value!r} is not the path of a file")
    return value


def _server_name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(
            f"{value!r} is not a name that a certificate can hold; write it like gpu-a.example or 10.0.0.1"
        )
    return value


Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, BeforeValidator(_duration), Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0)]
File = Annotated[str, AfterValidator(_path)]
"""The path of a file, which is read when it is needed."""
ServerName = Annotated[str, AfterValidator(_server_name)]
"""A name or an address, as certificates hold it."""


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
