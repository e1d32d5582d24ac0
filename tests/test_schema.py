"""Schemas: what descriptions say, which values fit them, and how types are described."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jetbus.schema import (
    GOOD,
    Quality,
    Schema,
    describe_type,
    find_fault,
    read_quality,
    read_schema,
)

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""A busy machine takes long to make values, too."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)

FULL = {
    "type": "number",
    "title": "Speed",
    "description": "of the pump",
    "enum": [0, 1.5],
    "minimum": 0,
    "maximum": 3000,
    "readOnly": True,
    "unit": "rpm",
    "normal": [200, 2800],
    "step": False,
    "stale": 5,
    "precision": 1,
    "vendor": {"id": 7},
}


def test_all_members_are_read() -> None:
    """Every known member has a field; the others stay in ``members``."""
    schema = read_schema(FULL)
    assert schema.type == ("number",)
    assert (schema.title, schema.description, schema.unit) == ("Speed", "of the pump", "rpm")
    assert (schema.minimum, schema.maximum, schema.normal) == (0, 3000, (200, 2800))
    assert (schema.read_only, schema.step, schema.stale_s, schema.precision) == (True, False, 5.0, 1)
    assert schema.enum == (0, 1.5)
    assert schema.members == FULL
    assert find_fault(FULL) is None


def test_objects_and_lists_are_read() -> None:
    """``properties``, ``required`` and ``items`` are read to any depth."""
    schema = read_schema({"properties": {"motors": {"items": {"properties": {"speed": {"unit": "rpm"}}}}}})
    motors = schema.properties["motors"].items
    assert motors is not None
    assert motors.properties["speed"].unit == "rpm"


def test_texts_are_read() -> None:
    """A text describes the element; a text that is a JSON object, as peers of 2012 get it, is that object."""
    assert read_schema("speed of the pump") == Schema(description="speed of the pump")
    assert read_schema(' {"unit":"rpm"}').unit == "rpm"
    assert read_schema("{not JSON").description == "{not JSON"
    assert read_schema("[1]").description == "[1]"
    assert read_schema(None).is_empty


MALFORMED: dict[str, tuple[Any, str]] = {
    "type": ("float", "schema.type must be one of null, boolean,"),
    "title": (1, "schema.title must be a text"),
    "description": (None, "schema.description must be a text"),
    "enum": ([], "schema.enum must be a list of the allowed values"),
    "minimum": ("0", "schema.minimum must be a number"),
    "maximum": (True, "schema.maximum must be a number"),
    "properties": ({"a": 1}, "schema.properties must be an object of schemas"),
    "items": ([], "schema.items must be a schema"),
    "required": ("a", "schema.required must be a list of names"),
    "readOnly": ("yes", "schema.readOnly must be true or false"),
    "unit": (7, "schema.unit must be a text"),
    "normal": ([5, 1], "schema.normal must have its low end first, and 5 is above 1"),
    "step": (1, "schema.step must be true or false"),
    "stale": (0, "schema.stale must be a number of seconds above 0 and up to 31622400"),
    "precision": (1.5, "schema.precision must be a number of digits, 0 to 20"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_members_are_ignored_by_readers(name: str) -> None:
    """A reader treats a malformed member as absent; an owner is told which one it is and what it must be."""
    value, text = MALFORMED[name]
    schema = read_schema({name: value, "x": 1})
    assert schema == Schema(members={name: value, "x": 1})
    assert str(find_fault({name: value})).startswith(text)


def test_faults_inside_are_named_by_their_place() -> None:
    """The place of a fault leads through properties and items."""
    fault = find_fault({"properties": {"motors": {"items": {"minimum": "0"}}}})
    assert str(fault) == "schema.properties.motors.items.minimum must be a number"
    assert str(find_fault({"minimum": 2, "maximum": 1})) == "schema.minimum is 2, above the maximum 1"


@PATIENT
@given(JSON)
def test_nothing_makes_a_reader_fail(described: Any) -> None:
    """Whatever an owner has written, it can be read."""
    if isinstance(described, dict):
        assert read_schema(described).members == described
        assert read_schema(json.dumps(described)).members == json.loads(json.dumps(described))
    read_schema(dict.fromkeys(FULL, described))


MISMATCHES: list[tuple[Any, Any, str | None]] = [
    ({"type": "number"}, 1.5, None),
    ({"type": "number"}, "1", "value is of type string, not number"),
    ({"type": "number"}, True, "value is of type boolean, not number"),
    ({"type": "integer"}, 2.0, None),
    ({"type": "integer"}, 2.5, "value is of type number, not integer"),
    ({"type": ["integer", "null"]}, None, None),
    ({"type": ["integer", "null"]}, [], "value is of type array, not integer or null"),
    ({"minimum": 0, "maximum": 10}, 10, None),
    ({"minimum": 0}, -1, "value is -1, below the minimum 0"),
    ({"maximum": 10}, 10.5, "value is 10.5, above the maximum 10"),
    ({"minimum": 0}, "text is not compared", None),
    ({"enum": ["on", "off"]}, "off", None),
    ({"enum": ["on", "off"]}, "of", 'value is "of", not one of ["on", "off"]'),
    ({"enum": [1]}, True, "value is true, not one of [1]"),
    ({"enum": [1]}, 1.0, None),
    ({"enum": [{"a": [1, {}]}]}, {"a": [1.0, {}]}, None),
    ({"enum": [{"a": [1]}]}, {"a": [True]}, 'value is {"a": [true]}, not one of [{"a": [1]}]'),
    ({"required": ["a", "b"]}, {"a": 1}, "value.b is missing"),
    ({"properties": {"a": {"maximum": 1}}}, {"b": 5}, None),
    ({"properties": {"a": {"items": {"maximum": 1}}}}, {"a": [0, 1, 5]}, "value.a[2] is 5, above the maximum 1"),
    ({"items": {"type": "string"}}, ["a", None], "value[1] is of type null, not string"),
    ({"unit": "rpm"}, object, None),
]


@pytest.mark.parametrize(("schema", "value", "expected"), MISMATCHES)
def test_mismatches_name_the_member(schema: Any, value: Any, expected: str | None) -> None:
    """A value that does not fit is refused with the place and the reason."""
    found = read_schema(schema).find_mismatch(value)
    assert (None if found is None else str(found)) == expected


def test_large_values_take_linear_time() -> None:
    """Long lists of values from a long enum, or of objects with many possible members, are tested in an instant."""
    names = [f"name{number}" for number in range(20_000)]
    chosen = read_schema({"items": {"enum": names}})
    wide = read_schema({"items": {"properties": {name: {"type": "string"} for name in names}}})
    # Compared one by one, each of these would take 400 million steps, which no test survives.
    assert chosen.find_mismatch(names) is None
    assert wide.find_mismatch([{} for _ in names]) is None
    required = read_schema({"items": {"required": names[:2]}})
    assert str(required.find_mismatch([{"name0": 1, "name1": 1}] * 20_000 + [{}])) == "value[20000].name0 is missing"


@PATIENT
@given(JSON, JSON)
def test_enum_is_equality_of_json(one: Any, other: Any) -> None:
    """A value fits an enum exactly if it equals a member, where true is not 1."""

    def plain(value: Any) -> Any:
        if isinstance(value, bool):
            return str(value), "boolean"
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return {name: plain(inner) for name, inner in value.items()} if isinstance(value, dict) else value

    schema = read_schema({"enum": [one]})
    assert schema.find_mismatch(one) is None
    assert (schema.find_mismatch(other) is None) is (plain(one) == plain(other))


class Mode(enum.Enum):
    """Mode of a pump."""

    ON = "on"
    OFF = "off"


@dataclasses.dataclass
class Pump:
    """A pump."""

    speed: Annotated[float, msgspec.Meta(ge=0, le=3000, extra_json_schema={"unit": "rpm"})]
    mode: Mode = Mode.OFF
    spare: Pump | None = None


class Reading(msgspec.Struct):
    """A reading."""

    values: list[int]


TYPES_DESCRIBED: list[tuple[Any, dict[str, Any]]] = [
    (int, {"type": "integer"}),
    (float | None, {"type": ["number", "null"]}),
    (bool, {"type": "boolean"}),
    (Literal["a", "b"], {"enum": ["a", "b"]}),
    (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
    (
        Reading,
        {
            "title": "Reading",
            "description": "A reading.",
            "type": "object",
            "properties": {"values": {"type": "array", "items": {"type": "integer"}}},
            "required": ["values"],
        },
    ),
]


@pytest.mark.parametrize(("python_type", "described"), TYPES_DESCRIBED)
def test_types_are_described(python_type: Any, described: dict[str, Any]) -> None:
    """Python types have a description without references."""
    assert describe_type(python_type) == described
    assert find_fault(described) is None


def test_dataclasses_are_described() -> None:
    """A dataclass becomes an object with units and ranges; inside itself it is any object."""
    described = describe_type(Pump)
    schema = read_schema(described)
    assert schema.properties["speed"].unit == "rpm"
    assert schema.properties["speed"].maximum == 3000
    assert set(schema.properties["mode"].enum) == {"on", "off"}
    assert schema.required == ("speed",)
    assert "$ref" not in json.dumps(described)
    assert str(schema.find_mismatch({"speed": 4000})) == "value.speed is 4000, above the maximum 3000"


def test_quality_is_a_word_or_an_object() -> None:
    """A quality is one of three words, alone or with a reason."""
    assert read_quality("good") == GOOD
    assert GOOD.is_good
    assert read_quality("bad") == Quality("bad")
    assert read_quality({"level": "uncertain", "reason": "drift", "code": 7}) == Quality("uncertain", "drift")


@pytest.mark.parametrize(
    "quality", ["fine", None, 0, {}, {"reason": "x"}, {"level": ["bad"]}, {"level": "bad", "reason": 1}]
)
def test_other_qualities_are_refused(quality: Any) -> None:
    """Anything else is an error that says what is allowed."""
    with pytest.raises(ValueError, match="quality"):
        read_quality(quality)
