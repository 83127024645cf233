"""Where a request would go, and why, without sending it or remembering anything of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import routes
from ..core.headers import Headers, first_values
from ..core.identity import Rung, digest
from ..core.model import Reason
from ..core.side import NOT_A_TURN
from ..fleet.residents import Residents
from ..recognition.conversations import Match
from ..recognition.recognizer import Recognizer, Turn
from .placement import Placement
from .request import FieldReader, Request

_HOW = {
    Match.NEXT: "its history ends with an answer that this session was given",
    Match.AGAIN: "this turn was seen before: repeated, regenerated, or taken up again",
    Match.BRANCH: "its history is this session's, gone on with differently: edited or branched",
    Match.SHARED: "many conversations share the beginning of its history, so that names none of them",
    Match.ASKED: "what was asked before is known, though its answer came back changed",
}


@dataclass(frozen=True, slots=True)
class Explainer:
    """Looks at a request as the handler would. `tenant_of` names who shows the key among some headers."""

    recognizer: Recognizer
    placement: Placement
    reader: FieldReader
    ladder: Sequence[Rung]
    secret: bytes
    tenant_of: Callable[[Headers], str]
    residents: Residents | None = None

    async def explain(self, method: str, path: bytes, headers: Headers, body: bytes) -> dict[str, Any]:
        """A JSON object that says what the request is, who won and was refused, and where it would go.

        Other routers are asked as the request would ask them, where pins are shared.
        """
        raw_path = path.partition(b"?")[0]
        route = routes.find(raw_path)
        if route is None or method not in route.methods:
            return {
                "error": f"{method} {raw_path.decode('latin-1')} reaches no backend: it is no path of the model API"
            }
        request = Request(method, path, route.label, headers, first_values(headers), body, self.reader)
        model = self.placement.model_of(request.model)
        turn = await self.recognizer.recognise_together(
            request, route, model, routes.response_id(route, raw_path), self.tenant_of(headers)
        )
        turn.refused += self.recognizer.repeated(turn, headers)
        decision, elsewhere = await self.placement.foresee(turn.session, model, turn.wishes, len(body) >> 10)
        refused = dict(turn.refused)
        return {
            "path": route.label,
            "model": model,
            "source": turn.source,
            "session": digest(turn.session.key, self.secret) if turn.session else None,
            "known": turn.session is not None and (elsewhere or not turn.new),
            "refused": [{"source": name, "reason": why} for name, why in turn.refused],
            "not_asked": [
                rung.name
                for rung in self.ladder
                if rung.name != turn.source and rung.name not in refused and rung.source(request) is not None
            ],
            "recognised": self._recognised(turn, decision.reason, elsewhere=elsewhere),
            "decision": decision.reason,
            "backend": decision.backend,
            "engine": decision.engine,
            "warm": self._warm(turn),
        }

    def _warm(self, turn: Turn) -> list[dict[str, Any]] | None:
        """What is left of the session on each engine that had it; None where backends are not asked to tell."""
        if self.residents is None:
            return None
        return [
            {
                "backend": backend,
                "engine": engine,
                "tokens": held.tokens,
                "live_tokens": held.live,
                "whole": held.whole,
            }
            for backend, engine, held in (self.residents.warm(turn.session.key) if turn.session is not None else ())
        ]

    @staticmethod
    def _recognised(turn: Turn, reason: Reason, *, elsewhere: bool) -> str:
        """How the conversation was found, in a sentence."""
        if turn.wishes.side:
            return NOT_A_TURN
        if reason in (Reason.OWNER, Reason.OWNER_GONE):
            return "it names a response that one backend has stored"
        if turn.session is None:
            return "nothing in it names a conversation"
        if turn.found is not None:
            return _HOW[turn.found.match]
        if turn.session.parent and turn.named is not None and turn.session.key != turn.named.key:
            return "a conversation of its own under an id that has another one: a sub-agent or a second thread"
        if elsewhere:
            return "another router knows it"
        return "a new conversation" if turn.new else "its id is known"
