"""Commands that stay connected: running them, ending them, and following several rules at once.

Such a command ends by the first of these, which also decides about its exit code; see ``run_until_end``::

    the work is done: --count or --until is met     0
    the time of --for is up                         0, or 7 if --count or --until is given and not met
    the reader of stdout is gone, as with head      0
    Ctrl-C                                          130
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import select
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from jetbus import loops
from jetbus.cli.arguments import read_rule
from jetbus.cli.exit_codes import Code, Failure, print_message
from jetbus.cli.output import encode_json
from jetbus.cli.target import Target
from jetbus.errors import TooSlow
from jetbus.journal.instants import wall_clock_us, write_instant
from jetbus.peer import Event, PeerAsync
from jetbus.peer.subscription import matches
from jetbus.rules import Rule

QUEUE_MAX = 1_000_000
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;]*[@-~]|O.)")
"""Arrow keys and others, which arrive as several bytes."""
LOOK_S = 0.2
"""Interval for checking whether stdout still has a reader."""


class _MessageHandler(logging.Handler):
    """Log handler that prints messages of peers as single lines, without tracebacks."""

    def emit(self, record: logging.LogRecord) -> None:
        print_message(record.getMessage())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end; Ctrl-C cancels it cleanly."""
    report_to_stderr()
    return loops.run(work)


def report_to_stderr() -> None:
    """Print errors logged by peers to stderr."""
    logging.getLogger("jetbus").addHandler(_MessageHandler(logging.ERROR))


@contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets, so that a service can finish its work when it is stopped."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


async def run_first(*works: Coroutine[Any, Any, Any], within_s: float | None = None) -> int | None:
    """Run coroutines until the first is done; return its position, or None if the time is up before."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        # If several are done at the same time, the first one in order counts.
        for number, task in enumerate(tasks):
            if task in done:
                task.result()
                return number
        return None
    finally:
        for task in tasks:
            task.cancel()
        # Cancelled tasks still clean up, for which the loop has to run.
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_until_sigterm(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine until it is done or SIGTERM arrives."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await run_first(work, terminated.wait())


def now() -> str:
    """Return the current time as RFC 3339."""
    return write_instant(wall_clock_us())


class Ending:
    """Conditions that end a stream: a count, a time, a rule that matches, or none of these."""

    def __init__(self, count: int | None = None, for_s: float | None = None, until: str | None = None) -> None:
        self.count = count
        self.for_s = for_s
        self.until = until
        # Parsed before the connection, so that a mistake in it is found at once.
        self._rule = None if until is None else read_rule(until)
        self._seen = 0
        self._met = False

    def record_event(self, event: Event | None = None) -> bool:
        """Count an event that was printed; return True if it was the last one."""
        self._seen += 1
        # A value that has just been removed cannot meet a condition.
        if self._rule is not None and event is not None and event.kind != "remove":
            self._met = self._met or matches(self._rule, event.path, event.value)
        return self._met or self._seen == self.count

    def get_exit_code(self) -> int:
        """Return the exit code at the end of the stream; raise if a condition was not met."""
        if self.until is not None and not self._met:
            raise Failure(f"the condition {self.until} was not met{self._within()}", Code.NOT_MET)
        # --until may be met before --count events have arrived, which is a success.
        if self.count is not None and self._seen < self.count and not self._met:
            raise Failure(f"only {self._seen} of {self.count} events arrived{self._within()}", Code.NOT_MET)
        return Code.OK

    def _within(self) -> str:
        return "" if self.for_s is None else f" within {self.for_s:g} s"


@asynccontextmanager
async def open_peer(bus: Target, **options: Any) -> AsyncIterator[PeerAsync]:
    """Connect a peer that reports on stderr when its connection is lost and restored."""
    url = bus.shown_url
    async with bus.make_peer(
        on_loss=lambda: print_message(f"lost the connection to {url}; retrying until Ctrl-C"),
        on_return=lambda: print_message(f"reconnected to {url}"),
        **options,
    ) as peer:
        yield peer


async def wait_for_reader_gone() -> None:
    """Wait until the reader of stdout is gone, so that ``jet watch | head -1`` ends even without another event."""
    poll = select.poll()
    try:
        # Without any events to wait for, poll still reports a closed pipe.
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        # No descriptor, as in tests, or no pipe: then a reader cannot leave.
        await asyncio.Event().wait()
    while not any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)):
        await asyncio.sleep(LOOK_S)


async def wait_for_q() -> None:
    """Wait until q is pressed; for ever if stdin is not a terminal, or if that of another program.

    Keys arrive without Enter and are not shown meanwhile; Ctrl-C works as ever.
    """
    # A program in the background is stopped by the system if it configures the terminal.
    if not sys.stdin.isatty() or os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp():
        await asyncio.Event().wait()
    import termios
    import tty

    terminal, pressed, loop = sys.stdin.fileno(), asyncio.Event(), asyncio.get_running_loop()

    def read() -> None:
        keys = b""
        with contextlib.suppress(OSError):
            keys = os.read(terminal, 64)
        if not keys:
            loop.remove_reader(terminal)  # the terminal is gone
        elif b"q" in _ESCAPES.sub(b"", keys).lower():
            pressed.set()

    before = termios.tcgetattr(terminal)
    # Not raw mode, in which Ctrl-C would be a key like any other.
    tty.setcbreak(terminal, termios.TCSANOW)
    loop.add_reader(terminal, read)
    try:
        await pressed.wait()
    finally:
        loop.remove_reader(terminal)
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


async def run_until_end(work: Coroutine[Any, Any, Any], ending: Ending, *, quits: bool = False) -> int:
    """Run a coroutine until it is done, its time is up or the reader of stdout is gone; the time starts now.

    With ``quits`` the key q ends it, too, if it prints to a terminal.
    """
    keys = [wait_for_q()] if quits and sys.stdout.isatty() else []
    first = await run_first(work, wait_for_reader_gone(), *keys, within_s=ending.for_s)
    if first == 1:
        raise BrokenPipeError
    return Code.OK if first == 2 else ending.get_exit_code()


def measure_bytes(event: Event) -> int:
    """Return the number of bytes of the path and value of an event as text."""
    return len(event.path.encode()) + (0 if event.is_method else len(encode_json(event.value).encode()))


class Follower:
    """Events of several rules in the order of arrival; an event that two rules match is reported once."""

    def __init__(self, peer: PeerAsync, rules: Sequence[Rule], *, every: bool = False) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._rules = rules
        policy: Any = "every" if every else "latest"
        self._fetches = [
            peer.fetch(rule, self._make_callback(index), policy=policy) for index, rule in enumerate(rules)
        ]

    def _make_callback(self, index: int) -> Callable[[Event], None]:
        earlier = self._rules[:index]

        def hear(event: Event) -> None:
            # The fetch of an earlier rule reports the same event.
            if any(rule.matches_path(event.path) and matches(rule, event.path, event.value) for rule in earlier):
                return
            self._queue.put_nowait(event)

        return hear

    async def ready(self) -> list[Event]:
        """Wait for the initial events of all rules, and return them."""
        for fetch in self._fetches:
            await fetch.ready()
        return self.take()

    async def next(self) -> Event:
        """Return the next event; wait for it if there is none."""
        # The limits of the peer do not see these events: the callbacks have taken them from it.
        if self._queue.qsize() > QUEUE_MAX:
            raise TooSlow(f"{self._queue.qsize()} events are waiting to be printed; watch fewer paths")
        return await self._queue.get()

    def take(self) -> list[Event]:
        """Return all events that have arrived so far."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]
