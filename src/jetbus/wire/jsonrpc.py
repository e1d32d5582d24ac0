"""JSON-RPC messages: their types, their parts and responses.

Parts that are forwarded to other peers stay the bytes that were received. The daemon handles a ``Message``, which
``intake`` makes from a text that it has checked. An ``Envelope`` is a message with members that may still have any
type. Nothing here checks encoding, nesting, numbers or doubled keys.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from jetbus.errors import InvalidRequest, JetError, MissingParam, ParamError, ParseError, WrongType
from jetbus.json_types import Json, JsonObject

ABSENT = Raw(b"")
"""Value of a missing key; no JSON text is empty."""
PARSE_ERROR_TEXT_MAX = 1000


class MetaParams(Struct, gc=False, frozen=True):
    """Parameters of an add or change that few owners send."""

    ts: bytes = b""
    quality: bytes = b""
    past: bytes = b""
    check: bytes = b""


NO_META = MetaParams()


class Params(Struct, gc=False):
    """Parameters of the frequent services. All but the path are JSON as it was received, empty if missing."""

    path: str | UnsetType = UNSET
    value: bytes = b""
    args: bytes = b""
    timeout: bytes = b""
    valueAsResult: bytes = b""  # noqa: N815
    fetchOnly: bytes = b""  # noqa: N815
    access: bytes = b""
    schema: bytes = b""
    element: bytes = b""
    meta: MetaParams = NO_META
    has_details: bool = False
    """True if the message gives more than path, value and args."""


class Message(Struct, gc=False):
    """A request (id and method), a notification (method) or a response (result or error), checked in full."""

    id: bytes = b""
    method: str | None = None
    params: Params | None = None
    """Parameters of a frequent service."""
    jsonrpc: bytes = b""
    body: bytes = b""
    """Parameters of any other service, as JSON."""
    result: bytes = b""
    error: bytes = b""
    unreadable: JetError | None = None
    """Error for the requester in place of a response that it could not read."""
    is_positional: bool = False
    """True if the parameters were given by position, as peers of 2012 do."""


FREQUENT = frozenset({"add", "remove", "change", "set", "call"})
"""Services with parameters that are ``Params``."""


class Envelope(Struct, gc=False):
    """A message object with members of any type."""

    id: Raw = ABSENT
    method: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT
    jsonrpc: Raw = ABSENT


decode_envelope = msgspec.json.Decoder(Envelope).decode
decode_members = msgspec.json.Decoder(list[Raw]).decode
decode_text = msgspec.json.Decoder(str).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
encode = msgspec.json.encode

NULL = b"null"
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions that decoding may raise."""


class LoneSurrogate(ParseError):
    """Request with half of a surrogate pair, which no string can hold, but with a readable id."""

    def __init__(self, text: str, request_id: bytes) -> None:
        super().__init__(text)
        self.request_id = request_id


def diagnose(text: bytes) -> Envelope:
    """Decode a message with members of any type, or raise the error to respond with."""
    try:
        return decode_envelope(text)
    except msgspec.ValidationError:
        pass  # not an object; the rest of the text has not been checked yet
    except UNREADABLE:
        request_id = _read_id_past_surrogates(text)
        raise (LoneSurrogate(show(text), request_id) if request_id else ParseError(show(text))) from None
    try:
        loads(text)
    except ValueError:
        raise ParseError(show(text)) from None
    raise InvalidRequest(Raw(text))


_REPLACEMENT = rb"\ufffd"
_ESCAPES = re.compile(rb"\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(u[dD][89a-fA-F]..)|.)", re.DOTALL)


def _read_id_past_surrogates(text: bytes) -> bytes:
    """Return the id of a request if lone surrogates are its only fault, else empty bytes."""
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


def show(text: bytes) -> str:
    """Return as much of a text as the error about it repeats."""
    return text[:PARSE_ERROR_TEXT_MAX].decode("utf-8", "replace")


def read_id(raw: Raw) -> bytes:
    """Return a request id unchanged, so that a response can repeat it; empty for a notification."""
    text = bytes(raw)
    if not text or text == NULL:
        return b""
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


def read_params(raw: Raw | bytes) -> Params | None:
    """Return the parameters of a frequent service."""
    if not raw or bytes(raw) == NULL:
        return None
    fields = read_fields(raw)
    params = Params()
    if "path" in fields:
        params.path = read_text(fields["path"], "path")
    for name in _PARTS & fields.keys():
        setattr(params, name, bytes(fields[name]))
    params.meta = MetaParams(**{name: bytes(fields[name]) for name in _META_PARTS & fields.keys()})
    params.has_details = bool(_DETAILS & fields.keys())
    return params


_PARTS = frozenset(Params.__struct_fields__) - {"path", "meta", "has_details"}
_META_PARTS = frozenset(MetaParams.__struct_fields__)
_DETAILS = (_PARTS | _META_PARTS) - {"value", "args"}


def read_batch(text: bytes) -> list[bytes]:
    """Return the messages of a batch."""
    try:
        return [b"" + member for member in decode_members(text)]
    except UNREADABLE:
        raise ParseError(show(text)) from None


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


def read_object(raw: Raw | bytes, name: str = "params") -> JsonObject:
    """Return parameters as Python values; missing parameters are an empty object."""
    fields = loads(raw) if raw and bytes(raw) != NULL else {}
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
    recorded: Any = UNSET
    since: Any = UNSET
    asOf: Any = UNSET  # noqa: N815


_decode_fetch_params = msgspec.json.Decoder(_FetchParams).decode
_FETCH_MEMBERS = _FetchParams.__struct_fields__[1:]


def read_fetch_params(raw: bytes) -> tuple[bytes, JsonObject]:
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


def read_fields(raw: Raw | bytes, name: str = "params") -> dict[str, Raw]:
    """Return the members of an object as raw JSON."""
    if not raw:
        raise MissingParam(name)
    try:
        return _decode_fields(raw)
    except msgspec.ValidationError:
        raise WrongType(name) from None


def read_text(raw: Raw | bytes, name: str) -> str:
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


VERSION = b'"2.0"'
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
