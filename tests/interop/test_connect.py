"""Connecting, asking who the daemon is, and parting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.node import DEADLINE_S, JetError, NodeBus, Transport, Version, event

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Daemons
    from interop.conftest import BusOf

pytestmark = pytest.mark.interop


def test_info_offers_all_that_the_clients_look_for(bus: NodeBus, version: Version, transport: Transport) -> None:
    """The daemon tells its name and version and offers full fetching, batches and authentication."""
    info = bus.peer(version, transport).info()
    assert isinstance(info["name"], str)
    assert isinstance(info["version"], str)
    assert info["protocolVersion"] == "1.1.0"
    assert info["features"]["fetch"] == "full"
    assert info["features"]["batches"] is True
    assert info["features"]["authentication"] is True


def test_a_connected_peer_knows_the_daemon(bus: NodeBus, classic: Version, transport: Transport) -> None:
    """A peer that has connected holds the daemon's info."""
    peer = bus.peer(classic, transport)
    assert peer.do("daemonInfo") == peer.info()


def test_a_peer_can_give_its_name(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A peer may configure its name."""
    assert bus.peer(version, transport).do("configure", params={"name": "pump"}) is True


def test_closing_ends_the_connection(bus: NodeBus, version: Version, transport: Transport) -> None:
    """A peer is connected until it closes."""
    peer = bus.peer(version, transport)
    assert peer.do("isConnected") is True
    peer.close()
    assert peer.do("isConnected") is False


def test_a_stopped_daemon_closes_its_connections(
    start_daemon: Daemons, bus_of: BusOf, version: Version, transport: Transport
) -> None:
    """Peers of a daemon that stops notice it and refuse further requests with ConnectionClosed."""
    bus = bus_of(start_daemon())
    peer = bus.peer(version, transport)
    noticed = peer.begin("closed")
    bus.daemon.process.terminate()
    noticed.result(DEADLINE_S)
    with pytest.raises(JetError) as refused:
        peer.set("pump/speed", 1)
    assert refused.value.kind == "ConnectionClosed"


def test_a_silent_peer_is_not_a_dead_one(start_daemon: Daemons, bus_of: BusOf, classic: Version) -> None:
    """A WebSocket peer that says nothing but answers pings stays connected."""
    bus = bus_of(start_daemon("--ws-ping-s", "0.5"))
    owner, client = bus.peer(classic, "ws"), bus.peer(classic, "ws")
    owner.add_method("pump/start", "later")
    with pytest.raises(JetError) as ended:
        client.call("pump/start", timeout=1.6)
    assert ended.value.kind == "PeerTimeout"
    assert client.do("isConnected") is True
    assert client.get() == [event(client, "add", "pump/start")]


def test_a_peer_whose_login_takes_long_is_not_a_dead_one(
    start_daemon: Daemons, bus_of: BusOf, tmp_path: Path, version: Version
) -> None:
    """A WebSocket peer that waits for the answer to a wrong login is answered, however often it is pinged meanwhile."""
    users = tmp_path / "users.json"
    users.write_text('{"users": {"vera": {"password": "look"}}}')
    bus = bus_of(start_daemon("--users", str(users), "--ws-ping-s", "0.2"))
    peer = bus.peer(version, "ws")
    with pytest.raises(JetError) as refused:
        peer.do("authenticate", user="vera", password="wrong")
    assert refused.value.code == -32602 if version == 3 else refused.value.kind == "InvalidPassword"


def test_a_node_jet_3_peer_may_connect_again(bus: NodeBus, transport: Transport) -> None:
    """A node-jet 3 peer is known as such when it connects a second time and goes on counting its requests."""
    owner, client = bus.peer(3, transport), bus.peer(3, transport)
    for peer in (owner, client):
        peer.close()
        peer.do("reconnect")
    owner.add_state("pump/speed", 100)
    fetch = client.fetch(("path", "equals", "pump/speed"))
    assert client.set("pump/speed", 120) == {"path": "pump/speed", "value": 120}
    assert fetch.seen(owner) == [
        event(client, "add", "pump/speed", 100),
        event(client, "change", "pump/speed", 120),
    ]
