"""JSON-RPC messages: decoding, checks and responses.

``decode_message`` reads a common request, notification or response in one pass and leaves parameters that are forwarded
to other peers as raw bytes. Texts that it cannot read go to ``diagnose``, which reads the rarer forms and reports exact
errors. Invariant: an accepted message is valid JSON in valid UTF-8, not nested deeper than allowed and without
duplicate keys where the daemon reads them. Its parts can therefore be forwarded unchanged.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from jetbus.errors import InvalidRequest, MissingParam, ParamError, ParseError, WrongType
from jetbus.json_types import Json, JsonObject
from jetbus.wire.nesting import count_outer, is_too_deep

ABSENT = Raw(b"")
"""Value of a missing key; no JSON text is empty."""

PARSE_ERROR_TEXT_MAX = 1000


class Params(Struct, gc=False):
    """Parameters of the frequent services, decoded in one pass; all but the path stay raw."""

    path: str | UnsetType = UNSET
    value: Raw = ABSENT
    args: Raw = ABSENT
    timeout: Raw = ABSENT
    valueAsResult: Raw = ABSENT  # noqa: N815
    fetchOnly: Raw = ABSENT  # noqa: N815
    access: Raw = ABSENT
    schema: Raw = ABSENT
    element: Raw = ABSENT


class Message(Struct, gc=False):
    """A request (id and method), a notification (method) or a response (id and result or error)."""

    id: Raw = ABSENT
    method: str | None = None
    params: Params | None = None
    result: Raw = ABSENT
    error: Raw = ABSENT
    jsonrpc: Raw = ABSENT


class MetaParams(Struct, gc=False):
    """Parameters of an add or change that few owners send. They are decoded apart, so that the others pay nothing."""

    ts: Raw = ABSENT
    quality: Raw = ABSENT
    past: Raw = ABSENT
    check: Raw = ABSENT


class _MetaMessage(Struct, gc=False):
    params: MetaParams | None = None


class Envelope(Struct, gc=False):
    """A message object whose members may have any type."""

    id: Raw = ABSENT
    method: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT
    jsonrpc: Raw = ABSENT


decode_message = msgspec.json.Decoder(Message).decode
decode_envelope = msgspec.json.Decoder(Envelope).decode
decode_members = msgspec.json.Decoder(list[Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
encode = msgspec.json.encode

NULL = Raw(b"null")
_KEYS = [b'"%b"' % name.encode() for kind in (Message, Params, MetaParams) for name in kind.__struct_fields__]
_META_KEY = re.compile(b"|".join(b'"%b"' % name.encode() for name in MetaParams.__struct_fields__) + rb"|\\").search
COMMA, COLON = b",:"
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding may raise."""


class TooDeep(InvalidRequest):
    """JSON text that is nested too deeply."""


def check_text(text: bytes, depth_max: int) -> None:
    """Raise if raw parts of a text would forward invalid UTF-8 or nesting beyond ``depth_max`` to other peers.

    Most texts are cheap to check: ASCII needs no decoding, and each level of nesting takes two bytes.
    """
    if not text.isascii():
        try:
            str(text, "utf-8")
        except UnicodeDecodeError:
            raise ParseError(_shown(text)) from None
    if len(text) > 2 * depth_max and is_too_deep(text, depth_max):
        raise TooDeep({"depthMax": depth_max}, f"nested deeper than {depth_max} levels")


def has_doubled_key(text: bytes) -> bool:
    """Return True if a key that the daemon reads occurs twice in a message or its parameters.

    Keys inside values do not count; the daemon does not read values.
    """
    # A key could hide behind escapes; without any, a key that stands in the text once at most is not doubled.
    if len(text) < LONG_BYTES and b"\\" not in text and all(text.count(key) < 2 for key in _KEYS):
        return False
    try:
        fields = _decode_fields(text)
    except UNREADABLE:
        return False
    # Decoding keeps the last of equal keys, so a duplicate makes fewer members than colons.
    if count_outer(text, COLON) != len(fields):
        return True
    params = b"" + fields.get("params", ABSENT)
    return params[:1] == b"{" and count_outer(params, COLON) != len(_decode_fields(params))


LONG_BYTES = 2_000
"""Texts from this length on are decoded into members, which is then faster than searching for every known key."""


def has_doubled_member(text: bytes) -> bool:
    """Return True if an object has a duplicate key; objects inside its values do not count."""
    try:
        return count_outer(text, COLON) != len(_decode_fields(text))
    except msgspec.ValidationError:
        return False  # not an object


