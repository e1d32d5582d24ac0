"""The layouts of docs/binary-protocol.md, written from that page alone: `struct`, and nothing of jetbus.

What is sent is put together here; what the daemon sends is read strictly: a message that does not end where its last
part ends, or that the page does not know, fails the test.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

INFO, REQUEST, RESPONSE, EVENT = 1, 2, 3, 4
ADD_STATE, REMOVE_STATE, SET, ADD_METHOD, REMOVE_METHOD, CALL, NOTIFY = range(1, 8)
FETCH, UNFETCH, GET, AUTHENTICATE, CONFIG, SERVICE = range(8, 14)
TOLD = {0x10: "add", 0x11: "change", 0x12: "remove"}
SORTED, SEVERAL, FETCH_ONLY = 0x13, 0x14, 0x80
MIMES = {
    1: "application/json",
    2: "text/plain",
    3: "application/octet-stream",
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
}
NONE, JSON, TEXT, OCTETS, PNG, OTHER = 0, 1, 2, 3, 5, 255
KNOWN_TYPES = {NONE, *MIMES, OTHER}


class Value(NamedTuple):
    """A value as it travels: its type's number and its bytes."""

    type: int
    data: bytes

    @property
    def json(self) -> Any:
        assert self.type == JSON, self
        return json.loads(self.data)


ABSENT = Value(NONE, b"")


def js(thing: Any) -> Value:
    """A JSON value; bytes are taken as the JSON text itself."""
    text = thing if isinstance(thing, bytes) else json.dumps(thing, separators=(",", ":"), ensure_ascii=False).encode()
    return Value(JSON, text)


def text(words: str) -> Value:
    return Value(TEXT, words.encode())


def other(mime: str, data: bytes) -> Value:
    """A value of a mime type without a number."""
    return Value(OTHER, key(mime) + data)


# What is sent.


def u8(number: int) -> bytes:
    return struct.pack("<B", number)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def key(words: str | bytes) -> bytes:
    data = words if isinstance(words, bytes) else words.encode()
    return struct.pack("<H", len(data)) + data


def packed(value: Value) -> bytes:
    return struct.pack("<BI", value.type, len(value.data)) + value.data


def options(named: dict[str, Any]) -> bytes:
    return packed(js(named)) if named else b""


def framed(*messages: bytes) -> bytes:
    return b"".join(u32(len(message)) + message for message in messages)


def info(major: int = 1, minor: int = 0, patch: int = 0) -> bytes:
    return struct.pack("<BIII", INFO, major, minor, patch)


def request(number: int, function: int, payload: bytes = b"") -> bytes:
    return struct.pack("<BIB", REQUEST, number, function) + payload


def event(function: int, payload: bytes = b"") -> bytes:
    return struct.pack("<BB", EVENT, function) + payload


def success(number: int, payload: bytes = b"") -> bytes:
    return struct.pack("<BIB", RESPONSE, number, 0) + payload


def failure(number: int, code: int, message: str, data: Value = ABSENT) -> bytes:
    return struct.pack("<BIBi", RESPONSE, number, 1, code) + key(message) + packed(data)


# What arrives.


class Parts:
    """Reads the parts of a message one after the other; `end` is where it must end."""

    def __init__(self, message: bytes) -> None:
        self.message = message
        self.at = 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.message), f"a part reaches beyond the end of {self.message!r}"
        self.at += count
        return self.message[self.at - count : self.at]

    def number(self, form: str) -> int:
        (number,) = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))
        return int(number)

    def key(self) -> str:
        return self.take(self.number("H")).decode()

    def value(self) -> Value:
        kind = self.number("B")
        assert kind in KNOWN_TYPES, f"{kind} is no value type: {self.message!r}"
        data = self.take(self.number("I"))
        assert kind != NONE or not data, self.message
        if kind == OTHER:
            Parts(data).key()
        return Value(kind, data)

    def options(self) -> dict[str, Any]:
        if self.ended:
            return {}
        named = self.value().json
        assert isinstance(named, dict)
        return named

    @property
    def ended(self) -> bool:
        return self.at == len(self.message)

    def end(self) -> None:
        assert self.ended, f"{len(self.message) - self.at} bytes too many in {self.message!r}"


