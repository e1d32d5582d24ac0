"""The batches of a pipeline as ``jet`` shows them: a record each, and on a terminal how far it is and how fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from jetbus.cli.past import written

if TYPE_CHECKING:
    from jetbus.spark import Batch

Show = Callable[["Batch"], None]
COLUMNS = ("number", "events", "events_per_s", "seconds", "lag_s", "behind")


def record_of(batch: Batch) -> dict[str, Any]:
    """Return a batch as a record."""
    rounded = {
        "seconds": round(batch.seconds, 3),
        "lag_s": round(batch.lag_s, 3),
        "events_per_s": round(batch.events_per_s, 1),
    }
    return {**asdict(batch), **rounded, "at": written(batch.at)}


@contextmanager
def progress(behind: Callable[[], int]) -> Iterator[Show]:
    """Show on a terminal how far the batches are with what there is to do, at first ``behind``; nothing in a pipe."""
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
            shown.update(task, total=shown.tasks[0].completed + batch.behind, pace=pace)

        yield show
