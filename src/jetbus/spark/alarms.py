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
``bus``, ``peer``, ``quality``, ``source_ts``; and what the description of the state said when the value came: ``unit``,
``minimum``, ``maximum``, ``normal_low``, ``normal_high``, ``stale_s``. Some conditions are written as words: ``bad``,
``outside normal``, ``stale``.

    value        70    85     88    78     72              when = "num > 80", clear = "num < 75"
    seen          -     +      +     =      -              + on, - off, = neither
    changes       -     +            =      -              only rows on which something changes go on
    signals             raised (if 85 and 88 last)   cleared

A state is stale when no value has come for the time that its description says. So each value ends what was before it
and begins to wait, as for a hold time: it is seen as ``-`` and ``~``, which are two rows.

Carried from batch to batch is one row for each alarm that is raised, or pending for its hold time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from jetbus.journal.instants import read_duration
from jetbus.rules import Rule
from jetbus.spark.clock import BatchClock
from jetbus.spark.elements import KEY, MEMBERS, SCHEMA, known_rows, with_descriptions
from jetbus.spark.entries import check_condition, read_entries
from jetbus.spark.path_rules import matches, path_rule
from jetbus.spark.schemas import DOC, TABLES, Column
from jetbus.spark.spark_errors import BadAlarm
from jetbus.spark.sql_text import condition, quote, run, select, write_map
from jetbus.spark.timeline import SIGNS

__all__ = [
    "Alarm",
    "alarm_signals",
    "check_alarms",
    "new_signals",
    "newest_signals",
    "open_signals",
    "read_alarms",
]

_WORDS = ("rule", "when", "clear", "hold", "severity")
_STALE = "stale"
_SHORT: dict[Any, str] = {
    "bad": "quality = 'bad'",
    "uncertain": "quality = 'uncertain'",
    "good": "coalesce(quality, 'good') = 'good'",
    "outside normal": "num < normal_low or num > normal_high",
    _STALE: "stale_s is not null",
}
"""Conditions that are written in words; one that is stale has to wait for that, besides."""
_EVENT = (*TABLES["events"].columns, DOC)
_DESCRIPTION = tuple(Column(name, "string" if name == "unit" else "double", "") for name in MEMBERS)
"""Columns that conditions see: of the event, and of the description of its state."""
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
    is_stale: bool = False
    """True if values for which ``when`` holds have to become stale first."""


def read_alarms(file: str | Path) -> tuple[Alarm, ...]:
    """Read the alarms of a TOML file."""
    words = dict.fromkeys(_WORDS, str)
    entries = read_entries(file, "alarm", words, BadAlarm, most=ALARMS_MAX, instead="merge some by wider rules")
    return tuple(_read_alarm(name, entry) for name, entry in entries.items())


def _read_alarm(name: str, entry: dict[str, Any]) -> Alarm:
    if "when" not in entry:
        raise BadAlarm(name, 'it needs a condition; add when = "num > 80" or the like')
    try:
        rule = path_rule(entry.get("rule", "**"))
        hold_us = round(read_duration(entry.get("hold", "0s")) * 1e6)
    except ValueError as problem:
        raise BadAlarm(name, getattr(problem, "problem", str(problem))) from problem
    when, clear = entry["when"], entry.get("clear")
    if clear is not None and _STALE in (when, clear):
        raise BadAlarm(name, "a state is no longer stale when its next value comes; leave clear out")
    severity = entry.get("severity", "alarm")
    return Alarm(name, rule, _SHORT.get(when, when), _SHORT.get(clear, clear), hold_us, severity, when == _STALE)


def check_alarms(wanted: tuple[Alarm, ...], spark: SparkSession) -> None:
    """Refuse conditions that Spark does not understand, before anything runs."""
    for alarm in wanted:
        for word, text in (("when", alarm.when), ("clear", alarm.clear)):
            if text is not None:
                check_condition(spark, (*_EVENT, *_DESCRIPTION), alarm.name, word, text, BadAlarm)


# -- the stage

_KEY = ("place", "bus", "path")
# A value of a state that can be stale has two rows, of which the one that ends comes first.
_ALARM = "over (partition by place, bus, path order by seq, is_on"
_IN_ORDER = f"{_ALARM})"
_SO_FAR = f"{_ALARM} rows between unbounded preceding and current row)"
_EARLIER = f"{_ALARM} rows between unbounded preceding and 1 preceding)"

