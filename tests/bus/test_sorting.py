"""Sorted fetches: a client that only follows the messages always has the right list."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetbus.bus import sorting
from jetbus.bus.bus import Bus
from jetbus.rules.work import meter
from support.inmemory import Peer

MISSING = object()


class Client:
    """A client that knows no more than the messages: a list that is patched by changes and n."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.list: dict[int, tuple[str, Any]] = {}

    def take(self, message: dict[str, Any]) -> None:
        assert message.keys() == {"changes", "n"}
        for change in message["changes"]:
            self.list[change["index"]] = (change["path"], change.get("value", MISSING))
        self.list = {index: entry for index, entry in self.list.items() if index < self.first + message["n"]}
        assert sorted(self.list) == list(range(self.first, self.first + message["n"])), "the list has holes"
        assert all(change["index"] in self.list for change in message["changes"]), "a change outside the window"


def _field(value: Any, name: str) -> Any:
    return value.get(name, MISSING) if isinstance(value, dict) else MISSING


def _is(value: Any, kind: str) -> bool:
    types: dict[str, Any] = {"number": (int, float), "string": str, "boolean": bool}
    return isinstance(value, types[kind]) and isinstance(value, bool) is (kind == "boolean")


def _plainly_sorted(sort: dict[str, Any], states: dict[str, Any]) -> dict[int, tuple[str, Any]]:
    """The window over the states, which are in order of creation."""
    if kind := sort.get("byValue"):
        keys = {path: value for path, value in states.items() if _is(value, kind)}
    elif fields := sort.get("byValueField"):
        ((name, kind),) = fields.items()
        keys = {path: _field(value, name) for path, value in states.items() if _is(_field(value, name), kind)}
    else:
        keys = {path: path for path in states}
    paths = sorted(keys, key=lambda path: keys[path], reverse=sort.get("descending", False))
    first, last = sort.get("from", 1), sort.get("to", 10)
    return {at: (path, states[path]) for at, path in enumerate(paths, 1) if first <= at <= last}


_numbers = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, -0.5, 2**63, 2**63 + 1, 1e300]))
_texts = st.text(alphabet="aAäz", max_size=2)
_plain = st.one_of(_numbers, _texts, st.booleans(), st.none())
_values = st.one_of(_plain, st.fixed_dictionaries({}, optional={"f": _plain}), st.lists(_numbers, max_size=1))
_sorts = st.builds(
    lambda order, descending, first, width: {
        **order,
        "descending": descending,
        "from": first,
        "to": max(1, first + width),
    },
    st.sampled_from(
        [
            {"byPath": True},
            {"byValue": "number"},
            {"byValue": "string"},
            {"byValue": "boolean"},
            {"byValueField": {"f": "number"}},
            {"byValueField": {"f": "string"}},
        ]
    ),
    st.booleans(),
    st.integers(1, 4),
    st.integers(-1, 4),
)
_paths = st.sampled_from([f"{letter}{digit}" for letter in "zaZm" for digit in range(3)])
_operations = st.lists(st.tuples(st.sampled_from(["add", "change", "change", "remove"]), _paths, _values), max_size=30)


