"""The blocking way to run a bridge, for command lines and threads."""

from __future__ import annotations

import threading
from typing import Any

from jetbus.bridge.bridge import Bridge
from jetbus.loops import run, until_stopped

__all__ = ["run_bridge"]


def run_bridge(
    far_url: str | None,
    near_url: str | None = None,
    *,
    prefix: str,
    wait: bool = False,
    stop: threading.Event | None = None,
    **options: Any,
) -> None:
    """Run a bridge until ``stop`` is set, or Ctrl-C; the options are those of ``Bridge``.

    ``on_status`` is called, on the bridge's event loop, whenever a connection is lost or back, and when all is mounted.
    With ``wait`` daemons that are not there yet are waited for.
    """
    stopped = stop or threading.Event()

    async def running() -> None:
        bridge = Bridge(far_url, near_url, prefix=prefix, **options)
        try:
            await until_stopped(bridge.start(wait=wait), stopped)
            await until_stopped(bridge.wait(), stopped)
        finally:
            await bridge.stop()

    run(running())