_IS_RAISED = "coalesce(state = 'raised', false)"
_IS_PENDING = f"(not {_IS_RAISED} and coalesce(signal = 'pending', false))"
"""True if an alarm is raised, or pending, after its last row."""


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
    states = _described_states(alarms, clock, has_known=known is not None) if has_schemas else _plain_states(clock)
    rows = _seen_rows(alarms, states)
    if carried is not None:
        rows = f"{rows} union all {_carried_rows(alarms, clock)}"
    was_on = f"coalesce(lag(is_on) {_IN_ORDER}, false)"
    rows = select(rows, "*", f"is_on and not {was_on} as begins", f"not is_on and {was_on} as ends")
    # What follows the begin of a run is its end: rows on which an alarm just goes on are of no interest.
    rows = clock.join_now(select(rows, "*", where="begins or ends or is_off or carried"))
    hold_us = f"element_at(array({', '.join(f'{alarm.hold_us}L' for alarm in alarms)}), place + 1)"
    rows = select(
        rows,
        "*",
        f"coalesce(lead(ts) {_IN_ORDER}, now) as lasts_until",
        f"lead(ts) {_IN_ORDER} is null as goes_on",
        # A row that was carried as raised has the instant of that as its ts; its hold time is over.
        f"if(was_raised, ts, timestamp_micros(unix_micros(ts) + {hold_us} + stale_us)) as due",
    )
    rows = select(
        rows,
        "*",
        """case when was_raised or (begins and lasts_until >= due) then 'raised'
                when begins and goes_on then 'pending'
                when is_off then 'cleared' end as signal""",
    )
    # To be pending decides nothing: the state is that of the last row on which the alarm was raised or cleared.
    decided = "if(signal = 'pending', null, signal)"
    rows = select(
        rows,
        "*",
        f"coalesce(last({decided}, true) {_EARLIER} = 'raised', false) as was_on_before",
        f"last({decided}, true) {_SO_FAR} as state",
        f"max(carried) {_SO_FAR} as was_carried",
        f"lead(seq) {_IN_ORDER} is null as is_last",
    )
    rows = select(
        rows,
        "*",
        "coalesce(case signal when 'raised' then not was_on_before when 'cleared' then was_on_before end, false)"
        " as is_new",
    )
    rows = select(
        rows,
        "*",
        "last(if(is_new and signal = 'raised', struct(seq, value, unit, due, was_raised), null), true) "
        f"{_SO_FAR} as raised",
    )
    # A row is carried only if it says something else than the one that was carried before.
    changed = f"case when {_IS_RAISED} then not raised.was_raised when {_IS_PENDING} then not carried end"
    rows = select(
        rows,
        "*",
        "is_new and not (signal = 'raised' and was_raised) as is_reported",
        f"is_last and coalesce({changed}, was_carried) as is_carried",
    )
    names = [
        f"element_at(array({', '.join(quote(text) for text in texts)}), place + 1) as {column}"
        for column, texts in (
            ("alarm", [alarm.name for alarm in alarms]),
            ("severity", [alarm.severity for alarm in alarms]),
        )
    ]
    rows = select(rows, "*", *names, where="is_reported or is_carried")
    return clock.run(rows, events=events, carried=carried, known=known)


_NEW = (
    *("alarm", "severity", "bus", "path", "signal as what", "if(signal = 'raised', due, ts) as ts"),
    *("seq", "value", "unit", "raised.due as raised_at"),
)


def new_signals(signals: DataFrame) -> DataFrame:
    """Select the rows of the table of alarms: those that were raised, and those that were cleared."""
    return run(select("{signals}", *_NEW, where="is_reported"), signals=signals)


def open_signals(signals: DataFrame) -> DataFrame:
    """Select the rows to carry: alarms that are raised or pending now, and those that are no longer."""
    columns = (
        *("alarm", "severity", "bus", "path"),
        f"case when {_IS_RAISED} then 'raised' when {_IS_PENDING} then 'pending' else 'cleared' end as what",
        f"if({_IS_RAISED}, raised.due, ts) as ts",
        f"if({_IS_RAISED}, raised.seq, seq) as seq",
        *(
            f"case when {_IS_RAISED} then raised.{name} when {_IS_PENDING} then {name} end as {name}"
            for name in ("value", "unit")
        ),
        f"if({_IS_RAISED}, raised.due, null) as raised_at",
        f"if({_IS_PENDING}, stale_us, null) as stale_us",
    )
    return run(select("{signals}", *columns, where="is_carried"), signals=signals)


def newest_signals(signals: DataFrame) -> DataFrame:
    """Select the newest row to publish of each alarm and path, null if there is none, and count both kinds of rows."""
    rows = select("{signals}", "is_reported", "is_carried", *_NEW)
    newest = select(
        rows,
        *("alarm", "bus", "path", "count_if(is_reported) as reported", "count_if(is_carried) as carried"),
        "max_by(struct(what, severity, ts, raised_at, value, unit), struct(seq, ts)) filter (where is_reported)"
        " as newest",
        group="alarm, bus, path",
    )
    return run(newest, signals=signals)


# -- what each alarm sees


_IS_STATE = "coalesce(kind, 'state') = 'state'"
_IS_ALIVE = "event in ('add', 'change')"


def _plain_states(clock: BatchClock) -> str:
    """Select the signs of life of states that nobody has described."""
    rows = select("{events}", "*", where=f"event in {SIGNS} and {_IS_STATE}")
    nothing = [f"cast(null as {column.type}) as {column.name}" for column in _DESCRIPTION]
    return select(clock.join_epochs(rows), "*", KEY, *nothing)


