"""The account: what peers make the daemon keep is charged while it is kept, by peer, address and in all."""

from __future__ import annotations

from typing import Any

import pytest

from jetbus.bus.bus import Bus
from jetbus.bus.limits import Limits
from support.inmemory import Peer

LONG = "x" * 5_000
LONGER = "x" * 100_000


def kept(bus: Bus) -> int:
    return bus.book.all.kept_bytes


STEPS: dict[str, list[tuple[str, Any]]] = {
    "a state": [("add", {"path": "a/b", "value": LONG}), ("remove", {"path": "a/b"})],
    "a method": [("add", {"path": "a/b"}), ("remove", {"path": "a/b"})],
    "a value that grows and shrinks": [
        ("add", {"path": "a", "value": 1}),
        ("change", {"path": "a", "value": LONG}),
        ("change", {"path": "a", "value": 2}),
        ("remove", {"path": "a"}),
    ],
    "a description": [
        ("add", {"path": "a", "value": 1, "schema": {"unit": "m"}}),
        ("change", {"path": "a", "value": LONG, "schema": {"unit": LONG}, "quality": "bad"}),
        ("remove", {"path": "a"}),
    ],
    "access lists": [
        ("add", {"path": "a", "value": 1, "access": {"fetchGroups": ["a"], "setGroups": [LONG]}}),
        ("remove", {"path": "a"}),
    ],
    "a refused add": [
        ("add", {"path": "a", "value": 1}),
        ("add", {"path": "a", "value": LONG}),
        ("remove", {"path": "a"}),
    ],
    "a fetch": [("fetch", {"id": LONG, "path": {"equalsOneOf": ["a", LONG]}}), ("unfetch", {"id": LONG})],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_all_is_given_back(steps: list[tuple[str, Any]]) -> None:
    """Whatever is added is charged, and all of it is given back when it is removed, or when its peer is gone."""
    bus = Bus()
    peer, leaving = Peer(bus), Peer(bus)
    for nth, (service, params) in enumerate(steps):
        peer.request(service, params)
        assert (kept(bus) > 0) is (nth + 1 < len(steps))
    for service, params in steps[:-1]:
        leaving.request(service, params)
    assert kept(bus) > 0
    bus.disconnect(leaving.session)
    assert (kept(bus), bus.book.all.fetches) == (0, 0)


def test_a_longer_value_is_charged() -> None:
    """A long value is charged by its length, and a short one after it gives that back."""
    bus = Bus()
    peer = Peer(bus)
    peer.result("add", {"path": "a", "value": 1})
    short = kept(bus)
    peer.result("change", {"path": "a", "value": LONG})
    assert len(LONG) <= kept(bus) - short <= 1.2 * len(LONG)
    peer.notify("change", {"path": "a", "value": 2})
    assert kept(bus) == short


def test_routes_are_charged_to_the_requester() -> None:
    """A request that waits counts for the peer that has sent it, until it is answered or its time is up."""
    bus = Bus()
    owner, requester = Peer(bus), Peer(bus)
    owner.result("add", {"path": "a", "value": 1})
    before = kept(bus)
    for end in ("answer", "timeout"):
        requester.send({"id": 1, "method": "set", "params": {"path": "a", "value": LONG}})
        assert requester.session.account.peer.kept_bytes > len(LONG)
        if end == "answer":
            owner.send({"id": owner.received()[-1]["id"], "result": True})
        else:
            bus.routing.expire(1000.0)
        assert requester.session.account.peer.kept_bytes == 0
        assert kept(bus) == before


@pytest.mark.parametrize("limit", ["kept_peer_bytes_max", "kept_address_bytes_max", "kept_bytes_max"])
def test_what_goes_beyond_is_refused(limit: str) -> None:
    """A change that would keep too much is refused by name and leaves the state as it is; a shorter one is taken."""
    bus = Bus(limits=Limits(**{limit: 3_000}))
    peer = Peer(bus)
    peer.result("add", {"path": "a", "value": 1})
    error = peer.error("change", {"path": "a", "value": LONGER})
    assert error["data"]["reason"] == f"{limit} reached"
    peer.notify("change", {"path": "a", "value": LONGER})
    assert bus.tree.elements["a"].value == b"1"
    peer.notify("change", {"path": "a", "value": "short"})
    assert bus.tree.elements["a"].value == b'"short"'
    assert bus.limit_hits[limit] == 2


def test_short_requests_pass_when_all_is_full() -> None:
    """A peer that keeps little can add, set and fetch while others have used up the limit of all."""
    bus = Bus(limits=Limits(kept_bytes_max=200_000))
    greedy, healthy = Peer(bus), Peer(bus)
    greedy.result("add", {"path": "greedy", "value": "x" * 150_000})
    assert greedy.error("add", {"path": "more", "value": LONGER})["data"]["reason"] == "kept_bytes_max reached"
    for number in range(40):
        healthy.result("add", {"path": f"healthy/{number}", "value": number})
    assert healthy.error("add", {"path": "long", "value": LONGER})["data"]["reason"] == "kept_bytes_max reached"


def test_limits_of_addresses() -> None:
    """Peers of one address share its limit; a peer of another address has its own."""
    bus = Bus(limits=Limits(kept_address_bytes_max=2_000))
    one, two, other = Peer(bus, address="10.0.0.1"), Peer(bus, address="10.0.0.1"), Peer(bus, address="10.0.0.2")
    one.result("add", {"path": "one", "value": "x" * 900})
    assert two.error("add", {"path": "two", "value": "x" * 900})["data"]["reason"] == "kept_address_bytes_max reached"
    other.result("add", {"path": "other", "value": "x" * 900})
    bus.disconnect(one.session)
    two.result("add", {"path": "two", "value": "x" * 900})
    assert set(bus.book.addresses) == {"10.0.0.1", "10.0.0.2"}
