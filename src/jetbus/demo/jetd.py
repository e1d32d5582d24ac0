"""The daemon of the demo: ``jetd`` on the default ports, or on free ones if these are in use."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

from jetbus.demo.processes import ChildProcess

READY_WITHIN_S = 30.0
BUS = "demo"
"""Name of the bus in the journal, and in the paths that Spark publishes."""
SKIPPED = "spark/rollups/** => skip"
"""Rollups are not recorded, since they are computed from recorded events."""
# Unix sockets have fixed names, so a second daemon does without them, while it can have any free port.
FREE_PORTS = ("--tcp", "localhost:0", "--ws", "localhost:0", "--binary", "localhost:0")
NO_SOCKETS = ("--unix", "off", "--binary-unix", "off")
ALARMS = Path(__file__).with_name("alarms.toml")
ALARMS_NEED = ("sqlglot", "pyarrow")
RADAR_NEEDS = ("starlette", "uvicorn", "numpy", "pyarrow")


class NoDaemon(Exception):
    """Error that says why the daemon of the demo is not running."""


class Jetd:
    """Running daemon with its addresses and journal."""

    def __init__(self, child: ChildProcess, ready: str, journal: Path | None, *, is_usual: bool) -> None:
        self._child = child
        self.is_usual = is_usual
        """True if it listens on the default ports."""
        # The line is: ready tcp=HOST:PORT ws=HOST:PORT ...
        self.listens = dict(part.split("=", 1) for part in ready.split()[1:])
        self.journal = journal

    @property
    def url(self) -> str:
        """Address for peers."""
        return f"jet://{self.listens['tcp']}"

    @property
    def radar(self) -> str | None:
        """Address of the bus in a browser; None if the packages of Radar are not installed."""
        return self.listens.get("radar")

    @property
    def has_alarms(self) -> bool:
        """True if alarms are raised beside the daemon."""
        return self.journal is not None and all(map(importlib.util.find_spec, ALARMS_NEED))

    @classmethod
    async def start(cls, folder: Path) -> Jetd:
        """Start a daemon and wait until it is ready; its journal and log are in the folder."""
        radar: tuple[str, ...] = ("--radar",) if all(map(importlib.util.find_spec, RADAR_NEEDS)) else ()
        usual: tuple[str, ...] = ()
        # Three attempts at most, since each of the two answers to a failure can be given only once.
        while True:
            try:
                return await cls._start(folder, *usual, *radar, is_usual=not usual)
            except NoDaemon as problem:
                # Another Radar takes only the port of ours, another daemon all the others.
                if "on radar" in str(problem) and len(radar) == 1:
                    radar = ("--radar", "localhost:0")
                elif "in use" in str(problem) and not usual:
                    usual = (*FREE_PORTS, *NO_SOCKETS)
                else:
                    raise

    @classmethod
    async def _start(cls, folder: Path, *where: str, is_usual: bool) -> Jetd:
        journal = folder / "journal" if importlib.util.find_spec("pyarrow") else None
        journal_options: tuple[str, ...] = (
            () if journal is None else ("--journal", str(journal), "--journal-bus", BUS, "--journal-rules", SKIPPED)
        )
        if journal is not None and all(map(importlib.util.find_spec, ALARMS_NEED)):
            journal_options += ("--alarms", str(ALARMS))
        words = (*where, *journal_options, "--log-level", "warning")
        child = await ChildProcess.start("jetbus.daemon.main", *words, log=folder / "jetd.log")
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                ready = await child.read_line()
        # A cancelled start, too, must not leave a process behind.
        except BaseException as problem:
            await child.kill()
            if isinstance(problem, TimeoutError):
                raise NoDaemon(f"jetd is not ready after {READY_WITHIN_S:g} s; try again") from None
            raise
        # An empty line means that the process has ended; its log has the reason.
        if not ready.startswith("ready "):
            raise NoDaemon(await child.wait() or "jetd did not start")
        return cls(child, ready, journal, is_usual=is_usual)

    async def wait(self) -> None:
        """Wait until the daemon ends, and raise the error."""
        error = await self._child.wait()
        raise NoDaemon(f"the demo's daemon has ended ({error or 'no message'}); start the demo again")

    async def stop(self) -> None:
        """Stop the daemon, and wait for its end."""
        await self._child.stop()
