"""What is appended to a writer from a moment on, for somebody who reads the log up to that moment meanwhile.

Reading takes a while and is done in another thread. When it is done, what has happened since is still in memory here:
the end of the log need not be read from the disk by the thread that serves the bus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from jetbus.journal.buffers import FIELDS, Other, Pending
from jetbus.journal.segment import CLEARING_EVENTS
from jetbus.journal.tree import TREE_EVENTS


class Seen(NamedTuple):
    """An event about the tree, as it was appended."""

    event: str
    kind: str | None
    path: str
    value: bytes | None
    detail: bytes | None
    ts_us: int


class Watch:
    """The events about wanted paths, and those that empty the tree."""

    def __init__(self, wanted: Callable[[str], bool], events_max: int) -> None:
        self._wanted = wanted
        self._verdicts: dict[str, bool] = {}
        self._events_max = events_max
        self.events: list[Seen] = []

    @property
    def full(self) -> bool:
        """Whether there were more than allowed; some of them are not here then."""
        return len(self.events) > self._events_max

    def collect(self, pending: Pending) -> None:
        """Take note of what is about to be handed to the disk, or dropped."""
        for seen in _events_of(pending):
            if self.full:
                return
            if seen.event in CLEARING_EVENTS or (seen.event in TREE_EVENTS and self._wants(seen.path)):
                self.events.append(seen)

    def _wants(self, path: str) -> bool:
        verdict = self._verdicts.get(path)
        if verdict is None:
            verdict = self._verdicts[path] = self._wanted(path)
        return verdict


_CHANGE = Other(-1, "change", "state")


def _events_of(pending: Pending) -> Iterator[Seen]:
    rows, others = pending.rows, {other.row: other for other in pending.others}
    runs = zip(pairwise([*pending.starts, len(pending)]), pending.instants, strict=True)
    for (start, stop), ts_us in runs:
        for row in range(start, stop):
            path, value, _ = rows[row * FIELDS : (row + 1) * FIELDS]
            other = others.get(row, _CHANGE)
            yield Seen(other.event, other.kind, path, None if other.absent[1] else value, other.detail, ts_us)
