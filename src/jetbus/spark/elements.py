"""Elements: the descriptions of states and methods over time, and the one that is valid for each value.

The ``add`` of an element has its schema in ``detail``, a later ``describe`` has a new one. A value is described by the
last of these before it, unless the element has gone since, by a ``remove`` or by a cut:

    seq     17 add   18 change   19 describe   20 change   ~~ cut ~~   31 change
    unit    rpm      rpm                       Hz                      none

The stages that need it put the rows that describe among their own, so that one sort serves both. Between batches the
table ``carried_elements`` has the newest description of each element; elements without one are not in it, so a bus
whose states are not described pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pyspark.sql import DataFrame

from jetbus.schema import STALE_S_MAX
from jetbus.spark.clock import BatchClock
from jetbus.spark.schemas import CARRIED, TABLES, Column
from jetbus.spark.sql_text import run, select

__all__ = [
    "DESCRIBING",
    "KEY",
    "MEMBERS",
    "MISFIT",
    "SCHEMA",
    "closed_elements",
    "element_rows",
    "known_rows",
    "open_elements",
    "valid_elements",
    "with_descriptions",
]

DESCRIBING = ("add", "describe", "remove")
"""The events that begin or end the validity of a description."""

SCHEMA = "if(event in ('add', 'describe'), get_json_object(detail, '$.schema'), null) as schema"
"""The schema that an event brings, as JSON text."""

# Sorting by a hash first compares numbers; paths, which begin alike, are compared only where it is the same.
KEY = "xxhash64(bus, path) as key"
_PATH = "over (partition by key, bus, path order by seq"

_ABOUT = (
    "from_json(schema, 'type string, enum array<string>, unit string, minimum double, maximum double, "
    "normal array<double>, stale double', map('allowNonNumericNumbers', 'false'))"
)
_IS_RANGE = "size(about.normal) = 2 and coalesce(get(about.normal, 0) <= get(about.normal, 1), true)"
MEMBERS: Mapping[str, str] = MappingProxyType(
    {
        "unit": "about.unit",
        "minimum": "about.minimum",
        "maximum": "about.maximum",
        "normal_low": f"if({_IS_RANGE}, get(about.normal, 0), null)",
        "normal_high": f"if({_IS_RANGE}, get(about.normal, 1), null)",
        "stale_s": f"if(about.stale > 0 and about.stale <= {STALE_S_MAX}D, about.stale, null)",
    }
)
"""Members of a description, by their columns; those that are malformed are null, as for all other readers."""

# A list of types is read as its JSON text. No name of a type is part of another one, so it is enough to look for it.
_TYPE_NAME = "(array|boolean|integer|null|number|object|string)"
_IS_TYPE = f"about.type rlike '^[^a-z]*{_TYPE_NAME}([^a-z]+{_TYPE_NAME})*[^a-z]*$'"
_TYPE = (
    "case when num is not null then 'number' when text is not null then 'string' when flag is not null then 'boolean' "
    "when value = 'null' then 'null' when value like '{{%' then 'object' else 'array' end"
)
_IS_INTEGER = "coalesce(num = floor(num), false) and contains(about.type, 'integer')"
_IS_ALLOWED = (
    "case when num is not null then exists(about.enum, one -> try_cast(one as double) <=> num) "
    "when text is not null then array_contains(about.enum, text) "
    "when flag is not null then array_contains(about.enum, value) "
    "when value = 'null' then exists(about.enum, one -> one is null) "
    "else exists(about.enum, one -> left(one, 1) = left(value, 1)) end"
)
MISFIT = (
    "case when value is null or about is null then null "
    f"when not (contains(about.type, {_TYPE}) or {_IS_INTEGER}) and {_IS_TYPE} then 'type' "
    f"when size(about.enum) > 0 and not coalesce({_IS_ALLOWED}, false) then 'enum' "
    "when num < about.minimum then 'minimum' when num > about.maximum then 'maximum' end"
)
"""The member of its description that a value does not fit, or null.

