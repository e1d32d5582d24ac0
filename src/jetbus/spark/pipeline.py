"""The pipeline: a stream of events into tables, to the end of what there is or for ever.

    pipeline = Pipeline(spark, "/var/lib/jet/journal", "/var/lib/jet/tables")
    pipeline.run_once()

Each batch of events is written first, then read by the stages, and everything that came of it is committed at once
together with the seq of the last event. Whatever is killed at whatever moment, the next run goes on after the last
commit: events that are in the tables are not taken again, also if Spark's checkpoint is lost.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jetbus.spark import stages, tables
from jetbus.spark.alarms import Alarm, alarms, check_alarms, read_alarms
from jetbus.spark.clock import Clock, read_clock
from jetbus.spark.errors import JetSparkError
from jetbus.spark.stages import Stage
from jetbus.spark.store import Store

__all__ = ["Batch", "Pipeline"]

BATCH_EVENTS_MAX = 1_000_000
"""Events of one batch, at the most, unless told otherwise."""
EVERY_S = 1.0
THREADS = 3
"""Stages that run at once; planning one takes as long as running it over few rows."""

log = logging.getLogger("jetbus.spark")


@dataclass(frozen=True)
class Batch:
    """What is told about a batch when it has been committed."""

    number: int
    events: int
    seconds: float
    seqs: dict[str, int]
    """The last event of each bus that is in the tables."""
    lag_s: float
    """How old the newest event is."""


class Pipeline:
    """Events of some journals into the tables of a directory."""

    def __init__(
        self,
        spark: SparkSession,
        journal: str | Path | Sequence[str | Path],
        directory: str | Path,
        *,
        alarm_file: str | Path | None = None,
        batch_events_max: int = BATCH_EVENTS_MAX,
        on_batch: Callable[[Batch], None] | None = None,
        **options: str,
    ) -> None:
        """``options`` are those of format ``jet``; ``on_batch`` is called when a batch has been committed."""
        self._spark = spark
        self._journals = [journal] if isinstance(journal, str | Path) else list(journal)
        self._alarms: tuple[Alarm, ...] = () if alarm_file is None else read_alarms(alarm_file)
        check_alarms(self._alarms, spark)
        self._options = {**options, "maxEventsPerBatch": str(batch_events_max)}
        self._on_batch = on_batch
        self._query: StreamingQuery | None = None
        self._problem: BaseException | None = None
        self.store = Store(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    # -- running

    def run_once(self) -> None:
        """Bring the tables up to what the journals have now."""
        self.start(once=True)
        self.wait()

    def start(self, every_s: float = EVERY_S, *, once: bool = False) -> None:
        """Keep the tables up to date in the background, looking for new events so often, or bring them up once."""
        writer, every = self._writer(), f"{round(every_s * 1000)} milliseconds"
        self._query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)).start()

    def _writer(self) -> DataStreamWriter:
        if self._query is not None and self._query.isActive:
            raise JetSparkError("this pipeline is running already; stop it first")
        self._problem = None
        writer = self._stream().writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self.store.checkpoint))

    def _stream(self) -> DataFrame:
        seqs = self.store.manifest.seqs
        start = {"start": json.dumps({bus: seq + 1 for bus, seq in seqs.items()})} if seqs else {}
        reader = self._spark.readStream.format("jet").options(**{**self._options, **start})
        paths = [str(path) for path in self._journals]
        if len(paths) > 1:
            return reader.option("paths", json.dumps(paths)).load()
        return reader.load(paths[0])

    def wait(self, timeout_s: int | None = None) -> bool:
        """Wait for the end; whether it has come. Raises what ended the run, if it was an error."""
        query = self._query
        if query is None:
            return True
        try:
            ended = query.awaitTermination(timeout_s)
        except Exception as problem:
            if self._problem is not None:
                raise self._problem from problem
            raise
        return ended is None or bool(ended)

    def stop(self) -> None:
        """Stop after the batch that is being made."""
        query = self._query
        if query is not None and query.isActive:
            query.stop()

    def close(self) -> None:
        """Stop, and let another pipeline write to the tables."""
        self.stop()
        self.store.close()

    # -- one batch

    def _take(self, rows: DataFrame, _number: int) -> None:
        try:
            self._make(rows)
        except BaseException as problem:
            self._problem = problem
            raise

    def _make(self, rows: DataFrame) -> None:
        begun_s = time.monotonic()
        store, spark = self.store, rows.sparkSession
        fresh = tables.events(_after(rows, store.manifest.seqs)).withColumn("into", F.lit("events"))
        store.stage(fresh, "events", "events")
        events = store.staged(spark, "events", "events")
        clock = read_clock(events, store.manifest.clock_us)
        if not clock.counts:
            return
        ran = self._run_stages(spark, events, clock)
        store.commit(["events", *ran], clock.seqs, clock.now)
        self._told(clock, time.monotonic() - begun_s)
        store.merge(spark)

    def _run_stages(self, spark: SparkSession, events: DataFrame, clock: Clock) -> list[str]:
        """Run every stage over a batch; gives the names of those that had something to do."""
        chains: list[list[tuple[str, str, Stage]]] = [
            [("history", "history", stages.history), ("rollups", "rollups_1s", stages.rollups)],
            [("availability", "availability", stages.availability)],
        ]
        if clock.requests or self.store.manifest.open.get("requests"):
            chains.append([("requests", "requests", stages.requests)])
        if self._alarms:
            chains.append([("alarms", "alarms", partial(alarms, self._alarms))])

        def run(chain: list[tuple[str, str, Stage]]) -> list[str]:
            source = events
            for name, table, stage in chain:
                self.store.stage(stage(source, self.store.carried(spark, name, table), clock), name, table)
                source = self.store.staged(spark, name, table)
            return [name for name, _, _ in chain]

        with ThreadPoolExecutor(THREADS) as threads:
            return [name for names in threads.map(run, chains) for name in names]

    def _told(self, clock: Clock, seconds: float) -> None:
        manifest = self.store.manifest
        events = sum(clock.counts.values())
        lag_s = max(0.0, time.time() - max(clock.now.values()) / 1e6)
        log.info("batch %d: %d events in %.2f s", manifest.batch, events, seconds)
        if self._on_batch is not None:
            self._on_batch(Batch(manifest.batch, events, seconds, dict(manifest.seqs), lag_s))


def _after(rows: DataFrame, seqs: dict[str, int]) -> DataFrame:
    """The events that are not in the tables yet: all of them, unless a checkpoint was lost or is behind."""
    if not seqs:
        return rows
    done = rows.sparkSession.createDataFrame(list(seqs.items()), "bus string, done bigint")
    fresh = F.coalesce(F.col("seq") > F.col("done"), F.lit(True))
    return rows.join(F.broadcast(done), "bus", "left").where(fresh).drop("done")
