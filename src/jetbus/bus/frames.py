"""Takes in what peers that speak binary send: each function of the protocol is one row of a table.

A value goes from binary peer to binary peer as the bytes it came in. Only where the other side speaks JSON, or a rule
looks at values, is it turned into JSON, once. Rare functions end in the same services that JSON peers use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw, Struct

from jetbus.bus import services
from jetbus.bus.given import add_details, read_timeout
from jetbus.bus.past import Begun, Then, asked_instant, get_then
from jetbus.bus.record import tell_asked
from jetbus.bus.routes import Route
from jetbus.bus.tree import TypedElement
from jetbus.errors import (
    EncodingNotSupported,
    FetchIdUnknown,
    InvalidRule,
    JetError,
    MissingParam,
    NotMethod,
    NotState,
    UnknownService,
    WrongType,
)
from jetbus.rules import Rule, read_rule
from jetbus.wire import binary, jsonrpc
from jetbus.wire.binary import BadFrame, read_pair
from jetbus.wire.dialects import BINARY, TRUE
from jetbus.wire.jsonrpc import ABSENT, Params

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session

log = logging.getLogger("jetbus.bus")

_NOTIFIED = bytes((binary.EVENT, binary.NOTIFY_STATE))
"""How the busiest message begins; it takes a short cut."""
_EVENT_REFUSED = "%s sent an event that is refused: %s"
_CHANGED = binary.TOLD["change"]
_e, _E = b"eE"
_SERVICES = ("info", "echo", "passwd", "addUser", "removeUser")
"""The services that are reached by name; all others have a function of their own."""
_JSON_DONE = {True: b"true", False: b"null"}
"""What a JSON peer is answered when the owner's answer has no value: to a set, to a call."""


class Asked(Struct, gc=False):
    """A request or an event: its id (empty for an event), its function, the message and where its payload begins."""

    id: bytes
    function: int
    message: bytes
    at: int

    def parts(self) -> tuple[list[Any], bytes]:
        """What is in the payload, and the text of the options."""
        return binary.read_payload(self.message, self.at, self.function)


def receive(bus: Bus, session: Session, messages: Sequence[bytes]) -> None:
    """Messages from a peer that speaks binary, in the order they came."""
    for message in messages:
        if session.held:
            session.waiting.append(message)
            continue
        if session.refused:
            return
        if message[:2] == _NOTIFIED:
            try:
                _notify(bus, session, message, binary.EVENT_PAYLOAD_AT)
            except JetError as error:
                log.debug(_EVENT_REFUSED, session.label, error)
            continue
        kind = message[0] if message else 0
        if kind == binary.RESPONSE:
            _on_response(bus, session, message)
        elif kind == binary.EVENT:
            _on_event(bus, session, message)
        elif kind == binary.REQUEST:
            _on_request(bus, session, message)
        elif kind == binary.INFO:
            _on_info(bus, session, message)
        else:
            problem = f"{kind} is no message type" if message else "the message is empty"
            bus.answer_error(session, b"", BadFrame(problem))


def _on_info(bus: Bus, session: Session, message: bytes) -> None:
    try:
        if not session.fresh:
            raise BadFrame("an info message is the first one or none")
        version = binary.read_info(message)
        if version[0] != binary.VERSION[0]:
            ours = ".".join(map(str, binary.VERSION))
            session.refused = f"this daemon speaks version {ours} of the binary protocol, not {version[0]}.x"
    except JetError as error:
        bus.answer_error(session, b"", error)


def _on_event(bus: Bus, session: Session, message: bytes) -> None:
    try:
        if len(message) < binary.EVENT_PAYLOAD_AT:
            raise BadFrame("the event ends before its function")
        service = FUNCTIONS.get(message[1])
        if service is None:
            raise UnknownService(message[1])
        service(bus, session, Asked(b"", message[1], message, binary.EVENT_PAYLOAD_AT))
    except JetError as error:
        log.debug(_EVENT_REFUSED, session.label, error)


