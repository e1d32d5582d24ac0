"""Measure the longest time between two looks at other peers while a crowd asks for the same, or an owner leaves.

    python bench/crowds.py restart --peers 100 --states 100000      as many dashboards fetch all states at once
    python bench/crowds.py leave --states 1000000                   the owner of all states goes
    python bench/crowds.py sorted --states 20000                    a sorted get and a sorted fetch of all states

A connection of its own asks for ``info`` over and over: its longest wait is the wait of any other peer, and
its median the time that the machine takes anyway. Prints that and the daemon's peak memory. Linux only (/proc).
"""

import argparse
import contextlib
import json
import re
import selectors
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.siege import Reader

BATCH = 5_000
ROOM = "10000000000"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("case", choices=("restart", "leave", "sorted"))
    parser.add_argument("--peers", type=int, default=100, metavar="N")
    parser.add_argument("--states", type=int, default=100_000, metavar="N")
    parser.add_argument("--jetd", type=Path, default=Path(sys.executable).with_name("jetd"), metavar="PATH")
    return parser.parse_args()


@contextlib.contextmanager
def run_daemon(jetd: Path) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    nowhere = ["--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off", "--log-level", "error"]
    room = ["--kept-peer-bytes-max", ROOM, "--kept-address-bytes-max", ROOM, "--kept-bytes-max", ROOM]
    command = [str(jetd), "--tcp", "127.0.0.1:0", *nowhere, *room]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", daemon.stdout.readline())
        assert found is not None
        yield daemon, ("127.0.0.1", int(found[1]))
    finally:
        daemon.kill()
        daemon.wait()


class Probe(threading.Thread):
    """Asks for ``info`` over and over and notes how long each answer takes."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._line = Reader(address, "127.0.0.9")
        self._ends = threading.Event()
        self.took_s: list[float] = []

    def run(self) -> None:
        while not self._ends.wait(0.001):
            began = time.perf_counter()
            self._line.request({"method": "info", "params": {}})
            self.took_s.append(time.perf_counter() - began)

    def stop(self) -> list[float]:
        self._ends.set()
        self.join()
        return sorted(self.took_s)


def add_states(address: tuple[str, int], count: int) -> Reader:
    owner = Reader(address)
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        owner.send([{"method": "add", "params": {"path": f"s/{n}", "value": n * 7 % count}} for n in numbers])
        owner.request({"method": "echo", "params": {}})
    return owner


def read_until(socks: dict[socket.socket, int]) -> None:
    """Read so many bytes at least from each socket."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        while socks:
            for key, _ in selector.select():
                ready: Any = key.fileobj
                data = ready.recv(1 << 20)
                if not data:
                    raise ConnectionError("the daemon closed the connection of a dashboard")
                socks[ready] -= len(data)
                if socks[ready] <= 0:
                    selector.unregister(ready)
                    del socks[ready]


def restart(address: tuple[str, int], args: argparse.Namespace) -> None:
    """Let all peers fetch everything at once, and read it."""
    text = json.dumps({"id": 1, "method": "fetch", "params": {"id": "all"}}).encode()
    peers = [socket.create_connection(address) for _ in range(args.peers)]
    for peer in peers:
        peer.sendall(struct.pack(">I", len(text)) + text)
    event = len('{"method":"all","params":{"path":"s/","event":"add","value":}}') + 4
    digits = sum(len(str(n)) + len(str(n * 7 % args.states)) for n in range(args.states))
    read_until(dict.fromkeys(peers, args.states * event + digits))
    for peer in peers:
        peer.close()


def main() -> None:
    args = arguments()
    with run_daemon(args.jetd) as (daemon, address):
        owner = add_states(address, args.states)
        probe = Probe(address)
        probe.start()
        time.sleep(0.5)
        began = time.perf_counter()
        if args.case == "restart":
            restart(address, args)
        elif args.case == "sorted":
            sort = {"sort": {"byValue": "number", "from": 1, "to": args.states}}
            owner.request({"method": "get", "params": sort})
            owner.send({"id": "f", "method": "fetch", "params": {"id": "f", **sort}})
            while owner.receive().get("id") != "f":
                pass
        else:
            owner.close()
            watcher = Reader(address)
            last = {"id": 1, "method": "get", "params": {"path": {"equals": f"s/{args.states - 1}"}}}
            watcher.send(last)
            while watcher.receive()["result"]:
                time.sleep(0.05)
                watcher.send(last)
        took_s = time.perf_counter() - began
        waits = [1000 * wait_s for wait_s in probe.stop()]
        status = Path(f"/proc/{daemon.pid}/status").read_text(encoding="ascii")
        peak = int(status.partition("VmHWM:")[2].split()[0]) / 1000
        print(f"{args.case}: {took_s:.1f} s; wait of another peer: median {waits[len(waits) // 2]:.1f} ms, ", end="")
        print(f"p99 {waits[int(0.99 * len(waits))]:.1f} ms, longest {waits[-1]:.1f} ms; peak {peak:.0f} MB")


if __name__ == "__main__":
    main()
