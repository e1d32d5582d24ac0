"""Instants and durations as people write them. An instant is an int: microseconds since 1970 in UTC.

2026-03-01T12:00:00.25+01:00    RFC 3339; UTC without an offset, midnight without a time
-2h, -1h30m                     that long ago
now, today, yesterday, monday   today and other days start at midnight
06:45, yesterday 06:45          a time of the clock; without a day, the last one that has passed
250ms, 2h, 1d12h                durations: us, ms, s, m, h, d, w

Days and times of the clock are words of people, so they mean the time zone of the machine that reads them. A command
line turns them into UTC before it asks a daemon, which may be elsewhere. ``monday`` is the last one, today included.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day

from jetbus.journal.journal_errors import BadInstant

Instant = int | str | datetime
"""An instant: microseconds since 1970, text or a datetime."""

US_PER_S = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)"
_DURATION = re.compile(rf"(?:{_PART})+", re.ASCII)
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII | re.IGNORECASE
)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY = f"(?P<day>today|yesterday|{'|'.join(_WEEKDAYS)})"
_CLOCK = r"(?P<hour>\d?\d):(?P<minute>\d\d)(?::(?P<second>\d\d))?"
_LOCAL = re.compile(rf"{_DAY}(?:[ T]{_CLOCK})?|{_CLOCK.replace('?P<', '?P<only_')}", re.ASCII | re.IGNORECASE)
EXAMPLES = "2026-03-01T12:00:00Z, 06:45, yesterday, monday, -2h or now"
"""Instants for error messages."""


def wall_clock_us() -> int:
    """Return the present instant."""
    return time.time_ns() // 1000


def read_instant(instant: Instant, now_us: int | None = None) -> int:
    """Return an instant in microseconds; "-2h" is relative to ``now_us``, by default the present.

    >>> read_instant("1970-01-01T00:00:01Z"), read_instant("-2h", now_us=7_200_000_001)
    (1000000, 1)
    """
    if isinstance(instant, datetime):
        return _from_datetime(instant)
    if isinstance(instant, str):
        return _from_text(instant.strip(), wall_clock_us() if now_us is None else now_us)
    if isinstance(instant, int) and not isinstance(instant, bool):
        return instant
    raise BadInstant(f"{instant!r} is not an instant; use a datetime, RFC 3339 text, '-2h' or an int of microseconds")


def read_duration(text: str) -> float:
    """Return a duration in seconds.

    >>> read_duration("250ms"), read_duration("1h30m")
    (0.25, 5400.0)
    """
    if not _DURATION.fullmatch(text.strip()):
        raise BadInstant(f"{text!r} is not a duration; write it as 250ms, 2h or 1d12h (units: {', '.join(_UNITS_S)})")
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text, re.ASCII))


def write_instant(instant_us: int) -> str:
    """Return an instant as RFC 3339 text in UTC.

    >>> write_instant(1_500_000)
    '1970-01-01T00:00:01.500000Z'
    """
    return (_EPOCH + timedelta(microseconds=instant_us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _from_text(text: str, now_us: int) -> int:
    if text == "now":
        return now_us
    if text.startswith("-"):
        return now_us - round(read_duration(text[1:]) * US_PER_S)
    if _RFC_3339.fullmatch(text):
        try:
            return _from_datetime(datetime.fromisoformat(text.upper()))
        except ValueError as error:
            raise BadInstant(f"{text!r} is not an instant: {error}") from None
    if found := _LOCAL.fullmatch(text):
        return _from_local(text, found, now_us)
    raise BadInstant(f"{text!r} is not an instant; write it as {EXAMPLES}")


def is_local(text: str) -> bool:
    """Return True for a day or a time of the clock, which depends on the time zone of this machine.

    >>> is_local("yesterday 06:45"), is_local("-2h")
    (True, False)
    """
    return bool(_LOCAL.fullmatch(text.strip()))


def _from_local(text: str, found: re.Match[str], now_us: int) -> int:
    """Return the instant of a day, a time of the clock, or both, in the time zone of this machine."""
    now = datetime.fromtimestamp(now_us / US_PER_S).astimezone()
    day = now.date() - timedelta(days=_count_days_back(found["day"], now.weekday()))
    hour, minute, second = (int(found[name] or found[f"only_{name}"] or 0) for name in ("hour", "minute", "second"))
    try:
        # Combined without an offset and then made local, since the offset of that day may differ from today's.
        moment = datetime.combine(day, time_of_day(hour, minute, second)).astimezone()
        if found["day"] is None and moment > now:
            moment = datetime.combine(day - timedelta(days=1), time_of_day(hour, minute, second)).astimezone()
    except ValueError as error:
        raise BadInstant(f"{text!r} is not an instant: {error}") from None
    return _from_datetime(moment)


def _count_days_back(name: str | None, weekday: int) -> int:
    """Return how many days ago a named day was; 0 for today or without a name."""
    if name is None or name.lower() == "today":
        return 0
    return 1 if name.lower() == "yesterday" else (weekday - _WEEKDAYS.index(name.lower())) % 7


def _from_datetime(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND
