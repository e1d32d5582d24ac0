"""Compression of WebSocket messages: what a peer that offers it gets, and what it cannot make the daemon do."""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory
from websockets.sync.client import ClientConnection, connect

from jetbus.daemon.deflate import BYTES_AT_ONCE
from support.daemon import Daemon
from support.rawws import CLOSE, CONTINUATION, PING, TEXT, RawWebSocket, frame

LIMIT = 1_000_000
EVENTS = 300
OFFER = "permessage-deflate; client_max_window_bits"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with Daemon.start("--ws-deflate", "on", "--ws-deflate-max", "2", "--message-bytes-max", str(LIMIT)) as started:
        yield started


def open_peer(daemon: Daemon, **options: Any) -> ClientConnection:
    return connect(f"ws://{daemon.listens['ws']}", subprotocols=["jet"], max_size=None, **options)  # type: ignore[list-item]


def extensions_of(peer: ClientConnection) -> list[str]:
    return [extension.name for extension in peer.protocol.extensions]


def ask(peer: ClientConnection, method: str, params: Any) -> Any:
    peer.send(json.dumps({"id": 1, "method": method, "params": params}))
    return json.loads(peer.recv(timeout=10))["result"]


@contextlib.contextmanager
def raw_peer(daemon: Daemon) -> Iterator[RawWebSocket]:
    """A WebSocket by hand that has agreed on compression."""
    with contextlib.closing(RawWebSocket(daemon.address("ws"))) as raw:
        assert "permessage-deflate" in raw.open(Sec_WebSocket_Extensions=OFFER)
        yield raw


def close_code(raw: RawWebSocket) -> int:
    """Read until the daemon closes the WebSocket, and return its code."""
    while (received := raw.read()) is not None:
        if received.opcode == CLOSE:
            return int.from_bytes(received.payload[:2], "big")
    raise AssertionError("the daemon has closed without a close frame")


def deflate(data: bytes) -> bytes:
    """Compress a message as a peer without context does."""
    compressor = zlib.compressobj(wbits=-15)
    return (compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH))[:-4]


OFFERS: dict[str, dict[str, Any]] = {
    "as browsers do": {},
    "without context": {
        "compression": None,
        "extensions": [ClientPerMessageDeflateFactory(server_no_context_takeover=True)],
    },
    "a small window": {
        "compression": None,
        "extensions": [ClientPerMessageDeflateFactory(server_max_window_bits=9, client_max_window_bits=9)],
    },
}


@pytest.mark.parametrize("options", OFFERS.values(), ids=OFFERS)
def test_messages_of_all_lengths(daemon: Daemon, options: dict[str, Any]) -> None:
    """Requests, responses and events of any length arrive as they are, beside peers without compression."""
    dice = random.Random(7)
    values = ["x" * length for length in (0, 1, 100, 125, 126, 5_000, 70_000, BYTES_AT_ONCE, BYTES_AT_ONCE + 1)]
    values += ["".join(map(chr, dice.choices(range(32, 0x3000), k=3_000))) for _ in range(3)]
    with daemon.connect() as owner, open_peer(daemon, **options) as peer, open_peer(daemon, compression=None) as plain:
        assert extensions_of(peer) == ["permessage-deflate"]
        assert extensions_of(plain) == []
        owner.result("add", {"path": "s", "value": 0})
        for value in values:
            assert ask(peer, "echo", value) == value
        for one in (peer, plain):
            assert ask(one, "fetch", {"id": "f", "every": True}) is True
            assert json.loads(one.recv(timeout=10))["params"]["value"] == 0
        for value in values:
            owner.notify("change", {"path": "s", "value": value})
        for one in (peer, plain):
            assert [json.loads(one.recv(timeout=10))["params"]["value"] for _ in values] == values
        assert peer.ping().wait(10)