@pytest.fixture(scope="module", params=[2, sorting.BLOCK_ENTRIES_MAX], ids=["tiny blocks", "one block"])
def block_entries_max(request: pytest.FixtureRequest) -> Iterator[int]:
    """The size of blocks, which must not make a difference."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "BLOCK_ENTRIES_MAX", request.param)
        yield request.param


@given(sort=_sorts, before=_operations, after=_operations)
@settings(max_examples=200, deadline=None)
@pytest.mark.usefixtures("block_entries_max")
def test_a_client_that_follows_has_the_right_list(
    sort: dict[str, Any], before: list[tuple[str, str, Any]], after: list[tuple[str, str, Any]]
) -> None:
    """Whatever happens, the patched list is the window over the plainly sorted matches, and no message is idle."""
    bus = Bus(tree="flat")
    owner, fetcher = Peer(bus), Peer(bus)
    states: dict[str, Any] = {}
    for operation in before:
        _do(owner, states, *operation)
    client = Client(sort["from"])
    (initial,) = fetcher.fetch(sort=sort)
    client.take(initial)
    assert client.list == _plainly_sorted(sort, states)
    for operation in after:
        window = dict(client.list)
        changed = _do(owner, states, *operation)
        messages = fetcher.events()
        for message in messages:
            client.take(message)
            assert message["changes"] or message["n"] != len(window), "a message that says nothing"
            same = [c for c in message["changes"] if window.get(c["index"]) == (c["path"], c.get("value", MISSING))]
            assert [c["path"] for c in same] in ([], [changed]), "an entry is told that is as before"
        assert len(messages) <= 1
        assert client.list == _plainly_sorted(sort, states)


def _do(owner: Peer, states: dict[str, Any], kind: str, path: str, value: Any) -> str | None:
    """Do it on the bus and to the plain states, if it is possible; the path that it is about."""
    if (kind == "add") is (path in states):
        return None
    params = {"path": path} if kind == "remove" else {"path": path, "value": value}
    owner.notify(kind, params)
    if kind == "remove":
        del states[path]
    else:
        states[path] = value
    return path


# Work.


class CountedText(str):
    """A path that counts how often it is compared with another."""

    __slots__ = ()

    compared = 0

    def __lt__(self, other: str) -> bool:
        CountedText.compared += 1
        return str.__lt__(self, other)


def test_a_change_looks_at_few_of_many_matches() -> None:
    """Among 20,000 matches a change compares about as many as their number has bits, and writes the window only."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    for number in range(20_000):
        owner.notify("add", {"path": f"s/{number:05}", "value": number})
    for element in bus.tree.elements.values():
        element.path = CountedText(element.path)
    fetcher.fetch(sort={"byPath": True, "from": 5000, "to": 5009})
    CountedText.compared = 0
    before = meter.units
    for number in range(0, 20_000, 100):
        owner.notify("change", {"path": f"s/{number:05}", "value": -number})
    assert CountedText.compared < 200 * 64
    assert meter.units - before < 200 * 64
    assert [change["path"] for event in fetcher.events() for change in event["changes"]] == ["s/05000"]


