"""Connections that end: their memory is free at once, and a peer that the daemon closes is not served any more."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jetbus.bus.conditions import Condition
from jetbus.bus.session import Session
from jetbus.daemon.config import Address, Config
from jetbus.daemon.connection import Connection, StreamConnection
from jetbus.daemon.daemon import Daemon
from jetbus.daemon.outbox import Flow, SocketOutbox
from jetbus.loops import new_loop
from support.daemon import Daemon as Process
from support.inmemory import IdleLoop, MemoryTransport
from support.rawws import frame, upgrade

StartDaemon = Callable[..., Process]
LOOPBACK = Address("127.0.0.1", 0)
HALF_FRAME = struct.pack(">I", 1_000_000) + b"x" * 500_000
FETCH = b'{"id":1,"method":"fetch","params":{"id":"f"}}'
BATCH_2012 = b'[{"id":1,"method":"fetch","params":["f",{}]},{"id":2,"method":"call","params":["slow",[]]}]'


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Without the collector, only what nothing refers to is freed."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _framed(*messages: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(message)) + message for message in messages)


ENDINGS: dict[str, tuple[str, bytes]] = {
    "half a frame": ("tcp", HALF_FRAME),
    "a fetch": ("tcp", _framed(FETCH)),
    "an open batch of 2012": ("tcp", _framed(b'{"method":"add","params":{"path":"slow"}}', BATCH_2012)),
    "half of a binary frame": ("binary", struct.pack("<I", 1_000_000) + b"x" * 500_000),
    "half a WebSocket handshake": ("ws", b"GET / HTTP/1.1\r\nHost: x\r\n"),
    "a WebSocket handshake": ("ws", upgrade()),
    "a WebSocket fetch": ("ws", upgrade() + frame(FETCH)),
    "half a WebSocket frame": ("ws", upgrade() + frame(b"x" * 100_000)[:50_000]),
    "a fragment": ("ws", upgrade() + frame(b"x" * 50_000, opcode=1, fin=False)),
    "a bad request": ("ws", b"\x00"),
}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize(("kind", "sent"), ENDINGS.values(), ids=ENDINGS)
def test_a_lost_connection_leaves_nothing(kind: str, sent: bytes) -> None:
    """Whatever a peer has sent before it is gone, nothing of its connection stays in memory."""

    async def run() -> list[Any]:
        nowhere: dict[str, Any] = {"unix": None, "binary_unix": None}
        daemon = Daemon(Config(tcp=LOOPBACK, ws=LOOPBACK, binary=LOOPBACK, **nowhere))
        await daemon.start()
        before = _connections_and_sessions()
        host, _, port = daemon.listening[kind].rpartition(":")
        for _ in range(3):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            await writer.drain()
            while not daemon.connections:
                await asyncio.sleep(0)
            for _ in range(200):  # until all is read that was sent on loopback
                await asyncio.sleep(0)
            writer.close()
            while daemon.connections:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        left = [one for one in _connections_and_sessions() if one not in before]
        await daemon.stop()
        return left

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(run()) == []


def _connections_and_sessions() -> list[Any]:
    return [one for one in gc.get_objects() if isinstance(one, Connection | Session)]


def test_half_frames_of_lost_connections_are_freed(start_daemon: StartDaemon) -> None:
    """Connections that announce much, send nearly all of it and close leave no memory behind."""
    daemon = start_daemon()
    data = struct.pack(">I", 9_999_999) + b"x" * 9_000_000
    with daemon.connect() as witness:
        for _ in range(60):
            with daemon.connect() as wire:
                wire.send_raw(data)
        witness.barrier()
    assert _resident_bytes(daemon) < 200_000_000


def _resident_bytes(daemon: Process) -> int:
    status = Path(f"/proc/{daemon.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


# What a lost peer has sent.


class Endless(MemoryTransport):
    """A transport that has delivered everything."""

    def pause_reading(self) -> None: ...

    def close(self) -> None: ...


RESET = ConnectionResetError("reset by the test")
LOSSES: dict[str, tuple[bool, Exception | None, bool]] = {
    "closed": (False, None, True),
    "closed, then reset by an answer": (True, RESET, True),
    "reset": (False, RESET, False),
}


@pytest.mark.parametrize(("ends", "problem", "counts"), LOSSES.values(), ids=LOSSES)
def test_messages_that_wait_when_their_peer_is_gone(ends: bool, problem: Exception | None, counts: bool) -> None:
    """Messages that wait for their turn are handled if their peer has closed in order, and dropped after a reset."""

    async def run() -> Any:
        daemon = Daemon(Config(tcp=None, ws=None, unix=None, binary=None, binary_unix=None, turn_us_max=1))
        owner, setter = StreamConnection(daemon, "tcp"), StreamConnection(daemon, "tcp")
        for connection in (owner, setter):
            connection.connection_made(Endless())
        owner.data_received(_encode({"method": "add", "params": {"path": "x", "value": 0}}))
        sets = map(_set, range(200))
        setter.data_received(b"".join(map(_encode, sets)))
        assert setter.session is not None
        assert setter.session.condition is Condition.DUE
        if ends:
            setter.eof_received()
        setter.connection_lost(problem)
        assert setter.session.gone is not counts
        async with asyncio.timeout(60):
            while not setter.session.gone:
                await asyncio.sleep(0)
        return owner.transport.written.count(b'"value"')  # type: ignore[attr-defined]

    handled = asyncio.run(run())
    assert (handled == 200) is counts


def _set(number: int) -> dict[str, Any]:
    return {"method": "set", "params": {"path": "x", "value": number, "note": "x" * 20_000}}


def _fetch(number: int) -> dict[str, Any]:
    return {"id": number, "method": "fetch", "params": {"id": number, "path": {"equals": "x"}}}


def test_a_peer_leaves_whose_fetches_waited() -> None:
    """A peer that has closed is gone once all is handled, also if fetches in between waited for turns of their own."""

    async def run() -> int:
        daemon = Daemon(Config(tcp=None, ws=None, unix=None, binary=None, binary_unix=None, turn_us_max=1))
        owner, peer = StreamConnection(daemon, "tcp"), StreamConnection(daemon, "tcp")
        for connection in (owner, peer):
            connection.connection_made(Endless())
        owner.data_received(_encode({"method": "add", "params": {"path": "x", "value": 0}}))
        messages = [make(number) for number in range(50) for make in (_set, _fetch)]
        peer.data_received(b"".join(map(_encode, messages)))
        assert peer.eof_received()
        session = peer.session
        assert session is not None
        async with asyncio.timeout(60):
            while not session.gone:
                await asyncio.sleep(0)
        return int(owner.transport.written.count(b'"value"'))  # type: ignore[attr-defined]

    assert asyncio.run(run()) == 50


class Unread(Endless):
    """A transport of a peer that reads nothing of what it is sent."""

    def get_write_buffer_size(self) -> int:
        return len(self.written)


def test_a_peer_leaves_that_was_left_waiting_for_its_reading() -> None:
    """A peer that has closed with too much unread is gone when its connection is, and what it sent counts."""

    async def run() -> int:
        config = Config(tcp=None, ws=None, unix=None, binary=None, binary_unix=None, unread_bytes_max=1000)
        daemon = Daemon(config)
        owner, peer = StreamConnection(daemon, "tcp"), StreamConnection(daemon, "tcp")
        owner.connection_made(Endless())
        peer.connection_made(Unread())
        owner.data_received(_encode({"method": "add", "params": {"path": "x", "value": "x" * 5000}}))
        get = {"id": 1, "method": "get", "params": {}}
        peer.data_received(_encode(get))
        await asyncio.sleep(0)
        peer.pause_writing()
        sets = [_set(number) for number in range(10)]
        peer.data_received(b"".join(map(_encode, [get, *sets])))
        session = peer.session
        assert session is not None
        assert session.condition is Condition.STALLED
        peer.eof_received()
        peer.connection_lost(None)
        async with asyncio.timeout(60):
            while not session.gone:
                await asyncio.sleep(0)
        return int(owner.transport.written.count(b'"value"'))  # type: ignore[attr-defined]

    assert asyncio.run(run()) == 10


def _encode(message: Any) -> bytes:
    text = json.dumps(message).encode()
    return struct.pack(">I", len(text)) + text


# A peer that is closed is closed.


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_a_closed_peer_is_not_served(start_daemon: StartDaemon, transport: str) -> None:
    """Members of a batch behind the one that made the daemon close its peer are not handled."""
    daemon = start_daemon("--outbox-hard-bytes", "2000000")
    with daemon.connect() as owner, daemon.connect(transport, receive_buffer_bytes=4096) as peer:
        assert owner.result("add", {"path": "big", "value": "x" * 1_000_000}) is True
        assert owner.result("add", {"path": "count", "value": 0}) is True
        get = {"id": 1, "method": "get", "params": {"path": {"equals": "big"}}}
        batch: list[Any] = [get] * 20
        batch.append({"method": "set", "params": {"path": "count", "value": 1}})
        peer.send(batch)
        deadline = time.monotonic() + 10
        while not daemon.limit_hits("outbox_hard_bytes"):  # it does not read, so that it is closed
            assert time.monotonic() < deadline
        peer.await_closed()
        assert owner.receive_all() == []
    assert daemon.limit_hits("outbox_hard_bytes") == 1


# A peer that cannot be written.


class Broken(MemoryTransport):
    """A transport whose writes fail."""

    aborted = False

    def write(self, _data: bytes | bytearray | memoryview[Any]) -> None:
        raise RuntimeError("broken by the test")

    def abort(self) -> None:
        self.aborted = True


def test_an_outbox_that_fails_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """If writing to one peer fails, it is closed and all others are written to."""
    flow = Flow(IdleLoop(), 1000, 10_000, Counter())
    transports = [MemoryTransport(), Broken(), MemoryTransport()]
    aborted: list[int] = []
    for number, transport in enumerate(transports):
        outbox = SocketOutbox(transport, flow)
        outbox.on_abort = lambda number=number: aborted.append(number)
        outbox.put(b"frame")
    with caplog.at_level(logging.ERROR):
        flow.flush()
    assert [bytes(transport.written) for transport in transports] == [b"frame", b"", b"frame"]
    assert aborted == [1]
    assert "broken by the test" in caplog.text
