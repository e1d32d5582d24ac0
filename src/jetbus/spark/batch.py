"""One batch from the journals to files: its events, and what all stages make of them.

A large batch is made by tasks of Spark: they first take a range of events each, then a part of all paths; the rows
themselves never go through Java. What tasks do with a large batch is done right here with a small one: to plan and
start a job would take ten times as long as what is to be done. Stages of another kind each run by themselves and at
the same time, over the events that have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from jetbus.spark.alarms import Watching
from jetbus.spark.buses import SeqRange
from jetbus.spark.clock import Clock, Counted
from jetbus.spark.files import named, write_places
from jetbus.spark.parts import STAGES, carried_rows, parts_of, write
from jetbus.spark.queries import JobError, explained
from jetbus.spark.requests import count_requests
from jetbus.spark.schemas import TABLES
from jetbus.spark.source import EventStreamReader
from jetbus.spark.stages import Stage
from jetbus.spark.store import Store
from jetbus.spark.taking import Taken, lay_out_carried, read_part, take, take_apart
from jetbus.spark.workers import settle

__all__ = ["FEW_EVENTS", "TakenEvents", "run_stages", "take_events"]

FEW_EVENTS = 20_000
FEW_OPEN_BYTES = 4 * 1024 * 1024
"""Batches of no more events, and with no more carried to them, are not worth a job of Spark."""
THREADS = 4
"""Stages that run at once."""


@dataclass(frozen=True)
class TakenEvents:
    """A batch whose events have been written."""

    counted: Sequence[Counted]
    write_paths: Callable[[Clock], None]
    """Writes what history, rollups and availability make of them."""
    requests: Sequence[pa.Table]
    """The requests among them."""
    few: pa.Table | None = None
    """The events themselves, where they are a few."""


def take_events(
    spark: SparkSession, store: Store, reader: EventStreamReader, ranges: Sequence[SeqRange], few: int = FEW_EVENTS
) -> TakenEvents:
    """Take the events of some ranges: right here if they are a few."""
    store.begin()
    events = sum(one.size for one in ranges)
    open_bytes = sum(file.bytes for stage in STAGES for file in store.manifest.open.get(stage, []))
    if events <= few and open_bytes <= FEW_OPEN_BYTES:
        return _take_here(store, reader, ranges)
    return _take_by_tasks(spark, store, reader, ranges, parts_of(events))


def _folder(store: Store) -> Path:
    return store.staging / "events" / "into=events"


# -- a few


def _take_here(store: Store, reader: EventStreamReader, ranges: Sequence[SeqRange]) -> TakenEvents:
    groups = list(take(reader, ranges, _folder(store)))
    named(file for group in groups for file in group.files)

    def write_paths(clock: Clock) -> None:
        carried = carried_rows({stage: store.open_files(stage) for stage in STAGES})
        rows = pa.concat_tables([*(group.signs for group in groups), *carried], promote_options="default")
        named(write(rows, clock=clock, folder=store.staging))

    few = pa.concat_tables([group.events for group in groups]) if groups else None
    counted = [one for group in groups for one in group.counted]
    return TakenEvents(counted, write_paths, [group.requests for group in groups], few)


# -- by tasks


def _take_by_tasks(
    spark: SparkSession, store: Store, reader: EventStreamReader, ranges: Sequence[SeqRange], parts: int
) -> TakenEvents:
    lines = store.staging / "lines"
    told = _run(
        spark,
        [
            *(partial(take_apart, reader, one, folder=_folder(store), lines=lines, parts=parts) for one in ranges),
            *(partial(lay_out_carried, files, lines=lines, parts=parts) for files in _carried(store)),
        ],
    )
    taken = [one for one in told if isinstance(one, Taken)]
    named(file for one in taken for file in one.files)
    laid_out = [one.laid_out if isinstance(one, Taken) else one for one in told]
    files = [file for file in laid_out if file is not None]

    def write_paths(clock: Clock) -> None:
        jobs = [partial(_write_part, files, part, clock, store.staging) for part in range(parts)]
        named(file for written in _run(spark, jobs) for file in written)

    requests = [table for one in taken for table in one.requests]
    return TakenEvents([counted for one in taken for counted in one.counted], write_paths, requests)


def _write_part(files: Sequence[str], part: int, clock: Clock, folder: Path) -> list[str]:
    return write(read_part(files, part), clock=clock, folder=folder)


def _carried(store: Store) -> list[Mapping[str, Sequence[Path]]]:
    """The files of open rows by stage, as many for one task as are worth it."""
    bundles: list[dict[str, list[Path]]] = []
    left_bytes = 0
    for stage in STAGES:
        for file in store.manifest.open.get(stage, []):
            left_bytes -= file.bytes
            if left_bytes < 0:
                bundles.append({})
                left_bytes = FEW_OPEN_BYTES
            bundles[-1].setdefault(stage, []).append(store.directory / file.path)
    return [*bundles]


def _run(spark: SparkSession, jobs: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run each in a task of its own; gives what they give. An error of ours is the one that the task has raised."""
    try:
        return spark.sparkContext.parallelize(jobs, len(jobs)).map(_done).collect()
    except JobError as problem:
        raise explained(problem) from problem


def _done(job: Callable[[], Any]) -> Any:
    found = job()
    settle()
    return found


# -- all stages


def run_stages(
    spark: SparkSession,
    store: Store,
    taken: TakenEvents,
    clock: Clock,
    watching: Watching | None = None,
    own: Mapping[str, Stage] | None = None,
) -> list[str]:
    """Write what every stage makes of a batch to the store; gives the names of those that had something to do.

    ``watching`` has the alarms to watch for, ``own`` further stages over events by the name of their table.
    """

    def run(name: str, stage: Stage) -> None:
        events = store.staged(spark, "events", "events")
        store.stage(stage(events, store.carried(spark, name, name), clock), name, name)

    alone: dict[str, Callable[[], None]] = {}
    if clock.requests or store.manifest.open.get("requests"):
        alone["requests"] = partial(_count_here, store, taken.requests, clock)
    if watching is not None and taken.few is not None:
        alone["alarms"] = partial(_watch_here, spark, store, watching, taken.few, clock)
    elif watching is not None:
        alone["alarms"] = partial(run, "alarms", watching.stage)
    alone |= {name: partial(run, name, stage) for name, stage in (own or {}).items()}
    jobs: list[Callable[[], None]] = [partial(taken.write_paths, clock), *alone.values()]
    if len(jobs) == 1:
        jobs[0]()
    else:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(lambda job: job(), jobs))
    return ["events", *STAGES, *alone]


def _count_here(store: Store, requests: Sequence[pa.Table], clock: Clock) -> None:
    carried = [pq.ParquetFile(file).read() for file in store.open_files("requests")]
    counted = count_requests([*requests, *carried], clock)
    named(write_places(counted, store.staging / "requests", TABLES["requests"].time))


def _watch_here(spark: SparkSession, store: Store, watching: Watching, events: pa.Table, clock: Clock) -> None:
    made = watching.made(spark, events, store.open_files("alarms"), clock)
    if made is not None:
        named(write_places(made, store.staging / "alarms", TABLES["alarms"].time))
