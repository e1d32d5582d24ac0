"""Begin and end of a pipeline: ranges of the past, stops at any moment, and many journals."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from jetbus.journal.instants import write_instant
from jetbus.spark import BadOption, Batch, DataLoss, NotTables, Pipeline, Tables
from jetbus.spark.batch import make_batch
from jetbus.spark.journals import BUNDLES_MIN, OpenBuses
from jetbus.spark.options import read_options
from jetbus.spark.pipeline import where
from support.spark import reference
from support.spark.compare import assert_same, rows_of
from support.spark.journals import numbers, write_events, write_log
from support.spark.logs import make_log
from support.spark.reference import Event
from support.spark.waits import WITHIN_S

BEGIN_US = 1_772_323_200_000_000
DEVICES = 250


def at(number: int) -> str:
    """The instant of an event of ``numbers``."""
    return write_instant(BEGIN_US + number * 1000)


def seqs(spark: SparkSession, tables: Path) -> list[int]:
    return sorted(row.seq for row in Tables(spark, tables).frame("events").select("seq").collect())


def test_a_range_goes_on_where_it_ended(spark: SparkSession, tmp_path: Path) -> None:
    """Tables of a range have just its events; a later run, with another end or none, adds the rest without loss."""
    log = numbers(100)
    write_events(tmp_path / "journal", log, bus="plant")
    received: list[Batch] = []
    ranges: list[tuple[dict[str, Any], int]] = [
        ({"since": at(11), "until": at(41)}, 40),
        ({"until": at(71)}, 70),
        ({}, 100),
    ]
    for options, upto in ranges:
        with Pipeline(
            spark, tmp_path / "journal", tmp_path / "tables", batch_events_max=50, on_batch=received.append, **options
        ) as pipeline:
            assert pipeline.behind() == upto - (received[-1].seqs["plant"] if received else 10)
            pipeline.run_once()
            assert pipeline.behind() == 0
        assert seqs(spark, tmp_path / "tables") == list(range(11, upto + 1))
    assert_same("history", rows_of(Tables(spark, tmp_path / "tables").frame("history")), reference.history(log[10:]))


def test_tables_get_no_holes(spark: SparkSession, tmp_path: Path) -> None:
    """A range that would leave events out between, or lies before the end of the tables, is refused with what to do."""
    write_events(tmp_path / "journal", numbers(20), bus="plant")
    with Pipeline(spark, tmp_path / "journal", tmp_path / "tables", until=at(11)) as pipeline:
        pipeline.run_once()
    wrong = {
        "since": (at(15), r"have bus 'plant' up to 2026-03-01T00:00:00.011000Z; events between would be missing"),
        "until": (at(10), r"which is not before until; take a new directory for an earlier time"),
    }
    for option, (instant, message) in wrong.items():
        with pytest.raises(BadOption, match=message):
            Pipeline(spark, tmp_path / "journal", tmp_path / "tables", **{option: instant})  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="option 'since': 'soon'"):
        Pipeline(spark, tmp_path / "journal", tmp_path / "new", since="soon")
    # Nothing of that has touched the tables, and they are free for the next one.
    with Pipeline(spark, tmp_path / "journal", tmp_path / "tables", since=at(3)) as pipeline:
        pipeline.run_once()
        with pytest.raises(NotTables, match="another pipeline writes to"):
            Pipeline(spark, tmp_path / "journal", tmp_path / "tables", until=at(30))
    assert seqs(spark, tmp_path / "tables") == list(range(1, 21))


def watched(begun: threading.Event, make: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Tell that a batch has begun, and make it."""
    begun.set()
    return make(*given, **options)


def test_a_stop_in_the_first_batch(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop in the midst of a batch waits for it and raises nothing; one that breaks into it loses nothing."""
    log = make_log(random.Random(5), 300)
    write_log(tmp_path / "journals", log)
    received: list[Batch] = []
    for at_once in (True, False):
        begun = threading.Event()
        with Pipeline(
            spark, tmp_path / "journals" / "*", tmp_path / "tables", batch_events_max=60, on_batch=received.append
        ) as pipeline:
            monkeypatch.setattr("jetbus.spark.pipeline.make_batch", partial(watched, begun, make_batch))
            pipeline.start(every_s=0.1)
            assert begun.wait(WITHIN_S)
            pipeline.stop(at_once=at_once)
            assert pipeline.wait()
            # What is broken into may still just come to its end.
            assert len(received) in ((0, 1) if at_once else (1,))
            received.clear()
    with Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables") as pipeline:
        pipeline.run_once()
    assert_same("events", rows_of(Tables(spark, tmp_path / "tables").frame("events")), reference.events(log))


def test_what_ends_a_run_is_told_in_its_own_words(spark: SparkSession, tmp_path: Path) -> None:
    """A journal that was replaced by another one ends the run with a sentence about it, not with Spark's."""
    write_events(tmp_path / "journal", numbers(20), bus="plant")
    with Pipeline(spark, tmp_path / "journal", tmp_path / "tables") as pipeline:
        pipeline.run_once()
    write_events(tmp_path / "other", numbers(5), bus="plant")
    with (
        pytest.raises(DataLoss, match=r"^the journal of bus 'plant' ends with event 5, but event 20 was read before"),
        Pipeline(spark, tmp_path / "other", tmp_path / "tables") as pipeline,
    ):
        pipeline.run_once()


def test_many_small_journals(spark: SparkSession, tmp_path: Path) -> None:
    """The journals of hundreds of devices, found by one glob, are one set of tables."""
    for number in range(DEVICES):
        bus = f"device{number:03}"
        write_events(
            tmp_path / "journals" / bus, [Event(bus, 1, BEGIN_US, "change", "state", "n", "1", "d#1")], bus=bus
        )
    buses = OpenBuses(read_options(where([f"{tmp_path}/journals/*"])))
    assert buses.behind({"device000": 1}) == DEVICES - 1
    with Pipeline(spark, tmp_path / "journals" / "*", tmp_path / "tables") as pipeline:
        pipeline.run_once()
        assert pipeline.store.progress.seqs == {f"device{number:03}": 1 for number in range(DEVICES)}
    found = Tables(spark, tmp_path / "tables")
    assert len(found.files("events")) <= BUNDLES_MIN
    events = found.frame("events")
    assert events.select("bus").distinct().count() == events.count() == DEVICES
