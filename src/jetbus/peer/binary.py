"""The binary protocol of a peer: the codec that writes a session's messages as frames and reads frames. No I/O.

``docs/binary-protocol.md`` is the specification, ``jetbus.wire.binary`` has its numbers and layouts. What JSON daemons
call a fetch by its id, binary ones call by a number that they choose when they accept it. So the codec remembers for
one connection which fetch has which number, the function of each request (a response does not repeat it), and which
requests were routed to this peer.

The number brings one complication. A fetch may end before its number is known, and can only be ended by it::

    peer                        daemon
      | fetch "f1"  ------------> |
      | unfetch "f1" (held back)  |
      | <----- accepted, number 7 |      the codec now sends the unfetch
      | unfetch 7  -------------> |

It does so through the session's ``send``, like everything else: a frame that took another way to the socket could get
between the two halves of a longer one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, Raw

from jetbus.errors import InvalidValue, JetError, NotConnected
from jetbus.json_types import ErrorObject, Json, JsonObject
from jetbus.peer.codec import Decoded, Incoming, OutgoingRequest, RoutedRequest
from jetbus.peer.events import Event, Notification
from jetbus.peer.requests import CallParams, SetParams
from jetbus.peer.values import OCTETS, Blob, decode_or_explain, encode_checked, encode_plain, is_bytes
from jetbus.wire import binary, jsonrpc
from jetbus.wire.binary import EVENT, KINDS, REQUEST, RESPONSE
from jetbus.wire.jsonrpc import Envelope

if TYPE_CHECKING:
    from jetbus.peer.buffer import BufferedValue

log = logging.getLogger("jetbus.peer")

_WITHOUT_VALUE: dict[int, Json] = {binary.SET_STATE: {}, binary.CALL_METHOD: None}
"""Results of responses without a value, as JSON daemons write them; those of all other functions are true."""
_SHALLOW_BYTES = 2 * binary.VALUE_DEPTH_MAX
"""JSON as short as this cannot be nested too deeply."""
_decode_json = msgspec.json.Decoder().decode
_decode_sorted = msgspec.json.Decoder(Notification).decode


class _UnreadableResult(Exception):
    """A response with a value that cannot be read; the session decides which part can be used."""

    def __init__(self, envelope: Envelope) -> None:
        super().__init__()
        self.envelope = envelope


class BinaryCodec:
    """The codec of one connection to a daemon that speaks the binary protocol."""

    has_batches = False
    change_end = b""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._requests: dict[bytes, tuple[int, int, str]] = {}
        """Open requests by their number in frames: the session's number, the function and the id of a fetch."""
        self._routed: dict[bytes, int] = {}
        """Functions of the requests that were routed to this peer; 0 if the response must have a value."""
        self._methods: set[str] = set()
        """Paths that were added as methods; removing one is a function of its own."""
        self._fetch_numbers: dict[str, bytes] = {}
        self._fetch_ids: dict[bytes, str] = {}
        self._held_back: dict[str, bytes] = {}
        """Start of the unfetch frames of fetches that have no number yet, by the id of the fetch."""
        self._lock = threading.Lock()
        """Guards the three above: a blocking peer encodes in any thread and decodes on its loop."""

    # -- to the daemon

    def prepare(self, value: Any, path: str) -> Any:
        return value if is_bytes(value) else Raw(encode_checked(value, path))

    def encode_request(self, request: OutgoingRequest, /) -> bytes:
        number, params = request.id, request.params
        # Numbers of frames have 32 bits, and 0 stands for no request.
        frame_number = binary.encode_number(number % 0xFFFFFFFF or 0xFFFFFFFF)
        function, payload = self._encode(request.method, params)
        fetch_id = params["id"] if function == binary.FETCH_STATES else ""
        # Also for an unfetch that is held back: a caller waits for its response.
        self._requests[frame_number] = number, function, fetch_id
        return self._frame(bytes((REQUEST,)) + frame_number, function, payload, params)

    def encode_notification(self, method: str, params: Any) -> bytes:
        return self._frame(bytes((EVENT,)), *self._encode(method, params), params)

    def make_change_head(self, path: str) -> bytes:
        return _CHANGE + binary.encode_key(path)

    def encode_value(self, value: Any, /) -> bytes:
        return _encode_body(value)

    def encode_timed(self, head: bytes, record: BufferedValue, *, is_past: bool) -> bytes:
        options: JsonObject = {"ts": record.us}
        if record.quality is not None:
            options["quality"] = Raw(record.quality)
        if is_past:
            options["past"] = True
        return head + binary.from_json(record.value) + _encode_options(options)

    def encode_result(self, request_id: bytes, result: Any) -> bytes:
        number = binary.encode_number(int(request_id))
        function = self._routed.pop(number, 0)
        # A set that was done needs no value. Owners of other libraries respond with True.
        if function == binary.SET_STATE and (result is True or result == {}):
            return binary.encode_response(number)
        return binary.encode_response(number, _encode_body(result))

    def encode_error(self, request_id: bytes, error: Mapping[str, Json]) -> bytes:
        number = binary.encode_number(int(request_id))
        self._routed.pop(number, None)
        return binary.encode_error(number, error)

    def request_number(self, payload: bytes) -> int | None:
        return int.from_bytes(payload[1:5], "little") if payload[0] == REQUEST else None

    def _frame(self, head: bytes, function: int, payload: bytes, params: Any) -> bytes:
        if function != binary.UNFETCH:
            return head + bytes((function,)) + payload
        fetch_id = params["id"]
        with self._lock:
            number = self._fetch_numbers.pop(fetch_id, b"")
            if not number:
                self._held_back[fetch_id] = head
                return b""
            self._fetch_ids.pop(number, None)
        return head + bytes((function,)) + number

    def _encode(self, method: str, params: Any) -> tuple[int, bytes]:
        """Return the function of a request and the bytes after it in the frame."""
        encode = _ENCODERS.get(method)
        if encode is not None:
            return encode(self, params)
        return binary.SERVICE, binary.encode_key(method) + binary.encode_json_body(encode_plain(params))

    def _encode_add(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        options = dict(params)
        path = options.pop("path")
        if "value" not in options:
            self._methods.add(path)
            return binary.ADD_METHOD, binary.encode_key(path) + _encode_options(options)
        self._methods.discard(path)
        body = _encode_body(options.pop("value"))
        return binary.ADD_STATE, binary.encode_key(path) + body + _encode_options(options)

    def _encode_change(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        options = dict(params)
        path = options.pop("path")
        body = _encode_body(options.pop("value")) if "value" in options else binary.EMPTY_BODY
        return binary.NOTIFY_STATE, binary.encode_key(path) + body + _encode_options(options)

    def _encode_remove(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        path = params["path"]
        return binary.REMOVE_METHOD if path in self._methods else binary.REMOVE_STATE, binary.encode_key(path)

    def _encode_set(self, params: SetParams | Mapping[str, Json]) -> tuple[int, bytes]:
        options = _read_options(params)
        path, value = options.pop("path"), options.pop("value")
        return binary.SET_STATE, binary.encode_key(path) + _encode_body(value) + _encode_options(options)

    def _encode_call(self, params: CallParams | Mapping[str, Json]) -> tuple[int, bytes]:
        options = _read_options(params)
        path = options.pop("path")
        body = _encode_body(options.pop("args")) if "args" in options else binary.EMPTY_BODY
        return binary.CALL_METHOD, binary.encode_key(path) + body + _encode_options(options)

    def _encode_fetch(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        rule = {name: value for name, value in params.items() if name != "id"}
        return binary.FETCH_STATES, binary.encode_key("") + _encode_options(rule)

    def _encode_unfetch(self, _params: Mapping[str, Json]) -> tuple[int, bytes]:
        return binary.UNFETCH, b""  # ``_frame`` knows the number, or that there is none yet

    def _encode_get(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        return binary.GET, binary.encode_key("") + _encode_options(params)

    def _encode_authenticate(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        return binary.AUTHENTICATE, binary.encode_key(params["user"]) + binary.encode_key(params["password"])

    def _encode_config(self, params: Mapping[str, Json]) -> tuple[int, bytes]:
        options = dict(params)
        return binary.CONFIG, binary.encode_key(options.pop("name", "")) + _encode_options(options)

    # -- from the daemon

    def decode(self, payloads: list[bytes]) -> Iterator[Decoded]:
        messages: list[Incoming] = []
        details = _BinaryDetails()
        for frame in payloads:
            decode = _DECODERS.get(frame[0] if frame else 0)
            try:
                if decode is None:
                    raise binary.BadFrame("unknown type")
                decode(self, frame, messages, details)
            except _UnreadableResult as unreadable:
                yield messages, details
                # Earlier messages are handled first, to keep the order.
                yield unreadable.envelope
                messages, details = [], _BinaryDetails()
            except JetError as error:
                yield messages, details
                yield error
                messages, details = [], _BinaryDetails()
        if messages:
            yield messages, details

    def _decode_info(self, frame: bytes, _messages: list[Incoming], _details: _BinaryDetails) -> None:
        check_version(frame)

    def _decode_response(self, frame: bytes, messages: list[Incoming], _details: _BinaryDetails) -> None:
        frame_number, marker = frame[1:5], frame[5:6]
        number, function, fetch_id = self._requests.pop(frame_number, (0, 0, ""))
        if not number:
            if marker == binary.ERROR:
                log.warning("the daemon reports an error: %s", binary.read_error(frame, 6))
            return
        if marker == binary.ERROR:
            messages.append(Incoming(number, error=_read_error(frame)))
            self._drop_held_back(fetch_id, messages)
            return
        if function == binary.FETCH_STATES:
            self._start_fetch(fetch_id, frame[6:])
        if function == binary.GET:
            result: Json = _decode_entries(frame)
        elif function in (binary.FETCH_STATES, binary.UNFETCH) or len(frame) == 6 or frame[6] == binary.NONE:
            result = _WITHOUT_VALUE.get(function, True)
        else:
            body, _ = binary.read_body(frame, 6)
            result = _decode_body(body, "")
            if isinstance(result, InvalidValue):
                raise _UnreadableResult(Envelope(id=Raw(b"%d" % number), result=Raw(binary.to_json(body))))
        messages.append(Incoming(number, result))

    def _start_fetch(self, fetch_id: str, number: bytes) -> None:
        """Note the number of an accepted fetch, or end the fetch if the peer has closed it meanwhile."""
        with self._lock:
            head = self._held_back.pop(fetch_id, None)
            if head is None:
                self._fetch_numbers[fetch_id] = number
                self._fetch_ids[number] = fetch_id
        if head is not None:
            # Outside of the lock: sending takes the session's lock, and its holder may wait for ours to encode.
            self._send(head + bytes((binary.UNFETCH,)) + number)

    def _drop_held_back(self, fetch_id: str, messages: list[Incoming]) -> None:
        """Confirm the unfetch of a fetch that was refused; there is nothing to end."""
        with self._lock:
            head = self._held_back.pop(fetch_id, b"")
        # ``head`` is the type of the frame and, if a caller waits for a response, the number of the unfetch.
        number, _, _ = self._requests.pop(head[1:], (0, 0, ""))
        if number:
            messages.append(Incoming(number, True))

    def _decode_request(self, frame: bytes, messages: list[Incoming], details: _BinaryDetails) -> None:
        number = frame[1:5]
        self._routed[number] = 0 if frame.endswith(binary.VALUE_AS_RESULT) else frame[5]
        request_id = b"%d" % int.from_bytes(number, "little")
        details.add_request(_decode_routed(frame, binary.PAYLOAD_AT, frame[5], request_id), messages)

    def _decode_event(self, frame: bytes, messages: list[Incoming], details: _BinaryDetails) -> None:
        kind = frame[1]
        if kind in binary.FUNCTIONS:
            details.add_request(_decode_routed(frame, binary.EVENT_PAYLOAD_AT, kind, b""), messages)
            return
        fetch_id = self._fetch_ids.get(frame[2:6])
        if fetch_id is None:
            return  # the fetch has just ended
        if kind == binary.NOTIFICATIONS["sorted"]:
            details.add_sorted(fetch_id, Raw(binary.to_json(frame[6:])), messages)
        elif kind != binary.SEVERAL:
            path, value, at = _decode_pair(frame, 6)
            about: JsonObject = {}
            if kind & binary.DESCRIBED:
                about, at = _decode_about(frame, at)
            if at < len(frame):
                about.setdefault("ts", binary.read_instant(frame, at)[0])
            details.add_event(fetch_id, kind, path, value, about, messages)
        else:
            at = 6
            while at < len(frame):
                kind = frame[at]
                path, value, at = _decode_pair(frame, at + 1)
                about = {}
                if kind & binary.DESCRIBED:
                    about, at = _decode_about(frame, at)
                details.add_event(fetch_id, kind, path, value, about, messages)


class _BinaryDetails:
    """Notifications and routed requests of one pass that say more than an ``Incoming`` can."""

    __slots__ = ("_notifications", "_requests", "_sorted")

    def __init__(self) -> None:
        self._notifications: dict[int, Notification] = {}
        self._sorted: dict[int, Raw] = {}
        """Notifications of sorted fetches, which are JSON on every connection."""
        self._requests: dict[int, RoutedRequest] = {}

    def add_request(self, request: RoutedRequest, messages: list[Incoming]) -> None:
        self._requests[len(messages)] = request
        messages.append(Incoming(method=request.path))

    def add_notification(self, fetch_id: str, notification: Notification, messages: list[Incoming]) -> None:
        self._notifications[len(messages)] = notification
        messages.append(Incoming(method=fetch_id, params=Event()))

    def add_sorted(self, fetch_id: str, params: Raw, messages: list[Incoming]) -> None:
        self._sorted[len(messages)] = params
        messages.append(Incoming(method=fetch_id, params=Event()))

    def add_event(
        self, fetch_id: str, code: int, path: str, value: Any, about: JsonObject, messages: list[Incoming]
    ) -> None:
        kind, fetch_only = KINDS.get(code & ~_FLAGS), code >= binary.FETCH_ONLY
        if kind is None:
            raise binary.BadFrame(f"{code} is not an event")
        # An ``Incoming`` cannot tell null from a missing value, and cannot hold an error.
        if value is None or value is UNSET or isinstance(value, InvalidValue):
            notification = Notification(path, kind, value, fetch_only, **_name_about(about))
            if code & binary.NODE:
                notification.type = "node"
            self.add_notification(fetch_id, notification, messages)
        elif about:
            event = Event(kind, path, value, fetch_only, **_name_about(about))
            messages.append(Incoming(method=fetch_id, params=event))
        else:
            messages.append(Incoming(method=fetch_id, params=Event(kind, path, value, fetch_only)))

    def notification(self, index: int) -> Notification:
        params = self._sorted.get(index)
        return self._notifications[index] if params is None else _decode_sorted(params)

    def raw_params(self, index: int) -> Raw:
        return self._sorted[index]

    def routed_request(self, index: int) -> RoutedRequest:
        return self._requests[index]

    def may_have_blobs(self) -> bool:
        return True


def check_version(frame: bytes) -> None:
    """Refuse a daemon of another version, since its messages could mean something else."""
    version = binary.read_info(frame)
    if version[0] != binary.VERSION[0]:
        theirs, ours = ".".join(map(str, version)), binary.VERSION[0]
        raise NotConnected(
            f"the daemon speaks version {theirs} of the binary protocol, this peer speaks version {ours};"
            " update the older one"
        )


def _encode_body(value: Any) -> bytes:
    """Encode a value with its type: bytes as they are, everything else as JSON."""
    if is_bytes(value):
        return binary.encode_typed_body(getattr(value, "mime", OCTETS), bytes(value))
    return binary.from_json(encode_plain(value))


def _encode_options(options: Mapping[str, Json]) -> bytes:
    return binary.encode_json_body(encode_plain(options)) if options else b""


def _read_options(params: SetParams | CallParams | Mapping[str, Json]) -> JsonObject:
    """Return the parameters that were given, by name."""
    if not isinstance(params, SetParams | CallParams):
        return dict(params)
    options = msgspec.structs.asdict(params)
    if params.timeout is None:
        del options["timeout"]
    if options.get("valueAsResult") is False:
        del options["valueAsResult"]
    return options


def _decode_pair(frame: bytes, at: int) -> tuple[str, Any, int]:
    """Decode a path and the value behind it; return where that ends, too."""
    path, body_at, end = binary.read_pair(frame, at)
    # The usual value: short, and therefore not nested too deeply to be decoded without a check.
    if frame[body_at] == binary.JSON and end - body_at < _SHALLOW_BYTES:
        try:
            return path, _decode_json(frame[body_at + binary.BODY_AT : end]), end
        except jsonrpc.UNREADABLE:
            pass
    return path, _decode_body(frame[body_at:end], path), end


_FLAGS = binary.FETCH_ONLY | binary.DESCRIBED | binary.NODE
_ABOUT = {"ts": "ts", "stale": "stale", "schema": "told_schema", "quality": "told_quality", "recorded": "told_record"}
"""Members of the object behind a value, and the fields of ``Event`` and ``Notification`` for them."""


def _decode_about(frame: bytes, at: int) -> tuple[JsonObject, int]:
    """Decode the object behind a value; return where that ends, too."""
    body, at = binary.read_body(frame, at)
    try:
        return jsonrpc.read_object(Raw(binary.to_json(body))), at
    except (JetError, ValueError):
        raise binary.BadFrame("what describes a value is a JSON object") from None


def _name_about(about: JsonObject) -> JsonObject:
    return {field: about[name] for name, field in _ABOUT.items() if name in about}


def _decode_body(body: bytes, path: str) -> Any:
    """Decode a value; ``UNSET`` if there is none, an ``InvalidValue`` if it is JSON that cannot be read."""
    kind = body[0]
    if kind == binary.NONE:
        return UNSET
    data = body[binary.BODY_AT :]
    if kind == binary.JSON and binary.is_json(data):
        return decode_or_explain(data, path)
    if kind == binary.TEXT:
        try:
            return data.decode()
        except UnicodeDecodeError:
            pass
    mime = binary.read_mime(body)
    if kind == binary.OTHER:
        data = data[binary.read_key(data, 0)[1] :]
    return Blob(data, mime)


def _decode_entries(frame: bytes) -> list[JsonObject]:
    """Decode the result of a get."""
    count, at = binary.read_number(frame, 6)
    entries: list[JsonObject] = []
    for _ in range(count):
        code = frame[at]
        path, value, at = _decode_pair(frame, at + 1)
        entry: JsonObject = {"path": path}
        if value is not UNSET:
            entry["value"] = value
        if code & binary.FETCH_ONLY:
            entry["fetchOnly"] = True
        if code & binary.DESCRIBED:
            about, at = _decode_about(frame, at)
            entry |= about
        entries.append(entry)
    if at < len(frame):  # a get of the past: the instants come after all entries
        for number, entry in enumerate(entries):
            entry.setdefault("ts", binary.read_instant(frame, at + 8 * number)[0])
    return entries


def _read_error(frame: bytes) -> ErrorObject:
    error = binary.read_error(frame, 6)
    if "data" in error:
        error["data"] = jsonrpc.loads(error["data"])
    return error


def _decode_routed(frame: bytes, at: int, function: int, request_id: bytes) -> RoutedRequest:
    """Decode a set or call of something that this peer owns; its parameters are those that JSON daemons send."""
    if function not in (binary.SET_STATE, binary.CALL_METHOD):
        raise binary.BadFrame(f"an owner is not asked to do function {function}")
    (path, body), options = binary.read_payload(frame, at, function)
    if function == binary.CALL_METHOD:
        args = b"{}" if body[0] == binary.NONE else binary.to_json(body)
        return RoutedRequest(request_id, path, Raw(args), "call")
    # The members of the options follow the value in one object; neither is decoded for that.
    end = b"," + options[1:-1] if len(options) > 2 else b""
    return RoutedRequest(request_id, path, Raw(b'{"value":' + binary.to_json(body) + end + b"}"), "set")


_CHANGE = bytes((EVENT, binary.NOTIFY_STATE))
_ENCODERS: dict[str, Callable[[BinaryCodec, Any], tuple[int, bytes]]] = {
    "add": BinaryCodec._encode_add,
    "change": BinaryCodec._encode_change,
    "remove": BinaryCodec._encode_remove,
    "set": BinaryCodec._encode_set,
    "call": BinaryCodec._encode_call,
    "fetch": BinaryCodec._encode_fetch,
    "unfetch": BinaryCodec._encode_unfetch,
    "get": BinaryCodec._encode_get,
    "authenticate": BinaryCodec._encode_authenticate,
    "config": BinaryCodec._encode_config,
}
_DECODERS: dict[int, Callable[[BinaryCodec, bytes, list[Incoming], _BinaryDetails], None]] = {
    binary.INFO: BinaryCodec._decode_info,
    REQUEST: BinaryCodec._decode_request,
    RESPONSE: BinaryCodec._decode_response,
    EVENT: BinaryCodec._decode_event,
}
