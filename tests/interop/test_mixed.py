"""Every version with every other on one bus, over both transports."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from support.node import JetError, NodeBus, Peer, Transport, Version, event

pytestmark = pytest.mark.interop

VERSIONS: tuple[Version, ...] = (1, 2, 3)
TRANSPORTS: tuple[Transport, ...] = ("tcp", "ws")
KINDS = [(version, transport) for version in VERSIONS for transport in TRANSPORTS]
INVALID_PARAMS = -32602


@pytest.fixture(params=KINDS, ids=[f"owner-nj{version}-{transport}" for version, transport in KINDS])
def owner(bus: NodeBus, request: pytest.FixtureRequest) -> Peer:
    return bus.peer(*request.param)


@pytest.fixture(params=KINDS, ids=[f"client-nj{version}-{transport}" for version, transport in KINDS])
def client(bus: NodeBus, request: pytest.FixtureRequest) -> Peer:
    return bus.peer(*request.param)


def set_result(owner: Peer, path: str, value: Any) -> Any:
    """Return the response of an owner of this version to a set."""
    return {"path": path, "value": value} if owner.version == 3 else True


def test_fetch(owner: Peer, client: Peer) -> None:
    """A client of any version is told of the states of an owner of any version, in its own words."""
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    owner.change("pump/speed", {"rpm": 2})
    owner.add_state("pump/heat", None)
    owner.remove("pump/speed")
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 1),
        event(client, "change", "pump/speed", {"rpm": 2}),
        event(client, "add", "pump/heat", None),
        event(client, "remove", "pump/speed", {"rpm": 2}),
    ]


def test_value_rule(owner: Peer, client: Peer) -> None:
    """A value rule of any version selects among the states of an owner of any version."""
    owner.add_state("pump/speed", 5)
    owner.add_state("pump/heat", 50)
    fetch = client.fetch(("path", "startsWith", "pump/"), ("value", "lessThan", 10))
    owner.change("pump/speed", 60)
    owner.change("pump/heat", 6)
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 5),
        event(client, "remove", "pump/speed", 60),
        event(client, "add", "pump/heat", 6),
    ]


def test_set(owner: Peer, client: Peer) -> None:
    """A client of any version sets a state of an owner of any version and is answered in the owner's way."""
    owner.add_state("pump/speed", 1)
    fetch = client.fetch(("path", "startsWith", "pump/"))
    for value in (2**53 - 1, None, {"größe": [0.5, False]}):
        assert client.set("pump/speed", value) == set_result(owner, "pump/speed", value)
        assert owner.asked()["value"] == value
    assert [received["value"] for received in fetch.seen(owner)] == [1, 2**53 - 1, None, {"größe": [0.5, False]}]


def test_call(owner: Peer, client: Peer) -> None:
    """A client of any version calls a method of an owner of any version and gets the result it gives."""
    owner.add_method("pump/sum", "accept" if owner.version == 3 else "sum")
    assert client.call("pump/sum", [1, 2, 39]) == ({} if owner.version == 3 else 42)
    assert owner.asked()["value"] == [1, 2, 39]


def test_refusal(owner: Peer, client: Peer) -> None:
    """A refusal by an owner of any version is an error of the same code for a client of any version."""
    owner.add_state("pump/speed", 1, "refuse")
    with pytest.raises(JetError) as refused:
        client.set("pump/speed", 2)
    error = refused.value
    if owner.version == 3:
        assert (error.kind, error.code, error.message) == (None, INVALID_PARAMS, "Failed to set value")
    elif client.version == 3:
        assert (error.kind, error.code) == (None, INVALID_PARAMS)
        assert error.data["invalidArgument"]["message"] == "refused by the owner"
    else:
        assert (error.kind, error.message) == ("InvalidArgument", "refused by the owner")


def test_all_on_one_bus(bus: NodeBus) -> None:
    """Peers of all versions and transports share one tree: each sees and sets the states of all."""
    peers = [bus.peer(version, transport) for version, transport in KINDS]
    paths = [f"cell/{version}-{transport}" for version, transport in KINDS]
    for peer, path in zip(peers, paths, strict=True):
        peer.add_state(path, "new")
    fetches = [peer.fetch(("path", "startsWith", "cell/")) for peer in peers]
    for (number, peer), (owner, path) in product(enumerate(peers), zip(peers, paths, strict=True)):
        assert peer.set(path, number) == set_result(owner, path, number)
        owner.info()
    for peer, fetch in zip(peers, fetches, strict=True):
        assert fetch.seen(*peers) == [
            *(event(peer, "add", path, "new") for path in paths),
            *(event(peer, "change", path, number) for number in range(len(peers)) for path in paths),
        ]
