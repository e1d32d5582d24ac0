"""The writer of a journal: events are appended to memory and committed in groups.

Appending belongs to one thread, the owner's. ``take`` hands what was appended over, ``write`` commits it, in the same
thread or another. The owner calls both every ``flush_ms``, also when nothing is pending: sealing by age, retention,
fsync by interval and new attempts after an error are done on that occasion.

Nothing here raises an ``OSError`` once the writer is open. While the disk refuses, events wait in memory; what does not
fit there is dropped, oldest first, and counted, and a ``gap`` event says so where it was. A seq is given when a batch
is written, so that the seqs on disk have no gap.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict

from jetbus.journal.buffers import BATCH_EVENTS_MAX, Lost, Pending
from jetbus.journal.committing import Committer
from jetbus.journal.density import EVERY, SKIP, Densities, Row
from jetbus.journal.errors import JournalError
from jetbus.journal.heartbeat import read_heartbeat
from jetbus.journal.identity import Identity, ensure_identity
from jetbus.journal.instants import wall_clock_us, write_instant
from jetbus.journal.lock import Lock, warn_of_others
from jetbus.journal.recovery import Recovered, recover
from jetbus.journal.segment import DIRECTORY_MODE
from jetbus.journal.settings import Settings
from jetbus.journal.watch import Seen, Watch

_LOOK_EVERY = 3 * BATCH_EVENTS_MAX
"""References appended between two looks at what they take in memory."""

_log = logging.getLogger("jetbus.journal")


class WriterStats(TypedDict):
    """What a writer tells about itself."""

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
    ) -> None:
        self.directory = Path(directory)
        self.settings = settings or Settings()
        self._densities = densities or Densities()
        lock = self._enter()
        try:
            self.identity: Identity = ensure_identity(self.directory, self.settings.bus)
            left = lock.left
            self.recovered: Recovered = recover(
                self.directory, torn=left.torn, committed_seq=left.last_seq, clean=left.clean
            )
        except BaseException as error:
            lock.restore()
            if isinstance(error, OSError):
                raise JournalError(f"{self.directory} cannot be recovered: {error}") from error
            raise
        found = self.recovered
        if found.cut_bytes:
            _log.warning("journal %s: a torn tail of %d bytes was cut", self.directory, found.cut_bytes)
        self._disk = Committer(
            lock, self.directory, self.identity, self.settings, last_seq=found.last_seq, lost=found.lost, now_us=now_us
        )
        self._writing = threading.Lock()
        self._closed = False
        heartbeat = read_heartbeat(self.directory)
        # Readers may know from the heartbeat that nothing happened until then.
        self._now_us = max(now_us(), found.last_ts_us, heartbeat.us + 1 if heartbeat else 0)
        self._open = Pending(self._now_us)
        self._look_at = _LOOK_EVERY
        self._watches: list[Watch] = []
        self._taken = 0
        self._dropped = 0
        self._tell_damage(found)
        self.note: Callable[[Row], None] = self._note_selected if self._densities else self._open.rows.extend
        """What ``change`` does, without a call between: takes path, value and peer at once. Look it up for each event;
        it is another one after each ``take``."""

    def _tell_damage(self, found: Recovered) -> None:
        """Say in the log and in the journal which events cannot be read any more."""
        for first, last in found.lost:
            text = f"events {first} to {last} are damaged or missing; restore the journal from a backup, or go on"
            _log.error("journal %s: %s", self.directory, text)
            told = {"reason": text, "missed": last - first + 1, "since": write_instant(found.last_ts_us)}
            self._open.append("gap", None, (None, None, None), json.dumps(told).encode())

    def _enter(self) -> Lock:
        try:
            self.directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            if warning := warn_of_others(self.directory):
                _log.warning("journal %s", warning)
            return Lock(self.directory)
        except OSError as error:
            raise JournalError(f"{self.directory} cannot be written: {error.strerror}") from error

    # -- appending: the owner's thread

    def change(self, path: str, value: bytes, peer: str) -> None:
        """A state has changed."""
        self.note((path, value, peer))

    def append(
        self,
        event: str,
        kind: str | None = None,
        path: str | None = None,
        value: bytes | None = None,
        peer: str | None = None,
        detail: bytes | None = None,
    ) -> None:
        """Any event; value and detail are JSON text."""
        if self._densities and path is not None:
            density = self._densities.of(path)
            if density is SKIP:
                return
            if event == "remove" and (held := density.release(path)):
                self._open.rows.extend(held)
        elif event == "stop":  # what was held back happened before it
            self._release_samples(everything=True)
        self._open.append(event, kind, (path, value, peer), detail)

    @property
    def now_us(self) -> int:
        """The instant of what is appended, set once per turn; it never goes back, also not over a restart."""
        return self._now_us

    @now_us.setter
    def now_us(self, now_us: int) -> None:
        if now_us > self._now_us:
            self._now_us = now_us
            self._open.start_run(now_us)
        if len(self._open.rows) >= self._look_at:
            self._look_at_size()

    @property
    def seq(self) -> int:
        """The seq that the next event gets, as long as the disk takes them all."""
        next_seq, settled = self._disk.progress
        return next_seq + self._taken - settled + len(self._open)

    @property
    def pending(self) -> int:
        """Events appended and not committed."""
        return self._taken - self._disk.progress[1] + len(self._open)

    @property
    def complete_us(self) -> int:
        """An instant up to which every event is committed or dropped; what is still to come is later. 0: unknown."""
        return self._disk.complete_us

    @property
    def pending_bytes(self) -> int:
        """About what they take in memory."""
        return self._open.size_bytes + self._disk.queue_bytes

    @property
    def problem(self) -> str | None:
        """Why the disk refuses, and what to do about it; None while it does not."""
        return self._disk.problem

    @property
    def missed(self) -> int:
        """Events dropped since the writer was opened."""
        return self._dropped + self._disk.dropped

    def take_lost(self) -> Lost | None:
        """What a gap was about that has been written since the last time; whoever knows how that is now may append it.

        Until then the journal tells of it as it was before the gap.
        """
        lost = self._disk.lost
        return lost.popleft() if lost else None

    def watch(self, wanted: Callable[[str], bool], events_max: int) -> Watch:
        """Take note of events about wanted paths from now on, until ``unwatch``; for the owner's thread.

        Call it just after ``take``: then it begins where what was taken ends.
        """
        watch = Watch(wanted, events_max)
        self._watches.append(watch)
        return watch

    def unwatch(self, watch: Watch) -> list[Seen]:
        """End a watch; gives all that was noted."""
        self._watches.remove(watch)
        watch.collect(self._open)
        return watch.events

    @property
    def committed_seq(self) -> int:
        """The last seq that is in the journal."""
        return self._disk.progress[0] - 1

    def take(self) -> Pending:
        """What was appended since the last time; give it to ``write``, in this order."""
        return self._swap(everything=False)

    def _release_samples(self, *, everything: bool) -> None:
        for density in self._densities.samples:
            for row in density.due(self._now_us, everything=everything):
                self._open.rows.extend(row)

    def _swap(self, *, everything: bool) -> Pending:
        self._release_samples(everything=everything)
        taken = self._open
        for watch in self._watches:
            watch.collect(taken)
        self._taken += len(taken)
        self._reopen(Pending(self._now_us))
        return taken

    def _reopen(self, fresh: Pending) -> None:
        self._open = fresh
        self._look_at = _LOOK_EVERY
        if not self._densities:
            self.note = fresh.rows.extend

    def _note_selected(self, row: Row) -> None:
        density = self._densities.of(row[0])
        if density is EVERY:
            self._open.rows.extend(row)
        elif density is not SKIP:
            density.hold(row, self._now_us)

    def _look_at_size(self) -> None:
        """Drop what was appended if it is too much: whoever should write it does not keep up at all."""
        self._look_at = len(self._open.rows) + _LOOK_EVERY
        if self.pending_bytes > self.settings.buffered_bytes_max:
            for watch in self._watches:
                watch.collect(self._open)
            self._dropped += len(self._open)
            self._reopen(self._open.drop("buffered_bytes_max reached"))

    # -- committing: any one thread at a time

    def commit(self) -> bool:
        """Take and write at once; whether all that was appended is committed."""
        return self.write(self.take())

    def write(self, pending: Pending) -> bool:
        """Commit what was taken; whether all that was ever taken is committed, with fsync always: is on disk."""
        with self._writing:
            if self._closed:
                raise JournalError(f"the writer of {self.directory} is closed; open another")
            return self._disk.write(pending)

    # -- the end

    def close(self) -> None:
        """Commit, seal, and let the next writer in."""
        if self._closed:
            return
        self._closed = True
        with self._writing:
            self._disk.close(self._swap(everything=True))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stats(self) -> WriterStats:
        """What there is to tell, for metrics and for people; counts are since the writer was opened."""
        return {
            "seq": self.seq,
            "events": self._disk.events,
            "bytes": self._disk.bytes,
            "segments": self._disk.segments,
            "flushes": self._disk.flushes,
            "last_commit_us": self._disk.last_commit_us,
            "pending": self.pending,
            "problem": self.problem,
            "missed": self.missed,
        }