def test_events_are_shorter(daemon: Daemon) -> None:
    """A stream of events takes a fraction of its bytes on the wire."""
    with daemon.connect() as owner, raw_peer(daemon) as raw:
        owner.result("add", {"path": "plant/line-1/pump/speed", "value": 0})
        raw.send(frame(b'{"method":"fetch","params":{"id":"f","every":true}}'))
        for number in range(EVENTS):
            owner.result("change", {"path": "plant/line-1/pump/speed", "value": 1000 + number})
        lengths = [len(received.payload) for _ in range(EVENTS + 1) if (received := raw.read()) is not None]
    assert len(lengths) == EVENTS + 1
    plain = len('{"method":"f","params":{"path":"plant/line-1/pump/speed","event":"change","value":1000}}')
    assert sum(lengths) < plain * EVENTS / 3


def test_off_by_default(shared_daemons: Any) -> None:
    """Without the setting no offer is taken, so that everybody is sent the same bytes as before."""
    with open_peer(shared_daemons()) as peer:
        assert extensions_of(peer) == []
        assert ask(peer, "echo", [1]) == [1]


def test_only_so_many_peers(daemon: Daemon) -> None:
    """A peer beyond ws_deflate_max is served without compression and counted; one that leaves makes room."""
    before = daemon.limit_hits("ws_deflate_max")
    with open_peer(daemon) as first:
        with open_peer(daemon) as second, open_peer(daemon) as third:
            assert [extensions_of(peer) != [] for peer in (first, second, third)] == [True, True, False]
            assert ask(third, "echo", [1]) == [1]
        assert daemon.limit_hits("ws_deflate_max") == before + 1
        # Closed means answered by the daemon, which has then forgotten the peer.
        with open_peer(daemon) as fourth:
            assert extensions_of(fourth) == ["permessage-deflate"]


@pytest.mark.parametrize("pieces", [1, 10], ids=["whole", "in fragments"])
def test_a_message_is_inflated_to_the_limit_only(daemon: Daemon, pieces: int) -> None:
    """A message that would be longer than message_bytes_max when inflated closes its connection with code 1009."""
    bomb = deflate(b'"' + b" " * 200 * LIMIT + b'"')
    assert len(bomb) < LIMIT / 2
    size = len(bomb) // pieces + 1
    parts = [bomb[at : at + size] for at in range(0, len(bomb), size)]
    with raw_peer(daemon) as raw:
        for number, part in enumerate(parts):
            is_last = number == len(parts) - 1
            raw.send(frame(part, CONTINUATION if number else TEXT, fin=is_last, rsv=0 if number else 4))
        assert close_code(raw) == 1009
    assert daemon.http("/health")[0] == 200


BROKEN = {"no deflate": b"\xff\xff\xff\xff", "cut off": deflate(b'{"id":1,"method":"info"}' * 50)[:20]}


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_broken_data_harms_nobody_else(daemon: Daemon, payload: bytes) -> None:
    """Data that cannot be inflated ends or fails that message, and another peer is served on."""
    with open_peer(daemon) as other, raw_peer(daemon) as raw:
        raw.send(frame(payload, rsv=4) + frame(b"", PING))
        assert raw.read() is not None
        assert ask(other, "echo", [1]) == [1]


def test_a_compressed_frame_without_compression(shared_daemons: Any) -> None:
    """A peer that compresses without an agreement is closed with code 1002."""
    with contextlib.closing(RawWebSocket(shared_daemons().address("ws"))) as raw:
        raw.open(Sec_WebSocket_Extensions=OFFER)
        raw.send(frame(deflate(b"{}"), rsv=4))
        assert close_code(raw) == 1002


def test_closing(daemon: Daemon) -> None:
    """The closing handshake comes through behind compressed messages."""
    with open_peer(daemon) as peer:
        for number in range(20):
            peer.send(json.dumps({"id": number, "method": "echo", "params": "y" * 1000}))
        assert [json.loads(peer.recv(timeout=10))["id"] for _ in range(20)] == list(range(20))
    assert peer.close_code == 1000
