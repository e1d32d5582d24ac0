"""Output of commands: records, printed as a table, JSON, CSV or bare values.

The default is a table on a terminal and one JSON object per line in a pipe. Every line is flushed at once. Control
characters in text from the bus are escaped, so that it cannot send commands to the terminal.

All formats but one print a record as soon as they get it. A table has to know its widths first::

    list      collected, and printed at the end with columns as wide as their longest cell
    stream    printed at once; columns grow with the cells and never shrink

A table that is too wide for the terminal gives way in this order: sentences in the last column are wrapped, the widest
columns are cut, and if that leaves columns too narrow to read, each record is printed as a block, one member per line.
In a pipe nothing is cut.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeAlias

from jetbus.cli.exit_codes import escape, supports_colour
from jetbus.json_types import Json
from jetbus.wire import jsonrpc

if TYPE_CHECKING:
    from pathlib import Path

Record: TypeAlias = Mapping[str, Any]
"""Cells of a line by column: JSON values, or bytes."""
FORMATS = ("table", "json", "jsonl", "csv", "value")
WIDTH = 80
SPACIOUS = 60
"""Width from which on a stream wraps long values instead of cutting them."""
NARROW = 6
"""Columns narrower than this are unreadable; records are then printed one below the other."""
_PLAIN = "\x1b[0m"
_DIM, _RED, _GREEN, _YELLOW, _CYAN = "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"
_COLUMN_STYLES = {"value": _CYAN, "result": _CYAN, "ts": _DIM, "source_ts": _DIM}
_WORD_STYLES = {
    **dict.fromkeys(("add", "added", "ok", "allowed"), _GREEN),
    **dict.fromkeys(("change", "changed", "warning", "uncertain"), _YELLOW),
    **dict.fromkeys(("remove", "removed", "wrong", "refused", "bad"), _RED),
}
_SENTENCES = ("text", "why", "then", "problem")
"""Columns of sentences. As the last column they are wrapped instead of cut, since their end names the next step."""
SENTENCE = 30
WRAPPED_LINES_MAX = 12
"""Lines that one value of a stream may take on a terminal."""
PATH_SHARE = 0.45
"""Part of the width of a terminal that the columns before the value of a stream may take, besides that of the time."""
_JSON_COLUMNS = ("value", "result", "args", "before", "after", "detail")
"""Columns printed as JSON, so that text and numbers can be distinguished."""


def choose_format(stream: TextIO) -> str:
    """Return the default format of a stream: a table on a terminal, else JSON lines."""
    return "table" if stream.isatty() else "jsonl"


def configure_stream(stream: TextIO) -> None:
    """Configure a stream so that every value can be written: JSON is UTF-8, whatever the locale says."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        # A terminal shows its own encoding only. Files and pipes are read by programs, which expect UTF-8.
        reconfigure(errors="backslashreplace", **({} if stream.isatty() else {"encoding": "utf-8"}))


