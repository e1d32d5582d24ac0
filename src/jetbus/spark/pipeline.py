"""The pipeline: a stream of events into tables, to the end of what there is or for ever.

    pipeline = Pipeline(spark, "/var/lib/jet/journal", "/var/lib/jet/tables")
    pipeline.run_once()

    with Pipeline(spark, "jet://plant", "/var/lib/jet/tables", publish="spark/plant") as pipeline:
        pipeline.start()
        pipeline.wait()

It is a query of Structured Streaming: format ``jet`` reads, ``foreachBatch`` hands the rows of each batch to ``batch``,
which makes the tables of them. Whatever is killed at whatever moment, the next run goes on after the last batch that
counts: events that are in the tables are not taken again, also if Spark's checkpoint is lost.

Spark ends a query for any failure, also for one that passes: a worker that was slow to start, a disk that is full for
a minute. ``diagnosis`` tells them apart, and a thread of the pipeline starts the query again, after pauses that grow::

    start ──> query ──> ends by itself, or is stopped ──────────────────────────> end
                ^  └──> ends by an error ──> it passes? no ─────────────────────> end, raised by ``wait``
                └──────────── pause <──────── yes: counted, published, logged

Path of batch N, and what happens after a kill behind each step::

    Spark         offset log: N is planned                   N is made over the same events
    batch         alarms as states, Parquet files            the same; files that no commit names do not exist
    store         a commit of each table                     the same; these tables are ahead, see ``store``
    store         a commit of ``batches``: N counts          Spark hands over N again; known events are left out
    publishing    rows as states
    maintenance   carried tables folded, if they have grown
    Spark         commit log: N is done; progress as states  N + 1 is next

Known events can only come with the first batch of a run, so only that one is compared with the tables.

Tables have no holes: they begin somewhere and go on from there. So ``since`` is for new tables, and ``until`` is where
a run ends and the next one goes on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from jetbus.journal.instants import read_instant, write_instant
from jetbus.journal.journal_errors import BadInstant
from jetbus.spark.alarms import Alarm, check_alarms, read_alarms
from jetbus.spark.batch import CommittedBatch, Plan, fold_tables, make_batch
from jetbus.spark.catalog import Tables
from jetbus.spark.diagnosis import JAVA_ERRORS, explain_failure
from jetbus.spark.expectations import Expectation, read_expectations
from jetbus.spark.journals import OpenBuses, open_buses, start_of
from jetbus.spark.location import Location, read_location
from jetbus.spark.maintenance import KEEP_S, TableCare
from jetbus.spark.options import DaemonAddress, read_options
from jetbus.spark.publishing import Publishing
from jetbus.spark.source import closing_all
from jetbus.spark.spark_errors import BadOption, JetSparkError, SparkFailed
from jetbus.spark.spark_session import count_tasks, pipeline_session
from jetbus.spark.store import Store
from jetbus.spark.time_rows import StreamPosition, read_offset
from jetbus.spark.user_stages import OwnStage, read_stages

__all__ = ["Batch", "Pipeline", "where"]

BATCH_EVENTS_MAX = 1_000_000
"""Events of one batch, at the most, by default."""
PART_EVENTS = 250_000
"""Events that one task of a batch reads."""
EVERY_S = 1.0
MERGE_EVERY = 100
"""Small files are merged after so many batches, by default."""
LOOK_S = 1
"""Interval of the check whether a running pipeline has ended."""
PAUSE_S = 1.0
"""Pause before a query is started again after a failure that passes; it doubles until a batch succeeds."""
PAUSE_S_MAX = 60.0
RESTARTS_ONCE_MAX = 5
"""Restarts in a row after which a run to the present end gives up; one that runs on never does."""
LAST_WORD_S = 10
"""Time limit for Spark's report of a query that has ended."""

log = logging.getLogger("jetbus.spark")


@dataclass(frozen=True)
class Batch:
    """Facts about a batch that was committed, as Spark tells them of the query's progress."""

    number: int
    events: int
    seconds: float
    seqs: dict[str, int]
    """The last event of each bus that is in the tables."""
    lag_s: float
    """Age of the newest event."""
    behind: int
    """Events that there were when it ended and that are not in the tables."""
    events_per_s: float
    at: datetime


