"""The pipeline: a stream of events into tables, to the end of what there is or for ever.

    pipeline = Pipeline(spark, "/var/lib/jet/journal", "/var/lib/jet/tables")
    pipeline.run_once()

    with Pipeline(spark, "jet://plant", "/var/lib/jet/tables", publish="spark/plant") as pipeline:
        pipeline.start()
        pipeline.wait()

Each batch of events is written first, then read by the stages, and everything that came of it is committed at once
together with the seq of the last event. Whatever is killed at whatever moment, the next run goes on after the last
commit: events that are in the tables are not taken again, also if Spark's checkpoint is lost.

Tables have no holes: they begin somewhere and go on from there. So ``since`` is for new tables, and ``until`` is where
a run ends and the next one goes on.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jetbus.journal.errors import BadInstant
from jetbus.journal.instants import read_instant, write_instant
from jetbus.peer.address import read_url
from jetbus.spark import tables
from jetbus.spark.alarms import Alarm, check_alarms, read_alarms
from jetbus.spark.batch import run_stages
from jetbus.spark.buses import OpenBuses
from jetbus.spark.clock import Clock, clock_of
from jetbus.spark.errors import BadOption, DataLoss, JetSparkError
from jetbus.spark.options import Daemon, read_options
from jetbus.spark.own_stages import OwnStage, know_tables, read_stages, remember_tables
from jetbus.spark.queries import first_sentence
from jetbus.spark.showing import Showing
from jetbus.spark.store import Store

__all__ = ["Batch", "Pipeline", "where"]

BATCH_EVENTS_MAX = 1_000_000
"""Events of one batch, at the most, unless told otherwise."""
EVERY_S = 1.0
LOOK_S = 1
"""How often a running pipeline is looked at, to see whether it has ended."""

BUSES_IN_PLAN = 16
"""So many buses are looked up by conditions; joining with the list of more is a job of its own."""

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
        publish_url: str | Daemon | None = None,
        query_groups: Sequence[str] = (),
        **options: str,
    ) -> None:
        """``journal`` is a directory, a glob, the address of a daemon, or several of one kind.

        ``publish`` is where on the bus states tell of the pipeline while it runs, at the daemon that is read unless
        ``publish_url`` says which, and methods answer questions to members of ``query_groups`` or, without any, to
        everybody. ``on_batch`` is called when a batch has been committed. ``options`` are those of
        format ``jet``; instants among them are by the clock of now.
        """
        self._spark = spark
        self._journals = [str(one) for one in ([journal] if isinstance(journal, str | Path) else journal)]
        self._alarms: tuple[Alarm, ...] = () if alarm_file is None else read_alarms(alarm_file)
        check_alarms(self._alarms, spark)
        know_tables(Path(directory))
        self._own: tuple[OwnStage, ...] = () if stage_file is None else read_stages(stage_file, spark)
        self._options = {**_fixed(options), "maxEventsPerBatch": str(batch_events_max), **where(self._journals)}
        self._range = read_options(self._options)
        self._on_batch = on_batch
        self._prefix, self._query_groups = publish, tuple(query_groups)
        self._daemon = None if publish is None else _publish_to(publish_url, self._options)
        self._showing: Showing | None = None
        self._sources: OpenBuses | None = None
        self._query: StreamingQuery | None = None
        self._problem: BaseException | None = None
        self._turn = threading.Condition()
        self._making = self._stopping = False
        self.store = Store(directory)
        try:
            self._check_range()
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
        self.behind()  # what is wrong with the journals is told before anything is on the bus
        self._showing = Showing(self._daemon, self._prefix, self._own, self._query_groups)
        try:
            self._showing.begin(self._spark, self.store.directory, self.store.manifest)
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
        self._problem, self._stopping = None, False
        writer = self._stream().writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self._checkpoint()))

    def _checkpoint(self) -> Path:
        """Where Spark keeps how far it is.

        With ``until`` it walks over events that are left for the next run: nobody else may go on from there.
        """
        if self._range.until_us is None:
            return self.store.checkpoint
        own = self.store.directory / "checkpoint" / "until"
        shutil.rmtree(own, ignore_errors=True)
        return own

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
            if self._stopping:
                return True  # Spark was interrupted, which is how a query is stopped
            if self._problem is not None:
                raise self._problem from problem
            raise _explained(problem) from problem
        if ended:
            self._hide()
        return ended

    def follow(self, stops: Callable[[], int]) -> None:
        """Wait for the end, or until told to stop: once is after the batch that is being made, twice is at once."""
        while not stops() and not self.wait(LOOK_S):
            pass
        stopping = threading.Thread(target=self.stop)
        stopping.start()
        while stopping.is_alive():
            stopping.join(LOOK_S / 4)
            if stops() > 1:
                self.stop(at_once=True)

    def stop(self, *, at_once: bool = False) -> None:
        """Stop after the batch that is being made, or in the midst of it; the next run makes it then."""
        with self._turn:
            failed = self._problem is not None
            self._stopping = not failed
            if not at_once:
                self._turn.wait_for(lambda: not self._making)
        query = self._query
        if query is not None and query.isActive:
            query.stop()
        with self._turn:
            self._turn.wait_for(lambda: not self._making)
        self._hide()

    def close(self) -> None:
        """Stop, and let another pipeline write to the tables."""
        self.stop()
        self.store.close()

    # -- one batch

    def _take(self, rows: DataFrame, _number: int) -> None:
        with self._turn:
            if self._stopping:
                # To return would tell Spark that the batch is in the tables.
                raise JetSparkError("the pipeline was stopped before this batch")
            self._making = True
        try:
            self._make(rows)
        except BaseException as problem:
            self._problem = problem
            raise
        finally:
            with self._turn:
                self._making = False
                self._turn.notify_all()

    def _make(self, rows: DataFrame) -> None:
        begun_s = time.monotonic()
        store, spark = self.store, rows.sparkSession
        counted = store.stage_events(tables.events(_after(rows, store.manifest.seqs)))
        if not counted:
            return
        events = store.staged(spark, "events", "events")
        clock = clock_of(counted, events, store.manifest.clock_us)
        own = {stage.name: stage.stage for stage in self._own}
        ran = run_stages(store, events, clock, self._alarms, own)
        showing = self._showing
        shown = None if showing is None else showing.made(store.staging)
        store.commit(["events", *ran], clock.seqs, clock.now)
        batch = self._told(clock, time.monotonic() - begun_s)
        if showing is not None and shown is not None:
            showing.committed(shown, batch, self.behind())
        store.merge()

    def behind(self) -> int:
        """How many events there are now that the tables are to have and have not."""
        if self._sources is None:
            self._sources = OpenBuses(self._range)
        return self._sources.behind(self.store.manifest.seqs)

    def _check_range(self) -> None:
        """Refuse a range that would leave a hole in the tables, or that lies before their end."""
        since_us, until_us, clock_us = self._range.since_us, self._range.until_us, self.store.manifest.clock_us
        if not clock_us:
            return
        bus, now_us = min(clock_us.items(), key=lambda told: told[1])
        at = f"the tables in {self.store.directory} have bus {bus!r} up to {write_instant(now_us)}"
        if since_us is not None and since_us > now_us:
            raise BadOption("since", f"{at}; events between would be missing: leave since out, or take a new directory")
        if until_us is not None and until_us <= now_us:
            raise BadOption("until", f"{at}, which is not before until; take a new directory for an earlier time")

    def _told(self, clock: Clock, seconds: float) -> Batch:
        manifest = self.store.manifest
        events = sum(clock.counts.values())
        lag_s = max(0.0, time.time() - max(clock.now.values()) / 1e6)
        log.info("batch %d: %d events in %.2f s", manifest.batch, events, seconds)
        batch = Batch(manifest.batch, events, seconds, dict(manifest.seqs), lag_s)
        if self._on_batch is not None:
            self._on_batch(batch)
        return batch


def _fixed(options: dict[str, str]) -> dict[str, str]:
    """The same options with instants that stay: ``-1h`` would be another one in every task."""
    fixed = dict(options)
    for name in ("since", "until"):
        if name in fixed:
            try:
                fixed[name] = write_instant(read_instant(fixed[name]))
            except BadInstant as problem:
                raise BadOption(name, str(problem)) from problem
    return fixed


def where(journals: Sequence[str]) -> dict[str, str]:
    """The options of format ``jet`` that say where journals are: folders and globs, or daemons."""
    urls = [one for one in journals if "://" in one and not one.startswith("file:")]
    if urls and len(urls) < len(journals):
        raise BadOption("journal", "folders and daemons cannot be read by one pipeline; give only the one or the other")
    return {"url" if urls else "paths": json.dumps(list(journals))}


_OWN_ERROR = re.compile(r"jetbus\.[\w.]+\.(\w+): (.+)")


def _explained(problem: Exception) -> Exception:
    """What ended a query, in the words of the one who said so first; Spark wraps it in its own."""
    if not isinstance(problem, StreamingQueryException):
        return problem
    found = _OWN_ERROR.findall(str(problem))
    kind, sentence = found[-1] if found else ("", f"Spark has ended the run: {first_sentence(problem)}")
    return DataLoss(sentence) if kind == "DataLoss" else JetSparkError(sentence)


def _publish_to(url: str | Daemon | None, options: dict[str, str]) -> Daemon:
    """The daemon to publish at: the one that is told, the only one that is read, or that of JET_URL."""
    if isinstance(url, Daemon):
        return url
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
    if len(seqs) <= BUSES_IN_PLAN:
        done: Column = F.lit(None).cast("bigint")
        for bus, seq in seqs.items():
            done = F.when(F.col("bus") == bus, F.lit(seq)).otherwise(done)
        return rows.where(F.coalesce(F.col("seq") > done, F.lit(True)))
    table = pa.table({"bus": list(seqs), "done": pa.array(seqs.values(), pa.int64())})
    joined = rows.join(F.broadcast(rows.sparkSession.createDataFrame(table)), "bus", "left")
    return joined.where(F.coalesce(F.col("seq") > F.col("done"), F.lit(True))).drop("done")
