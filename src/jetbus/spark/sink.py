"""Spark to the bus: rows as set requests (format ``jet``), and rows as states of our own (``publish``).

    df.select("path", "value").write.format("jet").option("url", "jet://localhost").mode("append").save()
    with publish(rollups, url="jet://localhost", prefix="spark/rollups"): ...

A set request is for a state of another owner. It is sent from the task that has the row, many at a time, and
failed ones are reported when all have been tried. A published state belongs to the driver's peer: it lives as long as
the peer does and vanishes with it.

Spark hands over the rows of a batch in any order, and a batch may have several of one path, such as the windows of an
aggregate. Rows with a time, see ``find_time``, are set and published in its order, so that the newest is the last. As
several tasks have them, set requests of such rows are sent when all tasks are done.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Self

from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StringType, StructType, TimestampType
from pyspark.sql.utils import is_remote

from jetbus.errors import JetError
from jetbus.peer import Peer, PeerAsync
from jetbus.spark.options import Options
from jetbus.spark.remote import connect
from jetbus.spark.spark_errors import BadOption, SetsFailed

__all__ = ["Publisher", "SetStreamWriter", "SetWriter", "publish"]

AT_ONCE = 256
"""Set requests of one task that wait for their answers, at the most."""
ORDERED_MAX = 100_000
"""Rows with a time that are set by one batch, at the most: they are put in order in memory."""
FAILED_KEPT = 20
"""Failed rows that each task reports by name; the others are counted."""
STATES_MAX = 100_000
"""States that one publisher owns, at the most."""


# -- rows as set requests


@dataclass
class Tried(WriterCommitMessage):
    """Result of a task: the number of rows, of failures, and some of the failed rows."""

    rows: int = 0
    failures: int = 0
    failed: list[tuple[str, str]] = field(default_factory=list)
    waiting: list[tuple[Any, str, Any]] = field(default_factory=list)
    """Time, path and value of rows that are to be set in order, after those of other tasks."""

    def fail(self, path: str, reason: str) -> None:
        self.failures += 1
        if len(self.failed) < FAILED_KEPT:
            self.failed.append((path, reason))


class _Sets:
    """Common part of the writers of a batch and of a stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if len(options.daemons) != 1:
            raise BadOption(
                "url", "rows are set on one live bus; give .option('url', 'jet://host') and save() without a path"
            )
        for name in ("path", "value"):
            if name not in schema.names:
                raise BadOption("columns", f"there is no column {name!r}; a row to set has path and value")
        if not isinstance(schema["path"].dataType, StringType):
            raise BadOption("columns", f"path is a {schema['path'].dataType.simpleString()}; it must be a string")
        self._options = options
        self._daemon = options.daemons[0]
        self._is_json = isinstance(schema["value"].dataType, StringType)
        self._time = find_time(schema)
        # A wrong address or password is found here, in the driver, and not by every task.
        connect(self._daemon).close()

    def write(self, iterator: Iterator[Row]) -> Tried:
        """Set all rows of a task, or read those that have a time."""
        tried = Tried()
        pairs = self._read(iterator, tried)
        if self._time is None:
            asyncio.run(self._set_all(((path, value) for _, path, value in pairs), tried))
            return tried
        for row in pairs:
            tried.waiting.append(row)
            self._check_ordered(len(tried.waiting))
        return tried

    def _check_ordered(self, rows: int) -> None:
        if rows > ORDERED_MAX:
            raise BadOption(
                "columns",
                f"more than {ORDERED_MAX} rows are to be set in the order of their time, {self._time!r}; make batches "
                "smaller, or select only path and value, which are set in any order",
            )

    def _read(self, rows: Iterator[Row], tried: Tried) -> Iterator[tuple[Any, str, Any]]:
        """Yield time, path and value of the rows that can be set."""
        for row in rows:
            tried.rows += 1
            path, value = row["path"], row["value"]
            try:
                value = json.loads(value) if self._is_json and value is not None else plain(value)
            except ValueError:
                tried.fail(path, f"the value {value!r} is not JSON; write text with to_json or in quotes")
                continue
            yield None if self._time is None else _sortable(row[self._time]), path, value

    async def _set_all(self, pairs: Iterable[tuple[str, Any]], tried: Tried) -> None:
        daemon = self._daemon
        async with PeerAsync(
            daemon.url, name="spark", user=daemon.user, password=daemon.password, reconnect=False
        ) as peer:
            waiting: set[asyncio.Task[None]] = set()
            for path, value in pairs:
                # Rows are only pulled when there is room, so that a long partition is never in memory as a whole.
                if len(waiting) >= AT_ONCE:
                    _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                # Tasks start in the order in which they are made, and so do their requests on the wire.
                waiting.add(asyncio.create_task(self._set(peer, path, value, tried)))
            if waiting:
                await asyncio.wait(waiting)

    async def _set(self, peer: PeerAsync, path: str, value: Any, tried: Tried) -> None:
        try:
            await peer.set(path, value, timeout_s=self._options.timeout_s)
        except JetError as problem:
            tried.fail(path, str(problem))

    def _finish(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Set the rows that have waited for the end of all tasks, then report the failed ones."""
        tried = [message for message in messages if isinstance(message, Tried)]
        ordered = sorted((row for one in tried for row in one.waiting), key=lambda row: row[0])
        self._check_ordered(len(ordered))
        if ordered:
            tried.append(Tried())
            asyncio.run(self._set_all(((path, value) for _, path, value in ordered), tried[-1]))
        self._report(tried)

    def _report(self, tried: list[Tried]) -> None:
        failures = sum(one.failures for one in tried)
        if not failures or self._options.ignore_failures:
            return
        failed = [pair for one in tried for pair in one.failed][:FAILED_KEPT]
        listed = "".join(f"\n  {path}: {reason}" for path, reason in failed)
        more = f"\n  and {failures - len(failed)} more" if failures > len(failed) else ""
        raise SetsFailed(
            f"{failures} of {sum(one.rows for one in tried)} rows could not be set, the others were:{listed}{more}",
            failed,
        )


class SetWriter(_Sets, DataSourceWriter):
    """Rows of a batch as set requests."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._finish(messages)


class SetStreamWriter(_Sets, DataSourceStreamWriter):
    """Rows of a stream as set requests. After a crash a batch can be set again, which changes nothing."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self._finish(messages)


def find_time(schema: StructType) -> str | None:
    """Return the column that says when a row was true: the first with an instant, or with a window of Spark's."""
    for column in schema:
        parts = column.dataType.fields if isinstance(column.dataType, StructType) else [column]
        if parts and all(isinstance(part.dataType, TimestampType) for part in parts):
            return column.name
    return None


def _sortable(time: Any) -> Any:
    """Return the time of a row as something to sort by; rows without one come first."""
    return (time is not None, tuple(time) if isinstance(time, Row) else (time,) if time is not None else ())


def plain(value: Any) -> Any:
    """Return a value of a row as JSON has it."""
    if isinstance(value, Row):
        return {name: plain(part) for name, part in value.asDict().items()}
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


# -- rows as states


class Publisher:
    """States that are made of rows, owned by a peer of the driver."""

    def __init__(self, peer: Peer, prefix: str) -> None:
        self._peer = peer
        self._prefix = prefix.rstrip("/")
        self._states: dict[str, Any] = {}
        # Alarms, rows and progress of a pipeline are shown by different threads.
        self._lock = threading.Lock()

    def show(self, values: Iterable[tuple[str, Any]]) -> None:
        """Give states these values; one that has its value already is left alone, so that repeating changes nothing."""
        with self._lock:
            for path, value in values:
                full = f"{self._prefix}/{path}"
                state = self._states.get(full)
                if state is None:
                    if len(self._states) >= STATES_MAX:
                        raise BadOption(
                            "prefix", f"more than {STATES_MAX} states; publish fewer rows, such as the newest"
                        )
                    self._states[full] = self._peer.add_state(full, value)
                elif not _same(state.value, value):
                    state.change(value)

    def show_rows(self, frame: DataFrame) -> None:
        """Show the rows of a frame: column ``path`` says where, the others are the value."""
        rest = [name for name in frame.columns if name != "path"]
        # One more than is allowed, so that ``show`` refuses them instead of leaving some out.
        rows = frame.limit(STATES_MAX + 1).collect()
        time = find_time(frame.schema)
        if time is not None:
            rows.sort(key=lambda row: _sortable(row[time]))
        if rest == ["value"]:
            self.show((row["path"], plain(row["value"])) for row in rows)
        else:
            self.show((row["path"], {name: plain(row[name]) for name in rest}) for row in rows)


def _same(a: Any, b: Any) -> bool:
    # 1 and true are equal in Python, but not on the bus.
    return type(a) is type(b) and bool(a == b)


class Published:
    """A frame on the bus, for as long as it is wanted."""

    def __init__(self, peer: Peer, query: StreamingQuery | None) -> None:
        self._peer = peer
        self.query = query

    def close(self) -> None:
        """Take the states off the bus again, and stop the stream behind them."""
        if self.query is not None:
            self.query.stop()
        self._peer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def publish(
    frame: DataFrame,
    *,
    prefix: str,
    url: str | None = None,
    user: str | None = None,
    password: str | None = None,
    every_s: float = 1.0,
    checkpoint: str | None = None,
    rows: Callable[[DataFrame], DataFrame] | None = None,
    output_mode: str = "update",
) -> Published:
    """Show rows as states below ``prefix``: column ``path`` says where, the others are the value.

    A stream is shown batch by batch until it is closed; ``rows`` may turn each batch into the rows to show. Of an
    aggregate each batch has the rows that have changed; ``output_mode`` is Spark's, ``append`` for joins of streams.
    Rows of one batch are shown in the order of their first column with an instant or a window.
    """
    if "path" not in frame.columns and rows is None:
        raise BadOption("columns", "there is no column 'path', which says where each row is to be shown")
    if is_remote() and frame.isStreaming:
        raise BadOption(
            "frame",
            "streams are published by a session in its own process, because Spark Connect would run it beside the "
            "server; publish a batch from here, or the stream from there",
        )
    try:
        peer = Peer(url, name="spark", user=user, password=password)
        peer.connect()
    except (JetError, OSError, ValueError) as problem:
        raise BadOption("url", str(problem)) from problem
    shown = Publisher(peer, prefix)
    make = rows or (lambda batch: batch)
    try:
        if not frame.isStreaming:
            shown.show_rows(make(frame))
            return Published(peer, None)
        writer = frame.writeStream.foreachBatch(lambda batch, _number: shown.show_rows(make(batch)))
        writer = writer.outputMode(output_mode)
        if checkpoint is not None:
            writer = writer.option("checkpointLocation", checkpoint)
        return Published(peer, writer.trigger(processingTime=f"{round(every_s * 1000)} milliseconds").start())
    except BaseException:
        peer.close()
        raise
