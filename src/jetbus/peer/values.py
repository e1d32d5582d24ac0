"""Values that JSON cannot express, bytes and instants, and their form in JSON.

Bytes are a value of their own in the binary protocol. In JSON an object with exactly two members represents them,
``{"mime": "image/png", "base64": "iVBO..."}``. A peer takes ``bytes`` or ``Blob`` and gives a ``Blob``, on every
connection alike. Only a whole value, a whole argument or a whole result is read in this way: such an object inside a
list or dict stays a dict, for it may just be data.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from math import isfinite
from types import NoneType
from typing import Any, Self

import msgspec
from msgspec import Raw

from jetbus.errors import InvalidValue
from jetbus.json_types import Json, JsonObject

_BYTES = (bytes, bytearray, memoryview)
JSON_TYPES = frozenset((bool, int, float, str, list, dict, NoneType))
"""The types of nearly all values; one lookup shows that a value needs no conversion."""
FINITE_TYPES = frozenset((bool, int, str, NoneType))
"""Those of them that cannot be or contain NaN."""
_BLOB_KEYS = {"mime", "base64"}
OCTETS = "application/octet-stream"


Instant = datetime | str | int
"""An instant of the past: a datetime, RFC 3339 text, ``"-2h"``, or microseconds since 1970."""


def encode_instant(instant: Instant) -> str | int:
    """Return an instant as a daemon reads it; a datetime without a time zone is UTC."""
    if isinstance(instant, datetime):
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).isoformat()
    return instant


class Blob(bytes):
    """Bytes with a mime type.

    >>> Blob(b"a,b", mime="text/csv").mime
    'text/csv'
    """

    mime: str

    def __new__(cls, data: bytes = b"", mime: str = OCTETS) -> Self:
        blob = super().__new__(cls, data)
        blob.mime = mime
        return blob

    def __repr__(self) -> str:
        return f"Blob({bytes(self)!r}, mime={self.mime!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Blob, (bytes(self), self.mime)


# -- to JSON


def is_bytes(value: Any) -> bool:
    """Return True if a value is bytes of any kind."""
    return type(value) not in JSON_TYPES and isinstance(value, _BYTES)


def plain(value: Any) -> Any:
    """Return a value that JSON can represent: bytes become an object, everything else stays."""
    if is_bytes(value):
        return {"mime": getattr(value, "mime", OCTETS), "base64": b64encode(value).decode()}
    return value


def plain_args(args: Any) -> Any:
    """Return the arguments of a call, positional or named, as JSON can represent them."""
    is_named = isinstance(args, dict)
    for value in args.values() if is_named else args:
        if type(value) not in JSON_TYPES:
            if is_named:
                return {name: plain(value) for name, value in args.items()}
            return [plain(value) for value in args]
    return args


def _encode_unknown(value: Any) -> Any:
    """Encode types that msgspec does not know: a ``Blob`` inside of a value, and scalars and arrays of numpy."""
    if isinstance(value, Blob):
        return plain(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return value.tolist()  # as numpy is known by its methods, it need not be imported
    raise TypeError(
        f"cannot encode a value of type {type(value).__name__} as JSON;"
        " use numbers, strings, lists, dicts, bytes or a dataclass"
    )


encode_plain = msgspec.json.Encoder(enc_hook=_encode_unknown, decimal_format="number").encode
"""Encode as JSON a value that ``plain`` has returned, with a ``Blob`` at any depth.

