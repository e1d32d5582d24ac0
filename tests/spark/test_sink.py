"""Spark to the bus: set requests and published states, seen by real peers."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

import jetbus
from jetbus.spark import BadOption, publish
from jetbus.testing import running_daemon
from support.spark.journals import numbers, write_events
from support.spark.waits import WITHIN_S, run_to_end, until_gone


def test_rows_become_set_requests(spark: SparkSession) -> None:
    """Rows are set in parallel; failed ones are named, and the others are set all the same."""
    got: dict[str, Any] = {}
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as owner:
        for n in range(40):
            owner.add_state(f"s/{n}", None, on_set=partial(got.__setitem__, f"s/{n}"))
        owner.add_state("fixed", 1)
        rows = [*((f"s/{n}", f'{{"n":{n}}}') for n in range(40)), ("fixed", "2"), ("nobody", "3"), ("s/0", "{no json")]
        frame = spark.createDataFrame(rows, "path string, value string").repartition(2)
        write = frame.write.format("jet").option("url", daemon.url).mode("append")
        with pytest.raises(Exception, match="3 of 43 rows could not be set") as caught:
            write.save()
        for path in ("fixed: ", "nobody: ", "s/0: the value '{no json' is not JSON"):
            assert path in str(caught.value)
        assert got == {f"s/{n}": {"n": n} for n in range(40)}
        write.option("onFailure", "ignore").save()
        typed = spark.createDataFrame([("s/1", 2.5)], "path string, value double")
        typed.write.format("jet").option("url", daemon.url).mode("append").save()
        assert got["s/1"] == 2.5


def test_a_stream_of_rows_becomes_set_requests(spark: SparkSession, tmp_path: Path) -> None:
    """A stream from a journal sets states on a bus."""
    write_events(tmp_path / "journal", numbers(14), bus="plant")
    got: dict[str, set[int]] = {f"n/{n}": set() for n in range(7)}
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as owner:
        for path, values in got.items():
            owner.add_state(path, None, on_set=values.add)
        stream = spark.readStream.format("jet").load(str(tmp_path / "journal")).select("path", "value")
        run_to_end(stream.writeStream.format("jet").option("url", daemon.url), tmp_path / "checkpoint")
    assert got == {f"n/{n % 7}": {n, n + 7} for n in range(1, 8)}


WRONG: dict[str, tuple[str, dict[str, str], str]] = {
    "no url": ("path string, value string", {}, "give either a journal"),
    "no path": ("key string, value string", {"url": "URL"}, "there is no column 'path'"),
    "path is a number": ("path int, value string", {"url": "URL"}, "path is a int; it must be a string"),
    "nobody there": ("path string, value string", {"url": "jet://127.0.0.1:1"}, "option 'url'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows_are_refused_before_the_job(spark: SparkSession, case: str) -> None:
    """Missing columns, a missing address and a daemon that is not there are named before anything is set."""
    schema, options, message = WRONG[case]
    with running_daemon() as daemon:
        made = {name: daemon.url if text == "URL" else text for name, text in options.items()}
        frame = spark.createDataFrame([], schema)
        with pytest.raises(Exception, match="option") as caught:
            frame.write.format("jet").options(**made).mode("append").save()
    assert message in str(caught.value)


def test_rows_are_published_as_states(spark: SparkSession) -> None:
    """Rows are states for others to fetch until they are closed; the columns besides path are the value."""
    frame = spark.sql("select 'a' as path, 1 as count, 2.5 as mean union all select 'b/c', 3, null")
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as watcher:
        with publish(frame, url=daemon.url, prefix="spark/now"):
            assert watcher.get_all("spark/**") == {
                "spark/now/a": {"count": 1, "mean": 2.5},
                "spark/now/b/c": {"count": 3, "mean": None},
            }
        until_gone(watcher, "spark/**")
        with pytest.raises(BadOption, match="there is no column 'path'"):
            publish(frame.drop("path"), url=daemon.url, prefix="x")
    with pytest.raises(BadOption, match="option 'url'"):
        publish(frame, url=daemon.url, prefix="x")


def test_a_stream_is_published_as_it_goes(spark: SparkSession, tmp_path: Path) -> None:
    """A published stream changes its states with every batch, each value once, and takes them away at its end."""
    write_events(tmp_path / "journal", numbers(7), bus="plant")
    stream = (
        spark.readStream.format("jet").load(str(tmp_path / "journal")).selectExpr("path", "cast(value as int) as value")
    )
    received: list[tuple[str, str, Any]] = []
    both = threading.Event()
    gone = threading.Event()

    def take(event: jetbus.Event) -> None:
        received.append((event.kind, event.path, event.value))
        if event.value == 14:
            both.set()
        if sum(kind == "remove" for kind, _, _ in received) == 7:
            gone.set()

    with running_daemon() as daemon, jetbus.Peer(daemon.url) as watcher:
        watcher.fetch("spark/**", take, policy="every")
        with publish(stream, url=daemon.url, prefix="spark", every_s=0.1):
            watcher.wait_for("spark/n/0", timeout_s=WITHIN_S)
            write_events(tmp_path / "journal", numbers(14)[7:], bus="plant")
            assert both.wait(WITHIN_S)
        assert gone.wait(WITHIN_S)
    changes = [(kind, value) for kind, _, value in received if kind != "remove"]
    assert sorted(changes) == [*(("add", n) for n in range(1, 8)), *(("change", n) for n in range(8, 15))]


def test_an_aggregate_is_published_as_it_changes(spark: SparkSession, tmp_path: Path) -> None:
    """A published aggregate needs no watermark: each batch changes its states, by the order of its windows."""
    write_events(tmp_path / "journal", numbers(70), bus="plant")
    highest = (
        spark.readStream.format("jet")
        .load(str(tmp_path / "journal"))
        .groupBy("path", F.window("ts", "10 milliseconds"))
        .agg(F.max(F.col("value").cast("int")).alias("top"))
    )
    received: list[int] = []
    newest = threading.Event()

    def take(event: jetbus.Event) -> None:
        if event.kind != "remove":
            received.append(event.value["top"])
            if event.value["top"] == 70:
                newest.set()

    with running_daemon() as daemon, jetbus.Peer(daemon.url) as watcher:
        watcher.fetch("spark/n/0", take, policy="every")
        # Spark gives the rows of an aggregate in any order; here in one that is wrong.
        with publish(highest, url=daemon.url, prefix="spark", rows=lambda batch: batch.orderBy(F.desc("window"))):
            assert newest.wait(WITHIN_S)
            assert watcher.get("spark/n/0")["top"] == 70
    assert received == sorted(received)
    assert len(received) > 1


def test_rows_with_a_time_are_set_in_its_order(spark: SparkSession, tmp_path: Path) -> None:
    """Whichever tasks have the rows of a batch, its sets come in order of time; so do those of an aggregate."""
    write_events(tmp_path / "journal", numbers(70), bus="plant")
    got: list[int] = []
    with running_daemon() as daemon, jetbus.Peer(daemon.url) as owner:
        owner.add_state("s", None, on_set=got.append)
        owner.add_state("n/0", None, on_set=got.append)
        begin = datetime(2026, 3, 1, tzinfo=UTC)
        rows = [("s", n, begin + timedelta(seconds=n)) for n in range(60, 0, -1)]
        frame = spark.createDataFrame(rows, "path string, value int, ts timestamp").repartition(4)
        frame.write.format("jet").option("url", daemon.url).mode("append").save()
        assert got == list(range(1, 61))
        got.clear()
        highest = (
            spark.readStream.format("jet")
            .options(equals="n/0")
            .load(str(tmp_path / "journal"))
            .groupBy("path", F.window("ts", "10 milliseconds"))
            .agg(F.max(F.col("value").cast("int")).alias("value"))
        )
        writer = highest.repartition(4, "value").writeStream.format("jet").outputMode("complete")
        run_to_end(writer.option("url", daemon.url), tmp_path / "checkpoint")
    assert got == sorted(got)
    assert got[-1] == 70
    assert len(got) > 1
