"""The bus: handles the messages of all peers, one after the other.

The frequent services (add, remove, change, set, call) and responses are here, the others in ``services``. The bus has
no socket and no clock of its own: it is given the time of each message (``now``), a ``clock`` that shows when a turn is
over, and a ``Worker`` that runs blocking work.

Turns. No peer may keep the others waiting, whatever it sends. The daemon sets the end of a peer's turn
(``turn_ends``). The bus looks at the clock after everything that can be slow: rare services, batches, long texts,
elements with many audiences. Once the time is up, the session is held: its next messages wait (``session.waiting``)
until the daemon calls ``next_turn``. Work on many elements is a ``task`` of short steps that goes on in later turns.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from msgspec import Raw, UnsetType

from jetbus.bus import binary_services, services
from jetbus.bus.access import ruled
from jetbus.bus.account import ROOM_KEPT, VALUE_ROOM, Book, make_room, measure_element
from jetbus.bus.batches import BatchEnd, receive_batch
from jetbus.bus.builtin import Builtin
from jetbus.bus.changes import Changes
from jetbus.bus.descriptions import (
    METHOD,
    UNDESCRIBED,
)
from jetbus.bus.fetches import Fetches, PatternSteps, finish
from jetbus.bus.limits import Limits
from jetbus.bus.params import require_params, require_path, set_details
from jetbus.bus.permissions import Permissions
from jetbus.bus.ports import (
    EventRecorder,
    History,
    ImmediateWorker,
    Logins,
    Outbox,
    UnqueuedLogins,
    Users,
    Worker,
)
from jetbus.bus.record import record_add, record_remove
from jetbus.bus.routes import Routes
from jetbus.bus.routing import Routing
from jetbus.bus.session import Session
from jetbus.bus.staleness import Staleness
from jetbus.bus.tasks import READ, Room, Step, Work
from jetbus.bus.tree import Element, Tree, TypedElement
from jetbus.errors import (
    Foreign,
    Invalid,
    InvalidRequest,
    JetError,
    LimitReached,
    MissingParam,
    NotFound,
    NotState,
    Occupied,
    OwnerLost,
    ParamError,
    ParseError,
    UnknownService,
)
from jetbus.paths import DAEMON_NODE, SEPARATOR, is_daemons
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import CLASSIC, LEGACY_POSITIONAL, TRUE, Dialect
from jetbus.wire.framing import STREAM, Framing
from jetbus.wire.jsonrpc import (
    ABSENT,
    ID_STARTS,
    NO_META,
    RESULT_BYTES,
    Envelope,
    Message,
    NestedBatch,
    Params,
    decode_message,
    is_compact,
    read_id,
    read_meta_params,
)
from jetbus.wire.notifications import TAIL_END, TAIL_START
from jetbus.wire.numbers import (
    SAFE_BYTES,
    NumberTooLong,
    check_exponents_of,
    check_long_numbers,
    has_big_exponent,
)
from jetbus.wire.screening import SCREENED_BYTES, are_plain

log = logging.getLogger("jetbus.bus")

_EMPTY = Raw(b"{}")
_CHANGED = CLASSIC.changed
_JSONRPC_2 = jsonrpc.VERSION
_CHANGE_BYTES = len('{"method":"change","params":{"path":"","value":}}')
_ADD_BYTES = len('{"method":"add","params":{"path":""}}')
_VALUE_BYTES = len(',"value":')
_ID_BYTES = len('"id":,')
CROWD = 50
"""Number of audiences above which an event is slow enough to check the end of the turn."""
_TRUE_START, _TRUE_END = b'{"id":', b',"result":true}'
"""Beginning and end of the most frequent response of an owner."""


class Bus:
    """States, methods, fetches and routes of all connected peers.

    >>> bus = Bus()
    >>> peer = bus.connect(outbox)                                          # doctest: +SKIP
    >>> bus.receive(peer, [b'{"id":1,"method":"info"}'], now=0.0)           # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        tree: str = "auto",
        separators: str = SEPARATOR,
        limits: Limits | None = None,
        timeout_s: float = 5.0,
        users: Users | None = None,
        worker: Worker | None = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.clock = clock
        """Function that returns the time that ``turn_ends`` is compared with. By default time stands still."""
        self.limit_hits: Counter[str] = Counter()
        self.book = Book(limits or Limits(), self.limit_hits)
        """Accounts of all peers."""
        self.configure(self.book.limits, timeout_s)
        self.permissions = Permissions(self, users)
        self.worker: Worker = worker or ImmediateWorker()
        self.logins: Logins = UnqueuedLogins(self.worker)
        self.tree = Tree(tree, separators)
        self.fetches = Fetches(self.tree, PatternSteps(self))
        self.routes = Routes()
        self.staleness = Staleness()
        self.room = Room(lambda: self.limits.search_bytes_max, lambda: self.limit_hits.update(["search_bytes_max"]))
        """Room for long gets and fetches."""
        self.sessions: dict[int, Session] = {}
        self.record: EventRecorder | None = None
        """Writer of the journal, None without a journal."""
        self.history: History | None = None
        """Journal that answers queries about the past, None without a journal."""
        self.history_worker: Worker = self.worker
        """Threads that read the journal, apart from others because a slow disk may block them."""
        self.received = 0
        """Number of messages handled so far."""
        self.logins_failed = 0
        self.departing = 0
        """Number of peers that are gone and whose elements are not all removed yet."""
        self.run_chore: Callable[[Session, Iterator[None]], None] = lambda _, steps: finish(steps)
        """Runs work of many short steps that a peer leaves behind; the daemon runs it in turns."""
        self.refresh: Callable[[], None] = lambda: None
        """Called before the daemon's own states are read, to bring them up to date."""
        self.now = 0.0
        self.turn_ends = math.inf
        """Instant, by ``clock``, at which the turn of the peer that is served is over."""
        self._awaited_text = b""
        """The first text of this turn that has waited for it, and is handled however short the turn is."""
        self._connected = 0
        self.changes = Changes(self)
        self.routing = Routing(self)
        self.builtin = Builtin(self)
        self._frequent: dict[str, Callable[[Session, Message, bytes, bytes], bytes | None]] = {
            "add": self._add,
            "remove": self._remove,
            "change": self.changes.change,
            "set": self.routing.serve,
            "call": self.routing.serve,
        }

    def configure(self, limits: Limits, timeout_s: float) -> None:
        """Set limits and timeout, which may change while the daemon runs."""
        self.limits = self.book.limits = limits
        self.timeout_s = timeout_s
        self.safe_bytes = min(SAFE_BYTES, limits.number_chars_max)
        """A text up to this length has no number that is too long."""
        self._short_bytes = min(2 * limits.depth_max, self.safe_bytes)
        """A text up to this length cannot be nested too deeply either."""

    @property
    def element_count(self) -> int:
        """Number of states and methods that peers have added."""
        return len(self.tree.elements) - len(self.builtin)

    # -- sessions

    def connect(
        self, outbox: Outbox, framing: Framing = STREAM, dialect: Dialect = CLASSIC, address: str = ""
    ) -> Session:
        """Create the session of a peer that has connected."""
        self._connected += 1
        session = Session(self._connected, outbox, framing, dialect, self.book.open(address))
        self.sessions[session.number] = session
        return session

    def disconnect(self, session: Session) -> None:
        """End the session of a peer: its fetches end, its open requests fail, then its elements are removed."""
        if session.gone:
            return
        session.end()
        del self.sessions[session.number]
        self.departing += 1
        self.run_chore(session, self._depart(session))

    def _depart(self, session: Session) -> Iterator[None]:
        """Remove all that a peer leaves behind, in short steps."""
        yield from self.fetches.leave_all(session)
        for route_id in list(session.routes):
            route = self.routes.close(session, route_id)
            if route is not None:
                self.routing.fail(route, OwnerLost())
                yield
        for element in list(session.elements.values()):
            if session.elements.get(element.path) is element:  # else it was removed for a new owner
                self._remove_left(element)
                yield
        self.departing -= 1
        self.book.close(session.account)

    def _remove_left(self, element: Element) -> None:
        """Remove an element whose owner is gone, and keep its path for the user."""
        # Before it is removed, so that there is no moment at which a path is neither taken nor reserved.
        self.permissions.reserve(element, self.now)
        self.remove_element(element)

    # -- messages

    def receive(self, session: Session, messages: list[bytes], now: float) -> None:
        """Handle messages of a peer in their order.

        This is the hot path. The most frequent messages are handled in this one function, because a call costs more
        than some of the work:

        - A plain response of an owner, ``{"id":...,"result":true}``, is not even decoded. If its id is that of an open
          route, the rest of the text must be right as well.
        - A ``change`` without id and a response with a result take a short cut if nothing is unusual about them. That
          ``meta`` is None says it of the element: it is a state, and its last value had no meta data.
        - ``plain`` texts have passed all checks of encoding, nesting and numbers in one compiled pass.
        - A duplicate key would make a text longer than its parts, or give it more colons. So these are compared, and
          only texts that fail the comparison are searched. The length comes first: colons of long texts are slow to
          count.
        - Raw parts are copied by ``b"" + raw``, which takes half the time of ``bytes(raw)``.

        All other messages go to ``_receive_request`` and ``_receive_unusual``.
        """
        self.now = now
        self.received += len(messages)
        elements, short_bytes = self.tree.elements, self._short_bytes
        record, routes = self.record, session.routes
        plain = are_plain(messages, self.limits.depth_max, self.safe_bytes, SCREENED_BYTES)
        texts = iter(messages)
        for text in texts:
            if session.held:
                self.hold_back(session, [text, *texts])
                return
            # The id between the fixed parts is not parsed: whatever else stands
            # there is not the id of a route, and the text then goes the long way.
            if routes and text[-15:] == _TRUE_END and text[:6] == _TRUE_START:
                route = self.routes.close(session, text[6:-15])
                if route is not None:
                    self.routing.forward_result(route, TRUE)
                    continue
            try:
                # A short ASCII text needs no checks (see ``_short_bytes``)
                # and is too quick to be worth a look at the clock.
                if len(text) > short_bytes or not (plain or text.isascii()):
                    if self.clock() > self.turn_ends and text is not self._awaited_text:
                        self.end_turn(session)
                        self.hold_back(session, [text, *texts])
                        return
                    if not plain:
                        jsonrpc.check_text(text, self.limits.depth_max)
                message = decode_message(text)
            except (JetError, *jsonrpc.UNREADABLE) as problem:
                self._receive_unusual(session, text, problem)
                continue
            method, params = message.method, message.params
            if method == "change" and not message.id and params is not None:
                element, value = elements.get(params.path), params.value  # type: ignore[arg-type]
                if (
                    element is not None
                    and element.owner is session
                    and element.meta is None
                    and value
                    and (len(text) == len(value) + len(element.path) + _CHANGE_BYTES or text.count(b":") == 4)
                ):
                    # The copy is what element, journal and audiences share; the
                    # raw part would keep the whole text alive.
                    fresh = b"" + value
                    # Most values have room where the one before was, so that there is nothing to charge.
                    if not plain or len(fresh) > element.room or element.room > ROOM_KEPT:
                        try:
                            if not plain:
                                self.check_numbers(fresh)
                            self.charge_value(element, len(fresh))
                        except JetError as error:
                            self._refuse(session, b"", method, text, error)
                            continue
                    element.value = fresh
                    if record is not None:
                        note = record.note  # CPython 3.11 calls an attribute that is no method faster by a name
                        note((element.path, fresh, session.label))
                    if element.audiences:
                        self.send_change(element)
                    continue
            elif (
                method is None
                and message.id
                and message.result
                and (len(text) == len(message.id) + len(message.result) + RESULT_BYTES or text.count(b":") == 2)
            ):
                self._on_response(session, message, b"" + message.id, text, plain)
                continue
            if not self._receive_request(session, message, text, plain):
                self.hold_back(session, [text, *texts])
                return

    def _receive_request(self, session: Session, message: Message, text: bytes, plain: bool) -> bool:
        """Handle a decoded message that takes no short cut; return False if it must wait and be received again."""
        method, params = message.method, message.params
        request_id = b""
        try:
            if message.id:
                request_id = b"" + message.id
                if request_id[0] not in ID_STARTS:
                    request_id = read_id(message.id)
                if message.jsonrpc and method is not None:
                    request_id = self._encode_response_id(session, request_id, message.jsonrpc)
            # Cheap proof for the usual request: its keys have one colon
            # each. A colon within a text only makes it inconclusive.
            has_each_key_once = False
            if method and params is not None and params.path and len(text) <= self._short_bytes:
                keys = 4 if params.value or params.args else 3
                has_each_key_once = text.count(b":") == (keys + 1 if request_id else keys)
            if not has_each_key_once and not is_compact(text, message) and jsonrpc.has_doubled_key(text):
                raise InvalidRequest(Raw(text), "a key is given twice")
            if method is None:
                self._on_response(session, message, request_id, text, plain)
                return True
            if not plain:
                self._check_params(text, params)
            service = self._frequent.get(method)
            if service is not None:
                result = service(session, message, request_id, text)
            # The answers of rare services may be long. A peer that does
            # not read them must not make the daemon store more.
            elif session.outbox.slow and self.stalls(session):
                return False
            else:
                result = self._serve_rare(session, method, jsonrpc.decode_envelope(text), request_id)
                if self.clock() > self.turn_ends:
                    self.end_turn(session)
        except JetError as error:
            response_id = self._encode_response_id(session, request_id, message.jsonrpc)
            self._refuse(session, response_id, method, text, error)
            # Errors are slow to make, so each is followed by a look at the clock.
            self.end_turn(session)
            return True
        # The request may have shown just now that its peer is of 2012.
        if message.jsonrpc:
            request_id = self._encode_response_id(session, request_id, message.jsonrpc)
        if result is not None and request_id:
            session.answer(request_id, result)
        return True

    # -- turns

    def end_turn(self, session: Session) -> None:
        """Let the session's next messages wait if the time of its turn is used up."""
        if self.clock() > self.turn_ends and not session.held:
            session.held = session.turn_over = True
            self.limit_hits["turn_us_max"] += 1

    def next_turn(self, session: Session) -> list[bytes]:
        """Go on with the session's task; return the messages that can be handled now."""
        if session.pulls and session.outbox.slow and not session.outbox.closed:
            session.turn_over, session.stalled = False, True
            return []
        session.held = session.turn_over = session.pulls = False
        if session.task is not None:
            self._go_on(session, session.task)
        if session.held:
            # The task has used up this turn as well; the messages behind it keep waiting, in their order.
            return []
        waiting, session.waiting = session.waiting, []
        self._awaited_text = waiting[0] if waiting else b""
        return waiting

    def begin_task(self, session: Session, request_id: bytes, steps: Generator[Step]) -> None:
        """Work in short steps, as far as the turn's time goes, and on in the next turns; later messages wait for it."""
        if session.outbox.closed:
            return  # nobody is left who would read the answer
        session.task = steps
        session.task_id = request_id
        self._go_on(session, steps)

    def _go_on(self, session: Session, steps: Generator[Step]) -> None:
        session.held = True
        try:
            for step in steps:
                if session.outbox.closed:
                    break  # nobody is left who would read the rest
                if isinstance(step, Work):
                    step.run(partial(self._go_on_after_work, session, steps))
                    if not step.is_done:
                        return
                    session.turn_over = False
                elif self.clock() > self.turn_ends or (step is READ and not math.isinf(self.turn_ends)):
                    # The generator keeps its place: the next turn resumes it here.
                    session.turn_over, session.pulls = True, step is READ
                    self.limit_hits["turn_us_max"] += step is not READ
                    return
        except JetError as error:
            if session.task_id and not session.closed:
                self.answer_error(session, session.task_id, error)
        steps.close()
        if not session.closed:
            # A session that was closed meanwhile has been cleared already, and stays held for good.
            session.task, session.held = None, False

    @staticmethod
    def _go_on_after_work(session: Session, steps: Generator[Step]) -> None:
        """Go on with a task in the next turn of its peer, or close it if the peer is gone."""
        if session.task is steps:
            session.turn_over = True
            session.released()
        else:
            steps.close()

    def stalls(self, session: Session) -> bool:
        """Hold a session that asks for more while it leaves too much unread."""
        if session.outbox.unread_bytes <= self.limits.unread_bytes_max:
            return False
        session.held = session.stalled = True
        self.limit_hits["unread_bytes_max"] += 1
        return True

    def hold_back(self, session: Session, messages: list[bytes]) -> None:
        """Let messages wait until their session is no longer held; those of a closed one are dropped."""
        # They are counted again when they are handled.
        self.received -= len(messages)
        if not session.closed:
            session.waiting += messages

    @staticmethod
    def _encode_response_id(session: Session, request_id: bytes, version: Raw) -> bytes:
        """Return the id for a response, with ``jsonrpc`` for a peer of 2012 that sends it."""
        if version != _JSONRPC_2 or not session.dialect.has_nodes:
            return request_id
        session.speaks_jsonrpc = True
        return jsonrpc.add_version(request_id) if request_id else b""

    def encode_response_id(self, session: Session, request: services.Request) -> bytes:
        """Return the id for the response to a request, once the dialect of its peer is known."""
        return self._encode_response_id(session, request.id, request.jsonrpc)

    def receive_binary(self, session: Session, messages: Sequence[bytes], now: float) -> None:
        """Handle messages of a binary peer."""
        self.now = now
        self.received += len(messages)
        binary_services.receive(self, session, messages)

    def _receive_unusual(self, session: Session, text: bytes, problem: Exception) -> None:
        """Handle a text that ``decode_message`` refuses: a batch, a request of 2012, bad parameters or invalid JSON."""
        request_id, method, version = b"", None, ABSENT
        # No text of a peer: the mark behind the members of a batch, see ``batches``.
        if type(text) is BatchEnd:
            self.received -= 1
            text.close()
            return
        if session.outbox.slow and self.stalls(session):
            self.hold_back(session, [text])
            return
        if isinstance(problem, JetError):
            if isinstance(problem, jsonrpc.TooDeep):
                self.limit_hits["depth_max"] += 1
            # Not raised again: an error whose traceback has a frame that refers to it would keep the text alive.
            self._refuse(session, b"", None, text, problem)
            self.end_turn(session)
            return
        try:
            if type(text) is NestedBatch:
                raise InvalidRequest(Raw(text), "a batch inside a batch")
            if text.lstrip()[:1] == b"[":
                receive_batch(self, session, text)
                return
            envelope = jsonrpc.diagnose(text)
            version = envelope.jsonrpc
            request_id = jsonrpc.read_id(envelope.id)
            self._check_long_numbers(text)
            method = jsonrpc.read_method(envelope.method)
            if jsonrpc.has_doubled_key(text):
                raise InvalidRequest(Raw(text), "a key is given twice")
            if method not in self._frequent and method not in services.RARE:
                raise UnknownService(method)
            # Only the dialect of 2012 has parameters by position.
            if bytes(envelope.params)[:1] == b"[" and method != "echo":
                envelope.params = legacy.name_params(method, envelope.params)
                if method in legacy.POSITIONS:
                    session.dialect = LEGACY_POSITIONAL
            request_id = self._encode_response_id(session, request_id, version)
            service = self._frequent.get(method)
            if service is not None:
                params = jsonrpc.read_params(envelope.params)
                self._check_params(text, params)
                message = Message(method=method, params=params, jsonrpc=envelope.jsonrpc)
                answer = service(session, message, request_id, text)
            else:
                answer = self._serve_rare(session, method, envelope, request_id)
        except JetError as error:
            self._refuse(session, self._encode_response_id(session, request_id, version), method, text, error)
            self.end_turn(session)
            return
        if answer is not None and request_id:
            session.answer(self._encode_response_id(session, request_id, version), answer)
        self.end_turn(session)

    def _serve_rare(self, session: Session, method: str, envelope: Envelope, request_id: bytes) -> bytes | None:
        service = services.RARE.get(method)
        if service is None:
            raise UnknownService(method)
        check_exponents_of(envelope.params)
        version = envelope.jsonrpc
        by_jsonrpc = version == _JSONRPC_2 and not session.dialect.has_nodes
        return service(self, session, services.Request(request_id, envelope.params, by_jsonrpc, version))

    # -- blocking services: the next messages of the session wait for the response

    def release(self, session: Session, request_id: bytes, outcome: bytes | JetError) -> None:
        """Respond to the request that held the session and handle the messages that have arrived since."""
        if session.closed:
            return
        session.held = False
        if request_id and isinstance(outcome, JetError):
            self.answer_error(session, request_id, outcome)
        elif request_id and isinstance(outcome, bytes):
            session.send(session.dialect.encode_result(request_id, outcome))
        session.released()

    def fetch_in_turn(self, session: Session, then: Callable[[], None]) -> None:
        """Begin a fetch when it is the session's turn; its next messages wait for that."""
        if session.on_put_off is None:
            then()
        else:
            session.held, session.put_off = True, then
            session.on_put_off()

    @staticmethod
    def begin_put_off(session: Session) -> None:
        """Begin the fetch that has been put off, if there is one."""
        then = session.put_off
        if then is not None:
            session.put_off = None
            session.held = False
            then()
            session.released()

    def release_later(self, session: Session, delay_s: float, request_id: bytes, error: JetError) -> None:
        """Refuse the request that held the session after a delay."""
        self.worker.later(delay_s, lambda: self.release(session, request_id, error))

    # -- errors

    def _refuse(self, session: Session, request_id: bytes, method: str | None, text: bytes, error: JetError) -> None:
        """Respond with an error; a notification gets none, unless it could not be recognized as one."""
        # JSON-RPC forbids answers to notifications. A text without a readable method may have been a request.
        if not request_id and method is not None and not isinstance(error, InvalidRequest):
            return
        if isinstance(error, jsonrpc.BadId):
            request_id = b"null"
        elif isinstance(error, jsonrpc.LoneSurrogate):
            request_id = error.request_id
        elif session.fresh and isinstance(error, ParseError) and text.lstrip()[:1] in jsonrpc.MESSAGE_STARTS:
            # Its dialect is not known yet. It began a message of JSON-RPC, which wants this id.
            request_id = b"null"
        if isinstance(error, ParamError):
            error.got(jsonrpc.read_got(text, error))
        self.answer_error(session, request_id, error)

    def answer_error(self, session: Session, request_id: bytes, error: JetError) -> None:
        """Send an error in the dialect of the session."""
        fields = error.wire()
        keys = session.dialect.error_keys
        if session.dialect.has_nodes and request_id in (b"", b"null"):
            request_id = jsonrpc.add_version(b"null") if session.speaks_jsonrpc else b"null"
        if keys and isinstance(error.data, dict):
            fields["data"] = {keys.get(key, key): value for key, value in error.data.items()}
        session.send(session.dialect.encode_failure(request_id, fields))

    def limit_reached(self, name: str, what: str) -> LimitReached:
        """Count a crossed limit and return its error."""
        self.limit_hits[name] += 1
        return LimitReached(name, getattr(self.limits, name), what)

    def _check_long_numbers(self, text: bytes) -> None:
        try:
            check_long_numbers(text, self.limits.number_chars_max)
        except NumberTooLong:
            self.limit_hits["number_chars_max"] += 1
            raise

    def check_numbers(self, value: bytes) -> None:
        """Raise if a JSON value has a number that the peers it is forwarded to could not read."""
        if len(value) > self.safe_bytes:
            self._check_long_numbers(value)
        check_exponents_of(value)

    def _check_params(self, text: bytes, params: Params | None) -> None:
        """Refuse a request if it has a number that others could not read in what is passed on to them."""
        if len(text) > self.safe_bytes:
            self._check_long_numbers(text)
        if params is not None and has_big_exponent(text):
            for raw in (params.value, params.args, params.timeout, params.element, params.schema):
                if raw:
                    check_exponents_of(raw)

    # -- states and methods

    def _add(self, session: Session, message: Message, _request_id: bytes, text: bytes) -> bytes:
        params = message.params
        if params is None:
            raise MissingParam("params")
        path, value = params.path, params.value
        if isinstance(path, UnsetType):
            raise MissingParam("path")
        element = Element(path, jsonrpc.encode(path), b"" + value if value else None, session, not value)
        if session.dialect is not CLASSIC:
            element.dialect = session.dialect
        # The length of most texts proves that nothing else is said, which saves looking for it. Only parts that were
        # read count: a key that is missing would leave room for one that is not read.
        size = _ADD_BYTES + len(path)
        if value:
            size += _VALUE_BYTES + len(value)
        if message.id:
            size += _ID_BYTES + len(message.id)
        if len(text) != size:
            meta = read_meta_params(text)
            if (
                params.element
                or params.fetchOnly
                or params.access
                or params.timeout
                or params.schema
                or meta is not NO_META
            ):
                set_details(element, params, meta)
                self.changes.check_described(element)
        self.add_element(element)
        return session.dialect.done

    def add_element(self, element: Element) -> None:
        """Add an element of a peer; raise if that is not allowed."""
        path, limits = element.path, self.limits
        if not path:
            raise Invalid("path", "a path has at least one character")
        if len(path) > limits.path_chars_max:
            raise self.limit_reached("path_chars_max", "the path is too long")
        # Peers of 2012 may choose either separator, so both count.
        if path.count("/") + path.count(".") >= limits.path_depth_max:
            raise self.limit_reached("path_depth_max", "the path has too many segments")
        # The first comparison is cheap and too strict by the daemon's own elements; only then these are subtracted.
        most = limits.elements_max
        if len(self.tree.elements) >= most and self.element_count >= most:
            raise self.limit_reached("elements_max", "too many states and methods")
        # Below ``$jet`` every path counts as taken, whether or not the daemon has an element there.
        if path[:1] == DAEMON_NODE[0] and is_daemons(path, self.tree.separators):
            raise Occupied(path)
        if self.departing:
            # The owner is gone, and is perhaps back with a new connection.
            left = self.tree.elements.get(path)
            if left is not None and left.owner.gone:
                self._remove_left(left)
        permissions = self.permissions
        if permissions.rules is not None:
            permissions.check_add(element, self.now)
        value = element.body if isinstance(element, TypedElement) else element.value
        if value is not None and len(value) > VALUE_ROOM:
            element.room = make_room(len(value))
        account, kept_bytes = element.owner.account, measure_element(element)
        account.charge(kept_bytes)
        try:
            self.insert_element(element)
        except JetError:
            account.note(-kept_bytes)
            raise
        # The user is back; whoever comes next has no reservation to respect.
        if permissions.rules is not None:  # only rules reserve paths
            permissions.reservations.end(path)
        if self.fetches.audiences and self.clock() > self.turn_ends:
            self.end_turn(element.owner)

    def insert_element(self, element: Element) -> None:
        """Insert a new element, record it and announce it."""
        if self.permissions.rules is not None:
            element.access = ruled(element.access, element.path, self.permissions.rules)
        if element.is_method:
            element.meta = METHOD
        self.tree.add(element)
        element.owner.elements[element.path] = element
        if element.description is not UNDESCRIBED:
            self.staleness.begin(element, self.now)
        if self.record is not None and not self.builtin.owns(element):
            record_add(self.record, element)
        self.fetches.on_add(element)

    def _remove(self, session: Session, message: Message, _request_id: bytes, _text: bytes) -> bytes:
        self.remove_element(self.require_owned(session, require_path(require_params(message))))
        if self.fetches.audiences and self.clock() > self.turn_ends:
            self.end_turn(session)
        return session.dialect.done

    def remove_element(self, element: Element) -> None:
        """Remove an element, record that and announce it."""
        self.tree.remove(element)
        del element.owner.elements[element.path]
        element.owner.account.note(-measure_element(element))
        if element.description.stale_s:
            self.staleness.end(element)
        if self.record is not None and not self.builtin.owns(element):
            record_remove(self.record, element)
        self.fetches.on_remove(element)

    @staticmethod
    def charge_value(element: Element, size: int) -> None:
        """Charge the owner for a value of another length; raise if it may not keep that much."""
        room = element.room
        if size > room or (room > ROOM_KEPT and size < room // 4):
            element.owner.account.charge(make_room(size) - room)
            element.room = make_room(size)

    def mark_stale(self, now: float) -> None:
        """Mark the states that have not changed for too long, and tell those who asked for meta data."""
        self.now = now
        for element in self.staleness.mark_due(now):
            for audience in element.audiences:
                if audience.wants_meta:
                    audience.on_stale(element)

    def send_change(self, element: Element) -> None:
        """Announce the new value of a state."""
        tail = b""
        for audience in element.audiences:
            # One tail serves all classic fetches, because without access the event looks the same to every user.
            if audience.is_plain and element.access is None:
                if not tail:
                    tail = b"".join((TAIL_START, element.path_json, _CHANGED, element.value or b"", TAIL_END))
                audience.send("change", element.path, tail)
            else:
                audience.on_change(element)
                if self.clock() > self.turn_ends:
                    self.end_turn(element.owner)
        # Plain audiences are too quick to look at the clock after each, but a crowd of them is not.
        if len(element.audiences) > CROWD:
            self.end_turn(element.owner)

    def require_owned(self, session: Session, path: str) -> Element:
        """Return an element of the session; raise if it belongs to another one or does not exist."""
        element = self.tree.elements.get(path)
        # The same error for hidden and missing elements: an error must not reveal that something is there.
        if element is None or (element.owner is not session and not element.shown_to(session.auth)):
            raise NotFound(path)
        if element.owner is not session:
            raise Foreign(path)
        return element

    def require_owned_state(self, session: Session, path: str) -> Element:
        """Return a state of the session; raise if there is none."""
        element = self.require_owned(session, path)
        if element.is_method:
            raise NotState(path)
        return element

    def _on_response(self, session: Session, message: Message, response_id: bytes, text: bytes, plain: bool) -> None:
        if not message.result and not message.error:
            raise InvalidRequest(Raw(text))
        route = self.routes.close(session, response_id)
        # Too late, or an id that the daemon never gave. Owners cannot be told: a response has no response.
        if route is None:
            log.debug("%s responded to %s, which is not open", session.label, response_id)
            return
        if not plain:
            try:
                # The requester waits, so it gets an error in place of a response that it could not read.
                self.check_numbers(b"" + (message.error or message.result))
            except JetError as error:
                log.warning("%s responded with a number that cannot be forwarded: %s", session.label, error)
                self.routing.fail(route, error)
                return
        if message.error:
            self.routing.forward_error(route, message.error)
        else:
            self.routing.forward_result(route, message.result)
