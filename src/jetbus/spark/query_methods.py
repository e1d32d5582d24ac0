"""Methods that answer questions about the tables of a running pipeline, to peers that may ask.

    PREFIX/query/sql        sql, limit                              any one query over the tables
    PREFIX/query/history    path, since, until, bus, limit          the values of a state
    PREFIX/query/rollups    path, window, since, until, bus, limit  its windows of 1s, 1m or 1h
    PREFIX/query/alarms     since, until, limit                     alarms raised and cleared
    PREFIX/query/tables                                             the tables and their columns

An answer has ``columns``, ``rows`` and ``more``, which says that there were more rows than the limit. Each question
sees the tables as they are after the last whole batch.

A question has ``ANSWER_S``; after that its Spark jobs are cancelled, by its session, and the caller is refused. Spark
cancels a task where it reads the next row of a file or of a sorted buffer, so that joins keep the rows that they
multiply in such buffers (``SETTINGS``), which are also written to disk when memory is short. A task that is lost in a
single row would go on; it must not take anything from others:

- a question is one task at a time: its tables are read into one partition, so that Spark needs no shuffle and no second
  stage beside the first (only scalar subqueries are jobs of their own);
- questions run on all cores but one, or on the only one, and one that is lost keeps its core until it ends:
  the pipeline always finds a core, and questions that find none wait for ``WAIT_S`` and are refused then;
- no more than ``QUESTIONS_MAX`` are in the making, those that wait or are lost included, each in a daemon thread, for
  which the end of the process does not wait; the peer's loop waits for them, and for nothing else meanwhile.

Values can be large: a thousand rows of 10 MB each would end Java. So Spark hands over cells up to a size at which all
rows that were asked for fit into ``FETCHED_BYTES_MAX``, and the size of each row. Only if larger cells are among the
rows that fit into an answer, these rows are asked for once more, and then they are few.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType, VariantType

from jetbus.errors import JetError, Refused
from jetbus.journal.instants import read_instant
from jetbus.peer import Peer
from jetbus.spark.catalog import Tables
from jetbus.spark.diagnosis import JAVA_ERRORS, first_sentence
from jetbus.spark.location import Location
from jetbus.spark.rollups import WINDOWS_US
from jetbus.spark.sink import plain
from jetbus.spark.spark_errors import BadOption, BadQuestion
from jetbus.spark.spark_session import QueryError, count_cores
from jetbus.spark.sql_guard import check_question

__all__ = ["Answers"]

ROWS = 1_000
"""Rows of an answer, by default."""
ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_000_000
"""Of the rows as JSON; a message of the bus has a limit, too."""
FETCHED_BYTES_MAX = 64_000_000
"""Bytes that the driver takes from Spark for one answer."""
ANSWER_S = 60.0
"""Time for an answer, that for which it waits for a core included."""
WAIT_S = 15.0
"""Time that a question waits for a core, at most."""
CANCEL_AGAIN_S = 1.0
QUESTIONS_MAX = 4
"""Questions at a time, at most; those that wait for a core or were cancelled and have not ended yet count."""
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.leafNodeDefaultParallelism": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.maxBroadcastTableSize": "64m",
        "spark.sql.execution.topKSortFallbackThreshold": "16",
        "spark.sql.sortMergeJoinExec.buffer.in.memory.threshold": "16",
        "spark.sql.cartesianProductExec.buffer.in.memory.threshold": "16",
        "spark.sql.windowExec.buffer.in.memory.threshold": "16",
    }
)
"""Settings of the session that answers: no files as tables, one task at a time, few rows in buffers that cannot go to
disk nor be cancelled."""

Answer = dict[str, Any]


class Answers:
    """The methods of one pipeline."""

    def __init__(
        self, spark: SparkSession, location: Location, *, answer_s: float = ANSWER_S, wait_s: float = WAIT_S
    ) -> None:
        self._spark, self._location = spark, location
        self._answer_s, self._wait_s = answer_s, wait_s
        # Guards the two below.
        self._turn = threading.Lock()
        self._free = [_answering(spark) for _ in range(QUESTIONS_MAX)]
        self._busy: dict[Future[Answer], SparkSession] = {}
        self._cores = threading.BoundedSemaphore(max(1, count_cores(spark) - 1))
        self._cancelling: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Cancel all questions."""
        for answer in list(self._busy):
            self._interrupt(answer)

    def offer(self, peer: Peer, prefix: str, groups: Sequence[str] = ()) -> None:
        """Own the methods, for members of some groups or for all peers."""
        access = {"callGroups": list(groups)} if groups else None
        methods: dict[str, Callable[..., Any]] = {
            "sql": self.sql,
            "history": self.history,
            "rollups": self.rollups,
            "alarms": self.alarms,
            "tables": self.tables,
        }
        for name, method in methods.items():
            try:
                # Later than our own limit, so that the caller gets the reason and not just a timeout.
                peer.add_method(f"{prefix}/query/{name}", method, access=access, timeout_s=self._answer_s + 10)
            except JetError as problem:
                raise BadOption("publish", str(problem)) from problem

    # -- the methods

    async def sql(self, sql: str, limit: int = ROWS) -> Answer:
        """Answer one SQL query."""
        return await self._answered(lambda tables: self._queried(tables, sql), limit)

    async def history(
        self,
        path: str,
        since: str | None = None,
        until: str | None = None,
        bus: str | None = None,
        limit: int = ROWS,
    ) -> Answer:
        """Return the values of a state that were in force in a period, from old to new."""
        begin, end = _period(since, until)

        def rows(tables: Tables) -> DataFrame:
            found = _of(tables.frame("history"), path, bus)
            if begin is not None:
                found = found.where(F.col("valid_to").isNull() | (F.col("valid_to") > begin))
            return (found if end is None else found.where(F.col("valid_from") < end)).orderBy("valid_from", "seq")

        return await self._answered(rows, limit)

    async def rollups(
        self,
        path: str,
        window: str = "1m",
        since: str | None = None,
        until: str | None = None,
        bus: str | None = None,
        limit: int = ROWS,
    ) -> Answer:
        """Return the windows of a state that start in a period, from old to new."""
        if window not in WINDOWS_US:
            raise Refused(f"there are no windows of {window!r}; there are {', '.join(WINDOWS_US)}")
        begin, end = _period(since, until)
        return await self._answered(
            lambda tables: _between(_of(tables.frame(f"rollups_{window}"), path, bus), "window_start", begin, end),
            limit,
        )

    async def alarms(self, since: str | None = None, until: str | None = None, limit: int = ROWS) -> Answer:
        """Return the alarms that were raised and cleared in a period, from old to new."""
        begin, end = _period(since, until)
        return await self._answered(lambda tables: _between(tables.frame("alarms"), "ts", begin, end), limit)

    async def tables(self) -> dict[str, Any]:
        """Describe every table: its meaning and its columns."""
        tables = await asyncio.to_thread(Tables, self._spark, self._location)
        return {
            name: {
                "meaning": table.meaning,
                "columns": [{"name": one.name, "type": one.type, "meaning": one.meaning} for one in table.columns],
            }
            for name, table in tables.views.items()
        }

    # -- how one is answered

    def _queried(self, tables: Tables, sql: str) -> DataFrame:
        question = check_question(sql, tables.views)
        for name in question.tables:
            tables.frame(name).coalesce(1).createOrReplaceTempView(name)
        return tables.spark.sql(question.sql)

    async def _answered(self, ask: Callable[[Tables], DataFrame], limit: int) -> Answer:
        if not 1 <= limit <= ROWS_MAX:
            raise Refused(f"a limit is a whole number from 1 to {ROWS_MAX}")
        answer: Future[Answer] = Future()
        with self._turn:
            if not self._free:
                raise Refused(f"{QUESTIONS_MAX} questions are being answered already; ask again later")
            self._busy[answer] = self._free.pop()
        # Not of a pool: the end of the process would wait for its threads, and so for a question that is lost.
        threading.Thread(target=self._answer, args=(answer, ask, limit), name="question", daemon=True).start()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._answer_s)
        except TimeoutError:
            cancelling = asyncio.create_task(self._cancel(answer))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)
            raise Refused(
                f"that takes longer than {self._answer_s:g} s; ask for a shorter period, or run it as a job"
            ) from None
        except BadQuestion as problem:
            raise Refused(str(problem)) from None
        except QueryError as problem:
            raise Refused(first_sentence(problem)) from problem

    async def _cancel(self, answer: Future[Answer]) -> None:
        """Cancel the jobs of a question until it has ended: one that Spark was still planning starts them later."""
        while answer in self._busy:
            self._interrupt(answer)
            await asyncio.sleep(CANCEL_AGAIN_S)

    def _interrupt(self, answer: Future[Answer]) -> None:
        # Tags of jobs are known to the thread that has set them only, so it is all jobs of the question's session.
        with self._turn, suppress(*JAVA_ERRORS):
            if answer in self._busy:
                self._busy[answer].interruptAll()

    def _answer(self, answer: Future[Answer], ask: Callable[[Tables], DataFrame], limit: int) -> None:
        """Answer a question in a thread of its own, and give its session and its core back."""
        found: Answer | BaseException = Refused(
            "all cores that questions may have are busy with other questions; ask again later"
        )
        # Queries that wait here hold a session, so that their number has a limit, too.
        if self._cores.acquire(timeout=self._wait_s):
            try:
                found = _collected(ask(Tables(self._busy[answer], self._location)), limit)
            except BaseException as problem:
                found = problem
            self._cores.release()
        # Before the answer is sent, so that the next query of this peer finds both free.
        with self._turn:
            self._free.append(self._busy.pop(answer))
        if not answer.set_running_or_notify_cancel():
            return
        if isinstance(found, BaseException):
            answer.set_exception(found)
        else:
            answer.set_result(found)


