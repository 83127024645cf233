"""Who is wanted by all sources together, and what that makes of the backends that are there."""

from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.model import BackendSpec
from warmroute.core.wanted import Offer, address, merge, plan


def spec(name: str, url: str | None = None, weight: float = 1.0) -> BackendSpec:
    return BackendSpec(name, url or f"http://{name}:8000", weight)


def test_the_sources_are_put_together_in_their_order() -> None:
    wanted = merge([Offer("config", [spec("a"), spec("b")]), Offer("file", [spec("c")])])
    assert [s.name for s in wanted.specs] == ["a", "b", "c"]
    assert wanted.sources == {"a": ("config",), "b": ("config",), "c": ("file",)}
    assert wanted.refused == ()


def test_one_address_is_one_backend_and_the_first_source_names_it() -> None:
    offers = [
        Offer("config", [spec("a", "http://gpu:80", 2.0)]),
        Offer("file", [spec("x", "http://GPU"), spec("y", "https://gpu:80"), spec("z", "http://gpu:80/base")]),
        Offer("dns", [spec("gpu:80", "http://gpu:80"), spec("gpu:80", "http://gpu:80")]),
    ]
    wanted = merge(offers)
    assert [(s.name, s.weight) for s in wanted.specs] == [("a", 2.0), ("y", 1.0), ("z", 1.0)]
    assert wanted.sources["a"] == ("config", "file", "dns")


def test_one_source_may_name_an_address_twice() -> None:
    assert len(merge([Offer("config", [spec("a", "http://gpu:1"), spec("b", "http://gpu:1")])]).specs) == 2


def test_a_name_that_is_taken_gives_way_to_host_and_port() -> None:
    offers = [Offer("config", [spec("a", "http://one:1")]), Offer("file", [spec("a", "http://two:2")])]
    assert [s.name for s in merge(offers).specs] == ["a", "two:2"]
    ipv6 = [Offer("config", [spec("a", "http://one:1")]), Offer("file", [spec("a", "http://[::1]:2")])]
    assert [s.name for s in merge(ipv6).specs] == ["a", "[::1]:2"]


def test_a_backend_without_any_free_name_is_refused_in_a_sentence() -> None:
    taken = [spec("a", "http://one:1"), spec("two:2", "http://three:3")]
    wanted = merge([Offer("config", taken), Offer("file", [spec("a", "http://two:2")])])
    assert [s.name for s in wanted.specs] == ["a", "two:2"]
    assert wanted.refused == ("http://two:2 (file) is left out: http://three:3 has its name, two:2",)


def test_what_is_hidden_is_wanted_by_nobody() -> None:
    offers = [Offer("config", [spec("a"), spec("b")]), Offer("dns", [spec("x", "http://a:8000")])]
    assert [s.name for s in merge(offers, {address(spec("a"))}).specs] == ["b"]


def test_who_is_not_wanted_leaves_after_all_others() -> None:
    made = plan(merge([Offer("config", [spec("b"), spec("c")])]), [spec("a"), spec("b")])
    assert [s.name for s in made.specs] == ["b", "c", "a"]
    assert made.leaving == {"a"}


def test_who_is_cut_is_gone_unless_it_is_wanted() -> None:
    wanted = merge([Offer("config", [spec("b")])])
    assert [s.name for s in plan(wanted, [spec("a"), spec("b")], {"a", "b"}).specs] == ["b"]


def test_a_name_at_another_address_replaces_and_an_address_under_another_name_is_no_longer_waited_for() -> None:
    wanted = merge([Offer("config", [spec("pod-0", "http://10.0.0.2:8000"), spec("new", "http://10.0.0.9:8000")])])
    made = plan(wanted, [spec("pod-0", "http://10.0.0.1:8000"), spec("old", "http://10.0.0.9:8000")])
    assert [s.name for s in made.specs] == ["pod-0", "new"]
    assert made.leaving == frozenset()


SPECS = st.lists(
    st.builds(
        lambda name, host, port: BackendSpec(name, f"http://{host}:{port}"),
        st.sampled_from(["a", "b", "c", "h:1", "i:2"]),
        st.sampled_from("hi"),
        st.integers(1, 3),
    ),
    max_size=6,
)


@given(st.lists(SPECS, max_size=4), SPECS)
def test_names_are_unique_and_every_address_is_there_or_refused(
    named: list[list[BackendSpec]], now: list[BackendSpec]
) -> None:
    wanted = merge(Offer(str(i), specs) for i, specs in enumerate(named))
    names = [s.name for s in wanted.specs]
    assert len(names) == len(set(names)) == len(wanted.sources)
    there = {address(s) for s in wanted.specs}
    assert len(there | {address(s) for specs in named for s in specs}) - len(there) <= len(wanted.refused)
    made = plan(wanted, {s.name: s for s in now}.values())
    assert made.specs[: len(wanted.specs)] == wanted.specs
    assert len({s.name for s in made.specs}) == len(made.specs)
    assert not made.leaving & set(names)
