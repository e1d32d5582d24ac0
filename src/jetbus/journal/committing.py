"""Committing: what was taken from a writer becomes batches on disk, whatever the disk does meanwhile.

What is to be written waits in a queue of batches. An attempt writes the queue from its front; an error ends it, and the
rest goes on waiting until the next attempt. A batch leaves the queue when it is committed or dropped, never otherwise,
and what is dropped is noted at the batch after it, which is then written with a ``gap`` event before it.

All here runs in one thread at a time; other threads read ``progress``, ``problem`` and the counts.
"""

from __future__ import annotations

import errno
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa

from jetbus.journal import heartbeat
from jetbus.journal.buffers import BATCH_EVENTS_MAX, Lost, Pending
from jetbus.journal.columns import TooBig, encode, make_batch
from jetbus.journal.errors import JournalError
from jetbus.journal.identity import Identity, write_identity
from jetbus.journal.keeper import Keeper
from jetbus.journal.lock import Lock
from jetbus.journal.recovery import Stretch, recover
from jetbus.journal.segment import DIRECTORY_MODE
from jetbus.journal.settings import Settings
from jetbus.journal.tail import Tail

RETRY_S = 1.0
"""After an error the disk is tried again, at most this often."""
RETENTION_S = 60.0
"""How often retention is looked at when no segment is sealed."""
_PROBLEMS = (OSError, JournalError, pa.ArrowException)

_log = logging.getLogger("jetbus.journal")


