"""The writer of a journal: events are appended in memory and committed in groups.

Appending belongs to one thread, the owner's. ``take`` hands over the appended events, ``write`` commits them, in the
same thread or another. The owner calls both every ``flush_ms``, even when nothing is pending, because sealing by age,
retention, fsync by interval and retries after errors happen there, too.

    owner's thread      append append append  take ......... append append  take
    any thread                                     write                         write

Nothing here raises ``OSError`` once the writer is open. While the disk fails, events wait in memory; beyond
``buffered_bytes_max`` the oldest are dropped and counted, and a ``gap`` event takes their place. Seqs are assigned when
a batch is written, so the seqs on disk have no gap.

A ``Watch`` is the writer's part in the seam between past and live: it collects the events appended from a moment on
while another thread reads the log up to that moment, so that the end of the log is not read on the event loop.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self, TypedDict

from jetbus.journal.batch import BATCH_EVENTS_MAX, FIELDS, LostPaths, PendingEvents, SpecialEvent, Stamp
from jetbus.journal.directory import Identity, Lock, describe_open_permissions, ensure_identity, read_heartbeat
from jetbus.journal.events import CLEARING_EVENTS, TREE_EVENTS
from jetbus.journal.instants import US_PER_S, wall_clock_us, write_instant
from jetbus.journal.journal_errors import JournalError
from jetbus.journal.recovery import Recovered, recover
from jetbus.journal.sampling import EVERY, NO_STAMP, SKIP, Densities, Row, Stamped
from jetbus.journal.segment import DIRECTORY_MODE, Segment
from jetbus.journal.segment_writer import SegmentWriter
from jetbus.journal.settings import Settings


class AppendedEvent(NamedTuple):
    """An event that concerns the tree, as it was appended."""

    event: str
    kind: str | None
    path: str
    value: bytes | None
    detail: bytes | None
    ts_us: int
    source_us: int | None = None
    quality: bytes | None = None


class LastAppended(NamedTuple):
    """The event that was appended last, with the seq that it will have unless events are dropped."""

    event: str
    path: str
    value: bytes
    seq: int
    ts_us: int


WATCHED_BYTES_MAX = 4 << 20
"""Bytes of the events that a watch collects; one that is full is given up, and the events are read from the log."""


class Watch:
    """Events of selected paths, and those that clear the tree."""

    def __init__(self, wanted: Callable[[str], bool], events_max: int) -> None:
        self._wanted = wanted
        self._verdicts: dict[str, bool] = {}
        self._events_max, self._bytes_left = events_max, WATCHED_BYTES_MAX
        self.events: list[AppendedEvent] = []

    @property
    def full(self) -> bool:
        """True if a limit was exceeded, so that events are missing."""
        return len(self.events) > self._events_max or self._bytes_left < 0

    def collect(self, pending: PendingEvents) -> None:
        """Collect from events that are about to be written or dropped; collected events are freed at a limit."""
        if self.full:
            return
        for seen in _events_of(pending):
            if seen.event in CLEARING_EVENTS or (seen.event in _WATCHED and self._wants(seen.path)):
                self._bytes_left -= len(seen.value or b"") + len(seen.detail or b"")
                self.events.append(seen)
            if self.full:
                self.events = []
                self._events_max = -1
                return

    def _wants(self, path: str) -> bool:
        verdict = self._verdicts.get(path)
        if verdict is None:
            verdict = self._verdicts[path] = self._wanted(path)
        return verdict


_CHANGE = SpecialEvent(-1, "change", "state")
_UNSTAMPED = Stamp(-1, None, None)
_WATCHED = (*TREE_EVENTS, "describe")


def _events_of(pending: PendingEvents) -> Iterator[AppendedEvent]:
    rows, specials = pending.rows, {special.row: special for special in pending.specials}
    stamps = {stamp.row: stamp for stamp in pending.stamps}
    runs = zip(pairwise([*pending.starts, len(pending)]), pending.instants, strict=True)
    for (start, stop), ts_us in runs:
        for row in range(start, stop):
            path, value, _ = rows[row * FIELDS : (row + 1) * FIELDS]
            special = specials.get(row, _CHANGE)
            _, source_us, quality = stamps.get(row, _UNSTAMPED)
            value = None if special.absent[1] else value
            yield AppendedEvent(special.event, special.kind, path, value, special.detail, ts_us, source_us, quality)


_CHECK_SIZE_EVERY = 3 * BATCH_EVENTS_MAX
"""References appended between two checks of their size in memory."""

SLEW_FROM_US = US_PER_S
"""Microseconds that the clock may be behind the last event; the journal's time stands still meanwhile."""
SLEW_RATE = 0.5
"""Speed of the journal's time while the clock is further behind: it never stands still for long, and they meet."""

