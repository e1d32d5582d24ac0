"""Instants and durations as people write them. An instant is an int: microseconds since 1970, UTC.

2026-03-01T12:00:00.25+01:00    RFC 3339; without an offset it is UTC, without a time it is midnight
-2h, -1h30m                     that long ago
now
250ms, 2h, 1d12h                durations: us, ms, s, m, h, d, w
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from jetbus.journal.errors import BadInstant

Instant = int | str | datetime
"""What can name an instant: microseconds since 1970, a text or a datetime."""

US_PER_S = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_PART = r"(\d+(?:\.\d+)?)(us|ms|s|m|h|d|w)"
_DURATION = re.compile(rf"(?:{_PART})+", re.ASCII)
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII | re.IGNORECASE
)


def wall_clock_us() -> int:
    """The present instant."""
    return time.time_ns() // 1000


def read_instant(instant: Instant, now_us: int | None = None) -> int:
    """The instant in microseconds; ``now_us`` is what "-2h" counts from, the present if not given.

    >>> read_instant("1970-01-01T00:00:01Z"), read_instant("-2h", now_us=7_200_000_001)
    (1000000, 1)
    """
    if isinstance(instant, datetime):
        return _from_datetime(instant)
    if isinstance(instant, str):
        return _from_text(instant.strip(), wall_clock_us() if now_us is None else now_us)
    if isinstance(instant, int) and not isinstance(instant, bool):
        return instant
    raise BadInstant(f"{instant!r} is no instant; use a datetime, RFC 3339 text, '-2h' or an int of microseconds")


def read_duration(text: str) -> float:
    """The duration in seconds.

    >>> read_duration("250ms"), read_duration("1h30m")
    (0.25, 5400.0)
    """
    if not _DURATION.fullmatch(text.strip()):
        raise BadInstant(f"{text!r} is no duration; write it as 250ms, 2h or 1d12h (units: {', '.join(_UNITS_S)})")
    return sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text, re.ASCII))


def write_instant(instant_us: int) -> str:
    """The instant as RFC 3339 text in UTC.

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
            raise BadInstant(f"{text!r} is no instant: {error}") from None
    raise BadInstant(f"{text!r} is no instant; write it as 2026-03-01T12:00:00Z, -2h or now")


def _from_datetime(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // _MICROSECOND
