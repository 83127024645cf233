"""What of a client's headers and fields travels on to the backends, as the configuration says it."""

import re
from typing import Literal

from pydantic import field_validator

from ..core.forward import Rule, owned
from .values import Section

_NAME = re.compile(r"[!#$%&'*+.^`|~0-9A-Za-z_-]{1,256}")


class ForwardConfig(Section):
    """What clients say that reaches a backend, or does not. A person's name and address do not unless asked for."""

    priority: Rule = Rule.DROP
    kv_transfer_params: Rule = Rule.REFUSE
    session_id: Literal[Rule.DROP, Rule.PASS] = Rule.PASS
    drop_headers: tuple[str, ...] = ()
    pass_headers: tuple[str, ...] = ()

    @field_validator("drop_headers", "pass_headers")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not the name of a header")
        return value

    @field_validator("pass_headers")
    @classmethod
    def _passable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if owned(name):
                raise ValueError(f"{name} cannot be passed on: the router sets it, or it is of one connection alone")
        return value
