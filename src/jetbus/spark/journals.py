"""Journals of the buses that are read: in folders of this machine or behind live daemons.

Both are asked through ``jetbus.journal.source``. A read is cut into ranges of seqs, each a task of its own that
opens the place again by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from jetbus import journal
from jetbus.journal.instants import read_instant
from jetbus.journal.source import Ask, FolderAnswers, JournalSource
from jetbus.json_types import JsonObject
from jetbus.rules import Rule
from jetbus.spark.options import DaemonAddress, Options, Place, places_now
from jetbus.spark.schemas import arrow_of
from jetbus.spark.spark_errors import BadOption, DataLoss

__all__ = [
    "Bundle",
    "BusJournal",
    "OpenBuses",
    "Reach",
    "SeqRange",
    "Wanted",
    "cut",
    "data_loss",
    "limited",
    "open_buses",
    "open_place",
    "start_of",
]

PARTITIONS_MAX = 10_000
BUNDLES_MIN = 32
"""With more ranges than that, small ones share a task: starting one costs more than reading a few events."""

Seqs = dict[str, int]


@dataclass(frozen=True)
class Wanted:
    """Selection of events: columns, rule and period."""

    columns: tuple[str, ...]
    """Columns of the journal; the name of the bus is not one of them."""
    rule: Rule | None = None
    since_us: int | None = None
    until_us: int | None = None
    gaps: bool = False
    """True for a row of event ``gap`` in place of events that were dropped before they could be read."""


class Reach(NamedTuple):
    """Extent of a journal, all at one moment."""

    first: int
    last: int
    """``first - 1`` while there is nothing."""
    last_us: int
    """The instant of the last event; 0 while there is nothing."""
    now_us: int
    """Progress of time: events after ``last`` are not before it."""


class BusJournal:
    """The journal of one bus, at a place: asks it in terms of seqs."""

    def __init__(self, place: Place, ask: Ask, close: Callable[[], None] = lambda: None) -> None:
        self.place = place
        self.close = close
        """Closes the connection, if there is one."""
        self._source = JournalSource(ask)
        self._name: str | None = None

    @property
    def name(self) -> str:
        """Name of the bus."""
        if self._name is None:
            self._name = self._source.describe()["bus"]
        return self._name

    def ends(self) -> tuple[int, int]:
        """Return the first and the last seq; last is first - 1 while the journal is empty."""
        reach = self.reach()
        return reach.first, reach.last

    def reach(self) -> Reach:
        """Return the first and the last seq, and how far time has come."""
        found = self._source.describe()
        self._name = found["bus"]
        last_us = found["last_ts"] or 0
        return Reach(found["first"], found["last"], last_us, found["now"] or last_us)

    def seq_at(self, instant_us: int) -> int:
        """Return the last seq before an instant."""
        return self._source.find_seq(instant_us)

    def events(self, wanted: Wanted, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Read the wanted events from one seq to another; raise ``JournalGone`` if they have been dropped."""
        params = {
            "seq": first,
            "seqUntil": last + 1,
            "since": wanted.since_us,
            "until": wanted.until_us,
            "columns": list(wanted.columns),
        }
        return self._source.read_events(params, wanted.rule)

    def tree_place(self, instant: str) -> JsonObject:
        """Return an instant as the place of a tree that all tasks agree on."""
        return self._source.pin(instant).make_place(instant)

    def tree(self, place: JsonObject, rule: Rule | None) -> Iterator[pa.RecordBatch]:
        """Read the tree at a place."""
        yield from self._source.read_tree_at(place, rule).to_batches()


def open_place(place: Place, *, in_task: bool = False) -> BusJournal:
    """Open the journal at a place. Errors of a folder are raised at once, those of a daemon on its first call."""
    if isinstance(place, DaemonAddress):
        from jetbus.spark.remote import DaemonAnswers

        answers = DaemonAnswers(place, in_task=in_task)
        return BusJournal(place, answers, answers.close)
    try:
        return BusJournal(place, FolderAnswers(journal.open(place)))
    except journal.JournalError as problem:
        raise BadOption("path", str(problem)) from problem


