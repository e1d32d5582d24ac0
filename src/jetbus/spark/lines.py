"""What came of some paths, one event after the other, in Arrow and numpy: history and availability.

Spark brings all rows of a path together in one part; what is made of a part is made here, a column at a time. Nothing
here knows Spark, so that the same functions serve a stream, a whole log and a test. Window
functions of Spark took about twice the processor for the whole batch, and have to be compiled first.

Rows are never moved before the end: they are sorted by number, and a table of rows is taken from the part once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jetbus.spark.clock import CUTS, Clock
from jetbus.spark.typed import coded

__all__ = [
    "EVENTS",
    "NONE",
    "Keys",
    "Line",
    "availability_of",
    "ended_by_cuts",
    "history_of",
    "ints",
    "keys_of",
    "line_of",
    "places_of",
    "runs_of",
    "times",
]

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

EVENTS = ("add", "change", "remove", *CUTS)
ADD, CHANGE = EVENTS.index("add"), EVENTS.index("change")
NONE = np.iinfo(np.int64).min
"""No time, where there is none; a later one wins over it."""


# -- paths by number


@dataclass(frozen=True)
class Keys:
    """The paths of a part by number, in order of bus and path."""

    buses: pa.Array
    paths: pa.Array
    of_rows: Ints
    """The number of the path of each row."""

    def bus_of(self, key: Ints) -> Ints:
        """The place of its bus in ``buses``."""
        return key // max(len(self.paths), 1)

    def columns(self, key: Ints) -> dict[str, pa.Array]:
        """The columns bus and path."""
        path = (key % max(len(self.paths), 1)).astype(np.int32)
        return {
            "bus": pa.DictionaryArray.from_arrays(self.bus_of(key).astype(np.int32), self.buses),
            "path": pa.DictionaryArray.from_arrays(path, self.paths),
        }

    def per_bus(self, told: dict[str, int], otherwise: int) -> Ints:
        """A number for each bus."""
        return np.array([told.get(bus, otherwise) for bus in self.buses.to_pylist()], np.int64)


def keys_of(rows: pa.Table) -> Keys:
    """The paths of a part."""
    buses, bus = _ranked(rows["bus"])
    paths, path = _ranked(rows["path"])
    return Keys(buses, paths, bus * len(paths) + path)


def _ranked(column: pa.ChunkedArray) -> tuple[pa.Array, Ints]:
    """The different values in order, and the place of each row's value among them."""
    encoded = coded(column)
    order = pc.array_sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return encoded.dictionary.take(order), rank[encoded.indices.to_numpy()]


# -- columns as numbers


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _texts(column: pa.ChunkedArray) -> pa.Array:
    whole = _whole(column)
    return whole.cast(pa.string()) if pa.types.is_dictionary(whole.type) else whole


def ints(column: pa.ChunkedArray, otherwise: int = 0) -> Ints:
    """A column of numbers or times as whole numbers; times are microseconds."""
    whole = _whole(column).cast(pa.int64())
    found: Ints = (whole.fill_null(otherwise) if whole.null_count else whole).to_numpy()
    return found


def flags(column: pa.ChunkedArray) -> Flags:
    """A column of conditions; what is not known does not hold."""
    return np.asarray(_whole(column).fill_null(False).to_numpy(zero_copy_only=False), np.bool_)


def places_of(column: pa.ChunkedArray, among: tuple[str, ...]) -> Ints:
    """Texts as their places among some; -1 for all others."""
    encoded = coded(column)
    place = np.append(pc.index_in(encoded.dictionary, value_set=pa.array(among)).fill_null(-1).to_numpy(), -1)
    found: Ints = place[encoded.indices.fill_null(-1).to_numpy()].astype(np.int64)
    return found


def times(us: Ints) -> pa.Array:
    """Microseconds as a column of times; ``NONE`` is null."""
    return pa.array(us, pa.int64(), mask=us == NONE).cast(pa.timestamp("us", "UTC"))


def names(codes: Ints, of: tuple[str, ...]) -> pa.Array:
    """Numbers as names; a negative one is null."""
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=codes < 0), pa.array(of))


