"""Attacks on a daemon by peers that have not logged in: each is a function that goes on until a deadline.

    python tests/support/siege.py HOST:PORT WS_HOST:PORT SOURCE SECONDS NAME...

runs the named attacks, each in a thread of its own, in a process of their own. ``Healthy`` is the peer that must not
notice: it sets a state over and over, and both the owner and a watcher see each value.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

WS_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WS_PING = b"\x89\x80abcd"
STATES = 20_000
"""States that are on the bus beside those of the healthy peer."""


class Target(NamedTuple):
    """Addresses of a daemon, that of the attackers, and the instant at which an attack ends."""

    tcp: tuple[str, int]
    ws: tuple[str, int]
    source: str
    deadline: float

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self.deadline


Attack = Callable[[Target], None]
ATTACKS: dict[str, Attack] = {}


def attack(run: Attack) -> Attack:
    """Enter an attack into the table."""
    ATTACKS[run.__name__] = run
    return run


class AttackConnection:
    """A connection that frames what it sends and does not wait for answers."""

    def __init__(self, address: tuple[str, int], source: str = "") -> None:
        self.sock = socket.create_connection(address, 10, (source, 0) if source else None)
        self.sock.settimeout(1.0)

    def send(self, message: Any) -> None:
        self.send_text(json.dumps(message, separators=(",", ":")).encode())

    def send_text(self, text: bytes) -> None:
        self.sock.sendall(struct.pack(">I", len(text)) + text)

    def drop(self) -> None:
        """Read what there is and forget it."""
        self.sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while self.sock.recv(1 << 20):
                pass
        self.sock.settimeout(1.0)

    def close(self) -> None:
        self.sock.close()


def _persist(target: Target, act: Callable[[AttackConnection], None]) -> None:
    """Do something on a connection again and again, and connect anew whenever the daemon has closed it."""
    while not target.is_over:
        try:
            line = AttackConnection(target.tcp, target.source)
        except OSError:
            time.sleep(0.01)
            continue
        try:
            while not target.is_over:
                act(line)
        except OSError:
            time.sleep(0.01)
        finally:
            line.close()


# -- answers without end


@attack
def batches_of_gets(target: Target) -> None:
    """Ask for all states 4,000 times in one message, and read nothing."""
    batch = json.dumps([{"id": 1, "method": "get", "params": {}}] * 4000).encode()
    _persist(target, lambda line: line.send_text(batch))


@attack
def batches_of_gets_read(target: Target) -> None:
    """Ask for all states 4,000 times in one message, and read what comes."""
    batch = json.dumps([{"id": 1, "method": "get", "params": {}}] * 4000).encode()

    def act(line: AttackConnection) -> None:
        line.send_text(batch)
        while not target.is_over:
            line.sock.recv(1 << 20)

    _persist(target, act)


@attack
def fetches_and_unfetches(target: Target) -> None:
    """Fetch everything and end that, over and over."""

    def act(line: AttackConnection) -> None:
        line.send_text(b'{"method":"fetch","params":{"id":"f"}}')
        line.send_text(b'{"id":1,"method":"unfetch","params":{"id":"f"}}')
        line.drop()

    _persist(target, act)


@attack
def many_fetches_then_gone(target: Target) -> None:
    """Fetch everything fifty times, then close; and again."""
    while not target.is_over:
        with contextlib.suppress(OSError):
            line = AttackConnection(target.tcp, target.source)
            for number in range(50):
                line.send({"method": "fetch", "params": {"id": number, "path": {"startsWith": "plant/"}}})
            line.send({"id": "end", "method": "info", "params": {}})
            while not target.is_over and b'"end"' not in line.sock.recv(1 << 20):
                pass
            line.close()


@attack
def crowds(target: Target) -> None:
    """Own one state, fetch it 5,000 times, change it all the time."""
    path = f"crowd/{threading.get_ident()}-{time.monotonic_ns()}"

    def act(line: AttackConnection) -> None:
        line.send({"method": "add", "params": {"path": path, "value": 0}})
        for number in range(5000):
            line.send({"method": "fetch", "params": {"id": number, "path": {"equals": path}}})
        line.drop()
        while not target.is_over:
            line.send({"method": "change", "params": {"path": path, "value": 1}})
            line.drop()

    _persist(target, act)


# -- rules and patterns


@attack
def globs(target: Target) -> None:
    """Ask who owns what a glob of many stars matches."""
    glob = "**a" * 33 + "**b"
    message = {"id": 1, "method": "call", "params": {"path": "$jet/owners", "args": {"rule": glob}}}

    def act(line: AttackConnection) -> None:
        line.send(message)
        line.sock.recv(1 << 16)

    _persist(target, act)


@attack
def long_lists(target: Target) -> None:
    """Compare lists of 10,000 with lists of 10,000."""
    words = [f"w{number}" for number in range(10_000)]
    path = f"list/{threading.get_ident()}-{time.monotonic_ns()}"

    def act(line: AttackConnection) -> None:
        line.send({"method": "add", "params": {"path": path, "value": words}})
        line.send({"id": 1, "method": "get", "params": {"path": {"equals": path}, "value": {"hasAllOf": words[::-1]}}})
        line.send({"id": 2, "method": "get", "params": {"path": {"containsOneOf": words}}})
        line.sock.recv(1 << 16)
        line.drop()

    _persist(target, act)


@attack
def many_value_tests(target: Target) -> None:
    """Fetch one state by 2,000 fetches with 99 tests of its value each, and change it."""
    path = f"tests/{threading.get_ident()}-{time.monotonic_ns()}"
    tests = {f"a/{number}": {"lessThan": 1000 + number} for number in range(99)}

    def act(line: AttackConnection) -> None:
        line.send({"method": "add", "params": {"path": path, "value": {"a": list(range(99))}}})
        for number in range(2000):
            rule = {"id": number, "path": {"equals": path}, "valueField": tests}
            line.send({"method": "fetch", "params": rule})
        line.drop()
        while not target.is_over:
            line.send({"method": "change", "params": {"path": path, "value": {"a": list(range(99))}}})
            line.drop()

    _persist(target, act)


@attack
def patterns(target: Target) -> None:
    """Fetch with a Lua pattern that backtracks."""
    matcher = {"match": ["(.-)(.-)(.-)(.-)%1%2%3%4x$"]}

    def act(line: AttackConnection) -> None:
        line.send({"id": 1, "method": "get", "params": {"matcher": matcher, **matcher}})
        line.sock.recv(1 << 16)
        line.drop()

    _persist(target, act)


# -- long messages


@attack
def brackets(target: Target) -> None:
    """Send 10 MB of brackets, deep and flat."""
    texts = [b"[" * 4_900_000 + b"]" * 4_900_000, b"[" + b"[],[[]]," * 1_200_000 + b"[]]"]

    def act(line: AttackConnection) -> None:
        for text in texts:
            line.send_text(text)
        line.drop()

    _persist(target, act)


@attack
def sorted_changes(target: Target) -> None:
    """Change states at the head of a sorted fetch of everything."""
    path = f"plant/sorted-{threading.get_ident()}-{time.monotonic_ns()}"

    def act(line: AttackConnection) -> None:
        line.send({"method": "add", "params": {"path": path, "value": 0}})
        rule = {"sort": {"byValue": "number", "from": 1, "to": 20_000}, "path": {"startsWith": "plant/"}}
        line.send({"method": "fetch", "params": {"id": "s", **rule}})
        while not target.is_over:
            for value in range(200):
                line.send({"method": "change", "params": {"path": path, "value": value % 2 * 30_000 - 1}})
            line.drop()

    _persist(target, act)


# -- connections


@attack
def half_frames(target: Target) -> None:
    """Announce ten million bytes, send nearly all of them, close."""
    data = struct.pack(">I", 9_999_999) + b"x" * 9_900_000

    def act(line: AttackConnection) -> None:
        line.sock.sendall(data)
        raise OSError

    _persist(target, act)


@attack
def held_half_frames(target: Target) -> None:
    """Hold 30 connections open that have sent nearly all of ten million bytes."""
    data = struct.pack(">I", 9_999_999) + b"x" * 9_900_000
    lines: list[AttackConnection] = []
    while not target.is_over:
        with contextlib.suppress(OSError):
            line = AttackConnection(target.tcp, target.source)
            line.sock.sendall(data)
            lines.append(line)
        if len(lines) > 30:
            lines.pop(0).close()


@attack
def websockets(target: Target) -> None:
    """Open WebSocket connections and leave them, after whole and after half handshakes."""
    while not target.is_over:
        for data in (WS_HANDSHAKE[:70], WS_HANDSHAKE, WS_HANDSHAKE + WS_PING * 5000):
            with contextlib.suppress(OSError), socket.create_connection(target.ws, 10, (target.source, 0)) as sock:
                sock.settimeout(1.0)
                sock.sendall(data)


@attack
def empty_messages(target: Target) -> None:
    """Send messages of no bytes, each of which is answered by an error."""

    def act(line: AttackConnection) -> None:
        line.sock.sendall(bytes(4) * 50_000)
        line.drop()

    _persist(target, act)


@attack
def full_batches(target: Target) -> None:
    """Send batches of 10,000 small requests."""
    batch = json.dumps([{"id": 1, "method": "echo", "params": {}}] * 10_000, separators=(",", ":")).encode()

    def act(line: AttackConnection) -> None:
        line.send_text(batch)
        line.drop()

    _persist(target, act)


class Healthy:
    """A peer that sets a state, its owner, and a watcher of it, on three connections."""

    def __init__(self, address: tuple[str, int], path: str = "healthy/state", source: str = "") -> None:
        self._path = path
        self._owner, self._setter, self._watcher = (Reader(address, source) for _ in range(3))
        self._owner.request({"method": "add", "params": {"path": path, "value": 0}})
        self._watcher.request({"method": "fetch", "params": {"id": "w", "path": {"equals": path}}})
        self._watcher.receive()
        self._number = 0

    def set(self) -> float:
        """Set the state once, check that all see it, return how many seconds the answer took."""
        self._number = number = self._number + 1
        began = time.perf_counter()
        self._setter.send({"id": number, "method": "set", "params": {"path": self._path, "value": number}})
        routed = self._owner.receive()
        assert routed["params"] == {"value": number}, routed
        self._owner.send({"method": "change", "params": {"path": self._path, "value": number}})
        self._owner.send({"id": routed["id"], "result": True})
        answer = self._setter.receive()
        took_s = time.perf_counter() - began
        assert answer == {"id": number, "result": True}, answer
        assert self._watcher.receive()["params"]["value"] == number
        return took_s

    def set_for(self, seconds: float, pause_s: float = 0.002) -> list[float]:
        """Set for a while; return how long each took, the longest last."""
        until = time.monotonic() + seconds
        took_s = []
        while time.monotonic() < until:
            took_s.append(self.set())
            time.sleep(pause_s)
        return sorted(took_s)

    def close(self) -> None:
        for reader in (self._owner, self._setter, self._watcher):
            reader.close()


class Reader(AttackConnection):
    """A connection that reads its answers."""

    def __init__(self, address: tuple[str, int], source: str = "") -> None:
        super().__init__(address, source)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.settimeout(60.0)
        self._buffer = b""

    def request(self, message: dict[str, Any]) -> None:
        self.send({"id": "request", **message})
        assert self.receive()["id"] == "request"

    def receive(self) -> Any:
        while len(self._buffer) < 4 or len(self._buffer) < 4 + struct.unpack_from(">I", self._buffer)[0]:
            data = self.sock.recv(1 << 20)
            if not data:
                raise ConnectionError("the daemon closed the connection of a healthy peer")
            self._buffer += data
        (length,) = struct.unpack_from(">I", self._buffer)
        text, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
        return json.loads(text)


class Plant(Reader):
    """The owner of many states."""

    def __init__(self, address: tuple[str, int], count: int = STATES) -> None:
        super().__init__(address)
        for first in range(0, count, 1000):
            adds = [
                {
                    "method": "add",
                    "params": {"path": f"plant/line{number % 10}/aaaaaaaaaaaaaaaaaaaa{number}", "value": number},
                }
                for number in range(first, min(first + 1000, count))
            ]
            self.send(adds)
        self.request({"method": "info", "params": {}})


def p99(sorted_s: list[float]) -> float:
    """The time that 99 of 100 stay below."""
    return sorted_s[min(len(sorted_s) - 1, int(len(sorted_s) * 0.99))]


def start(
    tcp: tuple[str, int], ws: tuple[str, int], seconds: float, names: list[str], source: str = "127.0.0.1"
) -> subprocess.Popen[bytes]:
    """Run attacks in a process of their own, which connects from an address."""
    addresses = [f"{host}:{port}" for host, port in (tcp, ws)]
    return subprocess.Popen([sys.executable, str(Path(__file__)), *addresses, source, str(seconds), *names])


def _main() -> None:
    # Attackers come from other machines. Here they share the cores with the daemon and its healthy peer, which would
    # measure the scheduler: so they get what those two leave, which still keeps the daemon busy.
    os.nice(19)
    tcp, ws = ((host, int(port)) for host, _, port in (where.rpartition(":") for where in sys.argv[1:3]))
    source, seconds = sys.argv[3], float(sys.argv[4])
    target = Target(tcp, ws, source, time.monotonic() + seconds)
    threads = [threading.Thread(target=ATTACKS[name], args=(target,), daemon=True) for name in sys.argv[5:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 5)


if __name__ == "__main__":
    _main()