class Output:
    """Printer of records with the same columns: a stream prints each at once, a list only when it is complete."""

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
        """Set up the printer.

        ``value`` names the column printed by ``--output value``; ``empty`` is printed on a terminal if there are no
        records.
        """
        self.columns = tuple(columns)
        self.form = form or choose_format(sys.stdout)
        self._is_stream = stream
        self._value = value
        self._empty = empty
        self._records: list[Record] = []
        self._count = 0
        self._closed = False
        self._has_heads = heads
        self._widths = [len(name) if heads else 0 for name in self.columns]
        self._has_colour = supports_colour(sys.stdout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # An interrupted stream has printed records, so its JSON array is closed. Half of a list is not printed at all.
        if kind is None or (self._is_stream and not issubclass(kind, BrokenPipeError)):
            self.close()

    def reserve(self, records: Iterable[Record]) -> None:
        """Make the columns of a stream wide enough for these records, so that they need not move later."""
        for record in records:
            self._widen(self._render_cells({name: to_jsonable(value) for name, value in record.items()}))

    def _widen(self, cells: Sequence[str]) -> None:
        self._widths = [max(width, measure_width(cell)) for width, cell in zip(self._widths, cells, strict=True)]

    def put(self, record: Record) -> None:
        """Print a record; columns without a member stay empty."""
        getattr(self, f"_put_{self.form}")({name: to_jsonable(value) for name, value in record.items()})
        self._count += 1

    def put_all(self, records: Iterable[Record]) -> None:
        """Print records, then close."""
        for record in records:
            self.put(record)
        self.close()

    def close(self) -> None:
        """Print the rest: the end of a JSON array, or the whole table."""
        if self._closed:
            return
        self._closed = True
        if self.form == "json":
            _write("\n]" if self._count else "[]")
        # Programs that read CSV expect the line of names, even if nothing follows.
        elif self.form == "csv" and not self._count:
            self._print_csv(self.columns)
        elif self.form == "table" and self._records:
            self._print_table(self._records)
        elif self.form == "table" and not self._count and self._empty and sys.stdout.isatty():
            print_line(self._empty)

    def _put_json(self, record: Record) -> None:
        # No line break behind the record: whether a comma follows is known only with the next one.
        sys.stdout.write((",\n  " if self._count else "[\n  ") + encode_json(record))
        sys.stdout.flush()

    def _put_jsonl(self, record: Record) -> None:
        _write(encode_json(record))

    def _put_value(self, record: Record) -> None:
        if self._value in record:
            _write(escape_lines(format_bare(record[self._value])))

    def _put_csv(self, record: Record) -> None:
        if not self._count:
            self._print_csv(self.columns)
        self._print_csv([record.get(name) for name in self.columns])

    def _print_csv(self, cells: Sequence[Json]) -> None:
        from jetbus.journal.spreadsheet import write_lines

        sys.stdout.write(escape_lines(write_lines([cells])))
        sys.stdout.flush()

    def _put_table(self, record: Record) -> None:
        if self._is_stream:
            cells = self._render_cells(record)
            width = get_terminal_width()
            # Only values can be of any length; all other cells fit on a line.
            if width is not None and self.columns[-1] == "value" and width >= SPACIOUS:
                _write(self._format_spacious(cells, width))
                return
            self._widen(cells)
            widths = fit_widths(self._widths, width)
            if width is not None and _is_too_narrow(widths, self._widths):
                _write(truncate(" ".join(filter(None, cells)), width))
                return
            if self._has_heads and not self._count:
                _write(self._format_line(list(self.columns), widths, head=True))
            _write(self._format_line(cells, widths))
        else:
            self._records.append(record)

    def _print_table(self, records: Sequence[Record]) -> None:
        rows = [self._render_cells(record) for record in records]
        natural = [max(map(measure_width, column)) for column in zip(self.columns, *rows, strict=True)]
        widths = self._fit_columns(natural)
        # A last column of sentences is wrapped, so its width does not cut anything.
        cut_short = widths[:-1] != natural[:-1] or (widths != natural and self.columns[-1] not in _SENTENCES)
        if _is_too_narrow(widths, natural) or (len(rows) == 1 and cut_short):
            self._print_blocks(rows)
            return
        _write(self._format_line(list(self.columns), widths, head=True))
        for cells in rows:
            _write(self._format_line(cells, widths))

    def _fit_columns(self, natural: list[int]) -> list[int]:
        """Return the widths of columns; a last column of sentences takes the remaining width, and is wrapped."""
        width = get_terminal_width()
        if width is None or self.columns[-1] not in _SENTENCES:
            return fit_widths(natural, width)
        room = width - sum(natural[:-1]) - 2 * len(natural[:-1])
        return fit_widths(natural, width) if room < SENTENCE else [*natural[:-1], min(room, natural[-1])]

    def _print_blocks(self, rows: Sequence[list[str]]) -> None:
        """Print records one below the other, one member per line, where a table does not fit the terminal.

        A single record is printed like this as soon as a table would cut it, and is not cut at all.
        """
        width = get_terminal_width() or WIDTH
        for number, cells in enumerate(rows):
            if number:
                _write("")
            for name, cell in zip(self.columns, cells, strict=True):
                if cell:
                    _write(f"{name} {cell}" if len(rows) == 1 else truncate(f"{name} {cell}", width))

    def _render_cells(self, record: Record) -> list[str]:
        return [_render_cell(name, record) for name in self.columns]

    def _format_line(self, cells: list[str], widths: list[int], *, head: bool = False) -> str:
        if self.columns[-1] in _SENTENCES and measure_width(cells[-1]) > widths[-1]:
            return self._wrap_line(cells, widths)
        pieces = []
        for name, cell, width in zip(self.columns, cells, widths, strict=True):
            text = truncate(cell, width)
            # Measured before the style is added, since its characters take no columns.
            space = " " * (width - measure_width(text))
            if head:
                pieces.append((f"{_DIM}{text}{_PLAIN}" if self._has_colour and text else text) + space)
            else:
                pieces.append(self._style(name, text) + space)
        return "  ".join(pieces).rstrip()

    def _format_spacious(self, cells: list[str], width: int) -> str:
        """Return a record with a value that continues below itself, so that long values do not move the columns.

        A column grows with its longest path, up to its share of the terminal, and never shrinks. A path that is longer
        than that stands on a line of its own, and the value below it, in the column of values.
        """
        self._widen(cells)
        own = [min(one, round(PATH_SHARE * width)) for one in self._widths[:-1]]
        room = max(width - sum(own) - 2 * len(own), SENTENCE)
        parts = wrap_json(cells[-1], room)
        indent = " " * (sum(own) + 2 * len(own))
        is_long = any(measure_width(cell) > limit for cell, limit in zip(cells, own, strict=False))
        if is_long:
            first = "  ".join(self._style(name, cell) for name, cell in zip(self.columns, cells[:-1], strict=False))
            lines = [first, *(indent + self._style("value", part) for part in parts if part)]
        else:
            lines = [self._format_line([*cells[:-1], parts[0]], [*own, room])]
            lines += [indent + self._style("value", part) for part in parts[1:]]
        return "\n".join(lines)

    def _style(self, name: str, text: str) -> str:
        # Behind the word of a quality may be its reason.
        word = text.partition(":")[0] if name == "quality" else text
        style = _WORD_STYLES.get(word) or _COLUMN_STYLES.get(name, "")
        return f"{style}{text}{_PLAIN}" if self._has_colour and style and text else text

    def _wrap_line(self, cells: list[str], widths: list[int]) -> str:
        """Return a line with a last cell that continues on the lines below."""
        import textwrap

        parts = textwrap.wrap(cells[-1], max(widths[-1], 1))
        indent = " " * (sum(widths[:-1]) + 2 * len(widths[:-1]))
        return "\n".join([self._format_line([*cells[:-1], parts[0]], widths), *(indent + part for part in parts[1:])])


def _render_cell(name: str, record: Record) -> str:
    value = record.get(name)
    if name in ("ts", "source_ts"):
        return "" if value is None else _format_clock(str(value))
    if name == "quality" and isinstance(value, dict):
        return escape(": ".join(str(value[part]) for part in ("level", "reason") if part in value))
    # null is a value and is printed, in contrast to a member that is missing.
    if name in _JSON_COLUMNS:
        return format_cell(value) if name in record else ""
    if isinstance(value, bool):
        # Flags are rarely set, and stand out best among blanks.
        return "yes" if value else ""
    if isinstance(value, float):
        # Without an exponent, so that numbers in a column can be compared.
        return f"{value:.6f}".rstrip("0").rstrip(".")
    return "" if value is None else escape(format_bare(value))


def _format_clock(instant: str) -> str:
    """Format an instant in local time, with the date unless it is today."""
    from datetime import datetime

    at = datetime.fromisoformat(instant).astimezone()
    today = at.date() == datetime.now(at.tzinfo).date()
    return at.strftime("%H:%M:%S.%f" if today else "%Y-%m-%d %H:%M:%S.%f")[:-3]


def _write(line: str) -> None:
    # Not escaped, because the codes of colours are control characters, too; cells are escaped one by one.
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_line(text: str) -> None:
    """Print a line of text."""
    _write(escape(text))


def get_terminal_width() -> int | None:
    """Return the width of the terminal; None if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return None
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(sys.stdout.fileno()).columns or WIDTH
    except (OSError, ValueError):
        return WIDTH


def fit_widths(widths: Sequence[int], width: int | None) -> list[int]:
    """Reduce the widths of columns until they fit, always the widest first."""
    fit = list(widths)
    if width is None:
        return fit
    # At least one character for each column, however narrow the terminal is.
    room = max(width - 2 * (len(fit) - 1), len(fit))
    while sum(fit) > room:
        widest = fit.index(max(fit))
        fit[widest] -= 1
    return fit


def _is_too_narrow(widths: Sequence[int], wanted: Sequence[int]) -> bool:
    return any(width < min(natural, NARROW) for width, natural in zip(widths, wanted, strict=True))


def measure_width(text: str) -> int:
    """Return the number of terminal columns that a text occupies."""
    if text.isascii():
        return len(text)
    return sum(_measure_char(char) for char in text)


def _measure_char(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    # Wide and full-width characters, such as Chinese ones.
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def wrap_json(text: str, width: int, lines_max: int = WRAPPED_LINES_MAX) -> list[str]:
    """Cut JSON into lines of a width, behind commas where possible; the last line of too many ends in an ellipsis.

    >>> wrap_json('{"rpm":1200,"unit":"1/min"}', 16)
    ['{"rpm":1200,', '"unit":"1/min"}']
    """
    lines: list[str] = []
    while measure_width(text) > width and len(lines) < lines_max - 1:
        # The additional column is for the ellipsis, which is removed again. One character is taken even if it does not
        # fit, or the loop would not end.
        taken = truncate(text, width + 1)[:-1] or text[0]
        comma = taken.rfind(",") + 1
        # Only in the right half, as shorter lines would waste room.
        part = taken[:comma] if comma > len(taken) // 2 else taken
        lines.append(part)
        text = text[len(part) :]
    return [*lines, truncate(text, width)]


def truncate(text: str, width: int) -> str:
    """Cut a text to a number of terminal columns; an ellipsis marks the cut."""
    if measure_width(text) <= width:
        return text
    chars, columns_used = [], 0
    for char in text:
        columns_used += _measure_char(char)
        if columns_used > width - 1:
            break
        chars.append(char)
    return "".join(chars) + "…"


def encode_json(value: Json) -> str:
    """Encode a value as compact JSON."""
    try:
        return jsonrpc.encode(value).decode()
    except (ValueError, TypeError, OverflowError):
        # Not all that is printed could be sent on a bus, such as integers of more than 64 bits.
        return json.dumps(value, ensure_ascii=True)


def to_jsonable(value: Any) -> Json:
    """Return a value that JSON can represent; bytes become an object with ``mime`` and ``base64``, as on the bus."""
    if not isinstance(value, bytes):
        return value
    from base64 import b64encode

    return {"mime": getattr(value, "mime", "application/octet-stream"), "base64": b64encode(value).decode()}


def format_bare(value: Json) -> str:
    """Format a value for scripts: text without quotes, everything else as JSON."""
    return value if isinstance(value, str) else encode_json(value)


def escape_lines(text: str) -> str:
    """Escape control characters but line breaks and tabs if the text goes to a terminal; scripts get it as it is."""
    if not sys.stdout.isatty() or text.isprintable():
        return text
    return "".join(char if char in "\n\t" else escape(char) for char in text)


def format_cell(value: Json) -> str:
    """Format a value for a cell of a table."""
    return escape(encode_json(value))


@contextmanager
def replace_file(target: Path, mode: int) -> Iterator[Path]:
    """Yield a temporary file that replaces the target when the block ends, and is removed if it fails."""
    import tempfile
    from pathlib import Path

    # In the folder of the target, because a rename is atomic only within a file system.
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    os.close(descriptor)
    fresh = Path(name)
    try:
        yield fresh
        # Until here it is 0600, so that no other user reads a secret, or half of a file.
        fresh.chmod(mode)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