def runs_of(*columns: Ints) -> tuple[Ints, Ints]:
    """Where rows with the same values in all columns begin, and how many they are; equal ones are neighbours."""
    size = len(columns[0])
    begins = np.zeros(size, np.bool_)
    begins[:1] = True
    for column in columns:
        begins[1:] |= column[1:] != column[:-1]
    at = np.flatnonzero(begins)
    return at, np.diff(np.append(at, size))


# -- the line


@dataclass(frozen=True)
class Line:
    """The events of each path in order, and the ends of everything where the bus was cut."""

    key: Ints
    seq: Ints
    at: Ints
    event: Ints
    """A place in EVENTS; so is ``after``, which is -1 where nothing follows."""
    after: Ints
    after_at: Ints
    told: Flags
    """Whether it was told in an earlier batch and is here to go on from."""
    span: Ints
    """A number for each time that the path was there, 0 if that was told before."""
    row: Ints
    """The row of the part it is from."""

    @property
    def is_value(self) -> Flags:
        """Whether something is there from now on, as it is after add and change."""
        return self.event <= CHANGE


def line_of(rows: pa.Table, keys: Keys, clock: Clock) -> Line:
    """Bring the events of a part into order. Rows without an event are carried for something else."""
    code = places_of(rows["event"], EVENTS)
    row = np.flatnonzero(code >= 0)
    key, seq, at, event = keys.of_rows[row], ints(rows["seq"])[row], ints(rows["ts"])[row], code[row]
    told = flags(rows["told"])[row]
    if clock.cuts:
        paths = np.unique(key)
        ends = ended_by_cuts(paths, keys.bus_of(paths), keys, clock)
        size = len(ends[0])
        key, seq, at, event = (np.concatenate(pair) for pair in zip((key, seq, at, event), ends, strict=True))
        told = np.concatenate([told, np.zeros(size, np.bool_)])
        row = np.concatenate([row, np.full(size, -1)])
    order = np.lexsort((seq, key))
    key, seq, at, event, told, row = key[order], seq[order], at[order], event[order], told[order], row[order]
    goes_on = np.append(key[1:] == key[:-1], False)[: len(key)]
    begins_span = ((event == ADD) | (event > CHANGE)) & ~told
    count = np.cumsum(begins_span)
    first, size_of = runs_of(key)
    before = np.repeat(count[first] - begins_span[first], size_of)
    return Line(
        key=key,
        seq=seq,
        at=at,
        event=event,
        after=np.where(goes_on, np.roll(event, -1), -1),
        after_at=np.where(goes_on, np.roll(at, -1), NONE),
        told=told,
        span=count - before,
        row=row,
    )


def ended_by_cuts(lines: Ints, bus_of: Ints, keys: Keys, clock: Clock) -> tuple[Ints, ...]:
    """Each cut of a bus for each of its lines, which are paths or parts of them: columns line, seq, at, event."""
    place = {bus: n for n, bus in enumerate(keys.buses.to_pylist())}
    found = [
        (lines[bus_of == place[cut.bus]], cut.seq, cut.until_us, EVENTS.index(cut.event))
        for cut in clock.cuts
        if cut.bus in place
    ]
    if not found:
        return (np.empty(0, np.int64),) * 4
    sizes = [len(one[0]) for one in found]
    rest = [np.repeat(np.array(column, np.int64), sizes) for column in list(zip(*found, strict=True))[1:]]
    return (np.concatenate([one[0] for one in found]), *rest)


# -- history


@dataclass(frozen=True)
class Values:
    """The rows of history as numbers."""

    key: Ints
    begin: Ints
    end: Ints
    """``NONE`` while the value is in force."""
    row: Ints


def history_of(rows: pa.Table, keys: Keys, line: Line) -> tuple[dict[str, pa.Array], Values]:
    """One row per value of a state, its columns besides ``into``; and what rollups need of them."""
    is_state = places_of(rows["kind"], ("state",)) == 0
    is_row = line.is_value
    is_row[is_row] &= is_state[line.row[is_row]]
    row, at, after = line.row[is_row], line.at[is_row], line.after[is_row]
    key = line.key[is_row]
    until = np.where(after >= 0, np.maximum(at, line.after_at[is_row]), NONE)
    part = rows.select(["value", "num", "text", "flag", "peer"]).take(pa.array(row))
    columns = {
        **keys.columns(key),
        "seq": pa.array(line.seq[is_row]),
        "valid_from": times(at),
        "valid_to": times(until),
        "event": names(line.event[is_row], EVENTS),
        "ended_by": names(after, EVENTS),
        **{name: _whole(part[name]) for name in part.column_names},
    }
    return columns, Values(key, at, until, row)


