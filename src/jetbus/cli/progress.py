"""Progress bars on stderr while long work lasts; nothing is printed in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from jetbus.cli.journals import format_time
from jetbus.json_types import JsonObject

if TYPE_CHECKING:
    from jetbus.spark import Batch

Step = Callable[[float], None]
"""Callback that takes the amount done so far."""


@contextmanager
def show_bar(title: str, total: float | None = None) -> Iterator[Step]:
    """Show a bar from 0 to ``total``; without a total, only that work is going on."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    # rich takes a while to import, and is not needed in a pipe.
    from rich.console import Console
    from rich.progress import Progress

    # A descriptor of its own, since stderr may be redirected while the bar is shown.
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal,
        Progress(console=Console(file=terminal), transient=True) as shown,
    ):
        task = shown.add_task(title, total=total)
        yield lambda done: shown.update(task, completed=done)


Show = Callable[["Batch"], None]
BATCH_COLUMNS = ("number", "events", "events_per_s", "seconds", "lag_s", "behind")


def to_batch_record(batch: Batch) -> JsonObject:
    """Return a batch as a record."""
    rounded = {
        "seconds": round(batch.seconds, 3),
        "lag_s": round(batch.lag_s, 3),
        "events_per_s": round(batch.events_per_s, 1),
    }
    fields = asdict(batch)
    # Times are called ``ts`` in the output of all commands.
    del fields["at"]
    return {**fields, **rounded, "ts": format_time(batch.at)}


@contextmanager
def show_batches(behind: Callable[[], int]) -> Iterator[Show]:
    """Show a bar of the events processed by a pipeline; ``behind`` returns how many are left at first."""
    if not sys.stderr.isatty():
        yield lambda _batch: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("pipeline"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} events  {task.fields[pace]}"),
    )
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal,
        # Lines on stdout go above the bar, but only if they go to the terminal, too.
        Progress(
            *columns, console=Console(file=terminal), transient=True, redirect_stdout=sys.stdout.isatty()
        ) as shown,
    ):
        task = shown.add_task("", total=behind(), pace="the first batch takes longest")

        def show(batch: Batch) -> None:
            shown.advance(task, batch.events)
            pace = f"{batch.events_per_s:,.0f} events/s, {batch.lag_s:,.1f} s behind"
            # Journals grow while they are read, so the total is corrected with every batch.
            shown.update(task, total=shown.tasks[0].completed + batch.behind, pace=pace)

        yield show
