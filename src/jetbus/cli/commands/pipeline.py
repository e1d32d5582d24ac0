"""``jet pipeline``: make tables of journals with Spark.

A pipeline must end between two batches, not in the midst of a call to Spark. So signals are only collected while it
runs, and the main thread looks at them. The batches themselves are reported by a thread of Spark, where errors would be
swallowed; they are collected in the same way and raised by the main thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from jetbus.cli.command import DURATION, Duration, Example, Family, command, is_bus_named
from jetbus.cli.exit_codes import Code, print_message, usage_error
from jetbus.cli.journals import since_option, until_option
from jetbus.cli.output import Output
from jetbus.cli.progress import BATCH_COLUMNS, show_batches, to_batch_record
from jetbus.cli.spark import (
    check_journals,
    explain_spark_errors,
    find_tables,
    iterate_rows,
    journals_option,
    master_option,
    start_spark,
    storage_option,
    tables_option,
    ui_option,
)
from jetbus.cli.target import Target

pipeline = Family(
    "pipeline", help="Make tables of journals with Spark: history, rollups, availability, requests, alarms."
)


class Keep(Duration):
    """Parameter type for a duration, or ``off``, which becomes 0."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return 0.0 if value == "off" else super().convert(value, param, ctx)


KEEP = Keep()
_alarms = click.option("--alarms", metavar="FILE", help="TOML file of alarms")
_stages = click.option("--stages", metavar="FILE", help="TOML file of custom stages")
_expectations = click.option(
    "--expectations", metavar="FILE", help="TOML file of conditions on rows: warn, drop or fail"
)


@contextmanager
def _collect_signals(signals: list[int], *numbers: int) -> Iterator[None]:
    """Collect some signals in a list, since they must not interrupt a call to Spark."""
    before = {one: signal.signal(one, lambda number, _: signals.append(number)) for one in numbers}
    try:
        yield
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
    """Run a pipeline and print each batch; without ``every_s``, end when all events are read.

    Batches are reported by a thread of Spark, while this one waits for signals.
    """
    signals: list[int] = []
    with explain_spark_errors(), _collect_signals(signals, signal.SIGTERM):
        _check(journals, tables, login or {}, options)
        options |= login or {}
        from jetbus.spark.pipeline import Batch, Pipeline
        from jetbus.spark.spark_errors import JavaGone

        spark, printing = start_spark(master, ui=ui), threading.Lock()
        done, failed = 0, list[Exception]()
        # Spark installs a handler for Ctrl-C when it starts, so ours must be installed after it.
        with (
            _collect_signals(signals, signal.SIGINT),
            Output(BATCH_COLUMNS, form, stream=True, heads=True, value="events") as out,
        ):

            def tell(batch: Batch) -> None:
                nonlocal done
                try:
                    with printing:
                        done += 1
                        out.put(to_batch_record(batch))
                        show(batch)
                except Exception as problem:  # called by a listener of Spark, which would only log it
                    failed.append(problem)

            with (
                Pipeline(spark, journals, tables, on_batch=tell, **options) as running,
                show_batches(running.behind) as show,
            ):
                try:
                    running.start(every_s or 1.0, once=every_s is None)
                    # Two signals are more than one: ``follow`` ends at once at 2, and after the current batch at 1.
                    running.follow(lambda: len(signals) or len(failed) > 0 or (batches is not None and done >= batches))
                except JavaGone:
                    # Whoever stops all processes of a service stops Java, too.
                    if not signals:
                        raise
            if failed:
                raise failed[0]
    if signal.SIGTERM in signals:
        batch = running.store.progress.batch
        print_message(f"stopped by SIGTERM; the next run goes on {f'after batch {batch}' if batch >= 0 else 'here'}")
    return Code.INTERRUPTED if signal.SIGINT in signals else Code.OK


def _check(journals: tuple[str, ...], tables: str, login: dict[str, str], options: dict[str, Any]) -> None:
    """Check the places and files of a pipeline before the slow start of Spark."""
    check_journals(journals, **login)
    from jetbus.spark.alarms import read_alarms
    from jetbus.spark.expectations import parse_expectations
    from jetbus.spark.location import read_location

    find_tables(tables)
    if options.get("checkpoint") is not None:
        read_location(options["checkpoint"], option="checkpoint")
    if options.get("alarm_file") is not None:
        read_alarms(options["alarm_file"])
    if options.get("expectation_file") is not None:
        parse_expectations(options["expectation_file"])


