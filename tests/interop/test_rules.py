"""Selection of states by fetch and get, with the rules as each version writes them."""

from __future__ import annotations

from typing import Any

import pytest

from support.node import JetError, NodeBus, Rule, Transport, Version, event

pytestmark = pytest.mark.interop

PATHS = ["pump/speed", "pump/heat", "fan/speed", "FAN/Heat", "lamp"]

PATH_RULES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "equals": ({"equals": "lamp"}, ["lamp"]),
    "equalsNot": ({"equalsNot": "lamp"}, ["pump/speed", "pump/heat", "fan/speed", "FAN/Heat"]),
    "startsWith": ({"startsWith": "pump"}, ["pump/speed", "pump/heat"]),
    "startsNotWith": ({"startsNotWith": "pump"}, ["fan/speed", "FAN/Heat", "lamp"]),
    "endsWith": ({"endsWith": "speed"}, ["pump/speed", "fan/speed"]),
    "endsWith longer than a path": ({"endsWith": "xlamp"}, []),
    "endsNotWith": ({"endsNotWith": "speed"}, ["pump/heat", "FAN/Heat", "lamp"]),
    "contains": ({"contains": "mp"}, ["pump/speed", "pump/heat", "lamp"]),
    "containsNot": ({"containsNot": "mp"}, ["fan/speed", "FAN/Heat"]),
    "containsAllOf": ({"containsAllOf": ["p", "sp"]}, ["pump/speed", "fan/speed"]),
    "containsOneOf": ({"containsOneOf": ["heat", "lam"]}, ["pump/heat", "lamp"]),
    "equalsOneOf": ({"equalsOneOf": ["lamp", "fan/speed", "fan"]}, ["fan/speed", "lamp"]),
    "equalsNotOneOf": ({"equalsNotOneOf": ["lamp", "fan/speed"]}, ["pump/speed", "pump/heat", "FAN/Heat"]),
    "several": ({"startsWith": "pump", "endsWith": "heat"}, ["pump/heat"]),
    "in any case": ({"startsWith": "Fan", "caseInsensitive": True}, ["fan/speed", "FAN/Heat"]),
    "case matters": ({"startsWith": "Fan"}, []),
    "empty text": ({"startsWith": ""}, PATHS),
}

VALUES: dict[str, Any] = {
    "small": 5,
    "large": 50,
    "text": "on",
    "flag": True,
    "list": [1, 2],
    "anna": {"age": 30, "home": {"city": "Ulm", "pets": ["cat", "dog"]}},
    "bert": {"age": 40, "home": {"city": "Bonn", "pets": []}},
}

# node-jet 1 and 2: (operator, operand) or (field, operator, operand).
CLASSIC_VALUE_RULES: dict[str, tuple[list[Rule], list[str]]] = {
    "lessThan": ([("value", "lessThan", 50)], ["small"]),
    "greaterThan": ([("value", "greaterThan", 5)], ["large"]),
    "equals": ([("value", "equals", "on")], ["text"]),
    "equalsNot": (
        [("value", "equalsNot", 5), ("path", "equalsOneOf", ["small", "large", "text"])],
        ["large", "text"],
    ),
    "isType number": ([("value", "isType", "number")], ["small", "large"]),
    "isType string": ([("value", "isType", "string")], ["text"]),
    "isType boolean": ([("value", "isType", "boolean")], ["flag"]),
    "isType object": ([("value", "isType", "object")], ["list", "anna", "bert"]),
    "several": ([("value", "greaterThan", 4), ("value", "lessThan", 6)], ["small"]),
    "field": ([("value", "age", "greaterThan", 30)], ["bert"]),
    "deep field": ([("value", "home.city", "equals", "Ulm")], ["anna"]),
    "array member": ([("key", "home.pets[1]", "equals", "dog")], ["anna"]),
    "several fields": ([("key", "age", "lessThan", 50), ("key", "home.city", "equals", "Bonn")], ["bert"]),
    "missing field": ([("value", "height", "equals", 2)], []),
}

# node-jet 3: (operator, operand, field).
MODERN_VALUE_RULES: dict[str, tuple[list[Rule], list[str]]] = {
    "lessThan": ([("value", "lessThan", 50)], ["small"]),
    "greaterThan": ([("value", "greaterThan", 5)], ["large"]),
    "equals": ([("value", "equals", "on")], ["text"]),
    "equalsNot": (
        [("value", "equalsNot", 5), ("path", "equalsOneOf", ["small", "large", "text"])],
        ["large", "text"],
    ),
    "isType": ([("value", "isType", "string")], ["text"]),
    "field": ([("value", "greaterThan", 30, "age")], ["bert"]),
    "deep field": ([("value", "equals", "Ulm", "home.city")], ["anna"]),
    "several fields": (
        [("value", "lessThan", 50, "age"), ("value", "equals", "Bonn", "home.city")],
        ["bert"],
    ),
    "missing field": ([("value", "equals", 2, "height")], []),
}


