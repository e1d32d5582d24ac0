"""Routing: sets and calls on their way to the owner, and its responses on their way back, for all dialects.

Each dialect reads a request and hands it to ``route``; the owner's answer comes to ``forward_result`` or
``forward_error``. A value that goes from one binary peer to another is never decoded: requester and owner then pass the
bytes as they came along with the parts that are needed in any case::

    requester   set, call  -->  find  -->  route  -->  encode_route of the owner's dialect    -->  owner
    requester   <--  encode_result of the requester's dialect  <--  forward_result            <--  owner

``routes`` keeps the requests that wait meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetbus.bus.account import ROUTE_BYTES
from jetbus.bus.conditions import GONE
from jetbus.bus.descriptions import check_fits
from jetbus.bus.params import read_timeout, require_path
from jetbus.bus.record import record_outcome
from jetbus.bus.routes import Route
from jetbus.errors import JetError, MissingParam, NotAllowed, NotFound, NotMethod, NotState, ReadOnly, TimedOut
from jetbus.json_types import ErrorObject, JsonObject
from jetbus.wire import binary, jsonrpc
from jetbus.wire.dialects import TRUE
from jetbus.wire.jsonrpc import ERROR_KEY, RESPONSE_START, RESULT_KEY, Message, Params

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session
    from jetbus.bus.tree import Element

_EMPTY = b"{}"
_PLAIN = (b"", TRUE, _EMPTY)
"""Results of a set that say nothing but that it succeeded."""
_DONE = {True: TRUE, False: jsonrpc.NULL}
"""Result if the owner's response is without a value, by ``is_set``."""


