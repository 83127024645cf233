"""Routes: the model API by exact bytes, and nothing of what an engine's operator may do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmroute.core.routes import MODEL, MODELS, Protocol, find

POSTS = [
    b"/v1/chat/completions",
    b"/v1/chat/completions/batch",
    b"/v1/systemone",
    b"/generative_scoring",
    b"/v1/completions",
    b"/v1/responses",
    b"/v1/embeddings",
    b"/v2/embed",
    b"/v1/messages",
    b"/v1/messages/count_tokens",
    b"/v1/audio/transcriptions",
    b"/v1/audio/translations",
    b"/v1/rerank",
    b"/v2/rerank",
    b"/v1/score",
    b"/rerank",
    b"/score",
    b"/pooling",
    b"/classify",
    b"/tokenize",
    b"/detokenize",
]
OF_THE_OPERATOR = [
    b"/sleep",
    b"/wake_up",
    b"/is_sleeping",
    b"/reset_prefix_cache",
    b"/reset_mm_cache",
    b"/reset_encoder_cache",
    b"/collective_rpc",
    b"/pause",
    b"/resume",
    b"/abort_requests",
    b"/update_weights",
    b"/init_weight_transfer_engine",
    b"/scale_elastic_ep",
    b"/is_scaling_elastic_ep",
    b"/start_profile",
    b"/stop_profile",
    b"/v1/load_lora_adapter",
    b"/v1/unload_lora_adapter",
    b"/fault_tolerance/apply",
    b"/server_info",
    b"/metrics",
    b"/docs",
    b"/openapi.json",
    b"/load",
    b"/ping",
    b"/invocations",
    b"/inference/v1/generate",
]


@pytest.mark.parametrize("path", POSTS, ids=bytes.decode)
def test_the_model_api_is_posted_to(path: bytes) -> None:
    route = find(path)
    assert route is not None
    assert route.methods == ("POST",)
    assert route.label == path.decode()


@pytest.mark.parametrize("path", POSTS, ids=bytes.decode)
def test_each_api_has_its_own_errors(path: bytes) -> None:
    route = find(path)
    assert route is not None
    own = {b"/v1/messages": Protocol.ANTHROPIC, b"/v1/responses": Protocol.RESPONSES}
    expected = next((protocol for beginning, protocol in own.items() if path.startswith(beginning)), Protocol.OPENAI)
    assert route.protocol is expected


@pytest.mark.parametrize(
    ("path", "label", "methods"),
    [
        (b"/version", "/version", ("GET", "HEAD")),
        (b"/v1/models", "/v1/models", ("GET", "HEAD")),
        (b"/v1/models/tiny", "/v1/models/{model}", ("GET", "HEAD")),
        (b"/v1/models/org/name", "/v1/models/{model}", ("GET", "HEAD")),
        (b"/v1/models/org%2Fname%20x", "/v1/models/{model}", ("GET", "HEAD")),
        (b"/v1/models/name:tag@v1.5", "/v1/models/{model}", ("GET", "HEAD")),
        (b"/v1/realtime", "/v1/realtime", ("GET",)),
        (b"/v1/responses/resp_b8d7c9aab71f08b8", "/v1/responses/{id}", ("GET",)),
        (b"/v1/responses/resp_1/cancel", "/v1/responses/{id}/cancel", ("POST",)),
    ],
    ids=lambda value: value.decode() if isinstance(value, bytes) else "",
)
def test_other_paths(path: bytes, label: str, methods: tuple[str, ...]) -> None:
    route = find(path)
    assert route is not None
    protocol = Protocol.RESPONSES if b"responses" in path else Protocol.OPENAI
    assert (route.label, route.methods, route.protocol) == (label, methods, protocol)


def test_the_paths_that_the_router_answers_itself_are_told_by_identity() -> None:
    assert find(b"/v1/models") is MODELS
    assert find(b"/v1/models/x") is MODEL


@pytest.mark.parametrize("path", OF_THE_OPERATOR, ids=bytes.decode)
def test_what_belongs_to_an_engines_operator_is_not_there(path: bytes) -> None:
    assert find(path) is None
    assert find(path + b"/") is None
    assert find(path.upper()) is None
    assert find(b"/" + path) is None


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"//v1/chat/completions",
        b"/v1//chat/completions",
        b"/v1/chat/completions/",
        b"/V1/chat/completions",
        b"/v1/chat/completions;x=1",
        b"/v1/chat%2fcompletions",
        b"/v1/chat/%63ompletions",
        b"/v1/./chat/completions",
        b"/v1/chat/../../sleep",
        b"/v1/chat/completions?x=1",
        b"/v1/chat/completions\n",
        b"/v1/chat/completions#x",
        b"v1/chat/completions",
        b"http://host/v1/chat/completions",
        b"/v1/models/",
        b"/v1/models/../../sleep",
        b"/v1/models/a/../../../sleep",
        b"/v1/models/..%2f..%2fsleep",
        b"/v1/models/%2e%2e/%2e%2e/sleep",
        b"/v1/models/%252e%252e/sleep",
        b"/v1/models/..%5c..%5csleep",
        b"/v1/models/a;/../../sleep",
        b"/v1/models/a%3b",
        b"/v1/models/a%00",
        b"/v1/models/a%0d%0ax",
        b"/v1/models//sleep",
        b"/v1/models/./a",
        b"/v1/models/a/",
        b"/v1/models/a%",
        b"/v1/models/a b",
        b"/v1/models/a%3fb",
        b"/v1/models/" + b"a" * 513,
        b"/v1/responses/",
        b"/v1/responses/..",
        b"/v1/responses/a/b",
        b"/v1/responses/a%2fcancel",
        b"/v1/responses/a/cancel/",
        b"/v1/responses/a\n",
        b"/v1/responses/" + b"a" * 129,
        b"/v1/messages/batches",
        b"/v1/tokenize",
        b"*",
        b"\xff",
    ],
    ids=lambda path: ascii(path)[:40],
)
def test_other_spellings_find_nothing(path: bytes) -> None:
    assert find(path) is None


@given(st.sampled_from(POSTS), st.integers(0, 40), st.binary(min_size=1, max_size=4))
def test_a_listed_path_with_anything_put_in_is_that_very_path_or_none(path: bytes, at: int, more: bytes) -> None:
    spoiled = path[: at % (len(path) + 1)] + more + path[at % (len(path) + 1) :]
    route = find(spoiled)
    assert route is None or spoiled in POSTS or route.label in ("/v1/responses/{id}", "/v1/responses/{id}/cancel")


@given(st.binary(max_size=80))
def test_labels_come_from_a_closed_set_whatever_is_asked_for(path: bytes) -> None:
    for asked in (path, b"/v1/models/" + path, b"/v1/responses/" + path):
        route = find(asked)
        assert route is None or route.label == asked.decode("latin-1") or "{" in route.label
