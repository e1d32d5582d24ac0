"""All stages over one batch: those that follow a path from event to event in one go, each other one by itself.

They run at the same time, since planning one takes as long as running it over few rows. What a task does with a part
of a large batch is done right here with the whole of a small one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pyspark.sql import DataFrame

from jetbus.spark import stages
from jetbus.spark.alarms import Alarm, alarms
from jetbus.spark.clock import Clock
from jetbus.spark.files import named
from jetbus.spark.parts import STAGES, part_of, write
from jetbus.spark.stages import Stage
from jetbus.spark.store import Store

__all__ = ["run_stages"]

FEW_EVENTS = 20_000
FEW_OPEN_BYTES = 4 * 1024 * 1024
"""Batches of no more events, and with no more carried to them, are not worth a job of Spark."""
THREADS = 4
"""Stages that run at once."""


def run_stages(
    store: Store,
    events: DataFrame,
    clock: Clock,
    wanted: tuple[Alarm, ...] = (),
    own: Mapping[str, Stage] | None = None,
) -> list[str]:
    """Write what every stage makes of a batch to the store; gives the names of those that had something to do.

    ``wanted`` are the alarms to watch for, ``own`` further stages over events by the name of their table.
    """
    carried = partial(store.carried, events.sparkSession)
    alone: dict[str, Stage] = {}
    if clock.requests or store.manifest.open.get("requests"):
        alone["requests"] = stages.requests
    if wanted:
        alone["alarms"] = partial(alarms, wanted)
    alone |= own or {}

    def run(name: str, stage: Stage) -> list[str]:
        store.stage(stage(events, carried(name, name), clock), name, name)
        return [name]

    few = _few(store, clock)
    jobs: list[Callable[[], list[str]]] = [
        partial(_write_here, store, clock) if few else partial(_write_by_spark, store, events, clock),
        *(partial(run, name, stage) for name, stage in alone.items()),
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        return [name for ran in threads.map(_called, jobs) for name in ran]


def _few(store: Store, clock: Clock) -> bool:
    open_bytes = sum(file.bytes for stage in STAGES for file in store.manifest.open.get(stage, []))
    return sum(clock.counts.values()) <= FEW_EVENTS and open_bytes <= FEW_OPEN_BYTES


def _write_by_spark(store: Store, events: DataFrame, clock: Clock) -> list[str]:
    return stages.write_paths(events, partial(store.carried, events.sparkSession), clock, str(store.staging))


def _write_here(store: Store, clock: Clock) -> list[str]:
    """The same in this process."""
    part = part_of(store.staged_files("events"), {stage: store.open_files(stage) for stage in STAGES})
    for told in write(part.to_batches(), clock=clock, folder=str(store.staging)):
        named(told.column("file").to_pylist())
    return list(STAGES)


def _called(job: Callable[[], list[str]]) -> list[str]:
    return job()