def open_buses(places: Sequence[Place]) -> dict[str, BusJournal]:
    """Open the journals at some places; return them by the names of their buses."""
    buses: dict[str, BusJournal] = {}
    try:
        for place in places:
            bus = open_place(place)
            # Offsets and tables go by the name, so two journals of one name would be mixed up.
            if bus.name in buses:
                bus.close()
                raise BadOption(
                    "path" if isinstance(place, Path) else "url",
                    f"{place} and {buses[bus.name].place} are both of a bus named {bus.name!r}; "
                    "give the bus of one of them another name in its daemon's settings, as journal_bus",
                )
            buses[bus.name] = bus
    except BaseException:
        for bus in buses.values():
            bus.close()
        raise
    return buses


class OpenBuses:
    """Open buses of some options; a glob may match new ones as time goes by."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._places: tuple[Place, ...] = ()
        self._open: dict[str, BusJournal] = {}

    def now(self) -> dict[str, BusJournal]:
        """Return the buses that exist now."""
        places = places_now(self._options)
        # A glob matches more or fewer folders than before; opening costs little, so all are opened again.
        if places != self._places:
            self.close()
            self._open = open_buses(places)
            self._places = places
        return self._open

    def ends(self) -> Seqs:
        """Return the last seq of each bus."""
        return {name: bus.ends()[1] for name, bus in self.now().items()}

    def behind(self, done: Mapping[str, int]) -> int:
        """Count the events of the range in the options that come after those that are done."""
        return sum(self._behind(bus, done.get(name)) for name, bus in self.now().items())

    def _behind(self, bus: BusJournal, done: int | None) -> int:
        since_us, until_us = self._options.since_us, self._options.until_us
        first, last = bus.ends()
        begin = done if done is not None else first - 1 if since_us is None else bus.seq_at(since_us)
        end = last if until_us is None else min(last, bus.seq_at(until_us))
        return max(0, end - max(begin, first - 1))

    def close(self) -> None:
        for bus in self._open.values():
            bus.close()
        self._places, self._open = (), {}


def start_of(bus: BusJournal, start: str) -> int:
    """Return the last seq that is not read, as the option ``start`` says."""
    first, last = bus.ends()
    if start == "earliest":
        return first - 1
    if start == "latest":
        return last
    if start.isdigit():
        return max(int(start), 1) - 1
    if start.startswith("{"):
        seqs: Seqs = json.loads(start)
        return max(seqs.get(bus.name, first), 1) - 1
    return bus.seq_at(read_instant(start))


def data_loss(bus: str, wanted: int, first: int) -> DataLoss:
    """Return the error for events that were dropped before they were read."""
    return DataLoss(
        f"events {wanted} to {first - 1} of bus {bus!r} were dropped by retention before they were read; "
        "keep them longer, or set the option failOnDataLoss to false to go on without them"
    )


# -- ranges


@dataclass
class SeqRange(InputPartition):
    """The events of one bus from ``first`` to ``last``."""

    place: Place
    bus: str
    """The bus of the events that ``read`` gave last."""
    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of events in it, at most."""
        return self.last - self.first + 1

    def read(self, wanted: Wanted, *, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
        """Read the wanted events. Runs in a task."""
        bus = open_place(self.place, in_task=True)
        try:
            first = self.first
            # Retention was faster than the stream, or than this task.
            if not fail_on_data_loss and (kept := bus.ends()[0]) > first:
                first = min(kept, self.last + 1)
                if wanted.gaps:
                    yield from self._gap(bus, wanted, first, kept)
            yield from bus.events(wanted, first, self.last)
        except journal.JournalGone as problem:
            raise data_loss(self.bus, self.first, problem.first_seq) from problem
        except journal.JournalReplaced as problem:
            raise DataLoss(f"{problem} at {self.place}; start with a new checkpoint") from problem
        finally:
            bus.close()

    def _gap(self, bus: BusJournal, wanted: Wanted, first: int, kept: int) -> Iterator[pa.RecordBatch]:
        """Tell of the events before ``first``, which are lost, as the journal tells of a gap; ``kept`` is an event."""
        after = next((batch for batch in bus.events(Wanted(("ts",)), kept, kept) if batch.num_rows), None)
        if after is None:
            return
        at = after.column(0)[0].as_py()
        if wanted.until_us is not None and at.timestamp() * 1e6 >= wanted.until_us:
            return
        reason = f"events {self.first} to {first - 1} were dropped by retention before they were read"
        detail = json.dumps({"reason": reason, "missed": first - self.first})
        row = {"seq": first - 1, "ts": at, "event": "gap", "detail": detail}
        yield pa.RecordBatch.from_pylist([row], schema=arrow_of(wanted.columns))


class Bundle(SeqRange):
    """Small ranges of several buses, read one after the other by one task."""

    def __init__(self, ranges: Sequence[SeqRange]) -> None:
        super().__init__(ranges[0].place, ranges[0].bus, 1, sum(one.size for one in ranges))
        self.ranges = ranges

    def read(self, wanted: Wanted, *, fail_on_data_loss: bool) -> Iterator[pa.RecordBatch]:
        for one in self.ranges:
            # Readers give each batch the name of the bus as it is now.
            self.bus = one.bus
            yield from one.read(wanted, fail_on_data_loss=fail_on_data_loss)


def cut(
    buses: Mapping[str, BusJournal], done: Seqs, last: Seqs, events: int, lost: Mapping[str, int] | None = None
) -> list[SeqRange]:
    """Return the ranges after ``done`` up to ``last``, of so many events each; many small ones are bundled.

    ``lost`` has the first of the events that were dropped before them; the first range of their bus starts with it.
    """
    total = sum(max(0, last[name] - done[name]) for name in last)
    # A very long log is cut into larger ranges, not into more of them: the driver pays for each task.
    size = max(events, total // PARTITIONS_MAX)
    begins = {name: (done[name] + 1, seq) for name, seq in (lost or {}).items()}
    ranges = [
        SeqRange(
            buses[name].place,
            name,
            begins[name][1] if first == begins.get(name, (None,))[0] else first,
            min(first + size - 1, bus_last),
        )
        for name, bus_last in last.items()
        for first in range(done[name] + 1, bus_last + 1, size)
    ]
    return ranges if len(ranges) <= BUNDLES_MIN else _bundled(ranges, size)


def _bundled(ranges: Sequence[SeqRange], events: int) -> list[SeqRange]:
    """Put small ranges together, up to so many events in a task, without making fewer than ``BUNDLES_MIN`` tasks."""
    together_max = -(-len(ranges) // BUNDLES_MIN)
    bundles: list[list[SeqRange]] = [[]]
    size = 0
    for one in ranges:
        if bundles[-1] and (size + one.size > events or len(bundles[-1]) >= together_max):
            bundles.append([])
            size = 0
        bundles[-1].append(one)
        size += one.size
    return [bundle[0] if len(bundle) == 1 else Bundle(bundle) for bundle in bundles]


def limited(done: Seqs, last: Seqs, events: int) -> Seqs:
    """Return where a batch of so many events ends: every bus gets its share, and the rest of the shares of others.

    >>> limited({"a": 0, "b": 0}, {"a": 10, "b": 2}, 6)
    {'a': 4, 'b': 2}
    """
    left = max(events, 1)
    found: Seqs = {}
    # The buses with the fewest events first: the rest of their share is divided among the others.
    by_need = sorted(last, key=lambda name: last[name] - done[name])
    for place, name in enumerate(by_need):
        share = -(-left // (len(by_need) - place))
        taken = min(last[name] - done[name], share)
        found[name] = done[name] + taken
        left -= taken
    return {name: found[name] for name in last}
