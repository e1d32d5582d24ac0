"""Definitions of alarms, read from a TOML file: one file and one meaning for the live process and for Spark.

    [alarm.hot]
    rule = "plant/**/temperature"
    when = "num > 80"
    clear = "num < 75"
    hold = "10s"
    priority = "high"

``rule`` says which states it is about. An alarm is raised once ``when`` has held without a break for ``hold`` (at once
without it), and cleared by the first value for which ``clear`` holds (without it: for which ``when`` does not) or when
the state goes away. Conditions see the columns of events: ``num``, ``text``, ``flag``, ``doc``, ``value``, ``path``,
``bus``, ``peer``, ``quality``, ``source_ts``; and members of the description that was valid when the value came:
``unit``, ``minimum``, ``maximum``, ``normal_low``, ``normal_high``, ``stale_s``. Some conditions are written as words:
``bad``, ``outside normal``, ``stale``.

``deadband`` is short for a ``clear`` that is so much away from the limits in ``when``. The words that remain do not
decide when an alarm is raised or cleared, but how it goes on: see ``lifecycle``.
"""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetbus.entries import BadEntry, read_entries, read_path_rule
from jetbus.journal.instants import read_duration
from jetbus.rules import Rule

__all__ = ["ALARMS_MAX", "PRIORITIES", "Alarm", "read_alarms"]

_TEXTS = ("rule", "when", "clear", "hold", "delay_on", "deadband", "severity", "priority", "group", "message", "help")
_WORDS: dict[str, type] = {**dict.fromkeys(_TEXTS, str), "latch": bool, "notify": list}
_STALE = "stale"
_SHORT: dict[Any, str] = {
    "bad": "quality = 'bad'",
    "uncertain": "quality = 'uncertain'",
    "good": "coalesce(quality, 'good') = 'good'",
    "outside normal": "num < normal_low or num > normal_high",
    _STALE: "stale_s is not null",
}
"""Conditions that are written in words; one that is stale has to wait for that, besides."""
PRIORITIES = ("critical", "high", "medium", "low")
"""Priorities of alarms, the most urgent first."""
ALARMS_MAX = 1000
"""Alarms in one file."""
TEXT_CHARS_MAX = 1000
"""Characters of a message or a help text."""
_NUMBER = r"[+-]?\d+(?:\.\d+)?"
_LIMIT = re.compile(rf"\s*num\s*(>=?|<=?)\s*({_NUMBER})\s*")


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
    priority: str = "medium"
    group: str = ""
    latch: bool = False
    """True if the alarm stays until somebody acknowledges it, even if it was cleared long ago."""
    message: str = ""
    """Text with names in braces, such as ``{value}``, that are filled in when the alarm is raised."""
    help: str = ""
    notify: tuple[str, ...] = ()
    """Receivers of the file that are notified when it is raised."""


def read_alarms(file: str | Path) -> tuple[Alarm, ...]:
    """Read the alarms of a TOML file."""
    entries = read_entries(file, "alarm", _WORDS, most=ALARMS_MAX, instead="merge some by wider rules")
    return tuple(_read_alarm(name, entry) for name, entry in entries.items())


def _read_alarm(name: str, entry: dict[str, Any]) -> Alarm:
    try:
        return _parse_alarm(name, entry)
    except ValueError as problem:
        raise BadEntry(getattr(problem, "problem", str(problem)), name, "alarm") from problem


def _parse_alarm(name: str, entry: dict[str, Any]) -> Alarm:
    if "when" not in entry:
        raise BadEntry('it needs a condition; add when = "num > 80" or the like')
    if "hold" in entry and "delay_on" in entry:
        raise BadEntry("hold and delay_on are the same; leave one of them out")
    when, clear = entry["when"], entry.get("clear")
    if clear is not None and _STALE in (when, clear):
        raise BadEntry("a state is no longer stale when its next value comes; leave clear out")
    if "deadband" in entry:
        clear = _apply_deadband(when, clear, entry["deadband"])
    priority = entry.get("priority", "medium")
    if priority not in PRIORITIES:
        raise BadEntry(f"there is no priority {priority!r}; there are {', '.join(PRIORITIES)}")
    for word in ("message", "help"):
        if len(entry.get(word, "")) > TEXT_CHARS_MAX:
            raise BadEntry(f"{word} has more than {TEXT_CHARS_MAX} characters; shorten it")
    try:
        list(string.Formatter().parse(entry.get("message", "")))
    except ValueError as problem:
        raise BadEntry(f"message has a brace without its other half: {problem}; write two for one of text") from None
    return Alarm(
        name,
        read_path_rule(entry.get("rule", "**")),
        _SHORT.get(when, when),
        _SHORT.get(clear, clear),
        round(read_duration(entry.get("hold", entry.get("delay_on", "0s"))) * 1e6),
        entry.get("severity", "alarm"),
        when == _STALE,
        priority,
        entry.get("group", ""),
        entry.get("latch", False),
        entry.get("message", ""),
        entry.get("help", ""),
        _read_names(entry.get("notify", [])),
    )


def _read_names(names: list[Any]) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in names):
        raise BadEntry('notify takes a list of receivers, such as ["shift"]')
    return tuple(names)


def _apply_deadband(when: str, clear: str | None, deadband: str) -> str:
    """Return the condition that clears an alarm with a deadband: no limit is exceeded, not even one so much closer."""
    if clear is not None:
        raise BadEntry("clear and deadband exclude each other; leave one of them out")
    if not re.fullmatch(_NUMBER, deadband) or deadband.startswith("-"):
        raise BadEntry(f'deadband takes a number in quotes, such as "2.5", not {deadband!r}')
    limits = [_LIMIT.fullmatch(part) for part in re.split(r"\bor\b", when, flags=re.IGNORECASE)]
    closer = [f"num {one[1]} {one[2]} {'-' if one[1][0] == '>' else '+'} {deadband}" for one in limits if one]
    if len(closer) < len(limits):
        raise BadEntry(f'deadband needs a condition such as "num > 80" or "num < 5 or num > 80", not {when!r}')
    return f"not ({' or '.join(closer)})"