def _on_request(bus: Bus, session: Session, message: bytes) -> None:
    request_id = message[1:5]
    try:
        if len(message) < binary.PAYLOAD_AT:
            raise BadFrame("the request ends before its function")
        if request_id == binary.NO_REQUEST:
            raise BadFrame("id 0 is for no request")
        function = message[5]
        service = FUNCTIONS.get(function)
        if service is None:
            raise UnknownService(function)
        answer = service(bus, session, Asked(request_id, function, message, binary.PAYLOAD_AT))
    except JetError as error:
        bus.answer_error(session, request_id if len(request_id) == 4 else b"", error)
        return
    if answer is not None:
        session.send(binary.response(request_id, answer))


def _check_numbers(bus: Bus, body: bytes) -> None:
    """Refuse a JSON value with a number that no peer could read."""
    if body[0] == binary.JSON:
        bus.check_numbers(body[binary.BODY_AT :].strip())


# -- owning


def _add(bus: Bus, session: Session, asked: Asked) -> bytes:
    parts, options = asked.parts()
    path, body = parts[0], parts[1] if len(parts) > 1 else binary.EMPTY_BODY
    is_method = asked.function == binary.ADD_METHOD
    if not is_method and body[0] == binary.NONE:
        raise MissingParam("value")
    element = TypedElement(path, jsonrpc.encode(path), None, session, is_method, dialect=BINARY)
    _check_numbers(bus, body)
    element.key, element.body = binary.key(path), body
    if options:
        bus.check_numbers(options)
        add_details(element, _read_options(options))
    bus.hang_in(element)
    return b""


def _read_options(options: bytes) -> Params:
    params = jsonrpc.read_params(Raw(options)) or Params()
    params.element = ABSENT  # the dialect of 2012 is no option here
    return params


def _remove(bus: Bus, session: Session, asked: Asked) -> bytes:
    (path,), _ = asked.parts()
    element = bus.owned(session, path)
    if element.is_method is (asked.function == binary.REMOVE_STATE):
        raise NotState(path) if element.is_method else NotMethod(path)
    bus.take_out(element)
    return b""


def _notify_asked(bus: Bus, session: Session, asked: Asked) -> bytes:
    _notify(bus, session, asked.message, asked.at)
    return b""


def _notify(bus: Bus, session: Session, message: bytes, at: int) -> None:
    """A state has a new value; its path and body are passed on as they stand in the message."""
    path, body_at, end = read_pair(message, at)
    if end != len(message):
        binary.check_end(message, end)
    element: Any = session.elements.get(path)  # what a binary peer owns is always typed
    if element is None or element.is_method:
        element = bus.owned_state(session, path)
    body = message[body_at:]
    if not body[0]:
        raise MissingParam("value")
    if _e in body or _E in body or len(body) > bus.safe_bytes:
        _check_numbers(bus, body)
    element.body = body
    element.text = b""
    if bus.record is not None:
        bus.record.note((path, element.value, session.label))
    if not element.audiences:
        return
    tail = message[at:]
    told = _CHANGED | binary.FETCH_ONLY if element.fetch_only else _CHANGED
    open_to_all = element.access is None
    for audience in element.audiences:
        if audience.raw and open_to_all:
            audience.tell_body(told, "change", path, tail)
        else:
            audience.on_change(element)


# -- set and call


def _route(bus: Bus, session: Session, asked: Asked) -> None:
    message = asked.message
    path, body_at, end = read_pair(message, asked.at)
    body = message[body_at:end]
    options = asked.parts()[1] if end != len(message) else b""
    is_set = asked.function == binary.SET_STATE
    element = bus.tree.elements.get(path)
    if element is None or element.access is not None or element.fetch_only or element.is_method is is_set:
        element = bus.check_open(session, path, is_set)
    if is_set and body[0] == binary.NONE:
        raise MissingParam("value")
    _check_numbers(bus, body)
    if element.owner is bus.own.session:
        bus.own.call(session, asked.id, path, binary.json_of(body) if body[0] != binary.NONE else b"")
        return
    params = _NO_OPTIONS
    if options:
        bus.check_numbers(options)
        params = _read_options(options)
    timeout_s = read_timeout(params) if params.timeout else element.timeout_s
    if element.dialect is BINARY:
        routed = message[asked.at - 1 : end]  # function, path and value as they came
        if params.valueAsResult == TRUE:
            routed += binary.VALUE_AS_RESULT
    else:
        value = Raw(binary.json_of(body)) if body[0] != binary.NONE else ABSENT
        params = Params(path=path, value=value, args=value, timeout=params.timeout, valueAsResult=params.valueAsResult)
        if is_set:
            params.args = ABSENT
        else:
            params.value = ABSENT
        routed = element.dialect.route("set" if is_set else "call", element, params)
    route = Route(session, asked.id, element.owner, message, is_set, False, path)
    if bus.record is not None and body[0] != binary.NONE:
        route.asked = binary.json_of(body)
    bus.send_routed(route, routed, timeout_s)


