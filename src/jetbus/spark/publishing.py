"""States that a pipeline publishes while it runs: how far it is, the newest rollups, its alarms and expectations.

    PREFIX/pipeline/batch               the last batch: number, events, seconds, when
    PREFIX/pipeline/lag                 how far behind: events, seconds
    PREFIX/pipeline/rate                events per second of the last batch, events since the start
    PREFIX/pipeline/restarts            times that the query was started again, why and when the last time
    PREFIX/pipeline/ui                  address of Spark's own page, if it has one
    PREFIX/rollups/1s/BUS/PATH          the newest complete window of a state; also 1m and 1h
    PREFIX/alarms/ALARM/BUS/PATH        raised or cleared, since when, by which value and unit
    PREFIX/expectations/TABLE/NAME      rows that were looked at in the last batch, and rows that failed so far
    PREFIX/STAGE/PATH                   rows of a stage of the user's own, where it asks for that
    PREFIX/query/...                    methods to ask the tables, see ``query_methods``

The states belong to a peer of the driver and go with it. Alarms are shown as soon as they are computed, other rows when
they are committed; showing them again changes nothing. States below the prefix are recorded like all others,
but never shown: a batch that has nothing else shows nothing, or the pipeline would keep itself busy for ever.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.journal.instants import write_instant
from jetbus.peer import Peer
from jetbus.spark.batch import CommittedBatch
from jetbus.spark.catalog import Tables
from jetbus.spark.clock import micros
from jetbus.spark.options import DaemonAddress
from jetbus.spark.query_methods import Answers
from jetbus.spark.schemas import TABLES, Table
from jetbus.spark.sink import STATES_MAX, Publisher, plain
from jetbus.spark.snapshot import OPEN_ALARMS
from jetbus.spark.spark_errors import BadOption
from jetbus.spark.spark_session import ui_address
from jetbus.spark.sql_text import quote
from jetbus.spark.user_stages import OwnStage

if TYPE_CHECKING:
    from jetbus.spark.pipeline import Batch

__all__ = ["Publishing"]

ROLLUP_COLUMNS = ("window_start", "window_end", "count", "min", "max", "mean", "time_mean", "first", "last")
ALARM_COLUMNS = ("what", "severity", "ts", "raised_at", "value", "unit")

log = logging.getLogger("jetbus.spark")


class Publishing:
    """The states of one pipeline, from its start to its end."""

    def __init__(self, daemon: DaemonAddress, prefix: str, own: Iterable[OwnStage] = ()) -> None:
        self._own = [stage for stage in own if stage.publish]
        self.prefix = prefix.strip("/")
        if not self.prefix or self.prefix.startswith("$jet"):
            raise BadOption("publish", f"{prefix!r} cannot hold states; give a prefix of your own, such as spark/plant")
        self._peer = Peer(daemon.url, name="spark", user=daemon.user, password=daemon.password)
        self._waiting: dict[str, Any] = {}
        self._events = 0
        self._failed: dict[str, int] = {}
        try:
            self._peer.connect()
        except (JetError, OSError, ValueError) as problem:
            raise BadOption("publish", str(problem)) from problem
        self._states = Publisher(self._peer, self.prefix)
        self._answers: Answers | None = None

    def begin(self, spark: SparkSession, tables: Tables, *, query_groups: Sequence[str], query_open: bool) -> None:
        """Publish the results of earlier runs: the last batch, alarms that are still raised, the newest rollups.

        From now on answer queries, too, if they are allowed.
        """
        first: dict[str, Any] = {
            "pipeline/batch": {"number": tables.progress.batch, "events": 0, "seconds": 0.0, "at": None},
            "pipeline/restarts": {"count": 0, "why": None, "at": None},
        }
        if (address := ui_address(spark)) is not None:
            first["pipeline/ui"] = address
        try:
            # These claim the prefix: a second pipeline finds them occupied.
            self._states.show(first.items())
        except Occupied as problem:
            taken = f"{self.prefix}/pipeline/batch"
            raise BadOption(
                "publish", f"{taken} is there already; choose another prefix, or stop the one that publishes there"
            ) from problem
        except JetError as problem:
            raise BadOption("publish", str(problem)) from problem
        if query_groups or query_open:
            self._answers = Answers(spark, tables.location)
            self._answers.offer(self._peer, self.prefix, query_groups)
        raised = tables.frame(OPEN_ALARMS).where("what = 'raised'")
        alarms = self._newest(raised, ("alarm", "bus", "path"), "seq", ALARM_COLUMNS)
        self._show({**self._alarms(alarms), **self._rollups(_newest_rollups(tables))})

    # -- rows of a batch

    def show_alarms(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Show alarms that were raised or cleared, as ``newest_signals`` has them."""
        # An alarm about a state of our own would become another such state.
        own = f"{self.prefix}/"
        self._show(self._alarms({**row, **row["newest"]} for row in rows if not row["path"].startswith(own)))

    def show_batch(self, spark: SparkSession, made: CommittedBatch) -> None:
        """Show the rows of a batch that was committed."""

        def rows(name: str, table: Table) -> DataFrame:
            # The files of the batch, not the table: rows without a day are not part of it, see ``batch``.
            return spark.read.schema(table.stored).parquet(made.folders[name]).where(F.col("day").isNotNull())

        found: dict[str, Any] = {}
        if "rollups" in made.folders:
            found |= self._rollups(rows("rollups", TABLES["rollups"]))
        for own in self._own:
            if own.name in made.folders:
                found |= self._rows(own, rows(own.name, own.table))
        for one in made.outcomes:
            path = f"expectations/{one.expectation.table}/{one.expectation.name}"
            self._failed[path] = self._failed.get(path, 0) + one.failed
            found[path] = {"rows": one.rows, "failed": one.failed, "failed_so_far": self._failed[path]}
        if found:
            self._show(found)

    def show_progress(self, batch: Batch) -> None:
        """Show how far the pipeline is."""
        self._events += batch.events
        about = {
            "pipeline/batch": {
                "number": batch.number,
                "events": batch.events,
                "seconds": round(batch.seconds, 3),
                "at": write_instant(micros(batch.at)),
            },
            "pipeline/lag": {"events": batch.behind, "seconds": round(batch.lag_s, 3)},
            "pipeline/rate": {"events_per_s": round(batch.events_per_s, 1), "events": self._events},
        }
        self._show(about)

    def show_restart(self, count: int, why: str) -> None:
        """Show that the query is started again."""
        at = write_instant(micros(datetime.now(UTC)))
        self._show({"pipeline/restarts": {"count": count, "why": why, "at": at}})

    def close(self) -> None:
        """Take everything off the bus."""
        # First, so that no more questions arrive.
        self._peer.close()
        if self._answers is not None:
            self._answers.close()

    def _show(self, values: dict[str, Any]) -> None:
        """Publish these values, and those that waited for the daemon: tables go on while it is away."""
        # By path, so that at most one value for each state waits for a daemon that is away.
        self._waiting |= values
        try:
            self._states.show(self._waiting.items())
        except NotConnected as problem:
            log.warning("the daemon is away, states are published when it is back: %s", problem)
        except (JetError, BadOption):
            self._waiting = {}
            log.exception("a batch could not be published")
        else:
            self._waiting = {}

    # -- rows as values

    def _rollups(self, rows: DataFrame) -> dict[str, Any]:
        """Give the newest window of each state."""
        found = self._newest(rows, ("size", "bus", "path"), "window_start", ROLLUP_COLUMNS)
        return {
            f"rollups/{row['size']}/{row['bus']}/{row['path']}": {name: plain(row[name]) for name in ROLLUP_COLUMNS}
            for row in found
        }

    def _alarms(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the last row of each alarm and path, with values as they were on the bus."""
        shown = {}
        for row in rows:
            cells = {name: plain(row[name]) for name in ALARM_COLUMNS}
            value = None if cells["value"] is None else json.loads(cells["value"])
            shown[f"alarms/{row['alarm']}/{row['bus']}/{row['path']}"] = {**cells, "value": value}
        return shown

    def _rows(self, own: OwnStage, rows: DataFrame) -> dict[str, Any]:
        """Give the newest row of each path: the other columns are the value."""
        names = tuple(name for name in own.table.names if name != "path")
        found = self._newest(rows, ("path",), str(own.table.time), names)
        return {f"{own.name}/{row['path']}": {name: plain(row[name]) for name in names} for row in found}

    def _newest(
        self, rows: DataFrame, key: tuple[str, ...], order: str, columns: tuple[str, ...]
    ) -> list[dict[str, Any]]:
        """Collect the last row of each key, those below our own prefix left out."""
        newest = (
            rows.where(f"path is not null and not startswith(path, {quote(self.prefix + '/')})")
            .groupBy(*key)
            .agg(F.expr(f"max_by(struct({', '.join(columns)}), {order})").alias("rest"))
        )
        found = newest.select(*key, "rest.*").limit(STATES_MAX + 1).collect()
        return [row.asDict() for row in found]


def _newest_rollups(tables: Tables) -> DataFrame:
    """Read the last windows of each size; statistics of files say where these are."""
    rows = tables.frame("rollups")
    ends: dict[str, Any] = {}
    for one in tables.actions("rollups"):
        size, end = one["partition.size"], one.get("max.window_start")
        if end is not None and (size not in ends or end > ends[size]):
            ends[size] = end
    is_last = [
        (F.col("size") == size) & (F.col("window_start") >= F.timestamp_micros(F.lit(micros(end))))
        for size, end in ends.items()
    ]
    return rows.where(reduce(Column.__or__, is_last, F.lit(False)))
