"""Many peers that ask for the same at the same time: it is prepared once, for each user apart, and right at its end."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any

import pytest

from jetbus.bus.access import Auth
from jetbus.bus.bus import Bus
from support.inmemory import Peer

PEERS, STATES = 20, 1500


def _add(owner: Peer, count: int = STATES, **details: Any) -> None:
    for number in range(count):
        owner.notify("add", {"path": f"s/{number}", "value": number, **details})


def _begin(peers: Iterable[Peer], method: str, params: dict[str, Any]) -> None:
    """Send a request of each peer, in a turn that is over at once."""
    for peer in peers:
        peer.bus.serving.turn_ends = -1.0
        peer.send({"id": 1, "method": method, "params": params})


def _go_on(peers: Iterable[Peer]) -> bool:
    """Give each peer a turn of one step; return False once all are answered."""
    waiting = [peer for peer in peers if peer.session.task is not None]
    for peer in waiting:
        peer.bus.serving.next_turn(peer.session)
    return bool(waiting)


def _apply(known: dict[str, Any], messages: Iterable[Any]) -> dict[str, Any]:
    """Return the states that a fetching peer knows after these messages."""
    for message in messages:
        if "params" not in message:
            continue
        event = message["params"]
        if event["event"] == "remove":
            del known[event["path"]]
        else:
            assert (event["path"] in known) is (event["event"] == "change"), event
            known[event["path"]] = event["value"]
    return known


def test_equal_requests_prepare_once() -> None:
    """Gets and fetches of many peers with equal rules share one preparation, and each is answered in full."""
    bus = Bus()
    owner = Peer(bus)
    _add(owner)
    getting, fetching = [Peer(bus) for _ in range(PEERS)], [Peer(bus) for _ in range(PEERS)]
    _begin(getting, "get", {})
    _begin(fetching, "fetch", {"id": "all"})
    assert (bus.preparations.begun, len(bus.preparations)) == (1, 1)
    turns = 0
    while _go_on([*getting, *fetching]):
        turns += 1
    # Each look at an element was for all: alone, one peer would have needed more turns.
    assert turns < STATES / 25
    for peer in getting:
        assert [entry["value"] for entry in peer.received()[0]["result"]] == list(range(STATES))
    for peer in fetching:
        assert _apply({}, peer.received()) == {f"s/{number}": number for number in range(STATES)}
    assert (bus.preparations.begun, len(bus.preparations)) == (1, 0)
    bus.serving.turn_ends = math.inf
    owner.notify("change", {"path": "s/7", "value": "live"})
    assert {str(peer.events()) for peer in fetching} == {"[{'path': 's/7', 'event': 'change', 'value': 'live'}]"}


def test_equal_sorted_requests() -> None:
    """Sorted gets and fetches share a preparation as well, and each receives the whole range with its positions."""
    bus = Bus()
    owner = Peer(bus)
    _add(owner)
    getting, fetching = [Peer(bus) for _ in range(3)], [Peer(bus) for _ in range(3)]
    params = {"sort": {"byValue": "number", "descending": True, "from": 2, "to": 1001}}
    _begin(getting, "get", params)
    _begin(fetching, "fetch", {"id": "f", **params})
    for turn in range(10_000):
        if not _go_on([*getting, *fetching]):
            break
        if turn in (5, 12):
            bus.serving.turn_ends = math.inf
            owner.notify("change", {"path": f"s/{turn}", "value": 5000 + turn})
            bus.serving.turn_ends = -1.0
    assert bus.preparations.begun == 1
    values = sorted({**{n: n for n in range(STATES)}, 5: 5005, 12: 5012}.values(), reverse=True)[1:1001]
    expected = list(enumerate(values, 2))
    for peer in getting:
        assert [(entry["index"], entry["value"]) for entry in peer.received()[0]["result"]] == expected
    for peer in fetching:
        (first,) = [message["params"] for message in peer.received() if "params" in message]
        assert [(entry["index"], entry["value"]) for entry in first["changes"]] == expected
        assert first["n"] == 1000


def test_users_never_share() -> None:
    """Users with different rights who ask for the same at the same time are each shown their own states only."""
    bus = Bus()
    owner = Peer(bus)
    for number in range(STATES):
        access = {"fetchGroups": [f"g{number % 3}"]}
        owner.notify("add", {"path": f"s/{number}", "value": number, "access": access})
    peers = []
    for number in range(9):
        peer = Peer(bus)
        group = f"g{number % 3}"
        peer.session.auth = Auth(f"user {group}", (group,), (), ())
        peers.append(peer)
    stranger = Peer(bus)
    _begin([*peers, stranger], "get", {})
    assert bus.preparations.begun == 4
    while _go_on([*peers, stranger]):
        pass
    for number, peer in enumerate(peers):
        values = [entry["value"] for entry in peer.received()[0]["result"]]
        assert values == list(range(number % 3, STATES, 3))
    assert stranger.received()[0]["result"] == []


def test_rights_that_change_meanwhile() -> None:
    """A user who loses its rights between two steps is shown nothing that it may not see any more."""
    bus = Bus()
    owner, peers = Peer(bus), [Peer(bus) for _ in range(2)]
    _add(owner, access={"fetchGroups": ["g"]})
    owner.notify("add", {"path": "open", "value": True})
    for peer in peers:
        peer.session.auth = Auth("user", ("g",), (), ())
    _begin(peers[:1], "get", {})
    _begin(peers[1:], "fetch", {"id": "all"})
    for _ in range(5):
        assert _go_on(peers)
    bus.permissions.use(None)
    while _go_on(peers):
        pass
    assert [entry["path"] for entry in peers[0].received()[0]["result"]] == ["open"]
    assert _apply({}, peers[1].received()) == {"open": True}


RULES: dict[str, dict[str, Any]] = {
    "all": {},
    "below": {"path": {"startsWith": "s/1"}},
    "one": {"path": {"equals": "s/3"}},
    "value": {"value": {"lessThan": 50}},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_fetches_among_changes(rule: dict[str, Any], seed: int) -> None:
    """Whatever is added, changed and removed between two steps, each peer ends with what is there, told once."""
    chance = random.Random(seed)
    bus = Bus()
    owner, states = Peer(bus), {f"s/{number}": number for number in range(120)}
    _add(owner, len(states))
    peers: list[Peer] = []
    known: dict[Peer, dict[str, Any]] = {}
    for turn in range(60):
        if turn % 5 == 0:
            peers.append(Peer(bus))
            known[peers[-1]] = {}
            _begin(peers[-1:], "fetch", {"id": f"f{chance.randrange(2)}", **rule})
        bus.serving.turn_ends = -1.0
        _go_on([peer for peer in peers if chance.random() < 0.6])
        bus.serving.turn_ends = math.inf
        for _ in range(5):
            path, value = f"s/{chance.randrange(140)}", chance.randrange(100)
            if path not in states:
                owner.notify("add", {"path": path, "value": value})
                states[path] = value
            elif chance.random() < 0.3:
                owner.notify("remove", {"path": path})
                del states[path]
            else:
                owner.notify("change", {"path": path, "value": value})
                states[path] = value
        if peers and chance.random() < 0.1:
            leaving = peers.pop(chance.randrange(len(peers)))
            bus.disconnect(leaving.session)
        for peer in peers:
            _apply(known[peer], peer.received())
    while _go_on(peers):
        pass
    value_test = rule.get("value")
    test = rule.get("path", {})
    expected = {
        path: value
        for path, value in states.items()
        if path.startswith(test.get("startsWith", "")) and path == test.get("equals", path)
        if value_test is None or value < 50
    }
    for peer in peers:
        assert _apply(known[peer], peer.received()) == expected
    assert len(bus.preparations) == 0
    for peer in peers:
        bus.disconnect(peer.session)
    assert {element.audiences for element in bus.tree.elements.values()} <= {()}
