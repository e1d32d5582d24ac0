"""Methods that answer questions about the tables of a running pipeline, to peers that may ask.

    PREFIX/query/sql        sql, limit                              any one query over the tables
    PREFIX/query/history    path, since, until, bus, limit          the values of a state
    PREFIX/query/rollups    path, window, since, until, bus, limit  its windows of 1s, 1m or 1h
    PREFIX/query/alarms     since, until, limit                     what was raised and cleared
    PREFIX/query/tables                                             the tables and their columns

An answer has ``columns``, ``rows`` and ``more``, which says that there were more rows than the limit. Each question
sees the tables as they are after the last whole batch.

A question has ``ANSWER_S``; after that its Spark jobs are cancelled, by their tag, and the caller is refused. Spark
cancels a task where it reads the next rows, so one that is lost in a few rows (a back-tracking regular expression, a
join that multiplies them) goes on. It must not take anything from others:

- a question is one task at a time: its tables are read into one partition, so that Spark needs no shuffle and no second
  stage beside the first (only scalar subqueries are jobs of their own);
- questions run on all cores but one, or on one if there is no other, and one that is lost keeps its core until it ends:
  the pipeline always finds a core, and questions that find none wait for ``WAIT_S`` and are refused then;
- no more than ``QUESTIONS_MAX`` are in the making, those that wait or are lost included;
- it runs in a daemon thread, for which the end of the process does not wait.
"""

from __future__ import annotations

import json
import math
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.errors import JetError, Refused
from jetbus.journal.instants import read_instant
from jetbus.peer import Peer
from jetbus.spark.catalog import Tables
from jetbus.spark.diagnosis import JAVA_ERRORS, first_sentence
from jetbus.spark.errors import BadOption, BadQuestion
from jetbus.spark.location import Location
from jetbus.spark.rollups import WINDOWS_US
from jetbus.spark.session import QueryError, count_cores
from jetbus.spark.sink import plain
from jetbus.spark.sql_guard import check_question

__all__ = ["Answers"]

ROWS = 1_000
"""Rows of an answer, by default."""
ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 4_000_000
"""Of the rows as JSON; a message of the bus has a limit, too."""
ANSWER_S = 60.0
WAIT_S = 15.0
"""Time that a question waits for a core, at most."""
QUESTIONS_MAX = 4
"""Questions at a time, at most; those that wait for a core or were cancelled and have not ended yet count."""
SETTINGS: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.runSQLOnFiles": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.leafNodeDefaultParallelism": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
    }
)
"""Settings of the session that answers: no files as tables, and one task at a time."""

Answer = dict[str, Any]


