"""Instants and durations as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.journal import BadInstant, JournalError, read_duration, read_instant
from jetbus.journal.instants import write_instant

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
    "word": "yesterday",
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
    """What is written as text is the same instant when it is read."""
    assert read_instant(write_instant(instant_us)) == instant_us
