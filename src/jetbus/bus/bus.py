"""The bus: handles the messages of all peers, one after the other.

The frequent services (add, remove, change, set, call) and responses are here, the others in ``services``. The bus has
no socket and no clock of its own: it is given the time of each message (``now``), a ``clock`` that shows when a turn is
over (see ``serving``), and a ``Worker`` that runs blocking work.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from msgspec import UnsetType

from jetbus.bus import binary_services, services
from jetbus.bus.access import ruled
from jetbus.bus.account import ROOM_KEPT, VALUE_ROOM, Book, make_room, measure_element
from jetbus.bus.batches import BatchEnd, receive_batch
from jetbus.bus.builtin import Builtin
from jetbus.bus.changes import Changes
from jetbus.bus.conditions import READY
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
from jetbus.bus.preparations import Preparations
from jetbus.bus.record import record_add, record_remove
from jetbus.bus.routes import Routes
from jetbus.bus.routing import Routing
from jetbus.bus.serving import Serving
from jetbus.bus.session import Session
from jetbus.bus.staleness import Staleness
from jetbus.bus.tree import Element, Tree, TypedElement
from jetbus.bus.usual import make_lane
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
from jetbus.wire.dialects import CLASSIC, LEGACY_POSITIONAL, Dialect
from jetbus.wire.framing import STREAM, Framing
from jetbus.wire.intake import Intake, MessageBatch, Refusal
from jetbus.wire.jsonrpc import Message
from jetbus.wire.lane import LONG_BYTES, SHORT_BYTES
from jetbus.wire.notifications import TAIL_END, TAIL_START

log = logging.getLogger("jetbus.bus")

_CHANGED = CLASSIC.changed
_JSONRPC_2 = jsonrpc.VERSION
CROWD = 50
"""Number of audiences above which an event is slow enough to check the end of the turn."""


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
        self.limit_hits: Counter[str] = Counter()
        self.book = Book(limits or Limits(), self.limit_hits)
        """Accounts of all peers."""
        self.permissions = Permissions(self, users)
        self.worker: Worker = worker or ImmediateWorker()
        self.logins: Logins = UnqueuedLogins(self.worker)
        self.tree = Tree(tree, separators)
        self.fetches = Fetches(self.tree, PatternSteps(self), lambda: self.record)
        self.routes = Routes()
        self.staleness = Staleness()
        self.preparations = Preparations(self)
        self.serving = Serving(clock, lambda: self.limits, self.limit_hits, self.answer_error)
        """Turns of the peers, by a clock that stands still unless the daemon passes one."""
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
        self._connected = 0
        self.changes = Changes(self)
        self.routing = Routing(self)
        self.builtin = Builtin(self)
        self.configure(self.book.limits, timeout_s)
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
        self.intake = Intake(
            depth_max=limits.depth_max,
            number_chars_max=limits.number_chars_max,
            batch_max=limits.batch_max,
            limit_hits=self.limit_hits,
        )
        self.lane = make_lane(self)

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
        if self.record is not None:
            session.missed = self.record.missed
        return session

    def disconnect(self, session: Session) -> None:
        """End the session of a peer: its fetches end, its open requests fail, then its elements are removed."""
        if session.gone:
            return
        self.serving.leave(session)
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
        """Handle messages of a peer in their order. The intake checks each one; behind it nothing is checked again."""
        self.now = now
        self.received += len(messages)
        take, ends_before = self.lane.take, self.serving.ends_before
        texts = iter(messages)
        for text in texts:
            # Short texts are too quick to be worth a look at the clock.
            if session.condition is not READY or (len(text) > SHORT_BYTES and ends_before(session, text)):
                self.hold_back(session, [text, *texts])
                return
            found = take(session, text, now, self.record)
            if found is not None:
                self._handle(session, text, found)

    def receive_stream(
        self, session: Session, data: bytes, now: float, *, bytes_max: int, long_bytes: int = LONG_BYTES
    ) -> int:
        """Handle the frames of a buffer in their order; return where the first one is that is not handled.

        It is not complete, longer than ``bytes_max``, or has to wait. The bus keeps only a long message that waits.
        """
        self.now = now
        serving, serve = self.serving, self.lane.serve
        at = 0
        while session.condition is READY:
            at, handled, text, found = serve(
                session, data, at, serving.turn_ends, now, self.record, bytes_max, long_bytes
            )
            self.received += handled
            if text is None:
                break
            if found is None or found is True:
                self.limit_hits["turn_us_max"] += found is True
                serving.postpone(session, [text])
                break
            self.received += 1
            self._handle(session, text, found)
            if session.fresh:
                session.fresh = False
        return at

    def _handle(self, session: Session, text: bytes, found: Message | Refusal | MessageBatch) -> None:
        """Handle what the intake has made of a text."""
        if not isinstance(found, Message):
            self._receive_unusual(session, text, found)
        elif found.method is None:
            self._on_response(session, found)
        elif not self._receive_request(session, found, text):
            self.hold_back(session, [text])

    def _receive_request(self, session: Session, message: Message, text: bytes) -> bool:
        """Handle a request or notification; return False if it must wait and be received again."""
        service = self._frequent.get(message.method or "")
        # The answers of rare services may be long. A peer that does
        # not read them must not make the daemon store more.
        if service is None and session.outbox.slow and self.serving.stalls(session):
            return False
        request_id = message.id
        if message.is_positional or message.jsonrpc:
            request_id = self._begin_request(session, message)
        try:
            if service is not None:
                result = service(session, message, request_id, text)
            else:
                result = self._serve_rare(session, message, request_id)
                self.serving.end_turn(session)
        except JetError as error:
            self._refuse_message(session, message, text, error)
            return True
        # The request may have shown just now that its peer is of 2012.
        if message.jsonrpc:
            request_id = self._encode_response_id(session, request_id, message.jsonrpc)
        if result is not None and request_id:
            session.answer(request_id, result)
        return True

    def _begin_request(self, session: Session, message: Message) -> bytes:
        """Return the id for the response to a message, which may show the dialect of its peer."""
        if message.is_positional:
            session.dialect = LEGACY_POSITIONAL
        if not message.jsonrpc or not message.id:
            return message.id
        return self._encode_response_id(session, message.id, message.jsonrpc)

    def hold_back(self, session: Session, messages: list[bytes]) -> None:
        """Let messages wait that have been counted; they are counted again when they are handled."""
        self.received -= len(messages)
        self.serving.hold_back(session, messages)

    @staticmethod
    def _encode_response_id(session: Session, request_id: bytes, version: bytes) -> bytes:
        """Return the id for a response, with ``jsonrpc`` for a peer of 2012 that sends it."""
        if version != _JSONRPC_2 or not session.dialect.has_nodes:
            return request_id
        session.speaks_jsonrpc = True
        return jsonrpc.add_version(request_id) if request_id else b""

    def encode_response_id(self, session: Session, request: services.Request) -> bytes:
        """Return the id for the response to a request, once the dialect of its peer is known."""
        return self._encode_response_id(session, request.id, request.jsonrpc)

    def receive_first(self, session: Session, messages: list[bytes], now: float) -> list[bytes]:
        """Handle the first message of a peer alone, since it shows the dialect of all others; return these."""
        if session.dialect.is_binary:
            self.receive_binary(session, messages[:1], now)
        else:
            self.receive(session, messages[:1], now)
        session.fresh = not messages
        return messages[1:]

    def receive_binary(self, session: Session, messages: Sequence[bytes], now: float) -> None:
        """Handle messages of a binary peer."""
        self.now = now
        self.received += len(messages)
        binary_services.receive(self, session, messages)

    def _receive_unusual(self, session: Session, text: bytes, found: Refusal | MessageBatch) -> None:
        """Handle a text that is no message: a batch, or one that is refused."""
        # No text of a peer: the mark behind the members of a batch, see ``batches``.
        if type(text) is BatchEnd:
            self.received -= 1
            text.close()
        elif session.outbox.slow and self.serving.stalls(session):
            self.hold_back(session, [text])
        elif isinstance(found, MessageBatch):
            receive_batch(self, session, text, found.members)
        else:
            self._begin_request(session, found.known)
            self._refuse_message(session, found.known, text, found.error)

    def _serve_rare(self, session: Session, message: Message, request_id: bytes) -> bytes | None:
        method, params, version = message.method or "", message.body, message.jsonrpc
        service = services.RARE.get(method)
        if service is None:
            raise UnknownService(method)
        if params[:1] == b"[" and method != "echo":
            params = legacy.name_params(method, params)
        by_jsonrpc = version == _JSONRPC_2 and not session.dialect.has_nodes
        return service(self, session, services.Request(request_id, params, by_jsonrpc, version))

    # -- errors

    def _refuse_message(self, session: Session, message: Message, text: bytes, error: JetError) -> None:
        """Respond to a message with an error; errors are slow to make, so each is followed by a look at the clock."""
        response_id = self._encode_response_id(session, message.id, message.jsonrpc)
        self._refuse(session, response_id, message.method, text, error)
        self.serving.end_turn(session)

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

    # -- states and methods

    def _add(self, session: Session, message: Message, _request_id: bytes, _text: bytes) -> bytes:
        params = message.params
        if params is None:
            raise MissingParam("params")
        path, value = params.path, params.value
        if isinstance(path, UnsetType):
            raise MissingParam("path")
        element = Element(path, jsonrpc.encode(path), value or None, session, not value)
        if session.dialect is not CLASSIC:
            element.dialect = session.dialect
        if params.has_details:
            set_details(element, params)
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
        # Peers of 2012 may choose either separator, so both count. A path that is short enough need not be looked at.
        deep = limits.path_depth_max
        if len(path) >= deep and path.count("/") + path.count(".") >= deep:
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
        if self.fetches.audiences:
            self.serving.end_turn(element.owner)

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
        if self.fetches.audiences:
            self.serving.end_turn(session)
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
                self.serving.end_turn(element.owner)
        # Plain audiences are too quick to look at the clock after each, but a crowd of them is not.
        if len(element.audiences) > CROWD:
            self.serving.end_turn(element.owner)

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

    def _on_response(self, session: Session, message: Message) -> None:
        route = self.routes.close(session, message.id)
        # Too late, or an id that the daemon never gave. Owners cannot be told: a response has no response.
        if route is None:
            log.debug("%s responded to %s, which is not open", session.label, message.id)
        elif message.unreadable is not None:
            log.warning("%s responded with a number that cannot be forwarded: %s", session.label, message.unreadable)
            self.routing.fail(route, message.unreadable)
        elif message.error:
            self.routing.forward_error(route, message.error)
        else:
            self.routing.forward_result(route, message.result)
