"""Alarms: a rule, a condition in SQL, a hold time and hysteresis, read from a TOML file.

    [alarm.hot]
    rule = "plant/**/temperature"
    when = "num > 80"
    clear = "num < 75"
    hold = "10s"
    severity = "warning"

``rule`` says which states it is about. An alarm is raised once ``when`` has held without a break for ``hold`` (at once
without it), and cleared by the first value for which ``clear`` holds (without it: for which ``when`` does not) or when
the state goes away. Conditions see the columns of events: ``num``, ``text``, ``flag``, ``doc``, ``value``, ``path``,
``bus``, ``peer``.

    value        70    85     88    78     72              when = "num > 80", clear = "num < 75"
    seen          -     +      +     =      -              + on, - off, = neither
    changes       -     +            =      -              only rows on which something changes go on
    signals             raised (if 85 and 88 last)   cleared

Carried from batch to batch is one row for each alarm that is raised, or pending for its hold time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.journal.instants import read_duration
from jetbus.rules import Rule
from jetbus.spark.clock import Clock
from jetbus.spark.conditions import matches, path_rule
from jetbus.spark.entries import read_entries
from jetbus.spark.errors import BadAlarm
from jetbus.spark.schemas import DOC, TABLES, schema_of
from jetbus.spark.timeline import SIGNS

__all__ = ["Alarm", "alarm_signals", "check_alarms", "new_signals", "open_signals", "read_alarms"]

_WORDS = ("rule", "when", "clear", "hold", "severity")
ALARMS_MAX = 1000
"""Alarms in one file."""


@dataclass(frozen=True)
class Alarm:
    """One alarm of a file."""

    name: str
    rule: Rule
    when: str
    clear: str | None = None
    hold_us: int = 0
    severity: str = "alarm"


def read_alarms(file: str | Path) -> tuple[Alarm, ...]:
    """Read the alarms of a TOML file."""
    entries = read_entries(file, "alarm", ALARMS_MAX, "merge some by wider rules")
    return tuple(_read_alarm(name, entry) for name, entry in entries.items())


def _read_alarm(name: str, entry: dict[str, Any]) -> Alarm:
    for word, value in entry.items():
        if word not in _WORDS:
            raise BadAlarm(name, f"there is no {word!r}; there are {', '.join(_WORDS)}")
        if not isinstance(value, str):
            raise BadAlarm(name, f"{word} takes text in quotes, not {value!r}")
    if "when" not in entry:
        raise BadAlarm(name, 'it needs a condition; add when = "num > 80" or the like')
    try:
        rule = path_rule(entry.get("rule", "**"))
        hold_us = round(read_duration(entry.get("hold", "0s")) * 1e6)
    except ValueError as problem:
        raise BadAlarm(name, getattr(problem, "problem", str(problem))) from problem
    return Alarm(name, rule, entry["when"], entry.get("clear"), hold_us, entry.get("severity", "alarm"))


def check_alarms(wanted: tuple[Alarm, ...], spark: SparkSession) -> None:
    """Refuse conditions that Spark does not understand, before anything runs."""
    nothing = spark.createDataFrame([], schema_of((*TABLES["events"].columns, DOC)))
    for alarm in wanted:
        for word, condition in (("when", alarm.when), ("clear", alarm.clear)):
            if condition is not None:
                _check_condition(nothing, alarm.name, word, condition)


def _check_condition(events: DataFrame, name: str, word: str, condition: str) -> None:
    try:
        kind = events.select(F.expr(condition)).schema[0].dataType.simpleString()
    except Exception as problem:
        first = str(problem).strip().splitlines()[0]
        raise BadAlarm(name, f"{word} = {condition!r} is not understood: {first}") from problem
    if kind != "boolean":
        raise BadAlarm(name, f"{word} = {condition!r} is a {kind}, not a condition")


# -- the stage

_KEY = ("place", "bus", "path")
_ALARM = "over (partition by place, bus, path order by seq"
_IN_ORDER = f"{_ALARM})"
_SO_FAR = f"{_ALARM} rows between unbounded preceding and current row)"
_EARLIER = f"{_ALARM} rows between unbounded preceding and 1 preceding)"

_IS_RAISED = "coalesce(state = 'raised', false)"
_IS_PENDING = f"(not {_IS_RAISED} and coalesce(signal = 'pending', false))"
"""Whether an alarm is raised, or pending, after its last row."""


def alarm_signals(
    alarms: tuple[Alarm, ...], events: DataFrame, clock: Clock, carried: DataFrame | None = None
) -> DataFrame:
    """Derive the signals of some alarms from events; ``new_signals`` and ``open_signals`` select the rows to keep.

    ``carried`` has the newest row of each alarm and path that may matter: pending ones, and those of paths with events.
    """
    rows = _seen_rows(alarms, events, clock)
    if carried is not None:
        rows = rows.union(_carried_rows(alarms, carried, clock))
    was_on = f"coalesce(lag(is_on) {_IN_ORDER}, false)"
    rows = rows.selectExpr("*", f"is_on and not {was_on} as begins", f"not is_on and {was_on} as ends")
    # What follows the begin of a run is its end: rows on which an alarm just goes on are of no interest.
    rows = clock.join_now(rows.where("begins or ends or is_off or carried"))
    hold_us = f"element_at(array({', '.join(f'{alarm.hold_us}L' for alarm in alarms)}), place + 1)"
    rows = rows.selectExpr(
        "*",
        f"coalesce(lead(ts) {_IN_ORDER}, now) as lasts_until",
        f"lead(ts) {_IN_ORDER} is null as goes_on",
        f"if(was_raised, ts, timestamp_micros(unix_micros(ts) + {hold_us})) as due",
    )
    rows = rows.selectExpr(
        "*",
        """case when was_raised or (begins and lasts_until >= due) then 'raised'
                when begins and goes_on then 'pending'
                when is_off then 'cleared' end as signal""",
    )
    decided = "if(signal = 'pending', null, signal)"
    rows = rows.selectExpr(
        "*",
        f"coalesce(last({decided}, true) {_EARLIER} = 'raised', false) as was_on_before",
        f"last({decided}, true) {_SO_FAR} as state",
        f"max(carried) {_SO_FAR} as was_carried",
        f"lead(seq) {_IN_ORDER} is null as is_last",
    )
    rows = rows.selectExpr(
        "*",
        "coalesce(case signal when 'raised' then not was_on_before when 'cleared' then was_on_before end, false)"
        " as is_new",
    )
    rows = rows.selectExpr(
        "*",
        f"last(if(is_new and signal = 'raised', struct(seq, value, due, was_raised), null), true) {_SO_FAR} as raised",
    )
    changed = f"case when {_IS_RAISED} then not raised.was_raised when {_IS_PENDING} then not carried end"
    rows = rows.selectExpr(
        "*",
        "is_new and not (signal = 'raised' and was_raised) as is_told",
        f"is_last and coalesce({changed}, was_carried) as is_kept",
    )
    return rows.where("is_told or is_kept").select("*", *_names(alarms))


def new_signals(signals: DataFrame) -> DataFrame:
    """Select the rows of the table of alarms: those that were raised, and those that were cleared."""
    return signals.where("is_told").selectExpr(
        *("alarm", "severity", "bus", "path", "signal as what", "if(signal = 'raised', due, ts) as ts"),
        *("seq", "value", "raised.due as raised_at"),
    )


def open_signals(signals: DataFrame) -> DataFrame:
    """Select the rows to carry: alarms that are raised or pending now, and those that are no longer."""
    return signals.where("is_kept").selectExpr(
        *("alarm", "severity", "bus", "path"),
        f"case when {_IS_RAISED} then 'raised' when {_IS_PENDING} then 'pending' else 'cleared' end as what",
        f"if({_IS_RAISED}, raised.due, ts) as ts",
        f"if({_IS_RAISED}, raised.seq, seq) as seq",
        f"case when {_IS_RAISED} then raised.value when {_IS_PENDING} then value end as value",
        f"if({_IS_RAISED}, raised.due, null) as raised_at",
    )


# -- what each alarm sees


def _seen_rows(alarms: tuple[Alarm, ...], events: DataFrame, clock: Clock) -> DataFrame:
    """Give a row for each alarm and event on which something changes for one of the alarms of its path."""
    is_sign = f"event in {SIGNS} and coalesce(kind, 'state') = 'state'"
    value = F.expr("if(event in ('add', 'change'), value, null) as value")
    rows = events.where(is_sign).select("bus", "path", "seq", "ts", value, _seen(alarms).alias("seen"))
    rows = clock.join_epochs(rows.where("seen != ''")).selectExpr("*", "xxhash64(bus, path) as key")
    in_path = "over (partition by key, bus, path order by seq)"
    rows = rows.selectExpr("*", f"lag(seen) {in_path} as before", f"lag(cut_seq) {in_path} as before_cut")
    rows = rows.where("before is null or before != seen or before_cut < seq")
    one = rows.selectExpr("*", "explode(split(seen, ',')) as one")
    sign = "substring(one, -1, 1)"
    return _with_cuts(
        one.selectExpr(
            *("bus", "path", "seq", "ts", "value", "cut_seq", "cut_ts"),
            "cast(substring(one, 1, length(one) - 1) as int) as place",
            *(f"{sign} = '+' as is_on", f"{sign} = '-' as is_off", "false as carried", "false as was_raised"),
        )
    )


@lru_cache(maxsize=8)
def _seen(alarms: tuple[Alarm, ...]) -> Column:
    """Say as text what all alarms see of a row. A batch builds its plan anew, but not this part of it."""
    return F.concat_ws(",", *[_seen_by(place, alarm) for place, alarm in enumerate(alarms)])


def _seen_by(place: int, alarm: Alarm) -> Column:
    """Say as text what an alarm sees of a row, null if its rule is not about the path."""
    is_alive = F.expr("event in ('add', 'change')")
    on = is_alive & F.coalesce(F.expr(alarm.when), F.lit(False))
    off = ~on if alarm.clear is None else ~on & (~is_alive | F.coalesce(F.expr(alarm.clear), F.lit(False)))
    return F.when(
        matches(alarm.rule, F.col("path")),
        F.when(on, F.lit(f"{place}+")).when(off, F.lit(f"{place}-")).otherwise(F.lit(f"{place}=")),
    )


def _carried_rows(alarms: tuple[Alarm, ...], carried: DataFrame, clock: Clock) -> DataFrame:
    """Turn open alarms into rows to go on from; those that are no longer in the file are forgotten."""
    rows = carried.where("what in ('raised', 'pending')").select("*", _place(alarms).alias("place"))
    return _with_cuts(
        clock.join_epochs(rows.where("place is not null")).selectExpr(
            *("bus", "path", "seq", "ts", "value", "cut_seq", "cut_ts", "place"),
            *("true as is_on", "false as is_off", "true as carried", "what = 'raised' as was_raised"),
        )
    )


def _with_cuts(rows: DataFrame) -> DataFrame:
    """Add to each row that a cut follows the end that the cut is for everything."""
    own = "struct(seq, ts, value, is_on, is_off, carried, was_raised)"
    cut = (
        "named_struct('seq', cut_seq, 'ts', cut_ts, 'value', cast(null as string), 'is_on', false, 'is_off', true, "
        "'carried', false, 'was_raised', false)"
    )
    both = rows.selectExpr(*_KEY, f"explode(if(cut_seq is null, array({own}), array({own}, {cut}))) as row")
    return both.selectExpr(*_KEY, "row.*")


# -- names, which may have any letters, are given as values and not as text of SQL


@lru_cache(maxsize=8)
def _place(alarms: tuple[Alarm, ...]) -> Column:
    """Look up the place of an alarm in its file."""
    places = F.create_map(*[F.lit(part) for place, alarm in enumerate(alarms) for part in (alarm.name, place)])
    return F.try_element_at(places, F.col("alarm"))


@lru_cache(maxsize=8)
def _names(alarms: tuple[Alarm, ...]) -> list[Column]:
    """Look up the name and the severity of the alarm at a place."""

    def texts(column: str) -> Column:
        listed = F.array(*[F.lit(getattr(alarm, column)) for alarm in alarms])
        return F.element_at(listed, F.col("place") + 1)

    return [texts("name").alias("alarm"), texts("severity").alias("severity")]
