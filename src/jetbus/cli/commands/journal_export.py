"""``jet journal export``: the events of a journal, printed or written to a file for other tools.

The file appears only when it is complete; a command that fails leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.arguments import read_rule
from jetbus.cli.command import Example, command
from jetbus.cli.exit_codes import Code, Failure, find_similar, usage_error
from jetbus.cli.journals import check_range, open_journal, since_option, to_record, until_option
from jetbus.cli.output import Output, replace_file
from jetbus.cli.progress import show_bar
from jetbus.journal.spreadsheet import list_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from jetbus.journal import Journal
    from jetbus.journal.recorded_units import UnitTracker

TABLES = (".parquet", ".arrow", ".arrows")
"""Suffixes of columnar files: Parquet, Arrow with random access, Arrow as a stream."""
TEXTS = {".csv": "csv", ".jsonl": "jsonl", ".json": "json"}
SUFFIXES = (*TABLES, *TEXTS)
UNIT = "unit"
TYPED = ("num", "text", "flag", "json")
"""Columns that are computed while events are read; they are not stored."""


@command(
    examples=[
        Example("jet journal export log --to events.parquet", "all events, as Parquet"),
        Example(
            "jet journal export log --rule 'plant/**' --since -1h --columns ts,path,value --output csv > events.csv",
            "some events, as CSV",
        ),
    ],
    bus=False,
    instants=True,
)
@click.argument("folder", metavar="[DIR]", required=False)
@click.option(
    "--to", "target", metavar="FILE", help=f"write to FILE; its suffix selects the format: {', '.join(SUFFIXES)}"
)
@click.option("--rule", metavar="RULE", help="only events of paths that match")
@click.option("--columns", metavar="NAME,...", help="only these columns, such as ts,path,value")
@since_option
@until_option
def export(
    form: str | None,
    folder: str | None,
    target: str | None,
    rule: str | None,
    columns: str | None,
    since: str | None,
    until: str | None,
) -> None:
    """Print the events of the journal in DIR, or of all that a pattern matches, or write them to a file.

    Events are in order, the oldest first. The columns are seq, ts, event, kind, path, value, peer, detail, source_ts,
    quality and unit, preceded by bus if there are several buses. value and detail are JSON. CSV has the columns of
    `jet history`, unless others are asked for. Columnar files also have the value in a column of its type, num, text,
    flag or json, and the metadata of the field value have the schemas of the states.
    """
    suffix = _read_suffix(target)
    check_range(since, until)
    query = {"rule": read_rule(rule) if rule else None, "since": since, "until": until}
    with open_journal(folder) as log:
        wanted = _read_columns(log, columns, TYPED if suffix in TABLES else ())
        if columns is None and (suffix == ".csv" or (target is None and form == "csv")):
            wanted = list_columns(several_buses=len(log.buses) > 1)
        if target is None:
            on_screen = sys.stdout.isatty()  # the bar would get in the way of the events
            with Output(wanted, form, stream=True) as out:
                _print_rows(out, _read_batches(log, query, wanted, quiet=on_screen))
            return
        with _write_whole(Path(target)) as file:
            rows = _write_rows(file, suffix, log, query, wanted)
    size = Path(target).stat().st_size
    Output(("file", "events", "bytes"), form, value="events").put_all([{"file": target, "events": rows, "bytes": size}])


def _read_suffix(target: str | None) -> str:
    suffix = Path(target or "").suffix.lower()
    if target is not None and suffix not in SUFFIXES:
        raise usage_error(f"{target} has no known suffix; use one of {', '.join(SUFFIXES)}")
    return suffix


def _read_columns(log: Journal, text: str | None, typed: Sequence[str]) -> list[str]:
    known = [*log.schema.names, UNIT, *TYPED]
    if text is None:
        return [name for name in known if name not in TYPED or name in typed]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            similar = find_similar(name, known)
            hint = f"did you mean {similar}?" if similar else f"choose from {', '.join(known)}"
            raise usage_error(f"there is no column {name}; {hint}")
    return list(dict.fromkeys(names))


def _read_batches(
    log: Journal, query: dict[str, Any], columns: list[str], *, quiet: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the events of a query batch by batch, with a progress bar unless ``quiet``."""
    # For the progress bar, even if these columns are not exported.
    place = ["bus", "seq"] if len(log.buses) > 1 else ["seq"]
    typed = [name for name in columns if name in TYPED]
    stored = [name for name in columns if name != UNIT and name not in TYPED]
    stored += ["value"] if typed else []
    # The unit of a value is in the description of its state, in an earlier event, so the events are tracked.
    needed = ["event", "path", "detail"] if UNIT in columns else []
    trackers: dict[str, UnitTracker] = {}
    passed, total = {}, 0
    for bus, offsets in log.offsets().items():  # buses are read one after the other
        # Plus a seq of this bus, it is the number of events up to there, with those of the buses before.
        passed[bus] = total - offsets["first"] + 1
        total += offsets["last"] - offsets["first"] + 1
    with nullcontext(lambda _done: None) if quiet else show_bar("export", total) as step:
        for batch in log.read(**query, columns=list(dict.fromkeys([*stored, *place, *needed]))):
            bus = batch["bus"][0].as_py() if len(place) > 1 else log.buses[0]
            step(passed[bus] + batch["seq"][-1].as_py())
            if needed:
                if bus not in trackers:
                    trackers[bus] = log.track_units(bus, batch["seq"][0].as_py(), query["rule"])
                batch = batch.append_column(UNIT, trackers[bus].add(batch))
            yield (_add_typed(batch) if typed else batch).select(columns)


def _add_typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    from jetbus.journal.typed import TYPED as FIELDS
    from jetbus.journal.typed import split_values

    for field, column in zip(FIELDS, split_values(batch["value"]), strict=True):
        batch = batch.append_column(field, column)
    return batch


def _print_rows(out: Output, batches: Iterable[pa.RecordBatch]) -> int:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        for row in batch.to_pylist():
            out.put(to_record(row))
    return rows


def _write_rows(file: Path, suffix: str, log: Journal, query: dict[str, Any], columns: list[str]) -> int:
    """Write the events of a query to a file, and return their number."""
    batches = _read_batches(log, query, columns)
    if suffix in TABLES:
        from jetbus.journal.export import make_schema, write_file

        return write_file(file, suffix, make_schema(log, columns, log.elements(**query)), batches)
    with (
        file.open("w", encoding="utf-8", newline="") as text,
        # Output prints to stdout, so stdout is the file meanwhile.
        redirect_stdout(text),
        Output(columns, TEXTS[suffix], stream=True) as out,
    ):
        return _print_rows(out, batches)


@contextmanager
def _write_whole(target: Path) -> Iterator[Path]:
    """Yield a file that replaces the target at the end, with the permissions of a new file."""
    # The umask can be read only by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(replace_file(target, 0o666 & ~mask))
        except OSError as problem:
            text = f"cannot write {target} ({problem.strerror}); choose a writable folder"
            raise Failure(text, Code.USAGE) from None
        try:
            yield file
            # Inside of this try, because replacing the target may fail as well.
            stack.close()
        except OSError as problem:
            raise Failure(f"cannot write {target} ({problem.strerror or problem}); check the free disk space") from None
