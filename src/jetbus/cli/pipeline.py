"""``jet pipeline``: journals into tables, by Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from jetbus.cli.failures import Code
from jetbus.cli.frame import DURATION, Example, Family, command
from jetbus.cli.output import Output
from jetbus.cli.past import since_option, until_option
from jetbus.cli.spark import (
    check_journals,
    journals_option,
    master_option,
    rows_of,
    spark_explained,
    started,
    tables_option,
)

pipeline = Family("pipeline", help="Journals into tables, by Spark: history, rollups, availability, requests, alarms.")

LOOK_S = 1
"""How often a running pipeline is looked at."""
COLUMNS = ("number", "events", "seconds", "lag_s")
_alarms = click.option("--alarms", metavar="FILE", help="TOML file of alarms")


@contextmanager
def _signals() -> Iterator[list[int]]:
    """The signals that came. Ctrl-C must not break into what Spark is asked, so it is only noted."""
    came: list[int] = []
    before = {one: signal.signal(one, lambda number, _: came.append(number)) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _run(
    form: str | None,
    journals: tuple[str, ...],
    tables: str,
    alarms: str | None,
    master: str | None,
    *,
    every_s: float | None = None,
    batches: int | None = None,
    **options: Any,
) -> int:
    """Run a pipeline, once without ``every_s``; each batch is printed."""
    with spark_explained():
        check_journals(journals)
        from jetbus.spark.alarms import read_alarms
        from jetbus.spark.pipeline import Pipeline

        if alarms is not None:
            read_alarms(alarms)
        spark, printing = started(master), threading.Lock()
        done = 0
        with Output(COLUMNS, form, stream=True, heads=True, value="events") as out, _signals() as came:

            def tell(batch: Any) -> None:
                nonlocal done
                with printing:
                    done += 1
                    out.put({**asdict(batch), "seconds": round(batch.seconds, 3), "lag_s": round(batch.lag_s, 3)})

            with Pipeline(spark, journals, tables, alarm_file=alarms, on_batch=tell, **options) as running:
                running.start(every_s or 1.0, once=every_s is None)
                while not came and (batches is None or done < batches):
                    if running.wait(LOOK_S):
                        break
    return Code.INTERRUPTED if signal.SIGINT in came else Code.OK


@command(
    name="run",
    examples=[
        Example("jet pipeline run --journal log --tables tables --batches 1", "keep tables up to date; one batch here"),
        Example("jet pipeline run --journal log --tables t2 --alarms alarms.toml --once", "with alarms, to the end"),
    ],
    bus=False,
)
@journals_option
@tables_option
@_alarms
@master_option
@click.option("--once", is_flag=True, help="end when all that is there now has been read")
@click.option("--every", "every_s", type=DURATION, default="1s", metavar="DURATION", help="how often to look; 1s")
@click.option("--batches", type=click.IntRange(1), metavar="N", help="end after so many batches with events")
def run(
    form: str | None,
    journals: tuple[str, ...],
    tables: str,
    alarms: str | None,
    master: str | None,
    once: bool,
    every_s: float,
    batches: int | None,
) -> int:
    """Keep the tables in a folder up to date with journals, until Ctrl-C or SIGTERM.

    Each batch is printed when it is in the tables. What was killed goes on after the last batch: no event is lost or
    taken twice.
    """
    return _run(form, journals, tables, alarms, master, every_s=None if once else every_s, batches=batches)


@command(
    name="backfill",
    examples=[
        Example("jet pipeline backfill --journal log --tables past --since -1h", "the last hour, in a new folder"),
        Example("jet pipeline backfill --journal log --tables past", "and what has come since"),
    ],
    bus=False,
    instants=True,
)
@journals_option
@tables_option
@_alarms
@since_option
@until_option
@master_option
def backfill(
    form: str | None,
    journals: tuple[str, ...],
    tables: str,
    alarms: str | None,
    since: str | None,
    until: str | None,
    master: str | None,
) -> int:
    """Make tables of what journals have recorded, and end.

    Tables only go on: events from before their last one are not added. Give a new folder for these.
    """
    options: dict[str, Any] = {"since": since, "until": until}
    options = {name: instant for name, instant in options.items() if instant is not None}
    return _run(form, journals, tables, alarms, master, **options)


@command(
    name="status",
    examples=[
        Example("jet pipeline status tables", "how far the tables are, and how large"),
        Example("jet pipeline status tables --journal log", "and how many events they are behind"),
    ],
    bus=False,
)
@click.argument("tables", metavar="DIR")
@click.option("--journal", "-j", "journals", multiple=True, metavar="DIR", help="compare with these")
def status(form: str | None, tables: str, journals: tuple[str, ...]) -> None:
    """How far the tables in DIR have come with each bus: the last event, when it was, and the size of all tables."""
    with spark_explained():
        from jetbus.journal.instants import write_instant
        from jetbus.spark.manifest import read_manifest

        found = read_manifest(Path(tables))
        last = _last_seqs(journals)
    size = sum(file.bytes for files in (*found.tables.values(), *found.open.values()) for file in files)
    columns = ("bus", "batch", "seq", "at", "bytes", "behind")
    with Output(columns, form, value="seq") as out:
        for bus, seq in found.seqs.items():
            told = {"bus": bus, "batch": found.batch, "seq": seq, "at": write_instant(found.clock_us[bus])}
            out.put({**told, "bytes": size, **({"behind": last[bus] - seq} if bus in last else {})})


def _last_seqs(journals: tuple[str, ...]) -> dict[str, int]:
    if not journals:
        return {}
    import jetbus.journal

    return {bus: offsets["last"] for bus, offsets in jetbus.journal.open(*journals).offsets().items()}


@command(
    name="backtest",
    examples=[
        Example("jet pipeline backtest alarms.toml --journal log", "what would these alarms have raised?"),
        Example("jet pipeline backtest alarms.toml --journal log --since -1h --output csv", "in the last hour"),
    ],
    bus=False,
    instants=True,
)
@click.argument("alarms", metavar="FILE")
@journals_option
@since_option
@until_option
@master_option
def backtest(
    form: str | None,
    alarms: str,
    journals: tuple[str, ...],
    since: str | None,
    until: str | None,
    master: str | None,
) -> None:
    """What the alarms of a TOML FILE would have raised and cleared over recorded history."""
    with spark_explained():
        check_journals(journals)
        from jetbus.spark import tables
        from jetbus.spark.alarms import check_alarms, read_alarms

        wanted, spark = read_alarms(alarms), started(master)
        check_alarms(wanted, spark)
        options = {name: instant for name, instant in (("since", since), ("until", until)) if instant is not None}
        found = tables.alarms(spark.read.format("jet").options(**options).load(list(journals)), wanted)
        with Output(found.columns, form, value=found.columns[0]) as out:
            out.put_all(rows_of(found))


for _one in (run, backfill, status, backtest):
    pipeline.add_command(_one)
