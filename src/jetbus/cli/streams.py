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
from typing import Any

from jetbus import loops
from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, complain
from jetbus.cli.values import shown
from jetbus.errors import TooSlow
from jetbus.journal.instants import wall_clock_us, write_instant
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
    return loops.run(work)


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


async def first_of(*works: Coroutine[Any, Any, Any], within_s: float | None = None) -> int | None:
    """Run until one of them is done, which raises what it raises; gives which, None if the time is up before."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for number, task in enumerate(tasks):
            if task in done:
                task.result()
                return number
        return None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def until_terminated(work: Coroutine[Any, Any, Any]) -> None:
    """Run until the work is done, or SIGTERM."""
    terminated = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminated.set)
    await first_of(work, terminated.wait())


def now() -> str:
    """This instant as RFC 3339."""
    return write_instant(wall_clock_us())


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
    if await first_of(work, reader_gone(), within_s=ending.for_s) == 1:
        raise BrokenPipeError
    return ending.verdict()


def size_bytes(event: Event) -> int:
    """What the path and the value of an event take as text."""
    return len(event.path.encode()) + (0 if event.is_method else len(shown(event.value).encode()))


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
        return self.take()

    async def next(self) -> Event:
        """The next event."""
        if self._queue.qsize() > QUEUE_MAX:
            raise TooSlow(f"{self._queue.qsize()} events were not printed; watch fewer paths")
        return await self._queue.get()

    def take(self) -> list[Event]:
        """All events that have come."""
        return [self._queue.get_nowait() for _ in range(self._queue.qsize())]
