"""From a request to its session: by id, by content, or both; looks first, and remembers only what has come about."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from ..core.answer import Answer, Decode
from ..core.headers import Headers
from ..core.history import History, TextHistory, head_digests, seed
from ..core.identity import BODY_FIELDS, CONTENT, Ladder, RequestView, Rung, Unusable, child_of, identify
from ..core.messages import Message, Shape, has_begun, request_messages, tools_text
from ..core.model import Decision, Near, Place, Reason, Session
from ..core.policy import NO_WISHES, Wishes
from ..core.routes import Route
from ..core.side import is_side_request, says_so
from ..pins.memory import PinTable
from .conversations import Found, Match
from .memory import Memory
from .owners import Owner


@dataclass(slots=True)
class Turn:
    """What is known of one request's conversation. `source` names where its identity came from, None if it has none;
    `written` is the digest of its messages as they were written, where that is of use; `known`: its id was known before."""

    session: Session | None = None
    refused: tuple[tuple[str, str], ...] = ()
    wishes: Wishes = NO_WISHES
    owner_unknown: bool = False
    response: str | None = None
    new: bool = False
    known: bool = False
    shape: Shape | None = None
    history: History | None = None
    found: Found | None = None
    heads: tuple[bytes, ...] = ()
    named: Session | None = None
    opening: bytes | None = None
    begun: bool = False
    tenant: str = ""
    written: bytes = b""

    @property
    def source(self) -> str | None:
        return self.session.source if self.session else self.named.source if self.named else None


FIELDS = (
    *BODY_FIELDS,
    *("messages", "system", "input", "instructions", "prompt", "tools", "cache_salt", "previous_response_id"),
    *("stream", "max_tokens", "max_completion_tokens", "max_output_tokens"),
)
"""The top-level fields of a JSON body that are looked at."""
_RESPONSES = Shape.RESPONSES


class PromptView(RequestView, Protocol):
    """What recognition may read of a request."""

    def written(self, name: str) -> memoryview | None:
        """A top-level value of the JSON body as it was written."""


class Recognizer:
    """`recognise` looks and changes nothing; `goes` is told before the request is placed, `served` at its first content, and
    a `listener` hears the answer."""

    def __init__(
        self,
        memory: Memory,
        pins: PinTable,
        *,
        sources: Iterable[Rung],
        by_content: bool,
        decode: Decode,
        nonce: Callable[[], bytes],
        known_as: Callable[[Session], Session] | None = None,
    ) -> None:
        """`nonce` gives 16 bytes that never come again; `known_as` gives a session the name under which pins know it."""
        self.memory = memory
        self._pins = pins
        self._ladder = Ladder(sources)
        self._by_content = by_content
        self._decode = decode
        self._nonce = nonce
        self._known_as = known_as
        guards = memory.guards
        self._unusable: Unusable = (
            guards.unusable if known_as is None else lambda session: guards.unusable(self._known(session))
        )

    def __repr__(self) -> str:
        return f"<Recognizer {len(self._ladder.rungs)} sources{', content' if self._by_content else ''}>"

    def recognise(
        self, view: PromptView, route: Route, model: str | None, response_id: str | None = None, tenant: str = ""
    ) -> Turn:
        """Whose turn a request is. `response_id` is that of its path, where the path has one.

        What one tenant says is never another's: ids, histories and stored responses are theirs alone.
        """
        if tenant:  # no ambiguity: all have tenants, or nobody has one
            model = f"\0{tenant}\0{model or ''}"
        named, refused = identify(view, model, self._ladder.asked(view), self._unusable)
        if named is not None and self._known_as is not None:
            named = self._known(named)
        shape = route.shape
        # Of a session that is known only the beginning of what it says matters, and mostly not even that.
        known = named is not None and self._pins.get(named.key) is not None
        turn = Turn(refused=refused, shape=shape, tenant=tenant, known=known)
        if (
            named is not None
            and known
            and shape
            and self.memory.threads.one(named.key)
            and has_begun(shape, view.field, view.written)
        ):
            turn.named, turn.begun = named, True
            turn.session, turn.wishes = (None, Wishes(side=True)) if says_so(view) else (named, NO_WISHES)
        elif named is not None or route.beside or not self._goes_on(turn, view, model):
            messages = request_messages(shape, view.field, beginning=known) if shape else []
            if route.beside or (shape and is_side_request(view, shape, messages)):
                turn.named, turn.wishes = named, Wishes(side=True)
            elif named is not None:
                self._by_id(turn, named, view, model, messages)
            elif messages and self._by_content:
                self._find(turn, view, model, messages)
        if response_id is not None or shape is _RESPONSES:
            self._ask_owner(turn, view, response_id)
        return turn

    async def recognise_together(
        self, view: PromptView, route: Route, model: str | None, response_id: str | None = None, tenant: str = ""
    ) -> Turn:
        """`recognise`, once more if other routers know what this one does not; what they tell is remembered."""
        turn, shared = self.recognise(view, route, model, response_id, tenant), self.memory.shared
        if shared is None:
            return turn
        notes = shared.wanted(turn.history if turn.named is None else None, turn.found, turn.heads, turn.response)
        if notes and await shared.fetch(notes):
            return self.recognise(view, route, model, response_id, tenant)
        return turn

    def repeated(self, turn: Turn, headers: Headers) -> tuple[tuple[str, str], ...]:
        """The source that won, as refused in part, if its header came more than once with values that differ."""
        rung = next((rung for rung in self._ladder.rungs if rung.name == turn.source), None)
        if rung is None or not any(len({v for n, v in headers if n == name}) > 1 for name in rung.headers):
            return ()
        return ((rung.name, "repeated"),)

    # By id

    def _by_id(self, turn: Turn, named: Session, view: RequestView, model: str | None, messages: list[Message]) -> None:
        turn.session = turn.named = named
        history = _history(turn.shape, view, model, messages)
        if history is not None:
            turn.begun = history.begun
            if not isinstance(history, TextHistory):
                turn.opening = history.opening
            child = self.memory.threads.child(named.key, turn.opening, begun=turn.begun)
            if child is not None:
                turn.session = child_of(named, child)
        session = turn.session
        if self._pins.get(session.key) is not None:
            return
        turn.new = True
        if history is not None and self._by_content:
            if turn.shape is not None and history.begun and turn.known:
                history = _history(turn.shape, view, model, request_messages(turn.shape, view.field)) or history
            turn.history = history
            turn.found = self.memory.conversations.find(history)
            history.settle()
        turn.wishes = Wishes(near=self._near(session, turn.found))

    def _near(self, session: Session, found: Found | None) -> Near | None:
        """Where a session that is new under its id may find its history, or that of the one it came from."""
        if found is not None and found.session != session.key and found.match is not Match.SHARED:
            place = self._place(found.session)
            if place is not None:
                return Near(Reason.NEAR_PARENT if found.match is Match.ASKED else Reason.HISTORY, (place,))
        place = self.memory.places.get(session.key)
        if place is not None:
            return Near(Reason.HISTORY, (place,))
        place = self._place(session.parent) if session.parent else None
        return Near(Reason.NEAR_PARENT, (place,)) if place is not None else None

    # By content

    def _goes_on(self, turn: Turn, view: PromptView, model: str | None) -> bool:
        """Recognise a turn that only adds to the last one, as `_find` would, and read no more than that; False for others."""
        if turn.shape is None or not self._by_content or says_so(view):
            return False
        start = seed(model, view.field("cache_salt"))
        turn.written, history = self.memory.lists.look(turn.shape, start, view.written, self._decode)
        if history is None:
            return False
        found = self.memory.conversations.find(history)
        if found is None or found.match is Match.SHARED or found.at != history.answers[-1]:
            return False
        history.settle()
        self._belongs(turn, history, found)
        return True

    def _find(self, turn: Turn, view: RequestView, model: str | None, messages: list[Message]) -> None:
        history = _history(turn.shape, view, model, messages)
        if history is None:
            return
        found = self.memory.conversations.find(history)
        history.settle()
        if found is not None and found.match is not Match.SHARED:
            self._belongs(turn, history, found)
            return
        turn.history, turn.found, turn.new = history, found, True
        turn.session = self._known(Session(self._nonce(), CONTENT))
        turn.heads = tuple(head_digests(history.start, tools_text(view.field), messages))
        places = self.memory.heads.find(turn.heads)
        if places:
            turn.wishes = Wishes(near=Near(Reason.HEAD, places))

    def _belongs(self, turn: Turn, history: History, found: Found) -> None:
        turn.history, turn.found = history, found
        turn.session = Session(found.session, CONTENT)
        turn.new = self._pins.get(found.session) is None
        if turn.new and (place := self._place(found.session)) is not None:
            turn.wishes = Wishes(near=Near(Reason.HISTORY, (place,)))

    # Responses that a backend holds

    def _ask_owner(self, turn: Turn, view: RequestView, response_id: str | None) -> None:
        asked = response_id
        if asked is None:
            before = view.field("previous_response_id")
            asked = before if isinstance(before, str) and before else None
        if asked is None:
            return
        asked = _of_tenant(turn.tenant, asked)
        owner = self.memory.owners.find(asked)
        if owner is None:
            turn.owner_unknown, turn.response = True, asked
            return
        turn.wishes = Wishes(owner=owner.backend)
        if response_id is not None:
            turn.session = None
        elif turn.named is None and owner.session is not None:
            turn.session, turn.history, turn.found, turn.heads = owner.session, None, None, ()

    # What has come about

    def goes(self, turn: Turn) -> None:
        """The request has been given a place: from now on others see that it goes on from where it was found."""
        memory = self.memory
        if turn.owner_unknown:
            memory.owners.unknown += 1
        if turn.named is not None and not turn.wishes.side:
            adopted = turn.new and turn.found is not None and self._source_of(turn.found.session) == turn.named.source
            conversations = memory.threads.seen(turn.named.key, turn.opening, begun=turn.begun)
            memory.guards.used(turn.named, conversations, adopted=adopted, known=not turn.new)
        if turn.history is not None and turn.session is not None:
            memory.conversations.goes_on(turn.history, turn.found, turn.session.key)
            if turn.written and turn.history.asks:
                memory.lists.asked(turn.written, turn.history.digests[-1])
            if memory.shared is not None:
                memory.shared.goes_on(turn.session, turn.history, turn.found)

    def served(self, turn: Turn, decision: Decision) -> None:
        """A backend has begun to answer: what the request says can be found there."""
        if turn.session is None or decision.backend is None:
            return
        if turn.session.source == CONTENT or turn.session.parent:
            self.memory.places.put(turn.session.key, Place(decision.backend, decision.engine))
        if turn.heads:
            self.memory.heads.served(turn.heads, Place(decision.backend, decision.engine))
            if self.memory.shared is not None:
                self.memory.shared.served(turn.heads, Place(decision.backend, decision.engine))

    def listener(self, turn: Turn, decision: Decision, *, event_stream: bool) -> "Listener | None":
        """What should hear the answer's bytes, if anything should."""
        if turn.shape is None or (turn.history is None and turn.shape is not _RESPONSES):
            return None
        answer = Answer(turn.shape, event_stream=event_stream, decode=self._decode, only_id=turn.history is None)
        return Listener(self.memory, turn, decision, answer)

    # Pins

    def _known(self, session: Session) -> Session:
        known_as = self._known_as
        if known_as is None:
            return session
        parent = known_as(Session(session.parent, session.source)).key if session.parent else b""
        return known_as(session)._replace(parent=parent)

    def _place(self, key: bytes) -> Place | None:
        pin = self._pins.get(key)
        return self.memory.places.get(key) if pin is None else Place(pin.backend, pin.engine)

    def _source_of(self, key: bytes) -> str | None:
        pin = self._pins.get(key)
        return None if pin is None else pin.source


