"""A saved request, in the forms in which people keep them: raw HTTP, JSON with headers and body, or a JSON body alone."""

import json
from base64 import b64encode
from typing import Any

_BY_FIELD = {
    "messages": "/v1/chat/completions",
    "input": "/v1/responses",
    "prompt": "/v1/completions",
}


class SavedError(Exception):
    """What was given is no saved request; the text says what to do."""


def read(data: bytes, *, path: str | None = None, headers: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `POST /api/explain` takes. `path` and `headers` (`Name: value`) go before those in the data. Raises SavedError.

    Raw HTTP is a request line, headers, an empty line and the body. JSON with a "body" may have "method", "path" and
    "headers" too; any other JSON object is a body, and its fields tell the path.
    """
    first = data.partition(b"\n")[0].strip()
    found = _raw(data) if first.endswith((b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2")) else _json(data)
    given = [_header(text) for text in headers]
    names = {name.lower() for name, _ in given}
    found["headers"] = [*given, *(pair for pair in found["headers"] if pair[0].lower() not in names)]
    found["path"] = path or found["path"]
    if not found["path"]:
        raise SavedError("the request does not tell its path; give it with --path, as in --path /v1/chat/completions")
    return found


def _raw(data: bytes) -> dict[str, Any]:
    head, blank, body = data.partition(b"\r\n\r\n")
    if not blank:
        head, _, body = data.partition(b"\n\n")
    first, *lines = head.decode("latin-1").splitlines()
    method, _, rest = first.partition(" ")
    pairs = [_header(line) for line in lines if line.strip()]
    return {"method": method, "path": rest.split(" ")[0], "headers": pairs, "body": b64encode(body).decode()}


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise SavedError(
            "the file holds neither an HTTP request (POST /path HTTP/1.1, headers, empty line, body) nor JSON; save one of"
            " them in it"
        ) from None
    if not isinstance(value, dict):
        raise SavedError("the JSON is no object; save the request's body, or an object with headers and body")
    if "body" not in value:
        path = next((path for field, path in _BY_FIELD.items() if field in value), "")
        return {"method": "POST", "path": path, "headers": [], "body": b64encode(data).decode()}
    body, headers = value["body"], value.get("headers") or {}
    if isinstance(headers, dict):
        headers = list(headers.items())
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in headers):
        raise SavedError('"headers" is neither an object nor a list of pairs')
    text = body if isinstance(body, str) else json.dumps(body)
    return {
        "method": str(value.get("method", "POST")),
        "path": str(value.get("path", "")),
        "headers": [[str(name), str(content)] for name, content in headers],
        "body": b64encode(text.encode("utf-8", "surrogatepass")).decode(),
    }


def _header(text: str) -> list[str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise SavedError(f"{text!r} is no header; write it like 'X-Session-ID: abc'")
    return [name.strip(), value.strip()]
