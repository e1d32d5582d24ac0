"""Schemas: descriptions of states and methods, and tests of values against them.

The owner of an element describes it with a text, or with an object that is a small part of JSON Schema plus the words
that plants need::

    {"type": "number", "title": "Speed", "minimum": 0, "maximum": 3000, "readOnly": true,     JSON Schema
     "unit": "rpm", "normal": [200, 2800], "step": false, "stale": 5, "precision": 1}         ours

- ``read_schema`` turns either form into a ``Schema``. It never fails: a member that is malformed counts as absent, and
  members that it does not know stay in ``Schema.members``. So a reader can show the descriptions of any other program.
- ``find_fault`` is the strict counterpart for owners, so that they are told of their mistakes.
- ``Schema.find_mismatch`` tests a value. Its time grows linearly with the value, whatever the schema: the daemon runs
  it for other peers. Hence values of ``enum`` are looked up by hash, and of ``properties`` only those that the value
  has are visited.
- ``describe_type`` derives a schema from a Python type.

The rest is about single values: the time at which their owner measured them, and their quality, a word on how far they
can be trusted.

Nothing here knows the wire or the bus.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
from msgspec import Struct

from jetbus.errors import Invalid
from jetbus.json_types import Json, JsonObject

TYPES = ("null", "boolean", "object", "array", "number", "integer", "string")
"""Words for ``type``, as in JSON Schema."""
LEVELS = ("good", "uncertain", "bad")
"""Words for the quality of a value, from the best to the worst."""
STALE_S_MAX = 366 * 86_400.0
"""Longest ``stale`` of a state: a year."""
DEPTH_MAX = 32
"""Levels of ``properties`` and ``items`` that are read; deeper ones describe nothing."""


class Mismatch(NamedTuple):
    """A member of a value that does not fit its schema."""

    member: str
    """Its place, like ``value.motors[2].speed``; ``value`` is the whole."""
    reason: str

    def __str__(self) -> str:
        return f"{self.member} {self.reason}"


class Schema(Struct, frozen=True):
    """A description of an element; members that it lacks are None or empty."""

    type: tuple[str, ...] = ()
    """Types that a value may have; empty for any."""
    title: str | None = None
    description: str | None = None
    enum: tuple[Json, ...] = ()
    """Values that are allowed; empty for any."""
    minimum: float | None = None
    maximum: float | None = None
    properties: Mapping[str, Schema] = {}
    """Schemas of the members of an object."""
    items: Schema | None = None
    """Schema of the members of a list."""
    required: tuple[str, ...] = ()
    """Members that an object must have."""
    read_only: bool = False
    unit: str | None = None
    """Unit of the value: UCUM or free text."""
    normal: tuple[float | None, float | None] | None = None
    """Low and high end of the range in which nothing is wrong; either may be open."""
    step: bool | None = None
    """True if a value holds until the next one, False if values between two are to be interpolated."""
    stale_s: float | None = None
    """Seconds without a change after which the value is stale."""
    precision: int | None = None
    """Digits after the decimal point that mean something."""
    members: Mapping[str, Json] = {}
    """The description as its owner wrote it, with members that are unknown or malformed; empty for a text."""
    allowed: frozenset[Json] = frozenset()
    """Members of ``enum`` in a form that is looked up by hash."""

    @property
    def is_empty(self) -> bool:
        """True if it says nothing."""
        return not self.members and self.description is None

    def find_mismatch(self, value: Json) -> Mismatch | None:
        """Return the first member of a value that does not fit, None if all fit.

        >>> speed = read_schema({"type": "number", "maximum": 3000})
        >>> str(speed.find_mismatch(4000))
        'value is 4000, above the maximum 3000'
        """
        found = _find_mismatch(self, value)
        return None if found is None else Mismatch(f"value{found.member}", found.reason)


# -- reading


def read_schema(described: str | Mapping[str, Json] | None) -> Schema:
    """Return a description as a ``Schema``. A text counts as the JSON object in it, or else as ``description``.

    >>> speed = read_schema({"unit": "rpm", "minimum": "zero"})
    >>> speed.unit, speed.minimum
    ('rpm', None)
    >>> read_schema("speed of the pump").description
    'speed of the pump'
    """
    if isinstance(described, str):
        members = _read_json_object(described)
        return Schema(description=described) if members is None else _read_object(members)
    return Schema() if described is None else _read_object(described)


def _read_json_object(text: str) -> Mapping[str, Json] | None:
    if text.lstrip()[:1] != "{":
        return None
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None


def _read_object(members: Mapping[str, Json], depth: int = 0) -> Schema:
    fields: JsonObject = {"members": members}
    for name, (field, read) in _MEMBERS.items():
        if name in members:
            try:
                fields[field] = read(members[name])
            except _MalformedMember:
                continue
    if "enum" in fields:
        fields["allowed"] = frozenset(map(_freeze, fields["enum"]))
    inside = {name: fields.pop(name) for name in ("properties", "items") if name in fields}
    if depth < DEPTH_MAX:
        if "properties" in inside:
            fields["properties"] = {
                name: _read_object(inner, depth + 1) for name, inner in inside["properties"].items()
            }
        if "items" in inside:
            fields["items"] = _read_object(inside["items"], depth + 1)
    return Schema(**fields)


def find_fault(members: Mapping[str, Json], name: str = "schema", depth: int = 0) -> Mismatch | None:
    """Return the first malformed member of a description, None if all that are known are well-formed.

    >>> str(find_fault({"unit": "rpm", "minimum": "zero"}))
    'schema.minimum must be a number'
    """
    if depth > DEPTH_MAX:
        return Mismatch(name, f"is nested deeper than {DEPTH_MAX} levels")
    for member, (_, read) in _MEMBERS.items():
        if member not in members:
            continue
        given, place = members[member], f"{name}.{member}"
        try:
            read(given)
        except _MalformedMember as problem:
            return Mismatch(place, str(problem))
        nested = given if member == "properties" else {"": given} if member == "items" else {}
        for key, inner in nested.items():
            fault = find_fault(inner, f"{place}.{key}" if key else place, depth + 1)
            if fault is not None:
                return fault
    low, high = members.get("minimum"), members.get("maximum")
    if low is not None and high is not None and low > high:
        return Mismatch(f"{name}.minimum", f"is {low}, above the maximum {high}")
    return None


class _MalformedMember(Exception):
    """A member of a description has a value that means nothing; the text says what it must be."""


def _read_types(given: Json) -> tuple[str, ...]:
    types = given if isinstance(given, list | tuple) else [given]
    if not types or any(one not in TYPES for one in types if isinstance(one, str)) or not _are_texts(types):
        raise _MalformedMember(f"must be one of {', '.join(TYPES)}, or a list of them")
    return tuple(types)


def _are_texts(given: Json) -> bool:
    return all(isinstance(one, str) for one in given)


def _read_text(given: Json) -> str:
    if not isinstance(given, str):
        raise _MalformedMember("must be a text")
    return given


def _read_flag(given: Json) -> bool:
    if not isinstance(given, bool):
        raise _MalformedMember("must be true or false")
    return given


def _is_number(given: Json) -> bool:
    if isinstance(given, float):
        return math.isfinite(given)
    return isinstance(given, int) and not isinstance(given, bool)


def _read_number(given: Json) -> float:
    if not _is_number(given):
        raise _MalformedMember("must be a number")
    return given  # type: ignore[no-any-return]  # an int stays an int


def _read_enum(given: Json) -> tuple[Json, ...]:
    if not isinstance(given, list | tuple) or not given:
        raise _MalformedMember("must be a list of the allowed values")
    return tuple(given)


def _read_required(given: Json) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not _are_texts(given):
        raise _MalformedMember("must be a list of names")
    return tuple(given)


def _read_properties(given: Json) -> Mapping[str, Json]:
    """Return descriptions by name; the caller reads them."""
    if not isinstance(given, Mapping) or not all(isinstance(inner, Mapping) for inner in given.values()):
        raise _MalformedMember("must be an object of schemas")
    return given


def _read_items(given: Json) -> Mapping[str, Json]:
    if not isinstance(given, Mapping):
        raise _MalformedMember("must be a schema")
    return given


def _read_normal(given: Json) -> tuple[float | None, float | None]:
    if (
        not isinstance(given, list | tuple)
        or len(given) != 2
        or not all(one is None or _is_number(one) for one in given)
    ):
        raise _MalformedMember("must be a list of two numbers, low and high; null leaves an end open")
    low, high = given
    if low is not None and high is not None and low > high:
        raise _MalformedMember(f"must have its low end first, and {low} is above {high}")
    return low, high


def _read_stale(given: Json) -> float:
    if not _is_number(given) or not 0 < given <= STALE_S_MAX:
        raise _MalformedMember(f"must be a number of seconds above 0 and up to {STALE_S_MAX:.0f}")
    return float(given)


def _read_precision(given: Json) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 20:
        raise _MalformedMember("must be a number of digits, 0 to 20")
    return given


_MEMBERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "type": ("type", _read_types),
    "title": ("title", _read_text),
    "description": ("description", _read_text),
    "enum": ("enum", _read_enum),
    "minimum": ("minimum", _read_number),
    "maximum": ("maximum", _read_number),
    "properties": ("properties", _read_properties),
    "items": ("items", _read_items),
    "required": ("required", _read_required),
    "readOnly": ("read_only", _read_flag),
    "unit": ("unit", _read_text),
    "normal": ("normal", _read_normal),
    "step": ("step", _read_flag),
    "stale": ("stale_s", _read_stale),
    "precision": ("precision", _read_precision),
}
"""Members of a description: field of ``Schema`` and reader."""

NAMES = {field: name for name, (field, _) in _MEMBERS.items()}
"""Names of the fields of ``Schema`` in a description."""


# -- tests of values


def _find_mismatch(schema: Schema, value: Json) -> Mismatch | None:
    """Return the first mismatch, with its place below this value: the place is only composed on the way back."""
    if schema.type and not any(_IS_OF_TYPE[one](value) for one in schema.type):
        return Mismatch("", f"is of type {_name_type(value)}, not {' or '.join(schema.type)}")
    if schema.enum and _freeze(value) not in schema.allowed:
        return Mismatch("", f"is {_shorten(value)}, not one of {_shorten(schema.enum)}")
    if isinstance(value, dict):
        return _find_in_object(schema, value)
    if isinstance(value, list):
        return _find_in_list(schema, value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if schema.minimum is not None and value < schema.minimum:
            return Mismatch("", f"is {_shorten(value)}, below the minimum {schema.minimum}")
        if schema.maximum is not None and value > schema.maximum:
            return Mismatch("", f"is {_shorten(value)}, above the maximum {schema.maximum}")
    return None


def _find_in_object(schema: Schema, value: JsonObject) -> Mismatch | None:
    # An object with fewer members than are required lacks one of the first: the loop is hardly longer than the object.
    for name in schema.required:
        if name not in value:
            return Mismatch(f".{name}", "is missing")
    if schema.properties:
        for name, inner in value.items():
            if name in schema.properties:
                found = _find_mismatch(schema.properties[name], inner)
                if found is not None:
                    return Mismatch(f".{name}{found.member}", found.reason)
    return None


def _find_in_list(schema: Schema, value: list[Json]) -> Mismatch | None:
    if schema.items is None:
        return None
    for position, inner in enumerate(value):
        found = _find_mismatch(schema.items, inner)
        if found is not None:
            return Mismatch(f"[{position}]{found.member}", found.reason)
    return None


_IS_OF_TYPE: dict[str, Callable[[Json], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
    "string": lambda value: isinstance(value, str),
}


def _name_type(value: Json) -> str:
    return next((name for name, is_of in _IS_OF_TYPE.items() if is_of(value)), type(value).__name__)


def _freeze(value: Json) -> Json:
    """Return a value that can be hashed, and equals another one exactly if the JSON values are equal."""
    if isinstance(value, bool):
        return "boolean", value  # in Python, True equals 1
    if isinstance(value, list | tuple):
        return "array", tuple([_freeze(one) for one in value])
    if isinstance(value, dict):
        return "object", frozenset([(name, _freeze(inner)) for name, inner in value.items()])
    return value


SHORT_CHARS = 100


def _shorten(value: Json) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= SHORT_CHARS else text[: SHORT_CHARS - 3] + "..."


# -- descriptions by owners


class Described(TypedDict, total=False):
    """Keywords by which a Python program describes a state; those of ``Schema``, with units in their names."""

    schema: str | Mapping[str, Json]
    """A description as a whole; the other keywords are added to it."""
    title: str
    description: str
    enum: Sequence[Json]
    minimum: float
    maximum: float
    unit: str
    normal: Sequence[float | None]
    step: bool
    stale_s: float
    precision: int
    check: bool
    """True if the daemon is to refuse values of sets that do not fit."""


def make_schema(value_type: Any, described: Described) -> str | dict[str, Any] | None:
    """Return the description of a state from its type and the owner's keywords; None if they say nothing.

    >>> make_schema(float, {"unit": "rpm", "stale_s": 5})
    {'type': 'number', 'unit': 'rpm', 'stale': 5}
    """
    unknown = described.keys() - Described.__annotations__.keys()
    if unknown:
        raise TypeError(f"a state has no {', '.join(sorted(unknown))}; put other members into schema={{...}}")
    whole = described.get("schema")
    words = {
        NAMES[word]: value for word, value in described.items() if word not in ("schema", "check") and value is not None
    }
    if isinstance(whole, str):
        if words:
            raise TypeError("a schema that is a text has no other members; put the text into description=")
        return whole
    members = {**_describe_briefly(value_type), **(whole or {}), **words}
    fault = find_fault(members)
    if fault is not None:
        raise Invalid(fault.member, str(fault))
    return members or None


def _describe_briefly(value_type: Any) -> dict[str, Any]:
    """Return the description of a type; empty where it has none, or only one that is too long to be of use."""
    if value_type is None:
        return {}
    try:
        described = describe_type(value_type)
    except (TypeError, RecursionError):
        return {}
    return described if len(msgspec.json.encode(described)) <= TYPE_BYTES_MAX else {}


TYPE_BYTES_MAX = 32_768
"""Bytes of a description that is made from a type; daemons accept twice as many."""


# -- Python types


def describe_type(python_type: Any) -> dict[str, Any]:
    """Return the description of a Python type: a number, a list, a dataclass, a msgspec Struct, an Enum, a Literal ...

    >>> describe_type(list[int])
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    (described,), parts = msgspec.json.schema_components([python_type], ref_template="{name}")
    inlined: JsonObject = _inline(described, parts, ())
    return inlined


