"""Spark over a journal against Spark over Parquet, and the pipeline from end to end; ratios from one run.

    .venv/bin/python bench/spark_bars.py --events 10000000
    .venv/bin/python bench/spark_bars.py --events 50000000 --only pipeline --every 5000000    is the cost flat?
    .venv/bin/python bench/spark_bars.py --only pipeline --paths 1000000                      do many paths end?
    .venv/bin/python bench/spark_bars.py --only pipeline --master 'local[1]'                  the gain of a core

Prints a line per figure. Scans are `noop` writes, so that all columns are really read. Ours and Spark's own run in
turn, five times; the first time is that of a cold Java machine and does not count, of the others the medians do. Trust
the ratios, not the seconds.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from jetbus import journal
from jetbus.spark import Batch, Pipeline, session
from jetbus.spark.schemas import JOURNAL, schema_of
from jetbus.spark.tables import read_journals

PATHS = 1000
RATE_PER_S = 20_000
SEGMENT_BYTES = 4 * 1024 * 1024
BEGIN_US = 1_772_323_200_000_000
ALARMS = """
[alarm.high]
rule = "plant/**"
when = "num > 95"
clear = "num < 90"
hold = "1s"
"""
COLUMNS = "ts timestamp, path string, value string"


def write_journal(directory: Path, events: int, count: int = PATHS) -> None:
    """Write the journal of a plant: by default a thousand sensors, each of which changes twenty times a second."""
    settings = journal.Settings(bus="plant", fsync="never")
    with journal.Writer(directory, settings, now_us=lambda: BEGIN_US) as writer:
        paths = [f"plant/line{n % 10}/machine{n // 10}/sensor" for n in range(count)]
        for path in paths:
            writer.append("add", "state", path, b"0", "plant#1")
        for n in range(events - count):
            if n % 200 == 0:
                writer.now_us = BEGIN_US + n * 1_000_000 // RATE_PER_S
            writer.change(paths[n * 7919 % count], b"%.3f" % (50 + 40 * math.sin(n / 5000) + n % 13), "plant#1")
            if n % 10_000 == 9_999:
                writer.commit()


def begin_segment(directory: Path) -> None:
    """Go on in another segment: the newest one is never compacted, and would be a large part of a short history."""
    settings = journal.Settings(bus="plant", fsync="never", segment_bytes=SEGMENT_BYTES)
    with journal.Writer(directory, settings, now_us=lambda: time.time_ns() // 1000) as writer:
        for _ in range(2):
            writer.append("stop")
            writer.commit()


def timed(action: Callable[[], object]) -> float:
    begun_s = time.perf_counter()
    action()
    return time.perf_counter() - begun_s


def scan(frame: DataFrame) -> None:
    """Read every column of every row."""
    frame.write.format("noop").mode("overwrite").save()


def stream(frame: DataFrame, folder: Path) -> None:
    """Write all there is to Parquet as a stream."""
    place = Path(tempfile.mkdtemp(dir=folder))
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "out"))
    )
    query.awaitTermination()
    shutil.rmtree(place)


def compare(name: str, events: int, rounds: int, jet: Callable[[], object], native: Callable[[], object]) -> None:
    """Run both in turn, once to warm up, and print how they compare."""
    found = [(timed(jet), timed(native)) for _ in range(1 + rounds)][1:]
    jet_s, native_s = (statistics.median(column) for column in zip(*found, strict=True))
    each = ", ".join(f"{theirs / ours:.2f}" for ours, theirs in found)
    print(f"{name:28} {events / jet_s:12,.0f} events/s   {native_s / jet_s:5.2f} of Parquet ({each})", flush=True)


def compare_all(spark: SparkSession, scratch: Path, events: int, rounds: int) -> None:
    directory, parquet = scratch / "journal", scratch / "parquet"
    jet = spark.read.format("jet").load(str(directory))
    jet.write.mode("overwrite").parquet(str(parquet))
    all_columns = schema_of(JOURNAL)
    native = spark.read.schema(all_columns).parquet(str(parquet))
    compare("scan of all columns", events, rounds, partial(scan, jet), partial(scan, native))
    compare(
        "scan of three columns",
        events,
        rounds,
        partial(scan, spark.read.format("jet").schema(COLUMNS).load(str(directory))),
        partial(scan, spark.read.schema(COLUMNS).parquet(str(parquet))),
    )
    compare(
        "AvailableNow to Parquet",
        events,
        rounds,
        partial(stream, spark.readStream.format("jet").load(str(directory)), scratch),
        partial(stream, spark.readStream.schema(all_columns).parquet(str(parquet)), scratch),
    )
    # Whole history of a journal that is compacted but for its newest segment.
    begin_segment(directory)
    journal.compact(directory)
    whole = read_journals(spark, directory)
    compare("scan of compacted history", events, rounds, partial(scan, whole), partial(scan, native))


class Progress:
    """Cost of each stretch of so many events: a line as soon as it is over."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.rates: list[float] = []
        self.events = 0
        self.costs_us: list[float] = []
        """Processor time an event, in microseconds, of each stretch."""
        self._told = 0
        self._used_s, self._at_s = cpu_s(), time.perf_counter()

    def see(self, batch: Batch) -> None:
        self.rates.append(batch.events / batch.seconds)
        self.events += batch.events
        if self.every and self.events - self._told >= self.every:
            used_s, at_s, fresh = cpu_s(), time.perf_counter(), self.events - self._told
            self.costs_us.append((used_s - self._used_s) / fresh * 1e6)
            print(
                f"{f'  up to {self.events:,}':28} {fresh / (at_s - self._at_s):12,.0f} events/s   "
                f"{self.costs_us[-1]:.1f} us of processor per event",
                flush=True,
            )
            self._told, self._used_s, self._at_s = self.events, used_s, at_s


