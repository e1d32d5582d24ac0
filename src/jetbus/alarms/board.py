"""Board of alarms: the state of each alarm that is not normal, the acts of operators, and the log of both.

Signals come from ``signals``, acts from operators, time from the journal. Each of them makes a transition, which is
recorded; the board can be made again from its transitions. There is no I/O here.
"""

from __future__ import annotations

import string
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from jetbus.alarms.definitions import PRIORITIES, Alarm
from jetbus.alarms.lifecycle import Act, AlarmState, Known, step
from jetbus.alarms.signals import Signal
from jetbus.errors import Invalid
from jetbus.journal.instants import read_instant, write_instant
from jetbus.json_types import Json, JsonObject
from jetbus.rules import rule

__all__ = ["SHELVE_S_MAX", "AlarmBoard", "AlarmKey", "AlarmTarget"]

AlarmKey = tuple[str, str]
"""Name of an alarm, and path."""
SHELVE_S_MAX = 8 * 3600.0
"""Longest time for which an alarm is shelved, unless the command says otherwise."""
CHATTER_S = 600.0
CHATTERING = 5
"""An alarm chatters if it was raised so often within ``CHATTER_S``."""
RAISINGS_MAX = 1000
"""Times that are remembered of one alarm; one that was raised more often is counted so often."""
NOTE_CHARS_MAX = 1000
"""Characters of a note, of a name or of a filled-in message."""
_OF_SIGNAL = {"raised": Act.RAISE, "cleared": Act.CLEAR}
_ENDED = {AlarmState.SHELVED: Act.UNSHELVE}


class AlarmTarget(NamedTuple):
    """The alarms that an act is about: those that fit all that is given."""

    alarm: str | None = None
    path: str | None = None
    group: str | None = None
    priority: str | None = None


class _Entry:
    """An alarm at a path that is not normal, or that is raised."""

    def __init__(self, alarm: Alarm, path: str) -> None:
        self.alarm = alarm
        self.path = path
        self.state = AlarmState.NORMAL
        self.raised_us: int | None = None
        """When its condition was raised; None when it is not."""
        self.until_us: int | None = None
        """End of the time for which it is shelved."""
        self.newest: JsonObject = {}
        """Its newest transition."""
        self.value: Json = None
        self.unit: str | None = None
        self.message = ""
        self.raised_count = 0
        """Number of times that it was raised within ``CHATTER_S``, as of the last time."""

    @property
    def is_over(self) -> bool:
        return self.state is AlarmState.NORMAL and self.raised_us is None

    def describe(self) -> JsonObject:
        """Return the value to publish."""
        about = self.alarm
        told: JsonObject = {
            "state": self.state.value,
            "priority": about.priority,
            "rank": PRIORITIES.index(about.priority) + 1,
            "severity": about.severity,
            "group": about.group,
            "since": self.newest["at"],
            "raised_at": None if self.raised_us is None else write_instant(self.raised_us),
            "until": None if self.until_us is None else write_instant(self.until_us),
            "count": self.raised_count or None,
            "chattering": self.raised_count >= CHATTERING or None,
            "value": self.value,
            "unit": self.unit,
            "message": self.message,
            "help": about.help,
            "who": self.newest.get("who"),
            "note": self.newest.get("note"),
        }
        return {name: value for name, value in told.items() if value not in (None, "") or name == "value"}


