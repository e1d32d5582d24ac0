"""The Python processes that run tasks: Spark starts them, and uses each for task after task."""

from __future__ import annotations

import gc
from functools import cache

from pyspark import TaskContext

__all__ = ["settle"]


@cache
def settle() -> None:
    """What a task has loaded stays loaded, so it is not garbage. Called by a task that is through.

    Spark collects garbage after every task, and without this looks at every object of every library each time: that
    costs more than to read the events of a usual task.
    """
    if TaskContext.get() is not None:  # the driver has its own mind about its garbage
        gc.collect()
        gc.freeze()