_log = logging.getLogger("jetbus.journal")


class WriterStats(TypedDict):
    """Counters and state of a writer."""

    seq: int
    events: int
    bytes: int
    segments: int
    flushes: int
    last_commit_us: int | None
    pending: int
    problem: str | None
    missed: int


class Writer:
    """The one writer of a journal.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory, Writer(directory) as writer:
    ...     writer.append("add", "state", "plant/speed", b"1", "pump#1")
    ...     writer.change("plant/speed", b"2", "pump#1")
    ...     writer.commit(), writer.seq
    (True, 3)
    """

    def __init__(
        self,
        directory: str | Path,
        settings: Settings | None = None,
        *,
        densities: Densities | None = None,
        now_us: Callable[[], int] = wall_clock_us,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = Path(directory)
        self.settings = settings or Settings()
        self._densities = densities or Densities()
        lock = self._lock_directory()
        try:
            self.identity: Identity = ensure_identity(self.directory, self.settings.bus)
            previous = lock.previous
            self.recovered: Recovered = recover(
                self.directory, torn=previous.torn, committed_seq=previous.last_seq, clean=previous.clean
            )
        except BaseException as error:
            lock.restore()
            if isinstance(error, OSError):
                raise JournalError(f"cannot recover the journal {self.directory}: {error}") from error
            raise
        found = self.recovered
        if found.cut_bytes:
            _log.warning("journal %s: cut an incomplete batch of %d bytes at its end", self.directory, found.cut_bytes)
        self._segment_writer = SegmentWriter(
            lock,
            self.directory,
            self.identity,
            self.settings,
            last_seq=found.last_seq,
            lost=found.lost,
            now_us=now_us,
            monotonic_s=monotonic_s,
        )
        self._monotonic_s = monotonic_s
        self._slewing: tuple[float, int] | None = None
        """Monotonic time and journal's time at which the clock was found to be behind; None while it is not."""
        self._writing = threading.Lock()
        self._closed = False
        heartbeat = read_heartbeat(self.directory)
        # Readers rely on the heartbeat: no event may be earlier.
        self._now_us = max(now_us(), found.last_ts_us, heartbeat.us + 1 if heartbeat else 0)
        self._open = PendingEvents(self._now_us)
        self._check_size_at = _CHECK_SIZE_EVERY
        self._last: dict[str, tuple[bytes, bytes | None]] | None = {} if self.settings.only_changes else None
        """Last recorded value and quality of every state, with ``only_changes``."""
        self._watches: list[Watch] = []
        self._taken = 0
        self._dropped = 0
        self._record_damage(found)
        self.note: Callable[[Row], None] = self._note_sampled if self._densities else self._extend
        """Append a change, given as a tuple of path, value and peer: ``change`` without one call. Look it up for each
        event, because ``take`` replaces it."""
        self.rows: list[Any] | None = None
        """The list that ``note`` extends, if it does nothing else. It is replaced together with ``note``."""
        if not self._densities and self._last is None:
            self.rows = self._open.rows
            self.note = self.rows.extend

    def _record_damage(self, found: Recovered) -> None:
        """Report lost events in the log and as ``gap`` events in the journal."""
        for first, last in found.lost:
            text = f"events {first} to {last} are damaged or missing; restore the journal from a backup, or go on"
            _log.error("journal %s: %s", self.directory, text)
            detail = {"reason": text, "missed": last - first + 1, "since": write_instant(found.last_ts_us)}
            self._open.append("gap", None, (None, None, None), json.dumps(detail).encode())

    def _lock_directory(self) -> Lock:
        try:
            self.directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if warning := describe_open_permissions(self.directory):
                _log.warning("journal %s", warning)
            return Lock(self.directory)
        except OSError as error:
            raise JournalError(f"cannot write to {self.directory}: {error.strerror}") from error

    # -- appending, in the owner's thread

    def change(self, path: str, value: bytes, peer: str) -> None:
        """Append the change of a state; the value is JSON text."""
        self.note((path, value, peer))

    def append_described(
        self, path: str, value: bytes, peer: str, source_us: int | None, quality: bytes | None, past: bool
    ) -> None:
        """Append the change of a state with its source time and quality; ``past`` values do not become the state."""
        if past:
            self.append("past", "state", path, value, peer, None, source_us, quality)
        elif self._densities:
            self._note_sampled((path, value, peer), (source_us, quality))
        else:
            self._extend((path, value, peer), (source_us, quality))

    def append(
        self,
        event: str,
        kind: str | None = None,
        path: str | None = None,
        value: bytes | None = None,
        peer: str | None = None,
        detail: bytes | None = None,
        source_us: int | None = None,
        quality: bytes | None = None,
    ) -> None:
        """Append an event of any kind; value, detail and quality are JSON text, ``source_us`` is the owner's time."""
        # A remove must not overtake the last sample of its path.
        if self._densities and path is not None:
            density = self._densities.of(path)
            if density is SKIP:
                return
            if event == "remove" and (held := density.release(path)):
                self._extend(*held)
        elif event == "stop":  # held samples happened before it
            self._release_samples(everything=True)
        if self._last is not None:
            self._update_last(event, path, value, quality)
        self._open.stamp(source_us, quality)
        self._open.append(event, kind, (path, value, peer), detail)

    def _update_last(self, event: str, path: str | None, value: bytes | None, quality: bytes | None) -> None:
        """Follow the tree, so that the first change after an add is compared with the added value."""
        assert self._last is not None  # noqa: S101
        if event in CLEARING_EVENTS:
            self._last.clear()
        elif event == "add" and path is not None and value is not None:
            self._last[path] = value, quality
        elif event == "remove" and path is not None:
            self._last.pop(path, None)

    def _extend(self, row: Row, stamped: Stamped = NO_STAMP) -> None:
        """Append a change after looking up its density, unless with ``only_changes`` it brings nothing new."""
        if self._last is not None:
            path, recorded = row[0], (row[1], stamped[1])
            if self._last.get(path) == recorded:
                return
            self._last[path] = recorded
        self._open.stamp(*stamped)
        self._open.rows.extend(row)

    @property
    def now_us(self) -> int:
        """The instant of appended events, set once per turn from the clock.

        The clock of the machine may go back; instants in a journal do not, not even across restarts. A clock that was
        ahead for a while would make the journal's time stand still until it is there again, so it is slewed instead.
        """
        return self._now_us

    @now_us.setter
    def now_us(self, now_us: int) -> None:
        if now_us < self._now_us - SLEW_FROM_US:
            now_us = self._slew(now_us)
        elif self._slewing is not None:
            self._slewing = None
            _log.warning("journal %s: the clock has caught up; the journal's time is that of the clock", self.directory)
        if now_us > self._now_us:
            self._now_us = now_us
            self._open.start_run(now_us)
        if len(self._open.rows) >= self._check_size_at:
            self._check_buffer_size()

    def _slew(self, clock_us: int) -> int:
        """Return the journal's time while the clock is far behind it: it goes on, but slower, until they meet."""
        now_s = self._monotonic_s()
        if self._slewing is None:
            self._slewing = now_s, self._now_us
            _log.warning(
                "journal %s: the clock is %.0f s behind the last event, it has been set back or was wrong before;"
                " until it has caught up, the journal's time runs at %g of its speed",
                self.directory,
                (self._now_us - clock_us) / US_PER_S,
                SLEW_RATE,
            )
        since_s, since_us = self._slewing
        return since_us + int((now_s - since_s) * SLEW_RATE * US_PER_S)

    @property
    def seq(self) -> int:
        """The seq of the next event, provided that no event is dropped."""
        # One tuple, read once: the writing thread may replace it at any time.
        next_seq, settled = self._segment_writer.progress
        return next_seq + self._taken - settled + len(self._open)

    def find_last(self) -> LastAppended | None:
        """Return the event that was appended last; None if it has been taken for writing."""
        last = self._open.last
        if last is None:
            return None
        event, path, value, ts_us = last
        return LastAppended(event, path, value, self.seq - 1, ts_us)

    @property
    def pending(self) -> int:
        """Number of events that are appended and not committed."""
        return self._taken - self._segment_writer.progress[1] + len(self._open)

    @property
    def appended(self) -> int:
        """Number of events appended so far and not dropped before they were taken."""
        return self._taken + len(self._open)

    @property
    def durable(self) -> int:
        """Number of these that are settled: dropped, or committed as durably as the setting ``fsync`` says."""
        return self._segment_writer.durable

    @property
    def complete_us(self) -> int:
        """Instant up to which every event is committed or dropped, 0 if unknown; events to come are later."""
        return self._segment_writer.complete_us

    @property
    def pending_bytes(self) -> int:
        """Approximate size of these events in memory."""
        return self._open.size_bytes + self._segment_writer.queue_bytes

    @property
    def problem(self) -> str | None:
        """Reason why the disk cannot be written, and the next step for the user; None while it can."""
        return self._segment_writer.problem

    @property
    def missed(self) -> int:
        """Number of events dropped since the writer was opened."""
        return self._dropped + self._segment_writer.dropped

    def take_lost(self) -> LostPaths | None:
        """Return the paths of a gap that was written since the last call, None if there was none.

        The journal has the values of these paths from before the gap; append their present values to correct it.
        """
        lost = self._segment_writer.lost
        return lost.popleft() if lost else None

    def watch(self, wanted: Callable[[str], bool], events_max: int) -> Watch:
        """Collect the events of selected paths from now on, until ``unwatch``.

        Call it in the owner's thread just after ``take``: then it starts where the taken events end.
        """
        watch = Watch(wanted, events_max)
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: Watch) -> list[AppendedEvent]:
        """End a watch and return the events it collected, none if it became full."""
        self._watches.remove(watch)
        watch.collect(self._open)
        # Events that are appended and not yet taken belong to it as well.
        return watch.events

    @property
    def open_segment(self) -> Segment | None:
        """The segment that is being written; None between two segments."""
        return self._segment_writer.open_segment

    @property
    def committed_seq(self) -> int:
        """The last committed seq."""
        return self._segment_writer.progress[0] - 1

    def take(self) -> PendingEvents:
        """Return the events appended since the last call. Pass them to ``write`` in the same order."""
        return self._swap(everything=False)

    def _release_samples(self, *, everything: bool) -> None:
        for density in self._densities.samples:
            for held in density.due(self._now_us, everything=everything):
                self._extend(*held)

    def _swap(self, *, everything: bool) -> PendingEvents:
        self._release_samples(everything=everything)
        pending = self._open
        for watch in self._watches:
            watch.collect(pending)
        self._taken += len(pending)
        self._reopen(PendingEvents(self._now_us))
        return pending

    def _reopen(self, fresh: PendingEvents) -> None:
        self._open = fresh
        self._check_size_at = _CHECK_SIZE_EVERY
        # The hot path: one bound method of a list, without a Python frame in between.
        if not self._densities and self._last is None:
            self.rows = fresh.rows
            self.note = fresh.rows.extend

    def _note_sampled(self, row: Row, stamped: Stamped = NO_STAMP) -> None:
        density = self._densities.of(row[0])
        if density is EVERY:
            self._extend(row, stamped)
        elif density is not SKIP:
            density.hold(row, self._now_us, stamped)

    def _check_buffer_size(self) -> None:
        """Drop the appended events if they exceed the buffer: they are not taken and written in time."""
        # Adding up the sizes takes time, so it is done once in many thousand events.
        self._check_size_at = len(self._open.rows) + _CHECK_SIZE_EVERY
        if self.pending_bytes > self.settings.buffered_bytes_max:
            for watch in self._watches:
                watch.collect(self._open)
            self._dropped += len(self._open)
            if self._last is not None:
                self._last.clear()  # a dropped value has to be recorded when it comes again
            self._reopen(self._open.drop("buffered_bytes_max reached"))

    # -- committing, in one thread at a time

    def commit(self) -> bool:
        """Take and write in one step; return whether all appended events are committed."""
        return self.write(self.take())

    def write(self, pending: PendingEvents) -> bool:
        """Commit taken events; return whether all events ever taken are committed.

        With ``fsync="always"`` they are on disk then.
        """
        with self._writing:
            if self._closed:
                raise JournalError(f"the writer of {self.directory} is closed; open a new one")
            return self._segment_writer.write(pending)

    # -- closing

    def close(self) -> None:
        """Commit the last events, seal the segment and release the journal."""
        if self._closed:
            return
        self._closed = True
        with self._writing:
            self._segment_writer.close(self._swap(everything=True))

    def abandon(self) -> None:
        """Release the journal without committing anything, as the end of the process would: for tests of recovery."""
        self._closed = True
        self._segment_writer.abandon()

    def retry_now(self) -> None:
        """Let the next commit try the disk again at once, for instance after space was freed."""
        self._segment_writer.retry_now()

    def wait_for_maintenance(self) -> None:
        """Wait until the snapshots of sealed segments are taken and retention is applied."""
        self._segment_writer.wait_for_maintenance()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> WriterStats:
        """Return counters since the writer was opened, and its state, for metrics and diagnostics."""
        return {
            "seq": self.seq,
            "events": self._segment_writer.events,
            "bytes": self._segment_writer.bytes,
            "segments": self._segment_writer.segments,
            "flushes": self._segment_writer.flushes,
            "last_commit_us": self._segment_writer.last_commit_us,
            "pending": self.pending,
            "problem": self.problem,
            "missed": self.missed,
        }