def test_blocks_stay_small() -> None:
    """However matches come and go, no block grows beyond its limit and none stays behind empty."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    fetcher.fetch(sort={"byPath": True})
    for number in range(5000):
        owner.notify("add", {"path": f"s/{number:05}", "value": number})
    ((window,),) = (
        {audience.sorted_matches for audience in element.audiences} for element in [bus.tree.elements["s/00001"]]
    )
    assert window is not None
    sizes = window.block_sizes()
    assert sum(sizes) == 5000
    assert max(sizes) <= sorting.BLOCK_ENTRIES_MAX
    for number in range(4990):
        owner.notify("remove", {"path": f"s/{number:05}"})
    assert 0 not in window.block_sizes()
    assert sum(window.block_sizes()) == 10


# Sequences.


def _short(message: dict[str, Any]) -> tuple[list[str], int]:
    """A message as `path@index` or `path=value@index`, and n."""
    received = []
    for change in message["changes"]:
        value = f"={change['value']}" if change.get("value") is not None else ""
        received.append(f"{change['path']}{value}@{change['index']}")
    return received, message["n"]


Step = tuple[str, str, Any, "tuple[list[str], int] | None"]
Sequence = tuple[dict[str, Any], dict[str, Any], tuple[list[str], int], list[Step]]

BY_NUMBER = {"byValue": "number"}

SEQUENCES: dict[str, Sequence] = {
    "the sequence of lua-jet": (
        {"byPath": True, "from": 1, "to": 4},
        dict.fromkeys("abcde"),
        (["a@1", "b@2", "c@3", "d@4"], 4),
        [
            ("remove", "c", None, (["d@3", "e@4"], 4)),
            ("remove", "e", None, ([], 3)),
            ("add", "e", None, (["e@4"], 4)),
            ("remove", "d", None, (["e@3"], 3)),
        ],
    ),
    "nothing there": ({}, {}, ([], 0), [("add", "a", None, (["a@1"], 1)), ("remove", "a", None, ([], 0))]),
    "value changes in place": (
        BY_NUMBER,
        {"a": 1, "b": 5},
        (["a=1@1", "b=5@2"], 2),
        [("change", "b", 6, (["b=6@2"], 2)), ("change", "a", 1, (["a=1@1"], 2))],
    ),
    "change outside the window": (
        {**BY_NUMBER, "from": 2, "to": 2},
        {"a": 1, "b": 2, "c": 3},
        (["b=2@2"], 1),
        [("change", "a", 0, None), ("change", "c", 4, None)],
    ),
    "move inside the window": (
        BY_NUMBER,
        {"a": 1, "b": 2, "c": 3, "d": 4},
        (["a=1@1", "b=2@2", "c=3@3", "d=4@4"], 4),
        [
            ("change", "d", 1.5, (["d=1.5@2", "b=2@3", "c=3@4"], 4)),
            ("change", "a", 2.5, (["d=1.5@1", "b=2@2", "a=2.5@3"], 4)),
        ],
    ),
    "enters the window from behind": (
        {**BY_NUMBER, "from": 1, "to": 2},
        {"a": 1, "b": 2, "c": 3},
        (["a=1@1", "b=2@2"], 2),
        [("change", "c", 0, (["c=0@1", "a=1@2"], 2))],
    ),
    "leaves the window backwards": (
        {**BY_NUMBER, "from": 1, "to": 2},
        {"a": 1, "b": 2, "c": 3},
        (["a=1@1", "b=2@2"], 2),
        [("change", "a", 9, (["b=2@1", "c=3@2"], 2))],
    ),
    "enters the window from before": (
        {**BY_NUMBER, "from": 2, "to": 3},
        {"a": 1, "b": 2, "c": 3, "d": 4},
        (["b=2@2", "c=3@3"], 2),
        [("change", "a", 2.5, (["a=2.5@2"], 2))],
    ),
    "leaves the window forwards": (
        {**BY_NUMBER, "from": 2, "to": 3},
        {"a": 1, "b": 2, "c": 3, "d": 4},
        (["b=2@2", "c=3@3"], 2),
        [("change", "c", 0, (["a=1@2", "b=2@3"], 2))],
    ),
    "crosses the whole window": (
        {**BY_NUMBER, "from": 2, "to": 3},
        {"a": 1, "b": 2, "c": 3, "d": 4},
        (["b=2@2", "c=3@3"], 2),
        [("change", "a", 9, (["c=3@2", "d=4@3"], 2)), ("change", "a", 0, (["b=2@2", "c=3@3"], 2))],
    ),
    "added and removed before the window": (
        {"from": 2, "to": 3},
        dict.fromkeys("bcd"),
        (["c@2", "d@3"], 2),
        [("add", "a", None, (["b@2", "c@3"], 2)), ("remove", "a", None, (["c@2", "d@3"], 2))],
    ),
    "again added before the window": (
        {"from": 2, "to": 3},
        dict.fromkeys("cde"),
        (["d@2", "e@3"], 2),
        [("add", "b", None, (["c@2", "d@3"], 2)), ("add", "a", None, (["b@2", "c@3"], 2))],
    ),
    "fewer than the window starts at": (
        {"from": 3, "to": 4},
        {"a": None},
        ([], 0),
        [
            ("add", "b", None, None),
            ("remove", "b", None, None),
            ("add", "b", None, None),
            ("add", "c", None, (["c@3"], 1)),
            ("remove", "a", None, ([], 0)),
        ],
    ),
    "stops and starts being of the type": (
        BY_NUMBER,
        {"a": 1, "b": 2},
        (["a=1@1", "b=2@2"], 2),
        [
            ("change", "a", "x", (["b=2@1"], 1)),
            ("change", "a", "y", None),
            ("change", "a", 3, (["a=3@2"], 2)),
            ("remove", "a", None, ([], 1)),
        ],
    ),
    "descending": (
        {**BY_NUMBER, "descending": True, "from": 1, "to": 2},
        {"a": 1, "b": 2, "c": 3},
        (["c=3@1", "b=2@2"], 2),
        [("change", "a", 4, (["a=4@1", "c=3@2"], 2)), ("remove", "c", None, (["b=2@2"], 2))],
    ),
    "descending by path": (
        {"descending": True, "to": 2},
        dict.fromkeys("abc"),
        (["c@1", "b@2"], 2),
        [("add", "d", None, (["d@1", "c@2"], 2))],
    ),
    "ties keep the order of creation": (
        BY_NUMBER,
        {"z": 1, "a": 1, "m": 1},
        (["z=1@1", "a=1@2", "m=1@3"], 3),
        [
            ("add", "b", 1, (["b=1@4"], 4)),
            ("change", "z", 2, (["a=1@1", "m=1@2", "b=1@3", "z=2@4"], 4)),
            ("change", "z", 1, (["z=1@1", "a=1@2", "m=1@3", "b=1@4"], 4)),
        ],
    ),
    "descending ties keep it too": (
        {**BY_NUMBER, "descending": True},
        {"z": 1, "a": 1},
        (["z=1@1", "a=1@2"], 2),
        [("add", "b", 1, (["b=1@3"], 3))],
    ),
    "ten entries by default": (
        {},
        dict.fromkeys("abcdefghijk"),
        ([f"{path}@{at}" for at, path in enumerate("abcdefghij", 1)], 10),
        [("add", "l", None, None), ("remove", "a", None, ([f"{p}@{at}" for at, p in enumerate("bcdefghijk", 1)], 10))],
    ),
    "a window of nothing": ({"from": 2, "to": 1}, dict.fromkeys("abc"), ([], 0), [("remove", "a", None, None)]),
}


@pytest.mark.parametrize(("sort", "states", "initial", "steps"), SEQUENCES.values(), ids=SEQUENCES)
def test_sequences(
    sort: dict[str, Any], states: dict[str, Any], initial: tuple[list[str], int], steps: list[Step]
) -> None:
    """Each event gives the entries that have another occupant or value, by absolute position, or nothing at all."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    for path, value in states.items():
        owner.notify("add", {"path": path, "value": value})
    assert [_short(message) for message in fetcher.fetch(sort=sort)] == [initial]
    for kind, path, value, expected in steps:
        owner.notify(kind, {"path": path, "value": value})
        assert [_short(message) for message in fetcher.events()] == ([] if expected is None else [expected])