class Info(NamedTuple):
    major: int
    minor: int
    patch: int


class Response(NamedTuple):
    id: int
    ok: bool
    payload: bytes


class Refusal(NamedTuple):
    """The payload of an error."""

    code: int
    message: str
    data: Value

    @property
    def reason(self) -> str:
        """The first key of the data."""
        return str(next(iter(self.data.json)))


class RoutedRequest(NamedTuple):
    """A request that the daemon routes to this peer; the id is None if it came as an event."""

    id: int | None
    function: int
    path: str
    value: Value
    options: dict[str, Any]


class FetchEvent(NamedTuple):
    """An event of a fetch."""

    fetch_id: int
    event: str
    path: str
    value: Value
    fetch_only: bool = False


class SortedNotification(NamedTuple):
    """Notification of a sorted fetch."""

    fetch_id: int
    json: dict[str, Any]


Arrived = Info | Response | RoutedRequest | FetchEvent | SortedNotification


def refusal_in(payload: bytes) -> Refusal:
    parts = Parts(payload)
    refusal = Refusal(parts.number("i"), parts.key(), parts.value())
    parts.end()
    assert refusal.data.type in (NONE, JSON), refusal
    return refusal


def value_in(payload: bytes) -> Value:
    """The value of a success; no value at all means the same as type 0."""
    if not payload:
        return ABSENT
    parts = Parts(payload)
    value = parts.value()
    parts.end()
    return value


def matches_in(payload: bytes) -> list[FetchEvent]:
    """The payload of get; it has no fetch id, so 0 stands in its place."""
    parts = Parts(payload)
    found = [_read_event(parts, 0) for _ in range(parts.number("I"))]
    parts.end()
    return found


def arrived_in(message: bytes) -> list[Arrived]:
    """Return the content of a message of the daemon: one thing, or several events."""
    parts = Parts(message)
    kind = parts.number("B")
    assert kind in _READERS, f"{kind} is no message type: {message!r}"
    found = _READERS[kind](parts)
    parts.end()
    return found


def _info(parts: Parts) -> list[Arrived]:
    return [Info(parts.number("I"), parts.number("I"), parts.number("I"))]


def _response(parts: Parts) -> list[Arrived]:
    number, marker = parts.number("I"), parts.number("B")
    assert marker in (0, 1), parts.message
    payload = parts.take(len(parts.message) - parts.at)
    if marker:
        refusal_in(payload)
    return [Response(number, marker == 0, payload)]


def _request(parts: Parts) -> list[Arrived]:
    number = parts.number("I")
    assert number != 0, "id 0 is never a request"
    return [_routed_request(parts, number, parts.number("B"))]


def _event(parts: Parts) -> list[Arrived]:
    what = parts.number("B")
    if what in (SET, CALL):
        return [_routed_request(parts, None, what)]
    fetch_id = parts.number("I")
    if what == SORTED:
        return [SortedNotification(fetch_id, parts.value().json)]
    if what == SEVERAL:
        several: list[Arrived] = [_read_event(parts, fetch_id)]
        while not parts.ended:
            several.append(_read_event(parts, fetch_id))
        return several
    return [_read_event(parts, fetch_id, what)]


def _routed_request(parts: Parts, number: int | None, function: int) -> RoutedRequest:
    assert function in (SET, CALL), parts.message
    return RoutedRequest(number, function, parts.key(), parts.value(), parts.options())


def _read_event(parts: Parts, fetch_id: int, what: int | None = None) -> FetchEvent:
    what = parts.number("B") if what is None else what
    name = TOLD[what & ~FETCH_ONLY]
    return FetchEvent(fetch_id, name, parts.key(), parts.value(), bool(what & FETCH_ONLY))


_READERS: dict[int, Callable[[Parts], list[Arrived]]] = {
    INFO: _info,
    REQUEST: _request,
    RESPONSE: _response,
    EVENT: _event,
}
