"""Draws the charts of the pages Speed and Spark from the measured figures in their tables: `make charts`.

python docs/charts.py --write

The tables of docs/speed.md and docs/sizing.md are what was measured, so a chart is drawn from the rows of a table and
cannot disagree with it. A chart is bars on a logarithmic axis: from 24 k to 60 M messages a second is more than a
linear one could show.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
WIDTH, LABELS, BAR, GAP, TOP, BOTTOM = 760, 250, 13, 10, 56, 44
COLOURS = ("#2f6fb2", "#5ba3e0", "#8a8f98", "#c0553f", "#d39b3d", "#6a9a5b")
_FIGURE = re.compile(r"([\d.,]+) ?(k|M)?\b")
_SCALE = {"k": 1e3, "M": 1e6, None: 1.0}


class Chart(NamedTuple):
    """One picture: the page and the head of the table that it is drawn from, its title and the unit of its axis."""

    picture: str
    page: str
    head: str
    """How the first row of the table begins."""
    title: str
    unit: str
    columns: tuple[str, ...] = ()
    """Columns to draw; none for all that have figures."""


CHARTS = (
    Chart(
        "speed-daemon.svg",
        "speed.md",
        "| messages per second of daemon CPU | jetd | jetd, binary",
        "What a daemon delivers",
        "messages per second of daemon CPU",
    ),
    Chart(
        "speed-peers.svg",
        "speed.md",
        "| messages per second of client CPU |",
        "What a peer sends and receives",
        "messages per second of client CPU",
        ("`PeerAsync`", "node-jet"),
    ),
    Chart(
        "speed-spark.svg",
        "sizing.md",
        "| | events/s | of Spark's own Parquet",
        "How fast Spark reads a journal",
        "events per second on 2 cores",
        ("events/s",),
    ),
)


class Group(NamedTuple):
    """A row of the table: its name, and the figure of each series that has one."""

    name: str
    figures: dict[str, float]


def read_table(text: str, head: str) -> list[list[str]]:
    """Return the cells of the table that begins with these words, its head first."""
    at = text.find(head)
    if at < 0:
        raise LookupError(f"there is no table that begins with {head!r}; change docs/charts.py with the page")
    lines = text[at:].split("\n\n", 1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("|---")]


def read_figure(cell: str) -> float | None:
    """Return the number of a cell such as 968 k or 1.03 M; None if it has none.

    >>> read_figure("968 k"), read_figure("")
    (968000.0, None)
    """
    found = _FIGURE.fullmatch(cell)
    return None if found is None else float(found[1].replace(",", "")) * _SCALE[found[2]]


def read_groups(chart: Chart) -> list[Group]:
    """Return the figures of a chart, row by row."""
    head, *rows = read_table((DOCS / chart.page).read_text(encoding="utf-8"), chart.head)
    names = [name for name in head[1:] if name and (not chart.columns or name in chart.columns)]
    groups: list[Group] = []
    for row in rows:
        cells = dict(zip(head, row, strict=False))
        figures = {name: figure for name in names if (figure := read_figure(cells.get(name, ""))) is not None}
        groups.append(Group(row[0].replace("`", ""), figures))
    return [group for group in groups if group.figures]


def draw(chart: Chart) -> str:
    """Return the picture of a chart."""
    groups = read_groups(chart)
    series = list(dict.fromkeys(name for group in groups for name in group.figures))
    values = [figure for group in groups for figure in group.figures.values()]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    height = TOP + BOTTOM + sum(len(group.figures) * BAR + GAP for group in groups)
    room = WIDTH - LABELS - 70

    def position(value: float) -> float:
        return LABELS + room * (math.log10(value) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="{escape(chart.title)}" font-family="system-ui, sans-serif" font-size="11">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" font-size="15" font-weight="bold">{escape(chart.title)}</text>',
        *_draw_legend(series),
        *_draw_axis(low, high, position, height, chart.unit),
    ]
    y = TOP
    for group in groups:
        middle = y + len(group.figures) * BAR / 2 + 4
        parts.append(f'<text x="{LABELS - 8}" y="{middle:.1f}" text-anchor="end">{escape(group.name)}</text>')
        for name, figure in group.figures.items():
            end, colour = position(figure), COLOURS[series.index(name) % len(COLOURS)]
            parts.append(f'<rect x="{LABELS}" y="{y}" width="{end - LABELS:.1f}" height="{BAR - 2}" fill="{colour}"/>')
            parts.append(f'<text x="{end + 4:.1f}" y="{y + BAR - 4}" font-size="9">{format_figure(figure)}</text>')
            y += BAR
        y += GAP
    return "\n".join([*parts, "</svg>", ""])


def _draw_legend(series: list[str]) -> Iterator[str]:
    x = 12
    for number, name in enumerate(series):
        shown = name.strip("`")
        yield f'<rect x="{x}" y="32" width="10" height="10" fill="{COLOURS[number % len(COLOURS)]}"/>'
        yield f'<text x="{x + 14}" y="41">{escape(shown)}</text>'
        x += 34 + 7 * len(shown)


def _draw_axis(low: int, high: int, position: Callable[[float], float], height: int, unit: str) -> Iterator[str]:
    for power in range(low, high + 1):
        x = position(10.0**power)
        yield f'<line x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - BOTTOM}" stroke="#d8dce2"/>'
        yield f'<text x="{x:.1f}" y="{height - BOTTOM + 14}" text-anchor="middle">{format_figure(10.0**power)}</text>'
    middle = (position(10.0**low) + position(10.0**high)) / 2
    yield f'<text x="{middle:.1f}" y="{height - 10}" text-anchor="middle">{escape(unit)}, logarithmic</text>'


def format_figure(figure: float) -> str:
    """Return a figure as the tables have it.

    >>> format_figure(59_700_000), format_figure(24_000)
    ('59.7 M', '24 k')
    """
    scale, unit = (1e6, " M") if figure >= 1e6 else (1e3, " k") if figure >= 1e3 else (1.0, "")
    return f"{figure / scale:.3g}{unit}"


def main() -> None:
    for chart in CHARTS:
        (DOCS / chart.picture).write_text(draw(chart), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python docs/charts.py --write")
    main()
