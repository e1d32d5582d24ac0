"""``jet journal export``: the events of a journal, printed or in a file that other tools read.

A file is there only when it is whole; whatever ends the command before that leaves nothing behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jetbus.cli.failures import Code, Failure, near, usage
from jetbus.cli.files import replacing
from jetbus.cli.frame import Example, command
from jetbus.cli.output import Output
from jetbus.cli.past import journal, since_option, told, until_option
from jetbus.cli.progress import bar
from jetbus.cli.rules import read_one

if TYPE_CHECKING:
    from jetbus.journal import Journal

IN_TEXT = {"ts": "at"}
"""Columns that have another name where values are text."""
TABLES = (".parquet", ".arrow", ".arrows")
"""Files of columns: Parquet, Arrow's file with random access, and Arrow's stream."""
TEXTS = {".csv": "csv", ".jsonl": "jsonl", ".json": "json"}
SUFFIXES = (*TABLES, *TEXTS)


@command(
    examples=[
        Example("jet journal export log --to events.parquet", "every event, for any tool that reads Parquet"),
        Example(
            "jet journal export log --rule 'plant/**' --since -1h --columns ts,path,value --output csv > events.csv",
            "a part of it, as CSV",
        ),
    ],
    bus=False,
    instants=True,
)
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--to", "target", metavar="FILE", help=f"into a file, as its suffix says: {', '.join(SUFFIXES)}")
@click.option("--rule", metavar="RULE", help="only of what matches")
@click.option("--columns", metavar="NAME,...", help="only these, such as ts,path,value")
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
    """The events of the journal in DIR (or in all that a pattern matches), the oldest first: printed, or in a file.

    The columns are seq, ts, event, kind, path, value, peer and detail, and bus before them where there are several. In
    text ts is called at. value and detail are JSON.
    """
    suffix = _suffix(target)
    asked = {"rule": read_one(rule) if rule else None, "since": since, "until": until}
    with journal(folder) as log:
        wanted = _columns(log, columns)
        if target is None:
            on_screen = sys.stdout.isatty()  # the bar would be in the way
            with Output([IN_TEXT.get(name, name) for name in wanted], form, stream=True) as out:
                _put(out, _batches(log, asked, wanted, quiet=on_screen))
            return
        with _whole(Path(target)) as file:
            rows = _write(file, suffix, log, asked, wanted)
    size = Path(target).stat().st_size
    Output(("file", "events", "bytes"), form, value="events").put_all([{"file": target, "events": rows, "bytes": size}])


def _suffix(target: str | None) -> str:
    suffix = Path(target or "").suffix.lower()
    if target is not None and suffix not in SUFFIXES:
        raise usage(f"{target}: a file ends in one of {', '.join(SUFFIXES)}, which says what is written")
    return suffix


def _columns(log: Journal, text: str | None) -> list[str]:
    known: list[str] = log.schema.names
    if text is None:
        return known
    names = [
        {shown: name for name, shown in IN_TEXT.items()}.get(name.strip(), name.strip()) for name in text.split(",")
    ]
    for name in names:
        if name not in known:
            meant = near(name, known)
            hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
            raise usage(f"there is no column {name}; {hint}")
    return list(dict.fromkeys(names))


def _batches(log: Journal, asked: dict[str, Any], columns: list[str], *, quiet: bool = False) -> Iterator[Any]:
    """What is asked for, batch by batch; a bar tells how far that is, unless it is to be quiet."""
    place = ["bus", "seq"] if len(log.buses) > 1 else ["seq"]
    passed, total = {}, 0
    for bus, offsets in log.offsets().items():  # they come one after the other
        passed[bus] = total - offsets["first"] + 1
        total += offsets["last"] - offsets["first"] + 1
    with nullcontext(lambda _done: None) if quiet else bar("export", total) as step:
        for batch in log.read(**asked, columns=list(dict.fromkeys([*columns, *place]))):
            bus = batch["bus"][0].as_py() if len(place) > 1 else log.buses[0]
            step(passed[bus] + batch["seq"][-1].as_py())
            yield batch.select(columns)


def _put(out: Output, batches: Iterable[Any]) -> int:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        for row in batch.to_pylist():
            out.put(told(row))
    return rows


def _write(file: Path, suffix: str, log: Journal, asked: dict[str, Any], columns: list[str]) -> int:
    """Write all of it; gives the number of events."""
    batches = _batches(log, asked, columns)
    if suffix in TABLES:
        from jetbus.journal.files import write_file

        return write_file(file, suffix, log.schema.empty_table().select(columns).schema, batches)
    shown = [IN_TEXT.get(name, name) for name in columns]
    with (
        file.open("w", encoding="utf-8", newline="") as text,
        redirect_stdout(text),
        Output(shown, TEXTS[suffix], stream=True) as out,
    ):
        return _put(out, batches)


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A file that takes the place of the target at the end, as anybody's new file would."""
    mask = os.umask(0o077)
    os.umask(mask)
    with ExitStack() as stack:
        try:
            file = stack.enter_context(replacing(target, 0o666 & ~mask))
        except OSError as problem:
            text = f"{target} cannot be written ({problem.strerror}); give a folder that can"
            raise Failure(text, Code.USAGE) from None
        try:
            yield file
            stack.close()
        except OSError as problem:
            raise Failure(f"{target} cannot be written ({problem.strerror or problem}); is there room?") from None
