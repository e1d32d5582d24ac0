"""Events that the bus hands to its recorder."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jetbus.bus.bus import Bus
from jetbus.bus.ports import LastEvent
from jetbus.bus.record import record_present
from jetbus.bus.session import Session
from support.inmemory import Peer


class RecordedEvents:
    """A record in memory, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_us = 1_000
        self.missed = 0
        self.events: list[tuple[Any, ...]] = []

    rows = None

    def note(self, row: tuple[str, bytes, str], /) -> None:
        self.events.append(("change", "state", *row, None))

    def find_last(self) -> LastEvent | None:
        raise AssertionError("no fetch has asked for it")

    def append(
        self,
        event: str,
        kind: str | None = None,
        path: str | None = None,
        value: bytes | None = None,
        peer: str | None = None,
        detail: bytes | None = None,
        source_us: int | None = None,
        quality: bytes | None = None,
        /,
    ) -> None:
        received = (event, kind, path, value, peer, None if detail is None else msgspec.json.decode(detail))
        self.events.append(received if source_us is None and quality is None else (*received, source_us, quality))

    def append_described(
        self, path: str, value: bytes, peer: str, source_us: int | None, quality: bytes | None, past: bool, /
    ) -> None:
        self.events.append(("past" if past else "change", "state", path, value, peer, None, source_us, quality))

    def take(self) -> list[tuple[Any, ...]]:
        events, self.events = self.events, []
        return events


@pytest.fixture
def recorded() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def bus(recorded: RecordedEvents) -> Bus:
    made = Bus()
    made.record = recorded
    return made


def named(bus: Bus, name: str) -> Peer:
    peer = Peer(bus)
    assert peer.result("config", {"name": name}) is True
    return peer


def test_a_state_lives(bus: Bus, recorded: RecordedEvents) -> None:
    """Add, change and remove are told with the owner's name and number and the very bytes of the value."""
    owner = named(bus, "pump")
    owner.send_text('{"method":"add","params":{"path":"a","value":1.50}}')
    owner.send_text('{"method":"change","params":{"path":"a","value":[ 2, "ü" ]}}')
    owner.notify("remove", {"path": "a"})
    assert recorded.take() == [
        ("add", "state", "a", b"1.50", "pump#1", None),
        ("change", "state", "a", '[ 2, "ü" ]'.encode(), "pump#1", None),
        ("remove", "state", "a", '[ 2, "ü" ]'.encode(), "pump#1", None),
    ]


def test_an_add_is_recorded_with_its_schema(bus: Bus, recorded: RecordedEvents) -> None:
    """The detail of an add has the schema, as the object or text that its owner wrote."""
    owner = named(bus, "pump")
    owner.notify("add", {"path": "a", "value": 1, "schema": {"unit": "rpm"}})
    owner.notify("add", {"path": "m", "schema": "starts it"})
    assert recorded.take() == [
        ("add", "state", "a", b"1", "pump#1", {"schema": {"unit": "rpm"}}),
        ("add", "method", "m", None, "pump#1", {"schema": "starts it"}),
    ]


def test_told_again(bus: Bus, recorded: RecordedEvents) -> None:
    """After missed events the present is recorded: existing elements as adds, missing ones as removes."""
    owner = named(bus, "pump")
    owner.send_text('{"method":"add","params":{"path":"a","value":1,"fetchOnly":true}}')
    owner.notify("add", {"path": "m"})
    owner.send_text('{"method":"change","params":{"path":"a","value":2}}')
    recorded.take()
    bus.builtin.publish("$jet/x", b"1")
    record_present(recorded, bus, ["a", "m", "gone", "$jet/x"])
    assert recorded.take() == [
        ("add", "state", "a", b"2", "pump#1", {"again": True, "fetchOnly": True}),
        ("add", "method", "m", None, "pump#1", {"again": True}),
        ("remove", None, "gone", None, None, None),
    ]


CHANGES = {
    "the short way": '{"method":"change","params":{"path":"a","value":2}}',
    "with an id": '{"id":1,"method":"change","params":{"path":"a","value":2}}',
    "with an unknown member": '{"method":"change","params":{"path":"a","value":2,"more":{"x":1}}}',
    "in a batch": '[{"method":"change","params":{"path":"a","value":2}}]',
    "positional": '{"method":"change","params":["a",2]}',
    "post": '{"method":"post","params":{"path":"a","event":"change","data":{"value":2}}}',
}


