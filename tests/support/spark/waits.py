"""Waiting for what comes when the machine has time for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import jetbus

WITHIN_S = 300
TRIES = 3
NO_WORKER = "Python worker failed to connect back"
"""Spark gives the Python of a stream ten seconds to start, however busy the machine is."""


def until(holds: Callable[[], bool], what: str) -> None:
    """Look again and again until something holds."""
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def until_gone(watcher: jetbus.Peer, rule: str) -> None:
    """Return when nothing matches any more: a daemon takes note of a peer that leaves in its own time."""
    until(lambda: not watcher.get_all(rule), f"{rule} is still there")


def run_to_end(writer: DataStreamWriter, checkpoint: Path) -> None:
    """Run a stream to its present end."""
    made = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    for tried in range(1, TRIES + 1):
        try:
            assert made.start().awaitTermination(WITHIN_S)
        except StreamingQueryException as problem:
            if tried == TRIES or NO_WORKER not in str(problem):
                raise
        else:
            return


def run_batches(stream: DataFrame, checkpoint: Path, take: Callable[[DataFrame], None]) -> None:
    """Run a stream to its present end, batch by batch."""
    run_to_end(stream.writeStream.foreachBatch(lambda batch, _number: take(batch)), checkpoint)