def _described_states(alarms: tuple[Alarm, ...], clock: BatchClock, *, has_known: bool) -> str:
    """Select the signs of life of states with the members of the description that was valid then."""
    # Chosen by path before they are sorted: an alarm for a few states need not sort all of them.
    is_watched = f"{_IS_STATE} and ({' or '.join(f'coalesce({matches(alarm.rule)}, false)' for alarm in alarms)})"
    columns = (*_EVENT, Column("schema", "string", ""), Column("carried", "boolean", ""))
    names = [column.name for column in _EVENT]
    is_sign = f"event in {(*SIGNS, 'describe')}"
    rows = select("{events}", *names, SCHEMA, "false as carried", where=f"{is_sign} and {is_watched}")
    if has_known:
        rows = f"{rows} union all {select(known_rows(columns), '*', where=is_watched)}"
    described = with_descriptions(select(clock.join_epochs(rows), "*", KEY))
    return select(described, "*", *(f"{text} as {name}" for name, text in MEMBERS.items()))


def _seen_rows(alarms: tuple[Alarm, ...], states: str) -> str:
    """Select a row for each alarm and event on which something changes for one of the alarms of its path."""
    # All alarms look at a row in one pass, and what they see is one text such as ``0+,3-``. Rows with the same text as
    # the one before change nothing, and most rows are left out by that before they are multiplied by alarms.
    seen = f"concat_ws(',', {', '.join(_seen_by(place, alarm) for place, alarm in enumerate(alarms))}) as seen"
    value = (f"if({_IS_ALIVE}, {name}, null) as {name}" for name in ("value", "unit"))
    stale_us = "cast(stale_s * 1e6D as bigint) as stale_us"
    rows = select(states, "bus", "path", "seq", "ts", *value, "cut_seq", "cut_ts", "key", stale_us, seen)
    rows = select(rows, "*", where="seen != ''")
    in_path = "over (partition by key, bus, path order by seq)"
    rows = select(rows, "*", f"lag(seen) {in_path} as before", f"lag(cut_seq) {in_path} as before_cut")
    is_news = "before is null or before != seen or before_cut < seq or contains(seen, '~')"
    rows = select(rows, "*", "explode(split(seen, ',')) as one", where=is_news)
    rows = select(rows, "* except (one)", "substring(one, -1, 1) as sign", "substring(one, 1, length(one) - 1) as n")
    return _with_cuts(
        select(
            rows,
            *("bus", "path", "seq", "ts", "value", "unit", "cut_seq", "cut_ts", "cast(n as int) as place"),
            *("sign in ('+', '~') as is_on", "sign = '-' as is_off", "if(sign = '~', stale_us, 0L) as stale_us"),
            *("false as carried", "false as was_raised"),
        )
    )


def _seen_by(place: int, alarm: Alarm) -> str:
    """Say as text what an alarm sees of a row, null if its rule is not about the path."""
    off = "true" if alarm.clear is None else f"(not {_IS_ALIVE} or coalesce({condition(alarm.clear)}, false))"
    on = f"{place}-,{place}~" if alarm.is_stale else f"{place}+"
    return (
        f"case when not {matches(alarm.rule)} then null "
        f"when {_IS_ALIVE} and coalesce({condition(alarm.when)}, false) then '{on}' "
        f"when {off} then '{place}-' else '{place}=' end"
    )


def _carried_rows(alarms: tuple[Alarm, ...], clock: BatchClock) -> str:
    """Turn open alarms into rows to go on from; those that are no longer in the file are forgotten."""
    # By name, since the order of the alarms in the file may have changed since the last run.
    places = write_map({alarm.name: str(place) for place, alarm in enumerate(alarms)})
    rows = select("{carried}", "*", f"{places}[alarm] as place", where="what in ('raised', 'pending')")
    return _with_cuts(
        select(
            clock.join_epochs(select(rows, "*", where="place is not null")),
            *("bus", "path", "seq", "ts", "value", "unit", "cut_seq", "cut_ts", "place"),
            *("true as is_on", "false as is_off", "coalesce(stale_us, 0L) as stale_us"),
            *("true as carried", "what = 'raised' as was_raised"),
        )
    )


def _with_cuts(rows: str) -> str:
    """Add to each row that a cut follows the end that the cut is for everything."""
    own = "struct(seq, ts, value, unit, is_on, is_off, stale_us, carried, was_raised)"
    cut = (
        "named_struct('seq', cut_seq, 'ts', cut_ts, 'value', cast(null as string), 'unit', cast(null as string), "
        "'is_on', false, 'is_off', true, 'stale_us', 0L, 'carried', false, 'was_raised', false)"
    )
    both = select(rows, *_KEY, f"explode(if(cut_seq is null, array({own}), array({own}, {cut}))) as row")
    return select(both, *_KEY, "row.*")
