"""Looks at a request's prompt for the account of its tokens."""

from ..core.routes import Route
from ..recognition.recognizer import Turn
from ..truth.ledger import NO_PROMPT, Ledger, Prompt
from .parts import parts_of
from .request import Request


def look(ledger: Ledger, request: Request, route: Route, turn: Turn) -> Prompt:
    """What the ledger has to know of a prompt; NO_PROMPT where nothing tells which one it goes on from."""
    session = turn.session
    if session is None or route.shape is None:
        return NO_PROMPT
    if request.has("previous_response_id"):
        return Prompt(older=True)  # the prompt is what the backend holds, and what is said here
    parts = parts_of(route.shape, request.raw)
    if not parts:
        return NO_PROMPT
    came_from = turn.found.session if turn.new and turn.found is not None else None
    return ledger.look(session, parts, came_from, older=not turn.new)
