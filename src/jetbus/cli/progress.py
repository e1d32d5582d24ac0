"""How far long work is: a bar on the terminal while it lasts, nothing in a pipe."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Step = Callable[[float], None]
"""Is told how much is done."""


@contextmanager
def bar(title: str, total: float | None = None) -> Iterator[Step]:
    """A bar from 0 to ``total``; without one it only shows that something goes on."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    # A descriptor of its own: what stderr is meanwhile does not matter.
    with (
        os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as terminal,
        Progress(console=Console(file=terminal), transient=True) as shown,
    ):
        task = shown.add_task(title, total=total)
        yield lambda done: shown.update(task, completed=done)