def pipeline(spark: SparkSession, scratch: Path, events: int, batch_events: int, every: int, alarms: str) -> None:
    began_s = cpu_s()
    seen = Progress(every)
    file = scratch / "alarms.toml"
    file.write_text(alarms)
    with Pipeline(
        spark,
        scratch / "journal",
        scratch / "tables",
        alarm_file=file if alarms else None,
        batch_events_max=batch_events,
        on_batch=seen.see,
    ) as running:
        seconds = timed(running.run_once)
    used_s = cpu_s() - began_s
    rates = seen.rates
    print(f"{'all tables, end to end':28} {events / seconds:12,.0f} events/s   in {seconds:.1f} s", flush=True)
    print(
        f"{'  first and last whole batch':28} {rates[0]:12,.0f} and {rates[max(len(rates) - 2, 0)]:,.0f} events/s",
        flush=True,
    )
    print(f"{'  what limits it':28} {limit(events, seconds, used_s)}", flush=True)
    if len(seen.costs_us) > 2:
        _, second, *_, last = seen.costs_us
        later = seen.costs_us[1:]
        print(
            f"{'  after the first stretch':28} {statistics.median(later):12.1f} us of processor per event (median), "
            f"{statistics.mean(later):.1f} (mean)"
        )
        print(f"{'  last stretch to the 2nd':28} {last / second:12.2f}", flush=True)


def cpu_s() -> float:
    """Seconds of processor that this process and all below it have used: Java, and the Python workers below that."""
    ticks = 0
    waiting = [os.getpid()]
    while waiting:
        pid = waiting.pop()
        try:
            ticks += sum(int(part) for part in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:15])
            for task in Path(f"/proc/{pid}/task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def limit(events: int, seconds: float, used_s: float) -> str:
    """Time of the pipeline by purpose: computing, or waiting for a core, a disk, a plan."""
    cores = os.cpu_count() or 1
    busy = used_s / (seconds * cores)
    cause = "the processor" if busy > 0.8 else "waiting: for other programs, the disk, or plans being made"
    at_best = events / used_s * cores
    return (
        f"{cause}; {used_s / events * 1e6:.1f} us of processor per event, {busy:.0%} of {cores} cores; "
        f"{at_best:,.0f} events/s at the most with all of them"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--paths", type=int, default=PATHS, help="states of the plant")
    parser.add_argument("--batch-events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4, help="of each comparison")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--memory", default="4g")
    parser.add_argument("--only", choices=["compare", "pipeline"])
    parser.add_argument("--every", type=int, default=0, help="show what each stretch of so many events costs")
    parser.add_argument("--no-alarms", action="store_true", help="without the alarm on all paths")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="jetbus-spark-"))
    try:
        print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
        seconds = timed(lambda: write_journal(scratch / "journal", given.events, given.paths))
        print(f"{'journal written':28} {given.events / seconds:12,.0f} events/s")
        spark = session(given.master, memory=given.memory)
        if given.only != "compare":
            alarms = "" if given.no_alarms else ALARMS
            pipeline(spark, scratch, given.events, given.batch_events, given.every, alarms)
        if given.only != "pipeline":
            compare_all(spark, scratch, given.events, given.rounds)
        spark.stop()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
