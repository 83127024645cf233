"""Which of a client's headers and fields a backend gets: the router owns some, and some are nobody's business there."""

from collections.abc import Iterable
from enum import StrEnum
from itertools import product

from .headers import NEVER_SENT_ON


class Rule(StrEnum):
    """What becomes of something that a client may say: it is left out, passed on, or the request is refused."""

    DROP = "drop"
    PASS = "pass"
    REFUSE = "refuse"


PRIORITY = "x-vllm-priority"
"""vLLM takes it before the body's `priority`."""
SESSION = "x-session-id"
"""vLLM names it in its KV events, if the body has no `session_id`."""
_STEERING = ("x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-rewrite-url")
"""Some servers take another method or path from these than was decided on."""
_OURS = ("x-warmroute-session", "x-warmroute-backend", "x-warmroute-decision", "x-warmroute-key")
_PEOPLE = (
    # Chat frontends: Open WebUI, LibreChat's and LiteLLM's examples
    *(f"x-openwebui-user-{word}" for word in ("id", "name", "email", "role", "jwt", "groups")),
    *(f"x-librechat-user-{word}" for word in ("id", "name", "email", "role", "username")),
    *(f"x-litellm-{word}" for word in ("customer-id", "end-user-id", "end-user", "user-id", "user-email", "user")),
    *(f"x-user-{word}" for word in ("id", "name", "email", "role", "groups")),
    *("x-user", "x-username", "x-email", "x-end-user-id", "x-customer-id"),
    # What stands in front and has asked for a password: oauth2-proxy, Authelia, authentik, Grafana's, Tailscale, clouds
    *(f"x-forwarded-{word}" for word in ("user", "email", "groups", "preferred-username", "access-token")),
    *(f"x-auth-request-{word}" for word in ("user", "email", "groups", "preferred-username", "access-token")),
    *(f"remote-{word}" for word in ("user", "name", "email", "groups")),
    *(f"x-authentik-{word}" for word in ("username", "name", "email", "groups", "uid", "jwt", "entitlements")),
    *(f"x-webauth-{word}" for word in ("user", "name", "email", "groups", "role")),
    *(f"tailscale-user-{word}" for word in ("login", "name", "profile-pic")),
    *("x-remote-user", "x-remote-group", "x-authenticated-user", "x-consumer-username", "x-consumer-custom-id"),
    *("cf-access-authenticated-user-email", "cf-access-jwt-assertion"),
    *("x-goog-authenticated-user-email", "x-goog-authenticated-user-id", "x-goog-iap-jwt-assertion"),
    *("x-amzn-oidc-identity", "x-amzn-oidc-data", "x-amzn-oidc-accesstoken"),
    *("x-ms-client-principal", "x-ms-client-principal-name", "x-ms-client-principal-id", "x-ms-token-aad-access-token"),
)
_ADDRESSES = (
    *(f"x-forwarded-{word}" for word in ("for", "host", "proto", "port", "prefix", "server", "by", "ssl", "scheme", "uri")),
    *("forwarded", "x-real-ip", "x-client-ip", "client-ip", "true-client-ip", "x-cluster-client-ip", "x-remote-addr"),
    *("x-original-forwarded-for", "x-envoy-external-address", "x-remote-ip", "x-originating-ip", "fly-client-ip"),
    *("cf-connecting-ip", "cf-connecting-ipv6", "cf-pseudo-ipv4", "cf-ipcountry", "fastly-client-ip", "x-azure-clientip"),
)  # fmt: skip
COOKIE = "cookie"
"""What sites have given a browser to know it again, other services on the same host too: often as good as a password there."""
PERSONAL = frozenset((*_PEOPLE, *_ADDRESSES, COOKIE))
"""What frontends, proxies and browsers say of the person at the client: who it is, where it is, and its sessions."""
_OWNED = frozenset(name.decode() for name in NEVER_SENT_ON).union(_OURS)


def dropped(rule: Rule, session: Rule, drop: Iterable[str], keep: Iterable[str]) -> frozenset[bytes]:
    """The names that do not travel on, each with its twins, in which underscores stand for dashes.

    Some servers read `x_session_id` as `X-Session-ID`, and so would see what was left out or set by the router. `rule` is for
    vLLM's priority, `session` for its session id, `drop` and `keep` for single names. What may pass does so
    in its own spelling alone.
    """
    listed = {*PERSONAL, *_STEERING, *_OWNED, PRIORITY, SESSION, *drop}
    passing = {name.lower() for name in keep}
    passing |= {name for name, said in ((PRIORITY, rule), (SESSION, session)) if said is Rule.PASS}
    twins = {twin for name in listed for twin in _spellings(name.lower())}
    return frozenset(
        name.encode() for name in twins - (passing - {twin for name in _OWNED for twin in _spellings(name)})
    )


def owned(name: str) -> bool:
    """Whether this header is the router's own affair in every configuration."""
    return name.lower().replace("_", "-") in _OWNED


def _spellings(name: str) -> Iterable[str]:
    first, *rest = name.replace("_", "-").split("-")
    for marks in product("-_", repeat=len(rest)):
        yield first + "".join(map("".join, zip(marks, rest, strict=True)))
