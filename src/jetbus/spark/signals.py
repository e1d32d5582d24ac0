"""When alarms are raised and cleared, in numpy: from what each alarm sees of each path, row by row.

For each alarm and path, rows follow one another with ``on`` (the condition holds) and ``off`` (it clears). A run of
rows that are on gives the signal *raised* at its first row, if the run lasted for the hold time; each row that is off
gives *cleared*. Of signals that repeat, the first counts. What is left alternates. A run that may still last is
*pending*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from jetbus.spark.clock import Clock
from jetbus.spark.files import OPEN
from jetbus.spark.lines import NONE, Flags, Ints, Keys, ended_by_cuts, flags, ints, keys_of, names, times

__all__ = ["Watch", "give_signals", "with_places"]


SIGNALS = ("raised", "pending", "cleared")
RAISED, PENDING, CLEARED = range(len(SIGNALS))


class Watch(NamedTuple):
    """What there is to know of an alarm besides its conditions."""

    name: str
    severity: str
    hold_us: int


class _Rows(NamedTuple):
    """What was seen, in order of alarm, path and seq."""

    line: Ints
    """A number for each alarm and path."""
    seq: Ints
    at: Ints
    on: Flags
    off: Flags
    told: Flags
    row: Ints
    """The row it is from; -1 for the cut of a bus."""


def signals_of(seen: pa.Table, watched: Sequence[Watch], clock: Clock) -> tuple[dict[str, pa.Array], Flags, Flags]:
    """The columns of the table of alarms for each signal; which rows are new there, and which are open."""
    keys = keys_of(seen)
    size = max(len(keys.buses) * len(keys.paths), 1)
    rows = _in_order(seen, keys, size, clock)
    place, key = rows.line // size, rows.line % size
    hold = np.array([watch.hold_us for watch in watched], np.int64)[place]
    due = np.where(rows.told, rows.at, rows.at + hold)
    now = keys.per_bus(dict(clock.now), NONE)[keys.bus_of(key)]
    signal = _signals(rows, due, now)
    chosen = np.flatnonzero(signal >= 0)
    before = _before(rows.line[chosen], signal[chosen], CLEARED)
    changes = (signal[chosen] != before) & ~((signal[chosen] == PENDING) & (before == RAISED))
    chosen = chosen[changes]
    signal, due, line, told = signal[chosen], due[chosen], rows.line[chosen], rows.told[chosen]
    is_last = np.append(line[1:] != line[:-1], True)[: len(line)]
    raised = signal == RAISED
    raised_at = np.where(raised, due, np.where(signal == CLEARED, _before(line, due, NONE), NONE))
    row = rows.row[chosen]
    columns = {
        "alarm": names(place[chosen], tuple(watch.name for watch in watched)),
        "severity": names(place[chosen], tuple(watch.severity for watch in watched)),
        **keys.columns(key[chosen]),
        "what": names(signal, SIGNALS),
        "ts": times(np.where(raised, due, rows.at[chosen])),
        "seq": pa.array(rows.seq[chosen]),
        "value": seen["value"].combine_chunks().take(pa.array(row, mask=row < 0)),
        "raised_at": times(raised_at),
    }
    return columns, (signal != PENDING) & ~told, (signal == PENDING) | (raised & is_last)


def _in_order(seen: pa.Table, keys: Keys, size: int, clock: Clock) -> _Rows:
    line = ints(seen["place"]) * size + keys.of_rows
    on, off, told = (flags(seen[name]) for name in ("on", "off", "told"))
    rows = _Rows(line, ints(seen["seq"]), ints(seen["ts"]), on, off, told, np.arange(len(seen)))
    if clock.cuts:
        pairs = zip(rows, _cuts(line, keys, size, clock), strict=True)
        rows = _Rows._make(np.concatenate(pair) for pair in pairs)
    order = np.lexsort((rows.seq, rows.line))
    return _Rows._make(column[order] for column in rows)


def _cuts(line: Ints, keys: Keys, size: int, clock: Clock) -> _Rows:
    """The end of everything on a bus, for each alarm and path of it that is known."""
    lines = np.unique(line)
    ended, seq, at, _event = ended_by_cuts(lines, keys.bus_of(lines % size), keys, clock)
    no, yes = np.zeros(len(ended), np.bool_), np.ones(len(ended), np.bool_)
    return _Rows(ended, seq, at, on=no, off=yes, told=no, row=np.full(len(ended), -1))


def _signals(rows: _Rows, due: Ints, now: Ints) -> Ints:
    """The signal that each row gives, -1 for none."""
    ends = _ends(rows)
    starts = rows.on & ~_before(rows.line, rows.on, False)
    lasted = np.where(ends == NONE, now, ends) >= due
    found = np.where(rows.off, CLEARED, -1)
    found = np.where(starts & (ends == NONE), PENDING, found)
    return np.where(rows.told | (starts & lasted), RAISED, found)


def _ends(rows: _Rows) -> Ints:
    """When the run that a row is in ends: at the next row that is not on; ``NONE`` if there is none."""
    size = len(rows.line)
    place = np.where(rows.on, size, np.arange(size))
    following = np.minimum.accumulate(place[::-1])[::-1]
    inside = np.minimum(following, max(size - 1, 0))
    is_same = (following < size) & (rows.line[inside] == rows.line)
    return np.where(is_same, rows.at[inside], NONE)


def _before(line: Ints, column: Ints | Flags, otherwise: int | bool) -> Ints | Flags:
    """The value of the row before in the same line."""
    is_first = np.ones(len(line), np.bool_)
    is_first[1:] = line[1:] != line[:-1]
    return np.where(is_first, otherwise, np.roll(column, 1))


# -- as a frame


def give_signals(
    batches: Iterable[pa.RecordBatch], *, watched: Sequence[Watch], clock: Clock
) -> Iterator[pa.RecordBatch]:
    """The rows of the table of alarms, with a column ``into`` that says where each belongs."""
    found = [batch for batch in batches if batch.num_rows]
    if found:
        yield from with_places(pa.Table.from_batches(found).combine_chunks(), watched, clock).to_batches()


def with_places(seen: pa.Table, watched: Sequence[Watch], clock: Clock) -> pa.Table:
    """The same as one table, without dictionaries, as Spark takes it."""
    columns, is_new, is_open = signals_of(seen, watched, clock)
    texts = ("alarm", "severity", "bus", "path", "what")
    rows = pa.table({name: column.cast(pa.string()) if name in texts else column for name, column in columns.items()})
    parts = [
        rows.filter(pa.array(which)).append_column("into", pa.repeat(into, int(which.sum())))
        for which, into in ((is_new, "alarms"), (is_open, OPEN))
    ]
    return pa.concat_tables(parts)
