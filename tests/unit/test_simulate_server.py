"""The simulated server against the prefix cache that agrees with vLLM's, and against the clock."""

from random import Random

import pytest

from warmroute.sim.prefix_cache import CacheSequence, PrefixCache
from warmroute.simulate.clock import Clock
from warmroute.simulate.server import BlockSequence, Exchange, Server
from warmroute.simulate.timing import H200, Timing
from warmroute.simulate.workload import Request, name

BLOCK = 4
PLAIN = Timing(first=0.5, token=0.01, pair=0.0, cached=0.0, answer=0.1)


def request(prompt: int, answer: int = 1, first: int = 0, at: float = 0.0) -> Request:
    """Blocks are numbered from `first`, so requests of the same first block begin alike."""
    return Request(at, prompt, answer, tuple(name(first + i) for i in range(prompt // BLOCK)))


@pytest.mark.parametrize("seed", range(5))
def test_names_hit_as_the_tokens_do(seed: int) -> None:
    """Growing, branching and repeated conversations, several running at once, in a cache that is too small for them."""
    random = Random(seed)
    by_token, by_name = PrefixCache(60, BLOCK), PrefixCache(60, BLOCK)
    histories: list[list[int]] = [[1, 2, 3, 4, 5]]
    running: list[tuple[CacheSequence, CacheSequence]] = []
    hits = 0
    for _ in range(300):
        if len(running) == 3:
            at = random.randrange(3)
            tokens, names = running.pop(at)
            by_token.release(tokens)
            by_name.release(names)
        history = random.choice(histories[-6:])
        prompt = history[: random.randrange(1, len(history) + 1)] if random.random() < 0.2 else list(history)
        prompt += [random.randrange(50) for _ in range(random.randrange(8))]
        answer = [random.randrange(50) for _ in range(random.randrange(1, 9))]
        if len(prompt) > 50:
            histories = [[1, 2, 3, 4, 5]]
            continue
        histories.append(prompt + answer)
        hashes = by_token.sequence(prompt + answer).hashes
        whole = len(prompt) // BLOCK
        asked = Request(0, len(prompt), len(answer), tuple(hashes[:whole]), tuple(hashes[whole:]))
        tokens, names = by_token.sequence(prompt), BlockSequence(asked, BLOCK)
        assert by_token.admit(tokens) == by_name.admit(names)
        assert by_token.extend(tokens, len(prompt) - tokens.computed)
        for token in answer:
            tokens.append(token)
        assert by_token.extend(tokens, len(answer) - 1) if len(answer) > 1 else True
        names.answered(len(answer))
        assert by_name.extend(names, len(prompt) + len(answer) - 1 - names.local_hit)
        assert tokens.local_hit == names.local_hit
        hits += tokens.local_hit
        running.append((tokens, names))
    assert by_token.counters == by_name.counters
    assert by_token.free_blocks == by_name.free_blocks
    assert hits > 300


def test_an_answer_without_names_takes_room_and_is_not_found() -> None:
    cache = PrefixCache(11, BLOCK)
    sequence = BlockSequence(request(8, answer=16), BLOCK)
    assert cache.admit(sequence)
    sequence.answered(16)
    assert cache.extend(sequence, 23)
    assert cache.free_blocks == 10 - 6
    cache.release(sequence)
    again = BlockSequence(request(24), BLOCK)
    assert cache.admit(again)
    assert again.local_hit == 8


class Asked:
    """Requests at one server, and when their answers began and ended."""

    def __init__(self, blocks: int = 100, timing: Timing = PLAIN) -> None:
        self.clock = Clock()
        self.server = Server(self.clock, timing, blocks=blocks, block_size=BLOCK)
        self.began: list[float] = []
        self.ended: list[float] = []

    def ask(self, asked: Request) -> None:
        self.clock.run_until(asked.at)
        began, ended = (lambda: self.began.append(self.clock())), (lambda: self.ended.append(self.clock()))
        self.server.ask(Exchange(asked, began, ended))

    def end(self) -> None:
        self.clock.run_until(float("inf"))


def test_a_prompt_is_computed_and_then_its_answer_comes() -> None:
    asked = Asked()
    asked.ask(request(100, answer=11))
    asked.end()
    assert asked.began == [pytest.approx(100 * 0.01 + 0.5)]
    assert asked.ended == [pytest.approx(1.5 + 10 * 0.1)]


def test_prompts_wait_for_each_other_and_answers_do_not() -> None:
    asked = Asked()
    asked.ask(request(100, answer=101))
    asked.ask(request(40, first=1000))
    asked.end()
    assert asked.began == [pytest.approx(1.5), pytest.approx(1.9)]
    assert asked.ended == [pytest.approx(1.9), pytest.approx(11.5)]


def test_what_is_cached_is_not_computed() -> None:
    asked = Asked()
    asked.ask(request(40))
    asked.ask(request(42, at=10))
    asked.end()
    assert asked.began[1] - 10 == pytest.approx(0.02 + 0.5)
    load = asked.server.load
    assert (load.requests, load.prompt_tokens, load.cached_tokens, load.prefilled_tokens) == (2, 82, 40, 42)


def test_what_does_not_fit_waits_until_blocks_are_free() -> None:
    asked = Asked(blocks=12)
    asked.ask(request(40, answer=4))
    asked.ask(request(20, first=1000))
    asked.end()
    assert asked.began[1] == pytest.approx(asked.ended[0] + 0.2 + 0.5)


def test_a_server_that_stops_forgets_all() -> None:
    asked = Asked()
    asked.ask(request(40, answer=100))
    asked.ask(request(40, first=1000, at=2))
    asked.ask(request(40, first=2000, at=2))
    broken = asked.server.stop()
    assert [exchange.answering is not None for exchange in broken] == [True, False, False]
    asked.ask(request(42, at=3))
    asked.end()
    assert asked.began == [
        pytest.approx(0.9),
        pytest.approx(3 + 0.42 + 0.5),
    ]  # nothing of the broken ones, nothing cached
    assert len(asked.ended) == 1


@pytest.mark.parametrize(
    ("prompt", "cached", "least", "most"),
    [
        (2000, 0, 0.084, 0.093),
        (8000, 0, 0.228, 0.233),
        (30_000, 0, 1.157, 1.161),
        (2000, 1984, 0.065, 0.093),
        (8000, 7984, 0.075, 0.087),
        (30_000, 29_984, 0.096, 0.118),
    ],
)
def test_the_timing_is_that_of_the_card_to_six_per_cent(prompt: int, cached: int, least: float, most: float) -> None:
    """The table of docs/simulate.md."""
    took = H200.first + H200.prefill(prompt, cached)
    assert least * 0.94 <= took <= most * 1.06


def test_time_goes_by_plans_in_order() -> None:
    clock, happened = Clock(), []
    clock.at(2, lambda: happened.append("b"))
    clock.at(1, lambda: clock.after(1, lambda: happened.append("c")))
    clock.at(1, lambda: happened.append("a"))
    clock.run_until(1.5)
    assert (clock(), happened) == (1.5, ["a"])
    clock.run_until(float("inf"))
    assert (clock(), happened) == (2.0, ["a", "b", "c"])
