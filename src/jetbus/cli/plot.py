"""Bar charts of numbers over time, as lines of text for a terminal.

A column is a slice of time, and its bar is drawn from the lowest to the highest number, in eighths of a row::

        12.3     ▂█▇          label of the highest number
               ▃███▄
        4.56 ▁▅█████          label of the lowest number
             2026-03-01T12:00:00.000000Z to ...
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from jetbus.cli.journals import format_time
from jetbus.cli.output import WIDTH, get_terminal_width

HEIGHT = 8
LABEL_WIDTH = 10
_BLOCKS = " ▁▂▃▄▅▆▇█"
_LINE = "─"


def draw_plot(title: str, numbers: Sequence[tuple[float, float]]) -> Iterator[str]:
    """Yield the lines of a chart of numbers, each given with its time in seconds; a constant is a line."""
    if not numbers:
        yield f"{title}: no numbers"
        return
    width = max(10, (get_terminal_width() or WIDTH) - LABEL_WIDTH - 2)
    low, high = min(number for _, number in numbers), max(number for _, number in numbers)
    if low == high:
        yield from (title, f"{low:{LABEL_WIDTH}.4g} {_LINE * width}", _format_axis(numbers))
        return
    # In eighths of a row, as there are blocks of eight heights. The lowest number still gets one, to be seen.
    bars = [1 + round((8 * HEIGHT - 1) * (number - low) / (high - low or 1.0)) for number in _resample(numbers, width)]
    yield title
    for row in reversed(range(HEIGHT)):
        label = f"{high:{LABEL_WIDTH}.4g}" if row == HEIGHT - 1 else f"{low:{LABEL_WIDTH}.4g}" if row == 0 else ""
        # A row is full below the top of a bar, empty above it, and in between a part of a block.
        blocks = "".join(_BLOCKS[max(0, min(8, bar - 8 * row))] for bar in bars)
        yield f"{label:{LABEL_WIDTH}} {blocks}".rstrip()
    yield _format_axis(numbers)


def _format_axis(numbers: Sequence[tuple[float, float]]) -> str:
    first, last = (format_time(datetime.fromtimestamp(at_s, UTC)) for at_s in (numbers[0][0], numbers[-1][0]))
    return f"{'':{LABEL_WIDTH}} {first} to {last}"


def _resample(numbers: Sequence[tuple[float, float]], width: int) -> Iterator[float]:
    """Yield one number a column: the last that arrived in its time, or else the one before."""
    begin_s, end_s = numbers[0][0], numbers[-1][0]
    columns: dict[int, float] = {}
    for at_s, number in numbers:
        columns[min(width - 1, int(width * (at_s - begin_s) / (end_s - begin_s or 1.0)))] = number
    last = numbers[0][1]
    for column in range(width):
        last = columns.get(column, last)
        yield last
