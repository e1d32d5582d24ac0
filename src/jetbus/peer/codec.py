"""Codecs: messages of a session as payloads, and received payloads as messages for a session. No I/O.

::

    PeerSession  elements and fetches of this peer, and the requests that wait for a response
       |  request, notification, change, result, error        ^  Incoming, Envelope
    Codec        JsonCodec here, BinaryCodec in ``binary``; one for each connection
       |  payloads, each the content of one frame              ^
    Transport    frames and sockets

The session encodes a message when it sends it, not when the socket is free: a value that the caller changes later stays
as it was, a value that cannot be encoded raises where it was given, and a message that is too long is refused
while its caller can still be told.

Decoding is the hot path of a peer that fetches. All messages that arrive together are decoded in one pass into
``Incoming`` structs, with events read straight into ``Event``. ``Details`` reads the rest on demand, since it is rarely
needed: whether a value was missing or null, or the parameters of a routed request. A payload that does not have the
usual form becomes an ``Envelope`` with parts that are still JSON text, so that one value that cannot be read does not
cost the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Raw, Struct

from jetbus.errors import JetError
from jetbus.json_types import Json
from jetbus.peer.events import Event, Notification
from jetbus.peer.values import encode_checked, encode_plain, encode_value, may_have_blobs
from jetbus.wire import jsonrpc
from jetbus.wire.jsonrpc import Envelope

if TYPE_CHECKING:
    from jetbus.peer.buffer import BufferedValue

log = logging.getLogger("jetbus.peer")


class Incoming(Struct, gc=False):
    """A message of the daemon: a response, a notification of a fetch, or a routed request."""

    id: int | str | None = None
    result: Json = None
    error: Json = None
    method: str | None = None
    """The id of a fetch or, of a routed request, a path; None for a response."""
    params: Event | list[Json] | None = None
    """An event, or several changes as a flat list of path, value and fetchOnly."""


class OutgoingRequest(Struct, gc=False):
    """A request of this peer, as the session hands it to its codec."""

    id: int
    method: str
    params: Any


class RoutedRequest(Struct, gc=False):
    """A set or call that the daemon passes on to this peer, the owner."""

    id: bytes
    """The id as the response must repeat it; empty if the request needs no response."""
    path: str
    """The path; daemons of node-jet 3 write ``set`` or ``call`` instead and the path among the parameters."""
    params: Raw
    """The arguments of a call, or an object with the value of a set."""
    kind: str = ""
    """``set`` or ``call``; empty if it follows from the element at the path."""

    def unwrap(self) -> RoutedRequest:
        """Return the request with the path of node-jet 3's parameters."""
        fields = jsonrpc.read_fields(self.params)
        path = jsonrpc.read_text(fields.get("path", Raw(b'""')), "path")
        params = fields.get("args", Raw(b"{}")) if self.path == "call" else self.params
        return RoutedRequest(self.id, path, params, self.path)


class Details(Protocol):
    """Details that the ``Incoming`` messages of one pass leave out, by their index."""

    def notification(self, index: int) -> Notification: ...

    def raw_params(self, index: int) -> Raw: ...

    def routed_request(self, index: int) -> RoutedRequest: ...

    def may_have_blobs(self) -> bool: ...


Decoded = tuple[list[Incoming], Details] | Envelope | JetError


class Codec(Protocol):
    """One way to write messages. A codec lives as long as a connection."""

    has_batches: bool
    """True if several messages can be sent as one."""

    change_end: bytes
    """End of a change, after its value."""

    def prepare(self, value: Any, path: str) -> Any:
        """Return any value as ``encode_request`` and ``encode_value`` take it; raise ``InvalidValue`` for NaN."""

    def encode_request(self, request: OutgoingRequest, /) -> bytes:
        """Encode a request; empty if there is nothing to send yet."""

    def encode_notification(self, method: str, params: Any) -> bytes: ...

    def encode_value(self, value: Any, /) -> bytes:
        """Encode the value of a change, one of ``JSON_TYPES`` or prepared."""

    def make_change_head(self, path: str) -> bytes:
        """Return the text before the value in every change of a state."""

    def encode_timed(self, head: bytes, record: BufferedValue, *, is_past: bool) -> bytes:
        """Encode a change with its time and quality; ``head`` is that of its state."""

    def encode_result(self, request_id: bytes, result: Any) -> bytes: ...

    def encode_error(self, request_id: bytes, error: Mapping[str, Json]) -> bytes: ...

    def request_number(self, payload: bytes) -> int | None:
        """Return the number of a request; None for any other message."""

    def decode(self, payloads: list[bytes]) -> Iterable[Decoded]: ...


def make_codec(*, binary: bool, send: Callable[[bytes], None]) -> Codec:
    """Create the codec of a new connection; ``send`` takes frames that the codec writes by itself."""
    if not binary:
        return JsonCodec()
    from jetbus.peer.binary import BinaryCodec  # a command that asks once in JSON starts without it

    return BinaryCodec(send)


class _Notification(Struct, gc=False):
    method: str
    params: Any


class _AnyNotification(Struct, gc=False):
    params: Notification


