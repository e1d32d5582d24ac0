"""The daemon's journal: a writer, and when it writes.

Events are appended on the event loop and written by a thread, one write at a time:

    loop     append append append | take  append append ......... | take  append
    thread                               write and perhaps fsync         write

The loop never waits for the disk, however slow it is, with one exception: ``journal_fsync = always`` promises that
no event goes out before it is on disk, so the loop waits for every commit. ``waited_s`` counts that time. If a commit
fails, outboxes hold their messages back until one succeeds. Once events had to be dropped, that will never be: then
``on_missed`` closes the peers that wait for an answer or an event.

A query about the past has to see everything that happened before it. ``bring_up_to_date`` returns a ``JournalSeam``:
all events before the seam are being written, and events after it are collected in memory if they are wanted. Threads
wait for the seam, the loop does not.

pyarrow is needed only by a daemon with a journal and is imported with its writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
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
    from jetbus.journal.batch import PendingEvents
    from jetbus.journal.writer import AppendedEvent, Watch

PRESENT_PATHS_PER_TURN = 5_000
"""Number of paths recorded with their present values in one turn after a gap."""
DISK_WAIT_S = 10.0
"""Longest wait of a query for the events before it to be written."""
DISK_SLOW_S = 2.0
"""Duration of a write beyond which it is reported as a problem, in ``/health`` and the metrics."""

log = logging.getLogger("jetbus.daemon")


class JournalSeam:
    """A point in the log: events before it are being written, events after it are collected if wanted."""

    def __init__(self, writer: Writer, wanted: Callable[[str], bool] | None, events_max: int) -> None:
        self._writer = writer
        self._wanted, self._events_max = wanted, events_max
        self._watch: Watch | None = None
        self._ended = False
        self._written: Future[int] = Future()

    def begin(self) -> None:
        """Place the seam here. All appended events have just been taken for writing."""
        if self._wanted is not None and not self._ended:
            self._watch = self._writer.watch(self._wanted, self._events_max)

    def finish(self, last_seq: int) -> None:
        """Report, from any thread, that the events before the seam are written as far as the disk allows."""
        self._written.set_result(last_seq)

    def wait(self) -> int:
        """Wait until the events before the seam are written and return the last seq. Never call it on the loop."""
        try:
            return self._written.result(DISK_WAIT_S)
        except TimeoutError:
            raise Internal(
                f"the disk of the journal has not answered for {DISK_WAIT_S:g} s; try again later,"
                " and see /health of the daemon"
            ) from None

    def end(self) -> list[AppendedEvent] | None:
        """Stop collecting; return the events that were appended after the seam, None if there were too many."""
        self._ended = True
        watch, self._watch = self._watch, None
        if watch is None:
            return []
        events = self._writer.unwatch(watch)
        return None if watch.full else events


class Journaling:
    """The journal of one daemon."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        assert config.journal is not None  # noqa: S101
        self.directory = config.journal
        try:
            densities = journal.Densities(list(config.journal_rules))
            self.writer: Writer = journal.Writer(config.journal, make_writer_settings(config), densities=densities)
        except (journal.JournalError, ModuleNotFoundError, ValueError) as problem:
            raise ConfigError(f"cannot keep a journal: {problem}") from None
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jetd-journal")
        self._always = config.journal_fsync == "always"
        self._writing_since_s: float | None = None
        """Time at which the present write began; None while there is none."""
        self._overdue = False
        """True if a write was due while another one was running; it follows at once."""
        self._waiting_seams: list[JournalSeam] = []
        """Seams that start with the next write."""
        self._awaited: deque[tuple[int, Callable[[], None]]] = deque()
        """Callbacks of ``when_recorded``, each with the number of events that must be settled first."""
        self.waited_s = self.waited_longest_s = 0.0
        """Time that the loop has waited for the disk, in total and at most; only ``always`` makes it wait."""
        self.record_present: Callable[[Iterable[str] | None], None] = lambda _paths: None
        """Record the present elements at these paths, or all of them. Set by the journal's API."""
        self.on_missed: Callable[[], None] = lambda: None
        """Called with ``always`` when events were dropped. Set by the daemon."""
        self._reported_missed = 0
        self._missed: set[str] = set()
        """Paths of dropped events; their present elements are still to be recorded."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def commit_first(self) -> Callable[[], bool] | None:
        """Function to call before anything is sent, if nothing may be sent before it is on disk."""
        return self._commit_before_send if self._always else None

    def start(self) -> None:
        """Record the start of the daemon and start to write."""
        found = self.writer.recovered
        detail: dict[str, Any] = {"version": jetbus.__version__, "restart": found.last_seq > 0 or not found.clean}
        if not found.clean:
            detail |= {"clean": False, "cut_bytes": found.cut_bytes}
        self.tick()
        self.writer.append("start", detail=msgspec.json.encode(detail))
        self._schedule()

    def tick(self) -> None:
        """Set the instant of the events in this turn of the daemon."""
        self.writer.now_us = time.time_ns() // 1000

    def record_peer(self, connection: Connection) -> None:
        """Record that a peer has connected."""
        self._append_connection_event("peer", connection, {"address": connection.address, "transport": connection.kind})

    def record_gone(self, connection: Connection) -> None:
        """Record that a peer is gone, before the removal of its elements."""
        self._append_connection_event("gone", connection)

    def _append_connection_event(self, event: str, connection: Connection, detail: Any = None) -> None:
        if connection.session is not None:
            self.tick()
            encoded = None if detail is None else msgspec.json.encode(detail)
            self.writer.append(event, None, None, None, connection.session.label, encoded)

    # -- writing

    def _schedule(self) -> None:
        self._timer = self._loop.call_later(self.writer.settings.flush_ms / 1000, self._flush)

    def _flush(self) -> None:
        self._schedule()
        self.tick()
        self._record_missed()
        if self._always:
            self._commit()
        # Events that caused nothing to be sent are not committed yet.
        elif self._writing_since_s is None:
            self._write_in_thread()
        else:
            self._overdue = True

    def _commit(self) -> bool:
        """Write all appended events and wait for the disk; return whether they are on it."""
        began_s = time.monotonic()
        done = self.writer.commit()
        waited_s = time.monotonic() - began_s
        self.waited_s += waited_s
        self.waited_longest_s = max(self.waited_longest_s, waited_s)
        if self.writer.missed > self._reported_missed:
            self._reported_missed = self.writer.missed
            self.on_missed()
        self._tell_recorded()
        return done

    def _write_in_thread(self) -> None:
        """Hand all appended events to the thread."""
        # One write at a time: events that arrive meanwhile stay with the writer, which counts and limits them.
        self._writing_since_s = time.monotonic()
        self._overdue = False
        pending = self.writer.take()
        # Between these two steps no event can be appended, so nothing is lost or doubled at the seam.
        seams, self._waiting_seams = self._waiting_seams, []
        for seam in seams:
            seam.begin()
        self._thread.submit(self._write, pending, seams)

    def _record_missed(self) -> None:
        """Record the present elements at the paths of dropped events, some in each turn."""
        while (lost := self.writer.take_lost()) is not None:
            self._missed |= lost.paths
            if lost.everything:
                self._record_everything()
        some = list(islice(self._missed, PRESENT_PATHS_PER_TURN))
        # While the disk refuses, these events would be dropped as well.
        if some and self.writer.problem is None:
            self._missed.difference_update(some)
            self.record_present(some)

    def _record_everything(self) -> None:
        # A start clears the tree, so that elements which are gone need no remove.
        self.writer.append("start", detail=msgspec.json.encode({"version": jetbus.__version__, "again": True}))
        self._missed.clear()
        self.record_present(None)

    def _write(self, pending: PendingEvents, seams: list[JournalSeam]) -> None:
        """Write in the thread, then tell the seams and the loop."""
        try:
            self.writer.write(pending)
        except Exception:
            log.exception("journal %s: a write failed unexpectedly", self.directory)
        for seam in seams:
            seam.finish(self.writer.committed_seq)
        # Also after a failure: a query then sees the events on disk, and does not wait for its timeout.
        with contextlib.suppress(RuntimeError):  # the loop is closed: the daemon has stopped
            self._loop.call_soon_threadsafe(self._finish_write)

    def _finish_write(self) -> None:
        self._writing_since_s = None
        self._tell_recorded()
        if (self._waiting_seams or self._overdue) and self._timer is not None:
            self._write_in_thread()

    def when_recorded(self, then: Callable[[], None]) -> None:
        """Call ``then`` on the loop once all events so far are dropped or as durable as ``journal_fsync`` says."""
        self._awaited.append((self.writer.appended, then))
        self._tell_recorded()

    def _tell_recorded(self) -> None:
        awaited, durable = self._awaited, self.writer.durable
        while awaited and awaited[0][0] <= durable:
            awaited.popleft()[1]()

    def _commit_before_send(self) -> bool:
        return not self.writer.pending or self._commit()

    def bring_up_to_date(self, wanted: Callable[[str], bool] | None = None, events_max: int = 0) -> JournalSeam:
        """Start writing all appended events, without waiting; collect later events of wanted paths."""
        seam = JournalSeam(self.writer, wanted, events_max)
        if self._always:
            self._commit()
            seam.begin()
            seam.finish(self.writer.committed_seq)
        else:
            # A write that is running has taken its events before this query; the seam needs the next one.
            self._waiting_seams.append(seam)
            if self._writing_since_s is None:
                self._write_in_thread()
        return seam

    @property
    def problem(self) -> str | None:
        """Problem with the disk and the next step for the user; None while there is none."""
        since_s = self._writing_since_s
        slow_s = 0.0 if since_s is None else time.monotonic() - since_s
        if self.writer.problem is None and slow_s > DISK_SLOW_S:
            return f"{self.directory}: the disk has not answered for {slow_s:.0f} s; check it, events wait in memory"
        return self.writer.problem

    @property
    def waits(self) -> bool:
        """True if the loop waits for the disk, so that a slow disk slows down the whole bus."""
        return self._always

    async def stop(self) -> None:
        """Record the stop of the daemon and close the journal, without blocking the loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for seam in self._waiting_seams:
            seam.finish(self.writer.committed_seq)
        self._waiting_seams = []
        self.tick()
        self.writer.append("stop")
        closing = self._loop.run_in_executor(self._thread, self.writer.close)  # after the write that is running
        while not (await asyncio.wait([closing], timeout=DISK_SLOW_S))[0]:
            log.warning("journal %s: waiting for the disk to close the journal", self.directory)
        closing.result()
        self._thread.shutdown(wait=False)


def make_writer_settings(config: Config) -> Settings:
    """Return the settings of the writer from those of the daemon."""
    return journal.Settings(
        fsync=config.journal_fsync,  # type: ignore[arg-type]  # checked by the configuration
        flush_ms=config.journal_flush_ms,
        segment_bytes=config.journal_segment_mb << 20,
        segment_age_s=config.journal_segment_s,
        keep_bytes=config.journal_keep_mb << 20 or None,
        keep_s=config.journal_keep_s or None,
        keep_names="journal_keep_mb, journal_keep_s",
        bus=config.journal_bus,
        only_changes=config.journal_values == "changed",
        buffered_bytes_max=config.journal_buffer_mb << 20,
    )
