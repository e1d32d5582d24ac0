"""The binary protocol: tables and codecs for numbers, keys, typed values and whole messages.

``docs/binary-protocol.md`` is the specification; its numbers are defined here and nowhere else::

    request     2 | id, 4 bytes | function | payload          key    length, 2 bytes | UTF-8
    response    3 | id, 4 bytes | 0 | payload, or 1 | error   body   type | length, 4 bytes | bytes
    event       4 | function | payload

A *body* is a value as it stands in a frame. The daemon forwards bodies unchanged. Only where one side speaks JSON and
the other binary is a body converted (``to_json``, ``from_json``).
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jetbus.errors import InvalidRequest, UnknownService
from jetbus.json_types import ErrorObject, Json
from jetbus.wire import jsonrpc
from jetbus.wire._texts import has_doubled_key, is_too_deep, is_utf8

VERSION = (1, 0, 0)

INFO, REQUEST, RESPONSE, EVENT = 1, 2, 3, 4
"""The first byte of a message."""
SUCCESS, ERROR = b"\0", b"\1"
"""The byte after the id of a response."""

ADD_STATE, REMOVE_STATE, SET_STATE, ADD_METHOD, REMOVE_METHOD, CALL_METHOD = 1, 2, 3, 4, 5, 6
NOTIFY_STATE, FETCH_STATES, UNFETCH, GET, AUTHENTICATE, CONFIG, SERVICE = 7, 8, 9, 10, 11, 12, 13

NOTIFICATIONS = {"add": 0x10, "change": 0x11, "remove": 0x12, "sorted": 0x13}
"""Kinds of notifications of a fetch, in the byte where an event that a peer sends has its function."""
SEVERAL = 0x14
"""Message with several notifications of one fetch."""
FETCH_ONLY = 0x80
"""Flag in the kind of a notification: the fetching peer can neither set nor call the element."""
DESCRIBED = 0x40
"""Flag in the kind of a notification: a JSON object with schema or meta data follows the value."""
NODE = 0x20
"""Flag in the kind of a notification: a node, without a value, appeared or vanished."""
KINDS = {number: kind for kind, number in NOTIFICATIONS.items()}

NONE, JSON, TEXT, BYTES = 0, 1, 2, 3
OTHER = 255
"""Type without a number: its MIME name stands before the bytes, as a key."""
MIMES = {
    NONE: "",
    JSON: "application/json",
    TEXT: "text/plain",
    BYTES: "application/octet-stream",
    4: "application/msgpack",
    5: "image/png",
    6: "image/jpeg",
    7: "image/gif",
    8: "image/webp",
    9: "image/svg+xml",
    10: "application/cbor",
    11: "application/xml",
    12: "text/html",
    13: "text/csv",
    14: "text/markdown",
    15: "application/pdf",
    16: "audio/wav",
    17: "video/mp4",
    18: "application/x-hdf5",
    19: "application/vnd.apache.arrow.stream",
    20: "application/vnd.apache.parquet",
    OTHER: "",
}
NUMBERS = {mime: number for number, mime in MIMES.items() if mime}

KEY_BYTES_MAX = 0xFFFF
VALUE_DEPTH_MAX = 120
"""JSON values nested deeper than this are encoded in base64 for JSON peers."""

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BODY = struct.Struct("<BI")
_INFO = struct.Struct("<BIII")
BODY_AT = _BODY.size
"""Offset of the bytes in a body."""
PAYLOAD_AT = 6
"""Offset of the payload in a request: after type, id and function."""
EVENT_PAYLOAD_AT = 2
"""Offset of the payload in an event, which is without an id."""

EMPTY_BODY = _BODY.pack(NONE, 0)
INFO_MESSAGE = _INFO.pack(INFO, *VERSION)


class BadFrame(InvalidRequest):
    """Message that violates the binary protocol."""

    def __init__(self, problem: str) -> None:
        super().__init__({"reason": problem}, problem)


# -- writing


def encode_key(text: str) -> bytes:
    """Encode a path or another short text."""
    data = text.encode()
    return _U16.pack(len(data)) + data


def encode_instant(text: str) -> bytes:
    """Encode an instant, given as RFC 3339 text, in microseconds since 1970."""
    return _I64.pack((datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1))


def encode_body(kind: int, data: bytes) -> bytes:
    """Encode a value of a type that has a number."""
    return _BODY.pack(kind, len(data)) + data


def encode_json_body(text: bytes) -> bytes:
    """Encode a value from its JSON text."""
    return _BODY.pack(JSON, len(text)) + text


def encode_members(members: bytes) -> bytes:
    """Encode members, each with a comma in front, as the JSON object that follows a value."""
    return encode_json_body(b"{" + members[1:] + b"}")


def encode_typed_body(mime: str, data: bytes) -> bytes:
    """Encode a value of any MIME type."""
    number = NUMBERS.get(mime)
    return encode_body(OTHER, encode_key(mime) + data) if number is None else encode_body(number, data)


encode_number = _U32.pack


def encode_response(request_id: bytes, payload: bytes = b"") -> bytes:
    """Encode a successful response."""
    return b"\3" + request_id + SUCCESS + payload


def encode_error(request_id: bytes, error: Mapping[str, Json]) -> bytes:
    """Encode a response with an error object of JSON-RPC; an empty id means that no request caused it."""
    code, message = error.get("code"), str(error.get("message", ""))
    text = message.encode()[:KEY_BYTES_MAX].decode(errors="ignore")  # may cut a character in half
    # Owners may answer with any code; one that does not fit is an internal error for the requester.
    packed = _I32.pack(code if isinstance(code, int) and -(1 << 31) <= code < 1 << 31 else -32603)
    detail = encode_json_body(jsonrpc.encode(error["data"])) if "data" in error else EMPTY_BODY
    return b"\3" + (request_id or NO_REQUEST) + ERROR + packed + encode_key(text) + detail


NO_REQUEST = _U32.pack(0)
VALUE_AS_RESULT = encode_json_body(b'{"valueAsResult":true}')
"""The only option that the daemon ever sends to an owner."""


# -- reading


def read_key(frame: bytes, at: int) -> tuple[str, int]:
    """Return the text at a position and the position after it."""
    start = at + 2
    if start > len(frame):
        raise BadFrame("the message ends before a key")
    end = start + _U16.unpack_from(frame, at)[0]
    if end > len(frame):
        raise BadFrame("the message ends within a key")
    try:
        return frame[start:end].decode(), end
    except UnicodeDecodeError:
        raise BadFrame("a key is not UTF-8") from None


def read_body(frame: bytes, at: int) -> tuple[bytes, int]:
    """Return the body at a position and the position after it."""
    if at + BODY_AT > len(frame):
        raise BadFrame("the message ends before a value")
    kind, length = _BODY.unpack_from(frame, at)
    end = at + BODY_AT + length
    if end > len(frame):
        raise BadFrame("the message ends within a value")
    found = frame[at:end]
    check_type(kind, found)
    return found, end


def read_pair(frame: bytes, at: int) -> tuple[str, int, int]:
    """Return the text at a position, the start of the body behind it and the end of that body.

    Nearly all messages are such a pair, so it is read in one step. If that fails, the readers above report the error.
    """
    try:
        body_at = at + 2 + _read_u16(frame, at)[0]
        kind, length = _read_body_head(frame, body_at)
        end = body_at + BODY_AT + length
        # Types that need a closer look, and lengths that do not fit, are left to the readers below.
        if end <= len(frame) and kind in _PLAIN_TYPES:
            return frame[at + 2 : body_at].decode(), body_at, end
    except (struct.error, UnicodeDecodeError):
        pass
    text, body_at = read_key(frame, at)
    return text, body_at, read_body(frame, body_at)[1]


_read_u16 = _U16.unpack_from
_read_body_head = _BODY.unpack_from
_PLAIN_TYPES = frozenset(MIMES) - {NONE, OTHER}
"""Types that accept any bytes."""


def check_type(kind: int, found: bytes) -> None:
    """Raise ``BadFrame`` if the type of a body is unknown or does not fit its bytes."""
    if kind not in MIMES:
        raise BadFrame(f"{kind} is no value type; types without a number are {OTHER} with their name")
    if kind == NONE and len(found) > BODY_AT:
        raise BadFrame("a value of type 0 has no bytes")
    if kind == OTHER:
        read_key(found, BODY_AT)


def read_instant(frame: bytes, at: int) -> tuple[str, int]:
    """Return the instant at a position, as RFC 3339 text, and the position after it."""
    try:
        (us,) = _I64.unpack_from(frame, at)
        text = (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    except (struct.error, OverflowError):
        raise BadFrame("an instant is 8 bytes, microseconds since 1970") from None
    return text.replace("+00:00", "Z"), at + _I64.size


def read_number(frame: bytes, at: int) -> tuple[int, int]:
    """Return the number at a position and the position after it."""
    if at + 4 > len(frame):
        raise BadFrame("the message ends before a number")
    return _U32.unpack_from(frame, at)[0], at + 4


def read_info(message: bytes) -> tuple[int, int, int]:
    """Return the protocol version of an info message."""
    if len(message) != _INFO.size or message[0] != INFO:
        raise BadFrame("that is no info message")
    return _INFO.unpack(message)[1:]


def read_error(message: bytes, at: int) -> ErrorObject:
    """Return the error of a response as an error object of JSON-RPC, with raw ``data``."""
    if at + 4 > len(message):
        raise BadFrame("the response ends before its error code")
    (code,) = _I32.unpack_from(message, at)
    text, at = read_key(message, at + 4)
    data, at = read_body(message, at)
    check_end(message, at)
    error: ErrorObject = {"code": code, "message": text}
    if data[0] != NONE:
        error["data"] = Raw(to_json(data))
    return error


def check_end(message: bytes, at: int) -> None:
    if at != len(message):
        raise BadFrame(f"{len(message) - at} bytes too many")


def check_response(message: bytes) -> None:
    """Raise ``BadFrame`` for a malformed response, without looking into its value."""
    if message[5:] == SUCCESS:
        return
    marker = message[5:6]
    if marker == SUCCESS:
        check_end(message, read_body(message, 6)[1])
    elif marker == ERROR:
        read_error(message, 6)
    else:
        raise BadFrame("a response has 0 for success or 1 for an error after its id")


class Function(NamedTuple):
    """A function of the protocol: its name and the layout of its payload."""

    name: str
    layout: tuple[Callable[[bytes, int], tuple[Any, int]], ...]
    options: bool = False
    """True if a JSON object with further parameters may follow."""


FUNCTIONS = {
    ADD_STATE: Function("add state", (read_key, read_body), options=True),
    REMOVE_STATE: Function("remove state", (read_key,)),
    SET_STATE: Function("set state", (read_key, read_body), options=True),
    ADD_METHOD: Function("add method", (read_key,), options=True),
    REMOVE_METHOD: Function("remove method", (read_key,)),
    CALL_METHOD: Function("call method", (read_key, read_body), options=True),
    NOTIFY_STATE: Function("notify state", (read_key, read_body), options=True),
    FETCH_STATES: Function("fetch states", (read_key,), options=True),
    UNFETCH: Function("unfetch", (read_number,)),
    GET: Function("get", (read_key,), options=True),
    AUTHENTICATE: Function("authenticate", (read_key, read_key)),
    CONFIG: Function("config", (read_key,), options=True),
    SERVICE: Function("service", (read_key, read_body)),
}


def read_payload(frame: bytes, at: int, function: int) -> tuple[list[Any], bytes]:
    """Return the parts of a payload and the JSON text of its options, empty if there are none."""
    row = FUNCTIONS.get(function)
    if row is None:
        raise UnknownService(function)
    parts = []
    for read in row.layout:
        part, at = read(frame, at)
        parts.append(part)
    options = b""
    if row.options and at < len(frame):
        found, at = read_body(frame, at)
        options = found[BODY_AT:].strip()
        # Options are read by the daemon itself, so they are checked as strictly as a message of a JSON peer.
        if found[0] != JSON or options[:1] != b"{" or not is_json(options):
            raise BadFrame("options are a JSON object")
        if has_doubled_key(options):
            raise BadFrame("a key of the options is given twice")
    check_end(frame, at)
    return parts, options


# -- conversion between bodies and JSON


def to_json(found: bytes) -> bytes:
    """Return the JSON text that stands for a body; an empty body becomes null."""
    kind, data = found[0], found[BODY_AT:]
    mime = MIMES[kind]
    # A body that claims to be JSON was never decoded on its way. An invalid one must not get into a JSON message.
    if kind == JSON and is_json(data):
        return data.strip()
    if kind == TEXT:
        try:
            return jsonrpc.encode(data.decode())
        except UnicodeDecodeError:
            pass
    if kind == NONE:
        return b"null"
    if kind == OTHER:
        mime, at = read_key(data, 0)
        data = data[at:]
    return b'{"mime":%b,"base64":"%b"}' % (jsonrpc.encode(mime), b64encode(data))


def read_mime(found: bytes) -> str:
    """Return the MIME type of a body."""
    return read_key(found, BODY_AT)[0] if found[0] == OTHER else MIMES[found[0]]


def is_json(text: bytes) -> bool:
    """Return True if a text is valid JSON that can be forwarded to JSON peers."""
    if not is_utf8(text) or is_too_deep(text, VALUE_DEPTH_MAX):
        return False
    try:
        msgspec.json.decode(text, type=Raw)
    except jsonrpc.UNREADABLE:
        return False
    return True


class _Blob(msgspec.Struct, forbid_unknown_fields=True):
    """JSON object that stands for a value of another type."""

    mime: str
    base64: str


_read_blob = msgspec.json.Decoder(_Blob).decode


def from_json(text: bytes, kind: int = JSON) -> bytes:
    """Return the body for a JSON text, which replaces a value of type ``kind``."""
    # The search is quick and nearly always fails; only then is the object decoded.
    if text[:1] == b"{" and b'"base64"' in text:
        try:
            blob = _read_blob(text)
            return encode_typed_body(blob.mime, b64decode(blob.base64, validate=True))
        except (ValueError, *jsonrpc.UNREADABLE):
            return encode_json_body(text)
    if kind == TEXT and text[:1] == b'"':
        return encode_body(TEXT, msgspec.json.decode(text, type=str).encode())
    return encode_json_body(text)
