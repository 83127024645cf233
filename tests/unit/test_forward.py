"""What does not travel on: whose headers, in which spellings."""

import pytest

from warmroute.core.forward import PERSONAL, Rule, dropped, owned
from warmroute.core.headers import NEVER_SENT_ON, request_head, sent_on

DEFAULT = dropped(Rule.DROP, Rule.PASS, (), ())


def sent(drop: frozenset[bytes], *names: bytes) -> list[bytes]:
    head = request_head("GET", b"/", sent_on([(n, b"1") for n in names], drop), host=b"h", body_length=None)
    return [line.partition(b":")[0] for line in head.split(b"\r\n")[2:-2]]


@pytest.mark.parametrize(
    "name",
    ["x-openwebui-user-name", "x-openwebui-user-email", "x-litellm-end-user-id", "x-forwarded-for", "forwarded", "remote-user",
     "x-original-url", "x-http-method-override", "x-warmroute-backend", "x-vllm-priority", "x-data-parallel-rank",
     "x-request-id", "x_session_id", "x_openwebui-user_name", "x_data_parallel_rank", "transfer_encoding", "content_length",
     "cookie"],
)  # fmt: skip
def test_it_is_left_out(name: str) -> None:
    assert sent(DEFAULT, name.encode(), b"x-tag") == [b"x-tag"]


@pytest.mark.parametrize(
    "name",
    ["x-session-id", "x-openwebui-chat-id", "authorization", "content-type", "accept", "traceparent",
     "session_id", "x-stainless-lang", "x-conversation-id"],
)  # fmt: skip
def test_it_travels_on(name: str) -> None:
    assert sent(DEFAULT, name.encode()) == [name.encode()]


def test_what_every_configuration_leaves_out() -> None:
    loose = dropped(Rule.PASS, Rule.PASS, (), PERSONAL)
    assert loose >= NEVER_SENT_ON
    assert {b"x_session_id", b"x_vllm_priority", b"x-warmroute-key", b"x-original-url", b"x_request-id"} <= loose
    assert not {b"x-vllm-priority", b"x-session-id", b"x-forwarded-for"} & loose


def test_single_names_may_be_added_and_allowed_whatever_their_case() -> None:
    drop = dropped(Rule.PASS, Rule.DROP, ["Accept", "X-Internal-Tag"], ["X-OpenWebUI-User-Id"])
    left_out = (b"accept", b"x_internal-tag", b"x-session-id", b"x-openwebui-user-name", b"x_openwebui_user_id")
    assert sent(drop, *left_out, b"x-openwebui-user-id", b"x-vllm-priority") == [
        b"x-openwebui-user-id",
        b"x-vllm-priority",
    ]


def test_what_the_router_owns() -> None:
    assert [owned(name) for name in ("X-Data_Parallel-Rank", "Host", "x-warmroute-key", "X-Real-IP")] == [True] * 3 + [
        False
    ]
