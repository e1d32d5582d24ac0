"""Maintenance of the log behind the writer: snapshots of the tree, then retention. Commits never wait for it.

It runs in a thread that exists only while there is work. Each sealed segment gets a snapshot of the tree at its end;
retention runs after it in the same thread and drops nothing beyond that snapshot. So wherever the log starts after
segments were dropped, there is a snapshot to start with:

    before   [segment 1][segment 2][segment 3][growing
                        S         S          S
    after               S[segment 3]S[growing              as_of works from here on

A growing segment gets snapshots, too, so that the recent past is found as fast as any other.

Retention drops whole segments, oldest first, by the age of their last event and by the total size. The newest segment
always stays, and with it the next seq. Parquet files are older than any segment and are dropped first, by ``prune``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from jetbus.journal import snapshots
from jetbus.journal.compaction import prune
from jetbus.journal.index import read_index
from jetbus.journal.instants import US_PER_S
from jetbus.journal.journal_errors import JournalError, JournalInUse
from jetbus.journal.segment import Segment, list_segments
from jetbus.journal.settings import Settings


def drop_old(directory: Path, settings: Settings, now_us: int, *, upto_seq: int) -> int:
    """Drop segments up to ``upto_seq`` that exceed the age or the total size; return how many."""
    segments = list_segments(directory)
    sizes = [segment.size_bytes for segment in segments]
    total_bytes = sum(sizes)
    dropped = 0
    for (segment, after), size in zip(pairwise(segments), sizes, strict=False):
        too_much = settings.keep_bytes is not None and total_bytes > settings.keep_bytes
        # Beyond the snapshot at ``upto_seq`` the tree would be unknown if segments were dropped.
        if after.first_seq > upto_seq + 1 or not (too_much or _is_too_old(segment, settings, now_us)):
            break
        segment.path.unlink(missing_ok=True)
        segment.index_path.unlink(missing_ok=True)
        total_bytes -= size
        dropped += 1
    return dropped


def _is_too_old(segment: Segment, settings: Settings, now_us: int) -> bool:
    if settings.keep_s is None:
        return False
    entries = read_index(segment.index_path)
    return bool(entries) and entries[-1].ts_max_us < now_us - settings.keep_s * US_PER_S


GROWN_EVENTS = 2_000_000
"""Events by which a segment grows before its next snapshots are taken."""

_log = logging.getLogger("jetbus.journal")


class Maintenance:
    """Background work of one writer."""

    def __init__(self, directory: Path, settings: Settings, now_us: Callable[[], int]) -> None:
        self._directory = directory
        self._settings = settings
        self._now_us = now_us
        self._guard = threading.Lock()
        self._wanted: deque[int] = deque()
        self._reached_seq = 0
        self._thread: threading.Thread | None = None
        self.segments = 0
        """Number of segments when they were last counted."""

    def begin(self, last_seq: int) -> None:
        """Take the snapshots that previous writers have not taken."""
        self._reached_seq = last_seq
        segments = list_segments(self._directory)
        self.segments = len(segments)
        ends = [*(segment.first_seq - 1 for segment in segments[1:]), last_seq]
        newest = max(snapshots.list_snapshots(self._directory), default=0)
        for seq in ends:
            if seq > newest:
                self.sealed(seq)

    def committed(self, upto_seq: int) -> None:
        """Take snapshots if the log has grown enough; it now ends with this seq."""
        if upto_seq - self._reached_seq >= GROWN_EVENTS:
            self.sealed(upto_seq)

    def sealed(self, upto_seq: int) -> None:
        """Take a snapshot of the end of a sealed segment and apply retention."""
        self._reached_seq = max(self._reached_seq, upto_seq)
        # The thread ends under the same lock when it finds nothing to do, so no request is lost.
        with self._guard:
            self._wanted.append(upto_seq)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jetbus-journal-keeper", daemon=True)
                self._thread.start()

    def join(self) -> None:
        """Wait until all requested work is done."""
        while thread := self._thread:
            thread.join()

    def _work(self) -> None:
        while (upto_seq := self._next()) is not None:
            for step in (self._snapshot, self._retain):
                try:
                    step(upto_seq)
                except JournalError as error:
                    _log.warning("journal %s: %s", self._directory, error)
                except Exception:
                    # Neither a missing snapshot nor an old segment may stop the bus; the next seal tries again.
                    _log.exception("journal %s: maintenance up to seq %d failed", self._directory, upto_seq)

    def _next(self) -> int | None:
        with self._guard:
            if self._wanted:
                return self._wanted.popleft()
            self._thread = None
            return None

    def _snapshot(self, upto_seq: int) -> None:
        snapshots.take(self._directory, upto_seq)

    def _retain(self, upto_seq: int) -> None:
        self.segments = len(list_segments(self._directory))
        keep_s, keep_bytes, now_us = self._settings.keep_s, self._settings.keep_bytes, self._now_us()
        if keep_s is None and keep_bytes is None:
            return
        # Parquet files are older than any segment.
        try:
            prune(self._directory, keep_s, keep_bytes, now_us=now_us)
        except JournalInUse:
            return  # a compaction is running; retention is applied next time
        drop_old(self._directory, self._settings, now_us, upto_seq=upto_seq)
        self.segments = len(list_segments(self._directory))