Datetimes become RFC 3339 text, decimals numbers, enums their value, and dataclasses and msgspec structs objects.
"""


def encode_value(value: Any) -> bytes:
    """Encode a value as JSON."""
    return encode_plain(plain(value))


def encode_checked(value: Any, path: str) -> bytes:
    """Encode a value as JSON; raise ``InvalidValue`` if there is NaN or an infinity in it."""
    text = encode_value(value)
    if may_be_non_finite(text):
        check_finite(value, path)
    return text


def encode_args(args: Any) -> bytes:
    """Encode the arguments of a call as JSON."""
    return encode_plain(plain_args(args))


# msgspec encodes NaN and infinities as null, and those of ``Decimal`` as NaN and Infinity, so they can only be in a
# value with one of these words in its JSON text. First letters are looked for before: to find an int in bytes takes
# a tenth of the time of finding other bytes. In short texts the fastest search of all is ``partition``, which copies
# nothing if there is nothing to find.
NULL_START, NAN_START, INFINITY_START = b"nNI"


def may_be_non_finite(text: bytes) -> bool:
    """Return True if NaN or an infinity may be in the value of a JSON text."""
    return bool(
        (NULL_START in text and text.partition(b"null")[1])
        or (NAN_START in text and text.partition(b"NaN")[1])
        or (INFINITY_START in text and text.partition(b"Infinity")[1])
    )


def check_finite(value: Any, path: str) -> None:
    """Raise ``InvalidValue`` if NaN or an infinity is in a value; see ``may_be_non_finite``."""
    if _has_non_finite(value):
        raise InvalidValue(path, "JSON has neither NaN nor infinity; send None, or text such as 'NaN'")


def _has_non_finite(value: Any) -> bool:
    if isinstance(value, float):
        return not isfinite(value)
    if hasattr(value, "is_finite"):
        return not value.is_finite()  # a decimal; its module is imported by its users
    if isinstance(value, dict):
        return any(map(_has_non_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_non_finite, value))
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return _has_non_finite(value.tolist())
    if hasattr(value, "__dataclass_fields__") or isinstance(value, msgspec.Struct):
        return _has_non_finite(msgspec.to_builtins(value, enc_hook=_encode_unknown))
    return False


# -- from JSON


def is_blob(value: Json) -> bool:
    """Return True if a decoded value represents bytes."""
    return type(value) is dict and value.keys() == _BLOB_KEYS


def may_have_blobs(text: bytes, message_count: int) -> bool:
    """Return True if a value in a JSON text of so many messages may represent bytes.

    Usually the messages are the only objects in the text, which ``find`` discovers at the speed of memory.
    """
    at = -1
    for _ in range(message_count + 1):
        at = text.find(b"{", at + 1)
        if at < 0:
            return False
    # A backslash may hide the letters of the name.
    return text.rfind(b"base64") >= 0 or b"\\" in text  # in long texts rfind is much faster than find


def read_value(value: Json) -> Any:
    """Return a decoded value, as a ``Blob`` if it represents bytes."""
    if not is_blob(value):
        return value
    try:
        return Blob(b64decode(value["base64"], validate=True), value["mime"])
    except (ValueError, TypeError):
        return value


def read_args(args: Json) -> Any:
    """Return the decoded arguments of a call; bytes in place of a list are the only argument."""
    if is_blob(args):
        return [read_value(args)]
    if isinstance(args, list):
        return [read_value(value) for value in args]
    if isinstance(args, dict):
        return {name: read_value(value) for name, value in args.items()}
    return args


# JSON allows numbers that no Python float can hold, such as 1e999. Other daemons pass them on, and one of them must not
# cost a peer the values beside it. So a text that cannot be decoded as a whole is decoded part by part, and an error
# takes the place of the one value.


def decode_value(raw: bytes) -> Json:
    """Decode a JSON text; a ``ValueError`` says why it cannot be read."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        cause = str(error).lower()
        raise ValueError(f"it has a number that cannot be read ({cause}); its owner should send it as text") from None


def decode_or_explain(raw: bytes, path: str) -> Any:
    """Decode a value, or return the ``InvalidValue`` that says why it cannot be read."""
    try:
        return decode_value(raw)
    except ValueError as error:
        return InvalidValue(path, str(error))


def decode_entries(raw: bytes, path: str) -> Any:
    """Decode a result that cannot be read as a whole: in a list of states each value by itself.

    For any other result the error is raised.
    """
    try:
        if bytes(raw)[:1] != b"[":
            raise ValueError
        return [_decode_entry(member) for member in _decode_members(raw)]
    except (ValueError, msgspec.MsgspecError):
        pass
    outcome = decode_or_explain(raw, path)
    if isinstance(outcome, InvalidValue):
        raise outcome
    return outcome


def _decode_entry(member: Raw) -> JsonObject:
    fields = _decode_fields(member)
    path = decode_value(fields.get("path", Raw(b'""')))
    return {name: decode_or_explain(text, path) for name, text in fields.items()}


_decode_members = msgspec.json.Decoder(list[Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
