"""What is done with the log behind the writer, in a thread that lives as long as there is work: snapshots of the tree,
then retention. Commits never wait for it.

Each sealed segment gets a snapshot of its end, and retention comes after it in the same thread and goes no further. So
wherever the log begins after segments were dropped, there is a snapshot to begin with. A segment that grows gets its
snapshots meanwhile, so that the youngest past is as quickly told as any other.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from jetbus.journal import snapshots
from jetbus.journal.compaction import prune
from jetbus.journal.errors import JournalError, JournalInUse
from jetbus.journal.retention import drop_old
from jetbus.journal.segment import list_segments
from jetbus.journal.settings import Settings

GROWN_EVENTS = 2_000_000
"""Events by which a segment grows before it gets its next snapshots."""

_log = logging.getLogger("jetbus.journal")


class Keeper:
    """The short-lived thread of one writer."""

    def __init__(self, directory: Path, settings: Settings, now_us: Callable[[], int]) -> None:
        self._directory = directory
        self._settings = settings
        self._now_us = now_us
        self._guard = threading.Lock()
        self._wanted: deque[int] = deque()
        self._reached_seq = 0
        self._thread: threading.Thread | None = None
        self.segments = 0
        """How many segments there were when it last looked."""

    def begin(self, last_seq: int) -> None:
        """Catch up with what was sealed before: by this writer's predecessors, or when a killed one was recovered."""
        self._reached_seq = last_seq
        segments = list_segments(self._directory)
        self.segments = len(segments)
        ends = [*(segment.first_seq - 1 for segment in segments[1:]), last_seq]
        newest = max(snapshots.list_snapshots(self._directory), default=0)
        for seq in ends:
            if seq > newest:
                self.sealed(seq)

    def committed(self, upto_seq: int) -> None:
        """The log has grown up to this seq."""
        if upto_seq - self._reached_seq >= GROWN_EVENTS:
            self.sealed(upto_seq)

    def sealed(self, upto_seq: int) -> None:
        """A segment that ends with this seq was sealed, or it is time to look at retention again."""
        self._reached_seq = max(self._reached_seq, upto_seq)
        with self._guard:
            self._wanted.append(upto_seq)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="jetbus-journal-keeper", daemon=True)
                self._thread.start()

    def join(self) -> None:
        """Wait until there is nothing left to do."""
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
                    # A bus must not end for want of a snapshot, nor a disk fill; the next seal tries again.
                    _log.exception("the journal %s could not be tidied up to seq %d", self._directory, upto_seq)

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
        try:
            prune(self._directory, keep_s, keep_bytes, now_us=now_us)
        except JournalInUse:
            return  # it is being compacted; there is a next time
        drop_old(self._directory, self._settings, now_us, upto_seq=upto_seq)
        self.segments = len(list_segments(self._directory))
