"""Which conversation does a request belong to? A ladder of key sources; the first that has a usable value wins."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from .model import Session
from .refusal import refusal


class RequestView(Protocol):
    """What identity may read of a request. Header names are lower case; fields are of the JSON body, and `may_name` tells
    whether one is there that a source looks at."""

    @property
    def named(self) -> Mapping[bytes, bytes]: ...
    def field(self, name: str) -> object: ...
    def may_name(self) -> bool: ...


class Key(NamedTuple):
    """What a source found: a conversation's id, and where the client names them the id of one agent within it, or the id
    of the conversation that this one was started from."""

    value: bytes
    child: bytes = b""
    parent: bytes = b""


_new = tuple.__new__
"""Makes the named tuples that each request needs: their own constructors take five times as long."""

KeySource = Callable[[RequestView], Key | None]


def header(name: str) -> KeySource:
    """A request header's value; of a repeated header the first one."""
    encoded = name.lower().encode()

    def source(view: RequestView) -> Key | None:
        value = view.named.get(encoded)
        return None if value is None else _new(Key, (value.strip(), b"", b""))

    return source


def named_with_parent(name: str) -> KeySource:
    """A request header's value, with opencode's header for the conversation that a sub-agent was started from."""
    encoded = name.encode()

    def source(view: RequestView) -> Key | None:
        named = view.named
        value = named.get(encoded)
        if value is None:
            return None
        parent = named.get(b"x-parent-session-id")
        return _new(Key, (value.strip(), b"", b"" if parent is None else parent.strip()))

    return source


def field(path: str) -> KeySource:
    """A string of the JSON body, by names joined with dots; any other type is not an identity."""
    top, *below = path.split(".")

    def source(view: RequestView) -> Key | None:
        value = view.field(top)
        for name in below:
            value = value.get(name) if isinstance(value, dict) else None
        return _text(value)

    return source


def claude_code(view: RequestView) -> Key | None:
    """Claude Code's session, with the agent for its sub-agents (the main agent names none)."""
    session = view.named.get(b"x-claude-code-session-id")
    if session is None:
        return None
    return Key(session.strip(), (view.named.get(b"x-claude-code-agent-id") or b"").strip())


def codex(view: RequestView) -> Key | None:
    """Codex's session and thread. Its header names are plain words that others use too, so it must be Codex, or a UUID."""
    session = next((v for name in _CODEX_SESSION if (v := view.named.get(name)) is not None), None)
    thread = (view.named.get(b"thread-id") or b"").strip()
    session = thread if session is None else session.strip()
    if not session:
        return None
    client = (view.named.get(b"originator") or b"") + b" " + (view.named.get(b"user-agent") or b"")
    if client.lower().find(b"codex") < 0 and not _UUID.fullmatch(session):
        return None
    return Key(session, b"" if thread == session else thread)


def conversation(view: RequestView) -> Key | None:
    """OpenAI's `conversation` of the Responses API: an id, or an object that has one."""
    value = view.field("conversation")
    return _text(value.get("id") if isinstance(value, dict) else value)


