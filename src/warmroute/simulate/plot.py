"""Results as a picture; matplotlib is loaded only here."""

from pathlib import Path

from .report import Results
from .workload import Workload

SUFFIXES = (".png", ".svg")


class PlotError(Exception):
    """A picture that cannot be made. The text is one line and says what to do."""


def check(file: Path) -> None:
    """Raise PlotError where a picture could not be made in the end; nothing is written yet."""
    if file.suffix not in SUFFIXES:
        raise PlotError(f"{file} is no picture; give a name that ends with .png or .svg")
    if not file.parent.is_dir():
        raise PlotError(f"there is no directory {file.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise PlotError("--plot wants matplotlib; install it with: pip install 'warmroute[plot]'") from None


def plot(file: Path, workload: Workload, pooled: float, results: Results) -> None:
    """Hit rates beside that of one pooled cache, what each backend computed, and times to first tokens. Raises PlotError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

    figure = Figure(figsize=(13, 4), layout="constrained")
    figure.suptitle(workload.name)
    rates, loads, times = figure.subplots(1, 3)
    names = [policy.value for policy in results]
    rates.bar(names, [result.hit_rate for result in results.values()], color=[f"C{i}" for i in range(len(names))])
    rates.axhline(pooled, color="black", linestyle="--", linewidth=1, label="one pooled cache")
    rates.yaxis.set_major_formatter(PercentFormatter(1.0))
    rates.set_title("prompt tokens found in a cache")
    rates.legend(loc="lower right")
    width = 0.8 / len(results)
    for i, (policy, result) in enumerate(results.items()):
        millions = [load.prefilled_tokens / 1e6 for load in result.loads.values()]
        loads.bar([at + i * width for at in range(len(millions))], millions, width, label=policy.value)
        ordered = sorted(result.ttfts)
        shares = [(n + 1) / len(ordered) for n in range(len(ordered))]
        times.plot(ordered, shares, label=policy.value)
    loads.set_title("prompt tokens computed, by backend")
    loads.set_ylabel("million tokens")
    backends = list(next(iter(results.values())).loads)
    loads.set_xticks(
        [at + 0.4 - width / 2 for at in range(len(backends))], [name.rpartition("-")[2] for name in backends]
    )
    loads.set_xlabel("backend")
    times.set_title("first token within so many seconds")
    times.set_xscale("log")
    times.xaxis.set_major_formatter(FuncFormatter(lambda seconds, at: f"{seconds:g}"))
    times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    times.xaxis.set_minor_formatter(NullFormatter())
    times.yaxis.set_major_formatter(PercentFormatter(1.0))
    times.legend()
    try:
        figure.savefig(file)
    except OSError as error:
        raise PlotError(f"{file}: {error.strerror}") from None
