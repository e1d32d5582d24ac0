"""Spark in the demo: a separate process, and its progress.

The demo never waits for Spark, and continues without it. The phases, and the cause of each::

    INSTALLING  -->  STARTING  -->  READING  -->  PUBLISHING
    (make demo       (process       (its first    (a rollup is
     installs it)     started)       line)         on the bus)

    any of them  -->  ABSENT, with the reason in ``why``
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import os
import sys
from enum import StrEnum
from pathlib import Path

from jetbus.demo.jetd import Jetd
from jetbus.demo.processes import ChildProcess

INSTALLER = "JET_DEMO_INSTALLING"
"""Environment variable with the process that installs Spark while the demo runs already."""
INSTALLING_LOOK_S = 0.5


class AnalysisPhase(StrEnum):
    """Progress of Spark."""

    INSTALLING = "being installed"
    STARTING = "starting"
    READING = "reading"
    PUBLISHING = "publishing"
    ABSENT = "not running"


class Analysis:
    """Process that makes tables, rollups and alarms of the demo's bus."""

    def __init__(self) -> None:
        self.phase = AnalysisPhase.ABSENT
        self.why = ""
        """Reason why Spark is not running, and how to get it."""
        self._child: ChildProcess | None = None
        self._follower: asyncio.Task[None] | None = None

    async def start(self, folder: Path, jetd: Jetd, *, wanted: bool = True) -> None:
        """Start Spark, unless it is not wanted or a package is missing."""
        installer = _find_installer() if wanted else None
        if installer is not None and jetd.journal is not None:
            self.phase = AnalysisPhase.INSTALLING
            self._follower = asyncio.create_task(self._start_when_installed(installer, folder, jetd))
            return
        await self._start_now(folder, jetd, wanted=wanted)

    async def _start_when_installed(self, installer: int, folder: Path, jetd: Jetd) -> None:
        """Wait for the end of the process that installs Spark, then start Spark."""
        while _is_running(installer):
            await asyncio.sleep(INSTALLING_LOOK_S)
        # The import system remembers that pyspark was missing.
        importlib.invalidate_caches()
        await self._start_now(folder, jetd)
        if self.phase is AnalysisPhase.INSTALLING:
            self.phase = AnalysisPhase.ABSENT

    async def _start_now(self, folder: Path, jetd: Jetd, *, wanted: bool = True) -> None:
        self.why = _find_missing(jetd) if wanted else "disabled by --no-spark"
        if self.why:
            return
        self.phase = AnalysisPhase.STARTING
        scratch = folder / "scratch"
        scratch.mkdir()
        self._child = await ChildProcess.start(
            *("jetbus.demo.tables", str(jetd.journal), str(folder / "tables"), jetd.url),
            log=folder / "spark.log",
            # Temporary files of Spark and Java go to the folder of the demo, and are removed with it.
            TMPDIR=str(scratch),
            SPARK_LOCAL_DIRS=str(scratch),
            PYSPARK_PYTHON=sys.executable,
            # Performance data would go to /tmp/hsperfdata_USER, whatever the folder for temporary files is.
            JAVA_TOOL_OPTIONS=f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -XX:-UsePerfData -Djava.io.tmpdir={scratch}",
        )
        self._follower = asyncio.create_task(self._follow(self._child))

    async def _follow(self, child: ChildProcess) -> None:
        line = await child.read_line()
        # Any other line is the reason why Spark does not start.
        if line == "reading":
            # The first results may be on the bus before this line is read.
            if self.phase is AnalysisPhase.STARTING:
                self.phase = AnalysisPhase.READING
            line = ""
        error = await child.wait()
        self.phase = AnalysisPhase.ABSENT
        self.why = line or f"the process has ended: {error or 'no message'}"

    def note_results(self) -> None:
        """Note that Spark has published results."""
        if self.phase in (AnalysisPhase.STARTING, AnalysisPhase.READING):
            self.phase = AnalysisPhase.PUBLISHING

    async def stop(self) -> None:
        """Stop Spark, and wait for its end."""
        # Before the process, so that its end is not reported as a failure.
        if self._follower is not None:
            self._follower.cancel()
        if self._child is not None:
            await self._child.stop()


def _find_installer() -> int | None:
    """Return the process that is installing Spark at the moment; ``make demo`` names it."""
    text = os.environ.get(INSTALLER, "")
    return int(text) if text.isdigit() and _is_running(int(text)) else None


def _is_running(pid: int) -> bool:
    """Return True if a process runs; one that has ended and is not collected by its parent does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    # The state follows the name of the program, which is in parentheses and may contain some itself.
    return not stat.rpartition(")")[2].lstrip().startswith("Z")


def _find_missing(jetd: Jetd) -> str:
    """Return which package Spark needs, or an empty text if all are installed."""
    if jetd.journal is None or importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed; install it with: pip install 'jetbus[spark]'"
    return ""
