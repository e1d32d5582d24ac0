"""The batches of a pipeline as ``jet`` tells of them: a record each, and on a terminal how far it is and how fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetbus.spark import Batch

Tell = Callable[["Batch"], None]
COLUMNS = ("number", "events", "events_per_s", "seconds", "lag_s")


def record_of(batch: Batch) -> dict[str, Any]:
    """A batch as a record."""
    rounded = {"seconds": round(batch.seconds, 3), "lag_s": round(batch.lag_s, 3)}
    return {**asdict(batch), "events_per_s": rate_of(batch), **rounded}


def rate_of(batch: Batch) -> float:
    return round(batch.events / batch.seconds, 1) if batch.seconds else 0.0


@contextmanager
def progress(behind: Callable[[], int]) -> Iterator[Tell]:
    """How far the batches are with what there is to do, on a terminal; nothing in a pipe."""
    if not sys.stderr.isatty():
        yield lambda _batch: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("pipeline"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} events  {task.fields[told]}"),
    )
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal,
        # Lines on stdout go above the bar, but only if they go to the terminal, too.
        Progress(
            *columns, console=Console(file=terminal), transient=True, redirect_stdout=sys.stdout.isatty()
        ) as shown,
    ):
        task = shown.add_task("", total=behind(), told="the first batch takes longest")

        def tell(batch: Batch) -> None:
            shown.advance(task, batch.events)
            told = f"{rate_of(batch):,.0f} events/s, {batch.lag_s:,.1f} s behind"
            done = shown.tasks[0].completed
            shown.update(task, total=max(done + behind(), done), told=told)

        yield tell
