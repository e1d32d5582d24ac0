"""Peers that take all that is written together in one message."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from jetbus.bus.bus import Bus
from jetbus.daemon.outbox import BATCH_BYTES, LARGE_BYTES, Flow, SocketOutbox
from support.daemon import Daemon
from support.inmemory import IdleLoop, MemoryTransport, Peer, frames_of
from support.wire import Wire


def _echo(number: int) -> dict[str, Any]:
    return {"id": number, "method": "echo", "params": {"n": number}}


def _echoed(number: int) -> dict[str, Any]:
    return {"id": number, "result": {"n": number}}


def _batching(daemon: Daemon, kind: str = "tcp") -> Wire:
    wire = daemon.connect(kind)
    wire.notify("config", {"batches": True})
    return wire


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_answers_of_a_turn_come_in_one_message(daemon: Daemon, kind: str) -> None:
    """Answers to what came together come together; one alone is a batch of one."""
    with _batching(daemon, kind) as peer:
        peer.send([_echo(1), _echo(2), _echo(3)])
        assert peer.receive() == [_echoed(1), _echoed(2), _echoed(3)]
        peer.send(_echo(4))
        assert peer.receive() == [_echoed(4)]


def test_the_answer_to_config_comes_after_what_was_before_it(daemon: Daemon) -> None:
    """Requests before the one for batches are answered as ever, and that one with a batch."""
    with daemon.connect() as peer:
        peer.send([_echo(1), {"id": 2, "method": "config", "params": {"batches": True, "name": "p"}}, _echo(3)])
        assert peer.receive() == _echoed(1)
        assert peer.receive() == [{"id": 2, "result": True}, _echoed(3)]


def test_events_and_requests(daemon: Daemon) -> None:
    """Events of all fetches and routed requests come in the batch, in order; peers that did not ask get none."""
    with _batching(daemon) as owner, _batching(daemon) as one, _batching(daemon) as two, daemon.connect() as plain:
        owner.send([{"id": 1, "method": "add", "params": {"path": "a", "value": 0}}])
        assert owner.receive() == [{"id": 1, "result": True}]
        for peer in (one, two, plain):
            peer.send({"id": 2, "method": "fetch", "params": {"id": "f"}})
        added = {"method": "f", "params": {"path": "a", "event": "add", "value": 0}}
        assert [one.receive(), two.receive()] == [[{"id": 2, "result": True}, added]] * 2
        assert [plain.receive(), plain.receive()] == [{"id": 2, "result": True}, added]
        changes = [{"method": "change", "params": {"path": "a", "value": value}} for value in (1, 2)]
        owner.send([*changes, _echo(3)])
        received = [{"method": "f", "params": {"path": "a", "event": "change", "value": value}} for value in (1, 2)]
        assert [one.receive(), two.receive()] == [received, received]
        assert [plain.receive(), plain.receive()] == received
        assert owner.receive() == [_echoed(3)]
        one.send([{"id": number, "method": "set", "params": {"path": "a", "value": number}} for number in (4, 5)])
        routed = owner.receive()
        assert [message["params"] for message in routed] == [{"value": 4}, {"value": 5}]
        owner.send([{"id": message["id"], "result": True} for message in routed])
        assert one.receive() == [{"id": 4, "result": True}, {"id": 5, "result": True}]


def _receive_batches(peer: Wire, count: int) -> list[list[Any]]:
    """Receive batches until they have so many messages together."""
    batches: list[list[Any]] = []
    while sum(map(len, batches)) < count:
        batches.append(peer.receive())
    return batches


def test_long_batches_are_cut(daemon: Daemon) -> None:
    """However much is told together, no batch becomes much longer than it may, and no message is cut."""
    with _batching(daemon) as owner, _batching(daemon) as peer:
        value = "x" * (BATCH_BYTES // 10)
        adds = [{"id": n, "method": "add", "params": {"path": str(n), "value": f"{value}{n}"}} for n in range(35)]
        owner.send(adds)
        answers = [answer for batch in _receive_batches(owner, 35) for answer in batch]
        assert answers == [{"id": n, "result": True} for n in range(35)]
        peer.send({"id": 1, "method": "fetch", "params": {"id": "f"}})
        batches = _receive_batches(peer, 36)
        # A busy daemon may end its turn before a batch is full, so that there are more and shorter ones.
        assert max(len(batch) for batch in batches) <= 11
        received = [message["params"]["path"] for batch in batches for message in batch if "params" in message]
        assert received == [str(n) for n in range(35)]


def test_a_fetch_comes_too_early(daemon: Daemon) -> None:
    """A peer that fetches already cannot ask for batches; its error says so, and nothing else changes."""
    with daemon.connect() as peer:
        peer.result("fetch", {"id": "f"})
        assert "before the first fetch" in json.dumps(peer.request("config", {"batches": True}))
        assert peer.result("echo", {"n": 1}) == {"n": 1}


@pytest.mark.parametrize("asked", [1, "yes", False, None])
def test_anything_but_true_means_nothing(daemon: Daemon, asked: Any) -> None:
    """Only true asks for batches."""
    with daemon.connect() as peer:
        assert peer.result("config", {"batches": asked}) is True


def test_websocket_has_messages_of_its_own(daemon: Daemon) -> None:
    """By WebSocket each message has its frame as ever."""
    with _batching(daemon, "ws") as peer:
        peer.send([_echo(1), _echo(2)])
        assert [peer.receive(), peer.receive()] == [_echoed(1), _echoed(2)]


def test_slow_peer_and_large_values() -> None:
    """The queue of a slow peer is one batch with the newest value of each path; large values are whole."""
    bus = Bus()
    owner = Peer(bus)
    owner.notify("add", {"path": "a", "value": 0})
    owner.notify("add", {"path": "b", "value": 0})
    flow, transport = Flow(IdleLoop(), 0, 1 << 40, Counter()), MemoryTransport()
    outbox = SocketOutbox(transport, flow)
    session = bus.connect(outbox)
    outbox.audiences = session.fetches.values()
    asked = [{"method": "config", "params": {"batches": True}}, {"method": "fetch", "params": {"id": "f"}}]
    bus.receive(session, [json.dumps(message).encode() for message in asked], 0.0)
    outbox.flush()
    outbox.pause()
    large = "x" * LARGE_BYTES
    for path, value in (("a", 1), ("b", 1), ("a", 2), ("b", large)):
        owner.notify("change", {"path": path, "value": value})
    outbox.resume()
    owner.notify("change", {"path": "a", "value": 3})
    owner.notify("change", {"path": "b", "value": large})
    outbox.flush()
    batches = [json.loads(frame) for frame in frames_of(transport.written)]
    received = [[(message["params"]["path"], message["params"]["value"]) for message in batch] for batch in batches]
    assert received == [[("a", 0), ("b", 0)], [("a", 2), ("b", large)], [("a", 3), ("b", large)]]
