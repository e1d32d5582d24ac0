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
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from jetbus.journal.errors import BadInstant
from jetbus.journal.instants import read_instant, write_instant
from jetbus.peer.address import read_url
from jetbus.spark.alarms import Watching, check_alarms, read_alarms
from jetbus.spark.batch import FEW_EVENTS, run_stages, take_events
from jetbus.spark.buses import OpenBuses, SeqRange, open_buses, start_of
from jetbus.spark.clock import Clock, clock_after
from jetbus.spark.errors import BadOption, JetSparkError
from jetbus.spark.offsets import Seqs, ends_of
from jetbus.spark.options import Daemon, read_options
from jetbus.spark.own_stages import OwnStage, read_stages
from jetbus.spark.parts import PART_EVENTS
from jetbus.spark.queries import explained
from jetbus.spark.remote import let_go
from jetbus.spark.schemas import JOURNAL
from jetbus.spark.showing import Showing
from jetbus.spark.source import EventStreamReader, closing_all
from jetbus.spark.store import Store

__all__ = ["Batch", "Pipeline", "where"]

BATCH_EVENTS_MAX = 1_000_000
"""Events of one batch, at the most, unless told otherwise."""
EVERY_S = 1.0
LOOK_S = 1
"""How often a running pipeline is looked at, to see whether it has ended."""

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
        few_events: int = FEW_EVENTS,
        on_batch: Callable[[Batch], None] | None = None,
        publish: str | None = None,
        publish_url: str | Daemon | None = None,
        query_groups: Sequence[str] = (),
        **options: str,
    ) -> None:
        """``journal`` is a directory, a glob, the address of a daemon, or several of one kind.

        ``publish`` is where on the bus states tell of the pipeline while it runs, at the daemon that is read unless
        ``publish_url`` says which, and methods answer questions to members of ``query_groups`` or, without any, to
        everybody. ``on_batch`` is called when a batch has been committed. Batches of no more than ``few_events``
        are made by the driver itself. ``options`` are those of format ``jet``; instants among them are by the clock of
        now.
        """
        self._spark = spark
        self._journals = [str(one) for one in ([journal] if isinstance(journal, str | Path) else journal)]
        self._watching: Watching | None = None
        if alarm_file is not None:
            wanted = read_alarms(alarm_file)
            check_alarms(wanted, spark)
            self._watching = Watching(wanted)
        self._own: tuple[OwnStage, ...] = () if stage_file is None else read_stages(stage_file, spark)
        sizes = {"eventsPerPartition": str(PART_EVENTS), "maxEventsPerBatch": str(batch_events_max)}
        self._options = {**sizes, **_fixed(options), **where(self._journals)}
        self._range = read_options(self._options)
        self._reader = EventStreamReader(self._range, tuple(column.name for column in JOURNAL))
        self._log, self._begin = Path(), Seqs()
        self._few_events = few_events
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
            self.store.add_tables({own.name: own.table for own in self._own})
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
        self._reader.stop()
        if self._range.daemons:
            let_go(self._range.daemons)

    def _writer(self) -> DataStreamWriter:
        if self._query is not None and self._query.isActive:
            raise JetSparkError("this pipeline is running already; stop it first")
        self._problem, self._stopping = None, False
        self._log = self._checkpoint()
        self._begin = self._beginning()
        writer = self._stream().writeStream.foreachBatch(self._take)
        return writer.option("checkpointLocation", str(self._log))

    def _checkpoint(self) -> Path:
        """Where Spark keeps how far it is.

        With ``until`` it walks over events that are left for the next run: nobody else may go on from there.
        """
        if self._range.until_us is None:
            return self.store.checkpoint
        own = self.store.directory / "checkpoint" / "until"
        shutil.rmtree(own, ignore_errors=True)
        return own

    def _beginning(self) -> Seqs:
        """The last event of each bus that is not to be read: those of the tables, or what ``start`` says now."""
        if self._range.start == "earliest":
            return dict(self.store.manifest.seqs)
        with closing_all(open_buses(self._range.places)) as buses:
            begin = {name: start_of(bus, self._range.start) for name, bus in buses.items()}
        return begin | self.store.manifest.seqs

    def _stream(self) -> DataFrame:
        start = {"start": json.dumps({bus: seq + 1 for bus, seq in self._begin.items()})} if self._begin else {}
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
            raise explained(problem) from problem
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

    def _take(self, _rows: DataFrame, number: int) -> None:
        with self._turn:
            if self._stopping:
                # To return would tell Spark that the batch is in the tables.
                raise JetSparkError("the pipeline was stopped before this batch")
            self._making = True
        try:
            self._make(number)
        except BaseException as problem:
            self._problem = problem
            raise
        finally:
            with self._turn:
                self._making = False
                self._turn.notify_all()

    def _make(self, number: int) -> None:
        # In the session of the user: to make a frame in the stream's own one would leave that as the active one.
        begun_s = time.monotonic()
        spark, store = self._spark, self.store
        taken = take_events(spark, store, self._reader, self._ranges(number), self._few_events)
        if not taken.counted:
            return
        clock = clock_after(taken.counted, store.manifest.clock_us)
        own = {stage.name: stage.stage for stage in self._own}
        ran = run_stages(spark, store, taken, clock, self._watching, own)
        showing = self._showing
        shown = None if showing is None else showing.made(store.staging)
        store.commit(ran, clock.seqs, clock.now)
        batch = self._told(clock, time.monotonic() - begun_s)
        if showing is not None and shown is not None:
            showing.committed(shown, batch, self.behind())
        store.merge_meanwhile()

    def _ranges(self, number: int) -> list[SeqRange]:
        """The events that a batch of the stream has and the tables have not.

        Spark is not asked for its rows: tasks of ours read these ranges themselves. A batch that is made again, or a
        checkpoint that is behind or lost, finds in the tables how far they are.
        """
        known = (self._begin, ends_of(self._log, number - 1), self.store.manifest.seqs)
        done = {bus: max(seqs.get(bus, 0) for seqs in known) for bus in {bus for seqs in known for bus in seqs}}
        ends = ends_of(self._log, number)
        return self._reader.ranges(done, {bus: max(seq, done.get(bus, 0)) for bus, seq in ends.items()})

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
    if urls:
        return {"url": json.dumps(urls)}
    # Java may have been started in another folder.
    return {"paths": json.dumps([one if one.startswith("file:") else str(Path(one).absolute()) for one in journals])}


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