class Answers:
    """The methods of one pipeline."""

    def __init__(
        self, spark: SparkSession, location: Location, *, answer_s: float = ANSWER_S, wait_s: float = WAIT_S
    ) -> None:
        # A session of its own: its views are nobody else's, and whatever a question does to it stays there.
        self._spark = spark.newSession()
        for name, value in SETTINGS.items():
            self._spark.conf.set(name, value)
        self._location = location
        self._answer_s, self._wait_s = answer_s, wait_s
        self._places = threading.BoundedSemaphore(QUESTIONS_MAX)
        self._cores = threading.BoundedSemaphore(max(1, count_cores(spark) - 1))
        self._views = threading.Lock()

    def close(self) -> None:
        """Cancel all questions."""
        with suppress(*JAVA_ERRORS):
            self._spark.interruptAll()

    def offer(self, peer: Peer, prefix: str, groups: Sequence[str] = ()) -> None:
        """Own the methods, for members of some groups or for everybody."""
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

    def sql(self, sql: str, limit: int = ROWS) -> Answer:
        """Answer one SQL query."""
        return self._answered(lambda tables: self._queried(tables, sql), limit)

    def history(
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

        return self._answered(rows, limit)

    def rollups(
        self,
        path: str,
        window: str = "1m",
        since: str | None = None,
        until: str | None = None,
        bus: str | None = None,
        limit: int = ROWS,
    ) -> Answer:
        """Return the windows of a state that began in a period, from old to new."""
        if window not in WINDOWS_US:
            raise Refused(f"there are no windows of {window!r}; there are {', '.join(WINDOWS_US)}")
        begin, end = _period(since, until)
        return self._answered(
            lambda tables: _between(_of(tables.frame(f"rollups_{window}"), path, bus), "window_start", begin, end),
            limit,
        )

    def alarms(self, since: str | None = None, until: str | None = None, limit: int = ROWS) -> Answer:
        """Return the alarms that were raised and cleared in a period, from old to new."""
        begin, end = _period(since, until)
        return self._answered(lambda tables: _between(tables.frame("alarms"), "ts", begin, end), limit)

    def tables(self) -> dict[str, Any]:
        """Describe every table: its meaning and its columns."""
        return {
            name: {
                "meaning": table.meaning,
                "columns": [{"name": one.name, "type": one.type, "meaning": one.meaning} for one in table.columns],
            }
            for name, table in Tables(self._spark, self._location).views.items()
        }

    # -- how one is answered

    def _queried(self, tables: Tables, sql: str) -> DataFrame:
        question = check_question(sql, tables.views)
        with self._views:  # two questions must not change each other's views while they are being planned
            for name in question.tables:
                tables.frame(name).coalesce(1).createOrReplaceTempView(name)
            return self._spark.sql(question.sql)

    def _answered(self, ask: Callable[[Tables], DataFrame], limit: int) -> Answer:
        if not isinstance(limit, int) or not 1 <= limit <= ROWS_MAX:
            raise Refused(f"a limit is a whole number from 1 to {ROWS_MAX}")
        if not self._places.acquire(blocking=False):
            raise Refused(f"{QUESTIONS_MAX} questions are being answered already; ask again later")
        # Those who wait here hold a place, so that their number has a limit, too.
        if not self._cores.acquire(timeout=self._wait_s):
            self._places.release()
            raise Refused("all cores that questions may have are busy with other questions; ask again later")
        tag = f"question-{uuid.uuid4().hex}"
        answer: Future[Answer] = Future()
        # Not of a pool: the end of the process would wait for its threads, and so for a question that is lost.
        threading.Thread(target=self._answer, args=(answer, ask, limit, tag), name=tag, daemon=True).start()
        try:
            return answer.result(self._answer_s)
        except Late:
            self._spark.interruptTag(tag)
            raise Refused(
                f"that takes longer than {self._answer_s:g} s; ask for a shorter period, or run it as a job"
            ) from None
        except BadQuestion as problem:
            raise Refused(str(problem)) from None
        except QueryError as problem:
            raise Refused(first_sentence(problem)) from problem

    def _answer(self, answer: Future[Answer], ask: Callable[[Tables], DataFrame], limit: int, tag: str) -> None:
        """Answer a question in a thread of its own, and give its place and its core back."""
        try:
            found: Answer | BaseException = self._collected(ask, limit, tag)
        except BaseException as problem:
            found = problem
        # Before the answer is given, so that those who ask again at once find both free.
        self._cores.release()
        self._places.release()
        if isinstance(found, BaseException):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def _collected(self, ask: Callable[[Tables], DataFrame], limit: int, tag: str) -> Answer:
        # A tag belongs to the thread that sets it, so it is set in the one that starts the jobs.
        self._spark.addTag(tag)
        try:
            found = ask(Tables(self._spark, self._location))
            # One row more than is shown tells whether there are more.
            return _answer(found.columns, found.coalesce(1).limit(limit + 1).collect(), limit)
        finally:
            self._spark.removeTag(tag)


def _answer(columns: list[str], rows: Sequence[Any], limit: int) -> Answer:
    """Give the rows as JSON, as many as the limits allow."""
    shown: list[list[Any]] = []
    left_bytes = ANSWER_BYTES_MAX
    for row in rows[:limit]:
        cells = [_cell(value) for value in row]
        left_bytes -= len(json.dumps(cells, default=str))
        if left_bytes < 0:
            break
        shown.append(cells)
    return {"columns": columns, "rows": shown, "more": len(shown) < len(rows)}


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