_NO_OPTIONS = Params()


def _on_response(bus: Bus, session: Session, message: bytes) -> None:
    """An owner has answered: to a binary requester the answer goes as it came, to others as JSON."""
    route = bus.routes.close(session, message[1:5])
    if route is None:
        log.debug("%s answered %s, which nobody waits for", session.label, message[1:5].hex())
        return
    requester = route.requester
    if message[5:] == binary.SUCCESS and bus.record is None and requester.dialect.is_binary:
        requester.put(requester.header(len(message)) + b"\3" + route.request_id + binary.SUCCESS)
        return
    try:
        binary.check_answer(message)
        if message[5:6] == binary.ERROR:
            bus.check_numbers(bytes(binary.read_error(message, 6).get("data", b"")))
        elif len(message) > binary.PAYLOAD_AT:
            _check_numbers(bus, message[binary.PAYLOAD_AT :])
    except JetError as problem:
        log.warning("%s answered %s with a bad message: %s", session.label, message[1:5].hex(), problem)
        error = BadFrame(f"the owner's answer cannot be read: {problem}")
        if bus.record is not None:
            tell_asked(bus.record, route, error.wire())
        bus.answer_error(requester, route.request_id, error)
        return
    if bus.record is not None:
        failed = message[5:6] == binary.ERROR
        tell_asked(bus.record, route, binary.read_error(message, 6) if failed else None)
    if requester.dialect.is_binary:
        requester.send(b"\3" + route.request_id + message[5:])
        return
    if message[5:6] == binary.ERROR:
        requester.send(requester.dialect.failure(route.request_id, binary.read_error(message, 6)))
        return
    value = binary.json_of(message[6:]) if len(message) > 6 and message[6] != binary.NONE else b""
    done = b"{}" if route.by_jsonrpc and route.is_set else _JSON_DONE[route.is_set]
    requester.send(jsonrpc.result(route.request_id, value or done))


def answer(route: Route, result: Raw, error: Raw) -> None:
    """An owner that speaks JSON has answered a binary requester."""
    requester = route.requester
    if error:
        requester.send(binary.failure(route.request_id, _read_error(error)))
    elif route.is_set and result in _PLAIN and not _wants_value(route.message):
        requester.send(binary.response(route.request_id))
    else:
        requester.send(binary.response(route.request_id, binary.body_of(bytes(result))))


def _read_error(raw: Raw) -> dict[str, Any]:
    """An owner's error; its data stays as it came."""
    if bytes(raw)[:1] != b"{":
        return {"message": str(jsonrpc.loads(raw))}
    fields = jsonrpc.read_fields(raw)
    return {name: value if name == "data" else jsonrpc.loads(value) for name, value in fields.items()}


def _wants_value(message: bytes) -> bool:
    _, options = binary.read_payload(message, binary.PAYLOAD_AT, binary.SET_STATE)
    return bool(options) and _read_options(options).valueAsResult == TRUE


_PLAIN = (TRUE, Raw(b"{}"))
"""What JSON owners answer to a set that they took as it was."""


# -- fetch, unfetch, get


def _read_rule(starts_with: str, options: bytes) -> tuple[Rule, dict[str, Any]]:
    params = jsonrpc.read_object(Raw(options), "options") if options else {}
    if starts_with:
        path = params.get("path", {})
        if not isinstance(path, dict):
            raise WrongType("path")
        if path.get("startsWith", starts_with) != starts_with:
            raise InvalidRule("startsWith", "startsWith is given twice, and not the same; leave one empty")
        params["path"] = {**path, "startsWith": starts_with}
    return read_rule(params), params


