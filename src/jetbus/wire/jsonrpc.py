"""JSON texts to messages and back.

``decode_message`` reads the usual request, notification or response in one pass; parameters that are passed on to other
peers stay raw bytes. Whatever it cannot read is an oddity for ``diagnose``, which says exactly what is wrong or reads
the rarer forms. The invariant of this module: a message that gets through is valid JSON in valid UTF-8, no deeper than
allowed and without doubled keys where a key means something, so its parts may be passed on as they are.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from jetbus.errors import InvalidRequest, MissingParam, ParamError, ParseError, UnknownService, WrongType

ABSENT = Raw(b"")
"""A key that was not given; no JSON text is empty."""

PARSE_ERROR_TEXT_MAX = 1000


class Params(Struct, gc=False):
    """The parameters of the busy services, read in one pass; what is not text stays raw."""

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


class Envelope(Struct, gc=False):
    """Any message object with nothing taken for granted."""

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
_KEYS = [b'"%b"' % name.encode() for kind in (Message, Params) for name in kind.__struct_fields__]
_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_SAME_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_MARKS = bytes(set(range(256)) - set(b'[]{}"'))
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises."""


class TooDeep(InvalidRequest):
    """A text whose brackets are nested too deeply."""


def check_text(text: bytes, depth_max: int) -> None:
    """Refuse what a raw part could carry on to other peers: invalid UTF-8 and nesting beyond ``depth_max``.

    Cheap where it can be: plain ASCII needs no decoding, and a short text cannot be deep (each level takes two bytes).
    """
    if not text.isascii():
        try:
            str(text, "utf-8")
        except UnicodeDecodeError:
            raise ParseError(_shown(text)) from None
    if len(text) > 2 * depth_max and _opens_more_than(text, depth_max) and _is_too_deep(text, depth_max):
        raise TooDeep({"depthMax": depth_max}, f"nested deeper than {depth_max} levels")


def _opens_more_than(text: bytes, many: int) -> bool:
    """Whether a text has more opening brackets than that.

    They are taken away rather than counted: CPython leaps from one to the next, where counting looks at every byte.
    """
    squares, braces = text.replace(b"[", b"", many + 1), text.replace(b"{", b"", many + 1)
    return 2 * len(text) - len(squares) - len(braces) > many


def _is_too_deep(text: bytes, depth_max: int) -> bool:
    """Whether brackets are nested too deeply: each round takes away the innermost ones, all at the speed of C."""
    if b"\\" in text:
        text = _ESCAPED.sub(b"", text)
    brackets = text.translate(_SAME_BRACKETS, delete=_NO_MARKS).replace(b'""', b"")
    if b'"' in brackets:  # there are brackets in strings
        brackets = b"".join(brackets.split(b'"')[::2])
    if 2 * brackets.count(b"[") != len(brackets):
        return False  # no JSON anyway
    for _ in range(depth_max):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def has_doubled_key(text: bytes) -> bool:
    """Whether a key that means something to the daemon is given twice in a message or its parameters.

    Values are their owner's business: keys inside them are not looked at.
    """
    if b"\\" not in text and all(text.count(key) < 2 for key in _KEYS):
        return False
    try:
        message = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError):
        return False
    if not isinstance(message, _Pairs):
        return False
    params = [value for name, value in message if name == "params" and isinstance(value, _Pairs)]
    return any(pairs.doubled() for pairs in (message, *params))


def has_doubled_member(text: bytes) -> bool:
    """Whether an object has a key twice; what is inside its values does not count."""
    pairs = json.loads(text, object_pairs_hook=_Pairs, parse_int=_parse_int)
    return isinstance(pairs, _Pairs) and pairs.doubled()


class _Pairs(list[tuple[str, Any]]):
    def doubled(self) -> bool:
        names = [name for name, _ in self]
        return len(names) != len(set(names))