SQL has no words for a schema within a schema: of objects and lists only the type counts. A text and a number or flag
that are written alike, such as ``"1"`` and ``1``, are the same to ``enum``.
"""


def with_descriptions(rows: str) -> str:
    """Add ``about``, the description that is valid at each row, and leave out the rows that do nothing but describe.

    Rows have ``key`` and their epoch; ``schema`` counts where the event describes, and ``carried`` tells rows of an
    earlier batch, which know what described them. The order is that of the timeline.
    """
    describes = "event = 'describe' or (not carried and event in ('add', 'remove'))"
    described = f"case when {describes} then struct(cut_seq, {_ABOUT} as about) end"
    rows = select(rows, "*", f"last({described}, true) {_PATH} rows between unbounded preceding and current row) as d")
    about = "if(d.cut_seq <=> cut_seq, d.about, null) as about"
    return select(rows, "* except (d)", about, where="event != 'describe'")


def known_rows(columns: Iterable[Column]) -> str:
    """Turn descriptions that were carried into rows with the columns of those that they are put among."""
    own = {name: name for name in CARRIED["elements"].names} | {"event": "'describe'", "carried": "true"}
    return select("{known}", *(f"{own.get(one.name, f'cast(null as {one.type})')} as {one.name}" for one in columns))


# -- the table


def element_rows(events: DataFrame, clock: BatchClock, known: DataFrame | None = None) -> DataFrame:
    """Order the descriptions of each element and say when each ended; ``known`` has those that were carried.

    ``closed_elements`` and ``open_elements`` select the rows to keep.
    """
    columns = ("bus", "path", "seq", "ts", "event", "kind")
    rows = select("{events}", *columns, SCHEMA, "false as carried", where=f"event in {DESCRIBING} and path is not null")
    if known is not None:
        rows = f"{rows} union all {select('{known}', *columns, 'schema', 'true as carried')}"
    rows = select(clock.join_epochs(rows), "*", KEY)
    rows = select(
        rows,
        "*",
        f"lead(seq) {_PATH}) as next_seq",
        f"lead(ts) {_PATH}) as next_ts",
        f"coalesce(lead(carried) {_PATH}), false) as next_carried",
        f"max(carried) {_PATH} rows between unbounded preceding and current row) as was_known",
    )
    ends_by_next = "next_seq is not null and (cut_seq is null or next_seq < cut_seq)"
    rows = select(
        rows,
        "*",
        f"case when {ends_by_next} then greatest(ts, next_ts) when cut_seq is not null then greatest(ts, cut_ts) end"
        " as valid_to",
        f"{_ABOUT} as about",
        # An element that was carried several times since the last fold goes on from the newest of these rows.
        where="not (carried and next_carried)",
    )
    return clock.run(rows, events=events, known=known)


def _as_table(rows: str, where: str) -> str:
    own = {"valid_from": "ts", **MEMBERS}
    return select(rows, *(f"{own.get(name, name)} as {name}" for name in TABLES["elements"].names), where=where)


def closed_elements(rows: DataFrame, *, and_open: bool = False) -> DataFrame:
    """Select the descriptions that are no longer valid, or all of them, as rows of the table of elements."""
    return run(_as_table("{rows}", "schema is not null" + ("" if and_open else " and valid_to is not null")), rows=rows)


def open_elements(rows: DataFrame) -> DataFrame:
    """Select the rows to carry: descriptions that are valid now, and that one which was carried is no longer."""
    is_news = "not carried and next_seq is null and cut_seq is null and (schema is not null or was_known)"
    return run(select("{rows}", *CARRIED["elements"].names, where=is_news), rows=rows)


def valid_elements(known: DataFrame) -> DataFrame:
    """Turn the newest descriptions that were carried into rows of the table of elements."""
    rows = select("{known}", "*", "cast(null as timestamp) as valid_to", f"{_ABOUT} as about")
    return run(_as_table(rows, "true"), known=known)
