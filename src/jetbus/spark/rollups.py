"""Rollups: the numbers of each state per window of 1 s, 1 min and 1 h, from the values of its history.

A value counts in the window in which it came, and weighs in every window it was in force for. Windows in which no value
came have no row, so a value matters to two windows of a size at most: the one it came in (its head) and the one it
ended in (its tail).

    window      |         |         |         |
    value          o===================x               o came, x ended
    weight         ^ head ^         ^tail^

Windows are summed up from **parts**, which only have to be added. A batch makes the parts of its own values; those of
windows that are not complete are carried, and added up when time has come to the end of the window. A value that is
still in force when its batch ends is taken to last until its window ends; if it ends earlier, the batch in which it
does adds a part with a negative weight. So a batch reads nothing about windows that it does not complete.

Parts of a minute and an hour are made from those of a second: the head of a value lies in one of each.

A value whose quality is bad is no value: it counts nowhere, and the time it was in force is unknown. An uncertain one
counts; ``good_us`` says how much of the known time was better than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame

from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED, TABLES
from jetbus.spark.sql_text import quote, run, select

__all__ = ["WINDOWS_US", "complete_windows", "fold_windows", "open_windows", "window_parts", "windows_of_length"]

WINDOWS_US: Mapping[str, int] = MappingProxyType({"1s": 1_000_000, "1m": 60_000_000, "1h": 3_600_000_000})
"""The sizes of windows, in microseconds, by their names; each is a multiple of the one before."""

_SECOND_US = WINDOWS_US["1s"]
_SIZE_US = " ".join(f"when '{size}' then {us}L" for size, us in WINDOWS_US.items())
_END = f"timestamp_micros(start_us + case size {_SIZE_US} end)"
_WINDOW = ("bus", "path", "size", "start_us")
# true and false count as 1 and 0: their time-weighted mean is the share of time that something was on.
_NUMBERS = select(
    "{values}",
    *("bus", "path", "seq", "coalesce(num, cast(cast(flag as int) as double)) as x"),
    *("unix_micros(valid_from) as begin_us", "unix_micros(valid_to) as end_us", "quality", "unit"),
)
_IS_KNOWN = "x is not null and coalesce(quality, 'good') != 'bad'"
_PART = CARRIED["windows"].names


def window_parts(values: DataFrame, clock: BatchClock, carried: DataFrame | None = None) -> DataFrame:
    """Sum up windows from rows of history, among them those in force, and from the parts that were carried.

    Columns are those of the carried windows, with ``before`` and ``now`` of the bus. Rows of history up to
    ``before_seq`` are known to the parts already.
    """
    parts = _by_size(_by_second(clock.join_now(select(_NUMBERS, "*", where=_IS_KNOWN))))
    if carried is not None:
        # So each carried part is read only once, by the batch in which its window ends.
        ends_now = f"{_END} > before and {_END} <= now"
        parts = f"{parts} union all {select(clock.join_now('{carried}'), *_PART, where=ends_now)}"
    return clock.run(clock.join_now(_added(parts)), values=values, carried=carried)


def complete_windows(parts: DataFrame) -> DataFrame:
    """Select the windows that are complete, as rows of the table of rollups."""
    made = {
        "window_start": "timestamp_micros(start_us)",
        "window_end": _END,
        "time_mean": "if(known_us > 0, area / (known_us / 1e6D), null)",
        "known_s": "known_us / 1e6D",
        "good_s": "good_us / 1e6D",
        "stddev": "if(count > 1, sqrt(squares / (count - 1)), null)",
    }
    # A window in which no value came has no row, even if one weighs in it; see the head of this module.
    columns = [f"{made.get(name, f'`{name}`')} as `{name}`" for name in TABLES["rollups"].names]
    return run(select("{parts}", *columns, where=f"{_END} <= now and count > 0"), parts=parts)


def open_windows(parts: DataFrame) -> DataFrame:
    """Select the parts of windows that are not complete."""
    return run(select("{parts}", *_PART, where=f"{_END} > now"), parts=parts)


def fold_windows(carried: DataFrame, clock: BatchClock) -> DataFrame:
    """Add up the parts of each window that is still open, and leave out all others."""
    still_open = select(clock.join_now("{carried}"), *_PART, where=f"{_END} > now")
    return clock.run(select(_added(still_open), *_PART), carried=carried)


def windows_of_length(values: DataFrame, clock: BatchClock, size: str, size_us: int) -> DataFrame:
    """Return the complete windows of any length, from all rows of history at once, as rows of the table of rollups.

    A pipeline keeps the windows of ``WINDOWS_US`` only, since it has to carry parts of each size; a look at a whole log
    needs no parts.
    """
    starts, ends = _start("begin_us", size_us), _start("end_us", size_us)
    numbers = clock.join_now(select(_NUMBERS, "*", where=_IS_KNOWN))
    weight = f"least(coalesce(end_us, {starts} + {size_us}L), {starts} + {size_us}L) - begin_us"
    head = f"named_struct('start_us', {starts}, 'came', 1L, 'us', {weight})"
    tail = f"named_struct('start_us', {ends}, 'came', 0L, 'us', end_us - {ends})"
    both = f"if(end_us is not null and {ends} > begin_us and end_us > {ends}, array({head}, {tail}), array({head}))"
    is_good = "coalesce(quality, 'good') = 'good' as good"
    rows = select(numbers, "bus", "path", "seq", "x", "unit", "now", is_good, f"explode({both}) as part")
    rows = select(rows, "*", "part.*")
    # A tail weighs in its window, but is none of the values that came there.
    x, seq = "if(came = 1, x, null)", "if(came = 1, seq, null)"
    made = {
        "size": quote(size),
        "window_start": "timestamp_micros(start_us)",
        "window_end": f"timestamp_micros(start_us + {size_us}L)",
        "count": "sum(came)",
        "min": f"min({x})",
        "max": f"max({x})",
        "mean": f"avg({x})",
        "time_mean": "if(sum(us) > 0, sum(x * us / 1e6D) / (sum(us) / 1e6D), null)",
        "known_s": "sum(us) / 1e6D",
        "good_s": "sum(if(good, us, 0L)) / 1e6D",
        "first": f"min_by(x, {seq})",
        "last": f"max_by(x, {seq})",
        "stddev": f"stddev_samp({x})",
        "unit": f"max_by(unit, {seq})",
    }
    columns = [f"{made.get(name, f'`{name}`')} as `{name}`" for name in TABLES["rollups"].names]
    complete = f"start_us + {size_us}L <= unix_micros(now)"
    summed = select(rows, *columns, where=complete, group="bus, path, start_us")
    return clock.run(select(summed, "*", where="`count` > 0"), values=values)


# -- parts


def _start(us: str, size_us: int) -> str:
    return f"({us} - pmod({us}, {size_us}L))"


def _by_second(numbers: str) -> str:
    """Sum up heads by second, each with its weight in the minute and the hour, too, and tails by their windows."""
    # The head of a carried value is in the parts of the batch in which it came. Only its tail and its shortfall are
    # new. All that elements are made of is computed first, each once: generated code above 8 KB is never compiled.
    rows = select(
        numbers,
        *("bus", "path", "seq", "x", "unit", "begin_us", "end_us", "coalesce(quality, 'good') = 'good' as good"),
        "before_seq is null or seq > before_seq as is_new",
        *(f"{_start('begin_us', us)} as begun_{size}" for size, us in WINDOWS_US.items()),
        *(f"{_start('end_us', us)} as ended_{size}" for size, us in WINDOWS_US.items()),
    )
    # A value that is still in force is weighed to the end of its window; ``_shortfall`` takes back what was too much.
    weights = [
        f"least(coalesce(end_us, begun_{size} + {us}L), begun_{size} + {us}L) - begin_us as head_{size}"
        for size, us in WINDOWS_US.items()
    ]
    head = "if(is_new, named_struct('size', '1s', 'start_us', begun_1s, 'came', true, 'us', 0L), null)"
    others = [one for size, us in WINDOWS_US.items() for one in (_tail(size), _shortfall(size, us))]
    # Most values end in the second they came in, and have nothing but a head.
    elements = f"if(is_new and coalesce(begun_1s = ended_1s, true), array({head}), array({head}, {', '.join(others)}))"
    rows = select(rows, "bus", "path", "seq", "x", "unit", "good", *weights, f"explode({elements}) as part")
    rows = select(rows, "* except (part)", "part.*", where="part is not null")
    came, came_seq = "if(came, x, null)", "if(came, seq, null)"
    us = {size: f"if(came, head_{size}, if(size = '{size}', us, 0L))" for size in WINDOWS_US}
    # By unit, too, which ``_added`` decides on: texts that are no keys would keep Spark from summing up by hash.
    return select(
        rows,
        *_WINDOW,
        "unit",
        "count_if(came) as count",
        f"min({came}) as min",
        f"max({came}) as max",
        f"avg({came}) as mean",
        f"coalesce(var_pop({came}) * count_if(came), 0D) as squares",
        f"min_by(x, {came_seq}) as first",
        f"max_by(x, {came_seq}) as last",
        f"min({came_seq}) as first_seq",
        f"max({came_seq}) as last_seq",
        *(f"sum({weight}) as us_{size}" for size, weight in us.items()),
        *(f"sum(x * {weight} / 1e6D) as area_{size}" for size, weight in us.items()),
        *(f"sum(if(good, {weight}, 0L)) as good_{size}" for size, weight in us.items()),
        group=", ".join((*_WINDOW, "unit")),
    )


def _element(size: str, start: str, us: str) -> str:
    """Make one element of a row: for how long the value weighs in a window."""
    return f"named_struct('size', '{size}', 'start_us', {start}, 'came', false, 'us', {us})"


def _tail(size: str) -> str:
    """Make the element of the window that a value ended in, where that is a later one."""
    start = f"ended_{size}"
    return f"if({start} > begin_us and end_us > {start}, {_element(size, start, f'end_us - {start}')}, null)"


def _shortfall(size: str, size_us: int) -> str:
    """Make the element that takes back the time by which a carried value ended before its window did."""
    short = f"end_us - begun_{size} - {size_us}L"
    return f"if(not is_new and {short} < 0, {_element(size, f'begun_{size}', short)}, null)"


def _by_size(seconds: str) -> str:
    """Turn sums by second into parts of windows of every size; a tail is part of its own window only."""
    elements = ", ".join(
        f"if(size = '{size}'{'' if size == '1s' else ' or count > 0'}, named_struct('size', '{size}', "
        f"'start_us', {_start('start_us', us)}, 'known_us', us_{size}, 'good_us', good_{size}, "
        f"'area', area_{size}), null)"
        for size, us in WINDOWS_US.items()
    )
    totals = ("count", "min", "max", "mean", "squares", "first", "last", "first_seq", "last_seq", "unit")
    rows = select(seconds, "bus", "path", *totals, f"explode(array({elements})) as part")
    columns = [name if name in ("bus", "path", *totals) else f"part.{name}" for name in _PART]
    return select(rows, *columns, where="part is not null")


def _added(parts: str) -> str:
    """Add up the parts of each window.

    Squared distances are moved to the common mean before they are added: sums of squares would lose all digits where
    numbers are large and differ little.
    """
    # Sorted by one number first: to compare long paths with each other takes longer than all sums.
    parts = select(parts, "*", f"xxhash64({', '.join(_WINDOW)}) as key")
    keys = ", ".join(("key", *_WINDOW))
    window = f"over (partition by {keys})"
    rows = select(parts, "*", f"sum(count * mean) {window} / nullif(sum(count) {window}, 0) as common")
    return select(
        rows,
        *_WINDOW,
        "sum(count) as count",
        "min(min) as min",
        "max(max) as max",
        "first(common) as mean",
        "sum(squares + coalesce(count * (mean - common) * (mean - common), 0D)) as squares",
        "sum(known_us) as known_us",
        "sum(good_us) as good_us",
        "sum(area) as area",
        "min_by(first, first_seq) as first",
        "max_by(last, last_seq) as last",
        "min(first_seq) as first_seq",
        "max(last_seq) as last_seq",
        "max_by(unit, last_seq) as unit",
        group=keys,
    )
