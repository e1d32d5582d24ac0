"""Units and schemas of recorded elements, derived from the column ``detail``.

The ``add`` of an element has its schema in ``detail``, and a later ``describe`` has a new one. Both are rare and mostly
equal texts, so each distinct text is decoded once. A row of a history has the description of the last add or describe
before it:

    event    add        change   describe   change   remove   add
    detail   unit: rpm           unit: Hz                     -
    unit     rpm        rpm      Hz         Hz       Hz       -

``list_elements`` turns the same events into a table of elements: one row for each time that a description was valid.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.events import CLEARING_EVENTS
from jetbus.json_types import Json
from jetbus.schema import Schema, read_schema

UNIT = pa.field("unit", pa.string())
DESCRIBING_EVENTS = ("add", "describe")
"""Events with a detail that describes an element from then on."""
ELEMENTS = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.string()),
        ("schema", pa.string()),
        ("unit", pa.string()),
        ("minimum", pa.float64()),
        ("maximum", pa.float64()),
        ("valid_from", pa.timestamp("us", "UTC")),
        ("valid_to", pa.timestamp("us", "UTC")),
    ]
)
ELEMENT_EVENTS = (*DESCRIBING_EVENTS, "remove", *CLEARING_EVENTS)
"""Events that start or end a row of ``ELEMENTS``."""
_KNOWN_MAX = 10_000


@lru_cache(maxsize=_KNOWN_MAX)
def read_description(detail: str | None) -> str | Mapping[str, Json] | None:
    """Return the schema in a detail as its owner wrote it: an object or a text; None if it has none."""
    if not detail or '"schema"' not in detail:
        return None
    try:
        described = msgspec.json.decode(detail).get("schema")
    except (msgspec.DecodeError, AttributeError):
        return None
    return described if isinstance(described, str | dict) else None


def read_detail_schema(detail: str | None) -> Schema:
    """Return the schema in a detail; an empty one if it has none."""
    return read_schema(read_description(detail))


def _read_unit(detail: str | None) -> str | None:
    return read_detail_schema(detail).unit


def add_unit_column(tree: pa.Table) -> pa.Table:
    """Return a tree with the column ``unit``, from the details of its elements."""
    return tree.append_column(UNIT, _map_distinct(tree["detail"].combine_chunks(), _read_unit))


def add_units_over_time(history: pa.Table, detail_before: str | None) -> pa.Table:
    """Return the events of one path with the column ``unit``, given the detail of the element before the first."""
    if not history.num_rows:
        return history.append_column(UNIT, pa.array([], UNIT.type))
    describing = pc.is_in(history["event"], value_set=pa.array(DESCRIBING_EVENTS))
    # An empty text stands for "none from here on", so that null can mean "as before".
    units = pc.fill_null(_map_distinct(history["detail"].combine_chunks(), _read_unit), "")
    units = pc.if_else(describing, units, pa.scalar(None, UNIT.type))
    before = pa.array([_read_unit(detail_before) or ""], UNIT.type)
    filled = pc.fill_null_forward(pa.chunked_array([before, *_chunks(units)]).combine_chunks()).slice(1)
    return history.append_column(UNIT, pc.if_else(pc.equal(filled, ""), pa.scalar(None, UNIT.type), filled))


class UnitTracker:
    """The units of all elements, updated by the events of a log in their order."""

    def __init__(self, tree: pa.Table | None = None) -> None:
        self._units: dict[str, str] = {}
        if tree is not None:
            for path, detail in zip(tree["path"].to_pylist(), tree["detail"].to_pylist(), strict=True):
                self._describe(path, detail)

    def _describe(self, path: str, detail: str | None) -> None:
        unit = _read_unit(detail)
        if unit is None:
            self._units.pop(path, None)
        else:
            self._units[path] = unit

    def add(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the units of the paths of these events, which follow those of the last call."""
        events = batch.column("event")
        if pc.any(pc.is_in(events, value_set=pa.array([*DESCRIBING_EVENTS, *CLEARING_EVENTS]))).as_py():
            return pa.array(list(self._read_rows(batch)), UNIT.type)
        if not self._units:
            return pa.nulls(batch.num_rows, UNIT.type)
        return _map_distinct(batch.column("path"), lambda path: self._units.get(path or ""))

    def _read_rows(self, batch: pa.RecordBatch) -> Iterable[str | None]:
        columns = (batch.column(name).to_pylist() for name in ("event", "path", "detail"))
        for event, path, detail in zip(*columns, strict=True):
            if event in CLEARING_EVENTS:
                self._units.clear()
            elif event in DESCRIBING_EVENTS:
                self._describe(path, detail)
            yield self._units.get(path)


def list_elements(tree: pa.Table, since_us: int, events: Iterable[pa.RecordBatch]) -> pa.Table:
    """Return a table of the elements of a tree at an instant and of the ``ELEMENT_EVENTS`` after it."""
    rows: list[dict[str, Any]] = []
    present: dict[str, dict[str, Any]] = {}

    def begin(path: str, kind: str | None, detail: str | None, ts_us: int) -> None:
        end(path, ts_us)
        present[path] = {"path": path, "kind": kind, **_describe_columns(detail), "valid_from": ts_us}
        rows.append(present[path])

    def end(path: str, ts_us: int) -> None:
        if path in present:
            present.pop(path)["valid_to"] = ts_us

    for row in tree.to_pylist():
        begin(row["path"], row["kind"], row["detail"], since_us)
    for batch in events:
        instants_us = batch.column("ts").cast(pa.int64()).to_pylist()
        for row, ts_us in zip(batch.to_pylist(), instants_us, strict=True):
            if row["event"] in CLEARING_EVENTS:
                for path in list(present):
                    end(path, ts_us)
            elif row["event"] == "remove":
                end(row["path"], ts_us)
            else:
                begin(row["path"], row["kind"], row["detail"], ts_us)
    return pa.Table.from_pylist(rows, ELEMENTS)


@lru_cache(maxsize=_KNOWN_MAX)
def _describe_columns(detail: str | None) -> Mapping[str, Any]:
    """Return the columns of ``ELEMENTS`` that a detail decides."""
    described, schema = read_description(detail), read_detail_schema(detail)
    return {
        "schema": None if described is None else json.dumps(described, ensure_ascii=False),
        "unit": schema.unit,
        "minimum": schema.minimum,
        "maximum": schema.maximum,
    }


def _map_distinct(texts: pa.Array, read: Callable[[str | None], str | None]) -> pa.Array:
    """Return the result of a function for each text, calling it once per distinct text."""
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), UNIT.type)
    encoded = texts.dictionary_encode()
    found = pa.array([read(text) for text in encoded.dictionary.to_pylist()], UNIT.type)
    return found.take(encoded.indices)


def _chunks(array: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(array.chunks) if isinstance(array, pa.ChunkedArray) else [array]
