"""A recording: a range of one journal, as trees and as events in order. Everything here may block.

The path tests of a rule are applied when the journal is read. Its value tests are applied by the player, because an
element that does not match now may match later.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jetbus.journal import Journal, JournalError, JournalGone
from jetbus.journal.events import CLEARING_EVENTS, TREE_EVENTS
from jetbus.journal.instants import Instant, write_instant
from jetbus.journal.source import open_folder, without_value_tests
from jetbus.json_types import JsonObject
from jetbus.rules import Rule

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
        self._source = open_folder(source)
        self._paths = None if rule is None else without_value_tests(rule)
        # A daemon may be writing to the journal; the end of the recording is fixed here.
        span = self._source.pin(since, until)
        first_us, last_us, self._seq_until = span.begin_us, span.end_us, span.seq_until
        bus = self._source.describe()["bus"]
        if first_us is None or last_us is None:
            raise JournalError(f"the journal of {bus} is empty; record something first")
        # The tree of an instant includes its events, so the range starts just before the first event.
        self.start_us = first_us - 1 if span.since_us is None else max(first_us - 1, span.since_us)
        self.until_us = last_us + 1 if span.until_us is None else min(last_us + 1, span.until_us)
        if self.start_us >= self.until_us:
            raise JournalError(
                f"there are no events in that range; {bus} is recorded"
                f" from {write_instant(first_us)} to {write_instant(last_us)}"
            )

    def tree(self, instant_us: int) -> list[RecordedEvent]:
        """Return the elements at an instant as adds, in order of creation."""
        try:
            # The tree of an instant includes its events, but the end of the range is not a part of it.
            found = self._source.read_tree_at({"instant": min(instant_us, self.until_us - 1)}, self._paths)
        except JournalGone:
            return []  # the log starts in the middle: elements appear when they change
        rows = _list_columns(found.select(["kind", "path", "value", "detail", "source_ts", "quality"]))
        return [RecordedEvent(0, instant_us, "add", *row) for row in zip(*rows, strict=True)]

    def after(self, instant_us: int) -> Iterator[list[RecordedEvent]]:
        """Yield the events after an instant, in chunks."""
        kinds: JsonObject = {"events": list(_PLAYED), "always": list(CLEARING_EVENTS)}
        for batch in self._read(kinds | {"since": instant_us + 1, "columns": _COLUMNS}):
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                yield list(map(RecordedEvent, *_list_columns(batch.slice(first, CHUNK_ROWS))))

    def calls(self) -> Iterator[RecordedCall]:
        """Yield the calls recorded up to the end of the range, oldest first."""
        # From the start of the journal: the outcome before the range is the one in force where the range starts.
        for batch in self._read({"events": ["call"], "columns": ["ts", "path", "value", "detail"]}):
            yield from map(RecordedCall, *_list_columns(batch))

    def _read(self, params: JsonObject) -> Iterator[pa.RecordBatch]:
        ends = {"until": self.until_us, "seqUntil": self._seq_until}
        return self._source.read_events(params | ends, self._paths)


def _list_columns(batch: pa.RecordBatch) -> list[list[Any]]:
    """Return the columns of a batch as lists, with instants in microseconds."""
    return [
        (column.cast("int64") if name in ("ts", "source_ts") else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
