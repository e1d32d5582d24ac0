"""The pipeline: a stream of events into tables, to the end of what there is or for ever.

    pipeline = Pipeline(spark, "/var/lib/jet/journal", "/var/lib/jet/tables")
    pipeline.run_once()

    with Pipeline(spark, "jet://plant", "/var/lib/jet/tables", publish="spark/plant") as pipeline:
        pipeline.start()
        pipeline.wait()

Each batch of events is written first, then read by the stages, and everything that came of it is committed at once
together with the seq of the last event. Whatever is killed at whatever moment, the next run goes on after the last
commit: events that are in the tables are not taken again, also if Spark's checkpoint is lost.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jetbus.peer.address import read_url
from jetbus.spark import tables
from jetbus.spark.alarms import Alarm, check_alarms, read_alarms
from jetbus.spark.batch import run_stages
from jetbus.spark.buses import OpenBuses
from jetbus.spark.clock import Clock, read_clock
from jetbus.spark.errors import BadOption, JetSparkError
from jetbus.spark.options import Daemon, read_options
from jetbus.spark.own_stages import OwnStage, know_tables, read_stages, remember_tables
from jetbus.spark.showing import Showing
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
    """Events of some journals, in folders or behind daemons, into the tables of a directory."""

    def __init__(
        self,
        spark: SparkSession,
        journal: str | Path | Sequence[str | Path],
        directory: str | Path,
        *,
        alarm_file: str | Path | None = None,
        stage_file: str | Path | None = None,
        batch_events_max: int = BATCH_EVENTS_MAX,
        on_batch: Callable[[Batch], None] | None = None,
        publish: str | None = None,
        publish_url: str | None = None,
        **options: str,
    ) -> None:
        """``journal`` is a directory, a glob, the address of a daemon, or several of one kind.

        ``publish`` is where on the bus states tell of the pipeline while it runs, at the daemon that is read unless
        ``publish_url`` says which. ``on_batch`` is called when a batch has been committed. ``options`` are those of
        format ``jet``.
        """
        self._spark = spark
        self._journals = [str(one) for one in ([journal] if isinstance(journal, str | Path) else journal)]
        self._alarms: tuple[Alarm, ...] = () if alarm_file is None else read_alarms(alarm_file)
        check_alarms(self._alarms, spark)
        know_tables(Path(directory))
        self._own: tuple[OwnStage, ...] = () if stage_file is None else read_stages(stage_file, spark)
        self._options = {**options, "maxEventsPerBatch": str(batch_events_max), **_where(self._journals)}
        self._on_batch = on_batch
        self._prefix = publish
        self._daemon = None if publish is None else _publish_to(publish_url, self._options)
        self._showing: Showing | None = None
        self._sources: OpenBuses | None = None
        self._query: StreamingQuery | None = None
        self._problem: BaseException | None = None
        self.store = Store(directory)
        try:
            remember_tables(self.store.directory, self._own)
        except BaseException:
            self.store.close()
            raise

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
        self._show()
        try:
            self._query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every)).start()
        except BaseException:
            self._hide()
            raise

    def _show(self) -> None:
        """Begin to publish, if that is wanted."""
        if self._prefix is None or self._daemon is None:
            return
        self._hide()
        self._sources = OpenBuses(read_options(self._options))
        self._sources.ends()
        self._showing = Showing(self._daemon, self._prefix, self._own)
        try:
            self._showing.begin(self.store.directory, self.store.manifest)
        except BaseException:
            self._hide()
            raise

    def _hide(self) -> None:
        """Take what was published off the bus."""
        showing, sources = self._showing, self._sources
        self._showing = self._sources = None
        for one in (showing, sources):
            if one is not None:
                one.close()

    def _writer(self) -> DataStreamWriter:
        if self._query is not None and self._query.isActive:
            raise JetSparkError("this pipeline is running already; stop it first")
        self._problem = None
        writer = self._stream().writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self.store.checkpoint))

    def _stream(self) -> DataFrame:
        seqs = self.store.manifest.seqs
        start = {"start": json.dumps({bus: seq + 1 for bus, seq in seqs.items()})} if seqs else {}
        return self._spark.readStream.format("jet").options(**{**self._options, **start}).load()

    def wait(self, timeout_s: int | None = None) -> bool:
        """Wait for the end; whether it has come. Raises what ended the run, if it was an error."""
        query = self._query
        if query is None:
            return True
        try:
            ended = query.awaitTermination(timeout_s) in (None, True)
        except Exception as problem:
            self._hide()
            if self._problem is not None:
                raise self._problem from problem
            raise
        if ended:
            self._hide()
        return ended

    def stop(self) -> None:
        """Stop after the batch that is being made."""
        query = self._query
        if query is not None and query.isActive:
            query.stop()
        self._hide()

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
        own = {stage.name: stage.stage for stage in self._own}
        ran = run_stages(store, events, clock, self._alarms, own)
        showing = self._showing
        shown = None if showing is None else showing.made(store.staging)
        store.commit(["events", *ran], clock.seqs, clock.now)
        batch = self._told(clock, time.monotonic() - begun_s)
        if showing is not None and shown is not None:
            showing.committed(shown, batch, self._behind())
        store.merge(spark)

    def _behind(self) -> int:
        """How many events there are that the tables have not."""
        ends = {} if self._sources is None else self._sources.ends()
        return sum(max(0, last - self.store.manifest.seqs.get(name, 0)) for name, last in ends.items())

    def _told(self, clock: Clock, seconds: float) -> Batch:
        manifest = self.store.manifest
        events = sum(clock.counts.values())
        lag_s = max(0.0, time.time() - max(clock.now.values()) / 1e6)
        log.info("batch %d: %d events in %.2f s", manifest.batch, events, seconds)
        batch = Batch(manifest.batch, events, seconds, dict(manifest.seqs), lag_s)
        if self._on_batch is not None:
            self._on_batch(batch)
        return batch


def _where(journals: Sequence[str]) -> dict[str, str]:
    """The options that say where the journals are."""
    urls = [one for one in journals if "://" in one and not one.startswith("file:")]
    if urls and len(urls) < len(journals):
        raise BadOption("journal", "folders and daemons cannot be read by one pipeline; give only the one or the other")
    return {"url" if urls else "paths": json.dumps(list(journals))}


def _publish_to(url: str | None, options: dict[str, str]) -> Daemon:
    """The daemon to publish at: the one that is told, the only one that is read, or that of JET_URL."""
    daemons = read_options(options).daemons
    if url is None and len(daemons) == 1:
        return daemons[0]
    if url is None and daemons:
        raise BadOption("publish_url", "several daemons are read; say at which one to publish")
    return Daemon(str(read_url(url)) if url is None else url, options.get("user"), options.get("password"))


def _after(rows: DataFrame, seqs: dict[str, int]) -> DataFrame:
    """The events that are not in the tables yet: all of them, unless a checkpoint was lost or is behind."""
    if not seqs:
        return rows
    done = rows.sparkSession.createDataFrame(list(seqs.items()), "bus string, done bigint")
    fresh = F.coalesce(F.col("seq") > F.col("done"), F.lit(True))
    return rows.join(F.broadcast(done), "bus", "left").where(fresh).drop("done")
