"""Replaying the past: what happened becomes what a fetch would have been told."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.bus.bus import Bus
from jetbus.bus.ports import ImmediateWorker, Seam
from jetbus.bus.replay import MatchReplay, PastElement, PastEvent, filter_by_value
from jetbus.errors import Internal, NotAllowed
from jetbus.rules import EVERYTHING, Rule, parse_rule
from jetbus.wire import jsonrpc
from jetbus.wire.notifications import add_timestamp, encode_past_entry
from support.inmemory import Peer

FetchEvent = tuple[str, str, bytes | None, bool, str]
ABOVE_4 = parse_rule("** value>4")


def brief(received: Iterable[tuple[str, PastElement]]) -> list[FetchEvent]:
    return [(kind, then.path, then.value, then.fetch_only, then.ts) for kind, then in received]


def then(path: str, value: bytes | None = None, fetch_only: bool = False, ts: str = "") -> PastElement:
    return PastElement(path, jsonrpc.encode(path), value, fetch_only, ts)


HISTORIES: dict[str, tuple[Rule, list[PastEvent], list[FetchEvent]]] = {
    "a life": (
        EVERYTHING,
        [
            PastEvent("add", "t1", "a", b"1"),
            PastEvent("change", "t2", "a", b"2"),
            PastEvent("remove", "t3", "a", b"2"),
        ],
        [("add", "a", b"1", False, "t1"), ("change", "a", b"2", False, "t2"), ("remove", "a", b"2", False, "t3")],
    ),
    "a method": (
        EVERYTHING,
        [PastEvent("add", "t1", "m"), PastEvent("remove", "t2", "m")],
        [("add", "m", None, False, "t1"), ("remove", "m", None, False, "t2")],
    ),
    "a change before any add": (
        EVERYTHING,
        [PastEvent("change", "t1", "a", b"1")],
        [("add", "a", b"1", False, "t1")],
    ),
    "a remove of what nobody knows": (EVERYTHING, [PastEvent("remove", "t1", "a", b"1")], []),
    "fetch only stays with the element": (
        EVERYTHING,
        [
            PastEvent("add", "t1", "a", b"1", True),
            PastEvent("change", "t2", "a", b"2"),
            PastEvent("remove", "t3", "a", b"2"),
            PastEvent("add", "t4", "a", b"3"),
        ],
        [
            ("add", "a", b"1", True, "t1"),
            ("change", "a", b"2", True, "t2"),
            ("remove", "a", b"2", True, "t3"),
            ("add", "a", b"3", False, "t4"),
        ],
    ),
    "everything goes": (
        EVERYTHING,
        [PastEvent("add", "t1", "b", b"1"), PastEvent("add", "t2", "a", b"2"), PastEvent("start", "t3")],
        [
            ("add", "b", b"1", False, "t1"),
            ("add", "a", b"2", False, "t2"),
            ("remove", "b", b"1", False, "t3"),
            ("remove", "a", b"2", False, "t3"),
        ],
    ),
    "a value rule": (
        ABOVE_4,
        [
            PastEvent("add", "t1", "a", b"1"),
            PastEvent("change", "t2", "a", b"5"),
            PastEvent("change", "t3", "a", b"6"),
            PastEvent("change", "t4", "a", b"2"),
            PastEvent("change", "t5", "a", b"3"),
            PastEvent("remove", "t6", "a", b"3"),
        ],
        [("add", "a", b"5", False, "t2"), ("change", "a", b"6", False, "t3"), ("remove", "a", b"2", False, "t4")],
    ),
    "a value rule and a remove": (
        ABOVE_4,
        [
            PastEvent("add", "t1", "a", b"5"),
            PastEvent("add", "t2", "b", b"1"),
            PastEvent("remove", "t3", "a", b"5"),
            PastEvent("remove", "t4", "b", b"1"),
            PastEvent("add", "t5", "b", b"6"),
            PastEvent("remove", "t6", "b"),
        ],
        [
            ("add", "a", b"5", False, "t1"),
            ("remove", "a", b"5", False, "t3"),
            ("add", "b", b"6", False, "t5"),
            ("remove", "b", b"6", False, "t6"),
        ],
    ),
    "a value rule and a method": (ABOVE_4, [PastEvent("add", "t1", "m"), PastEvent("remove", "t2", "m")], []),
    "a value rule and fetch only": (
        ABOVE_4,
        [PastEvent("add", "t1", "a", b"1", True), PastEvent("change", "t2", "a", b"5")],
        [("add", "a", b"5", True, "t2")],
    ),
}


@pytest.mark.parametrize(("rule", "events", "received"), HISTORIES.values(), ids=HISTORIES)
def test_replay(rule: Rule, events: list[PastEvent], received: list[FetchEvent]) -> None:
    """Past events are replayed as a fetch of that time would have received them."""
    assert brief(MatchReplay(rule).convert(events)) == received


def test_make_good() -> None:
    """The notifications at the seam lead to the present: removes, adds or changes for differences only."""
    replay = MatchReplay(EVERYTHING)
    list(replay.convert([PastEvent("add", "t", path, b"1") for path in ("same", "changed", "gone")]))
    present = [then("new", b"4"), then("same", b"1"), then("changed", b"2"), then("m")]
    assert brief(replay.catch_up(present)) == [
        ("remove", "gone", b"1", False, ""),
        ("add", "new", b"4", False, ""),
        ("change", "changed", b"2", False, ""),
        ("add", "m", None, False, ""),
    ]


# -- against a model

PATHS = st.sampled_from(["a", "b", "c/d"])
VALUES = st.one_of(st.none(), st.integers(0, 9))
EVENTS = st.lists(st.tuples(st.sampled_from(["add", "change", "remove", "start"]), PATHS, VALUES), max_size=40)
RULES = st.sampled_from(["**", "** value>4", "** value=null", "** value<3"])


class Picture:
    """Simple model of a client that follows events and doubts every one of them."""

    def __init__(self) -> None:
        self.values: dict[str, bytes | None] = {}

    def follow(self, received: Iterable[tuple[str, PastElement]]) -> None:
        for kind, one in received:
            assert (one.path in self.values) is (kind != "add"), (kind, one)
            if kind == "remove":
                del self.values[one.path]
            else:
                self.values[one.path] = one.value


def tree_after(happened: Iterable[PastEvent]) -> dict[str, bytes | None]:
    values: dict[str, bytes | None] = {}
    for event in happened:
        if not event.path:
            values.clear()
        elif event.kind == "remove":
            values.pop(event.path, None)
        else:
            values[event.path] = event.value
    return values


def matching(rule: Rule, values: dict[str, bytes | None]) -> dict[str, bytes | None]:
    test: Callable[[Any], bool] | None = rule.matches_value
    return {
        path: value for path, value in values.items() if test is None or (value is not None and test(json.loads(value)))
    }


def read_events(steps: list[tuple[str, str, Any]]) -> list[PastEvent]:
    return [
        PastEvent(kind, f"t{number}", "" if kind == "start" else path, json.dumps(value).encode())
        for number, (kind, path, value) in enumerate(steps)
    ]


@given(steps=EVENTS, text=RULES)
def test_replay_ends_where_the_tree_ends(steps: list[tuple[str, str, Any]], text: str) -> None:
    """After each event, who follows what is told knows exactly what matched in the tree at that time."""
    rule, picture, events = parse_rule(text), Picture(), read_events(steps)
    replay = MatchReplay(rule)
    for number, event in enumerate(events, 1):
        picture.follow(replay.convert([event]))
        assert picture.values == matching(rule, tree_after(events[:number]))


@given(steps=EVENTS, text=RULES, cut=st.integers(0, 40))
def test_replay_in_pieces(steps: list[tuple[str, str, Any]], text: str, cut: int) -> None:
    """It makes no difference in how many pieces the past is read."""
    events, replay = read_events(steps), MatchReplay(parse_rule(text))
    whole = brief(MatchReplay(parse_rule(text)).convert(events))
    assert brief([*replay.convert(events[:cut]), *replay.convert(events[cut:])]) == whole


@given(steps=EVENTS, lost=st.sets(st.integers(0, 40)), text=RULES)
def test_what_is_lost_is_made_good(steps: list[tuple[str, str, Any]], lost: set[int], text: str) -> None:
    """Whatever the record lacks, what is told at the seam ends in the present."""
    rule, picture, events = parse_rule(text), Picture(), read_events(steps)
    replay = MatchReplay(rule)
    picture.follow(replay.convert(event for number, event in enumerate(events) if number not in lost))
    present = matching(rule, tree_after(events))
    picture.follow(replay.catch_up(then(path, value) for path, value in present.items()))
    assert picture.values == present


# -- how it is told


def encode(element: PastElement) -> bytes:
    return encode_past_entry(element, element.fetch_only, element.ts)


def test_entries() -> None:
    """An entry of the past has path, value, fetchOnly where it is true, and the instant of its last event."""
    assert json.loads(encode(then('a"b', b'{"x":1.50}', True, "2026-01-01T00:00:00Z"))) == {
        "path": 'a"b',
        "event": "add",
        "value": {"x": 1.5},
        "fetchOnly": True,
        "ts": "2026-01-01T00:00:00Z",
    }
    assert b'"value":1.50' in encode(then("a", b"1.50"))
    assert json.loads(encode(then("m"))).keys() == {"path", "event", "ts"}


def test_passing() -> None:
    """Of the tree of an instant those pass whose value matched then; a method has none."""
    found = [then("a", b"1"), then("b", b"5"), then("m")]
    assert filter_by_value(EVERYTHING, found) == found
    assert filter_by_value(ABOVE_4, found) == [found[1]]


def test_the_instant_of_an_event() -> None:
    """A notification of the past has its instant as its last member; one of the present stays as it is."""
    tail = b'"params":{"path":"a","event":"add","value":{"x":{}}}}'
    assert add_timestamp(tail, "") == tail
    assert json.loads(b"{" + add_timestamp(tail, "t")) == {
        "params": {"path": "a", "event": "add", "value": {"x": {}}, "ts": "t"}
    }


# -- the services, with a past that is made up


class MadeUp:
    """A past of few events; notes what it is asked."""

    def __init__(self, *events: PastEvent) -> None:
        self.events = list(events)
        self.asked: list[str] = []
        self.refuses = False
        self.later: list[PastEvent] = []

    def check(self, _auth: Any, _instant: Any, /) -> None:
        if self.refuses:
            raise NotAllowed("$jet/journal")

    def as_of(self, instant: Any, _rule: Rule, /) -> list[PastElement]:
        self.asked.append(f"as_of {instant}")
        return [then(path, value, ts="t") for path, value in tree_after(self.events).items()]

    def since(self, instant: Any, _rule: Rule, /) -> MadeUpPages:
        return MadeUpPages(self, instant)

    def bring_up_to_date(self, rule: Rule | None = None, /) -> MadeUpMoment:
        self.asked.append("bring up to date" if rule is None else "keep")
        return MadeUpMoment(self)

    def when_recorded(self, then: Callable[[], None], /) -> None:
        then()


class MadeUpPages:
    """Its events, one a page."""

    def __init__(self, past: MadeUp, instant: str) -> None:
        self._past, self._instant, self._read, self._last = past, instant, 0, 0

    def read_page(self, seam: Seam | None, /) -> tuple[list[PastEvent], bool]:
        if seam is not None:
            self._last = seam.wait()
        self._past.asked.append(f"since {self._instant} up to {self._last}")
        if self._instant == "broken":
            raise Internal("the disk is gone")
        page = self._past.events[self._read : self._read + 1]
        self._read += len(page)
        return page, self._read == len(self._past.events)


class MadeUpMoment:
    """A moment of it."""

    def __init__(self, past: MadeUp) -> None:
        self._require_history = past

    def wait(self) -> int:
        self._require_history.asked.append("wait")
        return len(self._require_history.events)

    def end(self) -> list[PastEvent]:
        self._require_history.asked.append("end")
        return self._require_history.later


def bus_with(past: MadeUp) -> Bus:
    bus = Bus()
    bus.history = past
    return bus


def test_the_record_is_brought_up_to_date_before_it_is_read() -> None:
    """Whoever looks back sees what was acknowledged before: the record is written first."""
    past = MadeUp()
    peer = Peer(bus_with(past))
    assert peer.result("get", {"asOf": "x"}) == []
    assert past.asked == ["bring up to date", "wait", "as_of x"]
    past.asked.clear()
    assert peer.result("fetch", {"id": "f", "since": "y"}) is True
    assert past.asked == ["keep", "wait", "since y up to 0", "end"]


def test_a_get_of_the_past_is_encoded_aside() -> None:
    """The thread that reads the past returns the whole response, so that nothing is left to encode but to send it."""
    responses: list[Any] = []

    class Aside(ImmediateWorker):
        def run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            responses.append(work())
            done(responses[-1])

    bus = bus_with(MadeUp(PastEvent("add", "t", "a", b"1"), PastEvent("add", "t", "b", b"9")))
    bus.history_worker = Aside()
    peer = Peer(bus)
    peer.send({"id": 1, "method": "get", "params": {"asOf": "x", "value": {"greaterThan": 4}}})
    assert [json.loads(response) for response in responses] == peer.received()
    assert [entry["path"] for entry in json.loads(responses[0])["result"]] == ["b"]


def test_what_happens_meanwhile_is_told_after_the_record() -> None:
    """Events during the reading of the journal come after those in it, and before live ones."""
    past = MadeUp(PastEvent("add", "t", "a", b"1"))
    past.later = [PastEvent("change", "u", "a", b"2"), PastEvent("remove", "v", "a")]
    peer = Peer(bus_with(past))
    peer.send({"id": 1, "method": "fetch", "params": {"id": "f", "since": "y"}})
    received = peer.received()
    assert received[0] == {"id": 1, "result": True}
    assert [message["params"]["event"] for message in received[1:]] == ["add", "change", "remove"]


def test_a_refused_reader_keeps_nothing() -> None:
    """Nothing is kept in memory any more for a reader that was refused."""
    past = MadeUp()
    assert Peer(bus_with(past)).error("fetch", {"id": "f", "since": "broken"})["code"] == -32603
    assert past.asked[-1] == "end"


def test_refusals() -> None:
    """Users without permission and failing reads are reported, and leave no fetch behind."""
    past = MadeUp()
    bus = bus_with(past)
    peer = Peer(bus)
    assert peer.error("fetch", {"id": "f", "since": "broken"})["code"] == -32603
    past.refuses = True
    assert "noAccess" in peer.data("get", {"asOf": "x"})
    assert "noAccess" in peer.data("fetch", {"id": "f", "since": "x"})
    assert peer.result("get", {"asOf": None}) == [], "null is the present"
    assert len(bus.fetches) == 0
    bus.history = None
    assert peer.data("get", {"asOf": "x"})["reason"] == "asOf"


def test_the_present_is_told_without_instant() -> None:
    """At the seam, what the record does not have is told as it is now, and goes on live."""
    past = MadeUp(PastEvent("add", "t1", "a", b"1"), PastEvent("add", "t2", "b", b"1"))
    bus = bus_with(past)
    owner, peer = Peer(bus), Peer(bus)
    owner.result("add", {"path": "a", "value": 2})
    peer.send({"method": "fetch", "params": {"id": "f", "since": "x"}})
    owner.notify("change", {"path": "a", "value": 3})
    assert peer.events() == [
        {"path": "a", "event": "add", "value": 1, "ts": "t1"},
        {"path": "b", "event": "add", "value": 1, "ts": "t2"},
        {"path": "b", "event": "remove", "value": 1},
        {"path": "a", "event": "change", "value": 2},
        {"path": "a", "event": "change", "value": 3},
    ]
