"""A recording: a range of one journal, as trees and as events in order. Everything here may block.

The path tests of a rule are applied when the journal is read. Its value tests are applied by the player, because an
element that does not match now may match later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jetbus import journal
from jetbus.journal import Journal, JournalError
from jetbus.journal.events import TREE_EVENTS
from jetbus.journal.instants import Instant, read_instant, wall_clock_us, write_instant
from jetbus.journal.segment import CLEARING_EVENTS
from jetbus.rules import EVERYTHING, Rule

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS = 256
"""Events that are converted at once: few, so that no event that is due has to wait."""
_COLUMNS = ["seq", "ts", "event", "kind", "path", "value", "detail", "source_ts", "quality"]
_PLAYED = (*TREE_EVENTS, "describe", "past")
"""Events of elements that are played."""


class RecordedEvent(NamedTuple):
    """An event to be played. Without a path it removes everything: the bus was started or stopped."""

    seq: int
    ts_us: int
    event: str
    kind: str | None
    path: str | None
    value: str | None
    detail: str | None
    source_us: int | None = None
    quality: str | None = None
    """A word, or a JSON object with a reason."""


class RecordedCall(NamedTuple):
    """A recorded call; its arguments and its outcome are JSON text."""

    ts_us: int
    path: str
    args: str | None
    detail: str


class Recording:
    """A range of a journal: the tree at ``start_us``, and the events after it and before ``until_us``."""

    def __init__(
        self, source: str | Path | Journal, rule: Rule | None, since: Instant | None, until: Instant | None
    ) -> None:
        self._journal = source if isinstance(source, Journal) else journal.open(source)
        if len(self._journal.buses) != 1:
            raise JournalError(f"a player plays one bus, not {len(self._journal.buses)}; give one directory")
        self._paths = _without_value_tests(rule)
        ((bus, offsets),) = self._journal.offsets().items()
        first_us, last_us = offsets["first_ts"], offsets["last_ts"]
        if first_us is None or last_us is None:
            raise JournalError(f"the journal of {bus} is empty; record something first")
        # A daemon may be writing to the journal; the end of the recording is fixed here.
        self._seq_until = offsets["last"] + 1
        # The tree of an instant includes its events, so the range begins just before the first event.
        now_us = max(wall_clock_us(), last_us)  # instants in a journal never go back
        self.start_us = first_us - 1 if since is None else max(first_us - 1, read_instant(since, now_us))
        self.until_us = last_us + 1 if until is None else min(last_us + 1, read_instant(until, now_us))
        if self.start_us >= self.until_us:
            raise JournalError(
                f"there are no events in that range; {bus} is recorded"
                f" from {write_instant(first_us)} to {write_instant(last_us)}"
            )

    def tree(self, instant_us: int) -> list[RecordedEvent]:
        """Return the elements at an instant as adds, in order of creation."""
        try:
            # The tree of an instant includes its events, but the end of the range is not a part of it.
            found = self._journal.as_of(min(instant_us, self.until_us - 1), self._paths, missing_ok=True)
        except journal.JournalGone:
            return []  # the log begins in the middle: elements appear when they change
        rows = _list_columns(found.select(["kind", "path", "value", "detail", "source_ts", "quality"]))
        return [RecordedEvent(0, instant_us, "add", *row) for row in zip(*rows, strict=True)]

    def after(self, instant_us: int) -> Iterator[list[RecordedEvent]]:
        """Yield the events after an instant, in chunks."""
        chunk: list[RecordedEvent] = []
        clearings = [event for event in self._clearing_events if event.ts_us > instant_us]
        # Both are in order of seq, which is the first field and decides every comparison.
        for event in heapq.merge(self._read(self._paths, _PLAYED, instant_us), clearings):
            chunk.append(event)
            if len(chunk) == CHUNK_ROWS:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    @cached_property
    def _clearing_events(self) -> list[RecordedEvent]:
        """Starts and stops. They are few, and no rule matches them because they have no path."""
        return list(self._read(None, CLEARING_EVENTS, self.start_us))

    def _read(self, rule: Rule | None, events: tuple[str, ...], after_us: int) -> Iterator[RecordedEvent]:
        batches = self._journal.read(
            rule, after_us + 1, self.until_us, seq_until=self._seq_until, columns=_COLUMNS, events=events
        )
        for batch in batches:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                yield from map(RecordedEvent, *_list_columns(batch.slice(first, CHUNK_ROWS)))

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls recorded up to the end of the range, oldest first."""
        # From the beginning of the journal: the outcome before the range is the one in force where the range begins.
        batches = self._journal.read(
            self._paths,
            until=self.until_us,
            seq_until=self._seq_until,
            columns=["ts", "path", "value", "detail"],
            events=["call"],
        )
        for batch in batches:
            yield from map(RecordedCall, *_list_columns(batch))


def _list_columns(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return the columns of a batch as lists, with instants in microseconds."""
    return [
        (column.cast("int64") if name in ("ts", "source_ts") else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]


def _without_value_tests(rule: Rule | None) -> Rule | None:
    # A rule that matches everything would still cost the journal a test for every event.
    bare = None if rule is None else replace(rule, value=(), sort=None)
    return None if bare == EVERYTHING else bare