def _fetch(bus: Bus, session: Session, asked: Asked) -> None:
    (starts_with,), options = asked.parts()
    rule, params = _read_rule(starts_with, options)
    if len(session.fetches) >= bus.limits.fetches_max:
        raise bus.limit_reached("fetches_max", "too many fetches of one peer")

    def begin() -> Begun:
        fetch_id = binary.number(bus.fetches.next_number())
        audience = bus.fetches.join(session, fetch_id, rule, every=params.get("every") is True)
        response = binary.response(asked.id, fetch_id) if asked.id else b""
        return Begun(audience, fetch_id, response, events_first=False)

    services.start_fetch(bus, session, asked.id, rule, params, begin)


def _unfetch(bus: Bus, session: Session, asked: Asked) -> bytes:
    (number,), _ = asked.parts()
    fetch_id = binary.number(number)
    if fetch_id not in session.fetches:
        raise FetchIdUnknown(number)
    bus.fetches.leave(session, fetch_id)
    bus.worker.be_fair()
    return b""


def _get(bus: Bus, session: Session, asked: Asked) -> bytes | None:
    (starts_with,), options = asked.parts()
    rule, params = _read_rule(starts_with, options)
    instant = asked_instant(bus, session, params)
    if instant is not None:
        get_then(bus, session, asked.id, rule, instant, lambda found: _write_then(asked.id, found))
        return None
    found = [
        (element.fetch_only_for(session.auth), element.key, element.body)
        for _position, element in services.matches(bus, session, rule)
    ]
    return _entries(found)


def _write_then(request_id: bytes, found: list[Then]) -> bytes:
    entries = _entries([(then.fetch_only, then.key, then.body) for then in found])
    return binary.response(request_id, entries + b"".join(binary.instant(then.ts) for then in found))


def _entries(found: list[tuple[bool, bytes, bytes]]) -> bytes:
    """What a get has found: whether it can only be looked at, its path and its value."""
    add = binary.TOLD["add"]
    told = [bytes((add | (binary.FETCH_ONLY if only else 0),)) + key + body for only, key, body in found]
    return binary.number(len(told)) + b"".join(told)


# -- the services that JSON peers have too


def _authenticate(bus: Bus, session: Session, asked: Asked) -> None:
    (user, password), _ = asked.parts()
    _serve_json(bus, session, asked, "authenticate", msgspec.json.encode({"user": user, "password": password}))


def _config(bus: Bus, session: Session, asked: Asked) -> bytes | None:
    (name,), options = asked.parts()
    params = jsonrpc.read_object(Raw(options), "options") if options else {}
    encoding = params.pop("encoding", "binary")
    if encoding != "binary":
        raise EncodingNotSupported(encoding)
    if name:
        params["name"] = name
    return _serve_json(bus, session, asked, "config", msgspec.json.encode(params))


def _service(bus: Bus, session: Session, asked: Asked) -> bytes | None:
    (name, body), _ = asked.parts()
    if name not in _SERVICES:
        raise UnknownService(name)
    _check_numbers(bus, body)
    return _serve_json(bus, session, asked, name, binary.json_of(body))


def _serve_json(bus: Bus, session: Session, asked: Asked, name: str, params: bytes) -> bytes | None:
    answer = services.RARE[name](bus, session, services.Request(asked.id, Raw(params), False))
    return binary.json_body(answer) if answer else answer


FUNCTIONS: dict[int, Callable[[Bus, Session, Asked], bytes | None]] = {
    binary.ADD_STATE: _add,
    binary.REMOVE_STATE: _remove,
    binary.SET_STATE: _route,
    binary.ADD_METHOD: _add,
    binary.REMOVE_METHOD: _remove,
    binary.CALL_METHOD: _route,
    binary.NOTIFY_STATE: _notify_asked,
    binary.FETCH_STATES: _fetch,
    binary.UNFETCH: _unfetch,
    binary.GET: _get,
    binary.AUTHENTICATE: _authenticate,
    binary.CONFIG: _config,
    binary.SERVICE: _service,
}