def test_methods_take_part_by_path() -> None:
    """A list sorted by path has methods, without a value; one sorted by value has none."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    owner.notify("add", {"path": "a", "value": 1})
    entries = [{"path": "a", "value": 1, "index": 1}, {"path": "m", "index": 2}]
    assert fetcher.fetch("p", sort={}) == [{"changes": entries, "n": 2}]
    assert fetcher.fetch("v", sort={"byValue": "number"}) == [{"changes": entries[:1], "n": 1}]


def test_read_only_entries() -> None:
    """An entry that the fetcher cannot set says so."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "a", "value": 1, "fetchOnly": True})
    assert fetcher.fetch(sort={}) == [
        {"changes": [{"path": "a", "value": 1, "index": 1, "fetchOnly": True}], "n": 1},
    ]


def test_rules_narrow_a_sorted_fetch() -> None:
    """Elements that the other rules exclude are not in the list, neither at first nor later."""
    bus = Bus()
    owner, fetcher = Peer(bus), Peer(bus)
    for path, value in {"a": 1, "b": 20, "x": 2}.items():
        owner.notify("add", {"path": path, "value": value})
    (initial,) = fetcher.fetch(
        path={"equalsOneOf": ["a", "b", "c"]}, value={"lessThan": 10}, sort={"byValue": "number", "descending": True}
    )
    assert _short(initial) == (["a=1@1"], 1)
    owner.notify("change", {"path": "x", "value": 3})
    assert fetcher.events() == []
    owner.notify("change", {"path": "b", "value": 5})
    assert [_short(message) for message in fetcher.events()] == [(["b=5@1", "a=1@2"], 2)]


def test_a_later_member_gets_the_list_of_its_day() -> None:
    """A second peer with the same sorted fetch starts with the list as it is then, and both follow from there."""
    bus = Bus()
    owner, one, two = Peer(bus), Peer(bus), Peer(bus)
    owner.notify("add", {"path": "b", "value": 1})
    assert [_short(message) for message in one.fetch(sort={})] == [(["b=1@1"], 1)]
    owner.notify("add", {"path": "a", "value": 2})
    assert [_short(message) for message in two.fetch(sort={})] == [(["a=2@1", "b=1@2"], 2)]
    assert [_short(message) for message in one.events()] == [(["a=2@1", "b=1@2"], 2)]
    owner.notify("remove", {"path": "a"})
    assert [_short(message) for message in one.events()] == [(["b=1@1"], 1)]
    assert [_short(message) for message in two.events()] == [(["b=1@1"], 1)]


def test_get_gives_the_window_once() -> None:
    """A sorted get gives the entries of the window with their positions."""
    bus = Bus()
    owner, peer = Peer(bus), Peer(bus)
    for path, value in {"a": 3, "b": 1, "c": 2, "d": "x"}.items():
        owner.notify("add", {"path": path, "value": value})
    assert peer.result("get", {"sort": {"byValue": "number", "from": 2, "to": 3}}) == [
        {"path": "c", "value": 2, "index": 2},
        {"path": "a", "value": 3, "index": 3},
    ]
