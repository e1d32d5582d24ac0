"""Memory: whatever strangers make the daemon keep, it stays small, and goes on when they are gone."""

from __future__ import annotations

import contextlib
from pathlib import Path

from support.daemon import Daemon
from support.siege import Reader

MEMORY_BYTES = 500_000_000


def peak_bytes(daemon: Daemon) -> int:
    """Return the most memory that the daemon has had."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


EVENTS, EVENT_BYTES, PEERS = 40, 5_000_000, 10


def test_fetches_of_the_past_that_are_not_read(tmp_path: Path) -> None:
    """Ten peers that fetch a long past and read nothing hold a page each; what they read later is whole."""
    with Daemon.start("--journal", str(tmp_path / "journal")) as daemon, contextlib.ExitStack() as stack:
        address = daemon.address("tcp")
        owner = stack.enter_context(contextlib.closing(Reader(address)))
        owner.request({"method": "add", "params": {"path": "long", "value": ""}})
        for number in range(EVENTS):
            value = f"{number:05}" * (EVENT_BYTES // 5)
            owner.request({"method": "change", "params": {"path": "long", "value": value}})
        peers = [stack.enter_context(contextlib.closing(Reader(address))) for _ in range(PEERS)]
        for peer in peers:
            peer.send({"id": "past", "method": "fetch", "params": {"id": "f", "since": "-1h"}})
            assert peer.receive() == {"id": "past", "result": True}
        # Served after all that was asked before it.
        owner.request({"method": "get", "params": {"asOf": "-0s", "path": {"equals": "none"}}})
        assert peak_bytes(daemon) < MEMORY_BYTES
        owner.request({"method": "change", "params": {"path": "long", "value": "live"}})
        values = [peers[0].receive()["params"]["value"][:5] for _ in range(EVENTS + 2)]
        assert values == ["", *(f"{number:05}" for number in range(EVENTS)), "live"]
        assert peak_bytes(daemon) < MEMORY_BYTES
