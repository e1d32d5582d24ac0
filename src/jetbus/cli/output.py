"""What a command prints: records, in the form that was asked for.

On a terminal a table, in a pipe one JSON object a line. Every line is flushed, so that a pipe sees it at once.
Whatever came from the bus is printed without the characters that a terminal would obey.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from jetbus.cli.failures import colourful, printable
from jetbus.cli.values import bare, on_one_line, plain, shown

FORMATS = ("table", "json", "jsonl", "csv", "value")
WIDTH = 80
NARROW = 6
"""A table whose columns must be cut to less is no table any more."""
_PLAIN = "\x1b[0m"
_DIM, _RED, _GREEN, _YELLOW, _CYAN = "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"
_COLUMN_STYLES = {"value": _CYAN, "result": _CYAN, "at": _DIM}
_WORD_STYLES = {
    **dict.fromkeys(("add", "added", "ok", "allowed"), _GREEN),
    **dict.fromkeys(("change", "changed", "warning"), _YELLOW),
    **dict.fromkeys(("remove", "removed", "wrong", "refused"), _RED),
}
_SENTENCES = ("text", "why", "then", "problem")
"""Columns of sentences: as the last one it is wrapped, since its end tells what to do."""
SENTENCE = 30
_JSON_COLUMNS = ("value", "result", "args", "before", "after", "detail")
"""Columns whose text is JSON, so that text and numbers can be told apart."""


def default_format(stream: TextIO) -> str:
    """A table for people, JSON lines for programs."""
    return "table" if stream.isatty() else "jsonl"


def prepare(stream: TextIO) -> None:
    """Make sure that every value can be written: JSON is UTF-8, whatever the locale says."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace", **({} if stream.isatty() else {"encoding": "utf-8"}))


