"""Sorted fetches: the whole window as an array, and only its differences."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.node import NodeBus, Peer, Rule, Transport, Version, event

pytestmark = pytest.mark.interop


def entry(path: str, value: Any, index: int) -> dict[str, Any]:
    return {"path": path, "value": value, "index": index}


def places(received: list[dict[str, Any]]) -> list[str]:
    return [one["path"] for one in received]


def add_all(owner: Peer, states: dict[str, Any]) -> None:
    for path, value in states.items():
        owner.add_state(path, value)


def test_an_array_is_kept_sorted(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """In array mode each event is the whole window, in order, as it is now."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    add_all(owner, {"b": 20, "a": 10, "c": 30, "d": 40})
    fetch = client.fetch(("sortByValue", "number"), ("descending",), ("range", 1, 3))
    owner.change("a", 35)
    owner.remove("d")
    owner.add_state("e", 5)
    owner.change("e", 50)
    owner.change("b", 21)
    assert fetch.seen(owner) == [
        [entry("d", 40, 1), entry("c", 30, 2), entry("b", 20, 3)],
        [entry("d", 40, 1), entry("a", 35, 2), entry("c", 30, 3)],
        [entry("a", 35, 1), entry("c", 30, 2), entry("b", 20, 3)],
        [entry("e", 50, 1), entry("a", 35, 2), entry("c", 30, 3)],
    ]


