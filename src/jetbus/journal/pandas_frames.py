"""The past in pandas: the types of tables there, and frames of several states side by side.

Tables say in their metadata how pandas is to read them: instants in nanoseconds, since ``resample`` followed by
``concat`` goes wrong on microseconds in pandas 2, and integers as ``Int64``, which stay integers beside missing values.

A frame has a column for each path and a row for each step of time. A value is held until the next one:

    events                  frame, every="1s"
    12:00:00.2  speed 1     12:00:01    1     <NA>
    12:00:01.5  level 7     12:00:02    1     7
    12:00:02.9  speed 3     12:00:03    3     7

A value is unknown, ``<NA>``, where the state did not exist: before its add, after its remove and while the daemon was
away. A value of bad quality counts as unknown, too. Steps are multiples of their length since 1970, so that frames of
different times and buses fit each other.

pandas and numpy are imported when the first frame is made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jetbus.journal.instants import US_PER_S, Instant, read_duration, read_instant, write_instant
from jetbus.journal.journal_errors import JournalError
from jetbus.journal.source import (
    AskedAt,
    Pager,
    PinnedRange,
    Query,
    check_matches,
    check_recorded,
    list_paths,
    pin,
    read_all,
    read_corrected_tree,
    read_cuts,
    read_span,
)
from jetbus.json_types import Json
from jetbus.rules import Rule
from jetbus.rules import rule as make_rule

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CELLS_MAX = 50_000_000
"""Rows times columns of a frame."""
NEEDS_PANDAS = "frames need pandas; install it with: pip install 'pandas>=2.2'"
_EXACT_MAX = 1 << 53
"""Integers above this are not exact in a column of floats."""


# -- types of tables


def describe_for_pandas(table: pa.Table) -> pa.Table:
    """Return a table that ``to_pandas()`` converts with instants in nanoseconds and integers as ``Int64``."""
    import pyarrow as pa

    columns = []
    for field in table.schema:
        if pa.types.is_timestamp(field.type):
            columns.append((field.name, "datetimetz", "datetime64[ns, UTC]"))
        # A column of numbers is one of integers if it is the history of a counter, and not of a whole tree.
        elif pa.types.is_integer(field.type) or (field.name == "num" and _is_counter(table)):
            columns.append((field.name, "int64", "Int64"))
    described = {
        "index_columns": [],
        "column_indexes": [],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
            for name, kind, dtype in columns
        ],
    }
    return table.replace_schema_metadata({**(table.schema.metadata or {}), "pandas": json.dumps(described)})


def _is_counter(table: pa.Table) -> bool:
    """Return True if all numbers of a history are integers that a float holds exactly."""
    import pyarrow.compute as pc

    if "path" in table.column_names:
        return False
    texts = table["value"].filter(pc.is_valid(table["num"]))
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, r"^-?\d+$")).as_py():
        return False
    return bool(pc.max(pc.abs(table["num"])).as_py() <= _EXACT_MAX)


# -- frames


class FrameParts(NamedTuple):
    """All that a frame is made of."""

    within: PinnedRange
    before: list[dict[str, Any]]
    """The states as they were at the start of the frame."""
    rows: list[dict[str, Any]]
    cuts: list[tuple[int, int]]
    every_us: int


def read_frame(
    asked: AskedAt,
    paths: str | Rule | Sequence[str],
    since: Instant | None,
    until: Instant | None,
    every: str | float,
) -> Query[FrameParts]:
    """Read all that a frame of these paths, or of all that match these rules, is made of."""
    every_us = round((read_duration(every) if isinstance(every, str) else every) * US_PER_S)
    if every_us <= 0:
        raise JournalError(f"the steps of a frame must be longer than 0, not {every}; give a duration such as '1s'")
    rules = [make_rule(one) for one in ([paths] if isinstance(paths, str | Rule) else paths)]
    within = yield from pin(asked, since, until)
    check_recorded(within, within.until_us, until)
    if within.begin_us is not None:
        within = within._replace(since_us=max(within.begin_us, within.since_us or within.begin_us))
    before: dict[str, dict[str, Any]] = {}
    rows: dict[int, dict[str, Any]] = {}
    for rule in rules:
        tree = yield from read_corrected_tree(within._replace(since_us=within.since_us or 0), rule)
        found = yield from read_span(within, rule)
        if not tree.num_rows and not found.num_rows:
            known = yield from read_all(Pager("as_of", {"seq": within.seq_until - 1}))
            check_matches([rule], list_paths([known]), "in that time")
        before |= {row["path"]: row for row in tree.to_pylist() if row["kind"] == "state"}
        rows |= {row["seq"]: row for row in found.to_pylist()}
    cuts = yield from read_cuts(within)
    return FrameParts(within, list(before.values()), [rows[seq] for seq in sorted(rows)], cuts, every_us)


def import_pandas() -> Any:
    """Return pandas; raise an error that says how to install it."""
    try:
        import pandas
    except ModuleNotFoundError as problem:
        if problem.name != "pandas":
            raise
        raise JournalError(NEEDS_PANDAS) from None
    return pandas


def make_frame(parts: FrameParts) -> pd.DataFrame:
    """Return the frame; ``attrs["units"]`` has the units of the columns with a single unit."""
    pandas = import_pandas()
    import numpy as np

    within, every_us = parts.within, parts.every_us
    timelines: dict[str, list[tuple[int, int, Json]]] = {}
    units: dict[str, set[str | None]] = {}
    for row in [*parts.before, *parts.rows]:
        timelines.setdefault(row["path"], []).append((row["seq"], read_instant(row["ts"]), _read_value(row)))
        units.setdefault(row["path"], set()).add(row["unit"])
    first = -(-(within.since_us or 0) // every_us)
    last = min(within.now_us, within.now_us if within.until_us is None else within.until_us) // every_us
    steps = max(last - first + 1, 0) if timelines else 0
    if steps * len(timelines) > CELLS_MAX:
        raise JournalError(
            f"a frame from {write_instant(first * every_us)} to {write_instant(last * every_us)} with"
            f" {len(timelines)} columns would have {steps} rows, more than {CELLS_MAX} cells; give a later since, fewer"
            " paths or a longer every"
        )
    grid_us = (first + np.arange(steps, dtype=np.int64)) * every_us
    index = pandas.DatetimeIndex((grid_us * 1000).astype("datetime64[ns]"), name="ts").tz_localize("UTC")
    columns = {
        path: pandas.Series(_hold(timeline, parts.cuts, grid_us), index=index)
        for path, timeline in sorted(timelines.items())
    }
    frame = pandas.DataFrame(columns, index=index)
    known = {path: found.pop() for path, found in units.items() if len(found) == 1}
    frame.attrs["units"] = {path: known[path] for path in columns if known.get(path) is not None}
    return frame


def _read_value(row: dict[str, Any]) -> Json:
    """Return the value that starts with a row; None if a row ends one, or says that nothing is known."""
    quality = row["quality"]
    level = json.loads(quality)["level"] if quality and quality.startswith("{") else quality
    is_known = row["value"] is not None and row.get("event") != "remove" and level != "bad"
    return json.loads(row["value"]) if is_known else None


def _hold(timeline: list[tuple[int, int, Json]], cuts: list[tuple[int, int]], grid_us: Any) -> Any:
    """Return the value at each step, in the type that all values of the timeline have."""
    import numpy as np
    import pandas as pd

    # Several events may have the same time; then by seq, the order in which they came.
    ordered = sorted([*timeline, *((seq, at_us, None) for seq, at_us in cuts)], key=lambda entry: (entry[1], entry[0]))
    values = [value for _, _, value in ordered]
    at = np.searchsorted(np.array([at_us for _, at_us, _ in ordered], dtype=np.int64), grid_us, side="right") - 1
    dtype = _find_dtype({type(value) for value in values if value is not None})
    held = pd.array([None, *values], dtype=dtype) if dtype else _make_objects([None, *values])
    found = held.take(at + 1)
    return found.to_numpy(dtype="float64", na_value=np.nan) if dtype == "Float64" else found


def _find_dtype(types: set[type]) -> str | None:
    if types <= {int}:
        return "Int64"
    if types <= {int, float}:
        return "Float64"
    return {frozenset([bool]): "boolean", frozenset([str]): "string"}.get(frozenset(types))


def _make_objects(values: list[Json]) -> Any:
    """Return values of several types, lists and objects as they are."""
    import numpy as np

    held = np.empty(len(values), dtype=object)
    held[:] = values
    return held
