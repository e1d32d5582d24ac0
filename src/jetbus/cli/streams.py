"""Streams: how commands that stay on the bus run, what ends them, and how they follow several rules at once."""

from __future__ import annotations

import asyncio
import logging
import select
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, complain
from jetbus.errors import TooSlow
from jetbus.loops import new_loop
from jetbus.peer import Event, PeerAsync
from jetbus.peer.fetching import matches
from jetbus.rules import Rule, parse_rule

QUEUE_MAX = 1_000_000
LOOK_S = 0.2
"""How often a stream looks whether anybody still reads what it prints."""


class _Complaints(logging.Handler):
    """What a peer has to report, as one line and without a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(record.getMessage())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a command that stays; Ctrl-C ends it cleanly."""
    complaining()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(work)


def complaining() -> None:
    """Tell on stderr what peers have to report."""
    logging.getLogger("jetbus").addHandler(_Complaints(logging.ERROR))


@contextmanager
def stopped_by_term() -> Iterator[threading.Event]:
    """An event that SIGTERM sets: services are stopped so, and must leave nothing half done."""
    stop = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


async def until_terminated(work: Coroutine[Any, Any, Any]) -> None:
    """Run until the work is done, or SIGTERM."""
    working, terminated = asyncio.ensure_future(work), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    waiting = asyncio.ensure_future(terminated.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def now() -> str:
    """This instant as RFC 3339."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Ending:
    """When a stream ends: after a count, after a time, when a rule holds; or never by itself."""

    def __init__(self, count: int | None = None, for_s: float | None = None, until: str | None = None) -> None:
        self.count = count
        self.for_s = for_s
        self.until = until
        self._rule = None if until is None else parse_rule(until)
        self._seen = 0
        self._met = False

    def sees(self, event: Event | None = None) -> bool:
        """Take note of what was printed; true if that was the last."""
        self._seen += 1
        if self._rule is not None and event is not None and event.kind != "remove":
            self._met = self._met or matches(self._rule, event.path, event.value)
        return self._met or self._seen == self.count

    def verdict(self) -> int:
        """The exit code at the end of the stream."""
        if self.until is not None and not self._met:
            raise Failure(f"{self.until} did not come true{self._within()}", Code.NOT_MET)
        if self.count is not None and self._seen < self.count and not self._met:
            raise Failure(f"only {self._seen} of {self.count} came{self._within()}", Code.NOT_MET)
        return Code.OK

    def _within(self) -> str:
        return "" if self.for_s is None else f" within {self.for_s:g} s"


@asynccontextmanager
async def staying(bus: Bus, **options: Any) -> AsyncIterator[PeerAsync]:
    """A peer that tells on stderr when its connection is lost and when it is back."""
    url = bus.shown_url
    async with bus.peer(
        on_loss=lambda: complain(f"the connection to {url} is lost; it is tried again until Ctrl-C"),
        on_return=lambda: complain(f"connected to {url} again"),
        **options,
    ) as peer:
        yield peer


async def reader_gone() -> None:
    """Return when nobody reads stdout any more: ``jet watch | head -1`` must end although nothing happens."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        await asyncio.Event().wait()
    while not any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)):
        await asyncio.sleep(LOOK_S)


async def until_end(work: Coroutine[Any, Any, Any], ending: Ending) -> int:
    """Run until the work is done, its time is up or nobody reads any more. The time counts from here."""
    working, reading = asyncio.ensure_future(work), asyncio.ensure_future(reader_gone())
    try:
        done, _ = await asyncio.wait((working, reading), timeout=ending.for_s, return_when=asyncio.FIRST_COMPLETED)
        if working in done:
            working.result()
        elif reading in done:
            raise BrokenPipeError
    finally:
        for task in (working, reading):
            task.cancel()
        await asyncio.gather(working, reading, return_exceptions=True)
    return ending.verdict()


class Following:
    """The events of several rules in the order in which they came; what two rules match is told once."""

    def __init__(self, peer: PeerAsync, rules: Sequence[Rule], *, every: bool = False) -> None:
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._rules = rules
        policy: Any = "every" if every else "latest"
        self._fetches = [peer.fetch(rule, self._hear(index), policy=policy) for index, rule in enumerate(rules)]

    def _hear(self, index: int) -> Callable[[Event], None]:
        earlier = self._rules[:index]

        def hear(event: Event) -> None:
            if any(rule.matches_path(event.path) and matches(rule, event.path, event.value) for rule in earlier):
                return
            self._queue.put_nowait(event)

        return hear

    async def ready(self) -> list[Event]:
        """What was there at the start."""
        for fetch in self._fetches:
            await fetch.ready()
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]

    async def next(self) -> Event:
        """The next event."""
        if self._queue.qsize() > QUEUE_MAX:
            raise TooSlow(f"{self._queue.qsize()} events were not printed; watch fewer paths")
        return await self._queue.get()

    def take(self) -> list[Event]:
        """All events that have come."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]
