"""Peers that leave: what they leave behind is removed in short steps, and is in nobody's way until then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

from jetbus.bus.audiences import Audience
from jetbus.bus.bus import Bus
from jetbus.bus.limits import Limits
from jetbus.bus.session import Session
from support.inmemory import Peer

STATES = 300


@pytest.fixture
def chores() -> list[Iterator[None]]:
    """Steps that peers have left behind."""
    return []


@pytest.fixture
def bus(chores: list[Iterator[None]]) -> Bus:
    """A bus whose chores are only done when the test does their steps."""
    bus = Bus(limits=Limits(elements_max=10 * STATES))

    def keep(_session: Session, steps: Iterator[None]) -> None:
        chores.append(steps)

    bus.run_chore = keep
    return bus


def _owner(bus: Bus) -> Peer:
    owner = Peer(bus)
    for number in range(STATES):
        owner.notify("add", {"path": f"p{number}", "value": number})
    return owner


def _removed(watcher: Peer) -> list[str]:
    return [event["path"] for event in watcher.events() if event["event"] == "remove"]


def _do(steps: Iterator[None], count: int | None = None) -> int:
    """Do so many steps, or all that are left; return their number."""
    return sum(1 for _ in islice(steps, count))


def test_an_owner_leaves_in_steps(bus: Bus, chores: list[Iterator[None]]) -> None:
    """Each step removes one element, in the order of creation, and the last one is followed by nothing."""
    owner, watcher = _owner(bus), Peer(bus)
    watcher.fetch()
    owner.disconnect()
    (steps,) = chores
    assert _removed(watcher) == []
    assert _do(steps, 10) == 10
    assert _removed(watcher) == [f"p{number}" for number in range(10)]
    assert bus.departing == 1
    assert _do(steps) == STATES - 10
    assert _removed(watcher) == [f"p{number}" for number in range(10, STATES)]
    assert (bus.departing, bus.element_count) == (0, 0)


def test_open_requests_fail_in_steps(bus: Bus, chores: list[Iterator[None]]) -> None:
    """Requests that wait for an owner fail one by one when it leaves."""
    owner, caller = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "m"})
    for number in range(20):
        caller.send({"id": number, "method": "call", "params": {"path": "m"}})
    owner.disconnect()
    _do(chores[0], 5)
    assert [message["id"] for message in caller.received()] == [0, 1, 2, 3, 4]
    _do(chores[0])
    assert [message["id"] for message in caller.received()] == list(range(5, 20))


def test_an_owner_is_back_before_all_is_removed(bus: Bus, chores: list[Iterator[None]]) -> None:
    """An owner that connects again adds what its last connection has left, and keeps it when that is removed."""
    first, watcher = _owner(bus), Peer(bus)
    watcher.fetch()
    first.disconnect()
    again = Peer(bus)
    assert again.result("add", {"path": "p7", "value": "new"}) is True
    assert [(event["event"], event["path"]) for event in watcher.events()] == [("remove", "p7"), ("add", "p7")]
    _do(chores[0])
    assert again.result("get", {}) == [{"path": "p7", "event": "add", "value": "new"}]
    assert "p7" not in _removed(watcher)


ROUTED: dict[str, Callable[[str], Any]] = {
    "set": lambda path: {"path": path, "value": 1},
    "call": lambda path: {"path": path, "args": []},
}


@pytest.mark.parametrize("method", ROUTED)
def test_requests_to_an_owner_that_is_gone(bus: Bus, method: str) -> None:
    """A set or call of an element whose owner is gone is refused as if it were removed already."""
    owner, caller = Peer(bus), Peer(bus)
    owner.notify("add", {"path": "e", "value": 1} if method == "set" else {"path": "e"})
    owner.disconnect()
    assert caller.data(method, ROUTED[method]("e")) == {"pathNotExists": "e"}


def test_a_fetch_ends_in_steps(bus: Bus, chores: list[Iterator[None]]) -> None:
    """A fetch of any rule ends at once for its peer; that all elements forget it takes several steps."""
    owner, watcher = _owner(bus), Peer(bus)
    watcher.fetch(path={"contains": "p"})
    assert watcher.result("unfetch", {"id": "f"}) is True
    owner.notify("change", {"path": "p0", "value": "after"})
    assert watcher.events() == []
    assert _do(chores[0]) > 5
    assert {element.audiences for element in bus.tree.elements.values()} == {()}
    watcher.fetch("g", path={"contains": "p"})
    owner.notify("change", {"path": "p0", "value": "again"})
    assert [event["value"] for event in watcher.events()] == ["again"]


def test_a_peer_with_many_fetches_leaves_in_steps(bus: Bus, chores: list[Iterator[None]]) -> None:
    """The fetches of a peer end one by one; an equal fetch of another peer goes on meanwhile."""
    owner, leaving, staying = _owner(bus), Peer(bus), Peer(bus)
    for number in range(50):
        leaving.fetch(number, path={"contains": str(number)})
    staying.fetch(49, path={"contains": "49"})
    leaving.disconnect()
    assert _do(chores[0], 20) == 20
    owner.notify("change", {"path": "p49", "value": "meanwhile"})
    assert [event["value"] for event in staying.events()] == ["meanwhile"]
    _do(chores[0])
    assert len(bus.fetches) == 1
    owner.notify("change", {"path": "p49", "value": "after"})
    assert [event["value"] for event in staying.events()] == ["after"]


@pytest.mark.parametrize("rule", [{"contains": "p"}, {"startsWith": "p"}, {"equals": "p"}])
def test_a_fetch_among_many(bus: Bus, rule: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch starts and ends without a look at each of the others, however many there are of its kind."""
    peer, compared = Peer(bus), 0
    for number in range(500):
        peer.notify("fetch", {"id": number, "path": rule})

    def compare(audience: Audience, other: object) -> bool:
        nonlocal compared
        compared += 1
        return audience is other

    monkeypatch.setattr(Audience, "__eq__", compare, raising=False)
    peer.notify("fetch", {"id": "last", "path": rule})
    peer.notify("unfetch", {"id": "last"})
    assert len(bus.fetches) == 500
    assert compared < 10