def _answering(spark: SparkSession) -> SparkSession:
    """Return a session for one query at a time, with views of its own and jobs that can be cancelled."""
    made = spark.newSession()
    for name, value in SETTINGS.items():
        made.conf.set(name, value)
    return made


def _collected(found: DataFrame, limit: int) -> Answer:
    columns = found.columns
    # By number, because two columns of a query may have the same name.
    rows = found.toDF(*(f"c{n}" for n in range(len(columns)))).coalesce(1)
    # One row more than is shown tells whether there are more.
    cut = rows.limit(limit + 1).select(*_cut_cells(rows, limit)).collect()
    fitting = _fitting([row["bytes"] for row in cut[:limit]])
    shown: Sequence[Sequence[Any]] = [row[:-2] for row in cut[:fitting]]
    if any(row["is_cut"] for row in cut[:fitting]):
        shown = rows.limit(fitting).collect()
    return _answer(columns, shown, has_more=fitting < len(cut))


def _cut_cells(rows: DataFrame, limit: int) -> list[Column]:
    """Return the columns with large cells left out, the bytes of each row, and whether any cell was left out."""
    large = max(FETCHED_BYTES_MAX // (limit + 1) // max(len(rows.columns), 1), 1)
    sizes = {field.name: _size(field.name, field.dataType) for field in rows.schema}
    cells = [F.expr(f"if({size} > {large}, null, {name})").alias(name) for name, size in sizes.items()]
    total = " + ".join(f"coalesce({size}, 0)" for size in sizes.values()) or "0"
    is_cut = " or ".join(f"coalesce({size} > {large}, false)" for size in sizes.values()) or "false"
    return [*cells, F.expr(total).alias("bytes"), F.expr(is_cut).alias("is_cut")]


def _size(name: str, kind: DataType) -> str:
    """Return the SQL for about how many bytes a cell has as JSON."""
    if isinstance(kind, StringType | BinaryType):
        return f"octet_length({name})"
    if isinstance(kind, ArrayType | MapType | StructType):
        return f"octet_length(to_json({name}))"
    return f"octet_length(cast({name} as string))" if isinstance(kind, VariantType) else f"if({name} is null, 4, 8)"


def _fitting(sizes: Sequence[int]) -> int:
    """Return how many rows fit into an answer by their sizes in Spark; as JSON they may turn out to be larger."""
    left_bytes = ANSWER_BYTES_MAX
    for number, size in enumerate(sizes):
        left_bytes -= size
        if left_bytes < 0:
            return number
    return len(sizes)


def _answer(columns: list[str], rows: Sequence[Sequence[Any]], *, has_more: bool) -> Answer:
    """Give the rows as JSON, as many as the limits allow."""
    shown: list[list[Any]] = []
    left_bytes = ANSWER_BYTES_MAX
    for row in rows:
        cells = [_cell(value) for value in row]
        left_bytes -= len(json.dumps(cells, default=str))
        if left_bytes < 0:
            break
        shown.append(cells)
    return {"columns": columns, "rows": shown, "more": has_more or len(shown) < len(rows)}


def _cell(value: Any) -> Any:
    """Return a value of a column as JSON has it."""
    if hasattr(value, "toPython"):
        return plain(value.toPython())
    # JSON has neither NaN nor infinity.
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.hex() if isinstance(value, bytes | bytearray) else plain(value)


# -- parts of questions


def _period(since: str | None, until: str | None) -> tuple[Any, Any]:
    """Return two instants as Spark columns; ``BadInstant``, a ValueError, reaches the caller as it is."""
    return tuple(None if one is None else F.timestamp_micros(F.lit(read_instant(one))) for one in (since, until))  # type: ignore[return-value]


def _of(rows: DataFrame, path: str, bus: str | None) -> DataFrame:
    found = rows.where(F.col("path") == path)
    return found if bus is None else found.where(F.col("bus") == bus)


def _between(rows: DataFrame, time: str, begin: Any, end: Any) -> DataFrame:
    if begin is not None:
        rows = rows.where(F.col(time) >= begin)
    return (rows if end is None else rows.where(F.col(time) < end)).orderBy(time)
