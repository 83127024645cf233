"""Who knows the beginning of a prompt: the longest one counts, the latest place first."""

from warmroute.core.model import Place
from warmroute.recognition.heads import Heads

A, B = Place("a"), Place("b", "1")


def digests(*numbers: int) -> list[bytes]:
    return [b"%016d" % number for number in numbers]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_longest_known_beginning_counts_and_the_latest_place_is_first() -> None:
    heads = Heads(Clock(), expiry=10, limit=100)
    heads.served(digests(1, 2, 3), A)
    heads.served(digests(1, 2, 4), B)
    assert heads.find(digests(1, 2, 3, 9)) == (A,)
    assert heads.find(digests(1, 2, 4, 9)) == (B,)
    assert heads.find(digests(1, 2, 8)) == (B, A)
    heads.served(digests(1, 2), A)
    assert heads.find(digests(1, 2, 8)) == (A, B)
    assert heads.find(digests(7, 8, 9)) == ()


def test_a_short_beginning_is_not_worth_it() -> None:
    heads = Heads(Clock(), expiry=10, limit=100)
    heads.served(digests(1), A)
    assert len(heads) == 0
    heads.served(digests(1, 2), A)
    assert heads.find(digests(1)) == ()
    assert heads.find(digests(1, 9)) == ()
    assert heads.find([]) == ()


def test_places_and_entries_are_bounded_and_forgotten() -> None:
    clock = Clock()
    heads = Heads(clock, expiry=10, limit=20)
    for i in range(50):
        heads.served(digests(1, 2), Place(f"b{i}"))
    assert len(heads.find(digests(1, 2))) == 16
    assert heads.find(digests(1, 2))[0] == Place("b49")
    for i in range(100):
        heads.served(digests(i, 1000 + i), A)
    assert len(heads) <= 20
    clock.now = 20
    assert heads.find(digests(99, 1099)) == ()
    assert repr(heads) == "<Heads 0 entries>"
