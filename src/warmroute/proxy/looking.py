"""Looks at a request for the account of its tokens: at its prompt, and at what vLLM will call its session."""

from ..core.routes import Route
from ..fleet.residents import Residents
from ..recognition.recognizer import Turn
from ..truth.ledger import NO_PROMPT, Ledger, Prompt
from .parts import Said
from .request import Request

_LONGEST = 4 << 20
"""Bytes of a body that are looked at; to look at more would keep all others waiting for a tenth of a second."""


def look(ledger: Ledger, request: Request, route: Route, turn: Turn) -> Prompt:
    """What the ledger has to know of a prompt; NO_PROMPT where nothing tells which one it goes on from."""
    session = turn.session
    if len(request.body) > _LONGEST:
        return Prompt(older=True)
    if session is None or route.shape is None:
        return NO_PROMPT
    if request.has("previous_response_id"):
        return Prompt(older=True)  # the prompt is what the backend holds, and what is said here
    came_from = turn.found.session if turn.new and turn.found is not None else None
    return ledger.look(session, Said(route.shape, request), came_from, older=not turn.new)


def label(residents: Residents, turn: Turn, request: Request) -> str | None:
    """What backends are to call a turn's session, so that their events name it; None for what is of no session.

    vLLM goes by a `session_id` in the body before it looks at the header that the label is sent in.
    """
    if turn.session is None:
        return None
    named = request.field("session_id") if turn.source == "session_id" else None
    if isinstance(named, str):
        residents.also_called(turn.session.key, named)
    return residents.label(turn.session.key)
