"""Schemas from the conventions of HBK's devices and of openDAQ, which describe states by further states.

The states of a device that is built with HBK's libraries lack a ``schema``. Their descriptions are beside them::

    /pump                     {"_type": "pumpType", "speed": 800, "mode": 1}        an object
    /introspection/pump       {"speed": {"EngineeringUnits": {...}, "EuRange": {...}},
                               "mode": {"_enumValues": [{"_name": "auto", "_value": 1}, ...]}}
    /types/objectTypes/pumpType    {"_properties": {"speed": {"_type": "float", "_description": ...}}}
    /types/dataTypes/enum/...      {"_value": {"auto": 1}}

openDAQ has the description of a signal in the state of the signal, as ``Value.DataDescriptor``. ``find_descriptions``
reads all of that and returns one schema per state, in the words of ``jetbus.schema``:

    DisplayName of EngineeringUnits or Unit      unit
    EuRange, the range of normal operation       normal
    MinValue, MaxValue, ValueRange               minimum, maximum
    _enumValues, _selectionValues, enum types    enum, enumNames
    IsReadOnly, DefaultValue, SuggestedValues    readOnly, default, examples

Whatever is malformed is left out; other members of a device's states are no business of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jetbus.json_types import Json, JsonObject

__all__ = ["find_descriptions"]

INTROSPECTION = "/introspection/"
"""Node of the descriptions, at the root of a device or below the prefix that it is mounted at."""
OBJECT_TYPES = "/types/objectTypes/"
DATA_TYPES = "/types/dataTypes/"

Members = JsonObject


def find_descriptions(states: Mapping[str, Json]) -> dict[str, Members]:
    """Return the schemas of described states by path, given all states of a device with their values.

    >>> units = {"speed": {"EngineeringUnits": {"DisplayName": {"locale": "", "text": "rpm"}}}}
    >>> find_descriptions({"/pump": {"speed": 8}, "/introspection/pump": units})
    {'/pump': {'type': 'object', 'properties': {'speed': {'unit': 'rpm'}}}}
    """
    types = _Types(states)
    found: dict[str, Members] = {}
    for path, value in states.items():
        if INTROSPECTION in path or not isinstance(value, Mapping):
            continue
        described = types.describe_object(value.get("_type")) | _describe_signal(value)
        if described:
            found[path] = described
    for path, value in states.items():
        if INTROSPECTION in path and isinstance(value, Mapping):
            target = _find_target(path, states)
            described = found.setdefault(target, {})
            described.setdefault("type", "object")
            properties = described.setdefault("properties", {})
            for name, node in value.items():
                if isinstance(node, Mapping):
                    properties[name] = properties.get(name, {}) | _describe_node(node)
    return found


def _find_target(path: str, states: Mapping[str, Json]) -> str:
    """Return the path of the state that an introspection describes."""
    # A path without a slash at its start gets one in its introspection.
    before, _, after = path.partition(INTROSPECTION)
    slashed, bare = f"{before}/{after}", after if not before else f"{before}/{after}"
    return bare if bare in states and slashed not in states else slashed


# -- introspection


def _describe_node(node: Mapping[str, Json]) -> Members:
    """Return the schema of a property from its introspection."""
    described: Members = {}
    unit = _read_unit(node.get("EngineeringUnits"))
    if unit:
        described["unit"] = unit
    low, high = _read_range(node.get("EuRange"), "MinValue", "MaxValue")
    if low is not None or high is not None:
        described["normal"] = [low, high]
    described |= _name_ends(*_read_range(node, "MinValue", "MaxValue"))
    described |= _describe_choices(node.get("_enumValues"), "_value", "_name")
    described |= _describe_choices(node.get("_selectionValues"), "_key", "_value")
    for theirs, (ours, is_valid) in _PLAIN_MEMBERS.items():
        if theirs in node and is_valid(node[theirs]):
            described[ours] = node[theirs]
    return described


_PLAIN_MEMBERS: dict[str, tuple[str, Callable[[Json], bool]]] = {
    "IsReadOnly": ("readOnly", lambda value: isinstance(value, bool)),
    "DefaultValue": ("default", lambda _value: True),
    "SuggestedValues": ("examples", lambda value: isinstance(value, list)),
}
"""Members of an introspection that keep their value: our name, and a test of the value."""


def _read_unit(unit: Json) -> str | None:
    """Return the text that a unit is shown by."""
    if not isinstance(unit, Mapping):
        return None
    # The same name is a localized text for OPC UA, and a plain one in openDAQ.
    name = unit.get("DisplayName")
    text = name.get("text") if isinstance(name, Mapping) else name
    return text if isinstance(text, str) and text else None


def _read_range(ends: Json, low: str, high: str) -> tuple[float | None, float | None]:
    if not isinstance(ends, Mapping):
        return None, None
    found = [ends.get(name) for name in (low, high)]
    first, last = (one if isinstance(one, int | float) and not isinstance(one, bool) else None for one in found)
    return first, last


def _name_ends(low: float | None, high: float | None) -> Members:
    return {name: end for name, end in (("minimum", low), ("maximum", high)) if end is not None}


def _describe_choices(choices: Json, value: str, name: str) -> Members:
    """Return the allowed values of a property and their names."""
    if not isinstance(choices, list):
        return {}
    known = [one for one in choices if isinstance(one, Mapping) and value in one]
    if not known:
        return {}
    return {"enum": [one[value] for one in known], "enumNames": [str(one.get(name, one[value])) for one in known]}


# -- signals of openDAQ


def _describe_signal(state: Mapping[str, Json]) -> Members:
    """Return the schema of a signal from its data descriptor."""
    value = state.get("Value")
    descriptor = value.get("DataDescriptor") if isinstance(value, Mapping) else None
    if not isinstance(descriptor, Mapping):
        return {}
    described: Members = {}
    title, unit = descriptor.get("Name"), _read_unit(descriptor.get("Unit"))
    if isinstance(title, str) and title:
        described["title"] = title
    if unit:
        described["unit"] = unit
    return described | _name_ends(*_read_range(descriptor.get("ValueRange"), "Low", "High"))


# -- types


class _Types:
    """The types that a device publishes."""

    def __init__(self, states: Mapping[str, Json]) -> None:
        self._objects = _find_below(states, OBJECT_TYPES)
        self._enums = _find_below(states, DATA_TYPES)

    def describe_object(self, name: Json, within: tuple[str, ...] = ()) -> Members:
        """Return the schema of an object type, with the properties that it inherits; empty if there is none."""
        definition = self._objects.get(name) if isinstance(name, str) and name not in within else None
        if definition is None:
            return {}
        described = self.describe_object(definition.get("_type"), (*within, name)) or {"type": "object"}
        described |= _copy_texts(definition)
        properties = definition.get("_properties")
        own = properties.items() if isinstance(properties, Mapping) else ()
        inherited = described.get("properties", {})
        described["properties"] = inherited | {
            key: self._describe_property(one) for key, one in own if isinstance(one, Mapping)
        }
        return described

    def _describe_property(self, definition: Mapping[str, Json]) -> Members:
        kind = definition.get("_type")
        described: Members = _copy_texts(definition)
        if isinstance(kind, str):
            if kind in _TYPES:
                described["type"] = _TYPES[kind]
            elif kind.startswith(("int", "uint")):
                described["type"] = "integer"
            described |= self._describe_enum(kind)
        if isinstance(items := definition.get("_items"), Mapping):
            described["items"] = self._describe_property(items)
        return described

    def _describe_enum(self, name: str) -> Members:
        values = self._enums.get(name, {}).get("_value")
        if not isinstance(values, Mapping) or not values:
            return {}
        return {"enum": list(values.values()), "enumNames": list(values)}


_TYPES = {
    "bool": "boolean",
    "float": "number",
    "double": "number",
    "string": "string",
    "array": "array",
    "object": "object",
}
"""Words of JSON Schema for the basic types; all integers have one word."""


def _copy_texts(definition: Mapping[str, Json]) -> Members:
    found = {name: definition.get(f"_{name}") for name in ("title", "description")}
    return {name: text for name, text in found.items() if isinstance(text, str) and text}


def _find_below(states: Mapping[str, Json], node: str) -> dict[str, Mapping[str, Json]]:
    """Return the definitions below a node by the last part of their path."""
    return {
        path.rpartition("/")[2]: value for path, value in states.items() if node in path and isinstance(value, Mapping)
    }
