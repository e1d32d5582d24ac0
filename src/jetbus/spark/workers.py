"""The Python processes that run tasks: Spark starts as many as tasks run at a time, and uses them again and again."""

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
    every object of every library each time, which costs more than to read the events of a usual task. And a task has
    few cores, mostly one: more threads than that would only be in the way of each other.
    """
    task = TaskContext.get()
    if task is not None:  # the driver has its own mind about its garbage and its cores
        gc.collect()
        gc.freeze()
        pa.set_cpu_count(task.cpus())
