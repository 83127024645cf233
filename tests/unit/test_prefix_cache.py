"""The simulated prefix cache: hits, eviction order, refusal, salts, and the host tier."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.sim.host_tier import HostTier
from warmroute.sim.prefix_cache import CacheSequence, PrefixCache

BLOCK = 4


def run(cache: PrefixCache, prompt: Iterable[int], generated: int = 1, salt: str | None = None) -> CacheSequence:
    """One request from start to end: its prompt, then `generated` tokens of which the last has no KV."""
    sequence = cache.sequence(prompt, salt)
    assert cache.admit(sequence)
    if sequence.external_hit:
        cache.load(sequence)
    assert cache.extend(sequence, sequence.num_tokens - sequence.computed)
    for token in range(generated):
        sequence.append(1_000_000 + token)
        if token < generated - 1:
            assert cache.extend(sequence)
    cache.release(sequence)
    return sequence


def distinct(start: int, blocks: int) -> list[int]:
    return list(range(start * 10_000, start * 10_000 + blocks * BLOCK))


@pytest.mark.parametrize(
    ("length", "hit"),
    [(1, 0), (3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)],
)
def test_a_repeat_hits_all_whole_blocks_but_leaves_the_last_token_to_compute(length: int, hit: int) -> None:
    cache = PrefixCache(100, BLOCK)
    assert run(cache, range(length)).local_hit == 0
    assert run(cache, range(length)).local_hit == hit
    assert (cache.counters.queries, cache.counters.hits) == (2 * length, hit)


def test_a_different_first_token_hits_nothing_for_each_block_is_chained_from_the_one_before() -> None:
    cache = PrefixCache(100, BLOCK)
    run(cache, range(20))
    assert run(cache, [99, *range(1, 20)]).local_hit == 0


def test_a_branch_hits_up_to_the_block_where_it_differs() -> None:
    cache = PrefixCache(100, BLOCK)
    run(cache, range(20))
    assert run(cache, [*range(10), *range(100, 120)]).local_hit == 8


@pytest.mark.parametrize(("generated", "hit"), [(1, 4), (2, 4), (3, 8), (6, 8), (7, 12)])
def test_generated_tokens_are_cached_as_they_fill_blocks_but_the_last_one_never(generated: int, hit: int) -> None:
    cache = PrefixCache(100, BLOCK)
    first = run(cache, range(6), generated)
    assert run(cache, [*first.tokens, *range(50, 60)]).local_hit == hit


def test_salts_keep_equal_prompts_apart() -> None:
    cache = PrefixCache(100, BLOCK)
    hits = [run(cache, range(9), salt=salt).local_hit for salt in (None, "a", "b", "a", None)]
    assert hits == [0, 0, 0, 8, 8]


def test_the_longest_unused_request_is_evicted_first_and_of_it_the_tail() -> None:
    cache = PrefixCache(1 + 6, BLOCK)
    old, new = distinct(1, 3), distinct(2, 3)
    run(cache, old)
    run(cache, new)
    # A full block of the prompt and the slot after it: two blocks are needed, the two last ones of `old` go.
    run(cache, distinct(3, 1), generated=2)
    assert cache.cached_tokens([*old, 0]) == BLOCK
    assert cache.cached_tokens([*new, 0]) == 3 * BLOCK


def test_a_hit_makes_a_prefix_new_again() -> None:
    cache = PrefixCache(1 + 6, BLOCK)
    old, new = distinct(1, 3), distinct(2, 3)
    run(cache, old)
    run(cache, new)
    run(cache, old)
    run(cache, distinct(3, 2))
    assert cache.cached_tokens([*new, 0]) == BLOCK
    assert cache.cached_tokens([*old, 0]) == 3 * BLOCK


def test_a_block_that_never_filled_is_used_again_before_anything_cached_is_evicted() -> None:
    cache = PrefixCache(1 + 4, BLOCK)
    kept = distinct(1, 3)
    run(cache, kept)
    for number in range(5):
        run(cache, [7, 7, number])
    assert cache.cached_tokens([*kept, 0]) == 3 * BLOCK


def test_running_requests_share_a_prefix_and_keep_it_from_eviction() -> None:
    cache = PrefixCache(1 + 5, BLOCK)
    run(cache, distinct(1, 3))
    holders = [cache.sequence([*distinct(1, 3), tail]) for tail in (1, 2)]
    for holder in holders:
        assert cache.admit(holder)
        assert holder.local_hit == 3 * BLOCK
        assert cache.extend(holder)
    assert cache.free_blocks == 0
    assert cache.usage == 1.0
    assert not cache.admit(cache.sequence([5]))
    cache.release(holders[0])
    assert cache.free_blocks == 1
    assert cache.cached_tokens([*distinct(1, 3), 9]) == 3 * BLOCK


def test_equal_blocks_computed_at_the_same_time_are_both_kept() -> None:
    cache = PrefixCache(1 + 6, BLOCK)
    prompt = distinct(1, 2)
    both = [cache.sequence(prompt), cache.sequence(prompt)]
    for sequence in both:
        assert cache.admit(sequence)
    for sequence in both:
        assert cache.extend(sequence, len(prompt))
    for sequence in both:
        cache.release(sequence)
    assert cache.counters.hits == 0
    run(cache, distinct(2, 4))  # takes the two that never held anything, and one copy of each block
    assert cache.cached_tokens([*prompt, 0]) == 2 * BLOCK


def test_a_request_that_does_not_fit_is_refused_and_nothing_changes() -> None:
    cache = PrefixCache(1 + 4, BLOCK)
    run(cache, distinct(1, 2))
    before = repr(cache)
    assert not cache.admit(cache.sequence(distinct(2, 5)))
    # Cached blocks that it would hit are no longer free for the rest of it.
    assert not cache.admit(cache.sequence([*distinct(1, 2), *distinct(2, 3)]))
    assert repr(cache) == before
    assert cache.admit(cache.sequence([*distinct(1, 2), *distinct(2, 2)]))


def test_a_running_request_that_needs_a_block_too_many_is_refused_and_keeps_what_it_has() -> None:
    cache = PrefixCache(1 + 2, BLOCK)
    sequence = cache.sequence(range(8))
    assert cache.admit(sequence)
    assert cache.extend(sequence, 8)
    sequence.append(8)
    assert not cache.extend(sequence)
    assert (sequence.computed, len(sequence.blocks)) == (8, 2)


def test_a_preempted_request_does_not_count_again_and_finds_its_own_blocks() -> None:
    cache = PrefixCache(100, BLOCK)
    sequence = cache.sequence(range(10))
    assert cache.admit(sequence)
    assert cache.extend(sequence, 10)
    sequence.append(10)
    cache.release(sequence, preempted=True)
    assert cache.admit(sequence, counted=False)
    assert sequence.local_hit == 8
    assert (cache.counters.queries, cache.counters.hits) == (10, 0)


def test_wrong_sizes_are_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="num_blocks is 1; give at least 2"):
        PrefixCache(1)
    with pytest.raises(ValueError, match="block_size is 0; give at least 1"):
        PrefixCache(10, 0)
    with pytest.raises(ValueError, match="host_blocks is -1; give 0"):
        PrefixCache(10, host_blocks=-1)
    with pytest.raises(ValueError, match="at least one token"):
        PrefixCache(10).sequence([])
    cache = PrefixCache(10)
    sequence = cache.sequence([1])
    assert cache.admit(sequence)
    assert cache.extend(sequence)
    with pytest.raises(ValueError, match="release it before"):
        cache.admit(sequence)


def test_the_host_tier_gives_back_what_was_evicted_and_is_asked_only_for_what_the_device_lacks() -> None:
    """The figures of a real vLLM with a second tier: 1,373 tokens that were evicted, asked for twice."""
    cache = PrefixCache(60, 32, host_blocks=1000)
    prompt = list(range(1373))
    run(cache, prompt, 4)
    run(cache, range(5000, 5000 + 59 * 32))
    before = cache.counters.queries, cache.counters.external_queries
    hits = []
    for _ in range(2):
        sequence = run(cache, prompt, 4)
        hits.append((sequence.local_hit, sequence.external_hit))
    assert hits == [(0, 1344), (1344, 0)]
    assert cache.counters.queries - before[0] == 2746
    assert cache.counters.external_queries - before[1] == 1402
    assert (cache.counters.hits, cache.counters.external_hits) == (1344, 1344)


def test_a_prompt_that_the_host_tier_holds_whole_still_has_its_last_token_computed() -> None:
    cache = PrefixCache(1 + 4, BLOCK, host_blocks=100)
    prompt = distinct(1, 3)
    run(cache, prompt)
    run(cache, distinct(2, 4))
    sequence = cache.sequence(prompt)
    assert cache.admit(sequence)
    assert (sequence.local_hit, sequence.external_hit) == (0, 3 * BLOCK)
    cache.load(sequence)
    assert sequence.computed == len(prompt) - 1


def test_blocks_that_are_being_loaded_are_not_hit_before_they_arrived() -> None:
    cache = PrefixCache(1 + 8, BLOCK, host_blocks=100)
    prompt = [*distinct(1, 2), 0]
    run(cache, prompt)
    run(cache, distinct(2, 8))
    first = cache.sequence(prompt)
    assert cache.admit(first)
    assert cache.cached_tokens(prompt) == 0
    cache.load(first)
    assert cache.cached_tokens(prompt) == 2 * BLOCK


def test_the_host_tier_drops_the_longest_unused_and_of_one_prompt_the_tail() -> None:
    tier = HostTier(4)
    a, b = [b"a1", b"a2", b"a3"], [b"b1", b"b2"]
    assert tier.offer(a)
    tier.touch(a)
    assert tier.offer(b)
    assert [h in tier for h in (*a, *b)] == [True, True, False, True, True]
    tier.touch([b"a1"])
    tier.touch(b)
    assert tier.offer([b"c"])
    assert [h in tier for h in (*a, *b, b"c")] == [True, False, False, True, True, True]


def test_the_host_tier_refuses_what_would_push_out_its_own_beginning() -> None:
    tier = HostTier(2)
    assert not tier.offer([b"1", b"2", b"3"])
    assert len(tier) == 0
    assert tier.offer([b"1", b"2"])
    assert not tier.offer([b"1", b"2", b"3"])
    assert tier.match([b"1", b"2", b"3"]) == 2


conversations = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=40
)  # which conversation, how many new tokens, how many generated


@given(conversations)
def test_with_room_for_everything_each_turn_hits_exactly_what_was_computed_before(
    turns: Sequence[tuple[int, int, int]],
) -> None:
    cache = PrefixCache(4000, BLOCK)
    said: dict[int, list[int]] = {}
    computed: dict[int, int] = {}
    fresh = iter(range(10**9))
    for name, new, generated in turns:
        prompt = [*said.get(name, ()), *(next(fresh) for _ in range(new))]
        sequence = run(cache, prompt, generated)
        assert sequence.local_hit == computed.get(name, 0) // BLOCK * BLOCK
        said[name] = list(sequence.tokens)
        computed[name] = len(sequence.tokens) - 1
    assert cache.free_blocks == 3999


@given(conversations, st.integers(14, 60), st.sampled_from([0, 20]))
def test_a_small_cache_never_hits_what_was_never_computed_and_loses_no_block(
    turns: Sequence[tuple[int, int, int]], blocks: int, host: int
) -> None:
    cache, roomy = PrefixCache(blocks, BLOCK, host_blocks=host), PrefixCache(4000, BLOCK)
    said: dict[int, list[int]] = {}
    for number, (name, new, generated) in enumerate(turns):
        prompt = [*said.get(name, ()), *(number * 100 + i for i in range(new))]
        if len(prompt) + generated > (blocks - 1) * BLOCK:
            prompt = prompt[-new:]
        small, large = run(cache, prompt, generated), run(roomy, prompt, generated)
        assert small.local_hit <= large.local_hit
        assert small.local_hit + small.external_hit <= large.local_hit + BLOCK
        said[name] = list(small.tokens)
        assert cache.free_blocks == blocks - 1
        assert len(cache.host) <= host
    assert cache.counters.queries == roomy.counters.queries


def test_the_same_requests_give_the_same_hits() -> None:
    def hits(seed: int) -> list[int]:
        rng, cache = random.Random(seed), PrefixCache(50, BLOCK)
        prompts = [[rng.randrange(2) for _ in range(rng.randrange(1, 60))] for _ in range(100)]
        return [run(cache, prompt, rng.randrange(1, 9)).local_hit for prompt in prompts]

    assert hits(1) == hits(1)
    assert sum(hits(1)) > 0