@pytest.mark.parametrize("text", CHANGES.values(), ids=CHANGES)
def test_every_way_to_change_is_told(text: str, bus: Bus, recorded: RecordedEvents) -> None:
    """Whatever way a change takes through the bus, it is told once."""
    owner = Peer(bus)
    owner.notify("add", {"path": "a", "value": 1})
    recorded.take()
    owner.send_text(text)
    assert recorded.take() == [("change", "state", "a", b"2", "#1", None)]


def test_an_owner_goes(bus: Bus, recorded: RecordedEvents) -> None:
    """If an owner goes, its open requests are answered and recorded first, then its elements, oldest first."""
    owner, caller = named(bus, "pump"), named(bus, "ann")
    owner.notify("add", {"path": "b", "value": 1})
    owner.notify("add", {"path": "a"})
    caller.send({"id": 7, "method": "call", "params": {"path": "a"}})
    recorded.take()
    owner.disconnect()
    call, *removes = recorded.take()
    assert call[:5] == ("call", "method", "a", None, "ann#2")
    assert call[5]["outcome"] == "error"
    assert removes == [
        ("remove", "state", "b", b"1", "pump#1", None),
        ("remove", "method", "a", None, "pump#1", None),
    ]


def test_a_request_takes_its_time(bus: Bus, recorded: RecordedEvents) -> None:
    """The duration of a request is that from its coming to its answer; the error is the owner's."""
    owner, caller = named(bus, "pump"), named(bus, "ann")
    owner.notify("add", {"path": "a", "value": 1})
    recorded.take()
    caller.send({"id": 7, "method": "set", "params": {"path": "a", "value": {"x": 1}}})
    (routed,) = [message for message in owner.received() if message.get("method") == "a"]
    assert recorded.take() == [], "it has not ended yet"
    recorded.now_us += 2_500
    owner.send({"id": routed["id"], "error": {"code": 5, "message": "no", "data": [1]}})
    assert recorded.take() == [
        (
            *("set", "state", "a", b'{"x":1}', "ann#2"),
            {"outcome": "error", "us": 2_500, "owner": "pump#1", "code": 5, "error": "no", "data": [1]},
        )
    ]


ERRORS = {
    "text": ('"broken"', {"code": None, "error": "broken"}),
    "a number": ("5", {"code": None, "error": "5"}),
    "no members": ("{}", {"code": None, "error": None}),
}


@pytest.mark.parametrize(("error", "received"), ERRORS.values(), ids=ERRORS)
def test_errors_of_any_shape(error: str, received: dict[str, Any], bus: Bus, recorded: RecordedEvents) -> None:
    """Whatever an owner calls an error is recorded as one."""
    owner, caller = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    caller.send({"id": 7, "method": "call", "params": {"path": "m", "args": [1]}})
    (routed,) = owner.received()
    owner.send_text(f'{{"id":"{routed["id"]}","error":{error}}}')
    detail = recorded.take()[-1][5]
    assert detail == {"outcome": "error", "us": 0, "owner": "#1", **received}


def test_too_late(bus: Bus, recorded: RecordedEvents) -> None:
    """A request whose time is up is recorded then; the late answer is not."""
    owner, caller = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    caller.send({"id": 7, "method": "call", "params": {"path": "m", "timeout": 1}})
    (routed,) = owner.received()
    recorded.take()
    bus.routing.expire(2.0)
    ((event, *_, detail),) = recorded.take()
    assert (event, detail["outcome"], detail["code"]) == ("call", "error", -32001)
    owner.send({"id": routed["id"], "result": 1})
    assert recorded.take() == []


def test_nobody_waits(bus: Bus, recorded: RecordedEvents) -> None:
    """A request without id is recorded as sent, when it is."""
    owner, caller = Peer(bus), named(bus, "ann")
    owner.notify("add", {"path": "m"})
    recorded.take()
    caller.notify("call", {"path": "m", "args": {"x": 1}})
    assert recorded.take() == [("call", "method", "m", b'{"x":1}', "ann#2", {"outcome": "sent", "owner": "#1"})]


def test_what_the_daemon_owns_is_not_told(bus: Bus, recorded: RecordedEvents) -> None:
    """The daemon's own states are not recorded."""
    bus.builtin.publish("$jet/x", b"1")
    bus.builtin.publish("$jet/x", b"2")
    bus.builtin.remove("$jet/x")
    assert recorded.take() == []


def test_passwords_are_not_told(bus: Bus, recorded: RecordedEvents) -> None:
    """Services of users are no events."""
    peer = Peer(bus)
    for service in ("authenticate", "passwd", "addUser"):
        peer.error(service, {"user": "ann", "password": "secret"})
    assert recorded.take() == []
    assert isinstance(peer.session, Session)
