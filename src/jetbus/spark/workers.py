"""The Python processes that run tasks: Spark starts one for each core, and uses it for task after task."""

from __future__ import annotations

import gc
from functools import cache

import pyarrow as pa
from pyspark import TaskContext

__all__ = ["settle"]


@cache
def settle() -> None:
    """Make the tasks to come cheaper, called by a task that is through.

    What it has loaded stays loaded, so it is not garbage: Spark collects garbage after every task, and would look at
    every object of every library each time, which costs more than to read the events of a usual task. And there is one
    core for it, so threads would only be in the way of each other.
    """
    if TaskContext.get() is not None:  # the driver has its own mind about its garbage and its cores
        gc.collect()
        gc.freeze()
        pa.set_cpu_count(1)
