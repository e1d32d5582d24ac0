"""States and acts of alarms, against a model that keeps only what was said."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jetbus.alarms import Alarm
from jetbus.alarms.board import CHATTERING, AlarmBoard, AlarmTarget
from jetbus.alarms.lifecycle import Act, AlarmState, Known, step
from jetbus.alarms.signals import Signal
from jetbus.errors import Invalid
from jetbus.rules import rule as make_rule

ALARMS = (
    Alarm("hot", make_rule("p/**"), "num > 80", priority="high", group="heat", message="{path}: {value}{unit} {x}"),
    Alarm("leak", make_rule("**"), "flag", latch=True),
)
_PATHS = ("p/a", "p/b")
_ALARM = st.sampled_from(ALARMS)


def test_the_table_has_no_dead_end() -> None:
    """From every state there is a way back to normal once the condition is gone."""
    for latch in (False, True):
        known = Known(is_raised=False, latch=latch)
        for state in AlarmState:
            reached = {state}
            while AlarmState.NORMAL not in reached:
                following = {step(one, act, known) for one in reached for act in Act if act is not Act.RAISE} - {None}
                assert not following <= reached, state
                reached |= {one for one in following if one is not None}


class Operators(RuleBasedStateMachine):
    """A board, and a model of it: what is raised, silenced and still to be acknowledged."""

    @initialize()
    def begin(self) -> None:
        self.log: list[Any] = []
        self.now_us = 1_000_000
        self.board = AlarmBoard(ALARMS, lambda _key, told: self.log.append(told), shelve_s_max=600)
        self.raised: set[tuple[str, str]] = set()
        self.asks: set[tuple[str, str]] = set()
        """Alarms that nobody has acknowledged since they were raised last."""
        self.latched: set[tuple[str, str]] = set()
        self.silent: dict[tuple[str, str], int | None] = {}

    def _key(self, alarm: Alarm, path: str) -> tuple[str, str]:
        return alarm.name, path

    @rule(alarm=_ALARM, path=st.sampled_from(_PATHS), again=st.booleans())
    def condition(self, alarm: Alarm, path: str, again: bool) -> None:
        """The condition comes or goes, perhaps twice within one instant."""
        key = self._key(alarm, path)
        for _ in range(2 if again else 1):
            what = "cleared" if key in self.raised else "raised"
            self.board.signal(Signal(alarm, path, what, self.now_us, 1, 90, "Cel", self.now_us), self.now_us)
            if what == "raised":
                self.raised.add(key)
                if key not in self.silent:
                    self.asks.add(key)
                    self.latched.discard(key)
            else:
                self.raised.discard(key)
                if key not in self.silent and alarm.latch:
                    self.latched.add(key)

    @rule(alarm=_ALARM, path=st.sampled_from(_PATHS))
    def ack(self, alarm: Alarm, path: str) -> None:
        """Somebody acknowledges one alarm."""
        self.board.act(Act.ACK, AlarmTarget(alarm.name, path), self.now_us, note="seen", who="ann")
        key = self._key(alarm, path)
        if key not in self.silent:
            self.asks.discard(key)
            self.latched.discard(key)

    @rule(alarm=_ALARM, path=st.sampled_from(_PATHS), minutes=st.integers(1, 10), for_good=st.booleans())
    def silence(self, alarm: Alarm, path: str, minutes: int, for_good: bool) -> None:
        """Somebody shelves an alarm, or takes it out of service, which nothing but an act ends."""
        key = self._key(alarm, path)
        if for_good:
            self.board.act(Act.DISABLE, AlarmTarget(alarm.name, path), self.now_us)
        else:
            self.board.act(Act.SHELVE, AlarmTarget(alarm.name, path), self.now_us, minutes=minutes)
        if for_good or self.silent.get(key, 0) is not None:
            self.silent[key] = None if for_good else self.now_us + minutes * 60_000_000
            self.asks.discard(key)
            self.latched.discard(key)

    @rule(alarm=_ALARM, path=st.sampled_from(_PATHS), act=st.sampled_from((Act.UNSHELVE, Act.ENABLE)))
    def end_silence(self, alarm: Alarm, path: str, act: Act) -> None:
        """Somebody ends the silence of an alarm."""
        self.board.act(act, AlarmTarget(alarm.name, path), self.now_us)
        key = self._key(alarm, path)
        if key in self.silent and (self.silent[key] is None) is (act is Act.ENABLE):
            self._speak(key)

    def _speak(self, key: tuple[str, str]) -> None:
        del self.silent[key]
        if key in self.raised:
            self.asks.add(key)

    @rule(minutes=st.integers(0, 12))
    def pass_time(self, minutes: int) -> None:
        """Time passes."""
        self.now_us += minutes * 60_000_000
        self.board.advance(self.now_us)
        for key, until_us in list(self.silent.items()):
            if until_us is not None and until_us <= self.now_us:
                self._speak(key)

    @rule()
    def restart(self) -> None:
        """The process is killed; the next one knows all from the log."""
        before, told = self._states(), list(self.log)
        self.board = AlarmBoard(ALARMS, lambda _key, told: self.log.append(told), shelve_s_max=600)
        self.board.restore(told)
        assert self._states() == before
        assert self.log == told

    def _states(self) -> dict[tuple[str, str], Any]:
        return {key: self.board.describe(key) for key in self.board.list_active()}

    @invariant()
    def is_as_said(self) -> None:
        """Every alarm is in the state that follows from what was said."""
        for alarm in ALARMS:
            for path in _PATHS:
                key = self._key(alarm, path)
                told = self.board.describe(key)
                assert (told["state"] if told else "normal") == self._wanted(key)

    def _wanted(self, key: tuple[str, str]) -> str:
        if key in self.silent:
            return "out_of_service" if self.silent[key] is None else "shelved"
        if key in self.raised:
            return "unacknowledged" if key in self.asks else "acknowledged"
        if key in self.latched:
            return "latched"
        return "returned" if key in self.asks else "normal"


TestOperators = Operators.TestCase
TestOperators.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def _board(log: list[Any]) -> AlarmBoard:
    board = AlarmBoard(ALARMS, lambda _key, told: log.append(told), shelve_s_max=600)
    board.signal(Signal(ALARMS[0], "p/a", "raised", 5, 7, 90, "Cel", 5), 5)
    return board


def test_what_is_published_of_an_alarm() -> None:
    """An alarm says what it is about, since when, and by which value; names in its message are filled in."""
    log: list[Any] = []
    board = _board(log)
    told = board.describe(("hot", "p/a"))
    assert told is not None
    assert (told["state"], told["priority"], told["group"], told["value"]) == ("unacknowledged", "high", "heat", 90)
    assert told["message"] == "p/a: 90Cel {x}"
    assert (log[0]["what"], log[0]["seq"], log[0]["ts"]) == ("raised", 7, "1970-01-01T00:00:00.000005Z")
    board.act(Act.ACK, AlarmTarget(group="heat"), 9, note="on my way", who="ann")
    assert (log[1]["what"], log[1]["who"], log[1]["note"]) == ("ack", "ann", "on my way")
    board.comment(AlarmTarget(priority="high"), 10, "valve closed")
    assert (log[2]["what"], log[2]["note"], log[2]["state"]) == ("comment", "valve closed", "acknowledged")
    assert board.count() == {
        "active": 1,
        "chattering": 0,
        "state": {"acknowledged": 1},
        "priority": {"high": 1},
        "group": {"heat": 1},
    }


def test_an_alarm_that_chatters() -> None:
    """An alarm that is raised again and again is marked and counted, also by the next process, until it is quiet."""
    log: list[Any] = []
    board = AlarmBoard(ALARMS, lambda _key, told: log.append(told))
    minute_us = 60_000_000
    for number in range(CHATTERING):
        for what in ("raised", "cleared"):
            at_us = number * minute_us
            board.signal(Signal(ALARMS[0], "p/a", what, at_us, 1, 90, "Cel", at_us), at_us)
    raised = [told for told in log if told["what"] == "raised"]
    assert [(told["count"], told.get("chattering")) for told in raised] == [
        (1, None),
        (2, None),
        (3, None),
        (4, None),
        (5, True),
    ]
    assert board.count()["chattering"] == 1
    board = AlarmBoard(ALARMS, lambda _key, told: log.append(told))
    board.restore(list(log))
    told = board.describe(("hot", "p/a"))
    assert told is not None
    assert (told["state"], told["count"], told["chattering"]) == ("returned", 5, True)
    later_us = 60 * minute_us
    board.signal(Signal(ALARMS[0], "p/a", "raised", later_us, 2, 90, "Cel", later_us), later_us)
    assert (log[-1]["count"], log[-1].get("chattering")) == (1, None)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "nobody is meant": ({}, {"minutes": 1}, "say which alarms"),
    "no such alarm": ({"alarm": "cold"}, {"minutes": 1}, "there is no alarm 'cold'; there are hot, leak"),
    "for ever": ({"alarm": "hot"}, {"minutes": 11}, "at most 10 minutes"),
    "for no time": ({"alarm": "hot"}, {"minutes": 0}, "more than 0"),
    "without a time": ({"alarm": "hot"}, {}, "at most 10 minutes"),
    "a long story": ({"alarm": "hot"}, {"minutes": 1, "note": "a" * 1001}, "at most 1000 characters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_acts_that_are_refused(case: str) -> None:
    """Nobody can shelve for ever, or act on alarms that are not named."""
    target, options, message = REFUSED[case]
    with pytest.raises(Invalid, match=message):
        _board([]).act(Act.SHELVE, AlarmTarget(**target), 9, **options)