def count_members(text: bytes) -> int:
    """Return the number of members of a batch without decoding it."""
    return count_outer(text, COMMA) + 1


def is_compact(text: bytes, message: Message) -> bool:
    """Return True if a message consists of its usual parts only and so has no duplicate key.

    The length of the text proves it. False proves nothing: there may be spaces or other keys.
    """
    params = message.params
    if params is None:
        size = len(message.result)
        return size > 0 and len(text) == size + len(message.id) + RESULT_BYTES
    method, path, size = message.method, params.path, len(params.value)
    if not size:
        size = len(params.args) - _ARGS_FOR_VALUE
    if method is None or path is UNSET or size <= 0:
        return False
    if message.id:
        size += len(message.id) + _ID_BYTES
    return len(text) == size + len(method) + len(path) + _CHANGE_BYTES


_CHANGE_BYTES = len('{"method":"","params":{"path":"","value":}}')
_ID_BYTES = len('"id":,')
_ARGS_FOR_VALUE = len("value") - len("args")
RESULT_BYTES = len('{"id":,"result":}')


class LoneSurrogate(ParseError):
    """Request with half of a surrogate pair, which no string can hold, but with a readable id."""

    def __init__(self, text: str, request_id: bytes) -> None:
        super().__init__(text)
        self.request_id = request_id


def diagnose(text: bytes) -> Envelope:
    """Decode a text that ``decode_message`` refused, or raise the error to respond with."""
    try:
        return decode_envelope(text)
    except msgspec.ValidationError:
        pass  # not an object; the rest of the text has not been checked yet
    except UNREADABLE:
        request_id = _read_id_past_surrogates(text)
        raise (LoneSurrogate(_shown(text), request_id) if request_id else ParseError(_shown(text))) from None
    try:
        loads(text)
    except ValueError:
        raise ParseError(_shown(text)) from None
    raise InvalidRequest(Raw(text))


_REPLACEMENT = rb"\ufffd"
_ESCAPES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def _read_id_past_surrogates(text: bytes) -> bytes:
    """Return the id of a request whose only fault is lone surrogates, else empty bytes."""
    mended = _ESCAPES.sub(lambda found: _REPLACEMENT if found[1] else found[0], text)
    # Nothing was replaced, so the fault is another one and the id cannot be trusted.
    if mended == text:
        return b""
    try:
        envelope = decode_envelope(mended)
        request_id = read_id(envelope.id)
    except (InvalidRequest, *UNREADABLE):
        return b""
    return b"" if _REPLACEMENT in request_id or not envelope.method else request_id


def _shown(text: bytes) -> str:
    return text[:PARSE_ERROR_TEXT_MAX].decode("utf-8", "replace")


def read_id(raw: Raw) -> bytes:
    """Return a request id unchanged, so that a response can repeat it; empty for a notification."""
    if not raw or raw == NULL:
        return b""
    text = bytes(raw)
    if text[0] in ID_STARTS:
        return text
    raise BadId(Raw(text), "an id is a string or a number")


ID_STARTS = b'"-0123456789'
MESSAGE_STARTS = (b"{", b"[")
"""First characters of messages and batches."""


class BadId(InvalidRequest):
    """Id that a response cannot repeat; the error response has id null."""


def read_method(raw: Raw) -> str:
    """Return the name of the requested service."""
    name = loads(raw) if raw else None
    if not isinstance(name, str):
        raise InvalidRequest(name, "the method is not a string")
    return name


def read_params(raw: Raw) -> Params | None:
    """Return the parameters of a frequent service."""
    try:
        return msgspec.json.decode(raw or NULL, type=Params | None)
    except msgspec.ValidationError:
        raise WrongType("path" if bytes(raw)[:1] == b"{" else "params") from None


_decode_meta_message = msgspec.json.Decoder(_MetaMessage).decode
NO_META = MetaParams()


def read_meta_params(text: bytes) -> MetaParams:
    """Return the rare parameters of an add or change from the text of its message; nearly always there are none."""
    if _META_KEY(text) is None:  # a key may also be spelt with backslashes
        return NO_META
    try:
        return _decode_meta_message(text).params or NO_META
    except UNREADABLE:
        return NO_META  # positional parameters, which do not have them


read_meta_options = msgspec.json.Decoder(MetaParams).decode
"""Function from the options of a binary message to the same parameters."""


def read_batch(text: bytes) -> list[bytes]:
    """Return the messages of a batch."""
    try:
        return [b"" + member for member in decode_members(text)]
    except UNREADABLE:
        raise ParseError(_shown(text)) from None


