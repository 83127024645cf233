"""Identity: which key source wins, which values name a conversation, and which values are the same one."""

import json
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmroute.core.identity import (
    BODY_FIELDS,
    DEFAULT_LADDER,
    DEFAULT_SOURCES,
    SOURCES,
    Ladder,
    digest,
    identify,
    ladder,
)
from warmroute.core.model import Session

UUID = "0b5c1f9e-3a77-4a53-9a61-0c2a4c1b7d11"


@dataclass(frozen=True)
class View:
    """A request as identity sees it."""

    headers: dict[bytes, bytes] = field(default_factory=dict)
    fields: dict[str, object] = field(default_factory=dict)

    @property
    def named(self) -> dict[bytes, bytes]:
        return self.headers

    def may_name(self) -> bool:
        return True

    def field(self, name: str) -> object:
        return self.fields.get(name)


def view(headers: dict[str, str] | None = None, **fields: object) -> View:
    return View({name.lower().encode(): value.encode() for name, value in (headers or {}).items()}, fields)


ALL = ladder(tuple(SOURCES))


def session_of(request: View, model: str | None = "m") -> Session | None:
    return identify(request, model, Ladder(ALL).asked(request)).session


def by_header(value: bytes, model: str | None = "m") -> Session | None:
    return session_of(View({b"x-session-id": value}), model)


def by_field(value: object, model: str | None = "m") -> Session | None:
    return session_of(View(fields={"session_id": value}), model)


def test_nothing_identifies_nothing() -> None:
    assert identify(View(), "m") == (None, ())


# One request for each source, with a value of its own
REQUESTS = {
    **{name: view({name: "value"}) for name in SOURCES if name.startswith(("x-", "chatui-", "agent-"))},
    "claude-code": view({"X-Claude-Code-Session-Id": "value"}),
    "codex": view({"session-id": "value", "user-agent": "codex_cli_rs/0.171.0"}),
    "session_id": view(session_id="value"),
    "vllm_xargs.session_id": view(vllm_xargs={"session_id": "value"}),
    "session_params.session_id": view(session_params={"session_id": "value"}),
    "litellm_session_id": view(litellm_session_id="value"),
    "metadata.session_id": view(metadata={"session_id": "value"}),
    "conversation": view(conversation={"id": "value"}),
    "conversation_id": view(conversation_id="value"),
    "metadata.user_id": view(metadata={"user_id": json.dumps({"device_id": "d", "session_id": "value"})}),
    "prompt_cache_key": view(prompt_cache_key="value"),
    "baggage": view({"baggage": "userId=alice,session.id=value;prop=1"}),
}


def test_every_source_has_its_request() -> None:
    assert set(REQUESTS) == set(SOURCES)


@pytest.mark.parametrize("source", list(SOURCES))
def test_each_source_gives_a_session_and_says_that_it_did(source: str) -> None:
    session = session_of(REQUESTS[source])
    assert session is not None
    assert (session.source, len(session.key)) == (source, 16)


def test_every_field_that_a_source_looks_at_is_among_those_that_are_read() -> None:
    looked_at: set[str] = set()

    class Watched(View):
        def field(self, name: str) -> object:
            looked_at.add(name)
            return None

    identify(Watched(), "m", ALL)
    assert looked_at == set(BODY_FIELDS)


def test_all_sources_are_asked_by_default_and_content_comes_last() -> None:
    assert [rung.name for rung in DEFAULT_LADDER] == list(SOURCES)
    assert [*SOURCES, "content"] == list(DEFAULT_SOURCES)
    assert ladder(("session_id", "content")) == ladder(("session_id",))
    assert ladder(("content",)) == ladder(()) == ()
    with pytest.raises(ValueError, match="only be the last"):
        ladder(("content", "session_id"))


@pytest.mark.parametrize("source", ["x-session-affinity", "x-opencode-session", "x-session-id"])
def test_a_sub_agent_that_names_where_it_came_from_has_a_parent(source: str) -> None:
    parent, child = session_of(view({source: "P"})), session_of(view({source: "C", "x-parent-session-id": "P"}))
    alone, itself = session_of(view({source: "C"})), session_of(view({source: "P", "x-parent-session-id": "P"}))
    assert parent is not None
    assert child is not None
    assert alone is not None
    assert (child.key, child.parent) == (alone.key, parent.key)
    assert itself == parent


