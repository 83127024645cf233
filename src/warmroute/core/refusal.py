"""Which values cannot name one conversation: empty ones, placeholders, and words that stand for nothing."""

_STAND_FOR_NOTHING = frozenset(b"null none undefined nan default unknown anonymous user new 0 -".split())
_LONGEST_OF_THEM = max(map(len, _STAND_FOR_NOTHING))
_OPENS, _CLOSES = b"{}"
"""As numbers: to look for bytes with `in` costs as much as an exception."""


def refusal(value: bytes) -> str | None:
    """Why a value cannot name one conversation, in one word of a closed set; None if it can.

    A placeholder that nobody filled in, or a word that stands for nothing, would put everybody into one conversation.
    Any other value may have any length and any bytes, since only its digest is used.
    """
    if not value:
        return "empty"
    if (_OPENS in value or _CLOSES in value) and (b"{{" in value or b"}}" in value or b"${" in value):
        return "template"
    if len(value) <= _LONGEST_OF_THEM and value.lower() in _STAND_FOR_NOTHING:
        return "sentinel"
    return None
