"""The pipeline as a process of its own: killed at any moment, and its daemon with it; stopped as it should be."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus import journal
from jetbus.spark import Tables
from jetbus.spark.clock import micros
from spark import reference
from spark.compare import assert_same, rows_of
from spark.drivers import READY_WITHIN_S, kill, start
from spark.reference import Event
from support.daemon import Daemon

KILLS = 10
DAEMON_KILLS = 4
EVENTS = 40
"""What happens on the bus between two kills."""


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

    def log(self) -> list[Event]:
        """All that the journal has, by another reader than Spark's."""
        rows: list[dict[str, Any]] = journal.open(self.folder).table().to_pylist()
        return [
            Event("plant", row["seq"], _micros(row["ts"]), *(row[name] for name in Event._fields[3:])) for row in rows
        ]


def _micros(ts: datetime) -> int:
    return micros(ts)


def staging_of(tables: Path) -> int | None:
    """Which folder a batch is being made in, if any; one that a killed driver left behind stays until the next."""
    try:
        return (tables / "staging").stat().st_ctime_ns
    except FileNotFoundError:
        return None


def await_work(process: subprocess.Popen[str], tables: Path, before: int | None) -> None:
    """Wait until a driver is at work on a batch of its own, or has ended."""
    until_s = time.monotonic() + READY_WITHIN_S
    while staging_of(tables) in (before, None) and process.poll() is None:
        assert time.monotonic() < until_s, "the driver does not begin"
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)


@pytest.mark.timeout(2400)
def test_a_killed_pipeline_goes_on_without_loss_or_repeat(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed ten times in its batches, its daemon killed meanwhile, the pipeline has each event once in every table.

    After all of that SIGTERM ends it after its batch, with exit code 0.
    """
    monkeypatch.setattr("support.daemon.READY_WITHIN_S", READY_WITHIN_S)  # drivers keep the machine busy
    chance = random.Random(11)
    plant, tables = Plant(tmp_path / "journal"), tmp_path / "tables"
    with_daemon = set(chance.sample(range(KILLS), DAEMON_KILLS))
    url, batches = f"jet://{plant.address}", ("--batch-events", "60", "--every", "50ms")
    batch_s = 1.0
    try:
        for kills in range(KILLS):
            plant.work()
            before = staging_of(tables)
            process = start([url], tables, *batches)
            try:
                await_work(process, tables, before)
                began_s = time.monotonic()
                if kills == 0:
                    # How long a batch takes here and now decides where the other kills fall.
                    assert process.stdout is not None
                    assert json.loads(process.stdout.readline())["number"] == 1
                    batch_s = time.monotonic() - began_s
                if kills in with_daemon:
                    plant.kill()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(chance.uniform(0, 1.3 * batch_s))
            finally:
                kill(process)
        plant.work()
        finish(plant, url, tables)
        log = plant.log()
    finally:
        plant.daemon.stop()
    found = Tables(spark, tables)
    last = found.manifest.seqs["plant"]
    assert sum(event.path == "plant/count" and event.event == "change" for event in log if event.seq <= last) == (
        (KILLS + 1) * EVENTS
    )
    log = [event for event in log if event.seq <= last]
    for name, wanted in (
        ("events", reference.events(log)),
        ("history", reference.history(log)),
        ("rollups_1s", reference.rollups(log, "rollups_1s")),
        ("availability", reference.availability(log)),
    ):
        assert_same(name, rows_of(found.frame(name)), wanted)


def finish(plant: Plant, url: str, tables: Path) -> None:
    """Run until all the work is in the tables, then stop as one should."""
    mark = next(event.seq for event in reversed(plant.log()) if event.path == "plant/count")
    process = start([url], tables, "--every", "50ms")
    try:
        assert process.stdout is not None
        while json.loads(process.stdout.readline())["seqs"]["plant"] < mark:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_WITHIN_S) == 0
    finally:
        kill(process)
