"""Spark beside the demo: a process that joins when it is ready, and what is known of how far it is.

The demo never waits for it and goes on without it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from enum import StrEnum
from pathlib import Path

from jetbus.demo.children import Child
from jetbus.demo.jetd import Jetd


class Phase(StrEnum):
    """How far Spark is."""

    STARTING = "starting"
    READING = "reading"
    PUBLISHING = "publishing"
    LEFT_OUT = "left out"


class Analysis:
    """Spark's tables, rollups and alarms of the demo's bus."""

    def __init__(self) -> None:
        self.phase = Phase.LEFT_OUT
        self.why = ""
        """Why Spark is left out, and how to get it."""
        self._child: Child | None = None
        self._hearing: asyncio.Task[None] | None = None

    async def start(self, folder: Path, jetd: Jetd, *, wanted: bool = True) -> None:
        """Start Spark, unless something that it needs is missing."""
        self.why = _missing(jetd) if wanted else "so it was asked for"
        if self.why:
            return
        self.phase = Phase.STARTING
        scratch = folder / "scratch"
        scratch.mkdir()
        self._child = await Child.start(
            *("jetbus.demo.tables", str(jetd.journal), str(folder / "tables"), jetd.url),
            log=folder / "spark.log",
            # Whatever Spark and Java put aside is in the folder, too, and goes with it.
            TMPDIR=str(scratch),
            SPARK_LOCAL_DIRS=str(scratch),
            PYSPARK_PYTHON=sys.executable,
            JAVA_TOOL_OPTIONS=f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -XX:-UsePerfData -Djava.io.tmpdir={scratch}",
        )
        self._hearing = asyncio.create_task(self._hear(self._child))

    async def _hear(self, child: Child) -> None:
        said = await child.line()
        if said == "reading":
            if self.phase is Phase.STARTING:
                self.phase = Phase.READING
            said = ""
        complaint = await child.ended()
        self.phase = Phase.LEFT_OUT
        self.why = said or f"it has ended: {complaint or 'without a word'}"

    def has_published(self) -> None:
        """Take note that results are on the bus."""
        if self.phase in (Phase.STARTING, Phase.READING):
            self.phase = Phase.PUBLISHING

    async def stop(self) -> None:
        """End Spark, and wait until it is gone."""
        if self._hearing is not None:
            self._hearing.cancel()
        if self._child is not None:
            await self._child.stop()


def _missing(jetd: Jetd) -> str:
    """What Spark would need and is not there, as far as that can be told at once."""
    if jetd.journal is None or importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed; get it with: pip install 'jetbus[spark]'"
    return ""
