"""Event loops for the daemon and the peers: create one, run something in it, and keep its sockets alive."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

KEEPALIVE = (("TCP_KEEPIDLE", 12), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 2))
"""Options of TCP: the loss of the machine at the other end is noticed after about 18 s."""
LOOK_S = 0.1
"""Interval at which ``until_stopped`` checks for a stop by another thread."""

_Result = TypeVar("_Result")


def new_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop: uvloop where it is installed, else that of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a coroutine in a new loop until it is done; Ctrl-C ends it cleanly."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


async def until_stopped(work: Awaitable[Any], stop: threading.Event) -> None:
    """Wait until the work is done, raising its error, or until another thread sets ``stop``."""
    working = asyncio.ensure_future(work)
    try:
        while not stop.is_set() and not working.done():
            await asyncio.wait([working], timeout=LOOK_S)
        if working.done():
            working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


def keep_alive(sock: socket.socket | None) -> None:
    """Let the operating system watch whether the machine at the other end is still there."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