class _AnyRequest(Struct, gc=False):
    method: str
    id: Raw = jsonrpc.ABSENT
    params: Raw = jsonrpc.ABSENT


_decode_one = msgspec.json.Decoder(Incoming).decode
_decode_all = msgspec.json.Decoder(list[Incoming]).decode
_decode_routed = msgspec.json.Decoder(_AnyRequest).decode
_decode_notification = msgspec.json.Decoder(_AnyNotification).decode


class JsonCodec:
    """JSON-RPC as every Jet daemon speaks it; a payload is a message or a batch of them."""

    has_batches = True
    change_end = b"}}"
    # Every request and every change is encoded by one of these, which is why they are not functions of Python.
    encode_request = staticmethod(encode_plain)
    encode_value = staticmethod(encode_plain)

    def prepare(self, value: Any, path: str) -> Any:
        return value if type(value) is float and isfinite(value) else Raw(encode_checked(value, path))

    def encode_notification(self, method: str, params: Any) -> bytes:
        return encode_plain(_Notification(method, params))

    def make_change_head(self, path: str) -> bytes:
        return b'{"method":"change","params":{"path":' + jsonrpc.encode(path) + b',"value":'

    def encode_timed(self, head: bytes, record: BufferedValue, *, is_past: bool) -> bytes:
        quality = b"" if record.quality is None else b',"quality":' + record.quality
        return b'%b%b,"ts":%d%b%b}}' % (head, record.value, record.us, quality, b',"past":true' if is_past else b"")

    def encode_result(self, request_id: bytes, result: Any) -> bytes:
        return jsonrpc.encode_result(request_id, encode_value(result))

    def encode_error(self, request_id: bytes, error: Mapping[str, Json]) -> bytes:
        return jsonrpc.encode_failure(request_id, jsonrpc.encode(error))

    def request_number(self, payload: bytes) -> int | None:
        # An ``OutgoingRequest`` is encoded in the order of its fields, so the id comes first.
        number = payload[6 : payload.find(b",")]
        return int(number) if payload.startswith(b'{"id":') and number.isdigit() else None

    def decode(self, payloads: list[bytes]) -> list[Decoded]:
        # Batches are not joined: they would be lists within the list.
        if len(payloads) > 1 and payloads[0][:1] != b"[":
            # Joined to one array they are decoded by one call, which is much faster than one call for each.
            whole = b"[%b]" % b",".join(payloads)
            try:
                messages = _decode_all(whole)
            except jsonrpc.UNREADABLE:
                messages = []
            # Payloads that are broken may make valid JSON together, but hardly of the same number of messages.
            if len(messages) == len(payloads):
                return [(messages, _JsonDetails(whole, len(messages), payloads))]
        decoded: list[Decoded] = []
        for text in payloads:
            try:
                if text[:1] == b"[":
                    messages = _decode_all(text)
                    decoded.append((messages, _JsonDetails(text, len(messages))))
                else:
                    decoded.append(([_decode_one(text)], _JsonDetails(text, 1, [text])))
            except jsonrpc.UNREADABLE:
                decoded += self._decode_unusual(text)
        return decoded

    def _decode_unusual(self, text: bytes) -> list[Decoded]:
        """Decode a batch member by member, or a message part by part; anything else is an error."""
        try:
            if text.lstrip()[:1] == b"[":
                return self.decode(jsonrpc.read_batch(text))
            return [jsonrpc.diagnose(text)]
        except JetError as error:
            return [error]


class RefusingCodec(JsonCodec):
    """Codec of a session that may send nothing more: whatever is to be encoded raises an error."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    def prepare(self, _value: Any, _path: str) -> Any:
        raise RuntimeError(self._refusal)

    def encode_notification(self, _method: str, _params: Any) -> bytes:
        raise RuntimeError(self._refusal)

    def encode_value(self, _value: Any, /) -> bytes:
        raise RuntimeError(self._refusal)

    def encode_request(self, _request: OutgoingRequest, /) -> bytes:
        raise RuntimeError(self._refusal)


class _JsonDetails(Struct, gc=False):
    """The texts of messages; a batch is taken apart only if one of them is needed."""

    whole: bytes
    count: int
    members: list[bytes] | None = None
    has_blobs: bool | None = None

    def _text(self, index: int) -> bytes:
        if self.members is None:
            self.members = jsonrpc.read_batch(self.whole)
        return self.members[index]

    def notification(self, index: int) -> Notification:
        return _decode_notification(self._text(index)).params

    def raw_params(self, index: int) -> Raw:
        return jsonrpc.decode_envelope(self._text(index)).params

    def routed_request(self, index: int) -> RoutedRequest:
        request = _decode_routed(self._text(index))
        return RoutedRequest(bytes(request.id), request.method, request.params)

    def may_have_blobs(self) -> bool:
        if self.has_blobs is None:
            self.has_blobs = may_have_blobs(self.whole, self.count)
        return self.has_blobs


def read_routed_request(envelope: Envelope) -> RoutedRequest:
    """Read a routed request of a JSON daemon that does not have the usual form."""
    return RoutedRequest(bytes(envelope.id), jsonrpc.read_method(envelope.method), envelope.params)
