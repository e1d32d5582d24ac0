"""What there is to play: a range of one journal, as trees and as events in order. Everything here may block.

A rule chooses by path when the journal is read. Its value tests are applied by whoever plays, since what a value test
leaves out is not gone for good.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jetbus import journal
from jetbus.journal import Journal, JournalError
from jetbus.journal.instants import Instant, read_instant, wall_clock_us, write_instant
from jetbus.journal.segment import CLEARING_EVENTS
from jetbus.journal.tree import TREE_EVENTS
from jetbus.rules import EVERYTHING, Rule

CHUNK_ROWS = 256
"""Events that are made ready in one go: few, so that nobody who is due has to wait for it."""
_COLUMNS = ["seq", "ts", "event", "kind", "path", "value", "detail"]


class Happened(NamedTuple):
    """An event to be played; without a path everything went: the bus was started or stopped."""

    seq: int
    ts_us: int
    event: str
    kind: str | None
    path: str | None
    value: str | None
    detail: str | None


class Called(NamedTuple):
    """A call that was recorded: its arguments and what is known of its outcome, both JSON text."""

    ts_us: int
    path: str
    args: str | None
    detail: str


class Reel:
    """A range of a journal: the tree just after ``start_us``, and all events up to, not with, ``until_us``."""

    def __init__(
        self, source: str | Path | Journal, rule: Rule | None, since: Instant | None, until: Instant | None
    ) -> None:
        self._journal = source if isinstance(source, Journal) else journal.open(source)
        if len(self._journal.buses) != 1:
            raise JournalError(f"a player plays one bus, not {len(self._journal.buses)}; open one directory")
        self._paths = _paths_only(rule)
        ((bus, offsets),) = self._journal.offsets().items()
        first_us, last_us = offsets["first_ts"], offsets["last_ts"]
        if first_us is None or last_us is None:
            raise JournalError(f"nothing is recorded of {bus} yet; there is nothing to play")
        self._seq_until = offsets["last"] + 1
        # The tree of an instant has what happened then; so it begins just before the first event.
        now_us = max(wall_clock_us(), last_us)  # the journal's clock does not go back when the machine's does
        self.start_us = first_us - 1 if since is None else max(first_us - 1, read_instant(since, now_us))
        self.until_us = last_us + 1 if until is None else min(last_us + 1, read_instant(until, now_us))
        if self.start_us >= self.until_us:
            raise JournalError(
                f"there is nothing to play in that range; {bus} is recorded"
                f" from {write_instant(first_us)} to {write_instant(last_us)}"
            )

    def tree(self, instant_us: int) -> list[Happened]:
        """What was on the bus at an instant, in order of creation, each as its add."""
        try:
            found = self._journal.as_of(min(instant_us, self.until_us - 1), self._paths)
        except journal.JournalGone:
            return []  # the log begins in the middle: what was there shows when it changes
        texts = [found[name].to_pylist() for name in ("kind", "path", "value", "detail")]
        return [Happened(0, instant_us, "add", *row) for row in zip(*texts, strict=True)]

    def after(self, instant_us: int) -> Iterator[list[Happened]]:
        """The events after an instant, a chunk at a time."""
        chunk: list[Happened] = []
        clearings = [happened for happened in self._clearings if happened.ts_us > instant_us]
        for happened in heapq.merge(self._read(self._paths, TREE_EVENTS, instant_us), clearings):
            chunk.append(happened)
            if len(chunk) == CHUNK_ROWS:
                yield chunk
                chunk = []
        if chunk:
            yield chunk

    @cached_property
    def _clearings(self) -> list[Happened]:
        """The starts and stops, which are few. They have no path, so that a rule does not find them."""
        return list(self._read(None, CLEARING_EVENTS, self.start_us))

    def _read(self, rule: Rule | None, events: tuple[str, ...], after_us: int) -> Iterator[Happened]:
        batches = self._journal.read(
            rule, after_us + 1, self.until_us, seq_until=self._seq_until, columns=_COLUMNS, events=events
        )
        for batch in batches:
            for first in range(0, batch.num_rows, CHUNK_ROWS):
                yield from map(Happened, *_columns(batch.slice(first, CHUNK_ROWS)))

    def calls(self) -> Iterator[Called]:
        """The calls that were recorded up to the end of the range, oldest first."""
        batches = self._journal.read(
            self._paths,
            until=self.until_us,
            seq_until=self._seq_until,
            columns=["ts", "path", "value", "detail"],
            events=["call"],
        )
        for batch in batches:
            yield from map(Called, *_columns(batch))


def _columns(batch: Any) -> list[list[Any]]:
    """The columns as lists; instants as microseconds, which is what everybody counts in here."""
    return [
        (column.cast("int64") if name == "ts" else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]


def _paths_only(rule: Rule | None) -> Rule | None:
    bare = None if rule is None else replace(rule, value=(), sort=None)
    return None if bare == EVERYTHING else bare
