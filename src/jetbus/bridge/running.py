"""The blocking way to run a bridge, for command lines and threads."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from jetbus.bridge.bridge import Bridge
from jetbus.loops import new_loop

__all__ = ["run_bridge"]

LOOK_S = 0.1
"""How often it looks whether it is to stop."""


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
    with asyncio.Runner(loop_factory=new_loop) as runner:
        bridge_options = {"prefix": prefix, **options}
        runner.run(_run(far_url, near_url, wait, stop or threading.Event(), bridge_options))


async def _run(
    far_url: str | None, near_url: str | None, wait: bool, stop: threading.Event, options: dict[str, Any]
) -> None:
    bridge = Bridge(far_url, near_url, **options)
    starting = asyncio.ensure_future(bridge.start(wait=wait))
    try:
        while not stop.is_set() and not starting.done():
            await asyncio.wait([starting], timeout=LOOK_S)
        if starting.done():
            starting.result()
        while not stop.is_set():
            await asyncio.sleep(LOOK_S)
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await bridge.stop()
