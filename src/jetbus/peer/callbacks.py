"""Callbacks: functions of the user that a peer calls, and awaits if they are ``async``.

A callback that fails is logged and does no other harm. The result of an ``async`` callback is awaited on the peer's
event loop: in the background, or, for the callback of a fetch, one event after the other, so that events stay in order
and a slow callback does not start twice.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("jetbus.peer")


def call_back(callback: Callable[..., Any], *args: Any) -> None:
    """Call a function of the user; a failure is logged and does no other harm."""
    try:
        outcome = callback(*args)
        if outcome is not None:
            await_outcome(outcome)
    except Exception:
        log.exception("a callback failed")


_awaited: set[asyncio.Future[Any]] = set()
"""Outcomes of callbacks that are being awaited; the event loop itself refers to them only weakly."""


def await_outcome(outcome: Any) -> None:
    """Await the result of a callback in the background, if it can be awaited."""
    if inspect.isawaitable(outcome):
        import asyncio  # a command that asks once starts without an event loop

        task = asyncio.ensure_future(outcome)
        _awaited.add(task)
        task.add_done_callback(_finish_awaited)


def _finish_awaited(task: asyncio.Future[Any]) -> None:
    _awaited.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a callback failed", exc_info=error)


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether a function, or an object that can be called like one, is ``async``."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
