"""Extent and contents of a batch, which Spark counts while it writes the table of events.

Positions say how far the batch goes on each bus. Counts say which kinds of events it has, so that stages without rows
start no job. The buses that are read are known before the batch, so each has its own aggregates in one ``observe``, and
nothing is read again. Of very many buses a query over the written events has the same aggregates by bus.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark.clock import TIME, Position
from jetbus.spark.sql_text import quote

__all__ = ["BatchCount", "Contents"]

OBSERVED_BUSES_MAX = 8
"""Buses that are counted on the way; each costs a dozen conditions for every row."""
_COUNTS = {
    "events": "true",
    "signs": "event in ('add', 'change', 'remove')",
    "stays": "event in ('add', 'remove')",
    "describes": "event in ('add', 'describe', 'remove')",
    "schemas": "event in ('add', 'describe') and contains(detail, '\"schema\"')",
    "requests": "event in ('set', 'call')",
    "foreign": "",
}
"""Kinds of events that are counted; ``foreign`` are those that are not caused by publishing and reading."""


@dataclass(frozen=True)
class Contents:
    """Facts about the events of a batch."""

    positions: dict[str, Position]
    events: int
    signs: int
    stays: int
    """Events that may end the stay of a path: one is added or removed."""
    describes: int
    """Events that may end the validity of a description."""
    schemas: int
    """Events that bring a description."""
    requests: int
    foreign: int
    cut_buses: tuple[str, ...]

    @classmethod
    def of(cls, counted: Iterable[Mapping[str, Any]], before: Mapping[str, Position]) -> Contents:
        """Return the contents of a batch after some positions, from what was counted of each bus."""
        rows = list(counted)
        positions: dict[str, Position] = {}
        for row in rows:
            at = before.get(row["bus"]) or Position(0, 0)
            last_seq = at.seq if row["last_seq"] is None else row["last_seq"]
            cut_seq = at.cut_seq if row["cut_seq"] is None else max(at.cut_seq, row["cut_seq"])
            # A position only grows, also if Spark hands over rows that are in the tables already.
            positions[row["bus"]] = Position(max(at.seq, last_seq), max(at.us, row["us"]), cut_seq)
        totals = {name: sum(row[name] for row in rows) for name in _COUNTS}
        return cls(positions, **totals, cut_buses=tuple(row["bus"] for row in rows if row["cut_seq"] is not None))


class BatchCount:
    """A count of the rows of one batch by bus, rows of time included."""

    def __init__(self, buses: Iterable[str], *, has_end: bool, prefix: str | None) -> None:
        """``has_end`` says that journals go on after the end of what is read: then rows of time tell nothing of seqs.

        ``prefix`` is where the pipeline publishes.
        """
        self._buses = sorted(buses)
        self._has_end, self._prefix = has_end, prefix
        self._observation = Observation() if len(self._buses) <= OBSERVED_BUSES_MAX else None

    def watch(self, rows: DataFrame, is_event: str) -> DataFrame:
        """Return the same rows, which are counted when they are written; ``is_event`` tells those of the table."""
        if self._observation is None:
            return rows
        aggregates = [f"count_if(bus not in ({', '.join(map(quote, self._buses)) or 'null'})) as strangers"]
        for number, bus in enumerate(self._buses):
            of_bus = self._aggregates(is_event, f"bus = {quote(bus)}")
            aggregates += [f"{aggregate} as {name}_{number}" for name, aggregate in of_bus.items()]
        return rows.observe(self._observation, *map(F.expr, aggregates))

    def read(self, written: DataFrame) -> list[dict[str, Any]]:
        """Return what was counted of each bus that has rows; ``written`` are the rows, some of them without a day."""
        if self._observation is not None:
            found = self._observation.get
            # A journal that appeared after the buses were listed is counted with the query below.
            if self._buses and not found["strangers"]:
                names = self._aggregates("", "")
                of_buses = [
                    {"bus": bus, **{name: found[f"{name}_{number}"] for name in names}}
                    for number, bus in enumerate(self._buses)
                ]
                return [row for row in of_buses if row["us"] is not None]
        of_all = self._aggregates("day is not null", "true")
        aggregates = [f"{aggregate} as {name}" for name, aggregate in of_all.items()]
        return [row.asDict() for row in written.groupBy("bus").agg(*map(F.expr, aggregates)).collect()]

    def _aggregates(self, is_event: str, of_bus: str) -> dict[str, str]:
        """Return the aggregates of the rows of a bus, by name."""
        told = f"{of_bus} and event != '{TIME}'" if self._has_end else of_bus
        is_cut = f"{of_bus} and ({is_event}) and event in ('stop', 'start', 'gap')"
        own = "" if self._prefix is None else f"coalesce(startswith(path, {quote(f'{self._prefix}/')}), false)"
        foreign = f"not ({own} or event in ('peer', 'gone'))" if own else "true"
        return {
            "us": f"max(if({of_bus}, unix_micros(ts), null))",
            "first_seq": f"min(if({told}, seq, null))",
            "last_seq": f"max(if({told}, seq, null))",
            "cut_seq": f"max(if({is_cut}, seq, null))",
            **{name: f"count_if({of_bus} and ({is_event}) and ({kind or foreign}))" for name, kind in _COUNTS.items()},
        }
