"""``jet history``: values over time, from the journal of a daemon or of a folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from jetbus.cli.buses import Bus
from jetbus.cli.failures import Code, Failure, near_path, printable, usage
from jetbus.cli.frame import DURATION, PATH, Example, command
from jetbus.cli.output import WIDTH, Output, cut, say, terminal_width
from jetbus.cli.past import Past, journal_option, past, since_option, told, until_option, written

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "count": len,
    "mean": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "sum": sum,
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
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
    "--agg", metavar="NAME,...", default="mean", show_default=True, help=f"with --every: {', '.join(AGGREGATES)}"
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
    such time are made one, by --agg; what is no number is left out. --plot draws the first of these.
    """
    names = [name.strip() for name in agg.split(",")]
    if unknown := [name for name in names if name not in AGGREGATES]:
        raise usage(f"there is no aggregate {unknown[0]}; it is one of {', '.join(AGGREGATES)}")
    with past(bus, folder, since, until) as then:
        found = {path: [told(row) for row in then.history(path, since, until)] for path in paths}
        if not any(found.values()):
            raise _nothing_recorded(then, paths)
    if plot:
        for path, rows in found.items():
            for line in _plotted(path, _drawn(_numbers(rows), every_s, names[0])):
                say(cut(line, terminal_width() or len(line)))
        return
    columns = ("at", "path", *names) if every_s else ("at", "path", "event", "value", "peer")
    with Output(columns, form, value=names[0] if every_s else "value") as out:
        for path, rows in found.items():
            for record in _windows(_numbers(rows), every_s, names) if every_s else rows:
                out.put(
                    {"at": record["at"], "path": path, **{name: record[name] for name in columns[2:] if name in record}}
                )


def _nothing_recorded(then: Past, paths: Sequence[str]) -> Failure:
    known = [row["path"] for row in then.as_of("now")]
    meant = None if paths[0] in known else near_path(paths[0], known)
    hint = f"did you mean {printable(meant)}?" if meant else "`jet at now` shows what is"
    what = " or ".join(map(printable, paths))
    return Failure(f"nothing is recorded of {what} then; {hint}", Code.NOT_FOUND)


def _numbers(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The numbers of a history with their instants."""
    return [
        (datetime.fromisoformat(row["at"]).timestamp(), row["value"])
        for row in rows
        if row["event"] != "remove" and isinstance(row.get("value"), int | float) and not isinstance(row["value"], bool)
    ]


def _drawn(numbers: list[tuple[float, float]], every_s: float | None, name: str) -> list[tuple[float, float]]:
    """What a plot shows: the numbers, or one for each window."""
    if not every_s:
        return numbers
    windows = _windows(numbers, every_s, [name])
    return [(datetime.fromisoformat(window["at"]).timestamp(), window[name]) for window in windows]


def _windows(numbers: list[tuple[float, float]], every_s: float, names: list[str]) -> Iterator[dict[str, Any]]:
    windows: dict[int, list[float]] = {}
    for at, value in numbers:
        windows.setdefault(math.floor(at / every_s), []).append(value)
    for number, values in windows.items():
        start = datetime.fromtimestamp(number * every_s, UTC)
        yield {"at": written(start), **{name: AGGREGATES[name](values) for name in names}}


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