def test_sources_are_asked_in_their_order() -> None:
    names = list(SOURCES)
    for i, name in enumerate(names):
        headers: dict[bytes, bytes] = {}
        fields: dict[str, object] = {}
        for later in reversed(names[i:]):
            headers |= REQUESTS[later].headers
            for key, value in REQUESTS[later].fields.items():
                known = fields.get(key)
                fields[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, dict) else value
        session = session_of(View(headers, fields))
        assert session is not None
        assert session.source == name


def test_an_operator_chooses_sources_and_adds_some() -> None:
    both = View({b"x-session-id": b"h", b"x-team-chat": b"t", b"cookie": b"a=1; chat=c"}, {"extra": {"id": "e"}})

    def won(*names: str) -> str | None:
        session = identify(both, "m", ladder(names)).session
        return session.source if session else None

    assert won("header:X-Team-Chat", "x-session-id") == "header:X-Team-Chat"
    assert won("body:extra.id") == "body:extra.id"
    assert won("cookie:chat") == "cookie:chat"
    assert won("cookie:other", "x-session-id") == "x-session-id"
    assert won() is None


@pytest.mark.parametrize("name", ["cookie", "header:", "query:x", ""])
def test_a_source_that_does_not_exist_is_an_error(name: str) -> None:
    with pytest.raises(ValueError, match="no key source"):
        ladder([name])


# What real clients send


@pytest.mark.parametrize(
    ("request_", "source", "refused"),
    [
        (view({"ChatUI-Conversation-ID": ""}), None, (("chatui-conversation-id", "empty"),)),
        (
            view({"X-Conversation-Id": "{{LIBRECHAT_BODY_CONVERSATION_ID}}"}),
            None,
            (("x-conversation-id", "template"),),
        ),
        (view({"X-OpenWebUI-Chat-Id": "temporary:Ab_12"}), "x-openwebui-chat-id", ()),
        (view({"X-Claude-Code-Session-Id": "S"}), "claude-code", ()),
        (view(metadata={"user_id": '{"device_id":"d","account_uuid":"","session_id":"U"}'}), "metadata.user_id", ()),
        (view(metadata={"user_id": f"user_ab_account__session_{UUID}"}), "metadata.user_id", ()),
        (view(metadata={"user_id": "alice"}), None, ()),
        (view(metadata={"user_id": "{not json"}), None, ()),
        (view(metadata={"user_id": "[" * 100_000}), None, ()),
        (view({"session-id": "U"}), None, ()),
        (view({"session-id": UUID}), "codex", ()),
        (view({"session-id": "U", "originator": "codex_exec"}), "codex", ()),
        (view({"thread-id": UUID}), "codex", ()),
        (view({"X-Session-Id": "C", "x-parent-session-id": "P"}), "x-session-id", ()),
        (view(user={"id": "x"}), None, ()),
        (view({"x-request-id": "r", "x-correlation-id": "c", "traceparent": "t"}, user="u", cache_salt="s"), None, ()),
        (view({"x-session-id": "${CHAT}"}, session_id="s"), "session_id", (("x-session-id", "template"),)),
        (view({"x-session-id": "NULL"}, session_id="s"), "session_id", (("x-session-id", "sentinel"),)),
        (view({"x-conversation-id": "new"}), None, (("x-conversation-id", "sentinel"),)),
        (view({"baggage": "session.id=;x=1"}), None, (("baggage", "empty"),)),
        (view({"baggage": "other=1"}), None, ()),
        (view(conversation="conv_1"), "conversation", ()),
        (view(conversation={"id": 7}), None, ()),
    ],
    ids=lambda value: None if isinstance(value, View) else str(value)[:40],
)
def test_what_clients_send(request_: View, source: str | None, refused: tuple[tuple[str, str], ...]) -> None:
    session, why = identify(request_, "m")
    assert (session.source if session else None, why) == (source, refused)


def test_a_sub_agent_is_a_conversation_of_its_own() -> None:
    main = session_of(view({"x-claude-code-session-id": "S"}))
    agent = session_of(view({"x-claude-code-session-id": "S", "x-claude-code-agent-id": "A"}))
    other = session_of(view({"x-claude-code-session-id": "S", "x-claude-code-agent-id": "B"}))
    assert main is not None
    assert agent is not None
    assert other is not None
    assert len({main.key, agent.key, other.key}) == 3
    root = session_of(view({"session-id": UUID, "thread-id": UUID}))
    thread = session_of(view({"session-id": UUID, "thread-id": str(uuid.UUID(int=7))}))
    assert root is not None
    assert thread is not None
    assert root.key != thread.key


# Values