# -- availability


def availability_of(rows: pa.Table, keys: Keys, line: Line) -> tuple[dict[str, pa.Array], Ints]:
    """One row per time that a state or method was there, its columns; and when it ended, ``NONE`` if it did not."""
    fresh = _spans(line)
    texts = {"kind": _texts(rows["kind"]), "owner": _texts(rows["peer"])}
    if "span" in rows.column_names:
        carried, row = _carried(rows, keys)
        fresh = {name: np.concatenate([column, carried[name]]) for name, column in fresh.items()}
        span = _whole(rows["span"]).take(pa.array(row))
        texts = {name: pa.concat_arrays([column, span.field(name)]) for name, column in texts.items()}
    order = np.lexsort((fresh["span"], fresh["key"]))
    columns = {name: column[order] for name, column in fresh.items()}
    at, _ = runs_of(columns["key"], columns["span"])
    least = {name: np.minimum.reduceat(columns[name], at) if len(at) else at for name in ("seq", "since")}
    most = {
        name: np.maximum.reduceat(columns[name], at) if len(at) else at
        for name in ("until", "end", "last", "quiet", "text")
    }
    changes = np.add.reduceat(columns["changes"], at) if len(at) else at
    until = most["until"]
    is_over = until != NONE
    text = pa.array(most["text"], mask=most["text"] < 0)
    return {
        **keys.columns(columns["key"][at]),
        **{name: column.take(text) for name, column in texts.items()},
        "seq": pa.array(least["seq"]),
        "since": times(least["since"]),
        "until": times(until),
        "up_s": pa.array((until - least["since"]) / 1e6, mask=~is_over),
        "changes": pa.array(changes),
        "last_ts": times(most["last"]),
        "quiet_s": pa.array(most["quiet"] / 1e6, mask=most["quiet"] < 0),
        "ended_by": names(most["end"], EVENTS),
    }, until


def _spans(line: Line) -> dict[str, Any]:
    """What a part tells about each time that a path was there."""
    is_row = line.is_value
    key, span, at, after = line.key[is_row], line.span[is_row], line.at[is_row], line.after[is_row]
    after_at, told, row = line.after_at[is_row], line.told[is_row], line.row[is_row]
    first, size = runs_of(key, span)
    last = first + size - 1
    # Nothing but the last row of a time can be followed by the end of it.
    is_over = (after[last] >= 0) & (after[last] != CHANGE)
    quiet = np.where(after >= 0, after_at - at, -1)
    changes = ((line.event[is_row] == CHANGE) & ~told).astype(np.int64)
    return {
        "key": key[first],
        "span": span[first],
        "seq": line.seq[is_row][first],
        "since": at[first],
        "until": np.where(is_over, after_at[last], NONE),
        "end": np.where(is_over, after[last], -1),
        "last": at[last],
        "quiet": np.maximum.reduceat(quiet, first) if len(first) else first,
        "changes": np.add.reduceat(changes, first) if len(first) else first,
        "text": np.where(told[first], -1, row[first]),
    }


def _carried(rows: pa.Table, keys: Keys) -> tuple[dict[str, Any], Ints]:
    """What was told before about the paths that are there, and the rows it is in."""
    column = _whole(rows["span"])
    row = np.flatnonzero(flags(column.is_valid()))
    span = column.take(pa.array(row))
    size = len(row)
    quiet_s = span.field("quiet_s").fill_null(-1).to_numpy()
    return {
        "key": keys.of_rows[row],
        "span": np.zeros(size, np.int64),
        "seq": ints(span.field("seq")),
        "since": ints(span.field("since")),
        "until": np.full(size, NONE),
        "end": np.full(size, -1),
        "last": ints(span.field("last_ts")),
        "quiet": np.where(quiet_s < 0, -1, np.rint(quiet_s * 1e6)).astype(np.int64),
        "changes": ints(span.field("changes")),
        "text": len(rows) + np.arange(size),
    }, row
