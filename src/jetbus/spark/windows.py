"""Rollups in numpy: the numbers of each window from the values of some paths.

A value counts in the window in which it came, and weighs in every window it was in force for. Windows in which no
value came have no row, so that a value matters to two windows at most: the one it came in (its head) and the one it
ended in (its tail). A head is added when the value has ended or its window is complete, whichever is first; until
then it waits among the open rows of history. So a carried window never has to be corrected: heads, tails and what is
carried are parts that are added up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jetbus.spark.clock import Clock
from jetbus.spark.lines import NONE, Flags, Ints, Keys, Values, ints, runs_of, times

__all__ = ["SIZES", "rollups_of"]

SIZES: dict[str, int] = {"rollups_1s": 1_000_000, "rollups_1m": 60_000_000, "rollups_1h": 3_600_000_000}
"""The windows of each table of rollups, in microseconds."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """Parts of windows: what some values did there. Without any that came, least and greatest are infinite."""

    key: Ints
    start: Ints
    count: Ints
    least: Floats
    greatest: Floats
    mean: Floats
    squares: Floats
    """The sum of squared distances from the mean."""
    area: Floats
    """The sum of values by seconds."""
    known: Ints
    first: Floats
    last: Floats

    def chosen(self, which: Ints | Flags) -> Parts:
        """Some of them, in this order."""
        return Parts(*(getattr(self, field.name)[which] for field in fields(Parts)))


def _together(parts: list[Parts]) -> Parts:
    return Parts(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Parts)))


def rollups_of(rows: pa.Table, keys: Keys, values: Values, clock: Clock) -> tuple[dict[str, pa.Array], Ints]:
    """The windows that a part had something to do with, their columns; and the place of their table in ``SIZES``.

    That is -1 for those that are not complete.
    """
    now = keys.per_bus(dict(clock.now), NONE)
    numbers = _numbers(rows, values)
    found: list[Parts] = []
    sizes: list[Ints] = []
    for size_us in SIZES.values():
        heads = _heads(numbers, _head_is_due(numbers, keys, clock, size_us), size_us)
        parts = _added(_together([_carried(rows, keys, size_us), heads, _tails(numbers, size_us)]))
        is_open = parts.start + size_us > now[keys.bus_of(parts.key)]
        parts = parts.chosen(is_open | (parts.count > 0))
        found.append(parts)
        sizes.append(np.full(len(parts.key), size_us))
    windows, size = _together(found), np.concatenate(sizes)
    is_complete = windows.start + size <= now[keys.bus_of(windows.key)]
    table = np.repeat(np.arange(len(SIZES)), [len(part) for part in sizes])
    return _columns(windows, size, keys), np.where(is_complete, table, -1)


def _columns(windows: Parts, size: Ints, keys: Keys) -> dict[str, pa.Array]:
    none = windows.count == 0
    with np.errstate(invalid="ignore", divide="ignore"):
        stddev = np.sqrt(windows.squares / (windows.count - 1))
        time_mean = windows.area / (windows.known / 1e6)
    return {
        **keys.columns(windows.key),
        "window_start": times(windows.start),
        "window_end": times(windows.start + size),
        "count": pa.array(windows.count),
        "min": pa.array(windows.least, mask=none),
        "max": pa.array(windows.greatest, mask=none),
        "mean": pa.array(windows.mean, mask=none),
        "time_mean": pa.array(time_mean, mask=windows.known == 0),
        "known_s": pa.array(windows.known / 1e6),
        "first": pa.array(windows.first, mask=none),
        "last": pa.array(windows.last, mask=none),
        "stddev": pa.array(stddev, mask=windows.count < 2),
    }


# -- the parts


@dataclass(frozen=True)
class _Numbers:
    """The values that are numbers; true and false count as 1 and 0."""

    key: Ints
    x: Floats
    begin: Ints
    end: Ints


def _numbers(rows: pa.Table, values: Values) -> _Numbers:
    flag = rows["flag"].combine_chunks().cast(pa.int8()).cast(pa.float64())
    x = pc.coalesce(rows["num"].combine_chunks(), flag).take(pa.array(values.row))
    is_number = np.asarray(x.is_valid().to_numpy(zero_copy_only=False))
    number = x.drop_null().to_numpy()
    return _Numbers(values.key[is_number], number, values.begin[is_number], values.end[is_number])


def _head_is_due(numbers: _Numbers, keys: Keys, clock: Clock, size_us: int) -> Flags:
    """Whether the window a value came in has not been told before and can be told now."""
    end = numbers.begin - numbers.begin % size_us + size_us
    bus = keys.bus_of(numbers.key)
    before = keys.per_bus(dict(clock.before), NONE)[bus]
    now = keys.per_bus(dict(clock.now), NONE)[bus]
    is_due: Flags = (end > before) & ((numbers.end != NONE) | (end <= now))
    return is_due


def _heads(numbers: _Numbers, due: Flags, size_us: int) -> Parts:
    """The windows that values came in."""
    key, x, begin, end = numbers.key[due], numbers.x[due], numbers.begin[due], numbers.end[due]
    start = begin - begin % size_us
    until = np.where(end == NONE, start + size_us, np.minimum(end, start + size_us))
    weight = until - begin
    at, count = runs_of(key, start)
    if not len(at):
        return _nothing()
    mean = np.add.reduceat(x, at) / count
    apart = x - np.repeat(mean, count)
    return Parts(
        key=key[at],
        start=start[at],
        count=count,
        least=np.minimum.reduceat(x, at),
        greatest=np.maximum.reduceat(x, at),
        mean=mean,
        squares=np.add.reduceat(apart * apart, at),
        area=np.add.reduceat(x * (weight / 1e6), at),
        known=np.add.reduceat(weight, at),
        first=x[at],
        last=x[at + count - 1],
    )


def _tails(numbers: _Numbers, size_us: int) -> Parts:
    """The windows that values ended in, where those are later ones."""
    start = np.where(numbers.end == NONE, NONE, numbers.end - numbers.end % size_us)
    is_later = start > numbers.begin
    key, x, end, start = numbers.key[is_later], numbers.x[is_later], numbers.end[is_later], start[is_later]
    known = end - start
    size = len(key)
    zero = np.zeros(size)
    return Parts(
        key=key,
        start=start,
        count=np.zeros(size, np.int64),
        least=np.full(size, np.inf),
        greatest=np.full(size, -np.inf),
        mean=zero,
        squares=zero,
        area=x * (known / 1e6),
        known=known,
        first=zero,
        last=zero,
    )


def _carried(rows: pa.Table, keys: Keys, size_us: int) -> Parts:
    """The windows of this size that were not complete before."""
    if "window" not in rows.column_names:
        return _nothing()
    column = rows["window"].combine_chunks()
    row = np.flatnonzero(np.asarray(column.is_valid().to_numpy(zero_copy_only=False)))
    window = column.take(pa.array(row))
    start = ints(window.field("window_start"))
    is_size = ints(window.field("window_end")) - start == size_us
    count = ints(window.field("count"))

    def floats(name: str, otherwise: float = 0.0) -> Floats:
        found: Floats = window.field(name).fill_null(otherwise).to_numpy()
        return found

    known_s = floats("known_s")
    return Parts(
        key=keys.of_rows[row],
        start=start,
        count=count,
        least=floats("min", np.inf),
        greatest=floats("max", -np.inf),
        mean=floats("mean"),
        squares=floats("stddev") ** 2 * np.maximum(count - 1, 0),
        area=floats("time_mean") * known_s,
        known=np.rint(known_s * 1e6).astype(np.int64),
        first=floats("first"),
        last=floats("last"),
    ).chosen(is_size)


def _nothing() -> Parts:
    whole, real = np.empty(0, np.int64), np.empty(0)
    return Parts(whole, whole, whole, real, real, real, real, real, whole, real, real)


def _added(parts: Parts) -> Parts:
    """Parts of the same window as one; an earlier one came first."""
    parts = parts.chosen(np.lexsort((parts.start, parts.key)))
    at, size = runs_of(parts.key, parts.start)
    if not len(at):
        return parts
    place = np.arange(len(parts.key))
    came = parts.count > 0
    first = np.minimum.reduceat(np.where(came, place, len(place) - 1), at)
    last = np.maximum.reduceat(np.where(came, place, 0), at)
    count = np.add.reduceat(parts.count, at)
    mean = np.add.reduceat(parts.count * parts.mean, at) / np.maximum(count, 1)
    apart = parts.mean - np.repeat(mean, size)
    return Parts(
        key=parts.key[at],
        start=parts.start[at],
        count=count,
        least=np.minimum.reduceat(parts.least, at),
        greatest=np.maximum.reduceat(parts.greatest, at),
        mean=mean,
        squares=np.add.reduceat(parts.squares + parts.count * apart * apart, at),
        area=np.add.reduceat(parts.area, at),
        known=np.add.reduceat(parts.known, at),
        first=parts.first[first],
        last=parts.last[last],
    )