def is_compact(text: bytes, message: Message) -> bool:
    """Whether a message has no byte beyond its usual parts, thus no doubled key; false proves nothing."""
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
    """A request with half of a surrogate pair in it, which no string can hold; its id can be read all the same."""

    def __init__(self, text: str, request_id: bytes) -> None:
        super().__init__(text)
        self.request_id = request_id


def diagnose(text: bytes) -> Envelope:
    """Read a text that ``decode_message`` refused: the rarer forms give an envelope, all others the error to answer."""
    try:
        return decode_envelope(text)
    except msgspec.ValidationError:
        pass  # no object, and what comes after its first token has not been looked at
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
    """The id of a request that is no JSON for its lone surrogates only; empty where it is for more."""
    mended = _ESCAPES.sub(lambda found: _REPLACEMENT if found[1] else found[0], text)
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
    """The request id as it came, to be echoed; empty for a notification."""
    if not raw or raw == NULL:
        return b""
    text = bytes(raw)
    if text[0] in ID_STARTS:
        return text
    raise BadId(Raw(text), "an id is a string or a number")


ID_STARTS = b'"-0123456789'


class BadId(InvalidRequest):
    """An id that cannot be echoed; the error is answered with id null."""


def read_method(raw: Raw) -> str:
    """The name of the service asked for."""
    name = loads(raw) if raw else None
    if not isinstance(name, str):
        raise UnknownService(name)
    return name


def read_params(raw: Raw) -> Params | None:
    """The parameters of a busy service."""
    try:
        return msgspec.json.decode(raw or NULL, type=Params | None)
    except msgspec.ValidationError:
        raise WrongType("path" if bytes(raw)[:1] == b"{" else "params") from None


def read_batch(text: bytes) -> list[bytes]:
    """The messages of a batch."""
    try:
        return [b"" + member for member in decode_members(text)]
    except UNREADABLE:
        raise ParseError(_shown(text)) from None


def got_of(text: bytes, error: ParamError) -> Raw:
    """What an error about a parameter shows as ``got``: the parameters, or the message where these are missing."""
    params = decode_envelope(text).params
    return Raw(text) if error.subject == "params" or not params else params


def loads(raw: Raw | bytes) -> Any:
    """The Python value of a valid JSON text. Numbers beyond a float's range become infinite."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return json.loads(bytes(raw), parse_int=_parse_int)


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) < INT_DIGITS_MAX else float(digits)


INT_DIGITS_MAX = 1000


def read_object(raw: Raw, name: str = "params") -> dict[str, Any]:
    """Parameters as Python values; none at all is an empty object."""
    fields = loads(raw) if raw and raw != NULL else {}
    if not isinstance(fields, dict):
        raise WrongType(name)
    return fields


def read_fields(raw: Raw, name: str = "params") -> dict[str, Raw]:
    """The members of an object, each as it came."""
    if not raw:
        raise MissingParam(name)
    try:
        return _decode_fields(raw)
    except msgspec.ValidationError:
        raise WrongType(name) from None


def read_text(raw: Raw, name: str) -> str:
    """A parameter that must be a string."""
    try:
        return msgspec.json.decode(raw, type=str)
    except msgspec.ValidationError:
        raise WrongType(name) from None


def result(request_id: bytes, answer: bytes) -> bytes:
    """A successful response."""
    return b'{"id":' + request_id + b',"result":' + answer + b"}"


VERSION = Raw(b'"2.0"')
_WITH_VERSION = b',"jsonrpc":"2.0"'


def with_version(request_id: bytes) -> bytes:
    """An id as a response echoes it, followed by the member ``jsonrpc``."""
    return request_id if request_id.endswith(_WITH_VERSION) else request_id + _WITH_VERSION


def failure(request_id: bytes, error: bytes) -> bytes:
    """A response with an error; without an id when the request's cannot be known."""
    if not request_id:
        return b'{"error":' + error + b"}"
    return b'{"id":' + request_id + b',"error":' + error + b"}"
