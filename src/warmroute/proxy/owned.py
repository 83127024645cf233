"""The fields of a body that are not for every client to set: taken out, passed on, or the request is refused."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from ..core.forward import Rule
from ..core.routes import REALTIME
from . import errors
from .body import BodyRefused, is_form
from .forms import FormWatch, is_written_otherwise
from .request import Request

PRIORITY_FIELD, KV_FIELDS = "priority", ("kv_transfer_params", "ec_transfer_params")
_XARGS = "vllm_xargs"
"""vLLM takes the same from here, under the same names."""
_PRIORITY_HEADER = b"x-vllm-priority"
_LONGEST = 2 + 6 * max(map(len, KV_FIELDS))
"""Bytes that a field's name can take as a JSON text: its quotes, and every letter as \\u and four digits."""


class Forward(NamedTuple):
    """What of a request is sent on: no header among these, and no field that is owned."""

    drop: frozenset[bytes]
    owned: "Owned"


_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Owned:
    """What the router is to do with fields that steer an engine; `priority` is also for the header that says the same.

    A null says nothing and is never refused. Whoever may not set a field may not hide it either: a body that cannot be read
    here, though a backend might, is refused if it holds the field's name.
    """

    def __init__(self, priority: Rule, kv_transfer: Rule) -> None:
        rules = {PRIORITY_FIELD: priority, **dict.fromkeys(KV_FIELDS, kv_transfer)}
        self.rules: Mapping[str, Rule] = {name: rule for name, rule in rules.items() if rule is not Rule.PASS}
        kv = [name for name in KV_FIELDS if name in self.rules]
        self.names = (*self.rules, *([_XARGS] if kv else []))
        """The fields that have to be looked for."""
        self._kv = frozenset(kv)
        self._hidden = _anywhere(self.rules)
        self._hidden_in_forms = _anywhere(kv) if kv else None
        self._refuses_header = priority is Rule.REFUSE

    def __repr__(self) -> str:
        return f"<Owned {' '.join(f'{name}:{rule}' for name, rule in self.rules.items())}>"

    def watch(self, named: Mapping[bytes, bytes]) -> FormWatch | None:
        """What looks through a form while it comes; None if nothing need be looked for.

        Raises BodyRefused where it could not find it. vLLM's forms have no other field of these than `vllm_xargs`.
        """
        if self._hidden_in_forms is None:
            return None
        if is_written_otherwise(named):
            raise BodyRefused(errors.not_readable("the form is not in UTF-8"))
        return FormWatch(self._hidden_in_forms, _LONGEST)

    def apply(self, request: Request) -> None:
        """Take out of a whole body what is to be dropped. Raises BodyRefused for what is to be refused."""
        if self._refuses_header and request.header(_PRIORITY_HEADER) is not None:
            raise BodyRefused(errors.not_for_clients("the header X-Vllm-Priority", "forward.priority"))
        there = request.any_of_owned()
        if there is False or not request.body or request.label == REALTIME.label or is_form(request.named):
            return
        if there:
            self._take_out(request)
        elif there is None and (
            is_written_otherwise(request.named) or self._hidden.search(request.body.replace(b"\0", b""))
        ):
            raise BodyRefused(errors.not_readable())

    def _take_out(self, request: Request) -> None:
        try:
            members = _members.decode(request.body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise BodyRefused(errors.not_readable()) from None
        dropped = False
        for name, rule in self.rules.items():
            raw = members.get(name)
            if raw is None:
                continue
            if rule is Rule.REFUSE and bytes(raw).strip() != b"null":
                raise BodyRefused(errors.not_for_clients(f"the field {name}", _key_of(name)))
            del members[name]
            dropped = True
        inside = self._smuggled(bytes(members[_XARGS])) if self._kv and _XARGS in members else None
        if inside is not None:
            raise BodyRefused(errors.not_for_clients(f"the field {_XARGS}.{inside}", _key_of(inside)))
        if dropped:
            request.replace_body(_written(members))

    def _smuggled(self, raw: bytes) -> str | None:
        try:
            return next(iter(self._kv.intersection(_members.decode(raw))), None)
        except msgspec.ValidationError:  # no object: vLLM refuses it
            return None
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise BodyRefused(errors.not_readable()) from None


def _key_of(name: str) -> str:
    return "forward.priority" if name == PRIORITY_FIELD else "forward.kv_transfer_params"


def _written(members: Mapping[str, msgspec.Raw]) -> bytes:
    """A JSON object again, each value in the bytes it came in."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + bytes(raw) for name, raw in members.items()) + b"}"


def _anywhere(names: Iterable[str]) -> re.Pattern[bytes]:
    """Finds any of these names where it stands as a JSON text, in whatever way its letters are written."""
    either = "|".join("".join(f"(?:{re.escape(c)}|\\\\u00{ord(c):02x})" for c in name) for name in names)
    return re.compile(f'"(?:{either or "(?!)"})"'.encode(), re.IGNORECASE)
