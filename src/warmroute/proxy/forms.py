"""What a form with files may hide that is not for clients, looked for in its bytes while they pass."""

import re
from collections.abc import Mapping

from . import errors
from .body import BodyRefused

_UTF_8 = re.compile(rb';[ \t]*charset=(?:utf-?8|"utf-?8")[ \t]*(?:;|$)')
_WHAT = "what steers transfers between servers (in vllm_xargs: kv_transfer_params, ec_transfer_params)"


class FormWatch:
    """Refuses a form that holds one of these names as a JSON text: vLLM's forms take `vllm_xargs` as JSON in a field.

    The form itself is not taken apart, so that no part can hide in what two parsers read differently: a field's value stands
    in the body in one piece, whatever is around it. Kept of what has passed are as many bytes as a name can take.
    """

    def __init__(self, hidden: re.Pattern[bytes], longest: int) -> None:
        """`hidden` finds a name, in at most `longest` bytes."""
        self._hidden = hidden
        self._kept = longest - 1
        self._last = b""

    def __repr__(self) -> str:
        return f"<FormWatch {self._kept} bytes back>"

    def __call__(self, data: bytes) -> None:
        """The next bytes of the form. Raises BodyRefused before any of these may be sent on."""
        seen = self._last + data
        if self._hidden.search(seen):
            raise BodyRefused(errors.not_for_clients(_WHAT, "forward.kv_transfer_params"))
        self._last = seen[-self._kept :]


def is_written_otherwise(named: Mapping[bytes, bytes]) -> bool:
    """Whether a form, however its type is written, says that its fields are in another charset than UTF-8: there a name need
    not look like itself."""
    kind = named.get(b"content-type", b"").lower()
    if b"form-data" not in kind or b"charset" not in kind:
        return False
    return kind.count(b"charset") > 1 or not _UTF_8.search(kind)
