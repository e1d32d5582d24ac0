"""The writer's side of the disk: group commit, retries, gaps, and the segment that is being written.

Events arrive in groups, every ``flush_ms`` or every few thousand events. A group becomes one record batch, which is
written to the open segment with one call, and is committed when its record is in the index:

    Writer.take() --> queue of PendingEvents --> RecordBatch --> 1. segment  (message)
                                                                 2. index    (position, length, CRC-32)

Readers believe the index only, so a batch is visible as a whole or not at all. If step 1 or 2 fails, both files are cut
back to their previous length. If even that fails, the segment is ``broken``, and recovery must run before the next
write.

The queue makes a bad disk bearable. A write takes batches from its front; an error ends the attempt, and the
rest waits for the next one. A batch leaves the queue only when it is committed or dropped. Dropped events are recorded
at the batch after them, which is then written with a ``gap`` event before it.

All of this runs in one thread at a time. Other threads only read ``progress``, ``problem`` and the counters.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from jetbus.journal.batch import (
    BATCH_EVENTS_MAX,
    COLUMN_BYTES_MAX,
    ColumnTooLarge,
    LostPaths,
    PendingEvents,
    build_batch,
    encode_batch,
)
from jetbus.journal.directory import HEARTBEAT_EVERY_S, Heartbeat, Identity, Lock, write_heartbeat, write_identity
from jetbus.journal.index import RECORD_BYTES, IndexEntry
from jetbus.journal.journal_errors import JournalError
from jetbus.journal.maintenance import Maintenance
from jetbus.journal.recovery import LostRange, recover
from jetbus.journal.segment import (
    DIRECTORY_MODE,
    END_OF_STREAM,
    FILE_MODE,
    NO_LATE_US,
    PLAIN,
    STAMPED,
    Layout,
    Segment,
    locate_segment,
    sync_directory,
)
from jetbus.journal.settings import Settings


class OpenSegment:
    """A new segment and its index, open for appending."""

    def __init__(self, directory: Path, first_seq: int, layout: Layout, *, durable: bool, opened_s: float) -> None:
        self._durable = durable
        self.layout = layout
        self.segment = locate_segment(directory, first_seq)
        self.next_seq = first_seq
        self.position = len(layout.schema_bytes)
        self.broken = False
        self.opened_s = opened_s
        self._index_position = 0
        self._unsynced = True
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._data = os.open(self.segment.path, flags, FILE_MODE)
        self._index = -1
        try:
            # An index without a segment may be left over; a segment must not be, or its events would be overwritten.
            self._index = os.open(self.segment.index_path, flags & ~os.O_EXCL | os.O_TRUNC, FILE_MODE)
            _write_all(self._data, layout.schema_bytes, 0)
            if durable:
                sync_directory(directory)
        except OSError:
            self._close()
            with contextlib.suppress(OSError):
                self.segment.path.unlink()
                self.segment.index_path.unlink()
            raise

    def append(
        self,
        message: memoryview,
        count: int,
        ts_us: tuple[int, int],
        late_us: tuple[int, int] = NO_LATE_US,
        *,
        sync: bool,
    ) -> None:
        """Commit one batch; with ``sync``, return only when it is on disk."""
        entry = IndexEntry(self.next_seq, count, *ts_us, self.position, len(message), crc32(message), *late_us)
        try:
            # Data before index: a record never names bytes that are not there.
            _write_all(self._data, message, self.position)
            if sync:
                os.fdatasync(self._data)
            _write_all(self._index, memoryview(entry.pack()), self._index_position)
            if sync:
                os.fdatasync(self._index)
        except OSError:
            self._cut_back()
            raise
        self.next_seq += count
        self.position = entry.end
        self._index_position += RECORD_BYTES
        self._unsynced = not sync

    def sync(self) -> None:
        """Force everything appended so far to disk."""
        if self._unsynced:
            os.fdatasync(self._data)
            os.fdatasync(self._index)
            self._unsynced = False

    def is_removed(self) -> bool:
        """Return whether one of the files was removed from the directory."""
        return not os.fstat(self._data).st_nlink or not os.fstat(self._index).st_nlink

    def seal(self) -> None:
        """Write the end mark and close the files."""
        # A stream without an end mark can be read as well, so errors are ignored.
        if not self.broken:
            self._write_end()
        self._close()

    def _write_end(self) -> None:
        try:
            _write_all(self._data, END_OF_STREAM, self.position)
            if self._durable:
                self._unsynced = True
                self.sync()
        except OSError:
            self._cut_back()

    def abandon(self) -> None:
        """Close the files without an end mark."""
        self._close()

    def _cut_back(self) -> None:
        """Undo a partial write."""
        try:
            # The index first, so that no record names bytes that were cut off.
            os.ftruncate(self._index, self._index_position)
            os.ftruncate(self._data, self.position)
        except OSError:
            self.broken = True

    def _close(self) -> None:
        for descriptor in (self._data, self._index):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def _write_all(descriptor: int, data: memoryview | bytes, position: int) -> None:
    """Write all bytes at a position; ``pwrite`` may write fewer than it is given."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest = rest[written:]
        position += written


