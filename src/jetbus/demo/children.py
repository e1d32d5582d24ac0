"""Processes of the demo: started in a session of their own, waited for when they are stopped."""

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
"""Variables that are about somebody else's bus and Spark."""


class Child:
    """A module that runs as a process of its own; what it complains about goes to a file."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, module: str, *words: str, log: Path, **environment: str) -> Child:
        """Start it. Ctrl-C in a terminal does not reach it: we stop it when nobody needs it any more."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "jetbus.demo.kept", module, *words),
                stdin=PIPE,
                stdout=PIPE,
                stderr=file,
                cwd=log.parent,
                env={**kept, **environment},
                start_new_session=True,
            )
        return cls(process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def line(self) -> str:
        """What it prints next; nothing when it has ended."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        return (await self._process.stdout.readline()).decode(errors="replace").rstrip("\n")

    async def ended(self) -> str:
        """Wait for its end; gives its last complaint."""
        await self._process.wait()
        return self.complaint()

    def complaint(self) -> str:
        """The last line of its complaints."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n") if self._log.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    async def stop(self) -> None:
        """Ask it to end, and wait until it has; one that does not is killed, with all that it has started."""
        self._signal(os.kill, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, with all that it has started."""
        self._signal(os.killpg, signal.SIGKILL)
        await self._process.wait()

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                send(self._process.pid, number)
