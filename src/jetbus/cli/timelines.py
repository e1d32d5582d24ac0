"""Timeline of one state: its values in order, read from a journal, with the times at which nothing is known.

A value is in force until the next one arrives, the state is removed, or its bus is *cut*. A value of bad quality is as
good as none: while it is in force, nothing is known. A cut is an event of the whole bus after which nothing is known of
any state until it is added again; see ``jetbus.journal.events``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from jetbus.cli.aggregates import Reading
from jetbus.cli.arguments import read_rules
from jetbus.cli.journals import BusSources, Rows
from jetbus.journal.instants import read_instant
from jetbus.journal.source import PinnedRange
from jetbus.json_types import Json
from jetbus.peer.subscription import matches

if TYPE_CHECKING:
    from jetbus.journal.segment import JournalRow

RowTest: TypeAlias = "Callable[[JournalRow], bool]"
"""Test of a row of the journal."""


class Timeline:
    """Values of one state between two instants, with the value that was in force at the start."""

    def __init__(self, source: BusSources, path: str, span: PinnedRange, counts: RowTest = lambda _row: True) -> None:
        self._source, self._path, self._span, self._counts = source, path, span, counts

    def read(self, rows: Rows, cuts: Sequence[tuple[int, int]]) -> list[Reading]:
        """Return the readings of the state's history, with a reading of None at each cut of its bus."""
        ordered = [(row["seq"], self._to_reading(row)) for row in rows]
        ordered += [(seq, Reading(at_us, None)) for seq, at_us in cuts]
        # Several events may have the same time; then by seq, the order in which they came.
        ordered.sort(key=lambda entry: (entry[1].at_us, entry[0]))
        return [*self._read_before(rows[0]), *(reading for _, reading in ordered)]

    def _read_before(self, first: JournalRow) -> Iterator[Reading]:
        """Yield the value that was in force where the range starts."""
        # If its rows start with an add, a state did not exist before.
        since_us = self._span.since_us
        if since_us is not None and first["event"] != "add":
            for row in self._source.read_before(first.get("bus"), self._span, self._path):
                if self._counts(row) and not _is_bad(row):
                    yield Reading(max(since_us, read_instant(row["ts"])), decode_value(row), arrived=False)

    def _to_reading(self, row: JournalRow) -> Reading:
        """Return the value of a row; a value that is left out by the rule still ends the one before."""
        is_known = row["event"] != "remove" and self._counts(row) and not _is_bad(row)
        return Reading(read_instant(row["ts"]), decode_value(row) if is_known else None)

    @property
    def end_us(self) -> int:
        """Instant from which on nothing is known."""
        span = self._span
        return span.now_us if span.until_us is None else min(span.until_us, span.now_us)


def make_row_test(texts: Sequence[str]) -> RowTest:
    """Return a test of rows of the journal: True if path and value match one of these rules."""
    rules = read_rules(texts)
    if not any(rule.value for rule in rules):
        return lambda _row: True  # the paths match already

    def test(row: JournalRow) -> bool:
        # A remove or a method is without a value that could pass a test.
        if row["value"] is None:
            return any(not rule.value and rule.matches_path(row["path"]) for rule in rules)
        return any(matches(rule, row["path"], decode_value(row)) for rule in rules)

    return test


def _is_bad(row: JournalRow) -> bool:
    quality = row["quality"]
    # A plain word, or an object with the word as its level.
    return quality is not None and (json.loads(quality)["level"] if quality.startswith("{") else quality) == "bad"


def decode_value(row: JournalRow) -> Json:
    """Return the value of a row of the journal; None if it has none."""
    return None if row["value"] is None else json.loads(row["value"])