@pytest.mark.parametrize("empty", [b"", b"   ", b"\t \t"], ids=["empty", "blanks", "tabs"])
def test_an_empty_value_is_refused_and_the_next_source_is_asked(empty: bytes) -> None:
    assert identify(View({b"x-session-id": empty}), "m") == (None, (("x-session-id", "empty"),))
    assert session_of(View({b"x-session-id": empty}, {"session_id": "f"})) == by_field("f")


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    assert by_header(b"  s ") == by_header(b"s")
    assert by_field("\ts\n") == by_field("s")


@pytest.mark.parametrize(
    "value", [None, 7, 7.5, True, [], ["s"], {}, {"id": "s"}], ids=lambda value: type(value).__name__
)
def test_a_field_that_is_no_string_is_no_identity(value: object) -> None:
    assert by_field(value) is None


@pytest.mark.parametrize(
    "value",
    [b"caf\xc3\xa9\xff", b"x" * 10_000, b"x%0d%0aX-Evil:1", b"a\tb", b"\x00"],
    ids=["odd bytes", "very long", "escaped newline", "tab inside", "nul"],
)
def test_any_other_header_value_is_an_identity(value: bytes) -> None:
    session = by_header(value)
    assert session is not None
    assert session == by_header(value)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "\x00", "\ud800", "é" * 5_000, "😀"], ids=ascii)
def test_any_other_text_is_an_identity(value: str) -> None:
    assert by_field(value) is not None


def test_the_key_is_a_stable_digest() -> None:
    session, other = by_header(b"alice-1", "tiny"), by_field("alice-1", "tiny")
    assert session is not None
    assert other is not None
    assert session.key.hex() == "7fd78adc3d9741e2f49d84a6e4dcd712"
    assert other.key.hex() == "7ccd88d1741c978d759e6a6cd962b762"


# A model's name has no NUL; a value may have any. Blanks around a value are no part of it, and some words name nobody.
cases = st.tuples(
    st.sampled_from(["x-session-id", "session_id"]),
    st.none() | st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=5),
    st.text(min_size=1, max_size=5).filter(lambda value: value == value.strip()),
)


def found(case: tuple[str, str | None, str]) -> Session | None:
    source, model, value = case
    if source == "session_id":
        return by_field(value, model)
    return by_header(value.encode("utf-8", "surrogatepass"), model)


@given(cases, cases)
@example(("session_id", "m", "x"), ("x-session-id", "m", "x"))
@example(("session_id", None, "x"), ("session_id", "m", "x"))
def test_sessions_are_equal_exactly_if_source_model_and_value_are(
    one: tuple[str, str | None, str], other: tuple[str, str | None, str]
) -> None:
    first, second = found(one), found(other)
    if first is not None and second is not None:
        assert (first == second) == (one == other)
        assert (first.key == second.key) == (one == other)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(sorted({source.split(".")[0] for source in SOURCES} | {"session_id", "user_id", "id"}))
headers = st.sampled_from([name.encode() for name in SOURCES] + [b"cookie", b"originator", b"thread-id", b"session-id"])


@given(
    st.dictionaries(headers, st.binary(max_size=30), max_size=4),
    st.dictionaries(names, json_values | st.dictionaries(names, json_values, max_size=3), max_size=4),
)
def test_nothing_raises_and_only_rungs_that_find_nothing_are_left_out(
    given_headers: dict[bytes, bytes], fields: dict[str, object]
) -> None:
    request, rungs = View(given_headers, fields), (*DEFAULT_LADDER, *ladder(["cookie:a", "body:user.id"]))
    identity = identify(request, "m", rungs)
    assert identify(request, "m", Ladder(rungs).asked(request)) == identity, "who is not asked has nothing to say"
    assert identity.session is None or len(identity.session.key) == 16
    assert {why for _, why in identity.refused} <= {"empty", "template", "sentinel"}


# What people may see of a key

SECRET = bytes(range(32))


def test_a_digest_for_people_is_short_and_stable() -> None:
    assert digest(b"k" * 16, SECRET) == "dd7a0dca70d7"
    assert len(digest(b"", SECRET)) == 12


def test_a_digest_tells_keys_apart_and_means_nothing_under_another_secret() -> None:
    keys = [b"%016d" % i for i in range(1_000)]
    shown = {digest(key, SECRET) for key in keys}
    assert len(shown) == len(keys)
    assert not shown & {digest(key, bytes(32)) for key in keys}
    assert not [key for key in keys if key.hex().startswith(digest(key, SECRET))]
