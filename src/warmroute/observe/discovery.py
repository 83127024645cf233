"""Who names the backends, as JSON."""

from collections.abc import Mapping

from ..discovery.members import Members


def discovery(members: Members, now: float) -> Mapping[str, object]:
    """Every source but the configuration: what it says, whether it works, and what operators did by hand."""
    return {
        "sources": [
            {
                "source": source.name,
                "up": source.up,
                "error": source.error,
                "failures": source.failures,
                "backends": [spec.url for spec in source.specs],
                "age_s": None if source.at is None else round(now - source.at, 1),
            }
            for source in members.sources
        ],
        "added_by_hand": list(members.by_hand),
        "removed_by_hand": list(members.hidden.values()),
        "refused": list(members.wanted.refused),
    }
