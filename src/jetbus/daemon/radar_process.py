"""Radar beside the daemon, for ``jetd --radar``: a child process that serves the page on sockets bound here.

Radar is not a thread of the daemon: drawing ten million points of history holds Python's lock for longer than a message
may wait. As a process of its own it takes other cores, its memory goes with it, and if it fails the bus goes on; it is
then started again, on the same sockets. It is a peer like any other, so that users and rights count for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence

from jetbus.daemon.config import Config, ConfigError

NEEDED = ("starlette", "uvicorn", "pyarrow")
RESTART_S, RESTART_S_MAX = 1.0, 60.0
"""Wait before a process that has failed is started again: the first one, and the longest."""
STOP_S = 2.0

log = logging.getLogger("jetbus.daemon")


class RadarProcess:
    """The child process, from its first start to the end of the daemon."""

    def __init__(self, config: Config, listening: Mapping[str, str], socks: Sequence[socket.socket]) -> None:
        missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"radar needs {', '.join(missing)}; install it with pip install 'jetbus[radar]'")
        self._socks = list(socks)
        self._words = ["--url", find_url(config, listening)]
        for origin in config.ws_origins:
            self._words += ["--origin", origin]
        # Files are read without asking the daemon, so that they are passed on only if everybody may read them.
        if config.journal is not None and config.users is None and not config.journal_groups:
            self._words += ["--journal", str(config.journal)]
        self._scheme = "http"
        if config.tls_cert is not None:
            self._scheme = "https"
            self._words += ["--tls-cert", str(config.tls_cert)]
            self._words += ["--tls-key", str(config.tls_key)] if config.tls_key is not None else []
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Address of the page."""
        host, port = self._socks[0].getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{name}:{port}/"

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
            log.error("Radar has ended with exit code %s; it is started again in %g s", code, wait_s)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RESTART_S_MAX)

    async def _spawn(self) -> Process:
        numbers = [sock.fileno() for sock in self._socks]
        words = [*self._words, *(word for number in numbers for word in ("--fd", str(number)))]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "jetbus.supervise", "jetbus.radar.child", *words),
            stdin=PIPE,  # never written to: its end shows ``supervise`` that the daemon is gone
            stdout=DEVNULL,
            pass_fds=numbers,
            start_new_session=True,  # Ctrl-C is for the daemon, which then stops this process itself
        )

    def renew_certificate(self) -> None:
        """Let the process read its certificate again."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """End the process."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        for sock in self._socks:
            sock.close()
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


def find_url(config: Config, listening: Mapping[str, str]) -> str:
    """Return an address of this daemon for its Radar: one without TLS, since a certificate may be for another name."""
    for kind, scheme in (("tcp", "jet"), ("ws", "ws")):
        if kind in listening and config.tls_cert is None:
            host, _, port = listening[kind].rpartition(":")
            host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(host, host)  # noqa: S104 - every address has this one
            return f"{scheme}://{host}:{port}"
    if "unix" in listening:
        return f"unix://{listening['unix']}"
    raise ConfigError("radar needs tcp or ws without TLS, or unix, to reach the daemon; switch one of them on")
