"""A little of every fuzzer, and all cases that were worth keeping. `make fuzz` does the rest."""

import logging
from collections.abc import Iterator

import pytest

from .pieces import Case
from .run import TARGETS, Target, fuzz, kept

CASES = 300
KEPT = [pytest.param(name, case, id=f"{name}: {why}") for name in TARGETS for why, case in kept(name)]


@pytest.fixture
def quiet() -> Iterator[None]:
    """What hostile input makes the router log is not of interest here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(("name", "case"), KEPT)
@pytest.mark.usefixtures("quiet")
def test_what_was_worth_keeping(name: str, case: Case) -> None:
    target = TARGETS[name]()
    try:
        target.check(case)
    finally:
        target.close()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.usefixtures("quiet")
def test_a_little_of_everything(name: str) -> None:
    target = TARGETS[name]()
    try:
        assert fuzz(target, CASES, first=1) >= CASES
    finally:
        target.close()


def test_a_case_that_fails_is_told_so_that_it_can_be_kept() -> None:
    class Broken:
        name, share = "broken", 1.0

        @staticmethod
        def build(dice: object) -> Case:
            return (b"\xff", b"x")

        def check(self, case: Case) -> None:
            raise ZeroDivisionError

        def close(self) -> None:
            pass

    broken: Target = Broken()
    with pytest.raises(ZeroDivisionError) as caught:
        fuzz(broken, 10, first=7)
    assert caught.value.__notes__[0] == 'broken, seed 7: {"why": "", "case": ["\\u00ff", "x"]}'


def test_the_shares_are_a_whole() -> None:
    targets = [make() for make in TARGETS.values()]
    assert sum(target.share for target in targets) == pytest.approx(1.0)
    for target in targets:
        target.close()
