"""Typed columns: the values of events, which are JSON text, as columns of numbers, texts and flags.

    value          num     text    flag    json
    12.5           12.5
    "open"                 open
    true                           true
    {"rpm": 900}                           {"rpm": 900}
    null

A value is in one of the columns, by its JSON type, so that each can be plotted, compared or grouped by as it is.
Tables of Spark have the same columns, with documents as ``doc``. Everything but strings with escapes is done by Arrow.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc

TYPED = pa.schema([("num", pa.float64()), ("text", pa.string()), ("flag", pa.bool_()), ("json", pa.string())])
"""The columns, in the order in which they follow ``value``."""

_NUMBER_STARTS = pa.array(list("-0123456789"))
_DOCUMENT_STARTS = pa.array(["{", "["])


def add_typed_columns(table: pa.Table) -> pa.Table:
    """Return a table with the typed columns after its column ``value``."""
    at = table.schema.get_field_index("value") + 1
    for number, (field, column) in enumerate(zip(TYPED, split_values(table["value"]), strict=True)):
        table = table.add_column(at + number, field, column)
    return table


def split_values(values: pa.ChunkedArray | pa.Array) -> list[pa.Array]:
    """Return the typed columns of values."""
    texts = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    first = pc.utf8_slice_codeunits(texts, 0, 1)
    nothing = pa.scalar(None, pa.string())
    is_flag = pc.or_(pc.equal(texts, "true"), pc.equal(texts, "false"))
    return [
        _read_numbers(pc.if_else(pc.is_in(first, _NUMBER_STARTS), texts, nothing)),
        _read_strings(pc.if_else(pc.equal(first, '"'), texts, nothing)),
        pc.if_else(is_flag, pc.equal(texts, "true"), pa.scalar(None, pa.bool_())),
        pc.if_else(pc.is_in(first, _DOCUMENT_STARTS), texts, nothing),
    ]


def _read_numbers(texts: pa.Array) -> pa.Array:
    numbers = texts.cast(pa.float64())
    # JSON allows numbers that no float can hold, such as 1e999.
    return pc.if_else(pc.is_finite(numbers), numbers, pa.scalar(None, pa.float64()))


def _read_strings(texts: pa.Array) -> pa.Array:
    plain = pc.utf8_slice_codeunits(texts, 1, -1)
    escaped = pc.fill_null(pc.match_substring(texts, "\\"), False)
    if not pc.any(escaped).as_py():
        return plain
    decoded = [_read_string(text) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(plain, escaped, pa.array(decoded, pa.string()))


def _read_string(text: str) -> str:
    # JSON can express half a surrogate pair, UTF-8 cannot.
    string: str = json.loads(text)
    return string.encode(errors="backslashreplace").decode()
