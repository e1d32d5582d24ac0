"""The binary form of Jet: how numbers, keys and typed values become frames and back, as tables.

``docs/binary-protocol.md`` is the specification, and what is numbered there is numbered here and nowhere else. A
*body* is a value as it stands in a frame: type, length, bytes. Bodies are passed on as they came; nothing in here
looks into JSON unless somebody who speaks JSON is to see a body (``json_of``) or has sent one (``body_of``).
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from jetbus.errors import InvalidRequest, JetError, UnknownService
from jetbus.wire import jsonrpc

VERSION = (1, 0, 0)

INFO, REQUEST, RESPONSE, EVENT = 1, 2, 3, 4
"""The first byte of a message."""
SUCCESS, ERROR = b"\0", b"\1"
"""What follows the id of a response."""

ADD_STATE, REMOVE_STATE, SET_STATE, ADD_METHOD, REMOVE_METHOD, CALL_METHOD = 1, 2, 3, 4, 5, 6
NOTIFY_STATE, FETCH_STATES, UNFETCH, GET, AUTHENTICATE, CONFIG, SERVICE = 7, 8, 9, 10, 11, 12, 13

TOLD = {"add": 0x10, "change": 0x11, "remove": 0x12, "sorted": 0x13}
"""What a fetch is told of, in the place where a peer's own event has its function."""
SEVERAL = 0x14
"""Many events of one fetch in one message."""
FETCH_ONLY = 0x80
"""Added to what is told when the fetching peer can neither set nor call the element."""
KINDS = {number: kind for kind, number in TOLD.items()}

NONE, JSON, TEXT, BYTES = 0, 1, 2, 3
OTHER = 255
"""A type without a number: its name stands before the bytes, as a key."""
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
"""JSON nested deeper than that is not shown as JSON."""

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_I64 = struct.Struct("<q")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BODY = struct.Struct("<BI")
_INFO = struct.Struct("<BIII")
BODY_AT = _BODY.size
"""Where the bytes of a body begin."""
PAYLOAD_AT = 6
"""Where the payload of a request begins: after type, id and function. An event has no id."""
EVENT_PAYLOAD_AT = 2

EMPTY_BODY = _BODY.pack(NONE, 0)
INFO_MESSAGE = _INFO.pack(INFO, *VERSION)


class BadFrame(InvalidRequest):
    """A message that is not laid out as it must be."""

    def __init__(self, problem: str) -> None:
        super().__init__({"reason": problem}, problem)


# -- writing


def key(text: str) -> bytes:
    """A path or another short text."""
    data = text.encode()
    return _U16.pack(len(data)) + data