def named(table: dict[str, Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("rules", "selected"), table.values(), ids=table.keys())


@named(PATH_RULES)
def test_path_rules(
    bus: NodeBus, version: Version, transport: Transport, rules: dict[str, Any], selected: list[str]
) -> None:
    """A path rule selects the same states for a fetch, for a get and for states added later."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    early = client.fetch(*(("path", name, operand) for name, operand in rules.items()))
    for path in PATHS:
        owner.add_state(path, path)
    late = client.fetch(*(("path", name, operand) for name, operand in rules.items()))
    expected = [event(client, "add", path, path) for path in selected]
    assert early.seen(owner) == expected
    assert late.seen(owner) == expected
    assert [found["path"] for found in client.get(path=rules)] == selected


def test_paths_of_any_case_by_name(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """The client's own word for case-insensitive paths works."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("Pump/SPEED", 1)
    fetch = client.fetch(("path", "equals", "pumP/speed"), ("pathCaseInsensitive",))
    assert fetch.seen() == [event(client, "add", "Pump/SPEED", 1)]


@named(CLASSIC_VALUE_RULES)
def test_value_rules(
    bus: NodeBus, classic: Version, transport: Transport, rules: list[Rule], selected: list[str]
) -> None:
    """A value rule of node-jet 1 and 2 selects by the whole value or by its fields."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    for path, value in VALUES.items():
        owner.add_state(path, value)
    owner.add_method("method")
    assert client.fetch(*rules).seen() == [event(client, "add", path, VALUES[path]) for path in selected]


@named(MODERN_VALUE_RULES)
def test_value_rules_of_node_jet_3(bus: NodeBus, transport: Transport, rules: list[Rule], selected: list[str]) -> None:
    """A value rule of node-jet 3 selects by the whole value or by its fields."""
    owner, client = bus.peer(3, transport), bus.peer(3, transport)
    for path, value in VALUES.items():
        owner.add_state(path, value)
    assert client.fetch(*rules).seen() == [event(client, "add", path, VALUES[path]) for path in selected]


def test_a_value_enters_and_leaves_a_rule(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A value that stops matching is told as a remove, one that matches again as an add."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    owner.add_state("pump/speed", 5)
    fetch = client.fetch(("path", "startsWith", "pump/"), ("value", "lessThan", 10))
    for value in (6, 60, 61, 7):
        owner.change("pump/speed", value)
    owner.remove("pump/speed")
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 5),
        event(client, "change", "pump/speed", 6),
        event(client, "remove", "pump/speed", 60),
        event(client, "add", "pump/speed", 7),
        event(client, "remove", "pump/speed", 7),
    ]


def test_a_value_that_never_matched_is_never_told(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A state whose value does not match is not told of, nor is its removal; a later match is."""
    owner, client = bus.peer(version, transport), bus.peer(version, transport)
    fetch = client.fetch(("path", "startsWith", "pump/"), ("value", "lessThan", 10))
    owner.add_state("pump/speed", 50)
    owner.change("pump/speed", 51)
    owner.remove("pump/speed")
    owner.add_state("pump/heat", 50)
    owner.change("pump/heat", 9)
    assert fetch.seen(owner) == [event(client, "add", "pump/heat", 9)]


@pytest.mark.parametrize("rule", [("path", "resembles", "pump"), ("value", "resembles", 1)], ids=["path", "value"])
def test_an_unknown_rule_is_refused(bus: NodeBus, version: Version, transport: Transport, rule: Rule) -> None:
    """A fetch with a rule that does not exist is refused as invalid params."""
    with pytest.raises(JetError) as refused:
        bus.peer(version, transport).fetch(rule)
    assert refused.value.code == -32602


def test_get_lists_states_and_methods(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A get lists what a fetch would tell first, with fetchOnly where due and methods without value."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("pump/speed", 1)
    owner.add_state("pump/heat", None, handler=None)
    owner.add_method("pump/stop")
    assert client.get(path={"startsWith": "pump/"}) == [
        {"path": "pump/speed", "event": "add", "value": 1},
        {"path": "pump/heat", "event": "add", "value": None, "fetchOnly": True},
        {"path": "pump/stop", "event": "add"},
    ]


def test_get_of_node_jet_3_lists_paths_and_values(bus: NodeBus, transport: Transport) -> None:
    """A node-jet 3 client reads path and value from each entry of a get."""
    owner, client = bus.peer(3, transport), bus.peer(3, transport)
    owner.add_state("pump/speed", 1)
    owner.add_state("pump/heat", None)
    found = client.get(path={"startsWith": "pump/"})
    assert [(entry["path"], entry["value"]) for entry in found] == [("pump/speed", 1), ("pump/heat", None)]


def test_get_knows_value_rules(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A get takes value rules like a fetch."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    for path, value in VALUES.items():
        owner.add_state(path, value)
    assert [found["path"] for found in client.get(value={"greaterThan": 5})] == ["large"]
    assert [found["path"] for found in client.get(valueField={"home.city": {"equals": "Ulm"}})] == ["anna"]


def test_get_sorts(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A sorted get lists the window with the place of each entry."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    for path, value in {"c": 30, "a": 10, "d": 40, "b": 20}.items():
        owner.add_state(path, value)
    assert client.get(sort={"byValue": "number", "descending": True, "from": 2, "to": 3}) == [
        {"path": "c", "value": 30, "index": 2},
        {"path": "b", "value": 20, "index": 3},
    ]


def test_get_without_rules_lists_everything(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A get without rules lists all states."""
    peer = bus.peer(version, transport)
    for path, value in VALUES.items():
        peer.add_state(path, value)
    assert {found["path"]: found["value"] for found in peer.get()} == VALUES


def test_get_may_find_nothing(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A get that matches nothing is an empty list."""
    assert bus.peer(version, transport).get(path={"equals": "pump"}) == []
