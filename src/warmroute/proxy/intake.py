"""Takes a request in: reads it, finds out whose turn it is, and makes of its body what a backend may get."""

from dataclasses import dataclass

from ..core.questions import Asked, Asks, put_into
from ..core.routes import Route, response_id
from ..recognition.recognizer import Recognizer, Turn
from . import errors
from .body import BodyRefused, Incoming, is_form
from .heads import Head
from .isolation import Isolation
from .owned import Owned
from .placement import Placement
from .request import FieldReader, Request
from .tenants import Tenant
from .upload import OPENING


@dataclass(slots=True)
class Taken:
    """A request as it was taken in: `asked` is what is sent on of it."""

    request: Request
    model: str | None
    turn: Turn
    asked: Asked


class Intake:
    """What reading a request takes. `take` raises BodyRefused for what may not go on, and ClientLeft."""

    def __init__(
        self,
        *,
        recognizer: Recognizer,
        placement: Placement,
        reader: FieldReader,
        owned: Owned,
        isolation: Isolation,
        asks: Asks,
    ) -> None:
        self._recognizer = recognizer
        self._placement = placement
        self._reader = reader
        self._owned = owned
        self._isolation = isolation
        self._asks = asks

    def __repr__(self) -> str:
        return f"<Intake {self._owned!r} {self._isolation!r}>"

    async def take(self, route: Route, head: Head, incoming: Incoming, tenant: Tenant) -> Taken:
        """The turn is one of its tenant's, and of nobody else's."""
        named = head.named
        if is_form(named):
            incoming.watch = self._owned.watch(named)
            body = await incoming.at_least(OPENING)
        elif (at_once := incoming.at_once()) is not None:
            body = at_once
        else:
            body = await incoming.whole()
        request = Request(head.method, head.target, route.label, head.headers, named, body, self._reader)
        model = self._placement.model_of(request.model)
        if model is None and not incoming.ended:
            request.body = await incoming.whole(body)
            model = self._placement.model_of(request.model)
        self._owned.apply(request)
        recognizer, asked = self._recognizer, response_id(route, head.path)
        turn = await recognizer.recognise_together(request, route, model, asked, tenant.name)
        if len(request.named) != len(request.headers):
            turn.refused += recognizer.repeated(turn, request.headers)
        if tenant.name:
            if turn.owner_unknown:
                raise BodyRefused(errors.response_not_found())
            tenant.claim(turn.session)
        fields = tenant.fields(request, route.shape)
        if self._isolation.mode != "off":
            fields += self._isolation.fields(request, tenant, turn.session)
        if fields:
            request.put(fields)
        return Taken(request, model, turn, put_into(request.body, route.shape, request, self._asks))