class AlarmBoard:
    """States of alarms. ``on_transition`` is called with each transition, after the board has changed."""

    def __init__(
        self,
        alarms: Iterable[Alarm],
        on_transition: Callable[[AlarmKey, JsonObject], object],
        *,
        shelve_s_max: float = SHELVE_S_MAX,
    ) -> None:
        self._alarms = {alarm.name: alarm for alarm in alarms}
        self._entries: dict[AlarmKey, _Entry] = {}
        self._raisings: dict[AlarmKey, deque[int]] = {}
        """When alarms were raised within ``CHATTER_S``, normal ones included."""
        self._shelved: dict[AlarmKey, _Entry] = {}
        """Those that are shelved: every event asks when the next time is over."""
        self._on_transition = on_transition
        self._shelve_s_max = shelve_s_max

    def describe(self, key: AlarmKey) -> JsonObject | None:
        """Return the value to publish of an alarm; None if it is normal."""
        entry = self._entries.get(key)
        return None if entry is None or entry.state is AlarmState.NORMAL else entry.describe()

    def list_active(self) -> list[AlarmKey]:
        """Return the alarms that are not normal."""
        return [key for key, entry in self._entries.items() if entry.state is not AlarmState.NORMAL]

    def list_newest(self) -> list[JsonObject]:
        """Return the newest transition of each alarm that is not normal."""
        return [entry.newest for entry in self._entries.values() if entry.state is not AlarmState.NORMAL]

    def count(self) -> JsonObject:
        """Return the numbers of alarms by state, by priority and by group, the normal ones left out."""
        newest_us = max((times[-1] for times in self._raisings.values()), default=0)
        # Here, because it is called regularly: alarms that were quiet for long are forgotten.
        for key in [key for key, times in self._raisings.items() if times[-1] < newest_us - CHATTER_S * 1e6]:
            del self._raisings[key]
        active = [entry for entry in self._entries.values() if entry.state is not AlarmState.NORMAL]
        counts: JsonObject = {
            "state": dict(Counter(entry.state.value for entry in active)),
            "priority": dict(Counter(entry.alarm.priority for entry in active)),
            "group": dict(Counter(entry.alarm.group for entry in active if entry.alarm.group)),
        }
        chattering = sum(entry.raised_count >= CHATTERING for entry in active)
        return {"active": len(active), "chattering": chattering, **counts}

    @property
    def oldest(self) -> str | None:
        """Instant of the oldest transition that the board rests on; None if all alarms are normal."""
        return min((str(entry.newest["at"]) for entry in self._entries.values()), default=None)

    # -- signals and time

    def signal(self, signal: Signal, now_us: int) -> None:
        """Note that an alarm was raised or cleared; it is a transition even if the state stays."""
        entry = self._find(signal.alarm, signal.path)
        if signal.what == "raised":
            entry.value, entry.unit = signal.value, signal.unit
            entry.message = fill_message(signal)
            entry.raised_count = self._count_raisings((signal.alarm.name, signal.path), signal.ts_us)
        self._step(entry, _OF_SIGNAL[signal.what], _raised_after(signal))
        self._log(
            entry,
            now_us,
            {
                "what": signal.what,
                "ts": write_instant(signal.ts_us),
                "seq": signal.seq,
                "value": signal.value,
                "unit": signal.unit,
                "raised_at": write_instant(signal.raised_us),
                "message": entry.message or None,
                "count": entry.raised_count or None,
                "chattering": entry.raised_count >= CHATTERING or None,
            },
        )

    def _count_raisings(self, key: AlarmKey, ts_us: int) -> int:
        """Return how often an alarm was raised within ``CHATTER_S``, this time included."""
        times = self._raisings.setdefault(key, deque(maxlen=RAISINGS_MAX))
        times.append(ts_us)
        while times[0] < ts_us - CHATTER_S * 1e6:
            times.popleft()
        return len(times)

    @property
    def next_end_us(self) -> int | None:
        """The instant at which the next alarm is no longer shelved."""
        return min((one.until_us for one in self._shelved.values() if one.until_us is not None), default=None)

    def advance(self, now_us: int) -> None:
        """End the shelving of alarms whose time is over."""
        due = [one for one in self._shelved.values() if one.until_us is not None and one.until_us <= now_us]
        for entry in due:
            self._act(entry, _ENDED[entry.state], now_us, {"note": "the time is over"})

    # -- acts

    def act(
        self, act: Act, target: AlarmTarget, now_us: int, *, minutes: float | None = None, note: str = "", who: str = ""
    ) -> list[AlarmKey]:
        """Do something with all alarms of a target; return those that it changed."""
        if len(note) > NOTE_CHARS_MAX or len(who) > NOTE_CHARS_MAX:
            raise Invalid("note", f"a note has at most {NOTE_CHARS_MAX} characters")
        until_us = None
        if act is Act.SHELVE:
            until_us = now_us + round(self._check_minutes(minutes) * 60e6)
        changed = []
        for entry in self._select(target, may_be_normal=act in (Act.SHELVE, Act.DISABLE)):
            entry_note = {"note": note or None, "who": who or None}
            if self._act(entry, act, now_us, entry_note, until_us):
                changed.append((entry.alarm.name, entry.path))
        return changed

    def comment(self, target: AlarmTarget, now_us: int, note: str, who: str = "") -> list[AlarmKey]:
        """Add a note to all alarms of a target."""
        if not note or len(note) > NOTE_CHARS_MAX:
            raise Invalid("note", f"a comment has 1 to {NOTE_CHARS_MAX} characters")
        chosen = self._select(target, may_be_normal=False)
        for entry in chosen:
            self._log(entry, now_us, {"what": "comment", "note": note, "who": who or None})
        return [(entry.alarm.name, entry.path) for entry in chosen]

    def _check_minutes(self, minutes: float | None) -> float:
        most = self._shelve_s_max / 60
        if minutes is None or not 0 < minutes <= most:
            raise Invalid("minutes", f"an alarm is shelved for more than 0 and at most {most:g} minutes")
        return minutes

    def _select(self, target: AlarmTarget, *, may_be_normal: bool) -> list[_Entry]:
        if not any(target):
            raise Invalid("alarm", "say which alarms: alarm, path, group or priority")
        if target.alarm is not None and target.alarm not in self._alarms:
            raise Invalid("alarm", f"there is no alarm {target.alarm!r}; there are {', '.join(self._alarms)}")
        wanted = None if target.path is None else rule(target.path)
        found = [
            entry
            for entry in self._entries.values()
            if (target.alarm is None or entry.alarm.name == target.alarm)
            and (wanted is None or wanted.matches_path(entry.path))
            and (target.group is None or entry.alarm.group == target.group)
            and (target.priority is None or entry.alarm.priority == target.priority)
            and (may_be_normal or entry.state is not AlarmState.NORMAL)
        ]
        if may_be_normal and not found and target.alarm is not None and target.path is not None:
            alarm = self._alarms[target.alarm]
            if alarm.rule.matches_path(target.path):
                found.append(self._find(alarm, target.path))
        return found

    # -- the way of all transitions

    def _find(self, alarm: Alarm, path: str) -> _Entry:
        return self._entries.setdefault((alarm.name, path), _Entry(alarm, path))

    def _step(self, entry: _Entry, act: Act, raised_us: int | None) -> bool:
        entry.raised_us = raised_us
        following = step(entry.state, act, Known(raised_us is not None, entry.alarm.latch))
        if following is None:
            return False
        entry.state = following
        self._set_end(entry, None)
        return True

    def _set_end(self, entry: _Entry, until_us: int | None) -> None:
        """Note until when an alarm is shelved, None if it is not."""
        entry.until_us = until_us
        if until_us is None:
            self._shelved.pop((entry.alarm.name, entry.path), None)
        else:
            self._shelved[entry.alarm.name, entry.path] = entry

    def _act(self, entry: _Entry, act: Act, now_us: int, about: JsonObject, until_us: int | None = None) -> bool:
        if not self._step(entry, act, entry.raised_us):
            return False
        self._set_end(entry, until_us)
        self._log(entry, now_us, {"what": act.value, **about})
        return True

    def _log(self, entry: _Entry, now_us: int, about: JsonObject) -> None:
        key = entry.alarm.name, entry.path
        # All that the board knows must be in the log, from which it is made again.
        instants = {"raised_at": entry.raised_us, "until": entry.until_us}
        known = {name: write_instant(at_us) for name, at_us in instants.items() if at_us is not None}
        told = {
            "alarm": entry.alarm.name,
            "path": entry.path,
            "state": entry.state.value,
            "severity": entry.alarm.severity,
            "priority": entry.alarm.priority,
            "group": entry.alarm.group or None,
            "at": write_instant(now_us),
            **known,
            **about,
        }
        entry.newest = {name: value for name, value in told.items() if value is not None or name == "value"}
        if entry.is_over:
            del self._entries[key]
        self._on_transition(key, entry.newest)

    def restore(self, transitions: Sequence[JsonObject]) -> list[tuple[AlarmKey, int | None, int]]:
        """Make the board again from its transitions, oldest first; return the newest signal of each alarm.

        A signal is the alarm, when it was raised (None if it was cleared), and the seq of its event.
        """
        signals: dict[AlarmKey, tuple[int | None, int]] = {}
        for told in transitions:
            alarm = self._alarms.get(str(told.get("alarm")))
            if alarm is None:
                continue
            key = alarm.name, str(told["path"])
            entry = self._find(*(alarm, key[1]))
            entry.state, entry.newest = AlarmState(str(told["state"])), told
            self._set_end(entry, read_instant(str(told["until"])) if "until" in told else None)
            if told["what"] in _OF_SIGNAL:
                is_raised = told["what"] == "raised"
                entry.raised_us = read_instant(str(told["raised_at"])) if is_raised else None
                signals[key] = entry.raised_us, int(str(told["seq"]))
                if is_raised:
                    entry.value, entry.unit = told.get("value"), _text(told.get("unit"))
                    entry.message = _text(told.get("message")) or ""
                    entry.raised_count = self._count_raisings(key, read_instant(str(told["ts"])))
            if entry.is_over:
                del self._entries[key]
        return [(key, raised_us, seq) for key, (raised_us, seq) in signals.items()]


def _raised_after(signal: Signal) -> int | None:
    return signal.raised_us if signal.what == "raised" else None


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def fill_message(signal: Signal) -> str:
    """Return the message of an alarm with its values filled in, such as ``{value}``."""
    known = {"alarm": signal.alarm.name, "path": signal.path, "value": signal.value, "unit": signal.unit or ""}
    text = signal.alarm.message
    # Only plain names: a format such as {value.__class__} reaches where a message has no business.
    parts = []
    for literal, name, _, _ in string.Formatter().parse(text):
        shown = "" if name is None else str(known[name]) if name in known else f"{{{name}}}"
        parts.append(literal + shown)
    return "".join(parts)[:NOTE_CHARS_MAX]
