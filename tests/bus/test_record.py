"""What the bus tells whoever keeps a record of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jetbus.bus.bus import Bus
from jetbus.bus.record import tell_again
from jetbus.bus.session import Session
from support.inmemory import Peer


class Kept:
    """A record in memory, with a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_us = 1_000
        self.events: list[tuple[Any, ...]] = []

    def note(self, row: tuple[str, bytes, str], /) -> None:
        self.events.append(("change", "state", *row, None))

    def append(
        self,
        event: str,
        kind: str | None = None,
        path: str | None = None,
        value: bytes | None = None,
        peer: str | None = None,
        detail: bytes | None = None,
        /,
    ) -> None:
        self.events.append((event, kind, path, value, peer, None if detail is None else msgspec.json.decode(detail)))

    def take(self) -> list[tuple[Any, ...]]:
        events, self.events = self.events, []
        return events


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def bus(kept: Kept) -> Bus:
    made = Bus()
    made.record = kept
    return made


def named(bus: Bus, name: str) -> Peer:
    peer = Peer(bus)
    assert peer.result("config", {"name": name}) is True
    return peer


def test_a_state_lives(bus: Bus, kept: Kept) -> None:
    """Add, change and remove are told with the owner's name and number and the very bytes of the value."""
    owner = named(bus, "pump")
    owner.send_text('{"method":"add","params":{"path":"a","value":1.50}}')
    owner.send_text('{"method":"change","params":{"path":"a","value":[ 2, "ü" ]}}')
    owner.notify("remove", {"path": "a"})
    assert kept.take() == [
        ("add", "state", "a", b"1.50", "pump#1", None),
        ("change", "state", "a", '[ 2, "ü" ]'.encode(), "pump#1", None),
        ("remove", "state", "a", '[ 2, "ü" ]'.encode(), "pump#1", None),
    ]


def test_told_again(bus: Bus, kept: Kept) -> None:
    """What the record has missed is told as it is now: what is there as an add, what is not as a remove."""
    owner = named(bus, "pump")
    owner.send_text('{"method":"add","params":{"path":"a","value":1,"fetchOnly":true}}')
    owner.notify("add", {"path": "m"})
    owner.send_text('{"method":"change","params":{"path":"a","value":2}}')
    kept.take()
    bus.own.tell("$jet/x", b"1")
    tell_again(kept, bus, ["a", "m", "gone", "$jet/x"])
    assert kept.take() == [
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
def test_every_way_to_change_is_told(text: str, bus: Bus, kept: Kept) -> None:
    """Whatever way a change takes through the bus, it is told once."""
    owner = Peer(bus)
    owner.notify("add", {"path": "a", "value": 1})
    kept.take()
    owner.send_text(text)
    assert kept.take() == [("change", "state", "a", b"2", "#1", None)]


def test_an_owner_goes(bus: Bus, kept: Kept) -> None:
    """When an owner goes, those who wait for it are answered and recorded first, then its elements, oldest first."""
    owner, caller = named(bus, "pump"), named(bus, "ann")
    owner.notify("add", {"path": "b", "value": 1})
    owner.notify("add", {"path": "a"})
    caller.send({"id": 7, "method": "call", "params": {"path": "a"}})
    kept.take()
    owner.disconnect()
    call, *removes = kept.take()
    assert call[:5] == ("call", "method", "a", None, "ann#2")
    assert call[5]["outcome"] == "error"
    assert removes == [
        ("remove", "state", "b", b"1", "pump#1", None),
        ("remove", "method", "a", None, "pump#1", None),
    ]


def test_a_request_takes_its_time(bus: Bus, kept: Kept) -> None:
    """The duration of a request is that from its coming to its answer; the error is the owner's."""
    owner, caller = named(bus, "pump"), named(bus, "ann")
    owner.notify("add", {"path": "a", "value": 1})
    kept.take()
    caller.send({"id": 7, "method": "set", "params": {"path": "a", "value": {"x": 1}}})
    (routed,) = [message for message in owner.told() if message.get("method") == "a"]
    assert kept.take() == [], "it has not ended yet"
    kept.now_us += 2_500
    owner.send({"id": routed["id"], "error": {"code": 5, "message": "no", "data": [1]}})
    assert kept.take() == [
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


@pytest.mark.parametrize(("error", "told"), ERRORS.values(), ids=ERRORS)
def test_errors_of_any_shape(error: str, told: dict[str, Any], bus: Bus, kept: Kept) -> None:
    """Whatever an owner calls an error is recorded as one."""
    owner, caller = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    caller.send({"id": 7, "method": "call", "params": {"path": "m", "args": [1]}})
    (routed,) = owner.told()
    owner.send_text(f'{{"id":"{routed["id"]}","error":{error}}}')
    detail = kept.take()[-1][5]
    assert detail == {"outcome": "error", "us": 0, "owner": "#1", **told}


def test_too_late(bus: Bus, kept: Kept) -> None:
    """A request whose time is up is recorded then; the late answer is not."""
    owner, caller = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    caller.send({"id": 7, "method": "call", "params": {"path": "m", "timeout": 1}})
    (routed,) = owner.told()
    kept.take()
    bus.expire(2.0)
    ((event, *_, detail),) = kept.take()
    assert (event, detail["outcome"], detail["code"]) == ("call", "error", -32001)
    owner.send({"id": routed["id"], "result": 1})
    assert kept.take() == []


def test_nobody_waits(bus: Bus, kept: Kept) -> None:
    """A request without id is recorded as sent, when it is."""
    owner, caller = Peer(bus), named(bus, "ann")
    owner.notify("add", {"path": "m"})
    kept.take()
    caller.notify("call", {"path": "m", "args": {"x": 1}})
    assert kept.take() == [("call", "method", "m", b'{"x":1}', "ann#2", {"outcome": "sent", "owner": "#1"})]


def test_what_the_daemon_owns_is_not_told(bus: Bus, kept: Kept) -> None:
    """The daemon's own states are not recorded."""
    bus.own.tell("$jet/x", b"1")
    bus.own.tell("$jet/x", b"2")
    bus.own.drop("$jet/x")
    assert kept.take() == []


def test_passwords_are_not_told(bus: Bus, kept: Kept) -> None:
    """Services of users are no events."""
    peer = Peer(bus)
    for service in ("authenticate", "passwd", "addUser"):
        peer.error(service, {"user": "ann", "password": "secret"})
    assert kept.take() == []
    assert isinstance(peer.session, Session)