class Committer:
    """The side of a writer that knows the disk. It owns the lock from now on."""

    def __init__(
        self,
        lock: Lock,
        directory: Path,
        identity: Identity,
        settings: Settings,
        *,
        last_seq: int,
        lost: Iterable[Stretch] = (),
        now_us: Callable[[], int],
    ) -> None:
        self._lock = lock
        self._directory = directory
        self._identity = identity
        self._settings = settings
        self._options = pa.ipc.IpcWriteOptions(compression=settings.compression, use_threads=False)
        self._tail: Tail | None = None
        self._queue: deque[Pending] = deque()
        self._must_recover = False
        self._doubtful: Pending | None = None
        """What may be whole on disk, though the disk refused it."""
        self._opened_seq = self._sealed_seq = last_seq
        self._opened_us = now_us()
        self._removed = ""
        """What was last found to be removed."""
        self._told_lost = set(lost)
        """What is damaged and has been told: it is found again whenever the last segment is looked at."""
        self._retry_at_s = self._synced_s = self._tidied_s = self._wrote_s = time.monotonic()
        self._heartbeat_us = 0
        self.progress = (last_seq + 1, 0)
        """The seq to be given next, and how many of the events that were taken are settled: committed or dropped."""
        self.queue_bytes = 0
        """About what waits, while there is a problem."""
        self.problem: str | None = None
        self.dropped = 0
        self.lost: deque[Lost] = deque()
        """What the gaps were about that have been told since somebody asked."""
        self.events = self.bytes = self.flushes = 0
        self.last_commit_us: int | None = None
        self.complete_us = 0
        """Every event up to this instant is settled; those still to be appended are later."""
        self._keeper = Keeper(directory, settings, now_us)
        self._keeper.begin(last_seq)

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return self._keeper.segments + (self._tail is not None)

    def write(self, pending: Pending) -> bool:
        """Commit this and all that waits; whether nothing waits any more."""
        # What is appended from now on has this instant or a later one.
        taken_us, flushes = pending.instants[-1], self.flushes
        self._put(pending)
        if self.problem is not None and time.monotonic() < self._retry_at_s:
            self._shed()
            return False
        if not self._attempt():
            return False
        self.complete_us = max(self.complete_us, taken_us - 1)
        self._leave_heartbeat(quiet=self.flushes == flushes)
        return True

    def close(self, pending: Pending) -> None:
        """Commit the last events, seal, and let the next writer in."""
        self._put(pending)
        # Where files were removed, the second attempt makes them anew and tells what is gone.
        if not self._attempt() and not (self._must_recover and self._attempt()):
            lost = sum(map(len, self._queue))
            self.dropped += lost
            _log.error("the journal %s closes without its last %d events: %s", self._directory, lost, self.problem)
        self._seal()
        self._keeper.join()
        self._lock.release(clean=self.problem is None, last_seq=self.progress[0] - 1)

    def _attempt(self) -> bool:
        try:
            if self._must_recover:
                self._start_over()
            # Removed files are told as a problem first: who moved them by mistake has a moment to put them back.
            self._check_there()
            if self._queue:
                while self._queue:
                    self._commit_first()
                self._check_there()
            self._keep_durable()
            self._keeper.committed(self.progress[0] - 1)
        except _PROBLEMS as error:
            self._fail(error)
            self._shed()
            return False
        if self.problem is not None:
            _log.warning("journal %s is written again; %d events were missed", self._directory, self.dropped)
            self.problem = None
        self.queue_bytes = 0
        return True

    def _put(self, pending: Pending) -> None:
        """Put what was taken into the queue, in batches; small ones that had to wait become one."""
        if not pending and not pending.missed:
            return
        if self.problem is not None:
            self.queue_bytes += pending.size_bytes
        if self._queue and self._can_join(self._queue[-1], pending):
            self._queue[-1].join(pending)
        else:
            self._queue.extend(pending.split(BATCH_EVENTS_MAX))

    def _can_join(self, last: Pending, pending: Pending) -> bool:
        small = len(last) + len(pending) <= self._settings.flush_events
        return small and not pending.missed and last is not self._doubtful

    def _commit_first(self) -> None:
        first = self._queue[0]
        told = first.with_gap()
        next_seq, _ = self.progress
        try:
            batch = make_batch(told, next_seq)
        except TooBig:
            self._halve_first()
            return
        if self._tail is None:
            self._tail = Tail(self._directory, next_seq, durable=self._settings.fsync != "never")
        message = encode(batch, self._options)
        self._tail.append(message, len(told), told.span_us, sync=self._settings.fsync == "always")
        self._settle_first(len(told))
        self.bytes += len(message)
        self.last_commit_us = told.span_us[1]
        if self._tail.position >= self._settings.segment_bytes:
            self._seal()

    def _settle_first(self, written: int) -> None:
        first = self._queue.popleft()
        next_seq, settled = self.progress
        self.progress = (next_seq + written, settled + len(first))
        if first.missed:
            self.lost.append(first.lost)
        self.events += written
        self.flushes += 1
        if self.problem is not None:
            self.queue_bytes -= first.size_bytes

    def _halve_first(self) -> None:
        """A column of one batch holds 2 GiB."""
        first = self._queue.popleft()
        if len(first) == 1:
            self._drop(first, "an event of more than 2 GiB")
        else:
            self._queue.extendleft(reversed(first.split((len(first) + 1) // 2)))

    def _find_removed(self) -> str | None:
        """Say what was removed, if anything was: what is written to removed files is lost without a word."""
        if not self._lock.holds():
            return "the directory was removed or replaced while it was written"
        if self._tail is not None and self._tail.is_removed():
            return f"{self._tail.segment.path.name} or its index was removed while it was written"
        return None

    def _check_there(self) -> None:
        """Fail if files were removed in this very moment."""
        removed = self._find_removed()
        if removed is not None:
            if self._tail is not None:
                self._tail.broken = True
            self._removed, self._must_recover = removed, True
            raise JournalError(removed)

    def _keep_durable(self) -> None:
        now_s = time.monotonic()
        tail = self._tail
        if tail is not None and now_s - self._synced_s >= self._settings.fsync_ms / 1000:
            self._synced_s = now_s
            if self._settings.fsync == "interval":
                tail.sync()
        if tail is not None and now_s - tail.opened_s >= self._settings.segment_age_s:
            self._seal()
        elif now_s - self._tidied_s >= RETENTION_S:
            self._tidy()

    def _leave_heartbeat(self, *, quiet: bool) -> None:
        """Tell readers how far time has come, if nothing was written for a while."""
        now_s = time.monotonic()
        if not quiet:
            self._wrote_s = now_s
            return
        if now_s - self._wrote_s < heartbeat.EVERY_S:
            return
        self._wrote_s = now_s
        # In a directory that was replaced there is the log of somebody else, to which our seq says nothing.
        if self.complete_us > max(self._heartbeat_us, self.last_commit_us or 0) and self._lock.holds():
            self._heartbeat_us = self.complete_us
            heartbeat.write_heartbeat(self._directory, heartbeat.Heartbeat(self.progress[0] - 1, self.complete_us))

    def _seal(self) -> None:
        if self._tail is not None:
            self._tail.seal()
            self._tail = None
            self._sealed_seq = self.progress[0] - 1
        self._tidy()

    def _tidy(self) -> None:
        self._tidied_s = time.monotonic()
        if self._sealed_seq:
            self._keeper.sealed(self._sealed_seq)

    # -- when the disk refuses

    def _fail(self, error: Exception) -> None:
        first_time = self.problem is None
        self.problem = _explain(error, self._directory)
        self._retry_at_s = time.monotonic() + RETRY_S
        if not self._must_recover and (self._tail is None or self._tail.broken):
            self._must_recover = True
            self._doubtful = self._queue[0] if self._tail is not None and self._queue else None
        if first_time:
            self.queue_bytes = sum(pending.size_bytes for pending in self._queue)
            _log.error("the journal cannot be written, events wait in memory: %s", self.problem)

    def _shed(self) -> None:
        """Drop the oldest events while those that wait are too many."""
        while self._queue and self.queue_bytes > self._settings.buffered_bytes_max:
            first = self._queue.popleft()
            self.queue_bytes -= first.size_bytes
            self._drop(first, self.problem or "")

    def _drop(self, dropped: Pending, reason: str) -> None:
        """Count events as missed, before those that come after them."""
        next_seq, settled = self.progress
        self.progress = (next_seq, settled + len(dropped))
        self.dropped += len(dropped)
        left = dropped.drop(reason)
        if self._queue:
            self._queue[0].miss(left)
        else:
            self._queue.append(left)

    def _start_over(self) -> None:
        """Go on after an error that left the files, or the whole directory, in an unknown state."""
        if self._tail is not None:
            self._tail.abandon()
            self._tail = None
        if not self._lock.holds():
            self._directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            fresh = Lock(self._directory)
            self._lock.release(clean=False)
            self._lock = fresh
            write_identity(self._directory, self._identity)
        next_seq, settled = self.progress
        found = recover(self._directory, committed_seq=next_seq - 1)
        if found.last_seq >= next_seq:  # the batch that failed is whole on disk after all
            self.progress = (found.last_seq + 1, settled)
            if self._queue and self._queue[0] is self._doubtful:
                self.queue_bytes -= self._doubtful.size_bytes
                self.progress = (found.last_seq + 1, settled + len(self._queue.popleft()))
        self._doubtful = None
        self._sealed_seq = max(self._sealed_seq, found.last_seq)
        self._must_recover = False
        for stretch in found.lost:
            if stretch not in self._told_lost:
                self._told_lost.add(stretch)
                self._lose(stretch)

    def _lose(self, lost: Stretch) -> None:
        """Note that committed events are gone from the disk; the next batch tells so in a gap before it."""
        count = lost.last - max(lost.first - 1, self._opened_seq)
        self.dropped += max(count, 0)
        reason = f"events {lost.first} to {lost.last} were written and are gone: {self._removed or self.problem}"
        _log.error("journal %s: %s", self._directory, reason)
        left = Pending(self._opened_us)
        left.lose(lost.last - lost.first + 1, self._opened_us, reason)
        if self._queue:
            self._queue[0].miss(left)
        else:
            self._queue.append(left)


def _explain(error: Exception, directory: Path) -> str:
    """The cause and the next step."""
    if not isinstance(error, OSError) or error.errno is None:
        return f"{directory}: {error}"
    step = _NEXT_STEPS.get(error.errno)
    return f"{directory}: {error.strerror}" + (f"; {step}" if step else "")


_MAKE_SPACE = "free some space, or keep less (keep_bytes, keep_s)"
_MAKE_WRITABLE = "make it writable for this process"
_NEXT_STEPS = {
    errno.ENOSPC: _MAKE_SPACE,
    errno.EDQUOT: _MAKE_SPACE,
    errno.EFBIG: _MAKE_SPACE,
    errno.EROFS: _MAKE_WRITABLE,
    errno.EACCES: _MAKE_WRITABLE,
    errno.EPERM: _MAKE_WRITABLE,
    errno.EIO: "look at the disk and its cable; the kernel log knows more",
}
