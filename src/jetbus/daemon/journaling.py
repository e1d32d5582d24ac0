"""The daemon's journal: the bus's record, written by a thread of its own or, where nobody may hear of what is not yet
on disk, before anything is sent.

The loop never waits for the disk, however slow it is, with one exception: ``journal_fsync = always`` promises that
nobody hears of an event that is not on disk, so the loop waits for every commit; ``waited_s`` says for how long.

pyarrow is needed only for a daemon that keeps a journal, and is loaded with its writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

import jetbus
from jetbus import journal
from jetbus.daemon.config import Config, ConfigError
from jetbus.errors import Internal

if TYPE_CHECKING:
    from jetbus.daemon.connection import Connection
    from jetbus.journal import Settings, Writer
    from jetbus.journal.buffers import Pending
    from jetbus.journal.watch import Seen, Watch

AGAIN_PATHS = 5_000
"""Paths that are told again in one turn."""
DISK_WAIT_S = 10.0
"""How long somebody who looks back waits for what was just recorded to be written."""
DISK_SLOW_S = 2.0
"""A write that takes longer than this is told as a problem, in ``/health`` and the metrics."""

log = logging.getLogger("jetbus.daemon")


class Written:
    """A moment: all that was appended before it is being written, what is appended after it is noted if wanted."""

    def __init__(self, writer: Writer, wanted: Callable[[str], bool] | None, events_max: int) -> None:
        self._writer = writer
        self._wanted, self._events_max = wanted, events_max
        self._watch: Watch | None = None
        self._ended = False
        self._done: Future[int] = Future()

    def begin(self) -> None:
        """The moment is now: everything that was appended has just been taken."""
        if self._wanted is not None and not self._ended:
            self._watch = self._writer.watch(self._wanted, self._events_max)

    def finish(self, last_seq: int) -> None:
        """All before the moment is in the journal, as far as the disk takes it; from any thread."""
        self._done.set_result(last_seq)

    def wait(self) -> int:
        """Wait, in another thread than the loop's, until that is so; gives the last seq before the moment."""
        try:
            return self._done.result(DISK_WAIT_S)
        except TimeoutError:
            raise Internal(
                f"the disk of the journal has not taken what was written for {DISK_WAIT_S:g} s; try again later,"
                " and look at /health of the daemon"
            ) from None

    def end(self) -> list[Seen]:
        """Give what was appended since the moment, and note no more."""
        self._ended = True
        watch, self._watch = self._watch, None
        return [] if watch is None else self._writer.unwatch(watch)


