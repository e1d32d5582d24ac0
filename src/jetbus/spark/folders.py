"""A journal in a folder of this machine, as format ``jet`` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from jetbus import journal
from jetbus.rules import Rule
from jetbus.spark.buses import Reach, Wanted
from jetbus.spark.errors import BadOption

__all__ = ["FolderBus"]


class FolderBus:
    """The bus of one folder; nothing stays open between two questions."""

    def __init__(self, place: Path) -> None:
        self.place = place
        try:
            self._log = journal.open(place)
        except journal.JournalError as problem:
            raise BadOption("path", str(problem)) from problem
        (self.name,) = self._log.buses

    def ends(self) -> tuple[int, int]:
        reach = self.reach()
        return reach.first, reach.last

    def reach(self) -> Reach:
        (found,) = self._log.offsets().values()
        last_us = found["last_ts"] or 0
        return Reach(found["first"], found["last"], last_us, found["now"] or last_us)

    def seq_at(self, instant_us: int) -> int:
        first, last = self.ends()
        for batch in self._log.read(since=instant_us, columns=["seq"]):
            if batch.num_rows:
                found: int = batch.column(0)[0].as_py()
                return found - 1
        return max(last, first - 1)

    def events(self, wanted: Wanted, first: int, last: int) -> Iterator[pa.RecordBatch]:
        return self._log.read(
            wanted.rule, wanted.since_us, wanted.until_us, seq=first, seq_until=last + 1, columns=wanted.columns
        )

    def tree(self, instant_us: int, rule: Rule | None) -> Iterator[pa.RecordBatch]:
        yield from self._log.as_of(instant_us, rule).to_batches()

    def close(self) -> None:
        """Nothing is open."""
