"""A loaded daemon is killed at random moments, again and again, and its journal is whole every time.

Daemons are forked from a process that has imported everything already: a start then costs milliseconds, and what is
killed is still a whole process of its own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from jetbus import journal
from support.wire import Closed, TcpWire

KILLS = 26
OWNERS = 3
IN_FLIGHT = 20
LONGEST_S = 0.06
DEADLINE_S = 60.0

FORKING = """
import json, os, sys
import jetbus.daemon.history
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
    """Where daemons are forked, one at a time."""

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

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(DEADLINE_S)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@dataclass
class Owner:
    """An owner of one state, whose value only ever counts up; it knows which changes were acknowledged."""

    path: str
    value: int = 0
    acknowledged: set[int] = field(default_factory=set)
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
            self.acknowledged.add(self.value)
            loaded.wait(DEADLINE_S)
            for _ in range(IN_FLIGHT):
                self._change(wire)
            while True:
                told = wire.receive()
                assert told["result"] is True
                self.acknowledged.add(told["id"])
                self._change(wire)

    def _change(self, wire: TcpWire) -> None:
        self.value += 1
        wire.send({"id": self.value, "method": "change", "params": {"path": self.path, "value": self.value}})


def load_and_kill(nursery: Nursery, owners: list[Owner], options: list[str], after_s: float) -> None:
    address = nursery.start(*options)
    loaded = threading.Barrier(len(owners) + 1)
    threads = [threading.Thread(target=owner.run, args=(address, loaded)) for owner in owners]
    for thread in threads:
        thread.start()
    loaded.wait(DEADLINE_S)
    time.sleep(after_s)
    assert nursery.end(signal.SIGKILL) == -signal.SIGKILL
    for thread in threads:
        thread.join(DEADLINE_S)
    assert [owner.problem for owner in owners if owner.problem] == []


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


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_killed_at_random_moments(fsync: str, nursery: Nursery, tmp_path: Path) -> None:
    """However often a loaded daemon is killed, its journal has no gap, no repeat, and all that always acknowledged."""
    chance = random.Random(os.urandom(8))
    owners = [Owner(f"load/{number}") for number in range(OWNERS)]
    options = ["--journal", str(tmp_path), "--journal-fsync", fsync, "--journal-flush-ms", "5"]
    for _ in range(KILLS):
        load_and_kill(nursery, owners, options, chance.uniform(0, LONGEST_S))
    nursery.start(*options)
    assert nursery.end(signal.SIGTERM) == 0

    assert journal.verify(tmp_path) == []
    events = read_plainly(tmp_path)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)
    lives = lives_of(events)
    told = [json.loads(life[0]["detail"]) for life in lives]
    # A daemon that was killed before anything was written leaves no start behind, unless everything is written at once.
    assert len(lives) == KILLS + 1 if fsync == "always" else 1 < len(lives) <= KILLS + 1
    assert all(one["restart"] is True and one["clean"] is False for one in told[1:])
    assert told[0]["restart"] is (told[0].get("clean") is False)
    assert [event["event"] for event in lives[-1]] == ["start", "stop"]
    for owner in owners:
        recorded: set[int] = set()
        for life in lives:
            values = values_of(owner.path, life)
            assert values == list(range(values[0], values[0] + len(values))) if values else True
            recorded.update(values)
        assert recorded <= set(range(owner.value + 1))
        assert len(recorded) > KILLS
        if fsync == "always":
            assert owner.acknowledged - recorded == set()


def test_killed_before_the_first_flush(nursery: Nursery, tmp_path: Path) -> None:
    """A daemon that is killed at once, many times in a row, leaves a journal that the next one goes on with."""
    for _ in range(10):
        nursery.start("--journal", str(tmp_path), "--journal-flush-ms", "1")
        assert nursery.end(signal.SIGKILL) == -signal.SIGKILL
    nursery.start("--journal", str(tmp_path))
    assert nursery.end(signal.SIGTERM) == 0
    assert journal.verify(tmp_path) == []
    events = read_plainly(tmp_path)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["event"] == "stop"
    assert {event["event"] for event in events[:-1]} == {"start"}
