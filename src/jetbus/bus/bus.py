"""The bus itself: takes in what peers send, one message after the other, and lets tree, fetches and routes do their
part.

One message's way: bytes, a decoded message, a service, the element, its audiences, their outboxes. Forward only. The
busy services (add, remove, change, set, call) and responses are here, the others in ``services``. The bus owns no
clock and no socket: ``receive`` is told the time, and a ``Worker`` runs what would block.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Raw, UnsetType

from jetbus.bus import frames, services
from jetbus.bus.audience import Outbox
from jetbus.bus.batches import Batches, awaited_ids
from jetbus.bus.fetches import Fetches
from jetbus.bus.given import add_details, given, path_of, read_timeout
from jetbus.bus.limits import Limits
from jetbus.bus.outside import AtOnce, Users, Worker
from jetbus.bus.own import Own
from jetbus.bus.past import Past
from jetbus.bus.record import Record, tell_add, tell_asked, tell_remove
from jetbus.bus.routes import Route, Routes
from jetbus.bus.session import Session
from jetbus.bus.tree import Element, Tree
from jetbus.errors import (
    Foreign,
    Invalid,
    InvalidRequest,
    JetError,
    LimitReached,
    MissingParam,
    NotAllowed,
    NotFound,
    NotMethod,
    NotState,
    Occupied,
    OwnerLost,
    ParamError,
    ReadOnly,
    TimedOut,
    UnknownService,
)
from jetbus.paths import DAEMON_NODE, SEPARATOR, is_daemons
from jetbus.wire import jsonrpc, legacy
from jetbus.wire.dialects import CLASSIC, LEGACY, LEGACY_POSITIONAL, TRUE, Dialect
from jetbus.wire.framing import STREAM, Framing
from jetbus.wire.jsonrpc import (
    ABSENT,
    ID_STARTS,
    RESULT_BYTES,
    Envelope,
    Message,
    Params,
    decode_message,
    is_compact,
    read_id,
)
from jetbus.wire.numbers import (
    SAFE_BYTES,
    NumberTooLong,
    check_exponents_of,
    check_long_numbers,
    has_big_exponent,
    has_long_run,
)

log = logging.getLogger("jetbus.bus")

_EMPTY = Raw(b"{}")
_CHANGED = CLASSIC.changed
_JSONRPC_2 = jsonrpc.VERSION
_CHANGE_BYTES = len('{"method":"change","params":{"path":"","value":}}')
_ANSWERED, _TRUE = b'{"id":', b',"result":true}'
"""How an owner's usual answer begins and ends."""


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
    ) -> None:
        self.configure(limits or Limits(), timeout_s)
        self.users = users
        self.worker: Worker = worker or AtOnce()
        self.tree = Tree(tree, separators)
        self.fetches = Fetches(self.tree)
        self.routes = Routes()
        self.sessions: dict[int, Session] = {}
        self.record: Record | None = None
        """Who is told of all that happens, for the record."""
        self.past: Past | None = None
        """Who can tell what was."""
        self.past_worker: Worker = self.worker
        """Threads that read the past. A disk may keep them waiting, and nothing else should have to wait for it."""
        self.limit_hits: Counter[str] = Counter()
        self.received = 0
        """Messages taken in so far."""
        self.logins_failed = 0
        self.refresh: Callable[[], None] = lambda: None
        """Called before the daemon's own states are read, to bring them up to date."""
        self.now = 0.0
        self._connected = 0
        self.own = Own(self)
        self._busy: dict[str, Callable[[Session, Message, bytes, bytes], bytes | None]] = {
            "add": self._add,
            "remove": self._remove,
            "change": self._change,
            "set": self._route,
            "call": self._route,
        }

    def configure(self, limits: Limits, timeout_s: float) -> None:
        """Set what may change while running."""
        self.limits = limits
        self.timeout_s = timeout_s
        self.safe_bytes = min(SAFE_BYTES, limits.number_chars_max)
        """A text up to this length has no number that is too long."""
        self._short_bytes = min(2 * limits.depth_max, self.safe_bytes)
        """A text up to this length cannot be nested too deeply either."""

    @property
    def element_count(self) -> int:
        """How many states and methods the peers have added."""
        return len(self.tree.elements) - len(self.own)

    # -- peers come and go

    def connect(self, outbox: Outbox, framing: Framing = STREAM, dialect: Dialect = CLASSIC) -> Session:
        """A peer has connected."""
        self._connected += 1
        session = Session(self._connected, outbox, framing, dialect)
        self.sessions[session.number] = session
        return session

    def disconnect(self, session: Session) -> None:
        """A peer is gone: it is told nothing more, those who wait for it are told so, then what it owned is removed."""
        if session.gone:
            return
        session.gone, session.put_off = True, None
        del self.sessions[session.number]
        for fetch_id in list(session.fetches):
            self.fetches.leave(session, fetch_id)
        for route_id in list(session.routes):
            route = self.routes.close(session, route_id)
            if route is not None:
                self._fail(route, OwnerLost())
        for element in list(session.elements.values()):
            self.take_out(element)

    # -- messages

    def receive(self, session: Session, messages: Sequence[bytes], now: float) -> None:
        """Messages from a peer, in the order they came."""
        self.now = now
        self.received += len(messages)
        elements, short_bytes, busy = self.tree.elements, self._short_bytes, self._busy
        safe_bytes = self.safe_bytes
        record, routes = self.record, session.routes
        for text in messages:
            if session.held:
                session.waiting.append(text)
                continue
            if routes and text[-15:] == _TRUE and text[:6] == _ANSWERED:
                # Most of what owners say. An id that is known tells that all of the text is as it should be.
                route = self.routes.close(session, text[6:-15])
                if route is not None:
                    self._answer(route, TRUE)
                    continue
            try:
                if len(text) > short_bytes or not text.isascii():
                    jsonrpc.check_text(text, self.limits.depth_max)
                message = decode_message(text)
            except (JetError, *jsonrpc.UNREADABLE) as problem:
                self._receive_unusual(session, text, problem)
                continue
            method, params = message.method, message.params
            # The two most frequent messages take a short cut when all is as it should be. A text that is no longer, or
            # has no more colons, than what was read of it has no key twice; colons of long texts take long to count.
            # What is raw is copied by adding it to nothing, which takes half the time of a call of bytes.
            if method == "change" and not message.id and params is not None:
                element, value = elements.get(params.path), params.value  # type: ignore[arg-type]
                if (
                    element is not None
                    and element.owner is session
                    and not element.is_method
                    and value
                    and (len(text) == len(value) + len(element.path) + _CHANGE_BYTES or text.count(b":") == 4)
                ):
                    fresh = b"" + value
                    # An e or E that is not only in a text may be an exponent.
                    if ((101 in fresh or 69 in fresh) and fresh[0] not in b'"tfn' and has_big_exponent(fresh)) or (
                        len(text) > short_bytes and has_long_run(fresh, safe_bytes)
                    ):
                        try:
                            self.check_numbers(fresh)
                        except JetError as error:
                            self._refuse(session, b"", method, text, error)
                            continue
                    element.value = fresh
                    if record is not None:
                        note = record.note  # by itself: CPython 3.11 is slow to call what is an attribute, not a method
                        note((element.path, fresh, session.label))
                    if element.audiences:
                        self._tell_change(element)
                    continue
            elif (
                method is None
                and message.id
                and message.result
                and (len(text) == len(message.id) + len(message.result) + RESULT_BYTES or text.count(b":") == 2)
            ):
                self._on_response(session, message, b"" + message.id, text)
                continue
            request_id = b""
            try:
                if message.id:
                    request_id = b"" + message.id
                    if request_id[0] not in ID_STARTS:
                        request_id = read_id(message.id)
                    if message.jsonrpc and method is not None:
                        request_id = self._echo(session, request_id, message.jsonrpc)
                each_once = False
                if request_id and method and params is not None and params.path and len(text) <= short_bytes:
                    each_once = text.count(b":") == (5 if params.value or params.args else 4)
                if not each_once and not is_compact(text, message) and jsonrpc.has_doubled_key(text):
                    raise InvalidRequest(Raw(text), "a key is given twice")
                if method is None:
                    self._on_response(session, message, request_id, text)
                    continue
                if len(text) > short_bytes and has_long_run(text, safe_bytes):
                    self._check_long_numbers(text)
                service = busy.get(method)
                if service is not None:
                    answer = service(session, message, request_id, text)
                else:
                    answer = self._serve_rare(session, method, jsonrpc.decode_envelope(text), request_id)
            except JetError as error:
                self._refuse(session, self._echo(session, request_id, message.jsonrpc), method, text, error)
                continue
            if answer is not None and request_id:
                # A request that has just shown its peer to be of 2012 is answered so, too.
                session.answer(
                    self._echo(session, request_id, message.jsonrpc) if message.jsonrpc else request_id, answer
                )

    @staticmethod
    def _echo(session: Session, request_id: bytes, version: Raw) -> bytes:
        """The id as it is answered: a peer of 2012 that says ``jsonrpc`` is answered with it."""
        if not request_id or version != _JSONRPC_2 or not session.dialect.tells_nodes:
            return request_id
        session.speaks_jsonrpc = True
        return jsonrpc.with_version(request_id)

    def echoed(self, session: Session, request: services.Request) -> bytes:
        """The id of a request as it is answered, once the dialect of its peer is known."""
        return self._echo(session, request.id, request.jsonrpc)

    def receive_binary(self, session: Session, messages: Sequence[bytes], now: float) -> None:
        """Messages from a peer that speaks binary."""
        self.now = now
        self.received += len(messages)
        frames.receive(self, session, messages)

    def _receive_unusual(self, session: Session, text: bytes, problem: Exception) -> None:
        """A text that is no plain message: a batch, a form of 2012, parameters of the wrong type, or no JSON at all."""
        request_id, method, version = b"", None, ABSENT
        try:
            if isinstance(problem, jsonrpc.TooDeep):
                self.limit_hits["depth_max"] += 1
            if isinstance(problem, JetError):
                raise problem
            if text.lstrip()[:1] == b"[":
                self._receive_batch(session, text)
                return
            envelope = jsonrpc.diagnose(text)
            version = envelope.jsonrpc
            request_id = jsonrpc.read_id(envelope.id)
            self._check_long_numbers(text)
            method = jsonrpc.read_method(envelope.method)
            if jsonrpc.has_doubled_key(text):
                raise InvalidRequest(Raw(text), "a key is given twice")
            if method not in self._busy and method not in services.RARE:
                raise UnknownService(method)
            if bytes(envelope.params)[:1] == b"[" and method != "echo":
                envelope.params = legacy.name_params(method, envelope.params)
                if method in legacy.POSITIONS:
                    session.dialect = LEGACY_POSITIONAL
            request_id = self._echo(session, request_id, version)
            service = self._busy.get(method)
            if service is not None:
                params = jsonrpc.read_params(envelope.params)
                message = Message(method=method, params=params, jsonrpc=envelope.jsonrpc)
                answer = service(session, message, request_id, text)
            else:
                answer = self._serve_rare(session, method, envelope, request_id)
        except JetError as error:
            self._refuse(session, self._echo(session, request_id, version), method, text, error)
            return
        if answer is not None and request_id:
            session.answer(self._echo(session, request_id, version), answer)

    def _receive_batch(self, session: Session, text: bytes) -> None:
        members = jsonrpc.read_batch(text)
        if len(members) > self.limits.batch_max:
            raise self.limit_reached("batch_max", "too many messages in a batch")
        if not members:
            raise InvalidRequest([], "an empty batch")
        # A peer that owns or fetches something has shown its dialect before.
        is_new = not session.elements and not session.fetches
        if session.dialect.tells_nodes or (is_new and legacy.may_be_legacy(text) and _has_legacy(members)):
            limit = self.limits.batch_bytes_max
            batches = session.batches or Batches(session, limit, lambda: self.limit_hits.update(["batch_bytes_max"]))
            batches.handle(awaited_ids(members), lambda: self._receive_members(session, text, members))
        else:
            self._receive_members(session, text, members)

    def _receive_members(self, session: Session, text: bytes, members: list[bytes]) -> None:
        if text.find(b"[") == text.rfind(b"[") or not any(member.startswith(b"[") for member in members):
            self.receive(session, members, self.now)
            return
        for member in members:
            if member.startswith(b"["):
                self.answer_error(session, b"", InvalidRequest(Raw(member), "a batch inside a batch"))
            else:
                self.receive(session, (member,), self.now)

    def _serve_rare(self, session: Session, method: str, envelope: Envelope, request_id: bytes) -> bytes | None:
        service = services.RARE.get(method)
        if service is None:
            raise UnknownService(method)
        check_exponents_of(envelope.params)
        version = envelope.jsonrpc
        by_jsonrpc = version == _JSONRPC_2 and not session.dialect.tells_nodes
        return service(self, session, services.Request(request_id, envelope.params, by_jsonrpc, version))

    # -- services that would block: the session's next messages wait for the answer

    def hold(
        self, session: Session, work: Callable[[], Any], done: Callable[[Any], None], worker: Worker | None = None
    ) -> None:
        """Run ``work`` aside; ``done`` must release the session."""
        session.held = True
        (worker or self.worker).run(work, done)

    def release(self, session: Session, request_id: bytes, outcome: bytes | JetError) -> None:
        """Answer the request that held the session; what has arrived meanwhile may be taken in now."""
        session.held = False
        if session.gone:
            return
        if request_id and isinstance(outcome, JetError):
            self.answer_error(session, request_id, outcome)
        elif request_id and isinstance(outcome, bytes):
            session.send(session.dialect.result(request_id, outcome))
        session.released()

    def fetch_in_turn(self, session: Session, then: Callable[[], None]) -> None:
        """Begin a fetch when it is the session's turn; its next messages wait for that."""

        def resume() -> None:
            if session.put_off is resume:
                session.put_off = None
                session.held = False
                then()
                session.released()

        session.held, session.put_off = True, resume
        self.worker.in_turn(resume)

    def release_later(self, session: Session, delay_s: float, request_id: bytes, error: JetError) -> None:
        """Refuse the request that held the session, but not at once."""
        self.worker.later(delay_s, lambda: self.release(session, request_id, error))

    # -- errors

    def _refuse(self, session: Session, request_id: bytes, method: str | None, text: bytes, error: JetError) -> None:
        """Answer with an error; a notification gets none, unless it could not even be told that it is one."""
        if not request_id and method is not None and not isinstance(error, InvalidRequest):
            return
        if isinstance(error, jsonrpc.BadId):
            request_id = b"null"
        elif isinstance(error, jsonrpc.LoneSurrogate):
            request_id = error.request_id
        if isinstance(error, ParamError):
            error.got(jsonrpc.got_of(text, error))
        self.answer_error(session, request_id, error)

    def answer_error(self, session: Session, request_id: bytes, error: JetError) -> None:
        """Send an error in the words of the session's dialect."""
        told = error.wire()
        keys = session.dialect.error_keys
        if session.dialect.tells_nodes and request_id in (b"", b"null"):
            request_id = jsonrpc.with_version(b"null") if session.speaks_jsonrpc else b"null"
        if keys and isinstance(error.data, dict):
            told["data"] = {keys.get(key, key): value for key, value in error.data.items()}
        session.send(session.dialect.failure(request_id, told))

    def limit_reached(self, name: str, what: str) -> LimitReached:
        """The error for a limit that is crossed; it is counted."""
        self.limit_hits[name] += 1
        return LimitReached(name, getattr(self.limits, name), what)

    def _check_long_numbers(self, text: bytes) -> None:
        try:
            check_long_numbers(text, self.limits.number_chars_max)
        except NumberTooLong:
            self.limit_hits["number_chars_max"] += 1
            raise

    def check_numbers(self, value: bytes) -> None:
        """Refuse a JSON value that is passed on to others if it has a number that they could not read."""
        if len(value) > self.safe_bytes:
            self._check_long_numbers(value)
        check_exponents_of(value)

    # -- states and methods

    def _add(self, session: Session, message: Message, _request_id: bytes, _text: bytes) -> bytes:
        params = message.params
        if params is None:
            raise MissingParam("params")
        path, value = params.path, params.value
        if isinstance(path, UnsetType):
            raise MissingParam("path")
        check_exponents_of(params.element or value)
        element = Element(path, jsonrpc.encode(path), b"" + value if value else None, session, not value)
        if session.dialect is not CLASSIC:
            element.dialect = session.dialect
        if params.element or params.fetchOnly or params.access or params.timeout or params.schema:
            check_exponents_of(params.schema)
            add_details(element, params)
        self.hang_in(element)
        return session.dialect.done

    def hang_in(self, element: Element) -> None:
        """A peer adds an element, if it may."""
        path, limits = element.path, self.limits
        if len(path) > limits.path_chars_max:
            raise self.limit_reached("path_chars_max", "the path is too long")
        most = limits.elements_max
        if len(self.tree.elements) >= most and self.element_count >= most:
            raise self.limit_reached("elements_max", "too many states and methods")
        if len(element.others) > limits.members_max:
            raise self.limit_reached("members_max", "too many members describe the element")
        if path[:1] == DAEMON_NODE[0] and is_daemons(path, self.tree.separators):
            raise Occupied(path)
        self.put_in(element)

    def put_in(self, element: Element) -> None:
        """There is a new element."""
        self.tree.add(element)
        element.owner.elements[element.path] = element
        if self.record is not None and not self.own.has(element):
            tell_add(self.record, element)
        self.fetches.on_add(element)

    def _remove(self, session: Session, message: Message, _request_id: bytes, _text: bytes) -> bytes:
        self.take_out(self.owned(session, path_of(given(message))))
        return session.dialect.done

    def take_out(self, element: Element) -> None:
        """An element is gone."""
        self.tree.remove(element)
        del element.owner.elements[element.path]
        if self.record is not None and not self.own.has(element):
            tell_remove(self.record, element)
        self.fetches.on_remove(element)

    def _change(self, session: Session, message: Message, _request_id: bytes, _text: bytes) -> bytes:
        params = given(message)
        path = path_of(params)
        if not (params.value or params.element or params.schema):
            raise MissingParam("value")
        check_exponents_of(params.value)
        if params.element or params.schema:
            check_exponents_of(params.element)
            check_exponents_of(params.schema)
        element = self.owned(session, path)
        if params.value and not element.is_method:
            self.publish(element, bytes(params.value))
        elif params.value and not session.dialect.tells_nodes:
            raise NotState(path)
        else:
            self.post(session, self._description(session, path, params))
        return session.dialect.done

    @staticmethod
    def _description(session: Session, path: str, params: Params) -> legacy.Post:
        """Return the change of an element that is not a change of its value."""
        if params.schema and not session.dialect.tells_nodes:
            return legacy.describe(path, bytes(params.schema))
        if params.element and session.dialect is CLASSIC:
            session.dialect = LEGACY
        if params.element or params.value:  # of a method only the element can change
            return legacy.Post(path, params.element or params.value, "element")
        return legacy.Post(path, Raw(b'{"schema":' + params.schema + b"}"), "params")

    def post(self, session: Session, post: legacy.Post) -> None:
        """Change any members of an element."""
        element = self.owned(session, post.path)
        if post.value and element.is_method:
            raise NotState(post.path)
        if post.type is not None and (post.type == "method") is not element.is_method:
            raise Invalid("type", f"{post.path} keeps its type; remove it and add another element")
        others = {**element.others, **post.others}
        if len(others) > self.limits.members_max:
            raise self.limit_reached("members_max", "too many members describe the element")
        if post.schema is not None:
            element.schema = post.schema
        if post.others:
            element.others = others
        if post.value:
            element.value = bytes(post.value)
            if self.record is not None:
                self.record.note((element.path, element.value, session.label))
        for audience in element.audiences:
            if audience.dialect.tells_schema and post.describes:
                audience.on_described(element, post.data)
            elif post.value:
                audience.on_change(element)

    def publish(self, element: Element, value: bytes) -> None:
        """A state has a new value."""
        element.value = value
        if self.record is not None and not self.own.has(element):
            self.record.note((element.path, value, element.owner.label))
        if element.audiences:
            self._tell_change(element)

    def _tell_change(self, element: Element) -> None:
        tail = b""
        for audience in element.audiences:
            if not audience.plain or element.access is not None:
                audience.on_change(element)
                continue
            if not tail:
                tail = b"".join((b'"params":{"path":', element.path_json, _CHANGED, element.value or b"", b"}}"))
            audience.tell("change", element.path, tail)

    def owned(self, session: Session, path: str) -> Element:
        """The element, if it is the session's own."""
        element = self.tree.elements.get(path)
        if element is None or (element.owner is not session and not element.shown_to(session.auth)):
            raise NotFound(path)
        if element.owner is not session:
            raise Foreign(path)
        return element

    def owned_state(self, session: Session, path: str) -> Element:
        """The element, if it is a state of the session's own."""
        element = self.owned(session, path)
        if element.is_method:
            raise NotState(path)
        return element

    # -- routing

    def _route(self, session: Session, message: Message, request_id: bytes, text: bytes) -> None:
        """A set or call on its way to the owner."""
        params, is_set = message.params, message.method == "set"
        if params is None:
            raise MissingParam("params")
        element = self.tree.elements.get(params.path)  # type: ignore[arg-type]
        if element is None or element.access is not None or element.fetch_only or element.is_method is is_set:
            element = self.check_open(session, path_of(params), is_set)
        if is_set and not params.value:
            raise MissingParam("value")
        owner = element.owner
        if owner is self.own.session:
            self.own.call(session, request_id, element.path, bytes(params.args))
            return
        check_exponents_of(params.value if is_set else params.args)
        timeout_s = element.timeout_s
        if params.timeout:
            check_exponents_of(params.timeout)
            timeout_s = read_timeout(params)
        tail = element.dialect.route(message.method, element, params)  # type: ignore[arg-type]
        by_jsonrpc = bool(message.jsonrpc) and message.jsonrpc == _JSONRPC_2 and not session.dialect.tells_nodes
        route = Route(session, request_id, owner, text, is_set, by_jsonrpc, element.path)
        if self.record is not None:
            route.asked = bytes(params.value if is_set else params.args)
        self.send_routed(route, tail, timeout_s)

    def send_routed(self, route: Route, tail: bytes, timeout_s: float | None) -> None:
        """Send a request on to its owner; without an id nobody waits for the answer."""
        owner = route.owner
        start, on, alone = owner.dialect.heads
        if not route.request_id:
            owner.send(alone + tail)
            if self.record is not None:
                tell_asked(self.record, route)
            return
        if self.record is not None:
            route.opened_us = self.record.now_us
        if len(owner.routes) >= self.limits.routes_max:
            raise self.limit_reached("routes_max", "too many requests wait for this owner")
        route_id = self.routes.open(route, self.now + (self.timeout_s if timeout_s is None else timeout_s))
        routed = b"".join((start, route_id, on, tail))
        owner.put(owner.header(len(routed)) + routed)

    def check_open(self, session: Session, path: str, is_set: bool) -> Element:
        """The element, if the session may set or call it. What it may not even see is not there."""
        element = self.tree.elements.get(path)
        auth = session.auth
        if element is None or not (element.shown_to(auth) or element.open_to(auth)):
            raise NotFound(path)
        if element.is_method is is_set:
            raise NotState(path) if is_set else NotMethod(path)
        if not element.open_to(auth):
            raise NotAllowed(path)
        if element.fetch_only:
            raise ReadOnly(path)
        return element

    def _on_response(self, session: Session, message: Message, response_id: bytes, text: bytes) -> None:
        if not message.result and not message.error:
            raise InvalidRequest(Raw(text))
        route = self.routes.close(session, response_id)
        if route is None:
            log.debug("%s answered %s, which nobody waits for", session.label, response_id)
            return
        try:
            if len(text) > self._short_bytes and has_long_run(text, self.safe_bytes):
                self._check_long_numbers(text)
            check_exponents_of(message.error or message.result)
        except JetError as error:
            log.warning("%s answered with a number that cannot be passed on: %s", session.label, error)
            self._fail(route, error)
            return
        self._answer(route, message.result, message.error)

    def _answer(self, route: Route, result: Raw, error: Raw = ABSENT) -> None:
        """What the owner has answered, to who has asked."""
        if self.record is not None:
            tell_asked(self.record, route, jsonrpc.loads(error) if error else None)
        requester = route.requester
        if requester.dialect.is_binary:
            frames.answer(route, result, error)
            return
        kind, answer = (b',"error":', error) if error else (b',"result":', result)
        if route.by_jsonrpc and route.is_set and answer == TRUE:
            answer = _EMPTY  # C++ peers look for a warning inside the result of a set
        told = b"".join((b'{"id":', route.request_id, kind, answer, b"}"))
        requester.put(requester.header(len(told)) + told)

    def expire(self, now: float) -> None:
        """Answer the requests whose owner did not answer in time."""
        self.now = now
        for route in self.routes.expired(now):
            if route.by_jsonrpc:
                self._fail(route, TimedOut.as_internal())
            else:
                self._fail(route, TimedOut(route.requester.dialect.asked(route.message)))

    def _fail(self, route: Route, error: JetError) -> None:
        if self.record is not None:
            tell_asked(self.record, route, error.wire())
        if not route.requester.gone:
            self.answer_error(route.requester, route.request_id, error)


def _has_legacy(members: Sequence[bytes]) -> bool:
    """Tell whether there is a request of 2012 among the members of a batch."""
    for member in members:
        try:
            if legacy.is_legacy(jsonrpc.decode_envelope(member)):
                return True
        except (JetError, *jsonrpc.UNREADABLE):
            continue
    return False
