"""Peers in processes of their own beside the daemon: started with it, started again if they fail, ended with it.

They are not threads of the daemon, whose loop serves peers and nothing else: a process of its own takes other cores,
its memory goes with it, and if it fails the bus goes on. Each is a peer like any other, so that users and rights count
for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence

from jetbus.daemon.config import Config, ConfigError

RESTART_S, RESTART_S_MAX = 1.0, 60.0
"""Wait before a process that has failed is started again: the first one, and the longest."""
STOP_S = 2.0

log = logging.getLogger("jetbus.daemon")


class PeerProcess:
    """A child process that runs a module, from its first start to the end of the daemon."""

    name: str
    """Name of the process in messages."""
    module: str
    needed: Sequence[str]
    """Packages that the module imports."""
    extra: str
    """The extra that brings them."""

    def __init__(self, words: Sequence[str]) -> None:
        missing = [name for name in self.needed if importlib.util.find_spec(name) is None]
        if missing:
            needs = f"{self.extra} needs {', '.join(missing)}"
            raise ConfigError(f"{needs}; install it with pip install 'jetbus[{self.extra}]'")
        self._words = list(words)
        self._descriptors: list[int] = []
        """Open files that the process takes over."""
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Number of the process, if one is running."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process, and again whenever it fails."""
        self._watching = asyncio.get_running_loop().create_task(self._keep_running())

    async def _keep_running(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), RESTART_S
        while True:
            begun = loop.time()
            self._process = await self._spawn()
            code = await self._process.wait()
            wait_s = RESTART_S if loop.time() - begun > RESTART_S_MAX else wait_s
            log.error("%s has ended with exit code %s; it is started again in %g s", self.name, code, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RESTART_S_MAX)

    async def _spawn(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jetbus.supervise", self.module, *self._words),
            stdin=PIPE,  # never written to: its end shows ``supervise`` that the daemon is gone
            stdout=DEVNULL,
            pass_fds=self._descriptors,
            start_new_session=True,  # Ctrl-C is for the daemon, which then stops this process itself
        )

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if one is running."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def stop(self) -> None:
        """End the process."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def find_url(part: str, config: Config, listening: Mapping[str, str]) -> str:
    """Return an address of this daemon for a process beside it: one without TLS, whose certificate may be for another.

    ``part`` is the setting that needs it.
    """
    for kind, scheme in (("tcp", "jet"), ("ws", "ws")):
        if kind in listening and config.tls_cert is None:
            host, _, port = listening[kind].rpartition(":")
            host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - every address has this one
            return f"{scheme}://{host}:{port}"
    if "unix" in listening:
        return f"unix://{listening['unix']}"
    raise ConfigError(f"{part} needs tcp or ws without TLS, or unix, to reach the daemon; switch one of them on")
