"""``jet history``: values over time, from the journal of a daemon or in a folder.

The command reads the rows of each path, aggregates them into windows if ``--every`` is given, and prints or draws the
result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import click

from jetbus.cli.aggregates import AGGREGATES, TIME_WEIGHTED, Window, split_into_windows, to_number
from jetbus.cli.arguments import read_rules
from jetbus.cli.command import DURATION, PATH, Example, command
from jetbus.cli.exit_codes import Code, Failure, escape, usage_error
from jetbus.cli.journals import (
    BusSources,
    Rows,
    check_begin,
    check_range,
    insert_stamps,
    journal_option,
    open_source,
    since_option,
    to_record,
    until_option,
)
from jetbus.cli.output import Output, get_terminal_width, print_line, truncate
from jetbus.cli.plot import draw_plot
from jetbus.cli.target import Target
from jetbus.cli.timelines import RowTest, Timeline, make_row_test
from jetbus.journal.instants import US_PER_S, read_instant, write_instant
from jetbus.journal.source import PinnedRange
from jetbus.journal.spreadsheet import list_columns
from jetbus.json_types import Json, JsonObject

if TYPE_CHECKING:
    from jetbus.journal.segment import JournalRow

Key = tuple[str, str | None]
"""A path, and its bus where the journal has several."""
Spans = Mapping[str | None, PinnedRange]
"""The range of time as each bus has it."""


@command(
    examples=[
        Example(
            "jet history plant/tank/level --since -1h --every 1m --agg mean,max", "mean and maximum of each minute"
        ),
        Example("jet history plant/tank/level --journal log --plot", "draw a chart, from a folder"),
    ],
    instants=True,
)
@click.argument("rules", nargs=-1, required=True, type=PATH, metavar="RULE...")
@since_option
@until_option
@click.option("--every", "every_s", type=DURATION, metavar="DURATION", help="aggregate into windows of this length")
@click.option(
    "--agg",
    metavar="NAME,...",
    default="mean",
    show_default=True,
    help=f"aggregates for --every: {', '.join(AGGREGATES)}; mean is weighted by time, avg is not",
)
@click.option("--plot", is_flag=True, help="draw a chart in the terminal")
@journal_option
def history(
    bus: Target,
    form: str | None,
    rules: tuple[str, ...],
    since: str | None,
    until: str | None,
    every_s: float | None,
    agg: str,
    plot: bool,
    folder: str | None,
) -> None:
    """Print the values over time of each path that matches a RULE.

    They are read from the journal of the daemon, or with --journal from the one in a folder. A RULE that tests values,
    such as "plant/** value>7", leaves out those that fail the test. Values have a unit, a quality and source_ts, the
    time at which they were measured, where their owners say so. Those that came late, because the connection of their
    owner was lost, stand at their time and have late.

    With --every, numbers are aggregated into windows of that length by --agg; true counts as 1 and false as 0. Other
    values and those of bad quality are left out, as are windows without a value. The mean is weighted by time, as in
    the tables of `jet pipeline`: each value counts for as long as it was in force while the daemon was running. --plot
    draws the numbers, with --every those of the first aggregate.
    """
    names = _read_aggregates(agg)
    every_us = None if every_s is None else round(every_s * US_PER_S)
    if every_us == 0:
        raise usage_error("--every must be longer than 0; give a duration such as 1m")
    read_rules(rules)
    check_range(since, until)
    with open_source(bus, folder, since, until) as source:
        # A range may start before the journal does, but not end there.
        check_begin(source, until)
        spans = source.pin(since, until)
        rows_by_key = _read_rows(source, rules, spans, until or "now")
        counts = make_row_test(rules)
        if every_us:
            records = _aggregate(source, rows_by_key, counts, names, every_us, spans)
        else:
            records = {key: [to_record(row) for row in rows if counts(row)] for key, rows in rows_by_key.items()}
    if not any(map(counts, chain.from_iterable(rows_by_key.values()))):
        raise _no_values_match(rules)
    if plot:
        _print_plots(records, names[0] if every_us else "value")
    else:
        _print_records(records, form, names if every_us else [])


def _read_aggregates(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in AGGREGATES]:
        raise usage_error(f"there is no aggregate {unknown[0]}; choose from {', '.join(AGGREGATES)}")
    return names


# -- reading


def _read_rows(source: BusSources, rules: Sequence[str], spans: Spans, until: str) -> dict[Key, Rows]:
    """Return the rows of each path that matches a rule, separately for each bus."""
    found: dict[Key, dict[int, JournalRow]] = {}
    for rule in dict.fromkeys(rules):
        for row in source.history(rule, spans):
            found.setdefault((row["path"], row.get("bus")), {})[row["seq"]] = row  # two rules may match one path
    if not found:
        source.check_known(spans, rules, f"`jet at {until}` lists what there is")
        # A state that did not change in the range is without rows in it, but exists.
        what = " or ".join(map(escape, rules))
        text = f"{what} did not change in that time; `jet at {until}` has the values"
        raise Failure(text, Code.NOT_FOUND)
    return {key: list(rows.values()) for key, rows in found.items()}


def _no_values_match(rules: Sequence[str]) -> Failure:
    what = " or ".join(map(escape, rules))
    return Failure(f"no value in the journal matches {what} in that time; leave out the test of values", Code.NOT_FOUND)


# -- aggregating


def _aggregate(
    source: BusSources,
    rows_by_key: Mapping[Key, Rows],
    counts: RowTest,
    names: Sequence[str],
    every_us: int,
    spans: Spans,
) -> dict[Key, list[JsonObject]]:
    """Return one record a window for each path."""
    # Only the time-weighted mean depends on when values ended; without it, the cuts need not be read.
    cuts = source.read_cuts(spans) if TIME_WEIGHTED in names else {}
    records = {}
    for key, rows in rows_by_key.items():
        path, bus = key
        timeline = Timeline(source, path, spans[bus], counts)
        windows = split_into_windows(timeline.read(rows, cuts.get(bus, [])), every_us, timeline.end_us)
        units = _UnitsOverTime(rows)
        records[key] = [
            _to_window_record(start_us, window, names, units.find(start_us, start_us + every_us))
            for start_us, window in windows
        ]
    return records


class _UnitsOverTime:
    """Units of a state's values. They rarely change, so only the rows at which they do are kept."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows[:1] + [row for before, row in pairwise(rows) if row["unit"] != before["unit"]]
        self._instants = [read_instant(row["ts"]) for row in self._rows]

    def find(self, start_us: int, end_us: int) -> str | None:
        """Return the unit within a window; None if there is none, or if it changed: then the aggregate has none."""
        first = max(bisect_right(self._instants, start_us) - 1, 0)
        last = max(bisect_left(self._instants, end_us) - 1, 0)
        return self._rows[first]["unit"] if first == last else None


