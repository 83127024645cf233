"""The simulated engine, in told time; its tokenizer and its writer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.sim.engine import Delivery, Engine, EngineRates, EngineRequest, FinishReason
from warmroute.sim.options import SimOptions
from warmroute.sim.prefix_cache import PrefixCache
from warmroute.sim.tokens import IM_END_ID, VOCAB_SIZE, Tokenizer, message_text, token_text
from warmroute.sim.words import CLASSES, FOLLOWERS, WORDS
from warmroute.sim.writer import Answer, Token

BLOCK = 4
RATES = EngineRates(prefill=100.0, decode=10.0, reload=1000.0, max_num_seqs=8, max_num_batched_tokens=1000)


@dataclass
class Latencies:
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    def first_token(self, seconds: float) -> None:
        self.first.append(seconds)

    def completed(self, seconds: float) -> None:
        self.whole.append(seconds)


class Counting:
    """Answers 1, 2, 3 and so on, and ends with token 0 after `length` of them, when that is allowed."""

    def __init__(self, length: int = 10**9) -> None:
        self._next = itertools.count(1)
        self._length = length

    def next(self, *, may_end: bool) -> Token:
        number = next(self._next)
        if number > self._length and may_end:
            return Token(0, "", is_end=True)
        return Token(number, str(number))


class Bench:
    """An engine whose clock is moved by the test."""

    def __init__(self, blocks: int = 1000, rates: EngineRates = RATES, host_blocks: int = 0) -> None:
        self.latencies = Latencies()
        self.engine = Engine(PrefixCache(blocks, BLOCK, host_blocks=host_blocks), rates, self.latencies)
        self.delivered: list[Delivery] = []

    def submit(self, prompt: Sequence[int], max_tokens: int = 4, at: float = 0.0, **more: Any) -> EngineRequest:
        answer = more.pop("answer", None) or Counting()
        sequence = self.engine.cache.sequence(prompt)
        request = EngineRequest(sequence, answer, max_tokens, at, **more)
        self.engine.submit(request)
        return request

    def run_until(self, now: float) -> None:
        self.delivered += self.engine.advance(now)

    def finish(self) -> None:
        while (due := self.engine.due()) is not None:
            self.run_until(due)

    def times(self, request: EngineRequest) -> list[float]:
        return [round(d.at, 4) for d in self.delivered if d.request is request]

    def text(self, request: EngineRequest) -> str:
        return " ".join(t.text for d in self.delivered if d.request is request for t in d.tokens)


def test_a_request_takes_its_prefill_and_then_a_token_at_a_time() -> None:
    bench = Bench()
    request = bench.submit(range(50), 4)
    bench.finish()
    # 50 tokens at 100 a second, and 10 tokens a second after the first.
    assert bench.times(request) == [0.5, 0.6, 0.7, 0.8]
    assert bench.text(request) == "1 2 3 4"
    assert request.finished is FinishReason.LENGTH
    assert bench.latencies.first == [pytest.approx(0.5)]
    assert bench.latencies.whole == [pytest.approx(0.8)]
    assert (bench.engine.counters.prompt_tokens, bench.engine.counters.generation_tokens) == (50, 4)


def test_cached_tokens_cost_no_prefill() -> None:
    bench = Bench()
    bench.submit(range(50), 1)
    bench.finish()
    again = bench.submit(range(50), 1, at=10.0)
    bench.finish()
    assert again.cached_tokens == 48
    assert bench.times(again) == [10.02]
    counters = bench.engine.counters
    assert (counters.computed_tokens, counters.local_hit_tokens) == (52, 48)


def test_prefills_run_one_after_the_other_while_the_others_wait() -> None:
    bench = Bench()
    requests = [bench.submit(range(n * 1000, n * 1000 + 100), 2) for n in range(3)]
    bench.run_until(0.5)
    assert (bench.engine.running, bench.engine.waiting) == (1, 2)
    bench.finish()
    assert [bench.times(r)[0] for r in requests] == [1.0, 2.0, 3.0]


def test_no_more_than_max_num_seqs_run() -> None:
    rates = EngineRates(prefill=1e6, decode=10.0, reload=1e6, max_num_seqs=2, max_num_batched_tokens=100)
    bench = Bench(rates=rates)
    requests = [bench.submit([n], 11) for n in range(3)]
    bench.run_until(0.95)
    assert (bench.engine.running, bench.engine.waiting) == (2, 1)
    bench.finish()
    assert bench.times(requests[0])[-1] == bench.times(requests[2])[0] == 1.0


def test_a_late_caller_gets_everything_in_order_and_nothing_begins_before_it_arrived() -> None:
    bench = Bench()
    first = bench.submit(range(10), 3)
    second = bench.submit(range(100, 110), 1, at=5.0)
    bench.run_until(60.0)
    assert bench.times(first) == [0.1, 0.2, 0.3]
    assert bench.times(second) == [5.1]
    assert bench.latencies.first == [pytest.approx(0.1), pytest.approx(0.1)]
    assert bench.engine.due() is None


def test_an_answer_may_end_by_itself_unless_told_not_to() -> None:
    bench = Bench()
    ended = bench.submit([1], 9, answer=Counting(2))
    longer = bench.submit([2], 9, answer=Counting(2), min_tokens=5)
    ignoring = bench.submit([3], 9, answer=Counting(2), ignore_eos=True)
    bench.finish()
    assert [(r.generated, str(r.finished)) for r in (ended, longer, ignoring)] == [
        (3, "stop"),
        (6, "stop"),
        (9, "length"),
    ]


def test_an_aborted_request_gives_its_blocks_back_and_lets_the_next_one_run() -> None:
    bench = Bench(blocks=1 + 10)
    first = bench.submit(range(30), 100)
    second = bench.submit(range(100, 130), 1)
    bench.run_until(0.35)
    assert (bench.engine.running, bench.engine.waiting) == (1, 1)
    bench.engine.abort(first, 0.35)
    bench.finish()
    assert first.finished is FinishReason.ABORT
    assert bench.times(second) == [0.65]
    assert bench.engine.cache.free_blocks == 10
    bench.engine.abort(second, 1.0)
    assert second.finished is FinishReason.LENGTH


@pytest.mark.parametrize("at", [0.0, 0.05, 0.15, 0.35])
def test_a_request_can_be_aborted_wherever_it_is(at: float) -> None:
    bench = Bench(host_blocks=100)
    requests = [bench.submit(range(n * 100, n * 100 + 10), 5) for n in range(2)]
    bench.run_until(at)
    for request in requests:
        bench.engine.abort(request, at)
    bench.finish()
    assert bench.engine.cache.usage == 0.0
    assert (bench.engine.running, bench.engine.waiting) == (0, 0)
    assert bench.engine.counters.finished[FinishReason.ABORT] == 2


def test_without_a_free_block_the_request_admitted_last_is_preempted_and_still_answers_whole() -> None:
    bench = Bench(blocks=1 + 10)
    first, second = bench.submit(range(14), 20), bench.submit(range(100, 114), 20)
    bench.finish()
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert bench.engine.counters.preemptions == 1
    wanted = " ".join(str(n) for n in range(1, 21))
    assert (bench.text(first), bench.text(second)) == (wanted, wanted)
    assert second.cached_tokens == 0
    assert bench.engine.cache.counters.queries == 28
    assert bench.engine.counters.prompt_tokens == 28
    assert len(bench.latencies.first) == 2


def test_a_long_prefill_is_cut_in_chunks_and_an_abort_leaves_only_what_was_computed() -> None:
    rates = EngineRates(prefill=100.0, decode=10.0, reload=1e6, max_num_seqs=4, max_num_batched_tokens=20)
    bench = Bench(rates=rates)
    request = bench.submit(range(100), 2)
    bench.run_until(0.3)
    bench.engine.abort(request, 0.3)
    assert bench.engine.cache.cached_tokens(range(100)) == 40
    whole = bench.submit(range(100), 2, at=1.0)
    bench.finish()
    assert bench.times(whole) == [1.6, 1.7]


def test_blocks_of_the_host_tier_are_loaded_beside_the_computing() -> None:
    bench = Bench(blocks=1 + 30, host_blocks=100)
    bench.submit(range(80), 1)
    bench.finish()
    bench.submit(range(1000, 1120), 1, at=10.0)
    bench.finish()
    again = bench.submit(range(80), 1, at=20.0)
    bench.run_until(20.0)
    assert (bench.engine.deferred, bench.engine.running) == (1, 0)
    bench.finish()
    assert again.cached_tokens == 80
    # 80 tokens at 1000 a second, then the last one computed anew.
    assert bench.times(again) == [20.09]
    assert bench.engine.counters.external_tokens == 80


def test_rates_must_be_above_nothing() -> None:
    with pytest.raises(ValueError, match="prefill is 0; give a number above 0"):
        SimOptions(prefill_tokens_per_s=0)


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(0, 20)), max_size=20))
def test_every_request_ends_with_all_its_tokens_however_crowded_it_is(
    requests: list[tuple[int, int, int]],
) -> None:
    bench = Bench(blocks=1 + 12, host_blocks=10)
    arrivals = sorted(requests, key=lambda r: r[2])
    submitted = [
        bench.submit([n * 50 + i for i in range(length)], count, at=tenths / 10)
        for n, (length, count, tenths) in enumerate(arrivals)
    ]
    bench.finish()
    for request, (_, count, _) in zip(submitted, arrivals, strict=True):
        assert bench.text(request) == " ".join(str(n) for n in range(1, count + 1))
    assert bench.engine.cache.usage == 0.0
    assert bench.engine.counters.generation_tokens == sum(count for _, count, _ in arrivals)
    assert min(bench.latencies.first, default=1.0) > 0


# The tokenizer and the writer.


def test_a_token_is_about_four_characters_of_english() -> None:
    text = (
        "Could you help me to find a good place for dinner near the station? We are five people, two of us do not eat "
        "meat, and one has to leave before nine. Something quiet would be nice, because we have not met for a year."
    )
    assert 3.5 <= len(text) / len(Tokenizer().encode(text)) <= 5


@pytest.mark.parametrize(
    "text", ["", " ", "\n\n", "a  b", "don't", "x_y(1);", "Ünïcödé 漢字 🙂", "<|im_end|>", "\tif x:\n"]
)
def test_ids_are_in_the_vocabulary_and_the_same_each_time(text: str) -> None:
    ids = Tokenizer().encode(text)
    assert ids == Tokenizer().encode(text)
    assert all(0 <= token < VOCAB_SIZE for token in ids)
    assert bool(ids) == bool(text)


messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": st.text(max_size=40)}),
    min_size=1,
    max_size=6,
)


@given(messages, st.text(max_size=20), st.integers(1, 60))
def test_a_turn_and_its_answer_begin_the_next_turn(chat: list[dict[str, str]], question: str, length: int) -> None:
    tokenizer = Tokenizer(remembered=3)
    prompt = tokenizer.encode_chat(chat)
    answer = Answer(prompt, seed=0)
    tokens: list[Token] = []
    while len(tokens) < length and not (tokens and tokens[-1].is_end):
        tokens.append(answer.next(may_end=True))
    text = "".join(token.text for token in tokens)
    later = [*chat, {"role": "assistant", "content": text}, {"role": "user", "content": question}]
    ids = [*prompt, *(token.token_id for token in tokens)]
    assert tokenizer.encode_chat(later)[: len(ids)] == ids
    assert Tokenizer().encode_chat(later) == tokenizer.encode_chat(later)


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30), st.integers(0, 40))
def test_an_answer_that_was_cut_goes_on_as_if_it_had_not_been(prompt: list[int], cut: int) -> None:
    whole = Answer(prompt, seed=7)
    tokens = [whole.next(may_end=False) for _ in range(60)]
    rest = Answer([*prompt, *(token.token_id for token in tokens[:cut])], seed=7)
    assert [rest.next(may_end=False) for _ in range(60 - cut)] == tokens[cut:]


def test_answers_differ_by_prompt_and_by_seed_and_end_by_themselves() -> None:
    def text(prompt: list[int], seed: int) -> str:
        answer = Answer(prompt, seed)
        words: list[Token] = []
        while not words or not words[-1].is_end:
            words.append(answer.next(may_end=True))
        assert words[-1].token_id == IM_END_ID
        return "".join(token.text for token in words)

    texts = {text([n, 198], seed) for n in range(50) for seed in (0, 1)}
    assert len(texts) == 100
    assert all(t[0].isupper() and t.endswith(".") for t in texts)
    assert 100 < sum(map(len, texts)) / len(texts) < 600


def test_each_word_of_an_answer_has_one_class_one_id_and_a_way_on() -> None:
    assert len(set(WORDS)) == len(WORDS)
    tokenizer = Tokenizer()
    for name, words in CLASSES.items():
        assert {follower for follower, _ in FOLLOWERS[name]} <= set(CLASSES)
        for word in words:
            (token,) = tokenizer.encode(word)
            assert token_text(token) == word


def test_parts_tools_and_tool_calls_are_shown_and_change_the_prompt() -> None:
    assert message_text({"content": [{"type": "text", "text": "a"}, "b", {"type": "image_url"}]}).startswith("ab[{")
    assert message_text({"content": None, "tool_calls": [{"id": "1"}]}) == '\n<tool_call>\n{"id": "1"}\n</tool_call>'
    assert message_text({"role": "user"}) == ""
    chat = [{"role": "user", "content": "hi"}]
    tokenizer = Tokenizer()
    one, other = ({"name": "a", "x": 1}, {"x": 1, "name": "a"})
    assert tokenizer.encode_chat(chat, tools=[one]) != tokenizer.encode_chat(chat, tools=[other])
    assert tokenizer.encode_chat(chat, tools=[one])[-5:] == tokenizer.encode_chat(chat)[-5:]


def test_a_message_can_be_left_open_to_be_written_on() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "The plan"}]
    tokenizer = Tokenizer()
    opened = tokenizer.encode_chat(chat, add_generation_prompt=False, continue_final_message=True)
    closed = tokenizer.encode_chat(chat, add_generation_prompt=False)
    assert closed[: len(opened)] == opened
    assert token_text(opened[-1]) == " plan"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"model": ""}, "model is empty"),
        ({"block_size": 0}, "block_size is 0; give at least 1"),
        ({"num_blocks": 1}, "num_blocks is 1; give at least 2"),
        ({"data_parallel_size": 0}, "data_parallel_size is 0; give at least 1"),
        ({"num_blocks": 10, "max_model_len": 145}, "the cache holds 144 tokens"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
    ],
)
def test_options_that_no_server_could_start_with_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SimOptions(**wrong)


def test_the_context_is_what_the_cache_holds_at_most() -> None:
    assert SimOptions().context_tokens == 8192
    assert SimOptions(num_blocks=11).context_tokens == 160
    assert SimOptions(max_model_len=100).context_tokens == 100
