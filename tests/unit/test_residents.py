"""vLLM's messages about its caches: what is read of them, where they come from, and whose blocks they tell of."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from warmroute.core.residency import Held
from warmroute.fleet.heard import EngineCache, HeardResidents
from warmroute.fleet.kv_wire import batch, sources
from warmroute.fleet.residents import Sync

GOLDEN = Path(__file__).parent.parent / "golden" / "kv-events-vllm-0.32.0.msgpack"
KEY = b"k" * 32
SESSION = b"s" * 16


def residents() -> HeardResidents:
    return HeardResidents(KEY, 1000)


def live(of: HeardResidents, backend: str = "a", engine: str = "0") -> EngineCache:
    cache = of.open(backend, engine)
    cache.sync = Sync.LIVE
    return cache


def stored(label: str | None, *blocks: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": blocks,
        "parent_block_hash": None,
        "token_ids": [1] * 16 * len(blocks),
        "block_size": 16,
        "lora_id": None,
        "medium": "GPU",
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "session_id": label,
        **more,
    }


def removed(*blocks: int, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": blocks, "medium": "GPU", "group_idx": 0, **more}


def told(cache: EngineCache, *events: dict[str, Any]) -> None:
    cache.take(batch(msgspec.msgpack.encode([1.5, events, 0])))


def page(**source: Any) -> bytes:
    whole = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": "tcp://*:5557", "buffer_steps": 9}
    return msgspec.json.encode({"0": {**whole, **source}})


# Where


@pytest.mark.parametrize(
    ("url", "endpoint", "address"),
    [
        ("http://10.0.0.7:8000", "tcp://*:5557", "tcp://10.0.0.7:5557"),
        ("http://gpu-a/base", "tcp://0.0.0.0:1", "tcp://gpu-a:1"),
        ("https://[fd00::7]:8000", "tcp://[::]:5557", "tcp://[fd00::7]:5557"),
        ("http://gpu-a", "tcp://10.1.1.1:5557", "tcp://10.1.1.1:5557"),
        ("http://127.0.0.1:8000", "ipc:///run/kv", "ipc:///run/kv"),
    ],
)
def test_publishers_are_where_the_backend_is(url: str, endpoint: str, address: str) -> None:
    found = sources(page(endpoint=endpoint, replay_endpoint=endpoint, topic="t"), url)["0"]
    assert (found.endpoint, found.replay_endpoint, found.topic) == (address, address, "t")


@pytest.mark.parametrize("off", [{"publisher": "null"}, {"enable_kv_cache_events": False}])
def test_publishers_that_are_off_are_none(off: dict[str, Any]) -> None:
    assert sources(page(**off), "http://a") == {}


def test_vllm_without_events_names_no_publisher() -> None:
    assert sources(b"{}", "http://a") == {}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"<html>", "not what vLLM answers"),
        (b'{"0": 1}', "not what vLLM answers"),
        (b"\xff", "not what vLLM answers"),
        (page(endpoint="inproc://kv"), "no tcp:// or ipc:// address"),
        (page(endpoint="tcp://host"), "no tcp:// or ipc:// address"),
    ],
)
def test_a_page_of_no_use_says_so(answer: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sources(answer, "http://a")


SIZES = [msgspec.msgpack.encode([1.0, [stored(None, 1, block_size=size)], 0]) for size in (0, -16, 1 << 40)]


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgspec.msgpack.encode([1.0, [{"type": "Other"}]]), b"\x80", *SIZES])
def test_a_message_that_is_none_says_so(payload: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        batch(payload)


# Whose


def test_a_real_servers_messages_are_understood() -> None:
    """Nine blocks of 32 tokens of one session; then the step in which they went for another one's 64."""
    of = residents()
    of.also_called(SESSION, "golden-1")
    of.also_called(b"t" * 16, "golden-4")
    cache = live(of)
    first, second = msgspec.msgpack.decode(GOLDEN.read_bytes())
    cache.take(batch(first))
    assert of.held(SESSION, "a", None) == Held(288, 288, 0, True)
    cache.take(batch(second))
    assert of.held(SESSION, "a", None) == Held(288, 0, 288, True)
    assert of.held(b"t" * 16, "a", "0") == Held(2048, 2048, 0, True)
    assert of.cold(SESSION, "a", None)