def _to_window_record(start_us: int, window: Window, names: Sequence[str], unit: str | None) -> JsonObject:
    record = {"ts": write_instant(start_us), **{name: AGGREGATES[name](window) for name in names}}
    return record if unit is None else {**record, "unit": unit}


# -- printing


def _print_records(records: Mapping[Key, list[JsonObject]], form: str | None, aggregates: Sequence[str]) -> None:
    bus_column = ("bus",) if any(bus for _, bus in records) else ()
    present = {name for rows in records.values() for row in rows for name in row}
    if aggregates:
        columns = ["ts", *bus_column, "path", *aggregates, *(["unit"] if "unit" in present else [])]
    elif form == "csv":
        columns = list_columns(several_buses=bool(bus_column))
    else:
        columns = insert_stamps(["ts", *bus_column, "path", "event", "value", "peer"], present)
    with Output(columns, form, value=aggregates[0] if aggregates else "value") as out:
        for (path, bus), rows in records.items():
            for row in rows:
                record = {"bus": bus, "path": path, **row}
                out.put({column: record[column] for column in columns if column in record})


def _print_plots(records: Mapping[Key, list[JsonObject]], column: str) -> None:
    for (path, bus), rows in records.items():
        title = path if bus is None else f"{bus}: {path}"
        # A chart has one axis, so a unit that changed cannot be on it.
        units = {row.get("unit") for row in rows}
        title += f" ({unit})" if len(units) == 1 and (unit := units.pop()) else ""
        for line in draw_plot(title, list(_iterate_numbers(rows, column))):
            print_line(truncate(line, get_terminal_width() or len(line)))


def _iterate_numbers(records: Sequence[Mapping[str, Json]], column: str) -> Iterator[tuple[float, float]]:
    """Yield the numbers of one column, each with its time in seconds."""
    for record in records:
        number = None if record.get("event") == "remove" else to_number(record.get(column))
        if number is not None:
            yield datetime.fromisoformat(record["ts"]).timestamp(), number
