"""What a pipeline shows on the bus while it runs: how far it is, the newest rollups, and its alarms.

    PREFIX/pipeline/batch               the last batch: number, events, seconds, when
    PREFIX/pipeline/lag                 how far behind: events, seconds
    PREFIX/pipeline/rate                events per second of the last batch, events since the start
    PREFIX/rollups/1s/BUS/PATH          the newest complete window of a state; also 1m and 1h
    PREFIX/alarms/ALARM/BUS/PATH        raised or cleared, since when, by which value
    PREFIX/STAGE/PATH                   rows of a stage of the user's own, where it asks for that
    PREFIX/query/...                    methods to ask the tables, see ``answers``

The states belong to a peer of the driver and go with it. A batch is shown when it has been committed; showing it again
changes nothing. What happens below the prefix is recorded like anything else, but never shown: a batch that has nothing
else shows nothing, or the pipeline would keep itself busy for ever.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.journal.instants import wall_clock_us, write_instant
from jetbus.peer import Peer
from jetbus.spark.answers import Answers
from jetbus.spark.errors import BadOption
from jetbus.spark.files import files_below
from jetbus.spark.manifest import Manifest
from jetbus.spark.options import Daemon
from jetbus.spark.own_stages import OwnStage
from jetbus.spark.sink import Publisher, plain
from jetbus.spark.stages import SIZES

if TYPE_CHECKING:
    from jetbus.spark.pipeline import Batch

__all__ = ["Showing", "Shown"]

Shown = dict[str, Any]
"""Values by their paths below the prefix."""

ROLLUP_COLUMNS = ("window_start", "window_end", "count", "min", "max", "mean", "time_mean", "first", "last")
ALARM_COLUMNS = ("what", "severity", "ts", "raised_at", "value")
SILENT_EVENTS = ("peer", "gone")
"""Events that alone are no reason to show anything: reading from afar makes some."""

log = logging.getLogger("jetbus.spark")


class Showing:
    """The states of one pipeline, from its start to its end."""

    def __init__(
        self, daemon: Daemon, prefix: str, own: Iterable[OwnStage] = (), query_groups: Sequence[str] = ()
    ) -> None:
        self._own = [stage for stage in own if stage.publish]
        self._query_groups = query_groups
        self.prefix = prefix.strip("/")
        if not self.prefix or self.prefix.startswith("$jet"):
            raise BadOption("publish", f"{prefix!r} is no place for states; give one of your own, such as spark/plant")
        self._peer = Peer(daemon.url, name="spark", user=daemon.user, password=daemon.password)
        self._waiting: Shown = {}
        self._events = 0
        try:
            self._peer.connect()
        except (JetError, OSError, ValueError) as problem:
            raise BadOption("publish", str(problem)) from problem
        self._states = Publisher(self._peer, self.prefix)

    def begin(self, spark: SparkSession, directory: Path, manifest: Manifest) -> None:
        """Show what is known from earlier runs: the last batch, alarms that are still raised, the newest rollups.

        And answer questions from now on.
        """
        first: Shown = {"pipeline/batch": {"number": manifest.batch, "events": 0, "seconds": 0.0, "at": None}}
        try:
            self._states.show(first.items())
        except Occupied as problem:
            taken = f"{self.prefix}/pipeline/batch"
            raise BadOption(
                "publish", f"{taken} is there already; choose another prefix, or stop the one that publishes there"
            ) from problem
        except JetError as problem:
            raise BadOption("publish", str(problem)) from problem
        Answers(spark, directory).offer(self._peer, self.prefix, self._query_groups)
        self._show(self._known(directory, manifest))

    def _known(self, directory: Path, manifest: Manifest) -> Shown:
        found: Shown = {}
        for table in SIZES:
            files = manifest.tables.get(table, [])
            newest = max((Path(file.path).name.partition("-")[0] for file in files), default="")
            latest = [directory / file.path for file in files if Path(file.path).name.startswith(newest)]
            found |= self._rollups(table, latest)
        still_open = [directory / file.path for file in manifest.open.get("alarms", [])]
        return found | {path: told for path, told in self._alarms(still_open).items() if told["what"] == "raised"}

    # -- a batch

    def made(self, staging: Path) -> Shown | None:
        """What a batch that has been made, but not committed, will show; None if that is nothing."""
        if not self._is_worth_it(staging / "events"):
            return None
        found: Shown = {}
        for table in SIZES:
            found |= self._rollups(table, files_below(staging / "rollups" / f"into={table}"))
        for own in self._own:
            found |= self._rows(own, files_below(staging / own.name / f"into={own.name}"))
        return found | self._alarms(files_below(staging / "alarms" / "into=alarms"))

    def committed(self, shown: Shown, batch: Batch, behind: int) -> None:
        """Show a batch that has been committed."""
        self._events += batch.events
        per_s = round(batch.events / batch.seconds, 1) if batch.seconds else 0.0
        about: Shown = {
            "pipeline/batch": {
                "number": batch.number,
                "events": batch.events,
                "seconds": round(batch.seconds, 3),
                "at": write_instant(wall_clock_us()),
            },
            "pipeline/lag": {"events": behind, "seconds": round(batch.lag_s, 3)},
            "pipeline/rate": {"events_per_s": per_s, "events": self._events},
        }
        self._show(shown | about)

    def close(self) -> None:
        """Take everything off the bus."""
        self._peer.close()

    def _show(self, values: Shown) -> None:
        """Show these, and what could not be shown before: tables go on while the daemon is away."""
        self._waiting |= values
        try:
            self._states.show(self._waiting.items())
        except NotConnected as problem:
            log.warning("nothing is published for now: %s", problem)
        except (JetError, BadOption):
            self._waiting = {}
            log.exception("a batch could not be published")
        else:
            self._waiting = {}

    def _is_worth_it(self, events: Path) -> bool:
        """Whether a batch has anything but what came of showing and reading."""
        for file in files_below(events):
            rows = pq.ParquetFile(file).read(columns=["path", "event"])
            own = pc.fill_null(pc.starts_with(rows["path"], pattern=f"{self.prefix}/"), False)
            silent = pc.is_in(rows["event"], value_set=pa.array(SILENT_EVENTS))
            if not pc.all(pc.or_(own, silent)).as_py():
                return True
        return False

    # -- rows as values

    def _rollups(self, table: str, files: Iterable[Path]) -> Shown:
        """The newest window of each state."""
        size = table.removeprefix("rollups_")
        rows = _newest(files, ("bus", "path"), "window_start", ROLLUP_COLUMNS)
        return {f"rollups/{size}/{row['bus']}/{row['path']}": _told(row, ROLLUP_COLUMNS) for row in self._foreign(rows)}

    def _alarms(self, files: Iterable[Path]) -> Shown:
        """What became of each alarm last."""
        rows = _newest(files, ("alarm", "bus", "path"), "seq", ALARM_COLUMNS)
        return {
            f"alarms/{row['alarm']}/{row['bus']}/{row['path']}": _told(row, ALARM_COLUMNS)
            for row in self._foreign(rows)
        }

    def _rows(self, own: OwnStage, files: Iterable[Path]) -> Shown:
        """The newest row of each path: the other columns are the value."""
        names = tuple(name for name in own.table.names if name != "path")
        rows = _newest(files, ("path",), own.table.time, names)
        return {f"{own.name}/{row['path']}": {name: plain(row[name]) for name in names} for row in self._foreign(rows)}

    def _foreign(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return (row for row in rows if row["path"] and not row["path"].startswith(f"{self.prefix}/"))


def _newest(files: Iterable[Path], keys: tuple[str, ...], order: str, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """The last row of each key."""
    wanted = list(dict.fromkeys([*keys, order, *columns]))
    parts = [pq.ParquetFile(file).read(columns=wanted) for file in files]
    if not parts:
        return []
    rest = [name for name in wanted if name not in keys]
    ordered = pa.concat_tables(parts).sort_by([(order, "ascending")])
    last = pc.ScalarAggregateOptions(skip_nulls=False)
    grouped = ordered.group_by(list(keys), use_threads=False).aggregate([(name, "last", last) for name in rest])
    rows: list[dict[str, Any]] = grouped.rename_columns({f"{name}_last": name for name in rest}).to_pylist()
    return rows


def _told(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    """The columns of a row as JSON; a value of the bus is what it was there."""
    told = {name: plain(row[name]) for name in columns}
    return told if told.get("value") is None else {**told, "value": json.loads(told["value"])}