def test_labels_tell_sessions_apart_and_nothing_of_them() -> None:
    of = residents()
    assert of.label(SESSION) == of.label(SESSION) != of.label(b"t" * 16)
    assert HeardResidents(b"j" * 32, 1).label(SESSION) != of.label(SESSION)
    assert of.label_of(of.label(SESSION)) == of.label(SESSION)
    assert SESSION.hex() not in of.label(SESSION)


def test_names_that_are_not_ours_are_nobodys_until_a_client_brings_them() -> None:
    of = residents()
    cache = live(of)
    told(cache, stored("chat-1", 1, 2))
    assert (cache.residency.sessions, cache.residency.blocks) == (0, 2)
    of.also_called(SESSION, "chat-1")
    told(cache, stored("chat-1", 1, 2))
    assert of.held(SESSION, "a", None) == Held(32, 32, 0, True)
    assert of.label_of("chat-1") == of.label(SESSION)


def test_each_engine_has_a_cache_of_its_own() -> None:
    of = residents()
    first, second = live(of, "a", "0"), live(of, "a", "1")
    told(second, stored(of.label(SESSION), 1, 2))
    assert of.held(SESSION, "a", "0") is None
    assert of.held(SESSION, "a", "1") == Held(32, 32, 0, True)
    assert of.held(SESSION, "a", None) is None
    assert [(w.backend, w.engine, w.held.live) for w in of.warm(SESSION)] == [("a", "1", 32)]
    first.sync = Sync.GAP
    assert of.sync("a") is Sync.GAP
    assert of.sync("b") is Sync.OFF


@pytest.mark.parametrize("state", [Sync.GAP, Sync.OFF])
def test_nothing_is_claimed_while_messages_are_missing(state: Sync) -> None:
    of = residents()
    cache = live(of)
    told(cache, stored(of.label(SESSION), 1, 2), removed(2, 1))
    assert of.cold(SESSION, "a", None)
    cache.sync = state
    assert not of.cold(SESSION, "a", None)
    assert of.held(SESSION, "a", None) is None
    assert of.warm(SESSION) == []
    of.close("a")
    assert of.sync("a") is Sync.OFF


def test_a_tier_behind_the_cache_keeps_a_session_from_being_cold() -> None:
    of = residents()
    cache = live(of)
    told(cache, stored(of.label(SESSION), 1, 2), stored(None, 1, 2, medium="CPU"), removed(2, 1))
    held = of.held(SESSION, "a", None)
    assert held is not None
    assert held.live == 0
    assert not of.cold(SESSION, "a", None)


def test_only_layers_that_keep_the_whole_prompt_count_and_of_them_one_group() -> None:
    of = residents()
    cache, label = live(of), of.label(SESSION)
    told(
        cache,
        stored(label, 1, 2, group_idx=0, kv_cache_spec_kind="sliding_window"),
        stored(label, 1, 2, group_idx=1),
        stored(label, 1, 2, 3, group_idx=2),
        removed(1, 2, group_idx=0),
        removed(3, 2, 1, group_idx=2),
    )
    assert of.held(SESSION, "a", None) == Held(32, 32, 0, True)
    told(cache, removed(2, group_idx=1))
    assert of.held(SESSION, "a", None) == Held(32, 16, 16, True)


def test_what_went_before_a_request_and_while_it_waited_was_evicted() -> None:
    of = residents()
    cache, label = live(of), of.label(SESSION)
    assert of.evicted(SESSION, "a", None, None) is None
    told(cache, stored(label, 1, 2, 3, 4), removed(4))
    before = of.held(SESSION, "a", None)
    told(cache, removed(3), stored(label, 3, 4, 5, parent_block_hash=2))
    assert of.evicted(SESSION, "a", None, before) == 32
    told(cache, {"type": "AllBlocksCleared"})
    assert of.evicted(SESSION, "a", None, of.held(SESSION, "a", None)) == 80


def test_a_cache_that_was_cleared_may_begin_with_another_group() -> None:
    of = residents()
    cache, label = live(of), of.label(SESSION)
    told(cache, stored(label, 1, group_idx=3), {"type": "AllBlocksCleared"}, stored(label, 2, 3, group_idx=1))
    assert of.held(SESSION, "a", None) == Held(32, 32, 16, True)