def anthropic_user_id(view: RequestView) -> Key | None:
    """The session inside Claude Code's `metadata.user_id`, in both its formats. A plain user id is no conversation."""
    metadata = view.field("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            inner = json.loads(user)
        except (ValueError, RecursionError):
            return None
        return _text(inner.get("session_id")) if isinstance(inner, dict) else None
    matched = _SESSION_IN_USER.search(user)
    return Key(matched[1].encode()) if matched else None


def baggage(view: RequestView) -> Key | None:
    """`session.id` of a W3C baggage header."""
    for member in (view.named.get(b"baggage") or b"").split(b","):
        name, _, value = member.partition(b"=")
        if name.strip() == b"session.id":
            return Key(value.partition(b";")[0].strip())
    return None


_CODEX_SESSION = (b"session-id", b"session_id", b"conversation_id")
_UUID = re.compile(rb"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_SESSION_IN_USER = re.compile(r"_session_([0-9a-fA-F-]{16,64})$")

SOURCES: Mapping[str, KeySource] = {
    # set deliberately by whoever wants affinity
    "x-warmroute-session": header("x-warmroute-session"),
    "x-smg-routing-key": header("x-smg-routing-key"),
    "x-aibrix-session-key": header("x-aibrix-session-key"),
    "x-dynamo-session-id": header("x-dynamo-session-id"),
    "x-litellm-session-id": header("x-litellm-session-id"),
    # clients that name their conversations by themselves
    "claude-code": claude_code,
    "x-openwebui-chat-id": header("x-openwebui-chat-id"),
    "x-session-affinity": named_with_parent("x-session-affinity"),
    "x-opencode-session": named_with_parent("x-opencode-session"),
    "codex": codex,
    # names in general use
    "x-session-id": named_with_parent("x-session-id"),
    "chatui-conversation-id": header("chatui-conversation-id"),
    "agent-session-id": header("agent-session-id"),
    "x-conversation-id": header("x-conversation-id"),
    "x-librechat-conversation-id": header("x-librechat-conversation-id"),
    "x-chat-id": header("x-chat-id"),
    "x-task-id": header("x-task-id"),
    "x-roo-task-id": header("x-roo-task-id"),
    # the body
    "session_id": field("session_id"),
    "vllm_xargs.session_id": field("vllm_xargs.session_id"),
    "session_params.session_id": field("session_params.session_id"),
    "litellm_session_id": field("litellm_session_id"),
    "metadata.session_id": field("metadata.session_id"),
    "conversation": conversation,
    "conversation_id": field("conversation_id"),
    "metadata.user_id": anthropic_user_id,
    "prompt_cache_key": field("prompt_cache_key"),
    "baggage": baggage,
}
"""Every key source by its name, in the order in which they are asked.

Not among them, since they name a person, a tenant or a single request: `user`, `safety_identifier`, API keys, addresses,
request, trace and correlation ids, `cache_salt`.
"""


_HEADERS: Mapping[str, tuple[bytes, ...]] = {
    "claude-code": (b"x-claude-code-session-id",),
    "codex": (*_CODEX_SESSION, b"thread-id"),
    "baggage": (b"baggage",),
}
"""The headers of those sources that are not named after theirs."""

BODY_FIELDS = (
    "session_id",
    "vllm_xargs",
    "session_params",
    "litellm_session_id",
    "metadata",
    "conversation",
    "conversation_id",
    "prompt_cache_key",
)
"""The top-level fields of a JSON body that the sources look at."""


def custom(name: str) -> KeySource:
    """A source that an operator adds by name: `header:NAME`, `body:PATH` or `cookie:NAME`. Raises ValueError."""
    kind, colon, rest = name.partition(":")
    if colon and rest and kind == "header":
        return header(rest)
    if colon and rest and kind == "body" and rest.isprintable() and not {'"', "\\"} & set(rest):
        return field(rest)
    if colon and rest and kind == "cookie":
        return _cookie(rest)
    raise ValueError(f"{name!r} is no key source; add one as header:NAME, body:PATH or cookie:NAME")


class Rung(NamedTuple):
    """One key source of a ladder. It can find something only if one of `headers` is there; with none, always."""

    name: str
    source: KeySource
    headers: tuple[bytes, ...]


def ladder(names: Sequence[str]) -> tuple[Rung, ...]:
    """The sources of ids by these names, in this order. Raises ValueError for a name that is none.

    `content` finds no id and is not among them, but may end the names.
    """
    ids = names[:-1] if names and names[-1] == CONTENT else names
    if CONTENT in ids:
        raise ValueError(f"{CONTENT!r} is for requests without an id, so it can only be the last key source")
    return tuple(Rung(name, SOURCES.get(name) or custom(name), _headers_of(name)) for name in ids)


class Ladder:
    """Rungs in their order, and which of them can find something in a request: mostly one, or those that read the body."""

    __slots__ = ("_with_one", "_without", "rungs")

    def __init__(self, rungs: Iterable[Rung]) -> None:
        self.rungs = tuple(rungs)
        self._without = tuple(self._of(set()))
        self._with_one = {name: tuple(self._of({name})) for rung in self.rungs for name in rung.headers}

    def _of(self, headers: set[bytes]) -> Iterator[Rung]:
        return (rung for rung in self.rungs if not rung.headers or not headers.isdisjoint(rung.headers))

    def asked(self, view: RequestView) -> Iterable[Rung]:
        """The rungs that need to be asked about this request."""
        headers = self._with_one.keys() & view.named
        if len(headers) > 1:
            return self._of(headers)
        return self._with_one[headers.pop()] if headers else self._without if view.may_name() else ()


def _headers_of(name: str) -> tuple[bytes, ...]:
    if name in _HEADERS:
        return _HEADERS[name]
    if name in SOURCES:
        return (name.encode(),) if "-" in name else ()
    kind, _, rest = name.partition(":")
    return (rest.lower().encode(),) if kind == "header" else (b"cookie",) if kind == "cookie" else ()


CONTENT = "content"
"""The last source: a conversation is known by what was said in it, which takes more than the request to find out."""

DEFAULT_SOURCES = (*SOURCES, CONTENT)
"""Asked where nothing else is configured."""

DEFAULT_LADDER = ladder(DEFAULT_SOURCES)


AGENT_SOURCES = frozenset({"claude-code", "codex", "x-session-affinity", "x-opencode-session", "agent-session-id"})
"""Sources under one id of which an agent may hold many conversations: sub-agents, titles, compacted histories."""


class Identity(NamedTuple):
    """The session, if any source had one, and the sources whose values could not be used, with the reason."""

    session: Session | None
    refused: tuple[tuple[str, str], ...] = ()


Unusable = Callable[[Session], str | None]
"""Says in one word why a session is none, from what is known of it so far; None if it is one."""


def identify(
    view: RequestView,
    model: str | None,
    sources: Iterable[Rung] = DEFAULT_LADDER,
    unusable: Unusable = lambda session: None,
) -> Identity:
    """The session of a request by an id that it carries.

    The key is a digest of the source's name, the model and the value: equal values of different sources are different
    sessions, and each model has a cache of its own.
    """
    refused: tuple[tuple[str, str], ...] = ()
    for name, source, _ in sources:
        found = source(view)
        if found is None:
            continue
        why = refusal(found.value)
        if why is None:
            session = _session(name, model, found)
            why = unusable(session)
            if why is None:
                return _new(Identity, (session, refused))
        refused = (*refused, (name, why))
    return Identity(None, refused)


def child_of(session: Session, child: bytes) -> Session:
    """The session of an agent, or of another conversation, that a client names only together with this one."""
    return Session(blake2b(session.key + child, digest_size=16, person=b"child").digest(), session.source, session.key)


def _session(name: str, model: str | None, found: Key) -> Session:
    value, child, parent = found
    seed = f"{name}\0{model or ''}\0".encode("utf-8", "surrogatepass") + value
    came_from = _session(name, model, Key(parent)).key if parent and parent != value else b""
    session = _new(Session, (blake2b(seed, digest_size=16).digest(), name, came_from))
    return child_of(session, child) if child else session


def digest(key: bytes, secret: bytes) -> str:
    """A session's key as people may see it, in logs and on the dashboard: 12 hex digits of a keyed BLAKE2b.

    The secret has 16 to 64 bytes; with another secret nothing of it can be recognised.
    """
    return blake2b(key, digest_size=6, key=secret).hexdigest()


def _text(value: object) -> Key | None:
    return Key(value.strip().encode("utf-8", "surrogatepass")) if isinstance(value, str) else None


def _cookie(name: str) -> KeySource:
    wanted = name.encode()

    def source(view: RequestView) -> Key | None:
        for pair in (view.named.get(b"cookie") or b"").split(b";"):
            key, _, value = pair.partition(b"=")
            if key.strip() == wanted:
                return Key(value.strip())
        return None

    return source