def test_differences_of_a_window(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """In differential mode an event holds the entries new at their place and the window's length."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    add_all(owner, {"e": 5, "c": 3, "a": 1, "d": 4, "b": 2})
    fetch = client.fetch(("sortByPath",), ("range", 1, 4), ("differential",))
    owner.remove("c")
    owner.remove("e")
    owner.add_state("e", 6)
    owner.remove("d")
    owner.change("b", 7)
    assert fetch.seen(owner) == [
        {"changes": [entry("a", 1, 1), entry("b", 2, 2), entry("c", 3, 3), entry("d", 4, 4)], "n": 4},
        {"changes": [entry("d", 4, 3), entry("e", 5, 4)], "n": 4},
        {"changes": [], "n": 3},
        {"changes": [entry("e", 6, 4)], "n": 4},
        {"changes": [entry("e", 6, 3)], "n": 3},
        {"changes": [entry("b", 7, 2)], "n": 3},
    ]


def test_a_window_further_down_shifts(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """Elements added or removed above a window move all of it; those below it cause no message."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    add_all(owner, {"b": 2, "c": 3, "d": 4, "e": 5, "f": 6})
    fetch = client.fetch(("sortByPath",), ("range", 2, 3), ("differential",))
    owner.add_state("a", 1)
    owner.change("f", 60)
    owner.change("a", 10)
    owner.remove("a")
    assert fetch.seen(owner) == [
        {"changes": [entry("c", 3, 2), entry("d", 4, 3)], "n": 2},
        {"changes": [entry("b", 2, 2), entry("c", 3, 3)], "n": 2},
        {"changes": [entry("c", 3, 2), entry("d", 4, 3)], "n": 2},
    ]


def test_an_empty_window_is_told_once(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A sorted fetch begins with one event, also an empty one, and is silent while its window is empty."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    fetch = client.fetch(("sortByPath",), ("range", 3, 4), ("differential",))
    add_all(owner, {"a": 1, "b": 2})
    assert fetch.seen(owner) == [{"changes": [], "n": 0}]
    owner.add_state("c", 3)
    assert fetch.seen(owner) == [{"changes": [entry("c", 3, 3)], "n": 1}]


@pytest.mark.parametrize(
    ("rules", "order"),
    [
        ([("sortByPath",)], ["anna", "bert", "carl"]),
        ([("sortByPath",), ("descending",)], ["carl", "bert", "anna"]),
        ([("sortByValue", "age", "number")], ["carl", "anna", "bert"]),
        ([("sortByKey", "home.city", "string")], ["bert", "carl", "anna"]),
        ([("sortByKey", "home.city", "string"), ("descending",)], ["anna", "carl", "bert"]),
        (
            [("sortByValue", "age", "number"), ("ascending",), ("path", "containsOneOf", ["a"])],
            ["carl", "anna"],
        ),
    ],
    ids=["path", "path descending", "field", "deep field", "deep field descending", "with a path rule"],
)
def test_sort_keys(bus: NodeBus, classic: Version, transport: Transport, rules: list[Rule], order: list[str]) -> None:
    """States are sorted by path or by a field of their value, up or down."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("anna", {"age": 30, "home": {"city": "Ulm"}})
    owner.add_state("bert", {"age": 40, "home": {"city": "Bonn"}})
    owner.add_state("carl", {"age": 20, "home": {"city": "Jena"}})
    assert [places(received) for received in client.fetch(*rules, ("range", 1, 10)).seen()] == [order]


def test_a_sort_key_is_a_type_rule(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """Sorting by a type of value leaves out whatever has no such value, until it has one."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    add_all(owner, {"a": 2, "b": "text", "c": 1, "d": None})
    owner.add_method("e")
    fetch = client.fetch(("sortByValue", "number"), ("range", 1, 10))
    owner.change("b", 0)
    owner.change("a", "text")
    assert [places(received) for received in fetch.seen(owner)] == [["c", "a"], ["b", "c", "a"], ["b", "c"]]


def test_fetch_only_is_marked_in_a_window(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """The entries of a window carry fetchOnly where due."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    owner.add_state("a", 1, handler=None)
    owner.add_state("b", 2)
    fetch = client.fetch(("sortByPath",), ("range", 1, 10))
    assert fetch.seen() == [[{**entry("a", 1, 1), "fetchOnly": True}, entry("b", 2, 2)]]


def test_a_sorted_fetch_ends(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """After unfetch a sorted fetch is silent."""
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    fetch = client.fetch(("sortByPath",), ("range", 1, 10))
    assert fetch.seen() == [[]]
    fetch.unfetch()
    owner.add_state("a", 1)
    assert fetch.seen(owner) == []


@pytest.mark.parametrize("window", [(1, 4), (3, 5), (6, 20)], ids=str)
def test_a_window_never_drifts(bus: NodeBus, classic: Version, transport: Transport, window: tuple[int, int]) -> None:
    """Whatever owners do, the array that node-jet builds from the differences is the sorted window."""
    dice = random.Random(f"{window}")
    owner, client = bus.peer(classic, transport), bus.peer(classic, transport)
    first, last = window
    states: dict[str, int] = {}
    fetch = client.fetch(("sortByValue", "number"), ("range", first, last))
    array = fetch.seen()[-1]
    for _ in range(60):
        path = dice.choice("abcdefghi")
        fresh = dice.choice([value for value in range(100) if value not in states.values()])
        if path not in states:
            owner.add_state(path, fresh)
            states[path] = fresh
        elif dice.random() < 0.4:
            owner.remove(path)
            del states[path]
        else:
            owner.change(path, fresh)
            states[path] = fresh
        array = (fetch.seen(owner) or [array])[-1]
        ordered = sorted(states.items(), key=lambda item: item[1])
        assert array == [
            entry(path, value, index) for index, (path, value) in enumerate(ordered, start=1) if first <= index <= last
        ]


@pytest.mark.parametrize("window", [(1, 2), (0, 10)], ids=str)
def test_node_jet_3_gets_plain_events_for_a_sort(bus: NodeBus, transport: Transport, window: tuple[int, int]) -> None:
    """A node-jet 3 client cannot read windows: its sort is ignored, and it is told of every match."""
    owner, client = bus.peer(3, transport), bus.peer(3, transport)
    add_all(owner, {"b": 2, "a": 1, "c": 3})
    fetch = client.fetch(("path", "startsWith", ""), ("sortByValue",), ("descending",), ("range", *window))
    owner.change("c", 0)
    assert fetch.seen(owner) == [
        event(client, "add", "b", 2),
        event(client, "add", "a", 1),
        event(client, "add", "c", 3),
        event(client, "change", "c", 0),
    ]
