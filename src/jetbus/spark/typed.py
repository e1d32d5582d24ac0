"""Values of events in columns of their type, in Arrow: ``num``, ``text``, ``flag`` and ``doc``.

What ``tables.events`` does by Spark for anybody's frame, a task of the pipeline does here for the events it reads, so
that they need not go through Java. Both give the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jetbus.spark.variants import variant

__all__ = ["CODED", "coded", "with_types"]

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

CODED = ("bus", "event", "kind", "path", "peer")
"""Columns with few different texts: each is kept once, and rows have numbers."""
_DOC = [pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")]
_NUMBER, _TEXT, _FLAG, _DOCUMENT = (np.frombuffer(text, np.uint8) for text in (b"-0123456789", b'"', b"tf", b"{["))
"""What values of each type begin with."""


def coded(column: pa.Array | pa.ChunkedArray) -> pa.DictionaryArray:
    """A column of texts by number, as one piece."""
    if not pa.types.is_dictionary(column.type):
        whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        return whole.dictionary_encode()
    return column.unify_dictionaries().combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def with_types(rows: pa.Table) -> pa.Table:
    """Events as the table of events has them, texts that repeat by number."""
    for name in CODED:
        rows = rows.set_column(rows.column_names.index(name), name, coded(rows[name]))
    value = rows["value"].combine_chunks()
    begin = _first_bytes(value)
    return (
        rows.append_column("num", _num(value, np.isin(begin, _NUMBER)))
        .append_column("text", _picked(value, np.isin(begin, _TEXT), _texts, pa.string()))
        .append_column("flag", _picked(value, np.isin(begin, _FLAG), _flags, pa.bool_()))
        .append_column("doc", _docs(value, np.isin(begin, _DOCUMENT)))
    )


def _first_bytes(texts: pa.StringArray) -> Bytes:
    """The first byte of each text; 0 where there is none."""
    found = np.zeros(len(texts), np.uint8)
    _, offsets, data = texts.buffers()
    if data is None or not data.size:
        return found
    at = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    some = at[1:] > at[:-1]
    found[some] = np.frombuffer(data, np.uint8)[at[:-1][some]]
    if texts.null_count:
        found[np.asarray(texts.is_null().to_numpy(zero_copy_only=False))] = 0
    return found


def _picked(
    value: pa.StringArray, which: Flags, read: Callable[[pa.StringArray], pa.Array], kind: pa.DataType
) -> pa.Array:
    """What some values are read as; null for all others."""
    if not which.any():
        return pa.nulls(len(value), kind)
    if which.all():
        return read(value)
    place = pa.array(np.cumsum(which) - 1, mask=~which)
    return read(value.filter(pa.array(which))).take(place)


# -- by type


def _num(value: pa.StringArray, which: Flags) -> pa.Array:
    number = _picked(value, which, _numbers, pa.float64())
    return pc.if_else(pc.is_finite(number), number, pa.scalar(None, pa.float64()))


def _numbers(texts: pa.StringArray) -> pa.Array:
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid:  # blanks after a number, or no number at all
        return pa.array([_number(text) for text in texts.to_pylist()], pa.float64())


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _texts(texts: pa.StringArray) -> pa.Array:
    plain = pc.utf8_slice_codeunits(texts, 1, -1)
    is_escaped = pc.match_substring(plain, "\\")
    if not pc.any(is_escaped).as_py():
        return plain
    read = [_text(text) for text in texts.filter(is_escaped).to_pylist()]
    return pc.replace_with_mask(plain, is_escaped, pa.array(read, pa.string()))


def _text(text: str) -> str | None:
    """A text with what was escaped; half a pair of surrogates cannot be written and becomes ``?``."""
    try:
        told: str = json.loads(text, strict=False)
    except ValueError:
        return None
    return told.encode("utf-8", "replace").decode()


def _flags(texts: pa.StringArray) -> pa.Array:
    is_false = pc.equal(texts, "false")
    return pc.if_else(pc.equal(texts, "true"), True, pc.if_else(is_false, False, pa.scalar(None, pa.bool_())))


def _docs(value: pa.StringArray, which: Flags) -> pa.Array:
    """Documents as variants, each different one made once. A null has parts that are empty, as files have it."""
    once = value.filter(pa.array(which)).dictionary_encode()
    made = [*(variant(text) for text in once.dictionary.to_pylist()), None]
    place = np.full(len(value), len(made) - 1)
    place[which] = once.indices.to_numpy()
    parts = [pa.array([one[n] if one else b"" for one in made], pa.binary()) for n in range(len(_DOC))]
    none = np.array([one is None for one in made], np.bool_)[place]
    return pa.StructArray.from_arrays([part.take(pa.array(place)) for part in parts], fields=_DOC, mask=pa.array(none))
