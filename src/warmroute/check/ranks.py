"""`--data-parallel`: which engines does a server have, and does a request reach the one that it names?"""

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

from .probe import Asked, Bounds, Prober
from .target import new_client, one_server


@dataclass(frozen=True, slots=True)
class Rank:
    """One engine's prompt: new, again with the same rank, and with another one's; and the engines whose counters rose."""

    rank: str
    first: Asked
    again: Asked
    other: str
    elsewhere: Asked

    @property
    def obeyed(self) -> bool:
        """Whether the header chose the engine: its counter alone rose, and its cache alone knew the prompt."""
        reached = (
            self.rank in self.first.engines and self.rank in self.again.engines and self.other in self.elsewhere.engines
        )
        return reached and self.again.warm > 0 and self.elsewhere.warm == 0


@dataclass(frozen=True, slots=True)
class Report:
    """The engines found, what each one's prompts met, and the verdict."""

    url: str
    model: str
    engines: tuple[str, ...]
    prompt_tokens: int
    ranks: tuple[Rank, ...]
    passed: bool
    verdict: str
    findings: tuple[str, ...]


async def run(
    url: str,
    *,
    model: str | None,
    key: str | None,
    prompt_tokens: int,
    bounds: Bounds,
    say: Callable[[str], None],
    dice: random.Random,
) -> Report:
    """Make the check. Raises CheckError where it cannot be made."""
    async with new_client() as http:
        target = await one_server(http, url, key, "--data-parallel")
        prober = Prober(target, await target.model(model), bounds, dice)
        await prober.begin()
        length = prober.length(prompt_tokens)
        engines = prober.engines
        need = 3 * len(engines) * length if len(engines) > 1 else 0
        bounds.plan(need, f"checking {len(engines)} engines")
        say(
            f"checking {target.url}, model {prober.model.name}, engines {', '.join(engines) or 'unknown'}:"
            f" {need:,} prompt tokens will be asked"
        )
        ranks = [await _rank(prober, rank, other, length) for rank, other in _neighbours(engines)]
    passed, verdict, findings = judge(engines, ranks)
    return Report(target.url, prober.model.name, tuple(engines), length, tuple(ranks), passed, verdict, tuple(findings))


def _neighbours(engines: list[str]) -> list[tuple[str, str]]:
    """Each engine and the next one; none where there is but one."""
    return list(zip(engines, engines[1:] + engines[:1], strict=True)) if len(engines) > 1 else []


async def _rank(prober: Prober, rank: str, other: str, length: int) -> Rank:
    prompt = prober.prompt(length)
    first = await prober.ask(prompt, rank)
    again = await prober.ask(prompt, rank)
    return Rank(rank, first, again, other, await prober.ask(prompt, other))


def judge(engines: list[str], ranks: list[Rank]) -> tuple[bool, str, list[str]]:
    """Whether each engine was reached by its rank, in words, and what to change."""
    if not engines:
        return False, "the server's metrics name no engine", ["start vLLM without --disable-log-stats"]
    if len(engines) == 1:
        return True, "one engine: every turn meets the same cache, and no rank need be named", []
    wrong = [rank.rank for rank in ranks if not rank.obeyed]
    if not wrong:
        return (
            True,
            f"{len(engines)} engines, and X-data-parallel-rank is obeyed: a hit with the rank, none with another",
            ["without the header a turn meets any of the caches: warmroute names the rank of each conversation"],
        )
    findings = []
    if all(rank.again.warm == 0 for rank in ranks):
        findings.append("no prompt hit: is prefix caching on (--enable-prefix-caching)?")
    if any(rank.elsewhere.warm for rank in ranks):
        findings.append(
            "a prompt was warm on an engine that had not seen it: something in front of vLLM drops the header"
        )
    if any(rank.elsewhere.reloaded for rank in ranks):
        findings.append("the engines share a tier behind their caches, which is no fault")
    findings.append(
        "to reach each engine by its rank, let one server take the requests (--data-parallel-size N, without"
        " --data-parallel-hybrid-lb and --data-parallel-external-lb), and nothing drop the header on the way"
    )
    return False, f"{len(engines)} engines, and X-data-parallel-rank was not obeyed for {', '.join(wrong)}", findings


def as_text(report: Report) -> str:
    """The report for people."""
    lines = []
    if report.ranks:
        lines.append(f"{'rank':8}{'new':>10}{'again':>10}{'by another':>14}  engines that were asked")
    for rank in report.ranks:
        engines = "; ".join(",".join(asked.engines) or "none" for asked in (rank.first, rank.again, rank.elsewhere))
        cached = f"{rank.first.warm:>10}{rank.again.warm:>10}{rank.elsewhere.warm:>10} by {rank.other}"
        lines.append(f"{rank.rank:8}{cached}  {engines}")
    if report.ranks:
        lines.append(f"(tokens that the engine's cache had, of prompts of {report.prompt_tokens:,})")
    return "\n".join([*lines, report.verdict, *(f"- {finding}" for finding in report.findings)])


def as_dict(report: Report) -> dict[str, object]:
    return asdict(report)