def instant(text: str) -> bytes:
    """An instant that is RFC 3339 text: microseconds since 1970."""
    return _I64.pack((datetime.fromisoformat(text) - _EPOCH) // timedelta(microseconds=1))


def body(kind: int, data: bytes) -> bytes:
    """A value of a type that has a number."""
    return _BODY.pack(kind, len(data)) + data


def json_body(text: bytes) -> bytes:
    """A value that is JSON already."""
    return _BODY.pack(JSON, len(text)) + text


def typed_body(mime: str, data: bytes) -> bytes:
    """A value of any type."""
    number = NUMBERS.get(mime)
    return body(OTHER, key(mime) + data) if number is None else body(number, data)


number = _U32.pack


def response(request_id: bytes, payload: bytes = b"") -> bytes:
    """A response of success."""
    return b"\3" + request_id + SUCCESS + payload


def failure(request_id: bytes, error: dict[str, Any]) -> bytes:
    """A response with an error, given as JSON has it; without an id it is about no request in particular."""
    code, message = error.get("code"), str(error.get("message", ""))
    told = message.encode()[:KEY_BYTES_MAX].decode(errors="ignore")
    packed = _I32.pack(code if isinstance(code, int) and -(1 << 31) <= code < 1 << 31 else -32603)
    detail = json_body(jsonrpc.encode(error["data"])) if "data" in error else EMPTY_BODY
    return b"\3" + (request_id or NO_REQUEST) + ERROR + packed + key(told) + detail


NO_REQUEST = _U32.pack(0)
VALUE_AS_RESULT = json_body(b'{"valueAsResult":true}')
"""The only option that an owner is ever sent."""


# -- reading


def read_key(frame: bytes, at: int) -> tuple[str, int]:
    """The text at a position, and where it ends."""
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
    """The body at a position, and where it ends."""
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
    """The text at a position, where the body behind it begins, and where that ends.

    What nearly all messages consist of is read at once; the readers above say what is wrong with any other one.
    """
    try:
        body_at = at + 2 + _read_u16(frame, at)[0]
        kind, length = _read_body_head(frame, body_at)
        end = body_at + BODY_AT + length
        if end <= len(frame) and kind in _PLAIN_TYPES:
            return frame[at + 2 : body_at].decode(), body_at, end
    except (struct.error, UnicodeDecodeError):
        pass
    text, body_at = read_key(frame, at)
    return text, body_at, read_body(frame, body_at)[1]


_read_u16 = _U16.unpack_from
_read_body_head = _BODY.unpack_from
_PLAIN_TYPES = frozenset(MIMES) - {NONE, OTHER}
"""Types whose bytes may be any."""


def check_type(kind: int, found: bytes) -> None:
    """Refuse a body whose type is unknown or does not fit its bytes."""
    if kind not in MIMES:
        raise BadFrame(f"{kind} is no value type; types without a number are {OTHER} with their name")
    if kind == NONE and len(found) > BODY_AT:
        raise BadFrame("a value of type 0 has no bytes")
    if kind == OTHER:
        read_key(found, BODY_AT)


def read_instant(frame: bytes, at: int) -> tuple[str, int]:
    """An instant as RFC 3339 text, and where it ends."""
    try:
        (us,) = _I64.unpack_from(frame, at)
        text = (_EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds")
    except (struct.error, OverflowError):
        raise BadFrame("an instant is 8 bytes, microseconds since 1970") from None
    return text.replace("+00:00", "Z"), at + _I64.size


def read_number(frame: bytes, at: int) -> tuple[int, int]:
    """The number at a position, and where it ends."""
    if at + 4 > len(frame):
        raise BadFrame("the message ends before a number")
    return _U32.unpack_from(frame, at)[0], at + 4


def read_info(message: bytes) -> tuple[int, int, int]:
    """The version that the other side speaks."""
    if len(message) != _INFO.size or message[0] != INFO:
        raise BadFrame("that is no info message")
    return _INFO.unpack(message)[1:]


def read_error(message: bytes, at: int) -> dict[str, Any]:
    """The error at the end of a response, as JSON has it; its data stays raw."""
    if at + 4 > len(message):
        raise BadFrame("the response ends before its error code")
    (code,) = _I32.unpack_from(message, at)
    text, at = read_key(message, at + 4)
    data, at = read_body(message, at)
    check_end(message, at)
    told: dict[str, Any] = {"code": code, "message": text}
    if data[0] != NONE:
        told["data"] = Raw(json_of(data))
    return told


def check_end(message: bytes, at: int) -> None:
    if at != len(message):
        raise BadFrame(f"{len(message) - at} bytes too many")


def check_answer(message: bytes) -> None:
    """Refuse a response that is not laid out as it must be, without looking into its value."""
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
    """What may be asked: its name and what follows its number in a message."""

    name: str
    layout: tuple[Callable[[bytes, int], tuple[Any, int]], ...]
    options: bool = False
    """Whether a JSON object with further parameters may follow."""


FUNCTIONS = {
    ADD_STATE: Function("add state", (read_key, read_body), options=True),
    REMOVE_STATE: Function("remove state", (read_key,)),
    SET_STATE: Function("set state", (read_key, read_body), options=True),
    ADD_METHOD: Function("add method", (read_key,), options=True),
    REMOVE_METHOD: Function("remove method", (read_key,)),
    CALL_METHOD: Function("call method", (read_key, read_body), options=True),
    NOTIFY_STATE: Function("notify state", (read_key, read_body)),
    FETCH_STATES: Function("fetch states", (read_key,), options=True),
    UNFETCH: Function("unfetch", (read_number,)),
    GET: Function("get", (read_key,), options=True),
    AUTHENTICATE: Function("authenticate", (read_key, read_key)),
    CONFIG: Function("config", (read_key,), options=True),
    SERVICE: Function("service", (read_key, read_body)),
}


def read_payload(frame: bytes, at: int, function: int) -> tuple[list[Any], bytes]:
    """What follows a function's number: its parts, and the text of its options (empty if there are none)."""
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
        if found[0] != JSON or options[:1] != b"{" or not is_json(options):
            raise BadFrame("options are a JSON object")
        if jsonrpc.has_doubled_member(options):
            raise BadFrame("a key of the options is given twice")
    check_end(frame, at)
    return parts, options


# -- one bus: bodies as JSON and back


def json_of(found: bytes) -> bytes:
    """A body as somebody who speaks JSON sees it; no value at all is null."""
    kind, data = found[0], found[BODY_AT:]
    mime = MIMES[kind]
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


def mime_of(found: bytes) -> str:
    """The type of a body."""
    return read_key(found, BODY_AT)[0] if found[0] == OTHER else MIMES[found[0]]


def is_json(text: bytes) -> bool:
    """Whether a text may be passed on to somebody who speaks JSON."""
    try:
        jsonrpc.check_text(text, VALUE_DEPTH_MAX)
        msgspec.json.decode(text, type=Raw)
    except (JetError, *jsonrpc.UNREADABLE):
        return False
    return True


class _Blob(msgspec.Struct, forbid_unknown_fields=True):
    """What stands in JSON for a value of another type."""

    mime: str
    base64: str


_read_blob = msgspec.json.Decoder(_Blob).decode


def body_of(text: bytes, kind: int = JSON) -> bytes:
    """A JSON text as a body, for a place that has held a value of type ``kind`` so far."""
    if text[:1] == b"{" and b'"base64"' in text:
        try:
            blob = _read_blob(text)
            return typed_body(blob.mime, b64decode(blob.base64, validate=True))
        except (ValueError, *jsonrpc.UNREADABLE):
            return json_body(text)
    if kind == TEXT and text[:1] == b'"':
        return body(TEXT, msgspec.json.decode(text, type=str).encode())
    return json_body(text)