class Pipeline:
    """Events of some journals, in folders or behind daemons, into the tables of one place."""

    def __init__(
        self,
        spark: SparkSession,
        journal: str | Path | Sequence[str | Path],
        tables: str | Path | Location,
        *,
        alarm_file: str | Path | None = None,
        stage_file: str | Path | None = None,
        expectation_file: str | Path | None = None,
        batch_events_max: int = BATCH_EVENTS_MAX,
        on_batch: Callable[[Batch], None] | None = None,
        publish: str | None = None,
        publish_url: str | DaemonAddress | None = None,
        query_groups: Sequence[str] = (),
        query_open: bool = False,
        storage: Mapping[str, str] | None = None,
        checkpoint: str | None = None,
        merge_every: int = MERGE_EVERY,
        keep_s: float | None = KEEP_S,
        **options: str,
    ) -> None:
        """``journal`` is a directory, a glob, the address of a daemon, or several of one kind.

        ``tables`` is a folder or a URI, and so is ``checkpoint``, by default below it; ``storage`` has credentials.
        ``publish`` is where on the bus states tell of the pipeline while it runs, at the daemon that is read unless
        ``publish_url`` says which; questions are answered to members of ``query_groups``, or to everybody with
        ``query_open``. ``on_batch`` is called when a batch has been committed. Small files are merged after
        ``merge_every`` batches, never with 0. Files that only versions older than ``keep_s`` need are removed, never
        with None. ``options`` are those of format ``jet``; instants among them are by the clock of now.
        """
        if is_remote():
            raise JetSparkError(
                "a pipeline needs a session in its own process, because Spark Connect would run it beside the server; "
                "start it there, with jet pipeline run --master or spark-submit, and read its tables here, by attach"
            )
        self.spark = pipeline_session(spark)
        """The session in which its query runs, with settings of its own; listeners to the query are added here."""
        self._journals = [str(one) for one in ([journal] if isinstance(journal, str | Path) else journal)]
        alarms = _checked_alarms(alarm_file, self.spark)
        own = () if stage_file is None else read_stages(stage_file, self.spark)
        expectations = _checked_expectations(expectation_file, self.spark, own)
        sizes = {"eventsPerPartition": str(PART_EVENTS), "maxEventsPerBatch": str(batch_events_max), "clock": "true"}
        self._options = {**sizes, **_fix_instants(options), **where(self._journals)}
        self._range = read_options(self._options)
        self._on_batch = on_batch
        self._prefix, self._query_groups, self._query_open = publish, tuple(query_groups), query_open
        self._daemon = None if publish is None else _publish_to(publish_url, self._options)
        self._publishing: Publishing | None = None
        self._sources: OpenBuses | None = None
        self._query: StreamingQuery | None = None
        self._checkpoint_uri = ""
        self.restarts = 0
        """Times that the query was started again after a failure that passes."""
        self._thread: threading.Thread | None = None
        self._ended, self._stop_asked = threading.Event(), threading.Event()
        # What a batch has raised, which Spark wraps, and what has ended the run.
        self._problem: BaseException | None = None
        self._failure: BaseException | None = None
        # The first guards the two flags below, the second the open journals, which batches and callers count.
        self._turn, self._looking = threading.Condition(), threading.Lock()
        self._making = self._stopping = False
        # Java may have been started in another folder.
        self._checkpoint = None if checkpoint is None else read_location(checkpoint, option="checkpoint").uri
        location = read_location(tables, storage)
        location.configure(self.spark)
        self._care = TableCare(location, merge_every, keep_s)
        self.store = Store(location)
        try:
            self._check_range()
            self.store.add_tables({name: table for stage in own for name, table in stage.tables.items()})
        except BaseException:
            self.store.close()
            raise
        self._plan = Plan(
            self.spark,
            count_tasks(spark),
            self.store,
            alarms,
            own,
            expectations,
            # Only a stream of every event has seqs without holes, by which ``batch`` finds out that some are missing.
            sees_all=self._range.rule is None and self._range.fail_on_data_loss and self._range.since_us is None,
            has_end=self._range.until_us is not None,
            on_alarms=self._show_alarms,
            buses=self._list_buses,
            prefix=None if publish is None else publish.strip("/"),
        )
        self._listener = _Listener(self)
        self._made: dict[int, CommittedBatch] = {}

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
        if self._thread is not None and self._thread.is_alive():
            raise JetSparkError("this pipeline is running already; stop it first")
        self._query, self._problem, self._failure, self._stopping = None, None, None, False
        self._checkpoint_uri, self.restarts = self._find_checkpoint(), 0
        self._ended.clear()
        self._stop_asked.clear()
        # Before the query, so that a prefix that is taken ends the run before a batch is made.
        self._publish()
        # Before the query starts, or its first reports would be missed.
        self.spark.streams.addListener(self._listener)
        trigger: dict[str, Any] = (
            {"availableNow": True} if once else {"processingTime": f"{round(every_s * 1000)} milliseconds"}
        )
        try:
            failure = self._start_query(trigger)
            if failure is not None and not _passes(failure):
                raise failure
        except BaseException:
            self._end()
            raise
        self._thread = threading.Thread(
            target=self._keep_running, args=(trigger, failure, once), name="jetbus-query", daemon=True
        )
        self._thread.start()

    def _start_query(self, trigger: Mapping[str, Any]) -> BaseException | None:
        """Start the query; return the error that Spark has with it."""
        try:
            writer = (
                self._stream()
                .writeStream.foreachBatch(self._process_batch)
                .queryName(f"jetbus {self.store.id}")
                .option("checkpointLocation", self._checkpoint_uri)
            )
            with self._turn:
                # From here on ``stop`` finds the query, and stops it.
                if not self._stopping:
                    self._is_first = True
                    self._listener.begin()
                    self._query = writer.trigger(**trigger).start()
        except Exception as problem:
            return self._explained(problem)
        return None

    def _keep_running(self, trigger: Mapping[str, Any], failure: BaseException | None, once: bool) -> None:
        """Follow the query to its end, in a thread of its own; ``wait`` raises what it ends with."""
        try:
            self._failure = self._follow_query(trigger, failure, once)
            self._end()
        except BaseException as problem:
            self._failure = problem
        finally:
            self._ended.set()

    def _follow_query(
        self, trigger: Mapping[str, Any], failure: BaseException | None, once: bool
    ) -> BaseException | None:
        """Start the query again after failures that pass; return the one that ends the run."""
        in_a_row, batch = 0, self.store.progress.batch
        while True:
            if failure is None:
                failure = self._await_query()
            if failure is None or self._stopping:
                break
            if self.store.progress.batch > batch:
                in_a_row, batch = 0, self.store.progress.batch
            if not _passes(failure) or (once and in_a_row >= RESTARTS_ONCE_MAX):
                break
            pause_s = min(PAUSE_S * 2**in_a_row, PAUSE_S_MAX)
            in_a_row += 1
            self._count_restart(failure, pause_s)
            if self._stop_asked.wait(pause_s):
                break
            try:
                # The error may have come between two commits.
                self.store.reload()
                failure = self._start_query(trigger)
            except Exception as problem:
                failure = self._explained(problem)
        # To be stopped while something that passes is in the way is no failure.
        return None if self._stopping and failure is not None and _passes(failure) else failure

    def _await_query(self) -> BaseException | None:
        """Wait until the query ends; return the error that ended it."""
        query = self._query
        if query is None:
            return None
        ended_by: Exception | None = None
        try:
            query.awaitTermination()
        except Exception as problem:
            ended_by = problem
        self._listener.await_end()
        with self._turn:
            # A query that is stopped at once ends before its batch does.
            self._turn.wait_for(lambda: not self._making)
            cause, self._problem = self._problem or ended_by, None
        # Spark was interrupted, which is how a query is stopped.
        is_stop = self._stopping and cause is ended_by
        return None if cause is None or is_stop else self._explained(cause)

    def _explained(self, problem: BaseException) -> BaseException:
        found = explain_failure(problem, self.store.location.uri)
        if found is not problem:
            found.__cause__ = problem
        return found

    def _count_restart(self, failure: BaseException, pause_s: float) -> None:
        self.restarts += 1
        log.warning("%s; restart %d follows in %g s", failure, self.restarts, pause_s)
        if self._publishing is not None:
            self._publishing.show_restart(self.restarts, str(failure))

    def _stream(self) -> DataFrame:
        """Read the events after those of the tables; a checkpoint that Spark has goes on where it was."""
        # The tables know best how far they go. Spark looks at this only without a checkpoint.
        begin = {**self._beginning(), **self.store.progress.seqs}
        start = {"start": json.dumps({bus: seq + 1 for bus, seq in begin.items()})} if begin else {}
        return self.spark.readStream.format("jet").options(**{**self._options, **start}).load()

    def _beginning(self) -> dict[str, int]:
        """Find the last event of each bus that is not to be read, as the option ``start`` says now."""
        if self._range.start == "earliest":
            return {}
        with closing_all(open_buses(self._range.places)) as buses:
            return {name: start_of(bus, self._range.start) for name, bus in buses.items()}

    def _find_checkpoint(self) -> str:
        """Return where Spark keeps how far it is: a place that belongs to just these tables.

        With ``until`` it walks over events that are left for the next run: nobody else may go on from there.
        """
        root = self._checkpoint or self.store.location.at("checkpoint")
        own = self.store.id if self._range.until_us is None else f"until-{uuid.uuid4().hex}"
        return f"{root.rstrip('/')}/{own}"

    def _publish(self) -> None:
        """Begin to publish, if that is wanted."""
        if self._prefix is None or self._daemon is None:
            return
        self._unpublish()
        self.behind()  # errors of the journals come before anything is published
        self._publishing = Publishing(self._daemon, self._prefix, self._plan.own)
        try:
            tables = Tables(self.spark, self.store.location)
            self._publishing.begin(self.spark, tables, query_groups=self._query_groups, query_open=self._query_open)
        except BaseException:
            self._unpublish()
            raise

    def _unpublish(self) -> None:
        """Take what was published off the bus."""
        publishing, sources = self._publishing, self._sources
        self._publishing = self._sources = None
        for one in (publishing, sources):
            if one is not None:
                one.close()

    def _end(self) -> None:
        for number in sorted(self._made):  # stopped before Spark could tell of it
            self._report(self._made.pop(number), 0.0, 0)
        with suppress(*JAVA_ERRORS):
            self.spark.streams.removeListener(self._listener)
        self._unpublish()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run ends and return True, or False on timeout. Raises what ended the run, if it was an error.

        A failure that passes does not end it: the query is started again, see ``restarts``.
        """
        if self._thread is None:
            return True
        if not self._ended.wait(timeout_s):
            return False
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return True

    def follow(self, stops: Callable[[], int]) -> None:
        """Wait for the end, or until ``stops`` says so: 1 is after the batch that is being made, 2 is at once."""
        while not stops() and not self.wait(LOOK_S):
            pass
        # In a thread, so that a second signal can still be heard while the last batch is being made.
        stopping = threading.Thread(target=self.stop)
        stopping.start()
        while stopping.is_alive():
            stopping.join(LOOK_S / 4)
            if stops() > 1:
                self.stop(at_once=True)

    def stop(self, *, at_once: bool = False) -> None:
        """Stop after the batch that is being made, or in the midst of it; the next run makes it then."""
        with self._turn:
            self._stopping = True
            if not at_once:
                self._turn.wait_for(lambda: not self._making)
            query = self._query
        self._stop_asked.set()
        # Stopping a query interrupts its batch, so the batch has to be over first.
        with suppress(*JAVA_ERRORS):
            if query is not None and query.isActive:
                query.stop()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop, and let another pipeline write to the tables."""
        self.stop()
        # It commits to the tables, so it must be over before the lock goes.
        self._care.close()
        self.store.close()

    # -- one batch

    def _process_batch(self, rows: DataFrame, number: int) -> None:
        with self._turn:
            if self._stopping:
                # To return would tell Spark that the batch is in the tables.
                raise JetSparkError("the pipeline was stopped before this batch")
            self._making = True
        try:
            made = make_batch(self._plan, rows, number, is_first=self._is_first)
            self._is_first = False
            if made is not None:
                # Kept until Spark reports on the batch, since only Spark knows how long all of it took.
                self._made[number] = made
                if self._publishing is not None:
                    self.spark.sparkContext.setJobDescription(f"batch {made.number}: publish")
                    self._publishing.show_batch(self.spark, made)
                # After the commit: what fails from here on ends the run, but the events are in the tables.
                fold_tables(self._plan)
                self._care.batch_made()
        except BaseException as problem:
            # ``stop`` interrupts a batch if it is to end at once; such an error is no news.
            self._problem = None if self._stopping else problem
            raise
        finally:
            with self._turn:
                self._making = False
                self._turn.notify_all()

    def _list_buses(self) -> list[str]:
        """List the buses that are read."""
        with self._looking:
            return list(self._open_sources().now())

    def _show_alarms(self, rows: list[dict[str, Any]]) -> None:
        if self._publishing is not None:
            self._publishing.show_alarms(rows)

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """Report a batch when Spark reports its progress."""
        made = self._made.pop(progress.batchId, None)
        if made is not None:
            self._report(made, progress.durationMs.get("triggerExecution", 0) / 1000, _behind(progress))

    def _report(self, made: CommittedBatch, seconds: float, behind: int) -> None:
        if not made.events:
            return
        newest_us = max(position.us for position in made.positions.values())
        batch = Batch(
            number=made.number,
            events=made.events,
            seconds=seconds or made.seconds,
            seqs=made.seqs,
            lag_s=max(0.0, time.time() - newest_us / 1e6),
            behind=behind,
            events_per_s=made.events / (seconds or made.seconds or 1.0),
            at=made.at,
        )
        log.info("batch %d: %d events in %.2f s", batch.number, batch.events, batch.seconds)
        if self._on_batch is not None:
            self._on_batch(batch)
        # What is shown is recorded, too. If batches of nothing else were shown, each would cause the next, for ever.
        if self._publishing is not None and made.is_foreign:
            self._publishing.show_progress(batch)

    def behind(self) -> int:
        """Count the events that there are now and that the tables are to have and have not."""
        with self._looking:
            return self._open_sources().behind(self.store.progress.seqs)

    def _open_sources(self) -> OpenBuses:
        if self._sources is None:
            self._sources = OpenBuses(self._range)
        return self._sources

    def _check_range(self) -> None:
        """Refuse a range that would leave a hole in the tables, or that lies before their end."""
        since_us, until_us, positions = self._range.since_us, self._range.until_us, self.store.progress.positions
        if not positions:
            return
        # The bus that is furthest behind decides.
        bus, now_us = min(((bus, position.us) for bus, position in positions.items()), key=lambda found: found[1])
        at = f"the tables in {self.store.location.uri} have bus {bus!r} up to {write_instant(now_us)}"
        if since_us is not None and since_us > now_us:
            raise BadOption("since", f"{at}; events between would be missing: leave since out, or take a new directory")
        if until_us is not None and until_us <= now_us:
            raise BadOption("until", f"{at}, which is not before until; take a new directory for an earlier time")


