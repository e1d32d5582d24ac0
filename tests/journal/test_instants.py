"""Instants and durations as people write them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.journal import BadInstant, JournalError, read_duration, read_instant
from jetbus.journal.instants import is_local, write_instant

NOON_US = 1_772_366_400_000_000  # 2026-03-01T12:00:00Z

INSTANTS: dict[str, tuple[Any, int]] = {
    "utc": ("2026-03-01T12:00:00Z", NOON_US),
    "offset": ("2026-03-01T13:00:00+01:00", NOON_US),
    "negative offset": ("2026-03-01T06:30:00-05:30", NOON_US),
    "fraction": ("2026-03-01T12:00:00.000001Z", NOON_US + 1),
    "nanoseconds are cut": ("2026-03-01T12:00:00.000001999Z", NOON_US + 1),
    "small letters": ("2026-03-01t12:00:00z", NOON_US),
    "space": ("2026-03-01 12:00:00Z", NOON_US),
    "without offset it is utc": ("2026-03-01T12:00:00", NOON_US),
    "without seconds": ("2026-03-01T12:00", NOON_US),
    "a day is its midnight": ("2026-03-01", NOON_US - 43_200_000_000),
    "before 1970": ("1969-12-31T23:59:59Z", -1_000_000),
    "ago": ("-2h", NOON_US - 7_200_000_000),
    "ago, in parts": ("-1h30m", NOON_US - 5_400_000_000),
    "now": ("now", NOON_US),
    "spaces around": (" now ", NOON_US),
    "microseconds": (42, 42),
    "datetime": (datetime(2026, 3, 1, 12, tzinfo=UTC), NOON_US),
    "datetime elsewhere": (datetime(2026, 3, 1, 14, tzinfo=timezone(timedelta(hours=2))), NOON_US),
    "naive datetime is utc": (datetime(2026, 3, 1, 12), NOON_US),
}

NO_INSTANTS: dict[str, Any] = {
    "empty": "",
    "word": "tomorrow",
    "no time of the clock": "24:45",
    "half a time": "06:4",
    "day and no time": "monday 6",
    "no such day": "2026-02-30",
    "no such hour": "2026-02-01T25:00:00Z",
    "ago without unit": "-2",
    "ahead": "+2h",
    "week date": "2026-W09-7",
    "compact": "20260301T120000Z",
    "float": 1.5,
    "bool": True,
    "none": None,
}

DURATIONS = {"5us": 5e-6, "250ms": 0.25, "1s": 1.0, "1.5s": 1.5, "2m": 120, "2h": 7200, "7d": 604_800, "1w": 604_800}
NO_DURATIONS = ["", "1", "s", "1 s", "-1s", "1y", "1s,", "٣s"]


@pytest.mark.parametrize(("text", "instant"), INSTANTS.values(), ids=INSTANTS)
def test_instants(text: Any, instant: int) -> None:
    """An instant is RFC 3339, "-2h", now, a datetime or microseconds; without an offset it is UTC."""
    assert read_instant(text, now_us=NOON_US) == instant


LOCAL = {
    "06:45": "2026-03-30T06:45",
    "6:45:30": "2026-03-30T06:45:30",
    "23:00": "2026-03-29T23:00",  # today's is still to come
    "today": "2026-03-30T00:00",
    "today 23:00": "2026-03-30T23:00",
    "yesterday": "2026-03-29T00:00",
    "Yesterday 06:45": "2026-03-29T06:45",
    "monday": "2026-03-30T00:00",
    "tuesday": "2026-03-24T00:00",
    "sunday 01:30": "2026-03-29T01:30",  # before the clocks were put forward
}
"""Words of people, on Monday 2026-03-30 at noon, the day after summer time began in Berlin."""


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_berlin")
@pytest.mark.parametrize(("text", "wanted"), LOCAL.items(), ids=LOCAL)
def test_days_and_times_of_the_clock(text: str, wanted: str) -> None:
    """Days and times of the clock are those of the time zone of the machine, also across a change of its offset."""
    berlin = ZoneInfo("Europe/Berlin")
    now = datetime(2026, 3, 30, 12, tzinfo=berlin)
    assert is_local(text)
    assert read_instant(text, read_instant(now)) == read_instant(datetime.fromisoformat(wanted).replace(tzinfo=berlin))


@pytest.mark.parametrize("text", NO_INSTANTS.values(), ids=NO_INSTANTS)
def test_no_instants(text: Any) -> None:
    """Anything else is refused with a text that names it."""
    with pytest.raises(BadInstant) as refused:
        read_instant(text, now_us=NOON_US)
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, JournalError)


@pytest.mark.parametrize(("text", "seconds"), DURATIONS.items())
def test_durations(text: str, seconds: float) -> None:
    """A duration is a number with a unit."""
    assert read_duration(text) == pytest.approx(seconds)


def test_durations_in_parts() -> None:
    """The parts of a duration add up."""
    assert read_duration("1d2h3m4s5ms") == pytest.approx(93_784.005)


@pytest.mark.parametrize("text", NO_DURATIONS)
def test_no_durations(text: str) -> None:
    """A duration without a unit, with a sign or with anything else is refused."""
    with pytest.raises(BadInstant):
        read_duration(text)


@given(st.integers(-(10**15), 10**16))
def test_written_instants_are_read_again(instant_us: int) -> None:
    """An instant that is written as text is the same when it is read."""
    assert read_instant(write_instant(instant_us)) == instant_us