class Routing:
    """Forwards sets and calls to owners, and their responses to the requesters."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    # -- to the owner

    def serve(self, session: Session, message: Message, request_id: bytes, text: bytes) -> None:
        """Serve a set or call of a JSON peer."""
        params, is_set = message.params, message.method == "set"
        if params is None:
            raise MissingParam("params")
        element = self.find(session, require_path(params), is_set)
        by_jsonrpc = bool(message.jsonrpc) and message.jsonrpc == jsonrpc.VERSION and not session.dialect.has_nodes
        route = Route(session, request_id, element.owner, text, is_set, by_jsonrpc, element.path)
        self.route(route, element, params, params.value)

    def find(self, session: Session, path: str, is_set: bool) -> Element:
        """Return an element that the session may set or call; raise if not. A hidden element does not exist for it."""
        element = self._bus.tree.elements.get(path)
        # The usual case is decided here; the rest finds the error, or finds that there is none.
        if (
            element is not None
            and element.access is None
            and not element.fetch_only
            and element.is_method is not is_set
        ):
            return element
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

    def route(self, route: Route, element: Element, params: Params, value: bytes, tail: bytes = b"") -> None:
        """Forward a set or call to the owner of an element.

        ``value`` is the value of a set as the requester sent it, empty for none. ``tail`` is the request for the owner
        where it can be forwarded as it came; ``params`` then have the value as JSON only if ``needs_json``.
        """
        bus, is_set = self._bus, route.is_set
        if is_set:
            if not value:
                raise MissingParam("value")
            if element.description.limits is not None:
                self._check_fits(element, params.value)
        elif element.owner is bus.builtin.session:
            bus.builtin.call(route.requester, route.request_id, element.path, params.args)
            return
        timeout_s = read_timeout(params) if params.timeout else element.timeout_s
        if not tail:
            tail = element.dialect.encode_route("set" if is_set else "call", element, params)
        if is_set and route.requester.wants_outcome and params.valueAsResult != TRUE:
            route.requested = value
        if bus.record is not None:
            route.asked = params.value if is_set else params.args
        self._send(route, tail, timeout_s)

    def needs_json(self, element: Element) -> bool:
        """Return True if the value of a set, or the arguments of a call, are needed as JSON on this side."""
        return not element.dialect.is_binary or self._bus.record is not None or element.description.limits is not None

    def _check_fits(self, element: Element, value: bytes) -> None:
        """Refuse the value of a set that does not fit the schema of the state, or is too long to be checked."""
        # To decode and check a value cannot be cut into steps.
        if len(value) > self._bus.limits.check_bytes_max:
            raise self._bus.limit_reached("check_bytes_max", f"the value for {element.path} is too long to be checked")
        check_fits(element, value)

    def _send(self, route: Route, tail: bytes, timeout_s: float | None) -> None:
        """Send a request to its owner and open a route, unless it is without an id and so needs no response."""
        bus, owner = self._bus, route.owner
        if owner.condition is GONE:
            raise NotFound(route.path)  # the element is about to be removed
        start, on, alone = owner.dialect.heads
        if owner.speaks_jsonrpc:
            tail = jsonrpc.VERSION_MEMBER + tail
        if not route.request_id:
            owner.send(alone + tail)
            if bus.record is not None:
                record_outcome(bus.record, route)
            return
        if bus.record is not None:
            route.opened_us = bus.record.now_us
        # Checked last, since only a request that waits for its response takes up room.
        if len(owner.routes) >= bus.limits.routes_max:
            raise bus.limit_reached("routes_max", "too many requests wait for this owner")
        route.kept_bytes = ROUTE_BYTES + len(route.message) + len(route.asked)
        route.requester.account.charge(route.kept_bytes)
        route_id = bus.routes.open(route, bus.now + (bus.timeout_s if timeout_s is None else timeout_s))
        routed = b"".join((start, route_id, on, tail))
        owner.put(owner.header(len(routed)) + routed)

    # -- back to the requester

    def forward_result(self, route: Route, result: bytes, frame: bytes = b"") -> None:
        """Forward a result of the owner.

        ``result`` is JSON, empty if the response has no value. ``frame`` is the response as a binary owner sent it, for
        a binary requester.
        """
        record, requester = self._bus.record, route.requester
        if record is not None:
            record_outcome(record, route)
        if route.requested:
            became = self._tell_outcome(route, result or _EMPTY)
            if became:
                result, frame = became, b""
        if frame:
            requester.send(frame)
        elif requester.dialect.is_binary:
            is_plain = route.is_set and result in _PLAIN and not _wants_value(route.message)
            requester.send(binary.encode_response(route.request_id, b"" if is_plain else binary.from_json(result)))
        else:
            result = result or _DONE[route.is_set]
            if route.by_jsonrpc and route.is_set and result == TRUE:
                result = _EMPTY  # C++ peers look for a warning inside the result of a set
            response = b"".join((RESPONSE_START, route.request_id, RESULT_KEY, result, b"}"))
            requester.put(requester.header(len(response)) + response)

    def forward_error(self, route: Route, error: bytes | ErrorObject, frame: bytes = b"") -> None:
        """Forward an error of the owner, as JSON or as an object; ``frame`` is as for results."""
        record, requester = self._bus.record, route.requester
        if record is not None:
            record_outcome(record, route, jsonrpc.loads(error) if isinstance(error, bytes) else error)
        if frame:
            requester.send(frame)
        elif requester.dialect.is_binary or not isinstance(error, bytes):
            fields = _read_error(error) if isinstance(error, bytes) else error
            requester.send(requester.dialect.encode_failure(route.request_id, fields))
        else:
            requester.send(b"".join((RESPONSE_START, route.request_id, ERROR_KEY, error, b"}")))

    def _tell_outcome(self, route: Route, result: bytes) -> bytes:
        """Return the result of a set with the new value of the state, empty if that is the requested one.

        Only for owners that send ``{}`` or a warning after the change: others respond first, and publish later.
        """
        element = self._bus.tree.elements.get(route.path)
        is_warning = result[:1] == b"{" and b'"warning"' in result
        if (result != b"{}" and not is_warning) or route.owner.dialect.has_nodes:
            return b""
        value: bytes | None = b"null"  # of a state that the requester may not see, or that is gone
        if element is not None and element.shown_to(route.requester.auth):
            now = element.body if route.requester.dialect.is_binary else element.value
            if now == route.requested and not is_warning:
                return b""
            value = element.value
        before = result[:-1] + b"," if is_warning else b"{"
        return b"".join((before, b'"became":', value or b"null", b"}"))

    # -- in place of the owner

    def expire(self, now: float) -> None:
        """Fail the requests that the owner did not answer in time."""
        self._bus.now = now
        for route in self._bus.routes.expired(now):
            if route.by_jsonrpc:
                self.fail(route, TimedOut.as_internal())
            else:
                self.fail(route, TimedOut(route.requester.dialect.describe_request(route.message)))

    def fail(self, route: Route, error: JetError) -> None:
        """Answer a request with an error of the bus."""
        if self._bus.record is not None:
            record_outcome(self._bus.record, route, error.wire())
        if not route.requester.gone:
            self._bus.answer_error(route.requester, route.request_id, error)


def _read_error(raw: bytes) -> JsonObject:
    """Return the error of a JSON owner, with raw data."""
    if raw[:1] != b"{":
        return {"message": str(jsonrpc.loads(raw))}
    fields = jsonrpc.read_fields(raw)
    return {name: value if name == "data" else jsonrpc.loads(value) for name, value in fields.items()}


def _wants_value(message: bytes) -> bool:
    """Return True if a set of a binary peer asks for the value as result."""
    _, options = binary.read_payload(message, binary.PAYLOAD_AT, binary.SET_STATE)
    return bool(options) and bytes(jsonrpc.read_fields(options).get("valueAsResult", b"")) == TRUE
