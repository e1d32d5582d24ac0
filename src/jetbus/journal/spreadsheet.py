"""Events as CSV, in one shape wherever they are written: by ``jet history``, ``jet journal export`` and Radar.

    ts,path,event,value,unit,quality,peer,source_ts
    2026-03-01T12:00:00.000000Z,pump/speed,change,800,rpm,,plc#1,
    2026-03-01T12:00:01.000000Z,pump/mode,change,auto,,,plc#1,

Instants are RFC 3339 in UTC. A text is written as it is and every other value as JSON; a cell is empty if there is
nothing to say. With several buses, ``bus`` follows ``ts``. Lines end in a line feed.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jetbus.json_types import Json, JsonObject

COLUMNS = ("ts", "path", "event", "value", "unit", "quality", "peer", "source_ts")
_JSON_COLUMNS = ("value", "before", "after", "detail")
"""Columns of the journal that are JSON text."""


def list_columns(*, several_buses: bool = False) -> list[str]:
    """Return the columns of a file of events."""
    return ["ts", "bus", *COLUMNS[1:]] if several_buses else list(COLUMNS)


def to_record(row: Mapping[str, Json]) -> JsonObject:
    """Return a row of the journal as a record: values decoded, times as text, empty columns left out."""
    record: JsonObject = {}
    for name, value in row.items():
        if value is None or (name == "late" and not value):
            continue
        # A quality is a plain word, or a JSON object if it has a reason.
        if name in _JSON_COLUMNS or (name == "quality" and value.startswith("{")):
            record[name] = json.loads(value)
        elif isinstance(value, datetime):
            record[name] = format_time(value)
        else:
            record[name] = value
    return record


def format_time(moment: datetime) -> str:
    """Format a time as RFC 3339 in UTC."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def write_lines(lines: Iterable[Sequence[Json]]) -> str:
    """Return lines of CSV.

    >>> write_lines([["a,b", 1.5, {"level": "bad"}, None]])
    '"a,b",1.5,"{""level"":""bad""}",\\n'
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for cells in lines:
        writer.writerow([_format_cell(cell) for cell in cells])
    return text.getvalue()


def _format_cell(value: Json) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_events(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = COLUMNS) -> str:
    """Return rows of the journal as lines of CSV."""
    return write_lines([record.get(name) for name in columns] for record in map(to_record, rows))
