"""Signals: when alarms are raised and cleared, from one event after the other.

The live twin of ``spark/sql/alarm_signals.sql``, with the same drawing. There is no clock and no I/O here: events bring
their time, and ``advance`` says how far time has come without one.

    value        70    85     88    78     72              when = "num > 80", clear = "num < 75"
    seen          -     +      +     =      -              + on, - off, = neither
    run                 begins       ends                  of values for which the condition holds
    signals             raised (once hold is over)   cleared

A state is stale when no value has come for the time that its description says. So each value ends the run before it
and begins one, whose hold time is longer by that.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from jetbus.alarms.conditions import Condition, NotLive, compile_condition
from jetbus.alarms.definitions import Alarm
from jetbus.alarms.rows import UNDESCRIBED, make_row, read_description
from jetbus.entries import BadEntry
from jetbus.json_types import Json

__all__ = ["LiveAlarm", "Signal", "Signals", "WatchedEvent", "compile_alarms"]


class LiveAlarm(NamedTuple):
    """An alarm with its conditions as functions."""

    about: Alarm
    when: Condition
    clear: Condition | None


def compile_alarms(alarms: Iterable[Alarm]) -> tuple[LiveAlarm, ...]:
    """Compile the conditions of alarms; raise ``BadEntry`` with the reason for one that cannot be live."""
    return tuple(LiveAlarm(one, *_compile_both(one)) for one in alarms)


def _compile_both(alarm: Alarm) -> tuple[Condition, Condition | None]:
    compiled = []
    for word, text in (("when", alarm.when), ("clear", alarm.clear)):
        try:
            compiled.append(None if text is None else compile_condition(text))
        except NotLive as problem:
            raise BadEntry(f"{word} = {text!r} cannot be live: {problem}", alarm.name, "alarm") from None
    when, clear = compiled
    assert when is not None  # noqa: S101
    return when, clear


class WatchedEvent(NamedTuple):
    """An event as the journal has it."""

    seq: int
    ts_us: int
    event: str
    path: str
    value: Json = None
    quality: str | None = None
    schema: Json = None
    """Description that comes with an add or a describe."""


class Signal(NamedTuple):
    """An alarm that is raised or cleared at a path: a row of the table of alarms."""

    alarm: Alarm
    path: str
    what: str
    ts_us: int
    seq: int
    value: Json
    unit: str | None
    raised_us: int


class _Run(NamedTuple):
    """A run of values for which the condition holds, from its first one."""

    seq: int
    ts_us: int
    due_us: int
    value: Json
    unit: str | None


class _Watched:
    """Progress of one alarm at one path."""

    __slots__ = ("from_seq", "is_on", "raised_us", "run")

    def __init__(self) -> None:
        self.run: _Run | None = None
        """The run that waits for the end of its hold time."""
        self.is_on = False
        self.raised_us: int | None = None
        """When the alarm was raised, None while it is not."""
        self.from_seq = 0
        """First event to look at: those before it are part of what is known."""

    @property
    def is_idle(self) -> bool:
        return not self.is_on and self.raised_us is None


class Signals:
    """Signals of some alarms on one bus."""

    def __init__(self, alarms: Sequence[LiveAlarm], bus: str) -> None:
        self._alarms = alarms
        self._bus = bus
        self._about_path: dict[str, list[int]] = {}
        """Places of the alarms about each path that is there."""
        self._descriptions: dict[str, Json] = {}
        self._watched: dict[tuple[int, str], _Watched] = {}
        """Alarms that are raised, or whose condition holds."""
        self._due: list[tuple[int, int, int, str]] = []
        """Ends of hold times as a heap: instant, seq, place and path; some are out of date."""
        self._places = {one.about.name: place for place, one in enumerate(alarms)}

    @property
    def next_due_us(self) -> int | None:
        """The instant at which the next hold time may end."""
        self._drop_outdated()
        return self._due[0][0] if self._due else None

    @property
    def oldest_run(self) -> tuple[int, int] | None:
        """Seq and instant of the first event of the oldest run that waits for the end of its hold time."""
        runs = (one.run for one in self._watched.values() if one.run is not None)
        return min(((run.seq, run.ts_us) for run in runs), default=None)

    def resume(self, alarm: str, path: str, raised_us: int | None, seq: int) -> None:
        """Go on from a signal of an earlier run: the alarm was raised by the event ``seq``, or cleared by it."""
        place = self._places.get(alarm)
        if place is None:
            return
        watched = self._watched[place, path] = _Watched()
        watched.raised_us = raised_us
        watched.is_on = raised_us is not None
        # A value that cleared a stale state may begin to be stale itself.
        watched.from_seq = seq if raised_us is None else seq + 1

    def describe(self, path: str, schema: Json) -> None:
        """Note the description of a state, which was there before the first event."""
        if schema is not None:
            self._descriptions[path] = schema

    def feed(self, event: WatchedEvent) -> list[Signal]:
        """Return the signals up to and by an event."""
        found = self.advance(event.ts_us)
        path = event.path
        if event.event in ("add", "describe", "remove"):
            self._descriptions.pop(path, None)
            self.describe(path, event.schema)
        if event.event == "describe":
            return found
        places = self._about_path.get(path)
        if places is None:
            places = self._about_path[path] = [
                place for place, one in enumerate(self._alarms) if one.about.rule.matches_path(path)
            ]
        if not places:
            return found
        is_alive = event.event != "remove"
        description = read_description(self._descriptions[path]) if path in self._descriptions else UNDESCRIBED
        row = make_row(self._bus, path, event.value, event.quality, description)
        for place in places:
            alarm = self._alarms[place]
            is_on = is_alive and alarm.when(row)
            is_off = not is_on and (alarm.clear is None or not is_alive or alarm.clear(row))
            stale_us = round((row.stale_s or 0.0) * 1e6) if alarm.about.is_stale else 0
            unit = row.unit if is_alive else None
            found += self._see(place, event, unit, is_on, is_off, stale_us if is_on else None)
        if not is_alive:
            del self._about_path[path]
        return found

    def _see(
        self, place: int, event: WatchedEvent, unit: str | None, is_on: bool, is_off: bool, stale_us: int | None
    ) -> list[Signal]:
        key, alarm = (place, event.path), self._alarms[place].about
        watched = self._watched.get(key)
        if watched is None:
            if not is_on:
                return []
            watched = self._watched[key] = _Watched()
        if event.seq < watched.from_seq:
            return []
        found = []
        value = event.value if event.event != "remove" else None
        # A value that may become stale ends what was before it.
        if watched.raised_us is not None and (is_off or (is_on and alarm.is_stale)):
            found = [Signal(alarm, event.path, "cleared", event.ts_us, event.seq, value, unit, watched.raised_us)]
            watched.raised_us = None
        if is_on and (not watched.is_on or alarm.is_stale):
            due_us = event.ts_us + alarm.hold_us + (stale_us or 0)
            watched.run = _Run(event.seq, event.ts_us, due_us, value, unit)
            if due_us > event.ts_us:
                heapq.heappush(self._due, (due_us, event.seq, place, event.path))
            else:
                found += self._raise(place, event.path, watched)
        elif not is_on:
            watched.run = None
        watched.is_on = is_on
        if watched.is_idle and event.seq >= watched.from_seq:
            del self._watched[key]
        return found

    def _raise(self, place: int, path: str, watched: _Watched) -> list[Signal]:
        """Return the signal of a run whose hold time is over, unless the alarm is raised already."""
        run, watched.run = watched.run, None
        if run is None or watched.raised_us is not None:
            return []
        watched.raised_us = run.due_us
        alarm = self._alarms[place].about
        return [Signal(alarm, path, "raised", run.due_us, run.seq, run.value, run.unit, run.due_us)]

    def advance(self, now_us: int) -> list[Signal]:
        """Return the signals of hold times that end up to an instant, given that no earlier event will come."""
        found: list[Signal] = []
        while self._due and self._due[0][0] <= now_us:
            _, seq, place, path = heapq.heappop(self._due)
            watched = self._watched.get((place, path))
            if watched is not None and watched.run is not None and watched.run.seq == seq:
                found += self._raise(place, path, watched)
        return found

    def cut(self, seq: int, ts_us: int) -> list[Signal]:
        """Return the signals by the end of all values: the daemon has stopped, or its record has a gap."""
        found = self.advance(ts_us)
        for (place, path), watched in self._watched.items():
            if watched.raised_us is not None and seq >= watched.from_seq:
                alarm = self._alarms[place].about
                found.append(Signal(alarm, path, "cleared", ts_us, seq, None, None, watched.raised_us))
        kept = {key: one for key, one in self._watched.items() if one.from_seq > seq}
        self._watched, self._due, self._about_path, self._descriptions = kept, [], {}, {}
        return found

    def _drop_outdated(self) -> None:
        while self._due:
            _, seq, place, path = self._due[0]
            watched = self._watched.get((place, path))
            if watched is not None and watched.run is not None and watched.run.seq == seq:
                return
            heapq.heappop(self._due)
