"""Child processes of the demo, each started in its own session.

    demo  --(pipe to stdin)-->  supervise  --(runs in the same process)-->  daemon, or Spark  -->  Java

A session of its own keeps Ctrl-C away from a process, and lets the demo kill it with all its children. The pipe ends it
if the demo itself is killed; see ``supervise``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable
from pathlib import Path

STOP_WITHIN_S = 10.0
FOREIGN = ("JET_", "SPARK_", "PYSPARK_")
"""Prefixes of environment variables that belong to another bus or Spark."""


class ChildProcess:
    """Module that runs as a separate process, with its stderr in a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, module: str, *words: str, log: Path, **environment: str) -> ChildProcess:
        """Start a module. Ctrl-C in a terminal does not reach it; the demo stops it when it is no longer needed."""
        # JET_URL or SPARK_HOME of the user would lead these processes to another bus or another Spark.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "jetbus.supervise", module, *words),
                # Never written to: its end shows ``supervise`` that the demo is gone.
                stdin=PIPE,
                stdout=PIPE,
                stderr=file,
                cwd=log.parent,
                env={**inherited, **environment},
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def read_line(self) -> str:
        """Return its next line; empty when it has ended."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        return (await self._process.stdout.readline()).decode(errors="replace").rstrip("\n")

    async def wait(self) -> str:
        """Wait for its end, and return its last error message."""
        await self._process.wait()
        return self.read_last_error()

    def read_last_error(self) -> str:
        """Return the last line of its stderr."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n") if self._log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def stop(self) -> None:
        """Terminate it, and kill it with its children if it does not end in time."""
        # Only the process itself, which ends its own children in order.
        self._signal(os.kill, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """Kill it and its children."""
        # The whole session: Spark runs Java as a child of its own.
        self._signal(os.killpg, signal.SIGKILL)
        await self._process.wait()

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        # Once the process was collected, its number may belong to a stranger.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                send(self._process.pid, number)
