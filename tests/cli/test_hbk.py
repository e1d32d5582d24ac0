"""Schemas from the states by which devices of HBK and openDAQ describe themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.cli.hbk import find_descriptions
from jetbus.schema import find_fault, read_schema

RPM = {
    "NamespaceUri": "http://www.opcfoundation.org/UA/units/un/cefact",
    "UnitId": 5394509,
    "Quantity": "rotational speed",
    "DisplayName": {"locale": "", "text": "rpm"},
    "Description": {"locale": "", "text": "revolutions per minute"},
}

NODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "unit": ({"EngineeringUnits": RPM}, {"unit": "rpm"}),
    "range": ({"EuRange": {"MinValue": 0.0, "MaxValue": 3000.0}}, {"normal": [0.0, 3000.0]}),
    "open range": ({"EuRange": {"MinValue": 5}}, {"normal": [5, None]}),
    "limits": ({"MinValue": -1, "MaxValue": 7}, {"minimum": -1, "maximum": 7}),
    "enum": (
        {"_enumValues": [{"_name": "A", "_description": "first", "_value": 100}, {"_name": "B", "_value": 200}]},
        {"enum": [100, 200], "enumNames": ["A", "B"]},
    ),
    "selection": (
        {"_selectionValues": [{"_key": 1, "_value": "slow"}, {"_key": 2, "_value": "fast"}]},
        {"enum": [1, 2], "enumNames": ["slow", "fast"]},
    ),
    "variable": (
        {"DefaultValue": 3, "IsReadOnly": True, "SuggestedValues": [1, 2], "NumberInList": 7},
        {"default": 3, "readOnly": True, "examples": [1, 2]},
    ),
    "malformed": (
        {"EngineeringUnits": "rpm", "EuRange": [0, 1], "_enumValues": {}, "IsReadOnly": 1, "MinValue": "low"},
        {},
    ),
}


@pytest.mark.parametrize(("node", "wanted"), NODES.values(), ids=NODES)
def test_introspection(node: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Each member of an introspection becomes the members of a schema that mean the same."""
    found = find_descriptions({"/pump": {"speed": 8}, "/introspection/pump": {"speed": node}})
    assert found == {"/pump": {"type": "object", "properties": {"speed": wanted}}}
    assert find_fault(found["/pump"]) is None


PLACES = {
    "at the root": ("/pump", "/introspection/pump"),
    "without a slash": ("pump", "/introspection/pump"),
    "deep": ("/a/b/c_1", "/introspection/a/b/c_1"),
    "mounted": ("site/dev/pump", "site/dev/introspection/pump"),
}


@pytest.mark.parametrize(("path", "introspection"), PLACES.values(), ids=PLACES)
def test_the_described_state_is_found(path: str, introspection: str) -> None:
    """The introspection of a state is found wherever the device is mounted."""
    assert list(find_descriptions({introspection: {"x": {"MinValue": 1}}, path: {"x": 2}})) == [path]


def test_signal_of_opendaq() -> None:
    """The data descriptor of a signal gives title, unit and range of its state."""
    unit = {"UnitId": 4408652, "Description": "degree Celsius", "Quantity": "temperature", "DisplayName": "°C"}
    descriptor = {
        "Name": "AI0",
        "SampleType": 2,
        "Unit": unit,
        "ValueRange": {"Low": -10.0, "High": 10.0},
        "Rule": None,
    }
    found = find_descriptions({"/dev/Sig/AI0": {"Active": True, "Value": {"DataDescriptor": descriptor}}})
    assert found == {"/dev/Sig/AI0": {"title": "AI0", "unit": "°C", "minimum": -10.0, "maximum": 10.0}}
    assert find_descriptions({"/x": {"Value": {"DataDescriptor": None}}, "/y": {"Value": 3}, "/z": 7}) == {}


def test_types_of_objects() -> None:
    """Types give the properties of their instances, with those of their base type and of the introspection."""
    states: dict[str, Any] = {
        "/types/dataTypes/enum/mode": {"_type": "enum", "_title": "mode", "_value": {"off": 0, "auto": 1}},
        "/types/objectTypes/base": {
            "_type": "object",
            "_properties": {"on": {"_type": "bool", "_description": "runs"}},
        },
        "/types/objectTypes/pump": {
            "_type": "base",
            "_title": "pump",
            "_properties": {
                "mode": {"_type": "mode"},
                "speed": {"_type": "float", "_mandatory": True},
                "log": {"_type": "array", "_items": {"_type": "uint32"}},
            },
        },
        "/pumps/pump_1": {"_type": "pump", "speed": 3.5, "mode": 1, "on": True},
        "/introspection/pumps/pump_1": {"speed": {"EngineeringUnits": RPM}},
    }
    found = find_descriptions(states)["/pumps/pump_1"]
    assert found == {
        "type": "object",
        "title": "pump",
        "properties": {
            "on": {"description": "runs", "type": "boolean"},
            "mode": {"enum": [0, 1], "enumNames": ["off", "auto"]},
            "speed": {"type": "number", "unit": "rpm"},
            "log": {"type": "array", "items": {"type": "integer"}},
        },
    }
    assert str(read_schema(found).find_mismatch({"mode": 7})) == "value.mode is 7, not one of [0, 1]"


def test_types_that_inherit_from_themselves() -> None:
    """A type that is its own base, as the documentation of the convention has it, is described all the same."""
    own = {"_type": "loop", "_properties": {"x": {"_type": "int32"}}}
    found = find_descriptions({"/types/objectTypes/loop": own, "/a": {"_type": "loop"}})
    assert found["/a"] == {"type": "object", "properties": {"x": {"type": "integer"}}}


values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["x", "_type", "_value", "_enumValues", "EuRange", "Value"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["/a", "/introspection/a", "/types/objectTypes/x", "/types/dataTypes/y"]), values)
)
def test_anything_can_be_imported(states: dict[str, Any]) -> None:
    """Whatever a device publishes, descriptions are found or not, without an error."""
    for described in find_descriptions(states).values():
        read_schema(described)
