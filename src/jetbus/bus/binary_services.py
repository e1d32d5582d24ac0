"""Services for peers of the binary protocol: each function of the protocol is one row of a table.

A value is forwarded from binary peer to binary peer unchanged. It is converted to JSON, once, only if the other side
speaks JSON or a rule tests values. Rare functions use the same services as JSON peers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from jetbus.bus import services
from jetbus.bus.account import ROOM_KEPT
from jetbus.bus.conditions import READY
from jetbus.bus.descriptions import NOTHING_ASKED, Asked, read_asked
from jetbus.bus.fetches import PendingFetch
from jetbus.bus.params import set_details
from jetbus.bus.preparations import Form, Wish
from jetbus.bus.replay import PastElement, get_past, read_past_instant
from jetbus.bus.routes import Route
from jetbus.bus.tree import Element, TypedElement
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
from jetbus.json_types import JsonObject
from jetbus.rules import Rule, read_rule
from jetbus.wire import binary, jsonrpc
from jetbus.wire.binary import BadFrame
from jetbus.wire.dialects import BINARY, TRUE, Leaf
from jetbus.wire.intake import Intake
from jetbus.wire.jsonrpc import Params

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session

log = logging.getLogger("jetbus.bus")

_NOTIFIED = bytes((binary.EVENT, binary.NOTIFY_STATE))
"""First bytes of the most frequent message, which takes a short cut."""
_EVENT_REFUSED = "%s sent an event that is refused: %s"
_CHANGED = binary.NOTIFICATIONS["change"]
_BULKY = (bytes((binary.GET,)), bytes((binary.FETCH_STATES,)), bytes((binary.SERVICE,)))
"""Functions with answers that may be long; they wait while the peer leaves too much unread."""
LONG_BYTES = 256
"""Length of a message from which on the end of the turn is checked before it is handled."""
_SERVICES = ("info", "echo", "passwd", "addUser", "removeUser", "sync", "gap")
"""The services that are reached by name; all others have a function of their own."""


class BinaryRequest(Struct, gc=False):
    """A request or an event: its id (empty for an event), its function, the message and the start of its payload."""

    id: bytes
    function: int
    message: bytes
    at: int
    intake: Intake

    def parts(self) -> tuple[list[Any], bytes]:
        """Return the parts of the payload and the JSON text of the options, checked."""
        return self.intake.read_payload(self.message, self.at, self.function)


def receive(bus: Bus, session: Session, messages: Sequence[bytes]) -> None:
    """Handle messages of a binary peer in their order."""
    rest = iter(messages)
    for message in rest:
        if session.condition is not READY:
            bus.hold_back(session, [message, *rest])
            return
        if len(message) > LONG_BYTES and bus.serving.ends_before(session, message):
            bus.hold_back(session, [message, *rest])
            return
        # The hot path of binary peers: changes without id, many in a row.
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
            # As for JSON peers: whoever does not read gets no more long answers.
            if message[5:6] in _BULKY and session.outbox.slow and bus.serving.stalls(session):
                bus.hold_back(session, [message, *rest])
                return
            _on_request(bus, session, message)
            bus.serving.end_turn(session)
        elif kind == binary.INFO:
            _on_info(bus, session, message)
        else:
            problem = f"{kind} is no message type" if message else "the message is empty"
            bus.answer_error(session, b"", BadFrame(problem))


def _on_info(bus: Bus, session: Session, message: bytes) -> None:
    try:
        if not session.fresh:
            raise BadFrame("an info message is valid only as the first message")
        version = binary.read_info(message)
        if version[0] != binary.VERSION[0]:
            ours = ".".join(map(str, binary.VERSION))
            reason = f"this daemon speaks version {ours} of the binary protocol, not {version[0]}.x"
            bus.serving.refuse(session, reason)
    except JetError as error:
        bus.answer_error(session, b"", error)


def _on_event(bus: Bus, session: Session, message: bytes) -> None:
    try:
        if len(message) < binary.EVENT_PAYLOAD_AT:
            raise BadFrame("the event ends before its function")
        service = FUNCTIONS.get(message[1])
        if service is None:
            raise UnknownService(message[1])
        service(bus, session, BinaryRequest(b"", message[1], message, binary.EVENT_PAYLOAD_AT, bus.intake))
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
        answer = service(bus, session, BinaryRequest(request_id, function, message, binary.PAYLOAD_AT, bus.intake))
    except JetError as error:
        bus.answer_error(session, request_id if len(request_id) == 4 else b"", error)
        return
    if answer is not None:
        session.send(binary.encode_response(request_id, answer))


# -- owning


def _add(bus: Bus, session: Session, request: BinaryRequest) -> bytes:
    parts, options = request.parts()
    path, body = parts[0], parts[1] if len(parts) > 1 else binary.EMPTY_BODY
    is_method = request.function == binary.ADD_METHOD
    if not is_method and body[0] == binary.NONE:
        raise MissingParam("value")
    element = TypedElement(path, session, is_method, body, BINARY)
    if options:
        set_details(element, _read_options(options))
        bus.changes.check_described(element)
    bus.add_element(element)
    return b""


def _read_options(options: bytes) -> Params:
    params = jsonrpc.read_params(options) or Params()
    params.element = b""  # binary peers do not speak the dialect of 2012
    return params


def _remove(bus: Bus, session: Session, request: BinaryRequest) -> bytes:
    (path,), _ = request.parts()
    element = bus.require_owned(session, path)
    if element.is_method is (request.function == binary.REMOVE_STATE):
        raise NotState(path) if element.is_method else NotMethod(path)
    bus.remove_element(element)
    return b""


def _notify_request(bus: Bus, session: Session, request: BinaryRequest) -> bytes:
    _notify(bus, session, request.message, request.at)
    return b""


def _notify(bus: Bus, session: Session, message: bytes, at: int) -> None:
    """Change the value of a state; path and body are forwarded as they stand in the message."""
    path, body_at, end = bus.intake.read_pair(message, at)
    element: Any = session.elements.get(path)  # elements of a binary peer are always typed
    if end != len(message) or element is None or element.meta is not None:
        _notify_described(bus, session, message, at)
        return
    body = message[body_at:]
    if not body[0]:
        raise MissingParam("value")
    if len(body) > element.room or element.room > ROOM_KEPT:
        bus.charge_value(element, len(body))
    element.body = body
    # The JSON of the value before; the new one is made when a peer asks.
    element.value = None
    if bus.record is not None:
        bus.record.note((path, element.value, session.label))
    if not element.audiences:
        return
    # Path and body stand in the message as receivers need them.
    tail = message[at:]
    number = _CHANGED | binary.FETCH_ONLY if element.fetch_only else _CHANGED
    open_to_all = element.access is None
    for audience in element.audiences:
        if audience.is_raw and open_to_all:
            audience.send_body(number, "change", path, tail)
        else:
            audience.on_change(element)


def _notify_described(bus: Bus, session: Session, message: bytes, at: int) -> None:
    """Change a state and its meta data, which are a JSON object after the value, as for ``add state``."""
    (path, body), options = bus.intake.read_payload(message, at, binary.NOTIFY_STATE)
    params = _read_options(options) if options else _NO_OPTIONS
    element = bus.require_owned(session, path)
    is_empty = body[0] == binary.NONE
    if element.is_method and not (is_empty and params.schema):
        raise NotState(path)
    if is_empty and not params.schema:
        raise MissingParam("value")
    if options:
        bus.changes.change_described(element, params, None if is_empty else body)
    else:
        bus.changes.publish(element, body)


# -- set and call


def _route(bus: Bus, session: Session, request: BinaryRequest) -> None:
    message = request.message
    path, body_at, end = bus.intake.read_pair(message, request.at)
    body = message[body_at:end]
    options = request.parts()[1] if end != len(message) else b""
    is_set, has_value = request.function == binary.SET_STATE, body[0] != binary.NONE
    element = bus.routing.find(session, path, is_set)
    params = _NO_OPTIONS
    if options:
        params = _read_options(options)
        params.value = params.args = b""  # neither is an option
    if has_value and bus.routing.needs_json(element):
        value = binary.to_json(body)
        params = Params(path=path, timeout=params.timeout, valueAsResult=params.valueAsResult)
        params.value, params.args = (value, b"") if is_set else (b"", value)
    routed = b""
    if element.dialect is BINARY:
        # From one binary peer to another nothing is decoded: function, path and value as they came.
        routed = message[request.at - 1 : end]
        if params.valueAsResult == TRUE:
            routed += binary.VALUE_AS_RESULT
    route = Route(session, request.id, element.owner, message, is_set, False, path)
    bus.routing.route(route, element, params, body if has_value else b"", routed)


_NO_OPTIONS = Params()


def _on_response(bus: Bus, session: Session, message: bytes) -> None:
    """Forward the response of a binary owner: unchanged to a binary requester, as JSON to others."""
    route = bus.routes.close(session, message[1:5])
    if route is None:
        log.debug("%s responded to %s, which is not open", session.label, message[1:5].hex())
        return
    requester = route.requester
    # The usual response of an owner, forwarded without a look inside.
    if message[5:] == binary.SUCCESS and bus.record is None and requester.dialect.is_binary and not route.requested:
        requester.put(requester.header(len(message)) + b"\3" + route.request_id + binary.SUCCESS)
        return
    frame = b"\3" + route.request_id + message[5:] if requester.dialect.is_binary else b""
    try:
        bus.intake.check_response(message)
    except JetError as problem:
        log.warning("%s responded to %s with an invalid message: %s", session.label, message[1:5].hex(), problem)
        bus.routing.fail(route, BadFrame(f"the owner's answer cannot be read: {problem}"))
        return
    if message[5:6] == binary.ERROR:
        bus.routing.forward_error(route, binary.read_error(message, 6), frame)
        return
    value = binary.to_json(message[6:]) if len(message) > 6 and message[6] != binary.NONE else b""
    bus.routing.forward_result(route, value, frame)


# -- fetch, unfetch, get


def _read_rule(starts_with: str, options: bytes) -> tuple[Rule, JsonObject]:
    params = jsonrpc.read_object(options, "options") if options else {}
    if starts_with:
        path = params.get("path", {})
        if not isinstance(path, dict):
            raise WrongType("path")
        if path.get("startsWith", starts_with) != starts_with:
            raise InvalidRule("startsWith", "startsWith is given twice, and not the same; leave one empty")
        params["path"] = {**path, "startsWith": starts_with}
    return read_rule(params), params


def _fetch(bus: Bus, session: Session, request: BinaryRequest) -> None:
    (starts_with,), options = request.parts()
    rule, params = _read_rule(starts_with, options)
    services.check_fetch(bus, session, b"", rule)
    wishes = services.read_fetch_options(params, rule)
    fetch_id = binary.encode_number(bus.fetches.next_number())
    response = binary.encode_response(request.id, fetch_id) if request.id else b""
    fetch = PendingFetch(bus.fetches, session, fetch_id, rule, wishes, response, events_first=False)
    services.start_fetch(bus, session, request.id, params, fetch)


def _unfetch(bus: Bus, session: Session, request: BinaryRequest) -> bytes:
    (number,), _ = request.parts()
    fetch_id = binary.encode_number(number)
    if fetch_id not in session.fetches:
        raise FetchIdUnknown(number)
    bus.run_chore(session, bus.fetches.leave(session, fetch_id))
    return b""


def _get(bus: Bus, session: Session, request: BinaryRequest) -> bytes | None:
    (starts_with,), options = request.parts()
    rule, params = _read_rule(starts_with, options)
    instant = read_past_instant(bus, session, params)
    asked = read_asked(params) or NOTHING_ASKED
    if instant is not None:
        get_past(bus, session, request.id, rule, instant, lambda found: _encode_past(request.id, found, asked))
        return None
    services.check_lists(bus, rule)

    def encode(element: Element) -> bytes:
        return _encode_entry(element.fetch_only_for(session.auth), element, asked.encode(element))

    def respond(form: Form) -> None:
        if request.id:
            session.send(binary.encode_response(request.id, _encode_entries(form.count, form.blocks())))

    services.find(bus, session, request.id, Wish(rule, True, ("binary get", asked), encode, respond))
    return None


def _encode_past(request_id: bytes, found: list[PastElement], asked: Asked) -> bytes:
    entries = _encode_entries(
        len(found), [_encode_entry(element.fetch_only, element, asked.encode_past(element)) for element in found]
    )
    return binary.encode_response(
        request_id, entries + b"".join(binary.encode_instant(element.ts) for element in found)
    )


def _encode_entry(fetch_only: bool, leaf: Leaf, members: bytes) -> bytes:
    """Encode an entry of a get: fetchOnly, path, value and the requested parts of the description."""
    number = binary.NOTIFICATIONS["add"] | (binary.FETCH_ONLY if fetch_only else 0)
    if not members:
        return bytes((number,)) + leaf.key + leaf.body
    return bytes((number | binary.DESCRIBED,)) + leaf.key + leaf.body + binary.encode_members(members)


def _encode_entries(count: int, entries: list[bytes]) -> bytes:
    return binary.encode_number(count) + b"".join(entries)


# -- the services that JSON peers have too


def _authenticate(bus: Bus, session: Session, request: BinaryRequest) -> None:
    (user, password), _ = request.parts()
    _serve_json(bus, session, request, "authenticate", msgspec.json.encode({"user": user, "password": password}))


def _config(bus: Bus, session: Session, request: BinaryRequest) -> bytes | None:
    (name,), options = request.parts()
    params = jsonrpc.read_object(options, "options") if options else {}
    encoding = params.pop("encoding", "binary")
    if encoding != "binary":
        raise EncodingNotSupported(encoding)
    if name:
        params["name"] = name
    return _serve_json(bus, session, request, "config", msgspec.json.encode(params))


def _service(bus: Bus, session: Session, request: BinaryRequest) -> bytes | None:
    (name, body), _ = request.parts()
    if name not in _SERVICES:
        raise UnknownService(name)
    return _serve_json(bus, session, request, name, binary.to_json(body))


def _serve_json(bus: Bus, session: Session, request: BinaryRequest, name: str, params: bytes) -> bytes | None:
    answer = services.RARE[name](bus, session, services.Request(request.id, params, False))
    return binary.encode_json_body(answer) if answer else answer


FUNCTIONS: dict[int, Callable[[Bus, Session, BinaryRequest], bytes | None]] = {
    binary.ADD_STATE: _add,
    binary.REMOVE_STATE: _remove,
    binary.SET_STATE: _route,
    binary.ADD_METHOD: _add,
    binary.REMOVE_METHOD: _remove,
    binary.CALL_METHOD: _route,
    binary.NOTIFY_STATE: _notify_request,
    binary.FETCH_STATES: _fetch,
    binary.UNFETCH: _unfetch,
    binary.GET: _get,
    binary.AUTHENTICATE: _authenticate,
    binary.CONFIG: _config,
    binary.SERVICE: _service,
}
