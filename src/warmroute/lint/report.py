"""What the log showed: findings, the dearest first, as text and as JSON."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.cures import ANYWHERE, SENTENCES, cures
from ..core.drift import Cause
from .families import FEWSHOT, SHORT, USER

BYTES_PER_TOKEN = 4
"""An estimate, since there is no tokenizer: English text has 4 to 5 bytes a token, JSON and code 3 to 4."""

_SETTINGS_SHOWN = 6

_BETWEEN: Mapping[str, tuple[str, str]] = {
    USER: (
        "Personal things (name, e-mail, locale, account) stand in the system prompt, so that nothing behind them is shared.",
        "put it into the first message",
    ),
    FEWSHOT: (
        "The examples in the system prompt are others, or in another order, from conversation to conversation.",
        "use the same examples in the same order",
    ),
    SHORT: (
        "The prompts have less than a block of 16 tokens in common, so that nothing is ever found in the cache.",
        "begin all prompts with what they have in common: a system prompt that stays as it is",
    ),
}


@dataclass(slots=True)
class Finding:
    """One kind of change. `between` is "turns" (of one conversation) or "conversations" (whose beginnings could be shared).

    `requests` and `conversations` are how many it was seen in; `bytes_lost` what could have been reused without it; `offset`
    is the first place in `part` where it was seen, in bytes; `lines` are two lines of the log, `texts` what stands there.
    """

    kind: str
    between: str
    part: str
    offset: int
    requests: int = 0
    conversations: int = 0
    bytes_lost: int = 0
    sources: Counter[str] = field(default_factory=Counter)
    lines: tuple[int, int] = (0, 0)
    texts: tuple[str, str] | None = None

    @property
    def tokens_lost(self) -> int:
        """An estimate."""
        return self.bytes_lost // BYTES_PER_TOKEN

    @property
    def sentence(self) -> str:
        return _BETWEEN[self.kind][0] if self.kind in _BETWEEN else SENTENCES[Cause(self.kind)]

    @property
    def settings(self) -> list[str]:
        """What to change, for the clients that the ids in the log tell of."""
        if self.kind in _BETWEEN:
            return [_BETWEEN[self.kind][1]]
        cause = Cause(self.kind)
        found = dict.fromkeys(cure for source in self.sources or [""] for cure in cures(cause, source))
        told = [f"{cure.client}: {cure.setting}" for cure in found]
        return [*told[:_SETTINGS_SHOWN], f"your own program: {ANYWHERE[cause]}"]


@dataclass(slots=True)
class Report:
    """All of it. `by_people` are turns that were edited, branched off or gone back to, which is no fault of any client."""

    findings: list[Finding]
    requests: int
    conversations: int
    by_people: int


def as_dict(report: Report) -> dict[str, Any]:
    """The report as JSON has it; the dearest finding first."""
    return {
        "requests": report.requests,
        "conversations": report.conversations,
        "edited_by_people": report.by_people,
        "tokens_are": f"bytes / {BYTES_PER_TOKEN}",
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    told = {
        "kind": finding.kind,
        "between": finding.between,
        "tokens_lost": finding.tokens_lost,
        "part": finding.part,
        "offset": finding.offset,
        "requests": finding.requests,
        "conversations": finding.conversations,
        "key_sources": dict(finding.sources),
        "lines": list(finding.lines),
        "cause": finding.sentence,
        "settings": finding.settings,
    }
    return told if finding.texts is None else {**told, "texts": list(finding.texts)}


def as_text(report: Report) -> str:
    """The report for people."""
    seen = f"{_many(report.requests, 'request')} of {_many(report.conversations, 'conversation')}"
    edited = f"; {_many(report.by_people, 'turn')} edited by people" if report.by_people else ""
    if not report.findings:
        return f"nothing found in {seen}{edited}"
    head = (
        f"{_many(len(report.findings), 'finding')} in {seen}{edited}; tokens are estimated as bytes / {BYTES_PER_TOKEN}"
    )
    return "\n\n".join([head, *map(_paragraph, report.findings)])


def _paragraph(finding: Finding) -> str:
    unit = "turn" if finding.between == "turns" else "prompt"
    lines = [
        f"{finding.kind}: about {finding.tokens_lost:,} tokens computed again, {_many(finding.requests, unit)} of"
        f" {_many(finding.conversations, 'conversation')}",
        f"  {finding.sentence}",
        f"  where: {finding.part}, from byte {finding.offset} on; as between lines {finding.lines[0]} and {finding.lines[1]}",
    ]
    if finding.texts is not None:
        lines.append(f"  there: {finding.texts[0]!r} -> {finding.texts[1]!r}")
    return "\n".join([*lines, *(f"  change: {setting}" for setting in finding.settings)])


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