class Listener:
    """Hears one answer on its way to the client: who made which response, and what the next turn will bring back."""

    __slots__ = ("_answer", "_decision", "_id_noted", "_memory", "_turn")

    def __init__(self, memory: Memory, turn: Turn, decision: Decision, answer: Answer) -> None:
        self._memory = memory
        self._turn = turn
        self._decision = decision
        self._answer = answer
        self._id_noted = False

    def hear(self, data: bytes) -> None:
        """The next bytes of the answer have passed."""
        self._answer.feed(data)
        if self._answer.response_id is not None and not self._id_noted:
            self._note_id(self._answer.response_id)

    def whole(self) -> None:
        """All of the answer has passed."""
        turn = self._turn
        message = self._answer.message()
        if self._answer.response_id is not None and not self._id_noted:
            self._note_id(self._answer.response_id)
        if message is not None and turn.history is not None and turn.session is not None:
            digest = self._memory.conversations.answered(turn.history, message, turn.session.key)
            if self._memory.shared is not None:
                self._memory.shared.answered(turn.session, turn.history, digest)

    def _note_id(self, response_id: str) -> None:
        self._id_noted = True
        if self._decision.backend is not None:
            response_id = _of_tenant(self._turn.tenant, response_id)
            owner = Owner(self._decision.backend, self._turn.session)
            self._memory.owners.made(response_id, owner)
            if self._memory.shared is not None:
                self._memory.shared.made(response_id, owner)


def _of_tenant(tenant: str, response_id: str) -> str:
    """A response's id under which no other tenant finds it."""
    return f"{tenant}\0{response_id}" if tenant else response_id


def _history(shape: Shape | None, view: RequestView, model: str | None, messages: list[Message]) -> History | None:
    if not messages:
        return None
    start = seed(model, view.field("cache_salt"))
    return TextHistory(start, messages[0].text) if shape is Shape.COMPLETIONS else History(start, messages)
