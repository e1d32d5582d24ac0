"""Daemons under load that end without warning: forked, loaded by owners that know what was acknowledged, then killed.

Daemons are forked from a process that has imported everything already: a start then costs milliseconds, and what is
killed is still a whole process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.wire import Closed, TcpWire

IN_FLIGHT = 20
DEADLINE_S = 60.0

FORKING = """
import json, os, sys
import jetbus.daemon.journal_api
from jetbus.daemon.main import main

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        main(json.loads(line))
        os._exit(0)
    print(pid, flush=True)
    print("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Nursery:
    """Place at which daemons are forked, one at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._pid = 0

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def start(self, *options: str) -> tuple[str, int]:
        """Start a daemon; gives the address it listens on once it is ready."""
        assert self._process.stdin is not None
        others = ("--ws", "off", "--unix", "off", "--binary", "off", "--binary-unix", "off")
        print(json.dumps(["--tcp", "127.0.0.1:0", *others, *options]), file=self._process.stdin, flush=True)
        lines = {self._line(), self._line()}  # the daemon may be ready before the number of its process is told
        self._pid = next(int(line) for line in lines if line.isdigit())
        ready = next(line for line in lines if line.startswith("ready tcp="))
        host, _, port = ready.removeprefix("ready tcp=").rpartition(":")
        return host, int(port)

    def end(self, number: signal.Signals) -> int:
        """Send the daemon a signal and wait for its end."""
        os.kill(self._pid, number)
        ended, code = self._line().split()
        assert ended == "ended"
        return int(code)

    def halt(self) -> None:
        """Stop the daemon where it is, and wait until none of its threads moves any more."""
        os.kill(self._pid, signal.SIGSTOP)
        tasks = Path(f"/proc/{self._pid}/task")
        deadline = time.monotonic() + DEADLINE_S
        while any(_state_of(task) != "T" for task in tasks.iterdir()):
            assert time.monotonic() < deadline, "the daemon does not stop"

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


def _state_of(task: Path) -> str:
    """Return the state of a thread: T if it is stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@dataclass
class Owner:
    """An owner of one state, whose value only ever counts up; it knows which changes were acknowledged, and when."""

    path: str
    value: int = 0
    acknowledged: dict[int, float] = field(default_factory=dict)
    problem: BaseException | None = None

    def run(self, address: tuple[str, int], loaded: threading.Barrier) -> None:
        """Own the state and change it as fast as possible, until the daemon is gone."""
        try:
            self._run(address, loaded)
        except (Closed, OSError):
            pass  # killed
        except BaseException as problem:
            self.problem = problem

    def _run(self, address: tuple[str, int], loaded: threading.Barrier) -> None:
        with TcpWire(address) as wire:
            assert wire.result("add", {"path": self.path, "value": self.value}) is True
            self.acknowledged[self.value] = time.monotonic()
            loaded.wait(DEADLINE_S)
            for _ in range(IN_FLIGHT):
                self._change(wire)
            while True:
                received = wire.receive()
                assert received["result"] is True
                self.acknowledged[received["id"]] = time.monotonic()
                self._change(wire)

    def _change(self, wire: TcpWire) -> None:
        self.value += 1
        wire.send({"id": self.value, "method": "change", "params": {"path": self.path, "value": self.value}})


def load_and_kill(
    nursery: Nursery,
    owners: list[Owner],
    options: list[str],
    after_s: float,
    before: Callable[[], None] | None = None,
) -> float:
    """Load a daemon and kill it after a while; ``before`` is called while it is stopped. Gives when that was."""
    address = nursery.start(*options)
    loaded = threading.Barrier(len(owners) + 1)
    threads = [threading.Thread(target=owner.run, args=(address, loaded)) for owner in owners]
    for thread in threads:
        thread.start()
    loaded.wait(DEADLINE_S)
    time.sleep(after_s)
    ended_s = time.monotonic()
    if before is not None:
        nursery.halt()
        before()
    assert nursery.end(signal.SIGKILL) == -signal.SIGKILL
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [owner.problem for owner in owners if owner.problem] == []
    return ended_s


def read_plainly(directory: Path) -> list[dict[str, Any]]:
    """All events, by nothing but pyarrow."""
    tables = [pa.ipc.open_stream(path.read_bytes()).read_all() for path in sorted(directory.glob("*.arrows"))]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


def lives_of(events: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The events of each daemon, from its start on."""
    starts = [number for number, event in enumerate(events) if event["event"] == "start"]
    assert starts[0] == 0
    return [events[first:last] for first, last in pairwise([*starts, len(events)])]


def values_of(path: str, events: list[dict[str, Any]]) -> list[int]:
    return [
        json.loads(event["value"]) for event in events if event["path"] == path and event["event"] in ("add", "change")
    ]
