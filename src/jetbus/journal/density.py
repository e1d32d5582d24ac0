"""How densely paths are recorded: every change, one sample per interval, or nothing.

A table of rules, first match wins. It is asked once per path. A sample is the last value of its interval, told when the
interval ends, so that the final value of a path always arrives; add and remove are told at once and in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jetbus.journal.errors import JournalError
from jetbus.journal.instants import US_PER_S, read_duration
from jetbus.rules import Rule, parse_rule

Row = tuple[str, bytes, str]
"""A change: path, value and peer."""

_KNOWN_PATHS_MAX = 200_000


class Density:
    """One row of the table; ``every`` and ``skip`` have no state, a sample holds back the last change of each path."""

    def __init__(self, text: str, interval_us: int = 0) -> None:
        self.text = text
        self.interval_us = interval_us
        self._held: dict[str, Row] = {}
        self._due_us = 0

    def __repr__(self) -> str:
        return f"Density({self.text!r})"

    def hold(self, row: Row, now_us: int) -> None:
        """Keep a change until the interval ends, in place of the one before."""
        if not self._held:
            self._due_us = (now_us // self.interval_us + 1) * self.interval_us
        self._held[row[0]] = row

    def release(self, path: str) -> Row | None:
        """The change held for a path, which is told now."""
        return self._held.pop(path, None)

    def due(self, now_us: int, *, everything: bool = False) -> Iterable[Row]:
        """The changes whose interval has ended."""
        if not self._held or (now_us < self._due_us and not everything):
            return ()
        held, self._held = self._held, {}
        return held.values()


EVERY: Final = Density("every")
SKIP: Final = Density("skip")


def read_density(text: str) -> Density:
    """The density that a text names.

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
    raise JournalError(f"{text!r} is no density; write every, skip or sample 1s")


class Densities:
    """The table: rule texts and densities, first match wins, every change otherwise.

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
        """How densely this path is recorded."""
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
        raise JournalError(f"{text!r}: how densely a path is recorded cannot depend on its value; name paths only")
    return rule
