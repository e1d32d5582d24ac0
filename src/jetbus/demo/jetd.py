"""The daemon of the demo: ``jetd`` at the usual ports, or at free ones where these are taken."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from jetbus.demo.children import Child

READY_WITHIN_S = 30.0
BUS = "demo"
"""The name of the bus in its journal, and so in what Spark publishes."""
SKIPPED = "spark/rollups/** => skip"
"""What is not recorded: it is made of what is."""
FREE_PORTS = ("--tcp", "localhost:0", "--ws", "localhost:0", "--binary", "localhost:0")
NO_SOCKETS = ("--unix", "off", "--binary-unix", "off")


class NoDaemon(Exception):
    """The demo's daemon does not run; the text says why."""


class Jetd:
    """A running daemon: where it listens, whether it keeps a journal."""

    def __init__(self, child: Child, ready: str, journal: Path | None, *, is_usual: bool) -> None:
        self._child = child
        self.is_usual = is_usual
        """Whether it is where everybody looks first."""
        self.listens = dict(part.split("=", 1) for part in ready.split()[1:])
        self.journal = journal

    @property
    def url(self) -> str:
        """Where peers connect."""
        return f"jet://{self.listens['tcp']}"

    @classmethod
    async def start(cls, folder: Path) -> Jetd:
        """Start it and wait until it listens; its journal and its log are in the folder."""
        try:
            return await cls._start(folder)
        except NoDaemon as problem:
            if "in use" not in str(problem):
                raise
        return await cls._start(folder, *FREE_PORTS, *NO_SOCKETS)

    @classmethod
    async def _start(cls, folder: Path, *where: str) -> Jetd:
        journal = folder / "journal" if importlib.util.find_spec("pyarrow") else None
        keeping = (
            () if journal is None else ("--journal", str(journal), "--journal-bus", BUS, "--journal-rules", SKIPPED)
        )
        words = (*where, *keeping, "--log-level", "warning")
        child = await Child.start("jetbus.daemon.main", *words, log=folder / "jetd.log")
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                ready = await child.line()
        except BaseException as problem:
            await child.kill()
            if isinstance(problem, TimeoutError):
                raise NoDaemon(f"jetd does not listen after {READY_WITHIN_S:g} s; try again") from None
            raise
        if not ready.startswith("ready "):
            raise NoDaemon(await child.ended() or "jetd does not start")
        return cls(child, ready, journal, is_usual=not where)

    async def ended(self) -> None:
        """Raise when it has ended, which it should not."""
        said = await self._child.ended()
        raise NoDaemon(f"the demo's daemon has ended ({said or 'without a word'}); start the demo again")

    async def stop(self) -> None:
        """Stop it, and wait until it is gone."""
        await self._child.stop()
