"""The exposition: vLLM's own series come out as they went in, with a label, each family once, whatever a backend sends."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from warmroute.core.exposition import Family, escape_label, merge, parse

GOLDEN = Path(__file__).parent.parent / "golden"
FILES = [f"metrics-vllm-0.32.0{name}.txt" for name in ("", "-dp2", "-shared-store", "-dp2-fresh")]

EMPTY_WHEN_FRESH = {
    f"vllm:{name}"
    for name in (
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "kv_cache_usage_perc",
    )
}
"""What two engines with several API servers only show once a request came."""

Sample = tuple[str, frozenset[tuple[str, str]], float]

captured = pytest.mark.parametrize("file", FILES)


def golden(file: str) -> str:
    return (GOLDEN / file).read_text(encoding="utf-8")


def samples(text: str, backend: str | None = None) -> list[Sample]:
    """All `vllm:` samples of a page as Prometheus reads them, in order; a backend is added to their labels."""
    more = {} if backend is None else {"backend": backend}
    return sorted(
        (
            (s.name, frozenset((s.labels | more).items()), s.value)
            for f in text_string_to_metric_families(text)
            for s in f.samples
        ),
        key=lambda s: (s[0], sorted(s[1])),
    )


def vllms(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if "vllm:" in line[:12])


def types(text: str) -> dict[str, str]:
    return dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE "))


def page(*texts: str, keep: Callable[[str], bool] = lambda name: True) -> str:
    return merge([parse(text, f"b{i}", keep).families for i, text in enumerate(texts, 1)])


# Captured pages


@captured
def test_every_series_comes_out_with_the_label_and_nothing_else_changed(file: str) -> None:
    text = vllms(golden(file))
    assert samples(page(text)) == samples(text, "b1")
    assert len(samples(text)) > 300


@captured
def test_every_family_that_has_series_keeps_its_type_and_help_once(file: str) -> None:
    out = page(golden(file))
    lines = vllms(golden(file)).splitlines()
    heads = [line for line in lines if line.startswith("#")]
    empty = {
        head.split(" ")[2]
        for head, following in zip(lines, [*lines[1:], "#"], strict=True)
        if head.startswith("# TYPE ") and following.startswith("#")
    }
    assert empty == (EMPTY_WHEN_FRESH if "fresh" in file else set())
    assert sorted(line for line in out.splitlines() if line.startswith("#")) == sorted(
        head for head in heads if head.split(" ")[2] not in empty
    )


@captured
def test_only_vllms_own_series_are_read(file: str) -> None:
    found = parse(golden(file), "b1")
    assert all(name.startswith("vllm:") for name in [*found.values, *found.families])


@pytest.mark.parametrize(
    ("file", "queries", "hits"),
    [
        (FILES[0], {"0": 409_711.0}, {"0": 254_624.0}),
        (FILES[1], {"0": 17_652.0, "1": 18_605.0}, {"0": 7_008.0, "1": 7_840.0}),
        (FILES[2], {"0": 2_746.0}, {"0": 1_344.0}),
        (FILES[3], {"0": 0.0, "1": 0.0}, {"0": 0.0, "1": 0.0}),
    ],
    ids=FILES,
)
def test_the_values_by_name_and_labels(file: str, queries: dict[str, float], hits: dict[str, float]) -> None:
    values = parse(golden(file), "b1").values
    for name, expected in (("queries", queries), ("hits", hits)):
        by_labels = {f'engine="{engine}",model_name="tiny"': value for engine, value in expected.items()}
        assert values[f"vllm:prefix_cache_{name}_total"] == by_labels


@captured
def test_buckets_are_passed_on_but_not_kept_as_values(file: str) -> None:
    found = parse(golden(file), "b1")
    assert not any(name.endswith("_bucket") for name in found.values)
    assert any("_bucket{" in sample for sample in found.families["vllm:time_to_first_token_seconds"].samples)


def test_four_servers_have_each_family_once_with_the_samples_of_all() -> None:
    texts = [vllms(golden(file)) for file in FILES]
    out = page(*texts)
    assert samples(out) == sorted(
        (s for i, text in enumerate(texts, 1) for s in samples(text, f"b{i}")), key=lambda s: (s[0], sorted(s[1]))
    )
    names = [line.split(" ")[2] for line in out.splitlines() if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))


def test_the_samples_of_a_family_stand_together() -> None:
    out = page(*(golden(file) for file in FILES)).splitlines()
    seen: list[str] = []
    for line in out:
        if line.startswith("# TYPE "):
            seen.append(line.split(" ")[2])
        elif not line.startswith("#"):
            assert line.startswith(seen[-1])


# Families


HISTOGRAM = """\
# HELP vllm:h Some seconds.
# TYPE vllm:h histogram
vllm:h_bucket{le="1.0"} 1.0
vllm:h_bucket{le="+Inf"} 2.0
vllm:h_count 2.0
vllm:h_sum 3.5
# HELP vllm:h_created Some seconds.
# TYPE vllm:h_created gauge
vllm:h_created 1.7e+09
"""


def test_a_histograms_parts_are_one_family_and_its_created_another() -> None:
    families = parse(HISTOGRAM, "b1").families
    assert families["vllm:h"].kind == "histogram"
    assert families["vllm:h"].help == "Some seconds."
    assert families["vllm:h"].samples == [
        'vllm:h_bucket{backend="b1",le="1.0"} 1.0',
        'vllm:h_bucket{backend="b1",le="+Inf"} 2.0',
        'vllm:h_count{backend="b1"} 2.0',
        'vllm:h_sum{backend="b1"} 3.5',
    ]
    assert set(families) == {"vllm:h", "vllm:h_created"}


@pytest.mark.parametrize("line", ["vllm:a 5", "vllm:a{} 5"], ids=["bare", "empty braces"])
def test_a_series_without_labels_gets_the_one(line: str) -> None:
    assert parse(line, "b1").families["vllm:a"].samples == ['vllm:a{backend="b1"} 5']
    assert parse(line, "b1").values == {"vllm:a": {"": 5.0}}


def test_a_series_without_type_is_untyped() -> None:
    assert parse("vllm:a 5", "b1").families["vllm:a"].kind == "untyped"
    assert types(page("vllm:a 5")) == {"vllm:a": "untyped"}


def test_a_series_whose_name_only_looks_like_a_part_is_a_family_of_its_own() -> None:
    families = parse("# TYPE vllm:y histogram\nvllm:x_count 5\nvllm:y_count 5\nvllm:y_other 5", "b1").families
    assert {name: len(family.samples) for name, family in families.items()} == {
        "vllm:y": 1,
        "vllm:x_count": 1,
        "vllm:y_other": 1,
    }


def test_a_family_without_series_is_left_out() -> None:
    assert page("# HELP vllm:a None.\n# TYPE vllm:a gauge\n") == ""
    assert page() == ""


@pytest.mark.parametrize(
    ("keep", "families"),
    [
        (lambda name: False, set()),
        (lambda name: name == "vllm:h", {"vllm:h"}),
        (lambda name: name.startswith("vllm:h"), {"vllm:h", "vllm:h_created"}),
        (lambda name: name == "vllm:g", {"vllm:g"}),
    ],
    ids=["none", "one", "by its beginning", "another"],
)
def test_only_what_is_asked_for_is_passed_on_and_all_of_it_can_be_read(
    keep: Callable[[str], bool], families: set[str]
) -> None:
    found = parse(HISTOGRAM + "# TYPE vllm:g gauge\nvllm:g 1\n", "b1", keep)
    assert set(found.families) == families
    assert found.values["vllm:g"] == {"": 1.0}
    assert found.values["vllm:h_sum"] == {"": 3.5}


def test_where_types_differ_the_first_ones_stays_and_the_others_are_left_out() -> None:
    gauge, counter = "# TYPE vllm:a gauge\nvllm:a 1\n", "# TYPE vllm:a counter\nvllm:a 2\n"
    out = page(gauge, counter, gauge)
    assert types(out) == {"vllm:a": "gauge"}
    assert [line for line in out.splitlines() if not line.startswith("#")] == [
        'vllm:a{backend="b1"} 1',
        'vllm:a{backend="b3"} 1',
    ]


def test_merging_leaves_what_was_read_as_it_was() -> None:
    one, other = parse(HISTOGRAM, "b1").families, parse(HISTOGRAM, "b2").families
    first = merge([one, other])
    assert len(one["vllm:h"].samples) == 4
    assert merge([one, other]) == first


# The label

NAMES = ['b"1', "b\\1", "b\n1", "b1,x=2", "{b}", "é", 'b\\"', "http://[::1]:8000"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_the_backends_name_is_escaped(name: str) -> None:
    out = merge([parse('vllm:a{engine="0"} 5', name).families])
    assert samples(out) == [("vllm:a", frozenset({("backend", name), ("engine", "0")}), 5.0)]


@given(st.text())
def test_an_escaped_label_stays_on_its_line_and_inside_its_quotes(value: str) -> None:
    escaped = escape_label(value)
    assert "\n" not in escaped
    bare = escaped.replace("\\\\", "").replace('\\"', "")
    assert '"' not in bare
    unescaped = escaped.replace("\\\\", "\0\0").replace("\\n", "\n").replace('\\"', '"').replace("\0\0", "\\")
    assert "\0" in value or unescaped == value


# Odd lines

ODD = [
    "vllm:a",
    "vllm:a ",
    "vllm:a{",
    "vllm:a{} ",
    "vllm:a{} x",
    "vllm:",
    "# TYPE vllm:",
    "# HELP",
    "#",
    "",
    " vllm:a 5",
    "other:a 5",
    "python_info 1",
]


@pytest.mark.parametrize("line", ODD, ids=ascii)
def test_a_line_that_is_not_understood_is_left_out(line: str) -> None:
    found = parse(f"{line}\nvllm:good 1\n{line}\n", "b1")
    assert set(found.values) == {"vllm:good"}
    assert samples(merge([found.families])) == samples("vllm:good 1\n", "b1")


LET_THROUGH = {
    "a time after the value": 'vllm:a{x="1"} 5 1700000000000',
    "a label cut off": 'vllm:a{x="1 5',
    "a label without a value": "vllm:a{x} 5",
    "a blank in the name": "vllm:a b 5",
    "an odd letter in the name": "vllm:é 5",
    "an underscore in the number": "vllm:a 1_000",
    "a type that does not exist": "# TYPE vllm:a thing\nvllm:a 5",
    "no type after TYPE": "# TYPE vllm:a\nvllm:a 5",
    "a backend label of its own": 'vllm:a{backend="cuda"} 5',
}


@pytest.mark.parametrize("line", LET_THROUGH.values(), ids=LET_THROUGH)
def test_no_line_of_one_backend_spoils_the_page_for_all(line: str) -> None:
    names = {name for name, _, _ in samples(page(f"{line}\n", "vllm:good 1\n"))}
    assert "vllm:good" in names


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_finite_number_is_passed_on_but_not_reckoned_with(value: str) -> None:
    found = parse(f"vllm:num_requests_running {value}\n", "b1")
    assert found.families["vllm:num_requests_running"].samples == [f'vllm:num_requests_running{{backend="b1"}} {value}']
    assert all(math.isfinite(number) for series in found.values.values() for number in series.values())


pieces = st.sampled_from(
    [
        "vllm:",
        "a",
        "_bucket",
        "_total",
        "{",
        "}",
        "{}",
        '"',
        '="',
        ",",
        " ",
        "5",
        "NaN",
        "# TYPE ",
        "# HELP ",
        "\n",
        "\\",
        "é",
    ]
)


@given(st.text() | st.lists(pieces, max_size=30).map("".join), st.text(max_size=5))
@example("# TYPE vllm:", "b1")
@example("vllm:{", "b1")
@example("# HELP vllm:a\nvllm:a_bucket 5", "b1")
def test_no_text_raises(text: str, backend: str) -> None:
    found = parse(text, backend)
    merge([found.families, parse(text, "b2").families])
    for name, family in found.families.items():
        assert all(sample.startswith("vllm:") for sample in family.samples)
        assert "\n" not in name + family.kind + family.help


LINE_ENDS = "\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
label_values = st.text(st.characters(exclude_characters=LINE_ENDS, exclude_categories=["Cs"]), max_size=6)
rows = st.dictionaries(
    st.from_regex(r"vllm:[a-z_]{1,6}", fullmatch=True),
    st.dictionaries(st.from_regex(r"[a-z]{1,4}", fullmatch=True), label_values, max_size=3),
    max_size=5,
)


def well_formed(found: dict[str, dict[str, str]]) -> str:
    lines = []
    for name, labels in found.items():
        inner = ",".join(f'{key}="{escape_label(value)}"' for key, value in labels.items())
        lines.append(f"{name}{{{inner}}} 1.5\n")
    return "".join(lines)


@given(rows)
def test_every_well_formed_line_comes_out_with_the_label(found: dict[str, dict[str, str]]) -> None:
    expected = {(name, frozenset({*labels.items(), ("backend", "b1")}), 1.5) for name, labels in found.items()}
    assert set(samples(page(well_formed(found)))) == expected


@pytest.mark.parametrize("inside", ["\u2028", "\x0b", "\x85", "\r"], ids=ascii)
def test_a_label_value_may_hold_any_character(inside: str) -> None:
    assert set(parse(f'vllm:a{{x="1{inside}2"}} 5\n', "b1").values) == {"vllm:a"}


def test_families_are_values() -> None:
    assert Family() == Family("untyped", "", [])
