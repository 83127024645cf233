"""One request through its hops: identify, place, open, relay, settle. Sequence only; every rule lives in `core`."""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..core.forward import COOKIE
from ..core.headers import request_head, request_id
from ..core.identity import digest
from ..core.model import Decision, Failure, Phase, Reason
from ..core.relay import Relay, RelayState
from ..core.retry import MAX_SENT, Budget, Verdict, is_fault, verdict
from ..core.routes import Route
from ..core.tap import TokenTap
from ..core.trace import Hop
from ..core.unasked import UsageFilter
from ..fleet.registry import Registry
from ..fleet.residents import Residents
from ..observe.record import RequestRecord
from ..recognition.recognizer import Recognizer
from ..truth.ledger import NO_PROMPT, Ledger
from . import errors
from .answer_head import AnswerHead
from .answers import Answers, send_error
from .body import BodyRefused, ClientLeft, Incoming
from .client import Client, Outflow
from .connection import Connection
from .errors import Code
from .failures import ClientGone, UpstreamError
from .handshake import SWITCHED
from .in_flight import InFlight
from .intake import Intake
from .looking import label, look
from .placement import Placed, Placement
from .pool import Pool
from .queue import Queue
from .resume import Resumer
from .tenants import Tenant
from .tunnel import through
from .upload import Upload

log = logging.getLogger("warmroute.proxy")

_CLIENT_LEFT = 499
"""Status in log and metrics of a request whose client left before an answer (nginx's number); never sent."""