def _inline(described: Json, parts: Mapping[str, Json], within: tuple[str, ...]) -> Json:
    """Replace references by their targets; inside itself a type is described as any object."""
    if isinstance(described, list):
        return [_inline(one, parts, within) for one in described]
    if not isinstance(described, dict):
        return described
    if "$ref" in described:
        name = described["$ref"]
        if name in within:
            return {}
        others = {member: inner for member, inner in described.items() if member != "$ref"}
        return _inline(parts[name], parts, (*within, name)) | others
    inlined = {member: _inline(inner, parts, within) for member, inner in described.items()}
    # The end of a tuple; its length says it as well, in words that ``Schema`` knows to pass on.
    if inlined.get("items") is False:
        del inlined["items"]
    # Alternatives that differ in their types only, like ``int | None``, have a word that ``Schema`` knows.
    types = [one.get("type") if len(one) == 1 else None for one in inlined.get("anyOf", ())]
    if types and all(isinstance(one, str) for one in types):
        del inlined["anyOf"]
        return {"type": types, **inlined}
    return inlined


# -- time


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)
TIMES_US = ((datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND, (_LAST - _EPOCH) // _MICROSECOND)
"""The first and the last time that can be written."""


def read_time(given: Any) -> int:
    """Return the time of a value in microseconds since 1970, given so, as RFC 3339 text with an offset, or as datetime.

    >>> read_time("1970-01-01T01:00:01+01:00")
    1000000
    """
    if isinstance(given, str):
        try:
            given = msgspec.convert(given, Annotated[datetime, msgspec.Meta(tz=True)])
        except msgspec.ValidationError:
            given = None
    if isinstance(given, datetime):
        return (given.astimezone(UTC) - _EPOCH) // _MICROSECOND
    if isinstance(given, int) and not isinstance(given, bool) and TIMES_US[0] <= given <= TIMES_US[1]:
        return given
    raise ValueError("a time is RFC 3339 text with an offset, like 2026-03-01T12:00:00Z, or microseconds since 1970")


def write_time(time_us: int) -> str:
    """Return a time as RFC 3339 text in UTC.

    >>> write_time(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    """
    return (_EPOCH + time_us * _MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")


# -- quality


class Quality(NamedTuple):
    """A word on how far a value can be trusted, and why."""

    level: str
    """One of ``LEVELS``."""
    reason: str | None = None

    @property
    def is_good(self) -> bool:
        return self.level == "good"


GOOD = Quality("good")
"""Quality of a value if its owner says nothing about it."""


def read_quality(given: Json) -> Quality:
    """Return a quality that is given as a word, or as an object like ``{"level": "bad", "reason": "cable broken"}``.

    >>> read_quality({"level": "bad", "reason": "cable broken"})
    Quality(level='bad', reason='cable broken')
    """
    level, reason = (given.get("level"), given.get("reason")) if isinstance(given, Mapping) else (given, None)
    if not isinstance(level, str) or level not in LEVELS:
        raise ValueError(f"quality is one of {', '.join(LEVELS)}, or an object with such a level and perhaps a reason")
    if reason is not None and not isinstance(reason, str):
        raise ValueError("the reason of a quality is a text")
    return Quality(level, reason)
