"""Alarms that are raised live are those that the backtest of the journal finds, across kills of everybody."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus import journal
from jetbus.journal.instants import read_instant
from jetbus.spark import tables
from support.daemon import Daemon
from support.spark.compare import rows_of

ALARMS = """
[alarm.high]
rule = "p/*"
when = "num > 80"
clear = "num < 60"
message = "{path} is {value}"

[alarm.held]
rule = "p/*"
when = "num > 50 or text = 'hot'"
hold = "60ms"
priority = "high"

[alarm.banded]
rule = "p/a"
when = "num > 70 or num < 10"
deadband = "8"
hold = "15ms"

[alarm.strange]
rule = "p/**"
when = "outside normal"

[alarm.silent]
rule = "p/**"
when = "stale"
hold = "20ms"

[alarm.broken]
rule = "**"
when = "bad"
latch = true
"""
ROUNDS = 5
SEED = 34
WITHIN_S = 60.0


class _House:
    """A daemon, its alarms and an owner, any of which may be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "alarms.toml").write_text(ALARMS)
        self.daemon = self._start_daemon("127.0.0.1:0")
        self.address = self.daemon.listens["tcp"]
        self.url = f"jet://{self.address}"
        self.alarms = self._start_alarms()

    def _start_daemon(self, address: str) -> Daemon:
        return Daemon.start("--tcp", address, "--journal", str(self.folder / "log"), "--journal-flush-ms", "20")

    def _start_alarms(self) -> subprocess.Popen[bytes]:
        words = [*("alarms", "run", str(self.folder / "alarms.toml")), "--url", self.url, "--wait"]
        with (self.folder / "alarms.log").open("ab") as out:
            return subprocess.Popen([sys.executable, "-m", "jetbus.cli", *words], stdout=out, stderr=out)

    def kill_daemon(self) -> None:
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.daemon.close_log()
        self.daemon = self._start_daemon(self.address)

    def stop_daemon(self) -> None:
        self.daemon.stop()
        self.daemon = self._start_daemon(self.address)

    def kill_alarms(self) -> None:
        self.alarms.kill()
        self.alarms.wait()
        self.alarms = self._start_alarms()

    def stop_alarms(self) -> None:
        self.alarms.send_signal(signal.SIGTERM)
        assert self.alarms.wait(WITHIN_S) == 0
        self.alarms = self._start_alarms()

    def await_alarms(self) -> None:
        """Wait until the alarms have seen everything that has happened so far."""
        with jetbus.Peer(self.url, name="test") as peer:
            offsets = peer.call("$jet/journal/offsets")
            deadline = time.monotonic() + WITHIN_S
            while time.monotonic() < deadline:
                position = peer.get_all("alarms/position").get("alarms/position")
                if position is not None and position["seq"] > offsets["last"]:
                    return
                time.sleep(0.1)
        raise AssertionError((self.folder / "alarms.log").read_text())

    def close(self) -> None:
        self.alarms.kill()
        self.alarms.wait()
        if self.daemon.process.poll() is None:
            self.daemon.stop()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[_House]:
    found = _House(tmp_path)
    try:
        yield found
    finally:
        found.close()


async def _live_a_while(url: str, chance: random.Random, changes: int) -> None:
    """Own some states for a while; the owner leaves in order, or its connection breaks."""
    peer = jetbus.PeerAsync(url, name="plc", reconnect=False)
    await peer.connect()
    states = {name: await peer.add_state(f"p/{name}", 0) for name in "abc"}
    states["d"] = await peer.add_state("p/d", 20, unit="Cel", normal=(10, 40), stale_s=0.05)
    for number in range(changes):
        state = states[chance.choice("aabcd")]
        value: Any = chance.choice([chance.randrange(100), chance.random() * 100, "hot", "cold", None, True, [90]])
        if chance.random() < 0.2:
            trust: Any = chance.choice(["bad", "good", {"level": "bad", "reason": "cable"}])
            state.change(value, quality=trust)
        else:
            state.change(value)
        if chance.random() < 0.05:
            states["d"].describe(unit="K", normal=(chance.randrange(30), 50), stale_s=0.08)
        if chance.random() < 0.04:
            await states["c"].remove()
            await states["c"].add()
        if number % 3 == 0:  # so that some hold times end, and others do not
            await asyncio.sleep(chance.choice([0.001, 0.01, 0.03, 0.07]))
    if chance.random() < 0.5:
        peer.abort()
    await peer.close()


def _rows(transitions: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            *(told["alarm"], told["severity"], told["path"], told["what"], read_instant(told["ts"]), told["seq"]),
            *(json.dumps(told.get("value")), told.get("unit"), read_instant(told["raised_at"])),
        )
        for told in transitions
        if told["what"] in ("raised", "cleared")
    ]


def test_live_is_the_backtest_of_the_journal(house: _House, spark: SparkSession) -> None:
    """Every alarm that was raised or cleared live is a row of the backtest, to the microsecond, and the reverse."""
    chance = random.Random(SEED)
    house.await_alarms()
    happenings = [house.kill_daemon, house.kill_alarms, house.stop_daemon, house.stop_alarms]
    for number in range(ROUNDS):
        asyncio.run(_live_a_while(house.url, chance, 60))
        happenings[number % len(happenings)]()
    asyncio.run(_live_a_while(house.url, chance, 30))
    house.await_alarms()
    house.alarms.send_signal(signal.SIGTERM)
    assert house.alarms.wait(WITHIN_S) == 0
    house.daemon.stop()
    rows = [row for batch in journal.open(house.folder / "log").read() for row in batch.to_pylist()]
    published = [row for row in rows if row["path"] == "alarms/newest" and row["event"] in ("add", "change")]
    live = _rows([json.loads(row["value"]) for row in published])
    log = spark.read.format("jet").option("clock", "true").load(str(house.folder / "log"))
    found = [
        (
            *(row["alarm"], row["severity"], row["path"], row["what"], row["ts"], row["seq"]),
            *("null" if row["value"] is None else json.dumps(json.loads(row["value"])), row["unit"], row["raised_at"]),
        )
        for row in rows_of(tables.alarms(log, house.folder / "alarms.toml"))
    ]
    assert {row[0] for row in found} >= {"high", "held", "banded", "strange", "silent", "broken"}
    assert sorted(live, key=repr) == sorted(found, key=repr)
