"""Fetches that take the changes of one turn together."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from jetbus.bus.access import Auth
from jetbus.bus.audiences.combined import COMBINED_BYTES
from jetbus.bus.bus import Bus
from jetbus.daemon.outbox import Flow, SocketOutbox
from support.inmemory import IdleLoop, MemoryTransport, Peer, frames_of


def _changes(owner: Peer, *changes: tuple[str, Any]) -> None:
    """Changes that come in one turn."""
    owner.send(*({"method": "change", "params": {"path": path, "value": value}} for path, value in changes))


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
def owner(bus: Bus) -> Peer:
    owner = Peer(bus)
    owner.notify("add", {"path": "a", "value": 0})
    owner.notify("add", {"path": "b", "value": 0, "fetchOnly": True})
    owner.notify("add", {"path": "m"})
    return owner


def test_one_message(bus: Bus, owner: Peer) -> None:
    """Path, value and fetchOnly of each change, in order, values of any kind; the first events are the usual ones."""
    client = Peer(bus)
    assert client.fetch(together=True) == [
        {"path": "a", "event": "add", "value": 0},
        {"path": "b", "event": "add", "value": 0, "fetchOnly": True},
        {"path": "m", "event": "add"},
    ]
    _changes(owner, ("a", 1), ("b", None), ("a", {"x": [1.5, "ä,"]}), ("a", ""))
    assert client.received() == [
        {"method": "f", "params": ["a", 1, False, "b", None, True, "a", {"x": [1.5, "ä,"]}, False, "a", "", False]}
    ]


def test_adds_and_removes_stay_in_place(bus: Bus, owner: Peer) -> None:
    """Other events than changes are sent the usual way, in their place between the changes."""
    client = Peer(bus)
    client.fetch(together=True)
    _changes(owner, ("a", 1), ("b", 1))
    owner.notify("remove", {"path": "b"})
    owner.notify("add", {"path": "c", "value": 5})
    _changes(owner, ("c", 6))
    assert client.events() == [
        ["a", 1, False, "b", 1, True],
        {"path": "b", "event": "remove", "value": 1},
        {"path": "c", "event": "add", "value": 5},
        ["c", 6, False],
    ]


def test_values_that_match_begin_and_end(bus: Bus, owner: Peer) -> None:
    """With a rule for the value, a change that makes it match is an add, and one that ends it a remove."""
    client = Peer(bus)
    client.fetch(together=True, value={"greaterThan": 5})
    _changes(owner, ("a", 6), ("a", 7), ("a", 1))
    assert client.events() == [
        {"path": "a", "event": "add", "value": 6},
        ["a", 7, False],
        {"path": "a", "event": "remove", "value": 1},
    ]


def test_who_may_not_set(bus: Bus, owner: Peer) -> None:
    """Each audience is told what its own members may do; what they may not see is not told."""
    access = {"fetchGroups": ["see"], "setGroups": ["set"]}
    owner.notify("add", {"path": "c", "value": 0, "access": access})
    received = []
    for groups in ((), ("see",), ("see", "set")):
        client = Peer(bus)
        client.session.auth = Auth("u", groups, groups, ())
        client.fetch(together=True, path={"equals": "c"})
        received.append(client)
    _changes(owner, ("c", 1))
    assert [client.events() for client in received] == [
        [],
        [["c", 1, True]],
        [["c", 1, False]],
    ]


def test_long_messages_are_cut(bus: Bus, owner: Peer) -> None:
    """However much changes in one turn, no message becomes much longer than it may."""
    client = Peer(bus)
    client.fetch(together=True)
    value = "x" * (COMBINED_BYTES // 10)
    _changes(owner, *(("a", value + str(number)) for number in range(35)))
    received = client.events()
    assert [len(params) // 3 for params in received] == [10, 10, 10, 5]
    assert [text.removeprefix(value) for params in received for text in params[1::3]] == [str(n) for n in range(35)]


def test_slow_peer(bus: Bus, owner: Peer) -> None:
    """To a peer that reads slowly each change is a message of its own, so that only the newest of a path must wait."""
    flow = Flow(IdleLoop(), 0, 1 << 40, Counter())
    transport = MemoryTransport()
    outbox = SocketOutbox(transport, flow)
    session = bus.connect(outbox)
    outbox.audiences = session.fetches.values()
    bus.receive(session, [json.dumps({"method": "fetch", "params": {"id": "f", "together": True}}).encode()], 0.0)
    outbox.flush()
    read_bytes = len(transport.written)
    outbox.pause()
    _changes(owner, ("a", 1), ("b", 1), ("a", 2), ("a", 3))
    outbox.resume()
    received = [json.loads(frame)["params"] for frame in frames_of(transport.written[read_bytes:])]
    assert received == [["a", 3, False], ["b", 1, True]]
    assert flow.conflated == 2


IGNORED: dict[str, dict[str, Any]] = {
    "sorted": {"together": True, "sort": {}},
    "legacy": {"together": True, "matcher": "."},
    "no true": {"together": 1},
}


@pytest.mark.parametrize("options", IGNORED.values(), ids=IGNORED)
def test_where_it_means_nothing(bus: Bus, owner: Peer, options: dict[str, Any]) -> None:
    """Sorted lists, the dialect of 2012 and anything but true leave notifications as they are."""
    client = Peer(bus)
    client.fetch(**options)
    _changes(owner, ("a", 1), ("b", 1))
    assert [isinstance(params, dict) for params in client.events()] == [True, True]
