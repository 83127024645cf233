"""The decision: pins first, then the ring under its bounds, and a reason that says which of them it was."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.model import Decision, Near, PinChange, Place, Reason, Session
from warmroute.core.policy import NO_WISHES, Bounds, Fleet, Wishes, decide, pick_engine
from warmroute.core.ring import Ring


@dataclass(slots=True)
class Engine:
    engine: str
    sessions: int = 0
    in_flight: int = 0


@dataclass(slots=True)
class Backend:
    """A backend as a decision sees it, with every number set by hand."""

    name: str
    weight: float = 1.0
    available: bool = True
    accepts_new: bool = True
    leaving: bool = False
    models: Collection[str] | None = None
    sessions: int = 0
    size: int = 0
    in_flight: int = 0
    engines: Sequence[Engine] = ()


@dataclass(frozen=True, slots=True)
class Pin:
    backend: str
    engine: str | None = None
    spills: int = 0


_rings: dict[tuple[tuple[str, float], ...], Ring] = {}


def fleet(*backends: Backend) -> Fleet:
    """A fleet of these backends; rings of the same weights are built once."""
    weights = tuple((b.name, b.weight) for b in backends)
    if weights not in _rings:
        _rings[weights] = Ring(dict(weights))
    return Fleet({b.name: b for b in backends}, _rings[weights])


def session(number: int = 0) -> Session:
    return Session(b"%016d" % number, "x-session-id")


def choose(
    of: Fleet,
    who: Session | None,
    pin: Pin | None = None,
    *,
    model: str | None = None,
    request_key: bytes = b"r",
    exclude: Collection[str] = (),
    bounds: Bounds | None = None,
    wishes: Wishes = NO_WISHES,
    size: int = 0,
    cold: bool = False,
) -> Decision:
    return decide(
        of,
        session=who,
        pin=pin,
        model=model,
        request_key=request_key,
        exclude=exclude,
        bounds=bounds or Bounds(),
        wishes=wishes,
        size=size,
        cold=cold,
    )


@dataclass(slots=True)
class Town:
    """Places sessions one after another and remembers where they live."""

    backends: dict[str, Backend]
    pins: dict[Session, Pin] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Iterable[str]) -> "Town":
        return cls({name: Backend(name) for name in names})

    def turn(self, who: Session, bounds: Bounds | None = None) -> Decision:
        decision = choose(fleet(*self.backends.values()), who, self.pins.get(who), bounds=bounds)
        assert decision.backend is not None
        if decision.change in (PinChange.BIND, PinChange.MOVE):
            if old := self.pins.get(who):
                self.backends[old.backend].sessions -= 1
            self.backends[decision.backend].sessions += 1
            self.pins[who] = Pin(decision.backend, decision.engine)
        return decision

    def homes(self) -> dict[Session, str]:
        return {who: pin.backend for who, pin in self.pins.items()}


# New sessions


def test_a_new_session_goes_to_its_home_on_the_ring() -> None:
    of = fleet(*(Backend(name) for name in "abcd"))
    for i in range(50):
        decision = choose(of, session(i))
        assert decision == Decision(Reason.RING, next(of.ring.order(session(i).key)), None, PinChange.BIND)


def test_a_new_session_whose_home_is_over_its_bound_goes_to_the_next_in_ring_order() -> None:
    of = fleet(*(Backend(name) for name in "abc"))
    first, second, third = of.ring.order(session().key)
    of = fleet(*(Backend(name, sessions=5 if name == first else 0) for name in "abc"))
    assert choose(of, session()) == Decision(Reason.RING_SPILL, second, None, PinChange.BIND)
    of = fleet(*(Backend(name, sessions=0 if name == third else 5) for name in "abc"))
    assert choose(of, session()).backend == third


def test_running_requests_bound_new_sessions_too() -> None:
    of = fleet(*(Backend(name) for name in "abc"))
    first, second, _ = of.ring.order(session().key)
    of = fleet(*(Backend(name, in_flight=9 if name == first else 0) for name in "abc"))
    assert choose(of, session()) == Decision(Reason.RING_SPILL, second, None, PinChange.BIND)


@pytest.mark.parametrize(
    ("weight", "total", "bound", "most"),
    [(1.0, 30, 1.5, 15), (1.0, 30, 1.0, 10), (1.0, 3, 1.25, 1), (1.0, 4, 1.25, 2), (4.0, 30, 1.0, 20)],
    ids=["half more", "no factor", "one each", "rounded up", "by weight"],
)
def test_a_backend_takes_new_sessions_up_to_its_bound_of_running_requests(
    weight: float, total: int, bound: float, most: int
) -> None:
    def of(running: int) -> Fleet:
        rest = total - 1 - running  # with the request being placed there are `total`
        return fleet(Backend("a", weight=weight, in_flight=running), Backend("b"), Backend("c", in_flight=rest))

    who = next(session(i) for i in range(100) if next(of(0).ring.order(session(i).key)) == "a")
    assert choose(of(most - 1), who, bounds=Bounds(in_flight=bound)).reason is Reason.RING
    assert choose(of(most), who, bounds=Bounds(in_flight=bound)).reason is Reason.RING_SPILL


def test_where_nobody_is_under_both_bounds_the_least_busy_of_those_under_the_first_is_taken() -> None:
    loads = {"a": (0, 9), "b": (0, 8), "c": (30, 0)}
    of = fleet(*(Backend(name, sessions=s, in_flight=f) for name, (s, f) in loads.items()))
    for i in range(40):
        home = next(of.ring.order(session(i).key))
        reason = Reason.RING if home == "b" else Reason.RING_SPILL
        assert choose(of, session(i)) == Decision(reason, "b", None, PinChange.BIND)


def test_the_least_busy_is_so_by_weight() -> None:
    of = fleet(Backend("a", weight=4.0, in_flight=20), Backend("b", in_flight=6), Backend("c", sessions=30))
    assert {choose(of, session(i), bounds=Bounds(in_flight=1.0)).backend for i in range(40)} == {"a"}


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_few_sessions_placed_one_after_another_spread_evenly(count: int) -> None:
    town = Town.of(f"b{i}" for i in range(count))
    for i in range(8 * count):
        town.turn(session(i))
    assert Counter(town.homes().values()) == dict.fromkeys(town.backends, 8)


def test_twenty_four_sessions_over_three_are_eight_each_whatever_their_keys() -> None:
    for start in range(0, 2400, 100):
        town = Town.of("abc")
        for i in range(start, start + 24):
            town.turn(session(i))
        assert sorted(Counter(town.homes().values()).values()) == [8, 8, 8]


def test_the_first_sessions_of_a_share_are_dealt_out_exactly() -> None:
    town = Town.of("abc")
    for i in range(3 * 40):
        town.turn(session(i))
        held = [b.sessions for b in town.backends.values()]
        assert max(held) - min(held) <= 1


@pytest.mark.parametrize(
    ("even", "sessions", "most"),
    [(0, 1.5, 60), (20, 1.5, 50), (40, 1.5, 40), (1000, 1.5, 40), (0, 1.0, 40)],
    ids=["half more", "half more of what is beyond", "all dealt out", "more than there are", "no factor"],
)
def test_beyond_them_a_backend_may_hold_more(even: int, sessions: float, most: int) -> None:
    of = fleet(*(Backend(name) for name in "abc"))
    who = next(session(i) for i in range(100) if next(of.ring.order(session(i).key)) == "a")
    for held, reason in ((most - 1, Reason.RING), (most, Reason.RING_SPILL)):
        rest = 119 - held  # with the session being placed the three have 120, so that the share is 40
        of = fleet(
            Backend("a", sessions=held), Backend("b", sessions=rest // 2), Backend("c", sessions=rest - rest // 2)
        )
        assert choose(of, who, bounds=Bounds(sessions=sessions, even=even)).reason is reason


def test_the_bounds_are_those_that_are_told() -> None:
    assert Bounds() == Bounds(sessions=1.05, even=100, in_flight=1.25)


def test_weights_shift_the_bound() -> None:
    town = Town({"a": Backend("a", weight=1.0), "b": Backend("b", weight=3.0)})
    for i in range(40):
        town.turn(session(i))
    assert Counter(town.homes().values()) == {"a": 10, "b": 30}


# Pinned sessions


def test_adding_a_backend_moves_no_pinned_session() -> None:
    town = Town.of("abc")
    for i in range(60):
        town.turn(session(i))
    before = town.homes()
    town.backends["d"] = Backend("d")
    reasons = {town.turn(who).reason for who in before}
    assert town.homes() == before
    assert reasons == {Reason.PIN_HIT}


def test_a_backend_that_returns_pulls_no_session_back() -> None:
    town = Town.of("abc")
    for i in range(60):
        town.turn(session(i))
    first = town.homes()
    town.backends["a"].available = False
    for who in first:
        decision = town.turn(who)
        assert decision.reason is (Reason.PIN_LOST if first[who] == "a" else Reason.PIN_HIT)
        assert decision.change is (PinChange.MOVE if first[who] == "a" else PinChange.KEEP)
    moved = town.homes()
    assert all(moved[who] == home for who, home in first.items() if home != "a")
    assert Counter(moved.values()).keys() == {"b", "c"}
    town.backends["a"].available = True
    for who in first:
        town.turn(who)
    assert town.homes() == moved


def test_a_pinned_session_stays_however_full_its_backend_is() -> None:
    of = fleet(Backend("a", sessions=900, in_flight=900), Backend("b"))
    assert choose(of, session(), Pin("a")) == Decision(Reason.PIN_HIT, "a", None, PinChange.KEEP)


@pytest.mark.parametrize(
    ("pinned", "exclude", "model"),
    [
        (Backend("a", available=False), (), None),
        (Backend("a"), ("a",), None),
        (Backend("a", models={"other"}), (), "m"),
        (None, (), None),
    ],
    ids=["down", "excluded", "no longer serves the model", "removed"],
)
def test_a_pin_that_cannot_be_used_is_moved(
    pinned: Backend | None, exclude: Collection[str], model: str | None
) -> None:
    others = [Backend("b"), Backend("c")]
    of = fleet(*([pinned] if pinned else []), *others)
    decision = choose(of, session(), Pin("a"), exclude=exclude, model=model)
    assert decision.reason is Reason.PIN_LOST
    assert decision.change is PinChange.MOVE
    assert decision.backend == next(name for name in of.ring.order(session().key) if name != "a")


def test_a_lost_session_is_placed_under_the_bounds_as_a_new_one_is() -> None:
    of = fleet(Backend("a", available=False, sessions=50), Backend("b", sessions=20), Backend("c", sessions=2))
    assert all(choose(of, session(i), Pin("a")).backend == "c" for i in range(20))


# Draining, exclusion


def test_a_draining_backend_keeps_its_sessions_and_takes_no_new_ones() -> None:
    of = fleet(Backend("a", accepts_new=False), Backend("b"), Backend("c"))
    assert choose(of, session(), Pin("a")).reason is Reason.PIN_HIT
    assert {choose(of, session(i)).backend for i in range(60)} == {"b", "c"}
    assert {choose(of, None, request_key=b"%d" % i).backend for i in range(60)} == {"b", "c"}
    assert {choose(of, session(i), Pin("gone")).backend for i in range(60)} == {"b", "c"}


def test_where_all_drain_requests_are_still_served() -> None:
    of = fleet(Backend("a", accepts_new=False), Backend("b", accepts_new=False))
    assert {choose(of, session(i)).backend for i in range(60)} == {"a", "b"}


def test_excluded_backends_are_not_asked_again() -> None:
    of = fleet(*(Backend(name) for name in "abc"))
    tried: list[str] = []
    for _ in range(3):
        decision = choose(of, session(), exclude=tried)
        assert decision.backend is not None
        assert decision.backend not in tried
        tried.append(decision.backend)
    assert choose(of, session(), exclude=tried) == Decision(Reason.NONE_AVAILABLE)


def test_retrying_a_new_session_walks_the_ring() -> None:
    of = fleet(*(Backend(name) for name in "abcd"))
    order = list(of.ring.order(session().key))
    for n in range(4):
        assert choose(of, session(), exclude=order[:n]).backend == order[n]


# Models


def test_only_backends_that_serve_the_model_are_asked() -> None:
    of = fleet(Backend("a", models={"m"}), Backend("b", models={"m", "lora"}), Backend("c", models={"n"}))
    assert {choose(of, session(i), model="m").backend for i in range(60)} == {"a", "b"}
    assert {choose(of, session(i), model="lora").backend for i in range(20)} == {"b"}
    assert {choose(of, session(i), model=None).backend for i in range(60)} == {"a", "b", "c"}
    assert of.models() == {"m", "lora", "n"}


def test_a_model_has_the_ring_of_its_own_backends() -> None:
    of = fleet(Backend("a", models={"m"}), Backend("b", models={"m"}), Backend("c", models={"n"}))
    alone = fleet(Backend("a"), Backend("b"))
    for i in range(60):
        decision = choose(of, session(i), model="m")
        assert (decision.reason, decision.backend) == (Reason.RING, choose(alone, session(i)).backend)


def test_a_backend_whose_models_are_not_known_yet_may_serve_any() -> None:
    of = fleet(Backend("a", models=None), Backend("b", models={"m"}))
    assert choose(of, session(), model="x").backend == "a"


@pytest.mark.parametrize(
    ("backends", "model", "reason"),
    [
        ([Backend("a", models={"m"})], "x", Reason.UNKNOWN_MODEL),
        ([Backend("a", models={"m"}, available=False)], "x", Reason.UNKNOWN_MODEL),
        ([Backend("a", models={"m"}, available=False)], "m", Reason.NONE_AVAILABLE),
        ([Backend("a", models={"m"}, available=False), Backend("b", models={"n"})], "m", Reason.NONE_AVAILABLE),
        ([Backend("a", available=False)], "x", Reason.NONE_AVAILABLE),
        ([Backend("a", available=False)], None, Reason.NONE_AVAILABLE),
        ([], None, Reason.NONE_AVAILABLE),
        ([], "x", Reason.NONE_AVAILABLE),
    ],
    ids=[
        "no backend lists it",
        "no backend lists it and all are down",
        "its backend is down",
        "its backend is down and another is up",
        "models not known and down",
        "no model named",
        "no backends",
        "no backends, a model named",
    ],
)
def test_an_unknown_model_is_told_from_a_lack_of_backends(
    backends: list[Backend], model: str | None, reason: Reason
) -> None:
    for who in (session(), None):
        assert choose(fleet(*backends), who, model=model) == Decision(reason)


# Engines


def engines(*loads: tuple[int, int]) -> list[Engine]:
    return [Engine(str(i), sessions, in_flight) for i, (sessions, in_flight) in enumerate(loads)]


def test_sessions_spread_equally_over_the_engines_of_a_backend() -> None:
    backend = Backend("a", engines=engines((0, 0), (0, 0), (0, 0)))
    for i in range(30):
        decision = choose(fleet(backend), session(i))
        chosen = next(e for e in backend.engines if e.engine == decision.engine)
        chosen.sessions += 1
    assert [e.sessions for e in backend.engines] == [10, 10, 10]


def test_the_engine_of_a_pin_is_kept() -> None:
    of = fleet(Backend("a", engines=engines((0, 0), (90, 90))))
    assert choose(of, session(), Pin("a", "1")).engine == "1"


@pytest.mark.parametrize("pinned", ["7", None], ids=["vanished", "discovered later"])
@pytest.mark.parametrize("loads", [((5, 0), (2, 0), (3, 0)), ((5, 0), (2, 0))], ids=["three", "two"])
def test_a_pin_without_a_usable_engine_gets_the_least_loaded_one(
    loads: tuple[tuple[int, int], ...], pinned: str | None
) -> None:
    of = fleet(Backend("a", engines=engines(*loads)))
    assert choose(of, session(), Pin("a", pinned)) == Decision(Reason.PIN_HIT, "a", "1", PinChange.KEEP)


def test_an_engine_that_vanished_from_a_server_of_one_is_no_longer_named() -> None:
    of = fleet(Backend("a", engines=engines((1, 0))))
    assert choose(of, session(), Pin("a", "1")).engine is None


@pytest.mark.parametrize("loads", [(), ((4, 4),)], ids=["not known yet", "one"])
def test_a_server_of_one_engine_names_none(loads: tuple[tuple[int, int], ...]) -> None:
    assert pick_engine(Backend("a", engines=engines(*loads)), b"k") is None
    assert choose(fleet(Backend("a", engines=engines(*loads))), session(), Pin("a")).engine is None


def test_engines_with_as_many_sessions_are_told_apart_by_requests() -> None:
    assert pick_engine(Backend("a", engines=engines((1, 3), (1, 2), (1, 4))), b"k") == "1"


def test_ties_between_engines_go_by_the_key() -> None:
    backend = Backend("a", engines=engines((0, 0), (0, 0), (0, 0), (0, 0)))
    picked = Counter(pick_engine(backend, b"%d" % i) for i in range(400))
    assert set(picked) == {"0", "1", "2", "3"}
    assert min(picked.values()) > 60
    assert pick_engine(backend, b"k") == pick_engine(backend, b"k")


# No session


def test_a_request_without_a_session_goes_to_the_least_loaded() -> None:
    of = fleet(Backend("a", in_flight=3), Backend("b", in_flight=1), Backend("c", in_flight=2))
    assert choose(of, None) == Decision(Reason.NO_SESSION, "b", None, PinChange.NONE)


def test_a_pin_without_a_session_means_nothing() -> None:
    of = fleet(Backend("a", in_flight=3), Backend("b"))
    assert choose(of, None, Pin("a")).reason is Reason.NO_SESSION


def test_load_is_counted_by_weight() -> None:
    of = fleet(Backend("a", weight=4.0, in_flight=4), Backend("b", weight=1.0, in_flight=2))
    assert choose(of, None).backend == "a"


def test_ties_without_a_session_are_spread_by_the_request() -> None:
    of = fleet(*(Backend(name) for name in "abc"))
    chosen = Counter(choose(of, None, request_key=b"%d" % i).backend for i in range(600))
    assert all(chosen[name] > 150 for name in "abc")


# Properties

NAMES = ("a", "b", "c", "d", "e")
backends = st.builds(
    Backend,
    name=st.just(""),
    weight=st.sampled_from([0.5, 1.0, 2.0]),
    available=st.booleans(),
    accepts_new=st.booleans(),
    models=st.none() | st.sets(st.sampled_from(["m", "n"])),
    sessions=st.integers(0, 50),
    in_flight=st.integers(0, 50),
    engines=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=3).map(lambda loads: engines(*loads)),
)
some_fleets = st.lists(backends, max_size=5).map(
    lambda found: [replace(b, name=name) for b, name in zip(found, NAMES, strict=False)]
)
sessions = st.none() | st.integers(0, 999).map(session)
pins = st.none() | st.builds(Pin, st.sampled_from([*NAMES, "gone"]), st.none() | st.sampled_from("012"))
models = st.sampled_from([None, "m", "n", "x"])
excludes = st.sets(st.sampled_from(NAMES), max_size=3)
factors = st.builds(Bounds, sessions=st.floats(1.0, 3.0), even=st.integers(0, 60), in_flight=st.floats(1.0, 3.0))


@given(some_fleets, sessions, pins, models, excludes, factors)
def test_the_same_snapshot_gives_the_same_decision(
    found: list[Backend], who: Session | None, pin: Pin | None, model: str | None, exclude: set[str], bounds: Bounds
) -> None:
    of = fleet(*found)
    again = fleet(*(replace(b) for b in reversed(found)))
    assert choose(of, who, pin, model=model, exclude=exclude, bounds=bounds) == choose(
        again, who, pin, model=model, exclude=exclude, bounds=bounds
    )


@given(some_fleets, sessions, pins, models, excludes, factors)
def test_the_chosen_backend_is_a_candidate_and_the_reason_fits(
    found: list[Backend], who: Session | None, pin: Pin | None, model: str | None, exclude: set[str], bounds: Bounds
) -> None:
    of = fleet(*found)
    decision = choose(of, who, pin, model=model, exclude=exclude, bounds=bounds)
    candidates = {b.name: b for b in of.serving(model, exclude)}
    assert (decision.backend is None) == (decision.reason in (Reason.NONE_AVAILABLE, Reason.UNKNOWN_MODEL))
    assert (decision.backend is None) == (not candidates)
    if decision.backend is None:
        assert decision == Decision(decision.reason)
        return
    # A pin holds where the models are not known, even if another backend is known to serve this one.
    may = {b.name: b for b in found if b.available and b.name not in exclude}
    may = {name: b for name, b in may.items() if model is None or b.models is None or model in b.models}
    pinned_here = who is not None and pin is not None and pin.backend in may
    chosen = (may if pinned_here else candidates)[decision.backend]
    assert (decision.reason is Reason.PIN_HIT) == pinned_here
    if pinned_here:
        assert pin is not None
        assert chosen.name == pin.backend
    elif any(b.accepts_new for b in candidates.values()):
        assert chosen.accepts_new
    if decision.engine is not None and not (pin is not None and decision.engine == pin.engine):
        assert len(chosen.engines) > 1
    assert decision.engine is None or decision.engine in [e.engine for e in chosen.engines]


@given(some_fleets, st.lists(st.integers(0, 1000), min_size=5, max_size=5), sessions, st.integers(0, 1000), factors)
def test_sizes_decide_only_among_backends_under_the_session_bound(
    found: list[Backend], sizes: list[int], who: Session | None, size: int, bounds: Bounds
) -> None:
    of = fleet(*(replace(b, size=s) for b, s in zip(found, sizes, strict=False)))
    candidates = [b for b in of.serving(None) if b.accepts_new] or of.serving(None)
    decision = choose(of, who, bounds=bounds, size=size)
    assert (decision.backend is None) == (not candidates)
    if who is None or not candidates:
        return
    weight = sum(b.weight for b in candidates)
    share = (sum(b.sessions for b in candidates) + 1) / weight
    chosen = of.backends[decision.backend or ""]
    assert chosen.sessions <= limit(share * chosen.weight, bounds)  # one more where all under it are stuck


def test_of_backends_with_room_those_with_shorter_prompts_go_first() -> None:
    town = {name: Backend(name) for name in "abcd"}
    for number in range(400):
        size = 400 if number % 10 == 0 else 4
        backend = choose(fleet(*town.values()), session(number), size=size).backend
        assert backend is not None
        town[backend].sessions += 1
        town[backend].size += size
    assert {b.sessions for b in town.values()} == {100}
    sizes = [b.size for b in town.values()]
    assert max(sizes) / (sum(sizes) / 4) < 1.1


def test_without_a_size_bound_sizes_do_not_count() -> None:
    heavy = {name: Backend(name, size=1000 * number) for number, name in enumerate("abcd")}
    light = {name: Backend(name) for name in "abcd"}
    bounds = Bounds(size=10)
    for number in range(50):
        at = [choose(fleet(*of.values()), session(number), bounds=bounds, size=5).backend for of in (heavy, light)]
        assert at[0] == at[1]


_STUCK = 8
"""So many requests in flight may mean that a backend hangs, and that another one takes a session more than its share."""


def limit(share: float, bounds: Bounds) -> float:
    """The most sessions a backend of this share may hold."""
    return max(ceil(share), share + max(0.0, share - bounds.even) * (bounds.sessions - 1.0)) + 1e-6


@given(some_fleets, st.integers(0, 999).map(session), factors)
def test_a_ring_choice_is_within_the_session_bound(found: list[Backend], who: Session, bounds: Bounds) -> None:
    of = fleet(*found)
    serving = of.serving(None)
    candidates = [b for b in serving if b.accepts_new] or serving
    decision = choose(of, who, bounds=bounds)
    if not candidates:
        return
    assert decision.backend is not None
    chosen = of.backends[decision.backend]
    share = (sum(b.sessions for b in candidates) + 1) * chosen.weight / sum(b.weight for b in candidates)
    beyond = bounds.near_sessions if any(b.in_flight >= _STUCK for b in candidates) else 0
    assert chosen.sessions + 1 <= limit(share, bounds) + beyond
    home = next(name for name in of.ring.order(who.key) if name in {b.name for b in candidates})
    assert (decision.reason is Reason.RING) == (chosen.name == home)


@given(some_fleets, st.binary(max_size=8))
def test_a_choice_without_a_session_has_the_minimum_load(found: list[Backend], request_key: bytes) -> None:
    of = fleet(*found)
    serving = of.serving(None)
    candidates = [b for b in serving if b.accepts_new] or serving
    decision = choose(of, None, request_key=request_key)
    if candidates:
        assert decision.backend is not None
        chosen = of.backends[decision.backend]
        assert chosen.in_flight / chosen.weight == min(b.in_flight / b.weight for b in candidates)


@given(st.integers(1, 5), st.integers(0, 150), factors)
def test_sequential_sessions_never_spread_further_than_the_bound(count: int, sessions: int, bounds: Bounds) -> None:
    town = Town.of(NAMES[:count])
    for i in range(sessions):
        town.turn(session(i), bounds)
    held = [b.sessions for b in town.backends.values()]
    assert sum(held) == sessions
    assert max(held) <= limit(sessions / count, bounds)


def test_a_decision_changes_nothing() -> None:
    of = fleet(*(Backend(name, sessions=3) for name in "abc"))
    decisions = [choose(of, session(1)) for _ in range(5)]
    assert all(a == b for a, b in pairwise(decisions))
    assert all(b.sessions == 3 and b.in_flight == 0 for b in of.backends.values())


# What a request wishes


def near(reason: Reason, *places: str | Place) -> Wishes:
    return Wishes(near=Near(reason, tuple(p if isinstance(p, Place) else Place(p) for p in places)))


def away_from_home(who: Session, names: str = "abc") -> str:
    """A backend that the ring would choose last."""
    return list(fleet(*map(Backend, names)).ring.order(who.key))[-1]


@pytest.mark.parametrize("reason", [Reason.HISTORY, Reason.NEAR_PARENT, Reason.HEAD])
def test_a_new_session_goes_near_what_it_shares(reason: Reason) -> None:
    there = away_from_home(session())
    decision = choose(fleet(*map(Backend, "abc")), session(), wishes=near(reason, there))
    assert decision == Decision(reason, there, None, PinChange.BIND)


def test_a_pin_goes_before_any_wish_to_be_near() -> None:
    of = fleet(*map(Backend, "abc"))
    decision = choose(of, session(), Pin("a"), wishes=near(Reason.HISTORY, "b"))
    assert (decision.reason, decision.backend) == (Reason.PIN_HIT, "a")


def test_a_history_is_followed_whatever_runs_there() -> None:
    of = fleet(Backend("a", in_flight=1000, sessions=1000), Backend("b"))
    assert choose(of, session(), wishes=near(Reason.HISTORY, "a")).backend == "a"


@pytest.mark.parametrize(
    "backend",
    [Backend("a", available=False), Backend("a", accepts_new=False), Backend("a", models={"other"})],
    ids=["down", "draining", "of another model"],
)
def test_nobody_goes_near_a_backend_that_takes_no_new_sessions(backend: Backend) -> None:
    decision = choose(fleet(backend, Backend("b")), session(), model="m", wishes=near(Reason.HISTORY, "a"))
    assert (decision.reason, decision.backend) == (Reason.RING, "b")


def test_sub_agents_start_near_their_parent_and_spread() -> None:
    town = {name: Backend(name) for name in "abc"}
    went = []
    for number in range(9):
        decision = choose(fleet(*town.values()), session(number), wishes=near(Reason.NEAR_PARENT, "a"))
        assert decision.backend is not None
        town[decision.backend].in_flight += 1
        went.append(decision.backend)
    assert went[:4] == ["a"] * 4
    assert Counter(went)["a"] <= 5
    assert {"b", "c"} <= set(went)


def test_near_a_busy_parent_the_bound_grows_with_the_fleets_load() -> None:
    busy = [Backend(name, in_flight=20) for name in "bc"]
    assert (
        choose(fleet(Backend("a", in_flight=19), *busy), session(), wishes=near(Reason.NEAR_PARENT, "a")).backend == "a"
    )
    crowded = choose(fleet(Backend("a", in_flight=40), *busy), session(), wishes=near(Reason.NEAR_PARENT, "a"))
    assert crowded.backend != "a"


@pytest.mark.parametrize("idle", [0, 4, 16, 90])
def test_conversations_that_begin_alike_spread_evenly_beside_idle_ones(idle: int) -> None:
    town, went = {n: Backend(n, sessions=idle) for n in "abc"}, Counter[str]()
    places: tuple[str, ...] = ()
    for number in range(24):
        wish = near(Reason.HEAD, *places) if places else NO_WISHES
        backend = choose(fleet(*town.values()), session(number), wishes=wish).backend
        assert backend is not None
        town[backend].sessions += 1
        went[backend] += 1
        places = (backend, *(p for p in places if p != backend))
    assert sorted(went.values()) == [8, 8, 8]


def test_a_known_beginning_is_worth_one_session_more_than_the_share() -> None:
    def goes(extra: int) -> str | None:
        of = fleet(Backend("a", sessions=5 + extra), Backend("b", sessions=5), Backend("c", sessions=5))
        return choose(of, session(), wishes=near(Reason.HEAD, "a")).backend

    # its share is 6, of 17 sessions and of 18
    assert [goes(extra) == "a" for extra in range(5)] == [True, True, False, False, False]


def test_where_many_sessions_live_it_is_worth_as_many_more_as_the_bound_gives() -> None:
    def goes(extra: int) -> str | None:
        of = fleet(Backend("a", sessions=300 + extra), *(Backend(name, sessions=300) for name in "bcd"))
        return choose(of, session(), wishes=near(Reason.HEAD, "a"), bounds=Bounds(sessions=1.05, even=100)).backend

    # its share is some 303; 1.05 of what that has beyond 100 gives 313, and one more for the beginning
    assert [extra for extra in range(30) if goes(extra) == "a"][-1] == 13


def test_a_beginning_is_not_followed_to_where_the_long_prompts_are() -> None:
    def follows(size: int) -> bool:
        of = fleet(Backend("a", sessions=5, size=size), *(Backend(name, sessions=5, size=1000) for name in "bcd"))
        return choose(of, session(), wishes=near(Reason.HEAD, "a"), size=10).reason is Reason.HEAD

    # with the new one it may have 1.1 of a quarter of all: x + 10 = 1.1 / 4 (x + 3010)
    assert [size for size in range(900, 1300, 10) if follows(size)][-1] == 1120


def test_a_beginning_that_is_known_everywhere_decides_nothing() -> None:
    of = fleet(*map(Backend, "abc"))
    assert choose(of, session(), wishes=near(Reason.HEAD, "a", "b", "c")).reason is Reason.RING


def test_the_second_place_is_taken_where_the_first_is_crowded() -> None:
    of = fleet(Backend("a", sessions=50), Backend("b"), Backend("c"))
    assert choose(of, session(), wishes=near(Reason.HEAD, "a", "b")).backend == "b"


def test_near_means_the_engine_too() -> None:
    backend = Backend("a", engines=[Engine("0"), Engine("1", sessions=9)])
    for engine, goes in (("1", "1"), ("0", "0"), ("7", "0"), (None, "0")):
        decision = choose(fleet(backend, Backend("b")), session(), wishes=near(Reason.HISTORY, Place("a", engine)))
        assert (decision.backend, decision.engine) == ("a", goes)


def test_what_is_beside_a_conversation_goes_to_the_least_loaded() -> None:
    of = fleet(Backend("a", in_flight=2), Backend("b", in_flight=1), Backend("c", in_flight=3))
    assert choose(of, None, wishes=Wishes(side=True)) == Decision(Reason.SIDE, "b")


@pytest.mark.parametrize(
    ("who", "pin", "change", "engine"),
    [
        (None, None, PinChange.NONE, None),
        (session(), None, PinChange.BIND, "0"),
        (session(), Pin("a", "1"), PinChange.KEEP, "1"),
        (session(), Pin("b", "1"), PinChange.MOVE, "0"),
    ],
    ids=["no session", "new", "pinned there", "pinned elsewhere"],
)
def test_only_the_owner_of_a_response_is_asked(
    who: Session | None, pin: Pin | None, change: PinChange, engine: str | None
) -> None:
    engines = [Engine("0"), Engine("1", sessions=1)]
    of = fleet(Backend("a", engines=engines, in_flight=99), Backend("b", engines=engines))
    assert choose(of, who, pin, wishes=Wishes(owner="a")) == Decision(Reason.OWNER, "a", engine, change)


@pytest.mark.parametrize(("owner", "exclude"), [("gone", ()), ("down", ()), ("a", ("a",))])
def test_an_owner_that_cannot_be_asked_is_replaced_by_nobody(owner: str, exclude: Sequence[str]) -> None:
    of = fleet(Backend("a"), Backend("down", available=False))
    for who, pin in ((None, None), (session(), Pin("a"))):
        assert choose(of, who, pin, exclude=exclude, wishes=Wishes(owner=owner)) == Decision(Reason.OWNER_GONE)


def test_a_draining_owner_still_answers_for_its_responses() -> None:
    assert choose(fleet(Backend("a", accepts_new=False)), None, wishes=Wishes(owner="a")).reason is Reason.OWNER


# Full backends

STRICT = Bounds(strict=True)


def test_a_strict_session_waits_for_its_backend() -> None:
    of = fleet(Backend("a", available=False), Backend("b"))
    assert choose(of, session(1), Pin("a"), bounds=STRICT) == Decision(Reason.PIN_GONE, full="a")
    assert choose(fleet(Backend("a"), Backend("b")), session(1), Pin("a"), exclude={"a"}, bounds=STRICT).backend is None
    assert choose(fleet(Backend("a"), Backend("b")), session(1), Pin("a"), bounds=STRICT).reason is Reason.PIN_HIT


@pytest.mark.parametrize(
    "backends",
    [
        [Backend("b")],
        [Backend("a", available=False, leaving=True, accepts_new=False), Backend("b")],
        [Backend("a", models={"other"}), Backend("b")],
    ],
    ids=["no longer there", "drained", "of another model"],
)
def test_a_strict_session_moves_from_where_it_has_nothing_to_wait_for(backends: list[Backend]) -> None:
    decision = choose(fleet(*backends), session(1), Pin("a"), model="m", bounds=STRICT)
    assert (decision.reason, decision.backend) == (Reason.PIN_LOST, "b")


FULL = Bounds(full=4)
SPILL = Bounds(full=4, spill=True, spills=3)


def test_a_session_waits_for_its_full_backend() -> None:
    of = fleet(Backend("a", in_flight=4), Backend("b"))
    assert choose(of, session(), Pin("a"), bounds=FULL) == Decision(Reason.BUSY, full="a")
    assert choose(of, session(), Pin("b"), bounds=FULL).reason is Reason.PIN_HIT


def test_or_it_is_served_elsewhere_and_keeps_its_pin_until_it_has_happened_too_often() -> None:
    of = fleet(Backend("a", in_flight=4), Backend("b"), Backend("c", in_flight=5))
    spilled = [choose(of, session(), Pin("a", spills=n), bounds=SPILL) for n in range(3)]
    assert [(d.reason, d.backend) for d in spilled] == [(Reason.PIN_SPILL, "b")] * 3
    assert [d.change for d in spilled] == [PinChange.NONE, PinChange.NONE, PinChange.MOVE]


def test_a_spill_waits_where_all_others_are_full_too() -> None:
    of = fleet(Backend("a", in_flight=4), Backend("b", in_flight=4), Backend("c", accepts_new=False))
    assert choose(of, session(), Pin("a"), bounds=SPILL) == Decision(Reason.BUSY, full="a")


@pytest.mark.parametrize("who", [None, session()], ids=["no session", "a new session"])
def test_what_belongs_nowhere_goes_where_there_is_room_or_waits_for_any(who: Session | None) -> None:
    room = fleet(Backend("a", in_flight=4), Backend("b", in_flight=3), Backend("c", in_flight=9))
    assert choose(room, who, bounds=FULL).backend == "b"
    assert choose(fleet(Backend("a", in_flight=4), Backend("b", in_flight=4)), who, bounds=FULL) == Decision(
        Reason.BUSY
    )


def test_a_full_owner_is_waited_for() -> None:
    of = fleet(Backend("a", in_flight=4), Backend("b"))
    assert choose(of, None, wishes=Wishes(owner="a"), bounds=FULL) == Decision(Reason.BUSY, full="a")


def test_what_is_urgent_waits_for_nobody() -> None:
    of = fleet(Backend("a", in_flight=4), Backend("b", in_flight=4))
    assert choose(of, session(), Pin("a"), wishes=Wishes(urgent=True), bounds=FULL).reason is Reason.PIN_HIT
    assert choose(of, None, wishes=Wishes(urgent=True), bounds=FULL).backend is not None


def test_nothing_is_full_without_a_limit() -> None:
    assert choose(fleet(Backend("a", in_flight=10**6)), session(), Pin("a")).reason is Reason.PIN_HIT


def test_a_backend_where_requests_pile_up_gets_no_new_session_although_it_has_the_fewest() -> None:
    stuck = fleet(Backend("a", sessions=3, in_flight=9), Backend("b", sessions=4), Backend("c", sessions=4))
    assert {choose(stuck, session(n)).backend for n in range(9)} <= {"b", "c"}
    busy = fleet(Backend("a", sessions=3, in_flight=7), Backend("b", sessions=4), Backend("c", sessions=4))
    assert {choose(busy, session(n)).backend for n in range(9)} == {"a"}


def test_a_backend_whose_models_are_not_known_serves_only_where_no_other_is_known_to() -> None:
    unknown, known, other = Backend("a"), Backend("b", models={"m"}), Backend("c", models={"n"})
    assert {choose(fleet(unknown, known, other), session(n), model="m").backend for n in range(20)} == {"b"}
    assert {choose(fleet(unknown, other), session(n), model="m").backend for n in range(20)} == {"a"}
    assert {choose(fleet(unknown, known), session(n)).backend for n in range(40)} == {"a", "b"}


# Sessions of which nothing is left


def test_a_cold_session_leaves_a_backend_that_is_busier_than_its_share() -> None:
    busy = fleet(Backend("a", in_flight=9), Backend("b", in_flight=1), Backend("c", in_flight=2))
    found = choose(busy, session(), Pin("a"), cold=True)
    assert (found.reason, found.change) == (Reason.PIN_COLD, PinChange.MOVE)
    assert found.backend in ("b", "c")
    assert choose(busy, session(), Pin("a")).reason is Reason.PIN_HIT


@pytest.mark.parametrize("in_flight", [(3, 0, 0), (9, 9, 9), (10, 9, 9)])
def test_it_stays_where_a_move_gains_nothing(in_flight: tuple[int, int, int]) -> None:
    backends = [Backend(name, in_flight=n) for name, n in zip("abc", in_flight, strict=True)]
    found = choose(fleet(*backends), session(), Pin("a"), cold=True)
    assert found == Decision(Reason.PIN_HIT, "a", None, PinChange.KEEP)


@pytest.mark.parametrize(
    "pinned",
    [Backend("a", accepts_new=False, leaving=True), Backend("a", accepts_new=False), Backend("a", in_flight=20)],
    ids=["draining", "stalled", "full"],
)
def test_it_does_not_wait_where_others_would_not_go(pinned: Backend) -> None:
    found = choose(fleet(pinned, Backend("b")), session(), Pin("a"), bounds=Bounds(full=20), cold=True)
    assert (found.reason, found.backend) == (Reason.PIN_COLD, "b")


@pytest.mark.parametrize(
    "others", [[], [Backend("b", available=False)], [Backend("b", accepts_new=False)], [Backend("b", in_flight=20)]]
)
def test_it_stays_where_there_is_nowhere_else_to_go(others: list[Backend]) -> None:
    of = fleet(Backend("a", in_flight=15), *others)
    assert choose(of, session(), Pin("a"), bounds=Bounds(full=20), cold=True).reason is Reason.PIN_HIT


def test_it_stays_where_sessions_are_not_to_move() -> None:
    of = fleet(Backend("a", in_flight=9), Backend("b"))
    assert choose(of, session(), Pin("a"), bounds=Bounds(strict=True), cold=True).reason is Reason.PIN_HIT


def test_an_owner_is_asked_whatever_is_left() -> None:
    of = fleet(Backend("a", in_flight=9), Backend("b"))
    assert choose(of, session(), Pin("a"), wishes=Wishes(owner="a"), cold=True).backend == "a"


def test_a_backend_of_twice_the_weight_is_left_at_twice_the_load() -> None:
    for in_flight, reason in ((9, Reason.PIN_HIT), (30, Reason.PIN_COLD)):
        of = fleet(Backend("a", weight=2, in_flight=in_flight), Backend("b", in_flight=5))
        assert choose(of, session(), Pin("a"), cold=True).reason is reason
