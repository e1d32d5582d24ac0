"""JSON documents as variants, the binary form that Spark and Parquet have for them.

A variant is two byte strings: the names of all members, each once, and the value, which refers to them by number.
Tasks that write events make them here; what comes out is what ``try_parse_json`` of Spark gives.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Variant", "variant"]

PRIMITIVE, SHORT_TEXT, OBJECT, ARRAY = range(4)
"""The two low bits of the first byte of a value."""
DOUBLE, LONG_TEXT = 7, 16
SHORT_TEXT_BYTES_MAX = 63
INTS = ((3, 1), (4, 2), (5, 4), (6, 8))
DECIMALS = ((8, 4, 9), (9, 8, 18), (10, 16, 38))
"""Types of primitive values and their sizes in bytes; for decimals also how many digits they have."""
VERSION = 1

Ids = dict[str, int]
"""The names of members by number, as they come."""


class Variant(NamedTuple):
    """A document."""

    metadata: bytes
    value: bytes


def variant(text: str) -> Variant | None:
    """A document as a variant; None where Spark takes none, such as an object that has a member twice."""
    ids: Ids = {}
    try:
        value = _encoded(_READER.decode(text), ids)
    except (ValueError, RecursionError):
        return None
    return Variant(_metadata(ids), value)


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a member is there twice")
    return members


def _metadata(ids: Ids) -> bytes:
    names = [name.encode("utf-8", "replace") for name in ids]
    width = _width(max(sum(map(len, names)), len(names)))
    head = bytes([VERSION | (width - 1) << 6]) + len(names).to_bytes(width, "little")
    return head + _offsets(map(len, names), width) + b"".join(names)


def _width(largest: int) -> int:
    """How many bytes it takes to write numbers up to this one."""
    return 1 if largest < 1 << 8 else 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


def _offsets(sizes: Any, width: int) -> bytes:
    """Where each of some things ends up that follow one another, and where the last one ends."""
    at, found = 0, [bytes(width)]
    for size in sizes:
        at += size
        found.append(at.to_bytes(width, "little"))
    return b"".join(found)


# -- values


def _encoded(value: Any, ids: Ids) -> bytes:
    return _BY_TYPE[type(value)](value, ids)


def _primitive(kind: int, rest: bytes = b"") -> bytes:
    return bytes([kind << 2 | PRIMITIVE]) + rest


def _text(text: str, _ids: Ids) -> bytes:
    told = text.encode("utf-8", "replace")
    if len(told) <= SHORT_TEXT_BYTES_MAX:
        return bytes([len(told) << 2 | SHORT_TEXT]) + told
    return _primitive(LONG_TEXT, len(told).to_bytes(4, "little") + told)


def _whole(number: int, _ids: Ids) -> bytes:
    for kind, size in INTS:
        if -1 << 8 * size - 1 <= number < 1 << 8 * size - 1:
            return _primitive(kind, number.to_bytes(size, "little", signed=True))
    return _real(str(number))


def _real(text: str) -> bytes:
    """A number with a point or an exponent: a decimal if it is one of no more than 38 digits."""
    whole, _, fraction = text.lstrip("-").partition(".")
    digits = whole + fraction
    if digits.isdecimal():
        scale, precision = len(fraction), len(digits.lstrip("0"))
        for kind, size, digits_max in DECIMALS:
            if max(scale, precision) <= digits_max:
                number = -int(digits) if text[0] == "-" else int(digits)
                return _primitive(kind, bytes([scale]) + number.to_bytes(size, "little", signed=True))
    return _primitive(DOUBLE, struct.pack("<d", float(text)))


def _array(values: list[Any], ids: Ids) -> bytes:
    parts = [_encoded(value, ids) for value in values]
    data = b"".join(parts)
    width, is_large = _width(len(data)), len(parts) > 0xFF
    head = bytes([is_large << 4 | (width - 1) << 2 | ARRAY]) + len(parts).to_bytes(4 if is_large else 1, "little")
    return head + _offsets(map(len, parts), width) + data


def _object(members: dict[str, Any], ids: Ids) -> bytes:
    at, parts, places = 0, [], {}
    for name, member in members.items():
        number = ids.setdefault(name, len(ids))
        parts.append(_encoded(member, ids))
        places[name] = (number, at)
        at += len(parts[-1])
    width, is_large = _width(at), len(parts) > 0xFF
    id_width = _width(max((number for number, _ in places.values()), default=0))
    ordered = [places[name] for name in sorted(places)]
    return b"".join(
        (
            bytes([is_large << 6 | (id_width - 1) << 4 | (width - 1) << 2 | OBJECT]),
            len(parts).to_bytes(4 if is_large else 1, "little"),
            *(number.to_bytes(id_width, "little") for number, _ in ordered),
            *(place.to_bytes(width, "little") for _, place in ordered),
            at.to_bytes(width, "little"),
            *parts,
        )
    )


_BY_TYPE: dict[type, Callable[[Any, Ids], bytes]] = {
    dict: _object,
    list: _array,
    str: _text,
    int: _whole,
    bytes: lambda told, _ids: told,  # a number that was written as it was read
    bool: lambda flag, _ids: _primitive(1 if flag else 2),
    type(None): lambda _none, _ids: _primitive(0),
}

_READER = json.JSONDecoder(parse_float=_real, parse_constant=_refused, object_pairs_hook=_members)