RETRY_S = 1.0
"""Wait after an error before the disk is tried again."""
RETENTION_S = 60.0
"""Interval at which retention is applied when no segment is sealed."""
_PROBLEMS = (OSError, JournalError, pa.ArrowException)

_log = logging.getLogger("jetbus.journal")


class SegmentWriter:
    """Commits batches to the segments of one journal. It owns the journal's lock."""

    def __init__(
        self,
        lock: Lock,
        directory: Path,
        identity: Identity,
        settings: Settings,
        *,
        last_seq: int,
        lost: Iterable[LostRange] = (),
        now_us: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = lock
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._options = pa.ipc.IpcWriteOptions(compression=settings.compression, use_threads=False)
        self._open_segment: OpenSegment | None = None
        self._queue: deque[PendingEvents] = deque()
        self._layout = PLAIN
        """The layout of the open segment, or of the next one."""
        self._has_stamps = False
        """True if an event of the open segment has a source time or a quality; then the next one starts stamped."""
        self._must_recover = False
        self._uncertain: PendingEvents | None = None
        """A batch that was not written without an error, but may be complete on disk."""
        self._opened_seq = self._sealed_seq = last_seq
        self._opened_us = now_us()
        self._removed = ""
        """Description of the files that were last found to be removed."""
        self._reported_lost = set(lost)
        """Damage that was reported already: recovery finds it again each time it runs."""
        self._retry_at_s = self._synced_s = self._maintained_s = self._written_s = monotonic_s()
        self._monotonic_s = monotonic_s
        self._heartbeat_us = 0
        self.progress = (last_seq + 1, 0)
        """The next seq, and how many of the events handed over are settled, that is committed or dropped."""
        self._synced = 0
        """Number of settled events at the last fsync by interval."""
        self.queue_bytes = 0
        """Approximate size of the queue while there is a problem."""
        self.problem: str | None = None
        self.dropped = 0
        self.lost: deque[LostPaths] = deque()
        """Paths of the gaps written since ``Writer.take_lost`` was last called."""
        self.events = self.bytes = self.flushes = 0
        self.last_commit_us: int | None = None
        self.complete_us = 0
        """Instant up to which every event is settled; events yet to be appended are later."""
        self._maintenance = Maintenance(directory, settings, now_us)
        self._maintenance.begin(last_seq)

    @property
    def durable(self) -> int:
        """Number of events handed over that are dropped, or committed as durably as the setting ``fsync`` says."""
        return self._synced if self._settings.fsync == "interval" else self.progress[1]

    @property
    def segments(self) -> int:
        """Number of segments in the directory."""
        return self._maintenance.segments + (self._open_segment is not None)

    @property
    def open_segment(self) -> Segment | None:
        """The segment that is being written; None between two segments."""
        return None if self._open_segment is None else self._open_segment.segment

    def write(self, pending: PendingEvents) -> bool:
        """Commit these events and all that wait; return whether the queue is empty."""
        # Events appended from now on have this instant or a later one.
        taken_us, flushes = pending.instants[-1], self.flushes
        self._enqueue(pending)
        # A disk that has just failed is not asked again for every group; the events wait in memory meanwhile.
        if self.problem is not None and self._monotonic_s() < self._retry_at_s:
            self._drop_oldest()
            return False
        if not self._attempt():
            return False
        self.complete_us = max(self.complete_us, taken_us - 1)
        self._write_heartbeat_when_quiet(quiet=self.flushes == flushes)
        return True

    def close(self, pending: PendingEvents) -> None:
        """Commit the last events, seal the segment and release the lock."""
        self._enqueue(pending)
        # After files were removed, the second attempt creates them again and records the loss.
        if not self._attempt() and not (self._must_recover and self._attempt()):
            lost = sum(map(len, self._queue))
            self.dropped += lost
            _log.error("journal %s: closed without its last %d events: %s", self._directory, lost, self.problem)
        self._seal()
        self._maintenance.join()
        self._lock.release(clean=self.problem is None, last_seq=self.progress[0] - 1)

    def retry_now(self) -> None:
        """Let the next write try the disk again, without waiting for ``RETRY_S`` to pass."""
        self._retry_at_s = self._monotonic_s()

    def wait_for_maintenance(self) -> None:
        """Wait until snapshots are taken and retention is applied."""
        self._maintenance.join()

    def abandon(self) -> None:
        """Close all files as they are and release the lock, as the end of the process would."""
        self._maintenance.join()
        if self._open_segment is not None:
            self._open_segment.abandon()
        self._lock.release(clean=False)

    def _attempt(self) -> bool:
        try:
            if self._must_recover:
                self._recover()
            # Removed files are reported first and replaced later: whoever moved them by mistake can put them back.
            self._check_files()
            if self._queue:
                while self._queue:
                    self._commit_first()
                # A file that was removed during the write has swallowed the batch without an error.
                self._check_files()
            self._sync_and_seal_when_due()
            self._maintenance.committed(self.progress[0] - 1)
        except _PROBLEMS as error:
            self._fail(error)
            self._drop_oldest()
            return False
        if self.problem is not None:
            _log.warning("journal %s: writing again; %d events were missed", self._directory, self.dropped)
            self.problem = None
        self.queue_bytes = 0
        return True

    def _enqueue(self, pending: PendingEvents) -> None:
        """Add events to the queue, joining small batches that wait there."""
        if not pending and not pending.missed:
            return
        if self.problem is not None:
            # The size of the queue is computed only while there is a problem; normally each group is written at once.
            self.queue_bytes += pending.size_bytes
        if self._queue and self._can_join(self._queue[-1], pending):
            self._queue[-1].join(pending)
        else:
            self._queue.extend(pending.split(BATCH_EVENTS_MAX))

    def _can_join(self, last: PendingEvents, pending: PendingEvents) -> bool:
        # A batch that may be on disk already must not grow: recovery settles it as a whole.
        small = len(last) + len(pending) <= self._settings.flush_events
        return small and not pending.missed and last is not self._uncertain

    def _commit_first(self) -> None:
        first = self._queue[0]
        events = first.with_gap()
        next_seq, _ = self.progress
        self._choose_layout(events)
        try:
            batch = build_batch(events, next_seq, self._layout)
        except ColumnTooLarge:
            self._halve_first()
            return
        if self._open_segment is None:
            self._open_segment = OpenSegment(
                self._directory,
                next_seq,
                self._layout,
                durable=self._settings.fsync != "never",
                opened_s=self._monotonic_s(),
            )
        message = encode_batch(batch, self._options)
        sync = self._settings.fsync == "always"
        self._open_segment.append(message, len(events), events.span_us, events.late_us, sync=sync)
        self._settle_first(len(events))
        self.bytes += len(message)
        self.last_commit_us = events.span_us[1]
        if self._open_segment.position >= self._settings.segment_bytes:
            self._seal()

    def _choose_layout(self, events: PendingEvents) -> None:
        """Start a stamped segment if these events need one; a stamped segment takes plain events, too."""
        if not events.stamps:
            return
        if self._layout is PLAIN:
            if self._open_segment is not None:
                self._seal()
            self._layout = STAMPED
        self._has_stamps = True

    def _settle_first(self, written: int) -> None:
        first = self._queue.popleft()
        next_seq, settled = self.progress
        # One assignment of a tuple: other threads read both numbers, and must never see one without the other.
        self.progress = (next_seq + written, settled + len(first))
        if first.missed:
            self.lost.append(first.lost)
        self.events += written
        self.flushes += 1
        if self.problem is not None:
            self.queue_bytes -= first.size_bytes

    def _halve_first(self) -> None:
        """Split the first batch, of which a column is larger than ``COLUMN_BYTES_MAX``."""
        first = self._queue.popleft()
        if len(first) == 1:
            self._drop(first, f"an event was larger than {COLUMN_BYTES_MAX} bytes")
        else:
            # Halves may still be too large; then they are halved when they are first in the queue.
            self._queue.extendleft(reversed(first.split((len(first) + 1) // 2)))

    def _find_removed_files(self) -> str | None:
        """Describe files that were removed, if any: writing to them would succeed and be lost."""
        if not self._lock.holds():
            return "the directory was removed or replaced while it was being written"
        if self._open_segment is not None and self._open_segment.is_removed():
            return f"{self._open_segment.segment.path.name} or its index was removed while it was being written"
        return None

    def _check_files(self) -> None:
        """Raise if files were removed."""
        removed = self._find_removed_files()
        if removed is not None:
            if self._open_segment is not None:
                self._open_segment.broken = True
            self._removed, self._must_recover = removed, True
            raise JournalError(removed)

    def _sync_and_seal_when_due(self) -> None:
        now_s = self._monotonic_s()
        tail = self._open_segment
        if tail is not None and now_s - self._synced_s >= self._settings.fsync_ms / 1000:
            self._synced_s = now_s
            self._sync(tail)
        if tail is not None and now_s - tail.opened_s >= self._settings.segment_age_s:
            self._seal()
        elif now_s - self._maintained_s >= RETENTION_S:
            self._request_maintenance()

    def _sync(self, tail: OpenSegment) -> None:
        """Force the open segment to disk if that is done by interval, and note how far."""
        if self._settings.fsync == "interval":
            tail.sync()
            self._synced = self.progress[1]

    def _write_heartbeat_when_quiet(self, *, quiet: bool) -> None:
        """Write a heartbeat for readers if nothing was written for a while."""
        now_s = self._monotonic_s()
        if not quiet:
            self._written_s = now_s
            return
        if now_s - self._written_s < HEARTBEAT_EVERY_S:
            return
        self._written_s = now_s
        # A directory that was put in place of ours has another log, with other seqs.
        if self.complete_us > max(self._heartbeat_us, self.last_commit_us or 0) and self._lock.holds():
            self._heartbeat_us = self.complete_us
            write_heartbeat(self._directory, Heartbeat(self.progress[0] - 1, self.complete_us))

    def _seal(self) -> None:
        if self._open_segment is not None:
            self._sync(self._open_segment)  # an error is reported here, while sealing ignores it
            self._open_segment.seal()
            self._open_segment = None
            self._layout = STAMPED if self._has_stamps else PLAIN
            self._has_stamps = False
            self._sealed_seq = self.progress[0] - 1
        self._request_maintenance()

    def _request_maintenance(self) -> None:
        self._maintained_s = self._monotonic_s()
        if self._sealed_seq:
            self._maintenance.sealed(self._sealed_seq)

    # -- errors of the disk

    def _fail(self, error: Exception) -> None:
        first_time = self.problem is None
        self.problem = _describe_error(error, self._directory, self._settings.keep_names)
        self._retry_at_s = self._monotonic_s() + RETRY_S
        # Without an open segment, creating one has failed, which may have left files behind.
        if not self._must_recover and (self._open_segment is None or self._open_segment.broken):
            self._must_recover = True
            self._uncertain = self._queue[0] if self._open_segment is not None and self._queue else None
        if first_time:
            self.queue_bytes = sum(pending.size_bytes for pending in self._queue)
            _log.error("cannot write the journal, events wait in memory: %s", self.problem)

    def _drop_oldest(self) -> None:
        """Drop the oldest batches until the queue is within ``buffered_bytes_max``."""
        while self._queue and self.queue_bytes > self._settings.buffered_bytes_max:
            first = self._queue.popleft()
            self.queue_bytes -= first.size_bytes
            self._drop(first, self.problem or "")

    def _drop(self, dropped: PendingEvents, reason: str) -> None:
        """Count events as missed and record that at the batch after them."""
        next_seq, settled = self.progress
        self.progress = (next_seq, settled + len(dropped))
        self.dropped += len(dropped)
        left = dropped.drop(reason)
        if self._queue:
            self._queue[0].inherit_missed(left)
        else:
            self._queue.append(left)

    def _recover(self) -> None:
        """Recover from an error that left the files, or the whole directory, in an unknown state."""
        if self._open_segment is not None:
            self._open_segment.abandon()
            self._open_segment = None
        # The directory is gone or another one is in its place: create and lock it again, with the same identity.
        if not self._lock.holds():
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            # The new lock before the old one is released, so that no other writer gets in between.
            fresh = Lock(self._directory)
            self._lock.release(clean=False)
            self._lock = fresh
            write_identity(self._directory, self._identity)
        next_seq, settled = self.progress
        found = recover(self._directory, committed_seq=next_seq - 1)
        if found.last_seq >= next_seq:  # the batch is complete on disk despite the error
            self.progress = (found.last_seq + 1, settled)
            if self._queue and self._queue[0] is self._uncertain:
                self.queue_bytes -= self._uncertain.size_bytes
                self.progress = (found.last_seq + 1, settled + len(self._queue.popleft()))
        self._uncertain = None
        self._sealed_seq = max(self._sealed_seq, found.last_seq)
        self._must_recover = False
        for lost in found.lost:
            if lost not in self._reported_lost:
                self._reported_lost.add(lost)
                self._note_lost_events(lost)

    def _note_lost_events(self, lost: LostRange) -> None:
        """Record committed events that are gone from disk, for the gap before the next batch."""
        # Events of previous writers do not count as missed by this one.
        count = lost.last - max(lost.first - 1, self._opened_seq)
        self.dropped += max(count, 0)
        reason = f"events {lost.first} to {lost.last} were committed and are lost: {self._removed or self.problem}"
        _log.error("journal %s: %s", self._directory, reason)
        left = PendingEvents(self._opened_us)
        left.add_lost(lost.last - lost.first + 1, self._opened_us, reason)
        if self._queue:
            self._queue[0].inherit_missed(left)
        else:
            self._queue.append(left)


def _describe_error(error: Exception, directory: Path, keep_names: str) -> str:
    """Return the cause of an error and the next step."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{directory}: {error}"
    step = _ADVICE.get(error.errno)
    return f"{directory}: {error.strerror}" + (f"; {step.format(keep_names)}" if step else "")


_FREE_SPACE = "free some space, or keep less ({})"
_MAKE_WRITABLE = "make it writable for this process"
_ADVICE = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EFBIG: _FREE_SPACE,
    errno.EROFS: _MAKE_WRITABLE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
    errno.EIO: "check the disk and its cable; the kernel log has details",
}
