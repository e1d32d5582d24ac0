"""A pipeline that is killed again and again, and its daemon with it: a program that takes minutes.

It leaves a journal and tables in a folder and says at its end how often there was work.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jetbus
from jetbus import journal
from jetbus.spark.clock import micros
from support.daemon import Daemon
from support.spark.drivers import begin, kill, start
from support.spark.machines import READY_WITHIN_S, patience
from support.spark.reference import Event

KILLS = 6
"""Kills of drivers; with those of executors, on a cluster, they are ten."""
DAEMON_KILLS = 3
STARTS_MAX = 2 * KILLS
"""A driver that gives up by itself, as Spark does when its Python takes too long to start, was not killed."""
EVENTS = 150
"""Events on the bus between two kills: one batch or several."""
BATCH_EVENTS = (1000, 90)


class Plant:
    """A daemon with a journal, at one address however often it is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon = Daemon.start("--journal", str(folder), "--journal-bus", "plant")
        self.address = self.daemon.listens["tcp"]
        self.written = 0

    def work(self) -> None:
        """Some events, of a state that goes with its peer."""
        with jetbus.Peer(f"jet://{self.address}", name="plant") as peer:
            state = peer.add_state("plant/count", self.written)
            for _ in range(EVENTS):
                self.written += 1
                state.change(self.written)
            peer.call("$jet/journal/offsets")  # answered when all of it is in the journal

    def kill(self) -> None:
        """End the daemon at once and start another one in its place."""
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon = Daemon.start("--journal", str(self.folder), "--journal-bus", "plant", "--tcp", self.address)


def read_log(folder: Path, bus: str = "plant") -> list[Event]:
    """Read all that a journal has, by another reader than Spark's."""
    rows: list[dict[str, Any]] = journal.open(folder).table().to_pylist()
    return [Event(bus, row["seq"], micros(row["ts"]), *(row[name] for name in Event._fields[3:])) for row in rows]


def traces_of(tables: Path) -> set[str]:
    """Find the folders that batches have written events to: a new one shows that a driver is at work."""
    return {folder.name for folder in (tables / "events").glob("b*")}


def await_work(process: subprocess.Popen[str], tables: Path, before: set[str]) -> None:
    """Wait until a driver is at work on a batch of its own, or has ended."""
    until_s = time.monotonic() + READY_WITHIN_S
    while process.poll() is None and traces_of(tables) == before:
        assert time.monotonic() < until_s, "the driver does not begin"
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)


def kill_often(plant: Plant, tables: Path) -> int:
    """Kill drivers at random moments of their work, then let one finish; gives how often there was work for them."""
    chance = random.Random(11)
    with_daemon = set(chance.sample(range(KILLS), DAEMON_KILLS))

    def ready(nth: int) -> subprocess.Popen[str]:
        """Start a driver; every other one makes smaller batches."""
        options = ("--batch-events", str(BATCH_EVENTS[nth % 2]), "--every", "50ms")
        return start([f"jet://{plant.address}"], tables, *options, waits=True)

    kills, batch_s = 0, 1.0
    following = ready(0)
    try:
        for works in range(1, STARTS_MAX + 1):
            plant.work()
            process = following
            try:
                if kills == KILLS and finish(plant, process):
                    return works
                # The next driver starts its Java machine while this one works.
                following = ready(works)
                if kills == KILLS:
                    continue
                before = traces_of(tables)
                begin(process)
                await_work(process, tables, before)
                if kills == 0:
                    batch_s = first_batch_s(process)
                if kills in with_daemon:
                    plant.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(chance.uniform(0, 1.3 * batch_s))
                kills += process.poll() is None
            finally:
                kill(process)
        raise AssertionError(f"{STARTS_MAX} drivers were started, {kills} of them killed at work, and none finished")
    finally:
        kill(following)


def first_batch_s(process: subprocess.Popen[str]) -> float:
    """Measure how long a batch takes here and now; that decides where the other kills fall."""
    began_s = time.monotonic()
    assert process.stdout is not None
    process.stdout.readline()
    return time.monotonic() - began_s


def finish(plant: Plant, process: subprocess.Popen[str]) -> bool:
    """Run until all the work is in the tables, then stop as one should; False if the driver has given up before."""
    mark = next(event.seq for event in reversed(read_log(plant.folder)) if event.path == "plant/count")
    begin(process)
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["seqs"]["plant"] >= mark:
            process.send_signal(signal.SIGTERM)
            assert process.wait(READY_WITHIN_S) == 0
            return True
    return False


def main(place: str) -> None:
    folder = Path(place)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that those it has started end, too
    with patience():
        plant = Plant(folder / "journal")
        try:
            print(kill_often(plant, folder / "tables"))
        finally:
            plant.daemon.stop()
