"""Effective time: recorded events in the order in which they were true.

Journals are in the order in which things came, by ``ts``. An owner that could not be heard reports its values later,
as events ``past`` with the time that it gave each value, ``source_ts``. A reader of a history wants these
*late* values where they belong. So every event has an effective time: that of the owner for late values, that of the
daemon for all others.

    came         a@1  b@2  remove@3                  add d@9  past b@5  past c@7
    effective    a@1  b@2  remove@3  past b@5  past c@7  add d@9

- Path and owner's time identify a late value. One that comes again with the same corrects the earlier.
- A value that came as a change and again as a late value, because its owner did not hear that it had arrived, counts
  once: as the late value.
- A late row without a value is a gap: its owner could not keep the values from this time on, so nothing is known until
  the next one.
- The clocks of owner and daemon differ, and messages take time. A late value stays between the live values to which
  its owner gave earlier and later times, if need be by moving by this difference.

``EffectiveOrder`` merges late values into live events, which may be a stream: it holds back the last seconds of these,
since their owner's times may be earlier.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.segment import SCHEMA

LATE = pa.field("late", pa.bool_())
MERGE_COLUMNS = ("ts", "seq", "event", "path", "value", "source_ts")
"""Columns by which events are merged."""
HELD_US = 10_000_000
"""Time up to which the clocks of owner and daemon may differ in a stream; in a table they may by any time."""
_TS = SCHEMA.field("ts").type


def mark_late(events: pa.RecordBatch, *, late: bool = False) -> pa.RecordBatch:
    """Return events with the column ``late``."""
    return events.append_column(LATE, pa.repeat(pa.scalar(late), events.num_rows))


def drop_corrected(late: pa.Table) -> pa.Table:
    """Return late values without those that later ones have corrected."""
    if late.num_rows < 2:
        return late
    kept = late.select(["path", "source_ts", "seq"]).group_by(["path", "source_ts"]).aggregate([("seq", "max")])
    return late.filter(pc.is_in(late["seq"], value_set=kept["seq_max"].combine_chunks()))


def find_latest(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the late value of each path that has the latest time."""
    late = drop_corrected(pa.concat_tables(tables))
    ordered = late.sort_by([("source_ts", "ascending")]).combine_chunks()
    encoded = ordered["path"].combine_chunks().dictionary_encode()
    return ordered.take(pc.inverse_permutation(encoded.indices, max_index=len(encoded.dictionary) - 1))


class EffectiveOrder:
    """Merges late values into live events. Both need ``MERGE_COLUMNS`` and may have any others."""

    def __init__(self, late: pa.Table, held_us: int | None = HELD_US) -> None:
        """``held_us`` is the time for which live events are held back; None is until the end."""
        self._held_us = held_us
        late = drop_corrected(late)
        self._late = _set_instants(late, late["source_ts"]).append_column(
            LATE, pa.repeat(pa.scalar(True), late.num_rows)
        )
        self._paths = late["path"].unique()
        self._told_again = set(self._list_told_again(late))
        self._live: list[pa.Table] = []

    @staticmethod
    def _list_told_again(late: pa.Table) -> Iterator[tuple[str, int]]:
        """Yield path and time of late values; a gap has no value, so the values of its time stay."""
        values = late.filter(pc.is_valid(late["value"]))
        return _iterate_rows(values.select(["path", "source_ts"]))

    def add(self, events: pa.RecordBatch) -> pa.Table | None:
        """Add the next live events; return those that come next in effective time, if there are any."""
        live = pa.Table.from_batches([mark_late(events)])
        if not len(self._paths):
            return live
        self._live.append(live)
        if self._held_us is None or not events.num_rows:
            return None
        return self._merge(events["ts"][-1].value - self._held_us)

    def end(self) -> pa.Table:
        """Return all that is left, at the end of the live events."""
        return self._merge(None)

    def _merge(self, until_us: int | None) -> pa.Table:
        live = pa.concat_tables(self._live) if self._live else self._late.slice(0, 0)
        live = self._place(live)
        merged = pa.concat_tables([live, self._late.select(live.column_names)])
        # Late values that were moved to one instant stay in the order of their owner.
        order = pc.if_else(merged["late"], merged["source_ts"].cast(pa.int64()), merged["seq"])
        keys = [("ts", "ascending"), ("late", "ascending"), ("order", "ascending")]
        merged = merged.take(pc.sort_indices(merged.select(["ts", "late"]).append_column("order", order), keys))
        if until_us is None:
            self._live, self._late = [], self._late.slice(0, 0)
            return merged.combine_chunks()
        is_due = pc.less_equal(merged["ts"].cast(pa.int64()), until_us)
        due, rest = merged.filter(is_due), merged.filter(pc.invert(is_due))
        self._live, self._late = [rest.filter(pc.invert(rest["late"]))], rest.filter(rest["late"])
        return due.combine_chunks()

    def _place(self, live: pa.Table) -> pa.Table:
        """Move late values between the live ones of their path; return the live ones that are not told again."""
        concerned = pc.and_(pc.is_in(live["path"], value_set=self._paths), pc.is_valid(live["source_ts"]))
        if not pc.any(concerned).as_py():
            return live
        columns = live.filter(concerned).select(["path", "source_ts", "ts", "seq", "event"])
        told_again: list[int] = []
        known: dict[str, list[tuple[int, int]]] = {}
        for path, source_us, ts_us, seq, event in _iterate_rows(columns):
            if event == "change" and (path, source_us) in self._told_again:
                told_again.append(seq)
            else:
                known.setdefault(path, []).append((source_us, ts_us))
        for values in known.values():
            values.sort()
        late = _iterate_rows(self._late.select(["path", "source_ts", "ts"]))
        moved = [_move_between(known.get(path, ()), source_us, ts_us) for path, source_us, ts_us in late]
        self._late = _set_instants(self._late, pa.array(moved, pa.int64()).cast(_TS))
        if not told_again:
            return live
        return live.filter(pc.invert(pc.is_in(live["seq"], value_set=pa.array(told_again, pa.int64()))))


def _move_between(live: Sequence[tuple[int, int]], source_us: int, ts_us: int) -> int:
    """Return the instant of a late value between live ones, given the owner's and the daemon's times of these."""
    at = bisect_left(live, (source_us, 0))
    if at < len(live):
        ts_us = min(ts_us, live[at][1] - 1)
    return max(ts_us, live[at - 1][1]) if at else ts_us


def _set_instants(events: pa.Table, instants: pa.Array | pa.ChunkedArray) -> pa.Table:
    return events.set_column(events.schema.get_field_index("ts"), SCHEMA.field("ts"), instants)


def _iterate_rows(events: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield rows as tuples, with instants in microseconds."""
    columns = [
        (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for column in events.columns
    ]
    return zip(*columns, strict=True)
