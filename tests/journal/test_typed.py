"""Typed columns: every JSON value is in the column of its type, and in no other."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jetbus.journal.typed import TYPED, add_typed_columns

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"])),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.dictionaries(st.text(max_size=3), SCALARS, max_size=3))


def _type_of(value: Any) -> str | None:
    kinds = {bool: "flag", int: "num", float: "num", str: "text", list: "json", dict: "json"}
    return kinds.get(type(value))


@given(st.lists(st.tuples(VALUES, st.booleans()), max_size=20))
def test_every_value_is_in_the_column_of_its_type(values: list[tuple[Any, bool]]) -> None:
    """Numbers, strings, flags and documents come out as they went in, whether or not strings are escaped."""
    texts = [json.dumps(value, ensure_ascii=escaped) for value, escaped in values]
    table = add_typed_columns(pa.table({"value": pa.array(texts, pa.string()), "peer": pa.nulls(len(texts))}))
    assert table.column_names == ["value", *TYPED.names, "peer"]
    assert [table.schema.field(field.name).type for field in TYPED] == TYPED.types
    for (value, _), row in zip(values, table.to_pylist(), strict=True):
        expected: dict[str, Any] = dict.fromkeys(TYPED.names)
        if (name := _type_of(value)) is not None:
            expected[name] = float(value) if name == "num" else json.dumps(value) if name == "json" else value
        found = {name: row[name] for name in TYPED.names}
        if found["json"] is not None:
            found["json"] = json.dumps(json.loads(found["json"]))
        assert found == expected


def test_values_that_no_column_can_hold() -> None:
    """A number beyond all floats is left out, half a surrogate pair is written out, and a method has nothing."""
    texts = ["1e999", "-1E999", '"\\ud800"', None]
    rows = add_typed_columns(pa.table({"value": pa.array(texts, pa.string())})).to_pylist()
    assert [row["num"] for row in rows] == [None] * 4
    assert rows[2]["text"] == "\\ud800"
    assert rows[3] == dict.fromkeys(["value", *TYPED.names])
