"""Alarms in Spark: rows of events become rows that say when alarms were raised and cleared.

``jetbus.alarms.definitions`` reads their file and defines its words. Conditions see the columns of events, and
the description of the state at the time of the value.

    value        70    85     88    78     72              when = "num > 80", clear = "num < 75"
    seen          -     +      +     =      -              + on, - off, = neither
    changes       -     +            =      -              only rows on which something changes go on
    signals             raised (if 85 and 88 last)   cleared

A state is stale when no value has come for the time that its description says. So each value ends the wait before it
and starts its own, as for a hold time: it is seen as ``-`` and ``~``, which are two rows.

Carried from batch to batch is one row for each alarm that is raised, or pending for its hold time.
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.alarms import definitions
from jetbus.alarms.definitions import Alarm
from jetbus.spark.clock import BatchClock
from jetbus.spark.entries import check_condition, translate_errors
from jetbus.spark.path_rules import matches
from jetbus.spark.schemas import CARRIED, DOC, TABLES
from jetbus.spark.spark_errors import BadAlarm
from jetbus.spark.sql_text import condition, empty_frame, list_texts, run

__all__ = [
    "Alarm",
    "alarm_signals",
    "check_alarms",
    "new_signals",
    "newest_signals",
    "open_signals",
    "read_alarms",
]

_EVENT = (*TABLES["events"].columns, DOC)
_MEMBERS = ("unit", "minimum", "maximum", "normal_low", "normal_high", "stale_s")
_DESCRIPTION = tuple(column for column in TABLES["elements"].columns if column.name in _MEMBERS)
"""Columns that conditions see: of the event, and of the description of its state."""


def read_alarms(file: str | Path) -> tuple[Alarm, ...]:
    """Read the alarms of a TOML file, with errors of the Spark side."""
    with translate_errors(BadAlarm, "alarms"):
        return definitions.read_alarms(file)


def check_alarms(wanted: tuple[Alarm, ...], spark: SparkSession) -> None:
    """Refuse conditions that Spark does not understand, before anything runs."""
    for alarm in wanted:
        for word, text in (("when", alarm.when), ("clear", alarm.clear)):
            if text is not None:
                check_condition(spark, (*_EVENT, *_DESCRIPTION), alarm.name, word, text, BadAlarm)


# -- the stages

_IS_STATE = "coalesce(kind, 'state') = 'state'"
_IS_ALIVE = "event in ('add', 'change')"


def alarm_signals(
    alarms: tuple[Alarm, ...],
    events: DataFrame,
    clock: BatchClock,
    carried: DataFrame | None = None,
    known: DataFrame | None = None,
    *,
    has_schemas: bool = True,
) -> DataFrame:
    """Derive the signals of some alarms from events; ``new_signals`` and ``open_signals`` select the rows to keep.

    ``carried`` has the newest row of each alarm and path that may matter: pending ones, and those of paths with events.
    ``known`` has the descriptions that were carried; without ``has_schemas`` there are none, nor among the events.
    """
    spark = events.sparkSession
    changes = run("alarm_changes", seen=_see(alarms, _described_states(alarms, events, clock, known, has_schemas)))
    open_alarms = carried or empty_frame(spark, CARRIED["alarms"].columns)
    args = {
        "alarms": list_texts([alarm.name for alarm in alarms]),
        "severities": list_texts([alarm.severity for alarm in alarms]),
        "holds_us": F.array(*[F.lit(alarm.hold_us) for alarm in alarms]),
    }
    timed = {"changes": clock.with_time(changes), "carried": clock.with_time(open_alarms)}
    return run("alarm_signals", args, cuts=clock.cuts, **timed)


def new_signals(signals: DataFrame) -> DataFrame:
    """Select the rows of the table of alarms: those that were raised, and those that were cleared."""
    return run("new_signals", signals=signals)


def open_signals(signals: DataFrame) -> DataFrame:
    """Select the rows to carry: alarms that are raised or pending now, and those that are no longer."""
    return run("open_signals", signals=signals)


def newest_signals(signals: DataFrame) -> DataFrame:
    """Select the newest row to publish of each alarm and path, null if there is none, and count both kinds of rows."""
    return run("newest_signals", signals=signals)


# -- conditions of users


def _described_states(
    alarms: tuple[Alarm, ...], events: DataFrame, clock: BatchClock, known: DataFrame | None, has_schemas: bool
) -> DataFrame:
    """Select the events of states that alarms are about, with the members of the description that was valid then."""
    # Chosen by path before they are sorted: an alarm for a few states need not sort all of them.
    is_watched = f"{_IS_STATE} and ({' or '.join(matches(alarm.rule) for alarm in alarms)})"
    described = known or empty_frame(events.sparkSession, CARRIED["elements"].columns)
    rows = run("alarm_rows", events=events.where(is_watched), known=described.where(is_watched), cuts=clock.cuts)
    if has_schemas:
        return run("descriptions", rows=rows)
    nothing = [f"cast(null as {column.type}) as {column.name}" for column in _DESCRIPTION if column.name != "unit"]
    return rows.where("event != 'describe'").selectExpr("*", *nothing)


def _see(alarms: tuple[Alarm, ...], states: DataFrame) -> DataFrame:
    """Evaluate all conditions in one pass: the column ``seen`` has the view of each alarm, such as ``0+,3-``."""
    return states.selectExpr(
        *("bus", "path", "seq", "ts", "cut_seq", "cut_ts"),
        *(f"if({_IS_ALIVE}, {name}, null) as {name}" for name in ("value", "unit")),
        "cast(stale_s * 1e6D as bigint) as stale_us",
        f"concat_ws(',', {', '.join(_seen_by(place, alarm) for place, alarm in enumerate(alarms))}) as seen",
    )


def _seen_by(place: int, alarm: Alarm) -> str:
    """Return the view of an alarm of a row as text, null if its rule is not about the path."""
    off = "true" if alarm.clear is None else f"(not {_IS_ALIVE} or coalesce({condition(alarm.clear)}, false))"
    on = f"{place}-,{place}~" if alarm.is_stale else f"{place}+"
    return (
        f"case when not {matches(alarm.rule)} then null "
        f"when {_IS_ALIVE} and coalesce({condition(alarm.when)}, false) then '{on}' "
        f"when {off} then '{place}-' else '{place}=' end"
    )
