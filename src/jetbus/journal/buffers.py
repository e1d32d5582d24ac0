"""Events on their way to disk: what was appended and is not committed yet.

The hot part is one list that grows by three references an event (path, value, peer). All else about the usual event, a
change of a state, is known beforehand; events that are something else are noted beside the list, and instants as runs,
one per turn of the owner. ``columns`` makes Arrow of it.

There is no seq here: it is given when a batch is made, so what was dropped while the disk refused has none, and there
is no gap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from jetbus.journal.instants import write_instant
from jetbus.journal.segment import CLEARING_EVENTS, EVENTS, KINDS

BATCH_EVENTS_MAX = 65_536
"""No record batch is longer."""
FIELDS = 3
"""References that an event has in ``rows``."""
_EVENT_BYTES = 96
"""About what an event takes in memory besides its texts."""
LOST_PATHS_MAX = 100_000
"""Paths of dropped events that are remembered, so that what they are now can be told."""


class Other(NamedTuple):
    """What is to be known of an event that is not simply the change of a state."""

    row: int
    event: str
    kind: str | None = None
    detail: bytes | None = None
    absent: tuple[bool, ...] = (False, False, False)
    """Which of path, value and peer are null."""


class Lost:
    """What events that were dropped were about: these paths, or it may be anything."""

    __slots__ = ("everything", "paths")

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.everything = False

    def add(self, paths: Iterable[str], *, everything: bool = False) -> None:
        """Note more of it; beyond ``LOST_PATHS_MAX`` it is everything."""
        self.paths.update(paths)
        self.everything = self.everything or everything or len(self.paths) > LOST_PATHS_MAX
        if self.everything:
            self.paths = set()


class Pending:
    """Events that are not committed yet, in order."""

    __slots__ = ("instants", "lost", "missed", "missed_reason", "missed_since_us", "others", "rows", "starts")

    def __init__(self, now_us: int) -> None:
        self.rows: list[Any] = []
        """Path, value and peer of each event in turn."""
        self.others: list[Other] = []
        self.starts = [0]
        """The first event of each run, and in ``instants`` its instant."""
        self.instants = [now_us]
        self.missed = 0
        """Events that were dropped just before these."""
        self.missed_since_us = 0
        self.missed_reason = ""
        self.lost = Lost()

    def __len__(self) -> int:
        return len(self.rows) // FIELDS

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        details = sum(len(other.detail or b"") for other in self.others)
        return sum(map(len, self.rows)) + _EVENT_BYTES * len(self) + details

    @property
    def span_us(self) -> tuple[int, int]:
        """The first and the last instant of these events; a run at the end may have none yet."""
        last = -2 if self.starts[-1] == len(self) and len(self.starts) > 1 else -1
        return self.instants[0], self.instants[last]

    def start_run(self, now_us: int) -> None:
        """Events from here on have this instant."""
        count = len(self.rows) // FIELDS
        if self.starts[-1] == count:
            self.instants[-1] = now_us
        else:
            self.starts.append(count)
            self.instants.append(now_us)

    def append(
        self, event: str, kind: str | None, texts: tuple[str | None, bytes | None, str | None], detail: bytes | None
    ) -> None:
        """Any event."""
        if event not in EVENTS or kind not in KINDS:
            raise ValueError(f"there is no event {event!r} of kind {kind!r}; there are {', '.join(EVENTS)}")
        path, value, peer = texts
        self.others.append(Other(len(self), event, kind, detail, (path is None, value is None, peer is None)))
        self.rows.extend((path or "", value or b"", peer or ""))

    def miss(self, before: Pending) -> None:
        """Take over what was dropped before these events."""
        self._miss(before.missed, before.missed_since_us, before.missed_reason)
        self.lost.add(before.lost.paths, everything=before.lost.everything)

    def lose(self, count: int, since_us: int, reason: str) -> None:
        """Note that events that were committed before these are gone; nobody knows what they were about."""
        self._miss(count, since_us, reason)
        self.lost.add((), everything=True)

    def _miss(self, count: int, since_us: int, reason: str) -> None:
        if not count:
            return
        self.missed += count
        self.missed_since_us = min(self.missed_since_us or since_us, since_us)
        self.missed_reason = self.missed_reason or reason

    def drop(self, reason: str) -> Pending:
        """What is left when all these events are dropped: the note that they are missed."""
        left = Pending(self.instants[-1])
        left.miss(self)
        left._miss(len(self), self.instants[0], reason)
        cleared = any(other.event in CLEARING_EVENTS for other in self.others)
        left.lost.add(filter(None, self.rows[::FIELDS]), everything=cleared)
        return left

    def join(self, later: Pending) -> None:
        """Take in the events that come directly after these."""
        count = len(self)
        self.rows += later.rows
        self.others += [other._replace(row=other.row + count) for other in later.others]
        if self.starts[-1] == count:
            del self.starts[-1], self.instants[-1]
        self.starts += [start + count for start in later.starts]
        self.instants += later.instants

    def with_gap(self) -> Pending:
        """These events, and before them one that tells what was missed, if anything was."""
        if not self.missed:
            return self
        told = {"reason": self.missed_reason, "missed": self.missed, "since": write_instant(self.missed_since_us)}
        gap = Pending(self.instants[0])
        gap.append("gap", None, (None, None, None), json.dumps(told).encode())
        gap.join(self)
        return gap

    def split(self, size: int) -> list[Pending]:
        """The same events in parts of at most so many each."""
        if len(self) <= size:
            return [self]
        parts = [self._part(first, min(first + size, len(self))) for first in range(0, len(self), size)]
        parts[0].miss(self)
        return parts

    def _part(self, first: int, end: int) -> Pending:
        part = Pending(self.instants[0])
        part.rows = self.rows[first * FIELDS : end * FIELDS]
        part.others = [other._replace(row=other.row - first) for other in self.others if first <= other.row < end]
        part.starts, part.instants = [], []
        for (start, stop), instant in zip(pairwise([*self.starts, len(self)]), self.instants, strict=True):
            if start < end and stop > first:
                part.starts.append(max(start - first, 0))
                part.instants.append(instant)
        return part
