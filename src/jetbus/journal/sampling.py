"""Sampling: how densely paths are recorded. Every change, one sample per interval, or nothing.

The settings are a table of rules, of which the first match counts; it is looked up once per path. A sample is the last
value of its interval and is recorded when the interval ends, so the final value of a path is always recorded. Adds and
removes are recorded at once and in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jetbus.journal.instants import US_PER_S, read_duration
from jetbus.journal.journal_errors import JournalError
from jetbus.rules import Rule, parse_rule

Row = tuple[str, bytes, str]
"""A change: path, value and peer."""
Stamped = tuple[int | None, bytes | None]
"""Source time and quality of a change."""
NO_STAMP: Final[Stamped] = (None, None)

_KNOWN_PATHS_MAX = 200_000


class Density:
    """One row of the table; a sampling density holds the last change of each path until its interval ends."""

    def __init__(self, text: str, interval_us: int = 0) -> None:
        self.text = text
        self.interval_us = interval_us
        self._held: dict[str, tuple[Row, Stamped]] = {}
        self._due_us = 0

    def __repr__(self) -> str:
        return f"Density({self.text!r})"

    def hold(self, row: Row, now_us: int, stamped: Stamped = NO_STAMP) -> None:
        """Hold a change until the interval ends, replacing the previous one of its path."""
        # Intervals start at multiples of their length, so samples of all paths have the same instants.
        if not self._held:
            self._due_us = (now_us // self.interval_us + 1) * self.interval_us
        self._held[row[0]] = row, stamped

    def release(self, path: str) -> tuple[Row, Stamped] | None:
        """Return the change held for a path, if any, and hold it no longer."""
        return self._held.pop(path, None)

    def due(self, now_us: int, *, everything: bool = False) -> Iterable[tuple[Row, Stamped]]:
        """Return the changes of intervals that have ended, and hold them no longer."""
        if not self._held or (now_us < self._due_us and not everything):
            return ()
        held, self._held = self._held, {}
        return held.values()


EVERY: Final = Density("every")
SKIP: Final = Density("skip")


def read_density(text: str) -> Density:
    """Return the density named by a text.

    >>> read_density("sample 250ms").interval_us
    250000
    """
    words = text.split()
    if words == ["every"]:
        return EVERY
    if words == ["skip"]:
        return SKIP
    if len(words) == 2 and words[0] == "sample":
        interval_us = round(read_duration(words[1]) * US_PER_S)
        if interval_us > 0:
            return Density(text, interval_us)
    raise JournalError(f"{text!r} is not a density; write every, skip or sample 1s")


class Densities:
    """The table of rules and densities: the first match counts, and every change is recorded by default.

    >>> table = Densities([("plant/fast/**", "sample 1s"), ("plant/**", "every"), ("**", "skip")])
    >>> table.of("plant/fast/speed"), table.of("other")
    (Density('sample 1s'), Density('skip'))
    """

    def __init__(self, table: Iterable[tuple[str, str]] = ()) -> None:
        self._table = [(_read_path_rule(rule), read_density(density)) for rule, density in table]
        self.samples = [density for _, density in self._table if density.interval_us]
        self._known: dict[str, Density] = {}

    def __bool__(self) -> bool:
        return bool(self._table)

    def of(self, path: str) -> Density:
        """Return the density of a path."""
        density = self._known.get(path)
        if density is None:
            if len(self._known) >= _KNOWN_PATHS_MAX:
                self._known.clear()
            density = self._known[path] = self._find(path)
        return density

    def _find(self, path: str) -> Density:
        return next((density for rule, density in self._table if rule.matches_path(path)), EVERY)


def _read_path_rule(text: str) -> Rule:
    rule = parse_rule(text)
    if rule.value:
        raise JournalError(
            f"{text!r}: the density of a path cannot depend on its value; use a rule without value tests"
        )
    return rule
