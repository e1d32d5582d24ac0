"""The timeline: the events of every path in order, each with what came after it. One sort serves several tables.

For each path the rows follow one another by seq, after the row that was carried from the batch before:

    carried   change 10      (open: a value in force, a stay that has begun)
    seq 17    change 12      ends the value 10                      valid_to of the row above
    seq 19    remove         ends the value 12 and the stay         the row of seq 17 is the last of its stay
    seq 23    add 0          begins a value and a stay              open: carried to the next batch
      ~~ cut ~~              ends whatever is open at that moment

*history* has a row per value, *availability* a row per stay: the time from an ``add`` to whatever ends it other than a
change. The totals of a stay run along the rows, so that the last row of a stay has them all, and a path that is still
there needs just one row to go on from. Everything is a window function over one order of rows, so Spark sorts once.

Each function is one SQL text, see ``sql_text``.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from jetbus.spark.clock import BatchClock
from jetbus.spark.elements import KEY, MISFIT, SCHEMA, known_rows, with_descriptions
from jetbus.spark.schemas import CARRIED, Column
from jetbus.spark.sql_text import run, select

__all__ = ["SIGNS", "availability", "history", "open_paths", "timeline"]

SIGNS = ("add", "change", "remove")
"""The events that are signs of life of a path, or its end."""

_PATH = "over (partition by key, bus, path order by seq"
_IN_ORDER = f"{_PATH})"
_SO_FAR = f"{_PATH} rows between unbounded preceding and current row)"

_IS_VALUE = "event in ('add', 'change')"
"""Something is there from this row on."""
# A change that was carried is in the totals of its stay already.
_IS_CHANGE = "(not carried and event = 'change')"
_ENDS_BY_NEXT = "(next_seq is not null and (cut_seq is null or next_seq < cut_seq))"
_NO_DESCRIPTION = ("cast(null as string) as unit", "cast(null as string) as misfit")
_GAP_US = (
    f"if({_IS_VALUE}, greatest(unix_micros(valid_to) - unix_micros(ts), if(carried, stay.quiet_us, null)), null)"
    " as gap_us"
)
"""Longest time without a change that ends with this row."""
_NEVER = "9223372036854775807L"
_BEGINS = "(event = 'add' or before_event is null or before_event = 'remove' or before_cut < seq)"
"""A stay begins: the path was added, was not there, or was cut off since."""


def timeline(
    events: DataFrame,
    clock: BatchClock,
    carried: DataFrame | None = None,
    known: DataFrame | None = None,
    *,
    has_schemas: bool = True,
) -> DataFrame:
    """Order the events of each path and say what ended each; ``carried`` has the open rows of the batch before.

    ``known`` has the descriptions that were carried; without ``has_schemas`` there are none, nor among the events.

    Besides the columns of an event: ``unit``, ``misfit``, ``carried``, ``valid_to`` and ``ended_by`` (null while it is
    open), and ``stay``, the totals of the stay on the last row of each, with ``is_last`` where nothing follows.
    """
    rows = _rows(has_carried=carried is not None, has_known=known is not None, has_schemas=has_schemas)
    rows = select(clock.join_epochs(rows), "*", KEY)
    if has_schemas:
        described = {"unit": "about.unit", "misfit": MISFIT}
        rows = select(
            with_descriptions(rows),
            "* except (unit, misfit, about)",
            *(f"if(carried, {name}, {text}) as {name}" for name, text in described.items()),
        )
    rows = select(
        rows,
        "*",
        f"lead(seq) {_IN_ORDER} as next_seq",
        f"lead(ts) {_IN_ORDER} as next_ts",
        f"lead(event) {_IN_ORDER} as next_event",
        f"coalesce(lead(carried) {_IN_ORDER}, false) as next_carried",
        f"lag(event) {_IN_ORDER} as before_event",
        f"lag(cut_seq) {_IN_ORDER} as before_cut",
        f"sum(if({_IS_CHANGE}, 1L, 0L)) {_SO_FAR} as changes",
        f"sum(if(event = 'change', 0L, 1L)) {_SO_FAR} as breaks",
    )
    # A path that was carried several times since the last fold goes on from the newest of these rows.
    rows = select(
        rows,
        "*",
        f"case when {_ENDS_BY_NEXT} then greatest(ts, next_ts) when cut_seq is not null then greatest(ts, cut_ts) end"
        " as valid_to",
        f"if({_ENDS_BY_NEXT}, next_event, cut_event) as ended_by",
        "next_seq is null as is_last",
        f"not carried and {_IS_VALUE} and {_BEGINS} as begins",
        f"carried and {_IS_VALUE} as goes_on",
        where="not (carried and next_carried)",
    )
    # Each of these numbers never falls along a path, so the greatest so far is that of the latest begin of a stay.
    rows = select(
        rows,
        "*",
        _begun("seq", "stay.seq", "stay_seq"),
        _begun("ts", "stay.since", "since"),
        _begun(f"changes - if({_IS_CHANGE}, 1L, 0L)", "changes - stay.changes", "changes_before"),
        # ``last`` passes over nulls, so a stay whose owner is unknown has an empty text until the totals are made.
        f"last(case when begins then coalesce(peer, '') when goes_on then coalesce(stay.owner, '') end, true) {_SO_FAR}"
        " as owner",
        # Breaks and cuts never fall either, and do not change within a stay: the greatest is that of the latest stay.
        f"max(struct(coalesce(cut_seq, {_NEVER}), breaks, {_GAP_US})) {_SO_FAR}.gap_us as quiet_us",
    )
    totals = (
        "named_struct('seq', stay_seq, 'since', since, 'owner', nullif(owner, ''), "
        "'changes', changes - changes_before, 'quiet_us', quiet_us)"
    )
    rows = select(
        rows,
        *("bus", "path", "seq", "ts", "event", "kind", "value", "num", "text", "flag", "peer", "source_ts", "quality"),
        *("unit", "misfit", "carried"),
        *("valid_to", "ended_by", "is_last"),
        # A change goes on with the stay, so only a row that anything else ends, or nothing yet, has its final totals.
        f"if({_IS_VALUE} and coalesce(ended_by, '') != 'change', {totals}, null) as stay",
    )
    return clock.run(rows, events=events, carried=carried, known=known)


def _begun(fresh: str, known: str, name: str) -> str:
    """Say what is known of the begin of a stay, from its first row or from the carried row that tells of it."""
    return f"max(case when begins then {fresh} when goes_on then {known} end) {_SO_FAR} as {name}"


def _rows(*, has_carried: bool, has_known: bool, has_schemas: bool) -> str:
    """Unite the signs of life of a batch with the rows that were carried to it, and with descriptions."""
    stay = CARRIED["paths"].schema["stay"].dataType.simpleString()
    columns = ("bus", "path", "seq", "ts", "event", "value", "num", "text", "flag", "peer", "source_ts", "quality")
    nothing = (f"cast(null as {stay}) as stay", *_NO_DESCRIPTION, "false as carried")
    fresh = select(
        "{events}",
        *(*columns, "coalesce(kind, 'state') as kind", *nothing, *([SCHEMA] if has_schemas else [])),
        where=f"event in {(*SIGNS, 'describe') if has_schemas else SIGNS} and path is not null",
    )
    parts = [fresh]
    no_schema = ["cast(null as string) as schema"] if has_schemas else []
    if has_carried:
        parts.append(select("{carried}", *columns, "kind", "stay", "unit", "misfit", "true as carried", *no_schema))
    if has_known:
        types = {column.name: column.type for column in CARRIED["paths"].columns} | {"stay": stay}
        names = (*columns, "kind", "stay", "unit", "misfit", "carried", "schema")
        parts.append(known_rows(Column(name, types.get(name, ""), "") for name in names))
    return " union all ".join(parts)


# -- the tables


def history(rows: DataFrame) -> DataFrame:
    """Select one row per value of a state from a timeline; ``valid_to`` is null while it is in force."""
    columns = ("bus", "path", "seq", "ts as valid_from", "valid_to", "event", "ended_by")
    values = ("value", "num", "text", "flag", "peer", "source_ts", "quality", "unit", "misfit")
    return run(select("{rows}", *columns, *values, where=f"{_IS_VALUE} and kind = 'state'"), rows=rows)


def availability(rows: DataFrame) -> DataFrame:
    """Select one row per stay of a state or method from a timeline; ``until`` is null while it is there."""
    columns = (
        *("bus", "path", "kind", "stay.owner", "stay.seq", "stay.since", "valid_to as until"),
        "(unix_micros(valid_to) - unix_micros(stay.since)) / 1e6D as up_s",
        *("stay.changes", "ts as last_ts", "stay.quiet_us / 1e6D as quiet_s", "ended_by"),
    )
    return run(select("{rows}", *columns, where=f"{_IS_VALUE} and stay is not null"), rows=rows)


def open_paths(rows: DataFrame) -> DataFrame:
    """Select the rows that the next batch goes on from: of each path that is there its last, or that it has gone."""
    is_open = f"({_IS_VALUE} and ended_by is null)"
    has_gone = "(event = 'remove' and not carried)"
    return run(select("{rows}", *CARRIED["paths"].names, where=f"is_last and ({is_open} or {has_gone})"), rows=rows)
