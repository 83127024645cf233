"""Fields that steer an engine: taken out of a body whose other bytes stay, or refused, and hidden in no way."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.forward import Rule
from warmroute.proxy.body import BodyRefused
from warmroute.proxy.owned import Owned
from warmroute.proxy.request import Request, reader_for

DROPS = Owned(Rule.DROP, Rule.DROP)
REFUSES = Owned(Rule.REFUSE, Rule.REFUSE)
DEFAULT = Owned(Rule.DROP, Rule.REFUSE)
PASSES = Owned(Rule.PASS, Rule.PASS)
NAMES = ("priority", "kv_transfer_params", "ec_transfer_params")


def request(body: bytes, owned: Owned, label: str = "/v1/chat/completions", **named: str) -> Request:
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    return Request("POST", label.encode(), label, headers, dict(headers), body, reader_for((), owned.names))


def after(body: bytes, owned: Owned, **named: str) -> bytes:
    found = request(body, owned, **named)
    owned.apply(found)
    return found.body


def refused(body: bytes, owned: Owned, **named: str) -> str:
    with pytest.raises(BodyRefused) as caught:
        after(body, owned, **named)
    assert caught.value.error.status == 400
    return caught.value.error.message


@pytest.mark.parametrize(
    "body", [b'{ "model" : "m" }\n', b"", b"[1]", b"null", b'{"model":', b'{"x":{"priority":1}}', b'"priority"x'[:9]]
)
@pytest.mark.parametrize("owned", [DROPS, DEFAULT, PASSES])
def test_a_body_without_such_a_field_keeps_every_byte(body: bytes, owned: Owned) -> None:
    assert after(body, owned) == body


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (b'{"priority":-5,"model":"m"}', b'{"model":"m"}'),
        (b'{"model": "m" , "priority" : 1}', b'{"model":"m"}'),
        (b'{"priority":1}', b"{}"),
        (b'{"priority":1,"a":{"b" : [1.0, 2e0]},"priority":2}', b'{"a":{"b" : [1.0, 2e0]}}'),
        (b'{"prior\\u0069ty":1,"a":"\\u00e9"}', b'{"a":"\\u00e9"}'),
        (b'{"priority":null,"kv_transfer_params":{"do_remote_prefill":true},"a":1}', b'{"a":1}'),
        (b'{"prompt":"my \\"priority\\":  1","priority":0}', b'{"prompt":"my \\"priority\\":  1"}'),
    ],
)  # fmt: skip
def test_the_field_goes_and_other_values_keep_their_bytes(body: bytes, left: bytes) -> None:
    assert after(body, DROPS) == left


def test_what_was_read_before_is_read_anew() -> None:
    found = request(b'{"priority":1,"model":"m"}', DROPS)
    assert found.has("priority")
    DROPS.apply(found)
    assert (found.has("priority"), found.model) == (False, "m")


@pytest.mark.parametrize("name", NAMES)
def test_refused_by_name_and_null_is_not(name: str) -> None:
    told = refused(json.dumps({"model": "m", name: {}}).encode(), REFUSES)
    assert name in told
    assert "forward." in told
    assert after(json.dumps({name: None, "model": "m"}).encode(), REFUSES) == b'{"model":"m"}'


def test_the_header_for_priority_is_refused_with_the_field() -> None:
    assert "X-Vllm-Priority" in refused(b"{}", REFUSES, x_vllm_priority="-1")
    assert after(b"{}", DEFAULT, x_vllm_priority="-1") == b"{}"


@pytest.mark.parametrize("owned", [DROPS, REFUSES, DEFAULT])
def test_extra_arguments_are_no_way_around(owned: Owned) -> None:
    body = b'{"model":"m","vllm_xargs":{"kv_transfer_params":"x"}}'
    assert "vllm_xargs.kv_transfer_params" in refused(body, owned)
    assert after(body, PASSES) == body
    harmless = b'{"model":"m","vllm_xargs":{"session_id":"x"}}'
    assert after(harmless, owned) == harmless


@pytest.mark.parametrize(
    "body",
    [
        b'{"kv_transfer_params":{},"x":NaN}',
        b'{"kv_transfer_params":{},"x":"\\ud800","y":Infinity}',
        b'\xef\xbb\xbf{"kv_transfer_params":{}}',
        '{"kv_transfer_params":{}}'.encode("utf-16"),
        '{"kv_transfer_params":{}}'.encode("utf-16-be"),
        '{"kv_transfer_params":{}}'.encode("utf-32"),
        b'{"kv\\u005Ftransfer_params":{},"x":NaN}',
        b'{"\\u0070riority":1,"x":NaN}',
        b'{"vllm_xargs":{"kv_transfer_params":"x"},"y":NaN}',
    ],
)
def test_a_body_that_python_reads_and_the_router_does_not_hides_nothing(body: bytes) -> None:
    json.loads(body)  # as vLLM does it
    assert "no JSON in UTF-8" in refused(body, DEFAULT)


def test_forms_and_websockets_are_left_alone() -> None:
    form = b'--b\r\n\r\n"priority"\r\n--b--'
    assert after(form, REFUSES, content_type="multipart/form-data; boundary=b") == form
    assert after(form, DEFAULT, content_type="multipart/form-data; boundary=b; charset=UTF-8") == form
    handshake = request(b"", REFUSES, "/v1/realtime")
    REFUSES.apply(handshake)


def passes_form(data: bytes, owned: Owned, kind: str = "multipart/form-data; boundary=b", piece: int = 1) -> bool:
    """Whether the watch lets all of a form through that comes in pieces of so many bytes."""
    try:
        watch = owned.watch({b"content-type": kind.encode()})
        for i in range(0, len(data), piece):
            if watch is not None:
                watch(data[i : i + piece])
    except BodyRefused as told:
        return told.error.status != 400
    return True


def form(*fields: tuple[str, str]) -> bytes:
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields]
    return "".join([*parts, "--b--\r\n"]).encode()


@pytest.mark.parametrize("piece", [1, 2, 60, 1 << 16])
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_form_is_no_way_around(name: str, piece: int) -> None:
    for written in (name, name.upper(), "".join(f"\\u{ord(c):04x}" for c in name), name.replace("_", "\\u005F")):
        data = form(("model", "m"), ("vllm_xargs", f'{{"a":1,"{written}" : "x"}}'), ("prompt", "p" * 1000))
        assert [passes_form(data, owned, piece=piece) for owned in (DEFAULT, REFUSES, DROPS)] == [False] * 3
        assert passes_form(data, PASSES, piece=piece)


@pytest.mark.parametrize("piece", [1, 1 << 16])
def test_what_a_form_says_otherwise_passes(piece: int) -> None:
    data = form(("vllm_xargs", '{"ngram_size":3}'), ("prompt", 'kv_transfer_params, and "priority"'), ("priority", "1"))
    assert passes_form(data, REFUSES, piece=piece)


@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data; boundary=b; charset=utf-7", "multipart/form-data; charset=utf-16; boundary=b",
     "Multipart/Form-Data; boundary=b; Charset=UTF-7", "multipart/form-data; charset=utf-8; boundary=b; charset=utf-7",
     'multipart/form-data; boundary=b; charset="utf-7"', "multipart/form-data; boundary=b; charset*=us-ascii''utf-7",
     "multipart/form-data; boundary=b; charset=utf-8;charset=utf-7", "multipart/form-data; boundary=b; charset =utf-7"],
)  # fmt: skip
def test_a_form_in_another_charset_is_refused(kind: str) -> None:
    assert not passes_form(b"", DEFAULT, kind)
    assert passes_form(b"", PASSES, kind)
    hidden = '{"kv_transfer_params":1}'.replace("{", "+AHs-").replace('"', "+ACI-").replace("}", "+AH0-")
    assert "no JSON in UTF-8" in refused(form(("vllm_xargs", hidden)), DEFAULT, content_type="\xa0" + kind)


@pytest.mark.parametrize("charset", ["", "; charset=utf-8", '; charset="UTF-8" ', ";charset=utf8; x=y"])
def test_a_form_in_utf_8_passes(charset: str) -> None:
    assert passes_form(form(("model", "m")), DEFAULT, f"multipart/form-data; boundary=b{charset}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from((*NAMES, "model", "vllm_xargs", "x")) | st.text(), json_values),
    st.booleans(),
    st.sampled_from(["utf-8", "utf-16", "utf-32", "utf-8-sig"]),
)
def test_whatever_the_body_no_owned_field_gets_through(fields: dict[str, object], escaped: bool, coding: str) -> None:
    body = json.dumps(fields, ensure_ascii=escaped).encode(coding, "surrogatepass")
    for owned in (DROPS, REFUSES, DEFAULT):
        try:
            left = after(body, owned)
        except BodyRefused:
            continue
        seen = json.loads(left.decode(json.detect_encoding(left), "surrogatepass"))
        assert not set(NAMES) & set(seen)
        kept = {name: value for name, value in fields.items() if name not in NAMES}
        assert json.dumps(seen) == json.dumps(kept)