class Journaling:
    """A writer, and when it writes."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        assert config.journal is not None  # noqa: S101
        self.directory = config.journal
        try:
            densities = journal.Densities(list(config.journal_rules))
            self.writer: Writer = journal.Writer(config.journal, settings_of(config), densities=densities)
        except (journal.JournalError, ModuleNotFoundError, ValueError) as problem:
            raise ConfigError(f"cannot keep a journal: {problem}") from None
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jetd-journal")
        self._always = config.journal_fsync == "always"
        self._writing_since_s: float | None = None
        """When the write began that is under way in the thread."""
        self._overdue = False
        """Whether it was time to write while a write was under way: the next one follows at once."""
        self._asked: list[Written] = []
        """Moments that begin with the next write."""
        self.waited_s = self.waited_longest_s = 0.0
        """How long the loop has waited for the disk, in all and once at the most; only ``always`` makes it wait."""
        self.tell_again: Callable[[Iterable[str] | None], None] = lambda _paths: None
        """Tells what these paths are now, or everything."""
        self._missed: set[str] = set()
        """What has still to be told again."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def commit_first(self) -> Callable[[], object] | None:
        """What to call before anything is sent, if nothing may be known that is not yet on disk."""
        return self._commit_first if self._always else None

    def start(self) -> None:
        """The daemon has started: say so, and write from now on."""
        found = self.writer.recovered
        told: dict[str, Any] = {"version": jetbus.__version__, "restart": found.last_seq > 0 or not found.clean}
        if not found.clean:
            told |= {"clean": False, "cut_bytes": found.cut_bytes}
        self.tick()
        self.writer.append("start", detail=msgspec.json.encode(told))
        self._schedule()

    def tick(self) -> None:
        """A turn of the daemon: what happens in it happens now."""
        self.writer.now_us = time.time_ns() // 1000

    def came(self, connection: Connection) -> None:
        """A peer may speak now."""
        self._tell("peer", connection, {"address": connection.address, "transport": connection.kind})

    def went(self, connection: Connection) -> None:
        """A peer is gone; what it owned goes next."""
        self._tell("gone", connection)

    def _tell(self, event: str, connection: Connection, detail: Any = None) -> None:
        if connection.session is not None:
            self.tick()
            told = None if detail is None else msgspec.json.encode(detail)
            self.writer.append(event, None, None, None, connection.session.label, told)

    # -- writing

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self.writer.settings.flush_ms / 1000, self._flush)

    def _flush(self) -> None:
        self._schedule()
        self.tick()
        self._make_good()
        if self._always:
            self._commit()
        elif self._writing_since_s is None:
            self._write_aside()
        else:
            self._overdue = True

    def _commit(self) -> None:
        """Write all there is and wait for the disk."""
        began_s = time.monotonic()
        self.writer.commit()
        waited_s = time.monotonic() - began_s
        self.waited_s += waited_s
        self.waited_longest_s = max(self.waited_longest_s, waited_s)

    def _write_aside(self) -> None:
        """Hand all there is to the thread. Only one write is under way at a time: what comes meanwhile is counted."""
        self._writing_since_s = time.monotonic()
        self._overdue = False
        pending = self.writer.take()
        asked, self._asked = self._asked, []
        for written in asked:
            written.begin()
        self._thread.submit(self._write, pending, asked)

    def _make_good(self) -> None:
        """Where events were dropped, tell how that is now, as much as fits into a turn."""
        while (lost := self.writer.take_lost()) is not None:
            self._missed |= lost.paths
            if lost.everything:
                self._start_anew()
        some = list(islice(self._missed, AGAIN_PATHS))
        if some and self.writer.problem is None:
            self._missed.difference_update(some)
            self.tell_again(some)

    def _start_anew(self) -> None:
        self.writer.append("start", detail=msgspec.json.encode({"version": jetbus.__version__, "again": True}))
        self._missed.clear()
        self.tell_again(None)

    def _write(self, pending: Pending, asked: list[Written]) -> None:
        try:
            self.writer.write(pending)
        except Exception:
            log.exception("the journal failed")
        for written in asked:
            written.finish(self.writer.committed_seq)
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has stopped
            self._loop.call_soon_threadsafe(self._wrote)

    def _wrote(self) -> None:
        self._writing_since_s = None
        if (self._asked or self._overdue) and self._timer is not None:
            self._write_aside()

    def _commit_first(self) -> None:
        if self.writer.pending:
            self._commit()

    def bring_up_to_date(self, wanted: Callable[[str], bool] | None = None, events_max: int = 0) -> Written:
        """Have all that was appended written, without waiting for it; what is appended later is noted if wanted."""
        written = Written(self.writer, wanted, events_max)
        if self._always:
            self._commit()
            written.begin()
            written.finish(self.writer.committed_seq)
        else:
            self._asked.append(written)
            if self._writing_since_s is None:
                self._write_aside()
        return written

    @property
    def problem(self) -> str | None:
        """Why the disk does not take what is written, and what to do about it; None while it does."""
        since_s = self._writing_since_s
        slow_s = 0.0 if since_s is None else time.monotonic() - since_s
        if self.writer.problem is None and slow_s > DISK_SLOW_S:
            return f"{self.directory}: the disk has not answered for {slow_s:.0f} s; look at it, events wait in memory"
        return self.writer.problem

    @property
    def waits(self) -> bool:
        """Whether the loop waits for the disk, so that a slow disk makes the whole bus slow."""
        return self._always

    async def stop(self) -> None:
        """The daemon stops: write the last events. The disk may take its time; the loop does not wait for it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for written in self._asked:
            written.finish(self.writer.committed_seq)
        self._asked = []
        self.tick()
        self.writer.append("stop")
        closing = self._loop.run_in_executor(self._thread, self.writer.close)  # behind what is being written
        while not (await asyncio.wait([closing], timeout=DISK_SLOW_S))[0]:
            log.warning("the journal is not closed yet: the disk of %s does not answer", self.directory)
        closing.result()
        self._thread.shutdown(wait=False)


def settings_of(config: Config) -> Settings:
    """The writer's settings."""
    return journal.Settings(
        fsync=config.journal_fsync,  # type: ignore[arg-type]  # checked when it was read
        flush_ms=config.journal_flush_ms,
        segment_bytes=config.journal_segment_mb << 20,
        segment_age_s=config.journal_segment_s,
        keep_bytes=config.journal_keep_mb << 20 or None,
        keep_s=config.journal_keep_s or None,
        bus=config.journal_bus,
        buffered_bytes_max=config.journal_buffer_mb << 20,
    )
