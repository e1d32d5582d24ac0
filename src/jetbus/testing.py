"""A real daemon for your own tests, in this process, on a free port.

    with jetbus.testing.running_daemon() as daemon:
        with jetbus.Peer(daemon.url) as peer:
            ...

In pytest write ``pytest_plugins = ["jetbus.testing"]`` into ``conftest.py`` and take the fixture ``jet_daemon``.
It is the real daemon, not an imitation: everything that works here works on the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jetbus.daemon.config import SETTINGS, Address, Config
from jetbus.daemon.daemon import Daemon
from jetbus.loops import run

__all__ = ["RunningDaemon", "running_daemon"]

START_S = 60.0
"""Limit of the start. It takes a tenth of a second, but much longer where many tests run at once."""


class RunningDaemon:
    """A daemon in a thread of its own. ``restart`` starts a new one, with an empty tree, at the same addresses."""

    def __init__(self, **settings: Any) -> None:
        any_port = Address("127.0.0.1", 0)
        disabled = {"unix": None, "binary_unix": None}
        settings = {"tcp": any_port, "ws": any_port, "binary": any_port, **disabled, **_read_paths(settings)}
        self._config = Config(**settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.listening: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Address for peers that use TCP."""
        return f"{'jets' if self._config.tls_cert else 'jet'}://{self.listening['tcp']}"

    @property
    def ws_url(self) -> str:
        """Address for peers that use WebSocket."""
        return f"{'wss' if self._config.tls_cert else 'ws'}://{self.listening['ws']}"

    @property
    def binary_url(self) -> str:
        """Address for peers that use the binary protocol by TCP."""
        return f"{'jetbs' if self._config.tls_cert else 'jetb'}://{self.listening['binary']}"

    @property
    def unix_url(self) -> str:
        """Address for peers that use a Unix socket, if ``unix`` is set."""
        return f"unix://{self.listening.get('unix', '')}"

    @property
    def binary_unix_url(self) -> str:
        """Address for peers that use the binary protocol by Unix socket, if ``binary_unix`` is set."""
        return f"jetb+unix://{self.listening.get('binary_unix', '')}"

    def start(self) -> None:
        """Start the daemon and wait until it listens."""
        self._started.clear()
        self._error = None
        self._thread = threading.Thread(target=self._run, name="jetd", daemon=True)
        self._thread.start()
        if not self._started.wait(START_S):
            raise TimeoutError(f"the daemon did not start within {START_S:g} s")
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop the daemon; every peer loses its connection."""
        if self._thread is None or self._loop is None or self._stop is None:
            return
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None

    def restart(self) -> None:
        """Stop the daemon and start another one at the same addresses."""
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
        except BaseException as error:
            self._error = error
            self._started.set()
            return
        self.listening = dict(daemon.listening)
        self._config = daemon.config_as_listening()
        self._started.set()
        await self._stop.wait()
        await daemon.stop()


def _read_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with files and directories as ``Path``, which may be given as text."""
    names = {setting.name for setting in SETTINGS if setting.read is Path}
    return {
        name: Path(value) if name in names and isinstance(value, str) else value for name, value in settings.items()
    }


@contextlib.contextmanager
def running_daemon(**settings: Any) -> Iterator[RunningDaemon]:
    """Run a daemon during a ``with`` block; ``settings`` are those of ``jetbus.daemon.Config``."""
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
        """Provide a new daemon for each test."""
        with running_daemon() as daemon:
            yield daemon
