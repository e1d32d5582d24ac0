"""A real daemon for your own tests, in this process, on a free port.

    with jetbus.testing.running_daemon() as daemon:
        with jetbus.Peer(daemon.url) as peer:
            ...

In pytest write ``pytest_plugins = ["jetbus.testing"]`` into ``conftest.py`` and take the fixture ``jet_daemon``.
It is the daemon itself, not an imitation: what works here works on the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections.abc import Iterator
from typing import Any

from jetbus.daemon.config import Address, Config
from jetbus.daemon.daemon import Daemon
from jetbus.loops import run

__all__ = ["RunningDaemon", "running_daemon"]

START_S = 60.0
"""It takes a tenth of a second, but not where many tests run at once."""


class RunningDaemon:
    """A daemon in a thread of its own. ``restart`` gives a new one, with an empty tree, at the same addresses."""

    def __init__(self, **settings: Any) -> None:
        anywhere = Address("127.0.0.1", 0)
        nowhere = {"unix": None, "binary_unix": None}
        self._config = Config(**{"tcp": anywhere, "ws": anywhere, "binary": anywhere, **nowhere, **settings})
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._problem: BaseException | None = None
        self.listening: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Where peers connect by TCP."""
        return f"{'jets' if self._config.tls_cert else 'jet'}://{self.listening['tcp']}"

    @property
    def ws_url(self) -> str:
        """Where peers connect by WebSocket."""
        return f"{'wss' if self._config.tls_cert else 'ws'}://{self.listening['ws']}"

    @property
    def binary_url(self) -> str:
        """Where peers connect by TCP to speak binary."""
        return f"{'jetbs' if self._config.tls_cert else 'jetb'}://{self.listening['binary']}"

    @property
    def unix_url(self) -> str:
        """Where peers connect by Unix socket, if ``unix`` is set."""
        return f"unix://{self.listening.get('unix', '')}"

    @property
    def binary_unix_url(self) -> str:
        """Where peers connect by Unix socket to speak binary, if ``binary_unix`` is set."""
        return f"jetb+unix://{self.listening.get('binary_unix', '')}"

    def start(self) -> None:
        """Start it and wait until it listens."""
        self._started.clear()
        self._problem = None
        self._thread = threading.Thread(target=self._run, name="jetd", daemon=True)
        self._thread.start()
        if not self._started.wait(START_S):
            raise TimeoutError(f"the daemon did not start within {START_S:g} s")
        if self._problem is not None:
            raise self._problem

    def stop(self) -> None:
        """Stop it; every peer loses its connection."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def restart(self) -> None:
        """Stop it and start another one at the same addresses."""
        self.stop()
        self.start()

    def _run(self) -> None:
        run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            daemon = Daemon(self._config)
            await daemon.start()
        except BaseException as problem:
            self._problem = problem
            self._started.set()
            return
        self.listening = dict(daemon.listening)
        self._config = daemon.config_as_listening()
        self._started.set()
        await self._stop.wait()
        await daemon.stop()


@contextlib.contextmanager
def running_daemon(**settings: Any) -> Iterator[RunningDaemon]:
    """A daemon for the time of a ``with`` block; ``settings`` are those of ``jetbus.daemon.Config``."""
    daemon = RunningDaemon(**settings)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()


if importlib.util.find_spec("pytest"):
    import pytest

    @pytest.fixture
    def jet_daemon() -> Iterator[RunningDaemon]:
        """A daemon of its own for each test."""
        with running_daemon() as daemon:
            yield daemon
