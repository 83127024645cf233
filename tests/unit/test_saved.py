"""Saved requests: all forms in which people keep one give the same, and what is none says what to do."""

import json
from base64 import b64decode

import pytest

from warmroute.saved import SavedError, read

BODY = {"model": "m", "messages": [{"role": "user", "content": "wörld"}]}
TEXT = json.dumps(BODY)
HEADERS = [["X-Session-ID", "abc"], ["Host", "here"]]
RAW = f"POST /v1/chat/completions?x=1 HTTP/1.1\r\nX-Session-ID: abc\r\nHost: here\r\n\r\n{TEXT}"


@pytest.mark.parametrize(
    ("data", "path", "headers"),
    [
        (RAW, "/v1/chat/completions?x=1", HEADERS),
        (RAW.replace("\r\n", "\n"), "/v1/chat/completions?x=1", HEADERS),
        (json.dumps({"path": "/v1/messages", "headers": dict(HEADERS), "body": BODY}), "/v1/messages", HEADERS),
        (json.dumps({"path": "/v1/messages", "headers": HEADERS, "body": TEXT}), "/v1/messages", HEADERS),
        (TEXT, "/v1/chat/completions", []),
    ],
    ids=["raw", "raw with LF", "object", "pairs and text", "body alone"],
)
def test_every_form_is_read(data: str, path: str, headers: list[list[str]]) -> None:
    found = read(data.encode())
    assert (found["method"], found["path"], found["headers"]) == ("POST", path, headers)
    assert json.loads(b64decode(found["body"])) == BODY


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"input": "x"}, "/v1/responses"),
        ({"prompt": "x"}, "/v1/completions"),
        ({"messages": []}, "/v1/chat/completions"),
    ],
)
def test_a_body_alone_tells_its_path(body: dict[str, object], path: str) -> None:
    assert read(json.dumps(body).encode())["path"] == path


def test_a_raw_body_is_kept_to_the_byte() -> None:
    body = b"\xff\x00 not JSON\r\n\r\n\n\n"
    found = read(b"POST /v1/completions HTTP/1.1\r\nA: b\r\n\r\n" + body)
    assert b64decode(found["body"]) == body


def test_what_is_given_goes_before_what_is_saved() -> None:
    found = read(RAW.encode(), path="/v1/messages", headers=("x-session-id:  other", "Y: z"))
    assert found["path"] == "/v1/messages"
    assert found["headers"] == [["x-session-id", "other"], ["Y", "z"], ["Host", "here"]]


@pytest.mark.parametrize(
    ("data", "headers", "says"),
    [
        (b"hello", (), "neither an HTTP request"),
        (b"[1]", (), "no object"),
        (b"[" * 200_000, (), "neither an HTTP request"),
        (b"{}", (), "--path"),
        (b'{"path": "/x", "body": {}, "headers": [1]}', (), "list of pairs"),
        (TEXT.encode(), ("no colon",), "is no header"),
        (b"POST / HTTP/1.1\r\nno colon\r\n\r\n", (), "is no header"),
    ],
)
def test_what_is_no_request_is_told(data: bytes, headers: tuple[str, ...], says: str) -> None:
    with pytest.raises(SavedError, match=says):
        read(data, headers=headers)
