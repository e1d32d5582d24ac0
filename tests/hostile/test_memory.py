"""Memory: whatever strangers make the daemon keep, it stays small, and goes on when they are gone."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.daemon import Daemon
from support.siege import AttackConnection, Healthy, Plant, Reader

MEMORY_BYTES = 500_000_000
PEER_BYTES = 20_000_000
SENT_MAX = 20_000
"""Messages after which an attack that is not refused has succeeded."""


def deep_path(number: int) -> dict[str, Any]:
    return {"method": "add", "params": {"path": f"deep{number}" + "/a" * 62 + "/" + "x" * 3900, "value": 0}}


def value(number: int) -> dict[str, Any]:
    return {"method": "add", "params": {"path": f"value/{number}", "value": "x" * 4_000_000}}


def another_value(number: int) -> dict[str, Any]:
    return {"method": "add", "params": {"path": f"another/{number}", "value": "x" * 4_000_000}}


def schema(number: int) -> dict[str, Any]:
    return {"method": "add", "params": {"path": f"schema/{number}", "value": 0, "schema": "x" * 65_000}}


def access(number: int) -> dict[str, Any]:
    groups = [f"group {number} {nth}" for nth in range(20_000)]
    return {"method": "add", "params": {"path": f"access/{number}", "value": 0, "access": {"fetchGroups": groups}}}


def fetch_id(number: int) -> dict[str, Any]:
    return {"method": "fetch", "params": {"id": f"{number}" + "x" * 1_000_000, "path": {"equals": "none"}}}


def rule(number: int) -> dict[str, Any]:
    texts = [f"{number} {nth}" for nth in range(9_000)]
    return {"method": "fetch", "params": {"id": number, "path": {"equalsOneOf": texts}}}


def route(_number: int) -> dict[str, Any]:
    return {"method": "set", "params": {"path": "", "value": "x" * 4_000_000, "timeout": 60}}


KEPT = (deep_path, value, schema, access, fetch_id, rule, route)
"""Messages that make the daemon keep something."""


class Attacker:
    """Sends messages of one kind from one address."""

    def __init__(self, daemon: Daemon, source: str) -> None:
        self._line = Reader(daemon.address("tcp"), source)
        self._owner = Reader(daemon.address("tcp"), source)
        self._path = f"silent/{id(self)}"
        self._owner.request({"method": "add", "params": {"path": self._path, "value": 0}})

    def send(self, make: Callable[[int], dict[str, Any]], count: int) -> None:
        """Send messages, all of which may be refused."""
        for number in range(count):
            self._line.send(self._address({"id": number, **make(number)}))
        self._line.send({"id": "end", "method": "echo"})
        while self._line.receive()["id"] != "end":
            pass

    def _address(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["method"] == "set":
            message["params"]["path"] = self._path
        return message

    def fill(self, make: Callable[[int], dict[str, Any]]) -> str:
        """Send messages until one is refused for the memory it would take; return the limit, empty if none is."""
        for number in range(SENT_MAX):
            self._line.send(self._address({"id": number, **make(number)}))
            self._line.send({"id": "end", "method": "echo"})
            while (answer := self._line.receive())["id"] != "end":
                if "error" in answer:
                    data = answer["error"]["data"]
                    assert "remove states or fetches" in str(data), answer
                    return str(data["reason"]).partition(" ")[0]
            if make is route:
                self._owner.receive()  # it reads, and does not answer
        return ""

    def close(self) -> None:
        self._line.close()
        self._owner.close()


def peak_bytes(daemon: Daemon) -> int:
    """Return the most memory that the daemon has had."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.fixture(scope="module")
def attacked() -> Iterator[Daemon]:
    """A daemon that keeps little for one peer, so that this is soon too much."""
    with Daemon.start("--kept-peer-bytes-max", str(PEER_BYTES)) as daemon:
        yield daemon


@pytest.mark.parametrize("make", KEPT, ids=lambda make: make.__name__)
def test_what_is_kept_is_refused_by_name(attacked: Daemon, make: Callable[[int], dict[str, Any]]) -> None:
    """Requests that keep too much are refused by name; others go on, and all is given back when the peer is gone."""
    healthy = Healthy(attacked.address("tcp"), source="127.0.0.9")
    before = attacked.metrics()["jetbus_kept_bytes"]
    attacker = Attacker(attacked, "127.0.0.2")
    hits = attacked.limit_hits("kept_peer_bytes_max")
    assert attacker.fill(make) == "kept_peer_bytes_max"
    assert attacked.limit_hits("kept_peer_bytes_max") == hits + 1
    assert PEER_BYTES / 2 < attacked.metrics()["jetbus_kept_bytes"] < 1.1 * PEER_BYTES
    healthy.set()
    attacker.close()
    deadline = time.monotonic() + 60
    while attacked.metrics()["jetbus_kept_bytes"] > before:
        assert time.monotonic() < deadline
    healthy.close()


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


HEAVY_PEERS = 300
COUNTS = {deep_path: 300, value: 2, schema: 150, access: 2, fetch_id: 3, rule: 4, route: 3}
"""Messages of each kind that take about 10 MB."""
GET = json.dumps({"id": 1, "method": "get", "params": {}}).encode()
FETCH = json.dumps({"id": 2, "method": "fetch", "params": {"id": "all"}}).encode()


def test_all_attacks_together(tmp_path: Path) -> None:
    """With all of that at once, 300 peers that ask for all states, and peers that fetch the past and read nothing,
    the daemon takes less than 500 MB on the default settings, and serves a healthy peer."""
    with Daemon.start("--journal", str(tmp_path / "journal")) as daemon, contextlib.ExitStack() as stack:

        def connect(make: Callable[..., Any], *args: Any) -> Any:
            return stack.enter_context(contextlib.closing(make(*args)))

        tcp = daemon.address("tcp")
        connect(Plant, tcp)
        healthy = connect(Healthy, tcp, "healthy/state", "127.0.0.9")
        owner = connect(Reader, tcp, "127.0.0.3")
        owner.request({"method": "add", "params": {"path": "long", "value": ""}})
        for number in range(EVENTS // 2):
            value_text = f"{number:05}" * (EVENT_BYTES // 5)
            owner.request({"method": "change", "params": {"path": "long", "value": value_text}})
        for _ in range(PEERS):
            peer = connect(Reader, tcp, "127.0.0.3")
            peer.send({"id": "past", "method": "fetch", "params": {"id": "f", "since": "-1h"}})
        heavy = [connect(AttackConnection, tcp, "127.0.0.4") for _ in range(HEAVY_PEERS)]
        for line in heavy:
            line.send_text(GET)
            line.send_text(FETCH)
        for make, count in COUNTS.items():
            connect(Attacker, daemon, "127.0.0.2").send(make, count)
        # A kind whose paths nobody has: which of the others are refused depends on their order.
        assert connect(Attacker, daemon, "127.0.0.5").fill(another_value).startswith("kept_")
        healthy.set()
        assert daemon.metrics()["jetbus_kept_bytes"] > 100_000_000
        assert peak_bytes(daemon) < MEMORY_BYTES
