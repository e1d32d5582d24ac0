"""``jet history``: values over time, from the journal of a daemon or of a folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, near_path, printable, usage
from jetbus.cli.frame import DURATION, PATH, Example, command
from jetbus.cli.output import WIDTH, Output, cut, say, terminal_width
from jetbus.cli.past import Past, Rows, journal_option, past, since_option, told, until_option, written
from jetbus.cli.windows import AGGREGATES, TIME_WEIGHTED, Reading, number_of, windows
from jetbus.journal.instants import US_PER_S, read_instant, wall_clock_us

ROWS = 8
_BLOCKS = " ▁▂▃▄▅▆▇█"


@command(
    examples=[
        Example("jet history plant/tank/level --since -1h --every 1m --agg mean,max", "each minute in two numbers"),
        Example("jet history plant/tank/level --journal log --plot", "drawn, from a folder"),
    ],
    instants=True,
)
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH...")
@since_option
@until_option
@click.option("--every", "every_s", type=DURATION, metavar="DURATION", help="one line for each such time")
@click.option(
    "--agg",
    metavar="NAME,...",
    default="mean",
    show_default=True,
    help=f"with --every: {', '.join(AGGREGATES)}; mean is weighted by time, avg is of the values that came",
)
@click.option("--plot", is_flag=True, help="draw the numbers in the terminal")
@journal_option
def history(
    bus: Bus,
    form: str | None,
    paths: tuple[str, ...],
    since: str | None,
    until: str | None,
    every_s: float | None,
    agg: str,
    plot: bool,
    folder: str | None,
) -> None:
    """The values of each PATH over time.

    They come from the journal of the daemon, or with --journal from that in a folder. With --every the numbers of each
    such time are made one, by --agg; true is 1 and false is 0, and what is no number is left out, as is a time in which
    no value came. The mean is that of the tables of `jet pipeline`: a value weighs for as long as it was in force, time
    in which the daemon was away not at all. --plot draws the numbers, with --every the first of --agg.
    """
    names = [name.strip() for name in agg.split(",")]
    if unknown := [name for name in names if name not in AGGREGATES]:
        raise usage(f"there is no aggregate {unknown[0]}; it is one of {', '.join(AGGREGATES)}")
    every_us = None if every_s is None else round(every_s * US_PER_S)
    if every_us == 0:
        raise usage("--every 0 would be one line for no time; give a duration such as 1m")
    with past(bus, folder, since, until) as then:
        found = _found(then, paths, since, until)
        if every_us:
            cuts = then.cuts(since) if TIME_WEIGHTED in names else []
            lines = {key: _windows(_Line(then, *key, since, until), rows, cuts, every_us) for key, rows in found}
            records = {key: [_aggregated(*window, names) for window in line] for key, line in lines.items()}
        else:
            records = {key: list(map(told, rows)) for key, rows in found}
    if plot:
        for (path, name), rows in records.items():
            title = path if name is None else f"{name}: {path}"
            for line in _plotted(title, list(_numbers(rows, names[0] if every_us else "value"))):
                say(cut(line, terminal_width() or len(line)))
        return
    several = ("bus",) if any(name for _, name in records) else ()
    columns = ("at", *several, "path", *names) if every_us else ("at", *several, "path", "event", "value", "peer")
    with Output(columns, form, value=names[0] if every_us else "value") as out:
        for (path, name), rows in records.items():
            for record in rows:
                shown = {"bus": name, "path": path, **record}
                out.put({column: shown[column] for column in columns if column in shown})


Key = tuple[str, str | None]
"""A path, and the bus it is on where there are several."""


def _found(then: Past, paths: Sequence[str], since: str | None, until: str | None) -> list[tuple[Key, Rows]]:
    """The rows of each path, bus by bus."""
    found: dict[Key, Rows] = {}
    for path in dict.fromkeys(paths):
        for row in then.history(path, since, until):
            found.setdefault((path, row.get("bus")), []).append(row)
    if not found:
        raise _nothing_recorded(then, paths)
    return list(found.items())


class _Line:
    """One state over time, from its history and from what is known besides."""

    def __init__(self, then: Past, path: str, bus: str | None, since: str | None, until: str | None) -> None:
        self._then, self._path, self._bus = then, path, bus
        now_us = max(wall_clock_us(), then.last_us(bus) or 0) if since or until else None
        self._since_us = None if since is None else read_instant(since, now_us)
        self._until_us = None if until is None else read_instant(until, now_us)

    def readings(self, rows: Rows, cuts: Rows) -> list[Reading]:
        """Its values in order; where it went or the bus was cut there is none."""
        line = [(row["seq"], _reading(row)) for row in rows]
        line += [(row["seq"], Reading(self._known_until(row), None)) for row in cuts if row.get("bus") == self._bus]
        line.sort(key=lambda entry: entry[0])
        return [*self._before(rows[0]), *(reading for _, reading in line)]

    def _before(self, first: Mapping[str, Any]) -> Iterator[Reading]:
        """What was in force where the range begins."""
        if self._since_us is not None and first["event"] != "add":
            for row in self._then.before(first, self._path):
                yield Reading(max(self._since_us, read_instant(row["ts"])), _value(row), came=False)

    def _known_until(self, cut_row: Mapping[str, Any]) -> int:
        """Until when what was before a cut is known: a stop tells it, else it is the event before, or later if told."""
        at_us = read_instant(cut_row["ts"])
        if cut_row["event"] == "stop":
            return at_us
        last_us = self._then.last_us(self._bus, cut_row["seq"] - 1)
        last_us = at_us if last_us is None else last_us
        since = json.loads(cut_row["detail"] or "{}").get("since")
        return last_us if since is None else min(max(read_instant(since), last_us), at_us)

    @property
    def end_us(self) -> int:
        """From when on nothing is known."""
        last_us = self._then.last_us(self._bus) or 0
        return last_us if self._until_us is None else min(self._until_us, last_us)


def _windows(line: _Line, rows: Rows, cuts: Rows, every_us: int) -> Iterator[tuple[int, Any]]:
    return windows(line.readings(rows, cuts), every_us, line.end_us)


def _reading(row: Mapping[str, Any]) -> Reading:
    return Reading(read_instant(row["ts"]), None if row["event"] == "remove" else _value(row))


def _value(row: Mapping[str, Any]) -> Any:
    return None if row["value"] is None else json.loads(row["value"])


def _aggregated(start_us: int, window: Any, names: list[str]) -> dict[str, Any]:
    at = written(datetime.fromtimestamp(start_us / US_PER_S, UTC))
    return {"at": at, **{name: AGGREGATES[name](window) for name in names}}


def _nothing_recorded(then: Past, paths: Sequence[str]) -> Failure:
    known = [row["path"] for row in then.as_of("now")]
    meant = None if paths[0] in known else near_path(paths[0], known)
    hint = f"did you mean {printable(meant)}?" if meant else "`jet at now` shows what is"
    what = " or ".join(map(printable, paths))
    return Failure(f"nothing is recorded of {what} then; {hint}", Code.NOT_FOUND)


def _numbers(records: Sequence[Mapping[str, Any]], name: str) -> Iterator[tuple[float, float]]:
    """The numbers of one column with their instants in seconds."""
    for record in records:
        number = None if record.get("event") == "remove" else number_of(record.get(name))
        if number is not None:
            yield datetime.fromisoformat(record["at"]).timestamp(), number


def _plotted(path: str, numbers: list[tuple[float, float]]) -> Iterator[str]:
    """The numbers as bars, from the first to the last instant."""
    if not numbers:
        yield f"{path}: no numbers"
        return
    width = max(10, (terminal_width() or WIDTH) - 12)
    low, high = min(value for _, value in numbers), max(value for _, value in numbers)
    began, ended = numbers[0][0], numbers[-1][0]
    columns: list[list[float]] = [[] for _ in range(width)]
    for at, value in numbers:
        columns[min(width - 1, int(width * (at - began) / (ended - began or 1.0)))].append(value)
    levels, last = [], numbers[0][1]
    for values in columns:
        last = values[-1] if values else last
        levels.append(1 + round((8 * ROWS - 1) * (last - low) / (high - low or 1.0)))
    yield path
    for row in reversed(range(ROWS)):
        label = f"{high:10.4g}" if row == ROWS - 1 else f"{low:10.4g}" if row == 0 else " " * 10
        yield f"{label} {''.join(_BLOCKS[max(0, min(8, level - 8 * row))] for level in levels)}".rstrip()
    yield f"{'':10} {written(datetime.fromtimestamp(began, UTC))} to {written(datetime.fromtimestamp(ended, UTC))}"