class _Listener(StreamingQueryListener):
    """Listener to Spark's reports on the query of a pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._name = f"jetbus {pipeline.store.id}"
        self._run: str | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """Listen to the next query."""
        self._run = None
        self._ended.clear()

    def await_end(self) -> None:
        """Wait for Spark's last report on a query that has ended."""
        # Spark reports in a thread of its own, and after the query has ended.
        self._ended.wait(LAST_WORD_S)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        if event.name == self._name:
            self._run = str(event.runId)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        if event.progress.name == self._name:
            self._pipeline.progressed(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Ignore a query that waits."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        # This event has no name, so the run is remembered from the start of the query.
        if str(event.runId) == self._run:
            self._ended.set()


def _passes(failure: BaseException) -> bool:
    return isinstance(failure, SparkFailed) and failure.passes


def _behind(progress: StreamingQueryProgress) -> int:
    """Count the events that the source had beyond a batch, by the offsets that Spark tells."""
    count = 0
    for source in progress.sources:
        latest, end = _offset(source.latestOffset), _offset(source.endOffset)
        count += sum(max(0, latest[bus].seq - end[bus].seq) for bus in latest if bus in end)
    return count


def _offset(text: str | None) -> dict[str, StreamPosition]:
    """Read an offset of the source; Spark may have none, as for a batch that began before it looked."""
    try:
        return read_offset(json.loads(text or "{}") or {})
    except ValueError:
        return {}


def _checked_alarms(file: str | Path | None, spark: SparkSession) -> tuple[Alarm, ...]:
    alarms = () if file is None else read_alarms(file)
    check_alarms(alarms, spark)
    return alarms


def _checked_expectations(
    file: str | Path | None, spark: SparkSession, own: tuple[OwnStage, ...]
) -> tuple[Expectation, ...]:
    return () if file is None else read_expectations(file, spark, {stage.name: stage.table for stage in own})


def _fix_instants(options: dict[str, str]) -> dict[str, str]:
    """Return the same options with instants that stay: ``-1h`` would be another one in every task."""
    fixed = dict(options)
    for name in ("since", "until"):
        if name in fixed:
            try:
                fixed[name] = write_instant(read_instant(fixed[name]))
            except BadInstant as problem:
                raise BadOption(name, str(problem)) from problem
    return fixed


def where(journals: Sequence[str]) -> dict[str, str]:
    """Return the options of format ``jet`` that say where journals are: folders and globs, or daemons."""
    urls = [one for one in journals if "://" in one and not one.startswith("file:")]
    if urls and len(urls) < len(journals):
        raise BadOption("journal", "folders and daemons cannot be read by one pipeline; give only the one or the other")
    if urls:
        return {"url": json.dumps(urls)}
    # Java may have been started in another folder.
    return {"paths": json.dumps([one if one.startswith("file:") else str(Path(one).absolute()) for one in journals])}


def _publish_to(url: str | DaemonAddress | None, options: dict[str, str]) -> DaemonAddress:
    """Return the daemon to publish at: the one that is named, the only one that is read, or that of JET_URL."""
    if isinstance(url, DaemonAddress):
        return url
    daemons = read_options(options).daemons
    if url is None and len(daemons) == 1:
        return daemons[0]
    if url is None and daemons:
        raise BadOption("publish_url", "several daemons are read; say at which one to publish")
    return DaemonAddress(url, options.get("user"), options.get("password"))
