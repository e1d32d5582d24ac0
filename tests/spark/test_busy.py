"""Format ``jet`` beside an owner that is faster than it: a batch ends with what there was when it was planned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus.spark import tables
from jetbus.testing import RunningDaemon, running_daemon
from support.busy import CHANGES_BEFORE, PATH, BusyOwner, check_reader

STEP = 5_000
ALARM = f"""[alarm.round]
rule = "{PATH}"
when = "num % {STEP} = 0"
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with running_daemon(journal=tmp_path / "journal") as made, BusyOwner(made.url):
        yield made


@pytest.mark.parametrize("place", ["bus", "folder"])
def test_a_batch_ends_beside_a_busy_owner(
    spark: SparkSession, daemon: RunningDaemon, tmp_path: Path, place: str
) -> None:
    """The source ends with exactly what there was when it was asked, over the bus and over a folder."""

    def read() -> list[int]:
        source = spark.read.format("jet").option("equals", PATH)
        log = source.option("url", daemon.url).load() if place == "bus" else source.load(str(tmp_path / "journal"))
        return [int(row["value"]) for row in log.orderBy("seq").select("value").collect()]

    check_reader(daemon.url, read)


def test_a_backtest_ends_beside_a_busy_owner(spark: SparkSession, daemon: RunningDaemon, tmp_path: Path) -> None:
    """A backtest raises the alarms of exactly what was recorded when it was planned."""
    (tmp_path / "alarms.toml").write_text(ALARM)
    with jetbus.Peer(daemon.url) as peer:
        before: int = peer.get(PATH)
        peer.call("$jet/journal/offsets")  # writes all of it to the files
        log = spark.read.format("jet").option("clock", "true").load(str(tmp_path / "journal"))
        found = tables.alarms(log, tmp_path / "alarms.toml").where("what = 'raised'").orderBy("raised_at").collect()
        after: int = peer.get(PATH)
    values = [int(row["value"]) for row in found]
    assert values == list(range(0, values[-1] + 1, STEP))
    assert before - STEP < values[-1] <= after
    assert before >= CHANGES_BEFORE - 1
