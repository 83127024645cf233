"""What many keys have in common: durations, sizes, and sections that refuse keys they do not know."""

import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(KiB|MiB|GiB)")
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


Seconds = Annotated[float, BeforeValidator(_duration), Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, BeforeValidator(_duration), Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[int, BeforeValidator(_size), Field(gt=0)]


class Section(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
