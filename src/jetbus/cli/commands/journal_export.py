"""``jet journal export``: the events of a journal, printed or written to a file for other tools.

The file appears only when it is complete; a command that fails leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from jetbus.cli.arguments import read_rule
from jetbus.cli.command import Example, command
from jetbus.cli.exit_codes import Code, Failure, find_similar, usage_error
from jetbus.cli.journals import check_range, open_journal, since_option, to_record, until_option
from jetbus.cli.output import Output, replace_file
from jetbus.cli.progress import show_bar
from jetbus.journal.source import AskedAt, JournalSource, PinnedRange, open_folders, without_value_tests
from jetbus.journal.spreadsheet import list_columns
from jetbus.rules import Rule

if TYPE_CHECKING:
    import pyarrow as pa

    from jetbus.journal import Journal
    from jetbus.journal.recorded_units import UnitTracker

TABLES = (".parquet", ".arrow", ".arrows")
"""Suffixes of columnar files: Parquet, Arrow with random access, Arrow as a stream."""
TEXTS = {".csv": "csv", ".jsonl": "jsonl", ".json": "json"}
SUFFIXES = (*TABLES, *TEXTS)
UNIT, LATE = "unit", "late"
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

    Events are in effective time, the oldest first: values that came late stand where they belong and have late. The
    columns are seq, ts, event, kind, path, value, peer, detail, source_ts, quality, late and unit, preceded by bus if
    there are several buses. value and detail are JSON. CSV has the columns of
    `jet history`, unless others are asked for. Columnar files also have the value in a column of its type, num, text,
    flag or json, and the metadata of the field value have the schemas of the states.
    """
    suffix = _read_suffix(target)
    check_range(since, until)
    asked = AskedAt()
    with open_journal(folder) as log:
        query = _pin(log, asked, read_rule(rule) if rule else None, since, until)
        wanted = _read_columns(log, columns, TYPED if suffix in TABLES else ())
        if columns is None and (suffix == ".csv" or (target is None and form == "csv")):
            wanted = list_columns(several_buses=len(log.buses) > 1)
        if target is None:
            on_screen = sys.stdout.isatty()  # the bar would get in the way of the events
            with Output(wanted, form, stream=True) as out:
                _print_rows(out, _read_batches(query, wanted, quiet=on_screen))
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
    known = [*log.schema.names, LATE, UNIT, *TYPED]
    if text is None:
        return [name for name in known if name not in TYPED or name in typed]
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            similar = find_similar(name, known)
            hint = f"did you mean {similar}?" if similar else f"choose from {', '.join(known)}"
            raise usage_error(f"there is no column {name}; {hint}")
    return list(dict.fromkeys(names))


class _Query(NamedTuple):
    """Events to export: those of each bus, up to the moment at which the command began."""

    sources: dict[str, JournalSource]
    spans: dict[str, PinnedRange]
    rule: Rule | None
    since: str | None
    until: str | None


def _pin(log: Journal, asked: AskedAt, rule: Rule | None, since: str | None, until: str | None) -> _Query:
    sources = open_folders(log, asked)
    return _Query(sources, {bus: source.pin(since, until) for bus, source in sources.items()}, rule, since, until)


def _read_batches(query: _Query, columns: list[str], *, quiet: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the events of a query batch by batch, with a progress bar unless ``quiet``."""
    stored = [name for name in columns if name not in ("bus", LATE, UNIT, *TYPED)]
    # The seq is for the progress bar, even if it is not exported.
    stored += ["seq", *(["value"] if set(columns) & set(TYPED) else [])]
    # The unit of a value is in the description of its state, in an earlier event, so the events are tracked.
    stored += ["event", "path", "detail"] if UNIT in columns else []
    begins = {bus: source.describe()["first"] for bus, source in query.sources.items()}
    total = sum(span.seq_until - begins[bus] for bus, span in query.spans.items())
    with nullcontext(lambda _done: None) if quiet else show_bar("export", total) as step:
        passed = 0
        for bus, span in query.spans.items():  # buses are read one after the other
            source, units = query.sources[bus], None
            params = span.make_params() | {"columns": list(dict.fromkeys(stored))}
            for batch in source.read_effective(params, query.rule):
                seqs = batch["seq"].to_pylist()
                step(passed + seqs[-1] - begins[bus] + 1)
                if UNIT in columns:
                    # Late events came later than others before them.
                    units = units or _track_units(source, min(seqs), query.rule)
                    batch = batch.append_column(UNIT, units.add(batch))
                yield _add_computed(batch, bus, columns).select(columns)
            passed += span.seq_until - begins[bus]


def _track_units(source: JournalSource, seq: int, rule: Rule | None) -> UnitTracker:
    """Return a tracker that knows the units just before an event."""
    from jetbus.journal.recorded_units import UnitTracker

    return UnitTracker(source.read_tree_before(seq, None if rule is None else without_value_tests(rule)))


def _add_computed(batch: pa.RecordBatch, bus: str, columns: list[str]) -> pa.RecordBatch:
    """Return a batch with the name of its bus and its values by type, if these columns are wanted."""
    if "bus" in columns:
        batch = batch.append_column("bus", [bus] * batch.num_rows)
    return _add_typed(batch) if set(columns) & set(TYPED) else batch


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


def _write_rows(file: Path, suffix: str, log: Journal, query: _Query, columns: list[str]) -> int:
    """Write the events of a query to a file, and return their number."""
    batches = _read_batches(query, columns)
    if suffix in TABLES:
        from jetbus.journal.export import make_schema, write_file

        return write_file(
            file, suffix, make_schema(log, columns, log.elements(query.rule, query.since, query.until)), batches
        )
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