@command(
    name="run",
    examples=[
        Example(
            "jet pipeline run --journal log --tables tables --batches 1", "keep tables up to date; here for one batch"
        ),
        Example(
            "jet pipeline run --journal log --tables t2 --alarms alarms.toml --once",
            "with alarms, until all events are read",
        ),
    ],
)
@journals_option
@tables_option
@_alarms
@_stages
@_expectations
@click.option("--publish", metavar="PREFIX", help="publish lag, rollups and alarms as states below this path")
@click.option(
    "--query-group", "groups", multiple=True, metavar="GROUP", help="allow queries by members of GROUP; repeatable"
)
@click.option("--query-open", is_flag=True, help="allow queries by everybody; by default nobody may query")
@click.option("--checkpoint", metavar="DIR|URI", help="folder of Spark's checkpoint; default: below the tables")
@storage_option
@master_option
@ui_option
@click.option("--once", is_flag=True, help="stop when all present events are read")
@click.option("--every", "every_s", type=DURATION, metavar="DURATION", help="interval between batches; default: 1s")
@click.option("--batches", type=click.IntRange(1), metavar="N", help="stop after N batches with events")
@click.option(
    "--batch-events", type=click.IntRange(1), metavar="N", help="maximum number of events per batch; default: 1000000"
)
@click.option(
    "--merge-every",
    type=click.IntRange(0),
    metavar="N",
    help="merge small files every N batches; default: 100, 0 for never",
)
@click.option(
    "--keep",
    type=KEEP,
    metavar="DURATION|off",
    help="remove files that only older versions of the tables need; default: 7d, at least 1h",
)
def run(
    bus: Target,
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
    keep: float | None,
) -> int:
    """Keep the tables in a folder, or at a URI, up to date with journals, until Ctrl-C or SIGTERM.

    Each batch is printed when it is in the tables. A pipeline that was killed continues after its last batch: no event
    is lost or processed twice. The first Ctrl-C waits for the current batch, the second does not.

    With --publish the results are published at the daemon that is read, or at the bus of --url, where --query-group or
    --query-open allow queries; `jet tree PREFIX` then shows the states and methods.

    The address of Spark's UI is printed to stderr.
    """
    if once and every_s is not None:
        raise usage_error("--once and --every exclude each other; give one of them")
    if groups and query_open:
        raise usage_error("--query-open and --query-group exclude each other; give one of them")
    if publish is None and (groups or query_open):
        raise usage_error("queries arrive over the bus; choose their path with --publish PREFIX")
    remote = any("://" in journal for journal in journals)
    # The defaults of the rest are those of ``Pipeline``, and stated nowhere else.
    options: dict[str, Any] = {"publish": publish, "query_groups": groups, "query_open": query_open}
    optional = {"batch_events_max": batch_events, "merge_every": merge_every, "checkpoint": checkpoint}
    options |= {name: value for name, value in optional.items() if value is not None}
    if keep is not None:
        options["keep_s"] = keep or None
    # By default the results go to the daemon that is read; a folder has none, so the bus of the command is used.
    if publish is not None and (is_bus_named() or not remote):
        options["publish_url"] = _make_daemon(bus)
    if bus.wait:
        _await_daemons(bus, journals, publishes="publish_url" in options)
    return _run(
        form,
        journals,
        tables,
        master,
        ui,
        every_s=None if once else every_s or 1.0,
        batches=batches,
        login=_read_login(bus) if remote else None,
        alarm_file=alarms,
        stage_file=stages,
        expectation_file=expectations,
        storage=storage,
        **options,
    )


def _await_daemons(bus: Target, journals: tuple[str, ...], *, publishes: bool) -> None:
    """Wait until the daemons that are read, and the one where results are published, accept connections."""
    for journal in journals:
        if "://" in journal:
            replace(bus, url=journal, user=None, password=None).connect().close()
    if publishes:
        bus.connect().close()


def _read_login(bus: Target) -> dict[str, str]:
    """Return the login for the daemons that are read; empty if it is part of their URLs."""
    # The login of a context belongs to its own bus, and must not be sent to the daemons that are read.
    if click.get_current_context().params.get("user") is None:
        return {}
    return {name: text for name, text in (("user", bus.user), ("password", bus.password)) if text is not None}