class Output:
    """Prints records of the same columns. A stream prints each at once, a list only when it is complete."""

    def __init__(
        self,
        columns: Sequence[str],
        form: str | None = None,
        *,
        stream: bool = False,
        heads: bool = False,
        value: str = "value",
        empty: str = "",
    ) -> None:
        """``value`` is the column of the form ``value``; ``empty`` is told on a terminal if there is no record."""
        self.columns = tuple(columns)
        self.form = form or default_format(sys.stdout)
        self._stream = stream
        self._value = value
        self._empty = empty
        self._waiting: list[Mapping[str, Any]] = []
        self._count = 0
        self._closed = False
        self._heads = heads
        self._widths = [len(name) if heads else 0 for name in self.columns]
        self._colour = colourful(sys.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or (self._stream and not issubclass(kind, BrokenPipeError)):
            self.close()

    def put(self, record: Mapping[str, Any]) -> None:
        """Print a record; what it has no member for stays empty."""
        getattr(self, f"_put_{self.form}")({name: plain(value) for name, value in record.items()})
        self._count += 1

    def put_all(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Print records, then close."""
        for record in records:
            self.put(record)
        self.close()

    def close(self) -> None:
        """Print what is left."""
        if self._closed:
            return
        self._closed = True
        if self.form == "json":
            _write("\n]" if self._count else "[]")
        elif self.form == "csv" and not self._count:
            self._csv(self.columns)
        elif self.form == "table" and self._waiting:
            self._table(self._waiting)
        elif self.form == "table" and not self._count and self._empty and sys.stdout.isatty():
            say(self._empty)

    def _put_json(self, record: Mapping[str, Any]) -> None:
        sys.stdout.write((",\n  " if self._count else "[\n  ") + shown(record))
        sys.stdout.flush()

    def _put_jsonl(self, record: Mapping[str, Any]) -> None:
        _write(shown(record))

    def _put_value(self, record: Mapping[str, Any]) -> None:
        if self._value in record:
            _write(bare(record[self._value]))

    def _put_csv(self, record: Mapping[str, Any]) -> None:
        if not self._count:
            self._csv(self.columns)
        self._csv(["" if record.get(name) is None else bare(record[name]) for name in self.columns])

    def _csv(self, cells: Sequence[str]) -> None:
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerow(cells)
        sys.stdout.flush()

    def _put_table(self, record: Mapping[str, Any]) -> None:
        if self._stream:
            cells = self._cells(record)
            self._widths = [max(width, text_width(cell)) for width, cell in zip(self._widths, cells, strict=True)]
            width = terminal_width()
            widths = fitted(self._widths, width)
            if width is not None and _too_narrow(widths, self._widths):
                _write(cut(" ".join(filter(None, cells)), width))
                return
            if self._heads and not self._count:
                _write(self._line(list(self.columns), widths, head=True))
            _write(self._line(cells, widths))
        else:
            self._waiting.append(record)

    def _table(self, records: Sequence[Mapping[str, Any]]) -> None:
        rows = [self._cells(record) for record in records]
        natural = [max(map(text_width, column)) for column in zip(self.columns, *rows, strict=True)]
        widths = self._fitted(natural)
        cut_short = widths[:-1] != natural[:-1] or (widths != natural and self.columns[-1] not in _SENTENCES)
        if _too_narrow(widths, natural) or (len(rows) == 1 and cut_short):
            self._blocks(rows)
            return
        _write(self._line(list(self.columns), widths, head=True))
        for cells in rows:
            _write(self._line(cells, widths))

    def _fitted(self, natural: list[int]) -> list[int]:
        """The widths of columns; a last column of sentences takes what the others leave, and is wrapped."""
        width = terminal_width()
        if width is None or self.columns[-1] not in _SENTENCES:
            return fitted(natural, width)
        room = width - sum(natural[:-1]) - 2 * len(natural[:-1])
        return fitted(natural, width) if room < SENTENCE else [*natural[:-1], min(room, natural[-1])]

    def _blocks(self, rows: Sequence[list[str]]) -> None:
        """Records one below the other, a line a member: for terminals that are too narrow for a table.

        A single record is shown so as soon as a table would have to cut it, and is not cut at all.
        """
        width = terminal_width() or WIDTH
        for number, cells in enumerate(rows):
            if number:
                _write("")
            for name, cell in zip(self.columns, cells, strict=True):
                if cell:
                    _write(f"{name} {cell}" if len(rows) == 1 else cut(f"{name} {cell}", width))

    def _cells(self, record: Mapping[str, Any]) -> list[str]:
        return [_cell(name, record) for name in self.columns]

    def _line(self, cells: list[str], widths: list[int], *, head: bool = False) -> str:
        if self.columns[-1] in _SENTENCES and text_width(cells[-1]) > widths[-1]:
            return self._wrapped(cells, widths)
        pieces = []
        for name, cell, width in zip(self.columns, cells, widths, strict=True):
            text = cut(cell, width)
            space = " " * (width - text_width(text))
            style = _DIM if head else _WORD_STYLES.get(cell) or _COLUMN_STYLES.get(name, "")
            pieces.append((f"{style}{text}{_PLAIN}" if self._colour and style and text else text) + space)
        return "  ".join(pieces).rstrip()

    def _wrapped(self, cells: list[str], widths: list[int]) -> str:
        """A line whose sentence goes on below."""
        import textwrap

        parts = textwrap.wrap(cells[-1], max(widths[-1], 1))
        indent = " " * (sum(widths[:-1]) + 2 * len(widths[:-1]))
        return "\n".join([self._line([*cells[:-1], parts[0]], widths), *(indent + part for part in parts[1:])])


def _cell(name: str, record: Mapping[str, Any]) -> str:
    value = record.get(name)
    if name == "at":
        return _clock(str(value))
    if name in _JSON_COLUMNS:
        return on_one_line(value) if name in record else ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return "" if value is None else printable(bare(value))


def _clock(instant: str) -> str:
    """An instant as the clock on the wall shows it; with the day, unless that is today."""
    from datetime import datetime

    at = datetime.fromisoformat(instant).astimezone()
    today = at.date() == datetime.now(at.tzinfo).date()
    return at.strftime("%H:%M:%S.%f" if today else "%Y-%m-%d %H:%M:%S.%f")[:-3]


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line that is no record."""
    _write(printable(text))


def terminal_width() -> int | None:
    """The width of the terminal; None where lines may be as long as they like."""
    if not sys.stdout.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH


def fitted(widths: Sequence[int], width: int | None) -> list[int]:
    """The widths of columns that fit a terminal: the widest give way first."""
    fit = list(widths)
    if width is None:
        return fit
    room = max(width - 2 * (len(fit) - 1), len(fit))
    while sum(fit) > room:
        widest = fit.index(max(fit))
        fit[widest] -= 1
    return fit


def _too_narrow(widths: Sequence[int], wanted: Sequence[int]) -> bool:
    return any(width < min(natural, NARROW) for width, natural in zip(widths, wanted, strict=True))


def text_width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut(text: str, width: int) -> str:
    """A text that takes at most that many columns; an ellipsis shows that something is missing."""
    if text_width(text) <= width:
        return text
    kept, taken = [], 0
    for char in text:
        taken += _char_width(char)
        if taken > width - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"
