"""``jet pipeline``: journals into tables, by Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from jetbus.cli.batches import COLUMNS, progress, record_of
from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, usage
from jetbus.cli.frame import DURATION, Example, Family, bus_is_named, command
from jetbus.cli.output import Output
from jetbus.cli.past import since_option, until_option
from jetbus.cli.spark import (
    check_journals,
    journals_option,
    master_option,
    rows_of,
    spark_explained,
    started,
    storage_option,
    tables_option,
    ui_option,
)

pipeline = Family("pipeline", help="Journals into tables, by Spark: history, rollups, availability, requests, alarms.")

_alarms = click.option("--alarms", metavar="FILE", help="TOML file of alarms")
_stages = click.option("--stages", metavar="FILE", help="TOML file of stages of your own")
_expectations = click.option(
    "--expectations", metavar="FILE", help="TOML file of conditions that rows must meet: warn, drop or fail"
)


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
    master: str | None,
    ui: str | None,
    *,
    every_s: float | None = None,
    batches: int | None = None,
    login: dict[str, str] | None = None,
    **options: Any,
) -> int:
    """Run a pipeline, once without ``every_s``; each batch is printed."""
    with spark_explained():
        _check(journals, tables, login or {}, options)
        options |= login or {}
        from jetbus.spark.pipeline import Batch, Pipeline

        # Spark has a handler of its own for Ctrl-C, which ours must follow.
        spark, printing = started(master, ui=ui), threading.Lock()
        done, failed = 0, list[Exception]()
        with Output(COLUMNS, form, stream=True, heads=True, value="events") as out, _signals() as came:

            def tell(batch: Batch) -> None:
                nonlocal done
                try:
                    with printing:
                        done += 1
                        out.put(record_of(batch))
                        show(batch)
                except Exception as problem:  # Spark would only log it: this is called by its listener
                    failed.append(problem)

            with (
                Pipeline(spark, journals, tables, on_batch=tell, **options) as running,
                progress(running.behind) as show,
            ):
                running.start(every_s or 1.0, once=every_s is None)
                running.follow(lambda: len(came) or len(failed) > 0 or (batches is not None and done >= batches))
            if failed:
                raise failed[0]
    return Code.INTERRUPTED if signal.SIGINT in came else Code.OK


def _check(journals: tuple[str, ...], tables: str, login: dict[str, str], options: dict[str, Any]) -> None:
    """Find what is wrong with the places and files of a pipeline before Spark takes its time to start."""
    check_journals(journals, **login)
    from jetbus.spark.alarms import read_alarms
    from jetbus.spark.expectations import parse_expectations
    from jetbus.spark.location import read_location

    read_location(tables)
    if options.get("checkpoint") is not None:
        read_location(options["checkpoint"], option="checkpoint")
    if options.get("alarm_file") is not None:
        read_alarms(options["alarm_file"])
    if options.get("expectation_file") is not None:
        parse_expectations(options["expectation_file"])


@command(
    name="run",
    examples=[
        Example("jet pipeline run --journal log --tables tables --batches 1", "keep tables up to date; one batch here"),
        Example("jet pipeline run --journal log --tables t2 --alarms alarms.toml --once", "with alarms, to the end"),
    ],
)
@journals_option
@tables_option
@_alarms
@_stages
@_expectations
@click.option("--publish", metavar="PREFIX", help="show lag, rollups and alarms as states below this path")
@click.option("--query-group", "groups", multiple=True, metavar="GROUP", help="its members may ask; repeatable")
@click.option("--query-open", is_flag=True, help="everybody may ask; without it and --query-group nobody")
@click.option("--checkpoint", metavar="DIR|URI", help="where Spark keeps how far it is; below the tables unless given")
@storage_option
@master_option
@ui_option
@click.option("--once", is_flag=True, help="end when all that is there now has been read")
@click.option("--every", "every_s", type=DURATION, metavar="DURATION", help="how often to look; 1s unless given")
@click.option("--batches", type=click.IntRange(1), metavar="N", help="end after so many batches with events")
@click.option("--batch-events", type=click.IntRange(1), metavar="N", help="events of one batch, at the most; 1000000")
@click.option(
    "--merge-every", type=click.IntRange(0), metavar="N", help="merge small files after N batches; 100, 0 never"
)
def run(
    bus: Bus,
    form: str | None,
    journals: tuple[str, ...],
    tables: str,
    alarms: str | None,
    stages: str | None,
    expectations: str | None,
    publish: str | None,
    groups: tuple[str, ...],
    query_open: bool,
    checkpoint: str | None,
    storage: dict[str, str],
    master: str | None,
    ui: str | None,
    once: bool,
    every_s: float | None,
    batches: int | None,
    batch_events: int | None,
    merge_every: int | None,
) -> int:
    """Keep the tables in a folder, or at a URI, up to date with journals, until Ctrl-C or SIGTERM.

    Each batch is printed when it is in the tables. What was killed goes on after the last batch: no event is lost or
    taken twice. A first Ctrl-C waits for the batch, a second one does not.

    With --publish what it finds is shown at the daemon that is read, or at the bus of --url, and those of --query-group
    or --query-open may ask; docs/spark.md has the states, and the methods that answer questions.

    Spark's UI is on; its address is told on stderr.
    """
    if once and every_s is not None:
        raise usage("--once looks once and --every again and again; give one of them")
    if groups and query_open:
        raise usage("--query-open lets everybody ask and --query-group only some; give one of them")
    if publish is None and (groups or query_open):
        raise usage("questions are asked over the bus; say below which path with --publish PREFIX")
    remote = any("://" in journal for journal in journals)
    options: dict[str, Any] = {"publish": publish, "query_groups": groups, "query_open": query_open}
    given = {"batch_events_max": batch_events, "merge_every": merge_every, "checkpoint": checkpoint}
    options |= {name: value for name, value in given.items() if value is not None}
    if publish is not None and (bus_is_named() or not remote):
        options["publish_url"] = _daemon(bus)
    return _run(
        form,
        journals,
        tables,
        master,
        ui,
        every_s=None if once else every_s or 1.0,
        batches=batches,
        login=_login(bus) if remote else None,
        alarm_file=alarms,
        stage_file=stages,
        expectation_file=expectations,
        storage=storage,
        **options,
    )


def _login(bus: Bus) -> dict[str, str]:
    """Who to be at the daemons that are read, if the command line says so; else their addresses do."""
    if click.get_current_context().params.get("user") is None:
        return {}
    return {name: text for name, text in (("user", bus.user), ("password", bus.password)) if text is not None}


def _daemon(bus: Bus) -> Any:
    """The bus of the command line, as the Spark side names it."""
    from jetbus.spark.options import Daemon

    if bus.ca is not None:
        raise usage("--ca is not for Spark; let the machine trust the certificate, or publish at another address")
    return Daemon(bus.url or bus.shown_url, bus.user, bus.password)


@command(
    name="backfill",
    examples=[
        Example("jet pipeline backfill --journal log --tables past --since -1h --until now", "the last hour"),
        Example("jet pipeline backfill --journal log --tables past", "and what has come since"),
    ],
    bus=False,
    instants=True,
)
@journals_option
@tables_option
@_alarms
@_stages
@_expectations
@since_option
@until_option
@storage_option
@master_option
@ui_option
def backfill(
    form: str | None,
    journals: tuple[str, ...],
    tables: str,
    alarms: str | None,
    stages: str | None,
    expectations: str | None,
    since: str | None,
    until: str | None,
    storage: dict[str, str],
    master: str | None,
    ui: str | None,
) -> int:
    """Make tables of a time that journals have recorded, in a new folder, and end.

    What was stopped or killed goes on with the same command. A later run, without --since, adds what comes after
    --until. Tables have no holes and do not grow backwards: a time that would need that is refused, and so is a folder
    that another pipeline writes to.
    """
    options: dict[str, Any] = {"since": since, "until": until}
    options = {name: instant for name, instant in options.items() if instant is not None}
    files: dict[str, Any] = {"alarm_file": alarms, "stage_file": stages, "expectation_file": expectations}
    return _run(form, journals, tables, master, ui, storage=storage, **files, **options)


@command(
    name="status",
    examples=[
        Example("jet pipeline status tables", "how far the tables are, and how large"),
        Example("jet pipeline status tables --journal log", "and how many events they are behind"),
    ],
    bus=False,
)
@click.argument("tables", metavar="DIR|URI")
@click.option("--journal", "-j", "journals", multiple=True, metavar="DIR|URL", help="compare with these")
@storage_option
def status(form: str | None, tables: str, journals: tuple[str, ...], storage: dict[str, str]) -> None:
    """How far the tables in a folder, or at a URI, have come with each bus: its last event, up to when all is known.

    Bytes are those of all tables together, without files of old versions. Whether a pipeline is at work is known of
    tables on this machine.
    """
    with spark_explained():
        from jetbus.journal.instants import write_instant
        from jetbus.spark.location import read_location
        from jetbus.spark.maintenance import count_bytes
        from jetbus.spark.store import read_progress

        location = read_location(tables, storage)
        found = read_progress(location)
        size = count_bytes(location)
        last = _last_seqs(journals)
    running = {} if location.local is None else {"running": _is_locked(location.local / "lock")}
    columns = ("bus", "batch", "seq", "at", "bytes", "running", "behind")
    with Output(columns, form, value="seq") as out:
        for bus, position in found.positions.items():
            reached = {"bus": bus, "batch": found.batch, "seq": position.seq, "at": write_instant(position.us)}
            behind = {"behind": last[bus] - position.seq} if bus in last else {}
            out.put({**reached, "bytes": size, **running, **behind})


def _last_seqs(journals: tuple[str, ...]) -> dict[str, int]:
    if not journals:
        return {}
    from jetbus.spark.buses import OpenBuses
    from jetbus.spark.options import read_options

    buses = OpenBuses(read_options(check_journals(journals)))
    try:
        return buses.ends()
    finally:
        buses.close()


def _is_locked(lock: Path) -> bool:
    """Whether somebody writes to the tables."""
    import fcntl

    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


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
    """What the alarms of a TOML FILE would have raised and cleared over recorded history.

    Hold times end by the clock, as they do in a pipeline: nothing has to happen on the bus for an alarm to be raised.
    """
    with spark_explained():
        places = check_journals(journals)
        from jetbus.spark import tables
        from jetbus.spark.alarms import check_alarms, read_alarms

        wanted, spark = read_alarms(alarms), started(master)
        check_alarms(wanted, spark)
        options = {name: instant for name, instant in (("since", since), ("until", until)) if instant is not None}
        log = spark.read.format("jet").options(**places, **options, clock="true").load()
        found = tables.alarms(log, wanted)
        with Output(found.columns, form, value=found.columns[0]) as out:
            out.put_all(rows_of(found))


for _one in (run, backfill, status, backtest):
    pipeline.add_command(_one)
