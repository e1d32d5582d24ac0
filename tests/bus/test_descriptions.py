"""Schemas, source times, qualities and staleness on a bus without sockets, with a clock that is set by hand."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bus.test_record import RecordedEvents
from jetbus.bus.bus import Bus
from jetbus.bus.staleness import AT_ONCE, INVALID_MAX
from jetbus.schema import write_time
from jetbus.wire import lane
from support.inmemory import Peer


def make_bus() -> tuple[Bus, Peer, Peer]:
    """Return a bus, an owner, and a peer that asks for all there is."""
    bus = Bus()
    owner, watcher = Peer(bus), Peer(bus)
    assert watcher.fetch(meta=True, schema=True) == []
    return bus, owner, watcher


def change(owner: Peer, now: float, **params: Any) -> None:
    owner.send({"method": "change", "params": {"path": "s", **params}}, now=now)


# -- cost


def test_elements_without_a_description_share_it() -> None:
    """A state without a schema has no object of its own for it, and no dictionary."""
    bus, owner, _ = make_bus()
    owner.notify("add", {"path": "s", "value": 1})
    owner.notify("add", {"path": "t", "value": 1})
    one, other = bus.tree.elements["s"], bus.tree.elements["t"]
    assert one.description is other.description
    assert one.meta is None
    assert not hasattr(one, "__dict__")


@pytest.mark.parametrize("check", [{}, {"check": "schema"}], ids=["described", "checked"])
def test_elements_with_equal_schemas_share_a_description(check: dict[str, str]) -> None:
    """A thousand sensors of one kind keep one schema; it is freed with the last of them."""
    bus, owner, _ = make_bus()
    schema = {"type": "number", "unit": f"m/s {check}"}
    for path in ("s", "t"):
        owner.notify("add", {"path": path, "value": 1, "schema": schema, **check})
    owner.notify("add", {"path": "u", "value": 1, "schema": {"type": "number"}, **check})
    one, same, other = (bus.tree.elements[path].description for path in ("s", "t", "u"))
    assert one is same
    assert other.schema != one.schema
    owner.notify("change", {"path": "t", "schema": {"type": "number"}})
    assert bus.tree.elements["t"].description is other
    assert bus.tree.elements["s"].description is one
    freed = weakref.ref(one)
    del one, same, other
    owner.notify("remove", {"path": "s"})
    gc.collect()
    assert freed() is None


ELEMENT_BYTES_MAX = 360
"""Measured: 342, with all places in the tree."""


@pytest.mark.skipif(lane.compiled is None, reason="not compiled here")
def test_an_element_takes_little_memory() -> None:
    """A state takes no more than that, and nothing more if its schema is that of its neighbour."""
    for schema in ({}, {"schema": {"unit": "m/s", "title": "the same for all of them"}}):
        owner = Peer(Bus())
        tracemalloc.start()
        try:
            for number in range(3000):
                owner.notify("add", {"path": f"plant/area/{number:06}", "value": number, **schema})
            gc.collect()
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert taken / 3000 < ELEMENT_BYTES_MAX, (taken / 3000, schema)


def test_meta_data_do_not_stay() -> None:
    """After a plain change a state is as cheap as one that never had meta data."""
    bus, owner, _ = make_bus()
    owner.notify("add", {"path": "s", "value": 1, "quality": "bad"})
    assert bus.tree.elements["s"].meta is not None
    change(owner, 0.0, value=2)
    assert bus.tree.elements["s"].meta is None


# -- staleness


STALE = {"path": "s", "value": 1, "schema": {"stale": 5}}


def test_a_quiet_state_becomes_stale_and_lives_again() -> None:
    """A state is stale when it has not changed for its seconds, until it changes again; only those who ask are told."""
    bus, owner, watcher = make_bus()
    plain = Peer(bus)
    plain.fetch()
    woken: list[float] = []
    bus.staleness.wake = woken.append
    owner.send({"method": "add", "params": STALE}, now=100.0)
    watcher.events(), plain.events()
    assert woken == [105.0]
    change(owner, 104.0, value=2)
    watcher.events(), plain.events()
    bus.mark_stale(105.0)
    assert watcher.events() == []
    assert bus.staleness.next_deadline() == 109.0
    bus.mark_stale(109.0)
    assert watcher.events() == [{"path": "s", "event": "change", "value": 2, "stale": True}]
    assert (plain.events(), bus.staleness.stale, bus.staleness.next_deadline()) == ([], 1, None)
    assert Peer(bus).fetch(meta=True) == [{"path": "s", "event": "add", "value": 2, "stale": True}]
    change(owner, 200.0, value=2, quality="bad")
    assert watcher.events() == [{"path": "s", "event": "change", "value": 2, "quality": "bad", "stale": False}]
    assert plain.events() == [{"path": "s", "event": "change", "value": 2}]
    assert (bus.staleness.stale, bus.staleness.next_deadline()) == (0, 205.0)
    change(owner, 201.0, value=3)
    assert watcher.events() == [{"path": "s", "event": "change", "value": 3}]


def test_another_schema_begins_anew() -> None:
    """A changed schema sets another deadline, or none; the old one has no effect."""
    bus, owner, watcher = make_bus()
    owner.send({"method": "add", "params": STALE}, now=0.0)
    change(owner, 1.0, schema={"stale": 50})
    bus.mark_stale(5.0)
    watcher.events()
    bus.mark_stale(51.0)
    assert [event["stale"] for event in watcher.events()] == [True]
    change(owner, 52.0, schema={})
    assert watcher.events() == [{"path": "s", "event": "change", "value": 1, "schema": {}, "stale": False}]
    assert bus.staleness.stale == len(bus.staleness) == 0
    change(owner, 53.0, value=2)
    bus.mark_stale(1000.0)
    assert watcher.events() == [{"path": "s", "event": "change", "value": 2}]


def test_a_stale_state_is_removed() -> None:
    """A state that is gone is neither watched nor stale."""
    bus, owner, watcher = make_bus()
    owner.send({"method": "add", "params": STALE}, {"method": "add", "params": {**STALE, "path": "t"}}, now=0.0)
    bus.mark_stale(5.0)
    assert bus.staleness.stale == 2
    owner.notify("remove", {"path": "s"})
    owner.disconnect()
    assert bus.staleness.stale == len(bus.staleness) == 0
    assert [event["event"] for event in watcher.events()] == ["add", "add", "change", "change", "remove", "remove"]


def test_a_method_is_never_stale() -> None:
    """The schema of a method may say so, but there is nothing that could be stale."""
    bus, owner, _ = make_bus()
    owner.notify("add", {"path": "m", "schema": {"stale": 5}})
    owner.notify("change", {"path": "m", "schema": {"stale": 6}})
    assert len(bus.staleness) == 0
    owner.notify("remove", {"path": "m"})


def test_rules_on_values_hold_for_stale_states() -> None:
    """A fetch with a rule on values is told of stale states that match, and of no others."""
    bus, owner, _ = make_bus()
    low = Peer(bus)
    low.fetch(meta=True, value={"lessThan": 10})
    owner.notify("add", {"path": "a", "value": 1, "schema": {"stale": 5}})
    owner.notify("add", {"path": "b", "value": 100, "schema": {"stale": 5}})
    low.events()
    bus.mark_stale(5.0)
    assert [event["path"] for event in low.events()] == ["a"]


def test_many_stale_states_leave_others_their_turn() -> None:
    """A crowd of states that become stale together is told of in portions, and none is forgotten."""
    bus, owner, _ = make_bus()
    for number in range(AT_ONCE + 100):
        owner.notify("add", {"path": f"s{number}", "value": 1, "schema": {"stale": 5}})
    bus.mark_stale(5.0)
    assert bus.staleness.stale == AT_ONCE
    assert bus.staleness.next_deadline() == 5.0
    bus.mark_stale(5.0)
    assert bus.staleness.stale == AT_ONCE + 100


def test_old_deadlines_do_not_pile_up() -> None:
    """However often a schema changes, the deadlines of its state that are void stay few."""
    bus, owner, _ = make_bus()
    owner.notify("add", STALE)
    for number in range(3 * INVALID_MAX):
        change(owner, 0.0, schema={"stale": 1000 + number})
    assert len(bus.staleness._heap) <= INVALID_MAX + 4


# -- the record


def test_the_record_has_times_and_qualities() -> None:
    """Plain changes are recorded as ever; others with source time and quality, and those of the past as such."""
    recorded, bus = RecordedEvents(), Bus()
    bus.record = recorded
    owner = Peer(bus)
    owner.notify("add", {"path": "s", "value": 1, "ts": 5, "quality": "bad", "schema": "x"})
    change(owner, 0.0, value=2)
    change(owner, 0.0, value=3, ts=7)
    change(owner, 0.0, value=4, ts=6, quality="uncertain", past=True)
    change(owner, 0.0, schema="y")
    assert recorded.take() == [
        ("add", "state", "s", b"1", "#1", {"schema": "x"}, 5, b'"bad"'),
        ("change", "state", "s", b"2", "#1", None),
        ("change", "state", "s", b"3", "#1", None, 7, None),
        ("past", "state", "s", b"4", "#1", None, 6, b'"uncertain"'),
        ("describe", "state", "s", None, "#1", {"schema": "y"}),
    ]


# -- a model


VALUES = st.sampled_from([0, 1, "a", None, [1]])
QUALITIES = st.sampled_from(["good", "uncertain", "bad", {"level": "bad", "reason": "x"}, "odd", 5])
WRONG: Any = "wrong"
TIMES: dict[Any, Any] = {
    0: 0,
    2_000_000: 2_000_000,
    "1970-01-01T00:00:01Z": 1_000_000,
    "1970-01-01T00:00:03+00:00": 3_000_000,
    "noon": WRONG,
    1.5: WRONG,
}
"""Times as they are sent, and what they mean."""
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "value": VALUES,
        "ts": st.sampled_from(list(TIMES)),
        "quality": QUALITIES,
        "past": st.booleans(),
        "schema": VALUES,
    },
)


class Model:
    """The one state of the bus as its owner should see it: what is known, and what a change makes of it."""

    def __init__(self) -> None:
        self.value: Any = "first"
        self.time: int | None = None
        self.quality: Any = None
        self.schema: Any = None
        self.has_schema = False

    def change(self, given: dict[str, Any]) -> tuple[list[Any], list[Any]] | None:
        """Return the events for peers that ask for everything, and for nothing; None if the change is refused."""
        time = TIMES[given["ts"]] if "ts" in given else None
        is_meta = given.keys() & {"ts", "quality", "past"}
        refused = (
            not given.keys() & {"value", "schema"}
            or (is_meta and "value" not in given)
            or time is WRONG
            or given.get("quality", "good") in ("odd", 5)
            or (given.get("past") is True and time is None)
        )
        if refused:
            return None
        quality = None if given.get("quality", "good") == "good" else given["quality"]
        is_past = given.get("past") is True and (self.time is None or (time or 0) < self.time)
        is_repeated = given.get("past") is True and (given["value"], time, quality) == (
            self.value,
            self.time,
            self.quality,
        )
        received, plain = [], []
        if "value" in given and not is_past and not is_repeated:
            self.value, self.time, self.quality = given["value"], time, quality
            received = [self.shown()]
            plain = [{"path": "s", "event": "change", "value": self.value}]
        if "schema" in given:
            self.schema, self.has_schema = given["schema"], True
            received = [self.shown() | {"schema": self.schema}]
        return received, plain

    def shown(self) -> dict[str, Any]:
        received = {"path": "s", "event": "change", "value": self.value}
        if self.time is not None:
            received["ts"] = write_time(self.time)
        if self.quality is not None:
            received["quality"] = self.quality
        return received

    def entry(self) -> dict[str, Any]:
        return self.shown() | {"event": "add"} | ({"schema": self.schema} if self.has_schema else {})


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(CHANGES, max_size=8))
@example([{"value": 0, "ts": 0}, {"value": 0, "ts": 0, "past": True}])
def test_changes_against_a_model(changes: list[dict[str, Any]]) -> None:
    """Whatever an owner sends, those who ask are told exactly what a plain model says, and others only new values."""
    bus, owner, watcher = make_bus()
    model, plain = Model(), Peer(bus)
    plain.fetch()
    owner.notify("add", {"path": "s", "value": "first"})
    watcher.events(), plain.events()
    for params in changes:
        expected = model.change(params)
        response = owner.request("change", {"path": "s", **params})
        assert ("error" in response) is (expected is None), response
        assert (watcher.events(), plain.events()) == (expected or ([], []))
        assert owner.result("get", {"meta": True, "schema": True}) == [model.entry()]


@pytest.mark.parametrize("name", ["schema", "meta"])
def test_asking_is_true_only(name: str) -> None:
    """Anything but true asks for nothing, as with the other options of a fetch."""
    bus, owner, _ = make_bus()
    owner.notify("add", {"path": "s", "value": 1, "schema": "x", "quality": "bad"})
    assert Peer(bus).fetch(**{name: 1}) == [{"path": "s", "event": "add", "value": 1}]