class NestedBatch(bytes):
    """Batch inside a batch, which is refused in the order of the messages."""


def read_got(text: bytes, error: ParamError) -> Raw:
    """Return the ``got`` of an error about a parameter: the parameters, or the message if it has none."""
    params = decode_envelope(text).params
    return Raw(text) if error.subject == "params" or not params else params


def loads(raw: Raw | bytes) -> Json:
    """Return the Python value of a valid JSON text. Numbers beyond the range of a float become infinite."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        # msgspec refuses integers beyond 64 bits and numbers beyond a double, which JSON allows.
        return json.loads(bytes(raw), parse_int=_parse_int)


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) < INT_DIGITS_MAX else float(digits)


INT_DIGITS_MAX = 1000


def read_object(raw: Raw, name: str = "params") -> JsonObject:
    """Return parameters as Python values; missing parameters are an empty object."""
    fields = loads(raw) if raw and raw != NULL else {}
    if not isinstance(fields, dict):
        raise WrongType(name)
    return fields


class _FetchParams(Struct, gc=False):
    """Parameters of a fetch in all JSON dialects. Only the id stays raw, because responses and events repeat it."""

    id: Raw = ABSENT
    path: Any = UNSET
    value: Any = UNSET
    valueField: Any = UNSET  # noqa: N815
    caseInsensitive: Any = UNSET  # noqa: N815
    sort: Any = UNSET
    matcher: Any = UNSET
    match: Any = UNSET
    unmatch: Any = UNSET
    every: Any = UNSET
    together: Any = UNSET
    nodes: Any = UNSET
    schema: Any = UNSET
    meta: Any = UNSET
    since: Any = UNSET
    asOf: Any = UNSET  # noqa: N815


_decode_fetch_params = msgspec.json.Decoder(_FetchParams).decode
_FETCH_MEMBERS = _FetchParams.__struct_fields__[1:]


def read_fetch_params(raw: Raw) -> tuple[bytes, JsonObject]:
    """Return the id of a fetch as JSON and its other parameters as Python values, decoded in one pass.

    Text is re-encoded, so that equal ids have equal bytes; a number stays as the peer wrote it.
    """
    try:
        params = _decode_fetch_params(raw)
    except (msgspec.MsgspecError, RecursionError):
        # Parameters that are missing, not an object, or have a number that only the slower decoder reads.
        members = read_object(raw)
        return normalize_fetch_id(read_fields(raw).get("id", ABSENT)), members
    given = ((name, getattr(params, name)) for name in _FETCH_MEMBERS)
    return normalize_fetch_id(params.id), {name: value for name, value in given if value is not UNSET}


def normalize_fetch_id(raw: Raw) -> bytes:
    """Return a fetch id with a single spelling of equal texts."""
    fetch_id = bytes(raw)
    if not fetch_id:
        raise MissingParam("id")
    if fetch_id[:1] == b'"':
        return msgspec.json.encode(msgspec.json.decode(fetch_id))
    if fetch_id[:1] in b"-0123456789":
        return fetch_id
    raise WrongType("id")


def read_fields(raw: Raw, name: str = "params") -> dict[str, Raw]:
    """Return the members of an object as raw JSON."""
    if not raw:
        raise MissingParam(name)
    try:
        return _decode_fields(raw)
    except msgspec.ValidationError:
        raise WrongType(name) from None


def read_text(raw: Raw, name: str) -> str:
    """Return a parameter that must be a string."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError:
        raise WrongType(name) from None


RESPONSE_START, RESULT_KEY, ERROR_KEY = b'{"id":', b',"result":', b',"error":'
"""Parts of a response, for the bus, which composes the frequent ones itself to save calls."""


def encode_result(request_id: bytes, result: bytes) -> bytes:
    """Encode a successful response."""
    return b"".join((b'{"id":', request_id, b',"result":', result, b"}"))


VERSION = Raw(b'"2.0"')
_WITH_VERSION = b',"jsonrpc":"2.0"'
VERSION_MEMBER = b'"jsonrpc":"2.0",'
"""First member of requests and events for peers of 2012 that send it."""


def add_version(request_id: bytes) -> bytes:
    """Return a request id followed by the member ``jsonrpc``, for responses to peers that send it."""
    return request_id if request_id.endswith(_WITH_VERSION) else request_id + _WITH_VERSION


def encode_failure(request_id: bytes, error: bytes) -> bytes:
    """Encode a response with an error; without an id if that of the request is unknown."""
    if not request_id:
        return b'{"error":' + error + b"}"
    return b'{"id":' + request_id + b',"error":' + error + b"}"