class Handler:
    """The data path. `settle` is given each request's record at its end, exactly once."""

    def __init__(
        self,
        *,
        registry: Registry,
        placement: Placement,
        pools: Mapping[str, Pool],
        settle: Callable[[RequestRecord], None],
        backend_failed: Callable[[str, Failure], None],
        clock: Callable[[], float],
        budget: Budget,
        queue: Queue,
        secret: bytes,
        intake: Intake,
        recognizer: Recognizer,
        ledger: Ledger | None,
        residents: Residents | None,
        hop: Callable[[bytes | None], Hop] | None,
        resumer: Resumer,
        drop: frozenset[bytes],
        body_limit: int,
        response_headers: bool,
    ) -> None:
        self._registry = registry
        self._placement = placement
        self._pools = pools
        self._settle = settle
        self._backend_failed = backend_failed
        self._clock = clock
        self._budget = budget
        self._queue = queue
        self._secret = secret
        self._intake = intake
        self._recognizer = recognizer
        self._others = recognizer.memory.shared
        self._ledger = ledger
        self._residents = residents
        self._hop = hop
        self._resumer = resumer
        self._drop = drop
        self._cookies = COOKIE.encode() not in drop
        self._body_limit = body_limit
        self._answers = Answers(registry, pools, response_headers)
        self._id_prefix = secrets.token_hex(6)
        self._ids = itertools.count()

    async def handle(self, route: Route, client: Client, tenant: Tenant) -> None:
        """Answer one request of the model API, which this tenant sends."""
        head = client.head
        named = head.named
        record = RequestRecord(
            id=request_id(named.get(b"x-request-id"), f"{self._id_prefix}{next(self._ids):08x}"),
            method=head.method,
            path=route.label,
            started=self._clock(),
            time=time.time(),
            hop=self._hop(named.get(b"traceparent")) if self._hop is not None else None,
            tenant=tenant.name,
        )
        incoming = Incoming(client, tenant.limits.body or self._body_limit)
        try:
            taken = await self._intake.take(route, head, incoming, tenant)
            x = InFlight(taken.request, route, client, record, taken.turn, taken.model, taken.asked)
            x.upload = None if incoming.ended else Upload(incoming)
            with client:
                await self._serve(x)
        except (ClientLeft, ClientGone):
            record.aborted = True
        except asyncio.CancelledError:
            record.status = 503
            raise
        except BodyRefused as refused:
            if not client.started:
                record.status, record.error = refused.error.status, refused.error.code
                client.keep_alive = False
                await send_error(client, refused.error, route.protocol, self._answers.told(record))
        finally:
            record.aborted = record.aborted or (client.gone and not client.finished)
            if record.status == 0:
                record.status, record.error = (_CLIENT_LEFT, None) if record.aborted else (500, Code.ROUTER_ERROR)
            record.bytes_in, record.bytes_out = record.bytes_in + incoming.read, client.bytes_out
            record.duration_s = self._clock() - record.started
            self._settle(record)

    async def _serve(self, x: InFlight) -> None:
        turn, record = x.turn, x.record
        if turn.refused:
            record.refused_keys = turn.refused
        record.key_source = turn.source
        if turn.session is not None:
            record.session = digest(turn.session.key, self._secret)
            x.label = label(self._residents, turn, x.request) if self._residents is not None else None
        self._recognizer.goes(turn)
        self._budget.request()
        while True:
            placed = await self._place(x)
            if not isinstance(placed, Placed):
                x.record.decision = placed.reason
                await self._answers.give(x, self._answers.refusal(x, placed))
                return
            x.record.backend, x.record.engine = placed.backend, placed.decision.engine
            x.record.decision = placed.decision.reason
            if self._residents is not None and turn.session is not None:
                record.held = self._residents.held(turn.session.key, placed.backend, placed.decision.engine)
            try:
                with placed.lease:
                    failure = await self._attempt(x, placed)
            finally:
                self._queue.freed(placed.backend)
            if failure is None:
                return
            x.exclude.add(placed.backend)
            if failure.phase is Phase.STREAM:
                await self._broke_off(x, failure)
                return
            self._placement.withdraw(x.turn.session, placed.decision)
            if not x.repeatable or verdict(failure, sent=x.sent) is not Verdict.OTHER:
                error = errors.own_fault(failure.detail) if failure.own else errors.all_failed(x.record.reasons())
                await self._answers.give(x, error)
                return

    async def _place(self, x: InFlight) -> Placed | Decision:
        """A place for the request, waited for in the queue while backends are full."""
        key, turn, size, deadline = x.record.id.encode(), x.turn, len(x.request.body) >> 10, None
        while True:
            placed = await self._placement.place_agreed(turn.session, x.model, key, x.exclude, turn.wishes, size)
            if isinstance(placed, Placed) or placed.reason is not Reason.BUSY:
                return placed
            again, deadline = deadline is not None, deadline or self._queue.deadline()
            if not await self._queue.wait(placed.full, x.client, deadline, again=again):
                return placed
            if x.client.gone:
                raise ClientGone

    async def _attempt(self, x: InFlight, placed: Placed) -> Failure | None:
        """Try one backend: None once the client has its answer, else why it has none, or (Phase.STREAM) only a part of it."""
        pool = self._pools[placed.backend]
        counted = False
        fresh = x.fresh
        while True:
            x.record.attempts += 1
            try:
                connection = None if fresh else pool.idle()
                if connection is None:
                    connection = await pool.connect(x.opens)
                x.record.connected_s = self._clock() - x.record.started
                if not counted:
                    counted, x.sent = True, x.sent + 1
                with connection:
                    if x.upload is None:
                        await self._exchange(x, placed, connection)
                    else:
                        async with x.upload.to(connection):
                            await self._exchange(x, placed, connection)
                return None
            except UpstreamError as error:
                failure = error.failure
            x.record.failures.append((placed.backend, failure))
            self._backend_failed(placed.backend, failure)
            if not x.repeatable or verdict(failure, sent=x.sent) is not Verdict.SAME:
                return failure
            fresh = True

    async def _exchange(self, x: InFlight, placed: Placed, connection: Connection) -> None:
        if x.client.gone:
            raise ClientGone
        pool = self._pools[placed.backend]
        request, decision = x.request, placed.decision
        head = request_head(
            request.method,
            pool.base_path + request.target,
            x.client.head.sent_on(self._drop),
            host=pool.host_header,
            body_length=x.body_length,
            extra=x.for_backend(decision.engine, self._registry.backends[placed.backend].spec.key),
        )
        body = x.asked.body if x.upload is None else x.upload.framed(x.asked.body)
        connection.send(head, body, x.client, head_only=request.method == "HEAD")
        if self._ledger is not None and x.record.prompt is NO_PROMPT:  # now that the backend is at work
            x.record.prompt = look(self._ledger, request, x.route, x.turn)
        answer = await connection.read_head()
        self._judge(x, placed, answer)
        if answer.status == SWITCHED:
            await through(x, placed, connection, self._begin)
            self._placement.confirm(x.turn.session, decision)  # it was in use until now
            return
        relay = x.relay = Relay(answer.status, answer.named)
        if relay.readable:
            x.listener = self._recognizer.listener(x.turn, decision, event_stream=relay.event_stream)
            relay.listener = x.listener.hear if x.listener is not None else None
            asked = (x.asked.tokens or x.asked.usage) and relay.event_stream
            if asked and connection.length is None:
                relay.tap = TokenTap() if x.asked.tokens else None
                relay.hides = UsageFilter() if x.asked.usage else None
        try:
            await self._relay(x, decision, connection, relay)
        except UpstreamError as error:
            if relay.state is RelayState.STREAMING:
                raise UpstreamError(replace(error.failure, phase=Phase.STREAM)) from None
            raise
        finally:
            x.record.usage = relay.usage()
        if x.listener is not None:
            x.listener.whole()

    def _judge(self, x: InFlight, placed: Placed, answer: AnswerHead) -> None:
        """Is the answer a fault of its backend's? Raises UpstreamError if another one may be asked; else it is passed on."""
        if not is_fault(answer.status, answer.named):
            if answer.status < 500:
                self._registry.succeeded(placed.backend, self._clock())
            return
        failure = Failure(Phase.HEAD, "status", f"{placed.backend} answered {answer.status}")
        others = self._placement.look(x.turn.session, x.model, b"", {*x.exclude, placed.backend}, x.turn.wishes)
        if x.repeatable and x.sent < MAX_SENT and others.backend is not None and self._budget.take():
            raise UpstreamError(failure)
        self._backend_failed(placed.backend, failure)

    async def _relay(self, x: InFlight, decision: Decision, connection: Connection, relay: Relay) -> None:
        """Pass the answer on as it comes; the first content settles where the session lives."""
        client = x.client
        out, ended = b"", False
        while not out and not ended:
            data = connection.here() or await connection.read()
            ended = connection.finished
            out = relay.feed(data) if data else b""
        if ended:
            out += relay.finish()
        self._begin(x, decision, connection)
        if client.slow:
            await client.drained()
        client.send(out, more=not ended)
        if not ended:
            await client.drained()
            outflow = Outflow(client, relay)
            try:
                await connection.pour(outflow, client.drained)
            finally:
                outflow.settle()
            await client.body(relay.finish(), more=False)

    def _begin(self, x: InFlight, decision: Decision, connection: Connection) -> None:
        record = x.record
        record.first_byte_s = self._clock() - record.started
        answer = connection.head
        assert answer is not None
        record.status = answer.status
        if answer.status < 400:
            record.moved = self._placement.confirm(x.turn.session, decision)
            self._recognizer.served(x.turn, decision)
        else:
            self._placement.withdraw(x.turn.session, decision)
        x.may_close()
        lines = answer.passed_on(cookies=self._cookies) + self._answers.told(record)
        x.client.start(answer.status, lines, connection.length)

    async def _broke_off(self, x: InFlight, failure: Failure) -> None:
        """The backend died after content: go on elsewhere, else say so in an event stream, or break any other body off.

        Never a false end. A body that the client can read only as a whole is left without its last byte.
        """
        relay = x.relay
        if relay is None:  # a WebSocket, which ends as it does
            return
        why = await self._resumer.go_on(x, failure)
        x.record.usage = relay.usage()
        x.record.resumed = "resumed" if why is None else why
        if why is None:
            if x.listener is not None:
                x.listener.whole()
            await x.client.body(b"", more=False)
        elif relay.event_stream and relay.readable and not x.client.has_length:
            held = relay.flush()
            fresh_line = held if relay.ends_on_blank_line else held + b"\n\n"
            error = errors.broke_off(failure.detail, why)
            x.record.error = error.code
            await x.client.body(fresh_line + error.event(x.route.protocol, relay.next_number), more=False)