def _make_daemon(bus: Target) -> Any:
    """Return the bus of the command line as an option of the pipeline."""
    if bus.ca is not None:
        raise usage_error(
            "--ca does not apply to Spark; install the certificate on this machine, or publish at another address"
        )
    return bus.address


@command(
    name="backfill",
    examples=[
        Example("jet pipeline backfill --journal log --tables past --since -1h --until now", "the last hour"),
        Example("jet pipeline backfill --journal log --tables past", "and the events since then"),
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
    """Make tables of a recorded time range in a new folder, and exit.

    If the command is interrupted, run it again to continue. A later run without --since adds the events after --until.
    Tables cannot have gaps or grow backwards, so a time range that requires this is refused, as is a folder that
    another pipeline writes to.
    """
    options: dict[str, Any] = {"since": since, "until": until}
    options = {name: instant for name, instant in options.items() if instant is not None}
    files: dict[str, Any] = {"alarm_file": alarms, "stage_file": stages, "expectation_file": expectations}
    return _run(form, journals, tables, master, ui, storage=storage, **files, **options)


@command(
    name="status",
    examples=[
        Example("jet pipeline status tables", "the progress and size of the tables"),
        Example("jet pipeline status tables --journal log", "and the number of events not yet read"),
    ],
    bus=False,
)
@click.argument("tables", metavar="DIR|URI")
@click.option(
    "--journal", "-j", "journals", multiple=True, metavar="DIR|URL", help="journal to compare with; repeatable"
)
@storage_option
def status(form: str | None, tables: str, journals: tuple[str, ...], storage: dict[str, str]) -> None:
    """Print the progress of the tables in a folder, or at a URI: the last event of each bus, and its time.

    Bytes are those of all tables together, without files of old versions. Whether a pipeline is running is shown only
    for tables on this machine.
    """
    with explain_spark_errors():
        from jetbus.journal.instants import write_instant
        from jetbus.spark.maintenance import count_bytes
        from jetbus.spark.store import read_progress

        location = find_tables(tables, storage)
        found = read_progress(location)
        size = count_bytes(location)
        last = _read_last_seqs(journals)
    # The lock is a file on the machine of the pipeline; an object store has none.
    running = {} if location.local is None else {"running": _is_locked(location.local / "lock")}
    columns = ("bus", "batch", "seq", "ts", "bytes", "running", "behind")
    with Output(columns, form, value="seq") as out:
        for bus, position in found.positions.items():
            reached = {"bus": bus, "batch": found.batch, "seq": position.seq, "ts": write_instant(position.us)}
            behind = {"behind": last[bus] - position.seq} if bus in last else {}
            out.put({**reached, "bytes": size, **running, **behind})


def _read_last_seqs(journals: tuple[str, ...]) -> dict[str, int]:
    if not journals:
        return {}
    from jetbus.spark.journals import OpenBuses
    from jetbus.spark.options import read_options

    buses = OpenBuses(read_options(check_journals(journals)))
    try:
        return buses.ends()
    finally:
        buses.close()


def _is_locked(lock: Path) -> bool:
    """Return True if a pipeline is writing to the tables."""
    import fcntl

    try:
        with lock.open("rb") as file:
            # Fails while a pipeline has its exclusive lock, but not while others look.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


@command(
    name="backtest",
    examples=[
        Example("jet pipeline backtest alarms.toml --journal log", "the alarms that would have been raised"),
        Example("jet pipeline backtest alarms.toml --journal log --since -1h --output csv", "those of the last hour"),
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
    """Print when the alarms in a TOML FILE would have been raised and cleared over recorded history.

    Hold times end by the clock, as in a pipeline: an alarm can be raised without a new event.
    """
    with explain_spark_errors():
        places = check_journals(journals)
        from jetbus.spark import tables
        from jetbus.spark.alarms import check_alarms, read_alarms

        wanted, spark = read_alarms(alarms), start_spark(master)
        check_alarms(wanted, spark)
        options = {name: instant for name, instant in (("since", since), ("until", until)) if instant is not None}
        log = spark.read.format("jet").options(**places, **options, clock="true").load()
        found = tables.alarms(log, wanted)
        with Output(found.columns, form, value=found.columns[0]) as out:
            out.put_all(iterate_rows(found))


for _one in (run, backfill, status, backtest):
    pipeline.add_command(_one)
