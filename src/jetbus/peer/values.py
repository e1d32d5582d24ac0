"""Values that are no JSON: bytes with a mime type, instants, and what stands for them in JSON.

On every bus, binary or JSON, ``bytes`` go out as ``{"mime": ..., "base64": ...}`` or as themselves, and come in as
``Blob``. Only a whole value, a whole argument or a whole result is read so; what is inside of one stays a dict.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Self

import msgspec
from msgspec import Raw

from jetbus.errors import InvalidValue

_BYTES = (bytes, bytearray, memoryview)
JSON_TYPES = frozenset((bool, int, float, str, list, dict, NoneType))
"""The types of nearly all values: one look tells that they are no bytes."""
_KEYS = {"mime", "base64"}
OCTETS = "application/octet-stream"


Instant = datetime | str | int
"""An instant of the past: a datetime, RFC 3339 text, ``"-2h"``, or microseconds since 1970."""


def write_moment(instant: Instant) -> str | int:
    """An instant as a daemon reads it."""
    if isinstance(instant, datetime):
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).isoformat()
    return instant


class Blob(bytes):
    """Bytes with a mime type; a value that is no JSON.

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


def plain(value: Any) -> Any:
    """A value as JSON can tell it."""
    if type(value) not in JSON_TYPES and isinstance(value, _BYTES):
        return {"mime": getattr(value, "mime", OCTETS), "base64": b64encode(value).decode()}
    return value


def encode_value(value: Any) -> bytes:
    """A value as JSON text."""
    return encode_plain(plain(value))


def plain_args(args: Any) -> Any:
    """The arguments of a call, positional or named, as JSON can tell them."""
    named = isinstance(args, dict)
    for value in args.values() if named else args:
        if type(value) not in JSON_TYPES:
            return {name: plain(value) for name, value in args.items()} if named else [plain(value) for value in args]
    return args


def encode_args(args: Any) -> bytes:
    """The arguments of a call as JSON text."""
    return encode_plain(plain_args(args))


def _told(value: Any) -> Any:
    """A ``Blob`` inside of a value."""
    if isinstance(value, Blob):
        return plain(value)
    raise TypeError(f"a {type(value).__name__} is no JSON; give numbers, text, lists, dicts, bytes or a dataclass")


encode_plain = msgspec.json.Encoder(enc_hook=_told).encode
"""What is plain as JSON text, with a ``Blob`` at any depth."""


def is_blob(value: Any) -> bool:
    """Whether a value that was told stands for bytes."""
    return type(value) is dict and value.keys() == _KEYS


def may_tell_blobs(text: bytes, messages: int) -> bool:
    """Whether a value in a JSON text of that many messages may stand for bytes.

    Mostly there is no object in it but the messages, which is found out at the speed of memory.
    """
    at = -1
    for _ in range(messages + 1):
        at = text.find(b"{", at + 1)
        if at < 0:
            return False
    return text.rfind(b"base64") >= 0 or b"\\" in text  # in long texts rfind is much faster than find


def read_value(value: Any) -> Any:
    """A value that was told, as a ``Blob`` if it stands for one."""
    if not is_blob(value):
        return value
    try:
        return Blob(b64decode(value["base64"], validate=True), value["mime"])
    except (ValueError, TypeError):
        return value


def decode_value(raw: bytes) -> Any:
    """Decode a JSON text; a ``ValueError`` says why it cannot be read."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as problem:
        cause = str(problem).lower()
        raise ValueError(f"it has a number that cannot be read ({cause}); its owner should send it as text") from None


def decode_or_tell(raw: bytes, path: str) -> Any:
    """Decode a value; if it cannot be read, the error that says so takes its place."""
    try:
        return decode_value(raw)
    except ValueError as problem:
        return InvalidValue(path, str(problem))


def decode_entries(raw: bytes, path: str) -> Any:
    """Decode a result that cannot be read as a whole: of a list of states, each value by itself.

    Whatever else it is, the error is raised.
    """
    try:
        if bytes(raw)[:1] != b"[":
            raise ValueError
        return [_decode_entry(member) for member in _decode_members(raw)]
    except (ValueError, msgspec.MsgspecError):
        pass
    outcome = decode_or_tell(raw, path)
    if isinstance(outcome, InvalidValue):
        raise outcome
    return outcome


def _decode_entry(member: Raw) -> dict[str, Any]:
    fields = _decode_fields(member)
    path = decode_value(fields.get("path", Raw(b'""')))
    return {name: decode_or_tell(text, path) for name, text in fields.items()}


_decode_members = msgspec.json.Decoder(list[Raw]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode


def read_args(args: Any) -> Any:
    """The arguments of a call; bytes alone are the only argument."""
    if is_blob(args):
        return [read_value(args)]
    if isinstance(args, list):
        return [read_value(value) for value in args]
    if isinstance(args, dict):
        return {name: read_value(value) for name, value in args.items()}
    return args
