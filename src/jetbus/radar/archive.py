"""The past of a bus for Radar: from a journal's directory, or from a daemon that keeps one.

Everything here blocks, and is called in threads. A local journal is read as files, by as many threads as there are
cores, since a first look at ten million points is mostly decoding. A daemon is asked for pages of Arrow over the bus by
a peer of its own, so that a long history does not stand in the way of what is live.

Points that were read once are not read again. A chart that moves to the left and is brought up to date reads

    held   older                 known                newer
     o   |--------------|----------------------|--------------|
         since                  known.next_seq          end of the journal

where ``held`` is the value in force when the range begins. The known points began with such a value, too, which goes:
its own event is among the older ones.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from jetbus import journal
from jetbus.errors import Invalid, JetError
from jetbus.journal.events import CUTS, TREE_EVENTS
from jetbus.journal.filters import EventFilter, LogRange
from jetbus.journal.log import Cursor, Log
from jetbus.journal.source import AskedAt, JournalRequest, Pager, is_dropped, pin, read_all, run_query
from jetbus.peer import Peer
from jetbus.radar.series import EVENTS, Points, join_points, make_points, pick_member
from jetbus.rules import Rule, rule

EVENT_COLUMNS = ["ts", "seq", "event", "path", "value", "peer", "detail", "source_ts", "quality"]
POINT_COLUMNS = ["ts", "event", "value", "quality"]
EVENTS_PER_THREAD = 500_000
"""Events that are worth a thread of their own."""

Moment = str | int
"""RFC 3339 text, ``now``, an age such as ``-2h``, or microseconds since 1970."""
MakePoints = Callable[[Any], Points]
Wanted = str | Sequence[str] | None
"""Paths of events: a rule as text, a list of paths, or None for all events, also those without a path."""


class Archive(Protocol):
    """A past that can be asked."""

    def read_points(self, path: str, member: str, since_us: int, known: Points | None) -> Points:
        """Return the points of a path, or of a member of its values, from an instant on, given those that are known."""

    def read_events(
        self, wanted: Wanted, since: Moment | None, until: Moment | None, events: tuple[str, ...]
    ) -> Iterator[Any]:
        """Yield record batches of events with ``EVENT_COLUMNS``."""

    def read_tree(self, instant: Moment, text: str) -> Any:
        """Return the tree at an instant as a table."""

    def read_tree_before(self, seq: int, wanted: Wanted) -> Any:
        """Return the tree just before an event as a table; None if it is not known any more."""

    def describe(self) -> dict[str, Any]:
        """Return where the journal begins and ends, in microseconds."""

    def close(self) -> None:
        """Let go of what is open."""


class _PointReader(ABC):
    """Reading of points that is the same for all archives: what is missing before and after the known ones."""

    def read_points(self, path: str, member: str, since_us: int, known: Points | None) -> Points:
        """Return the points of a path from an instant on."""
        offsets = self.describe()
        first, after, first_us = offsets["first"], offsets["last"] + 1, offsets["first_ts"]
        if first_us is None or since_us <= first_us:
            since_us = 0  # there is nothing before it

        def make(events: Any) -> Points:
            return make_points(pick_member(events, member) if member else events, since_us, after)

        # Only the end is missing. Journals are append-only, so points that are known stay as they are.
        if known is not None and known.since_us <= since_us:
            if known.next_seq >= after:
                return known
            newer = self.read_part(path, LogRange(max(known.next_seq, first), after), make)
            return join_points([known, *newer])._replace(next_seq=after)
        # The value that held when the range begins came before it.
        before = [make(self._read_held(path, since_us))] if since_us else []
        if known is None:
            found = self.read_part(path, LogRange(first, after, since_us), make)
            return join_points([make(EVENTS.empty_table()), *before, *found])
        # The known points begin with the value that held then: its own event is read now.
        is_held = bool(known.us.size) and int(known.us[0]) < known.since_us
        known = _skip(known, int(is_held))
        older = self.read_part(path, LogRange(first, after, since_us, known.since_us), make)
        newer = self.read_part(path, LogRange(max(known.next_seq, first), after), make)
        parts = [make(EVENTS.empty_table()), *before, *older, known, *newer]
        return join_points(parts)._replace(next_seq=after)

    def _read_held(self, path: str, since_us: int) -> Any:
        """Return the value that held just before an instant, as an event of the time it came."""
        tree = self.read_path(path, since_us - 1)
        columns = {
            "ts": tree["ts"],
            "event": pa.array(["add"] * tree.num_rows, pa.string()),
            "value": tree["value"],
            "quality": tree["quality"],
        }
        return pa.table(columns, schema=EVENTS)

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return where the journal begins and ends."""

    @abstractmethod
    def read_part(self, path: str, within: LogRange, make: MakePoints) -> Iterator[Points]:
        """Yield the points of a path, and cuts, in a range; ``make`` takes a table of events."""

    @abstractmethod
    def read_path(self, path: str, instant_us: int) -> Any:
        """Return the tree of one path at an instant."""


def _skip(points: Points, count: int) -> Points:
    """Return points without the first ones."""
    return points._replace(
        us=points.us[count:],
        numbers=points.numbers[count:],
        texts=None if points.texts is None else points.texts.slice(count),
        bad=None if points.bad is None else points.bad[count:],
    )


class LocalArchive(_PointReader):
    """The journal in a directory of this machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._journal = journal.open(directory)
        if len(self._journal.buses) != 1:
            raise Invalid(f"{directory} has journals of several buses; name one of them")
        self._threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="radar-read")

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read_part(self, path: str, within: LogRange, make: MakePoints) -> Iterator[Points]:
        """Yield points; a long range is read by several threads, which decode what they have read."""
        # Ranges of seqs, not of time: each has about as many events as any other.
        count = min(64, (within.seq_until - within.seq) // EVENTS_PER_THREAD + 1)
        step = (within.seq_until - within.seq) // count + 1
        seqs = range(within.seq, within.seq_until, step)
        ranges = [LogRange(seq, min(seq + step, within.seq_until), within.since_us, within.until_us) for seq in seqs]
        if len(ranges) == 1:
            return iter([make(self._read_range(path, ranges[0]))])
        return self._threads.map(lambda part: make(self._read_range(path, part)), ranges)

    def _read_range(self, path: str, within: LogRange) -> Any:
        log = Log(self._directory)  # one for each thread
        wanted = EventFilter(rule(equals=path), (*TREE_EVENTS, *CUTS), within, always=CUTS)
        batches = log.read(Cursor(within.seq, strict=False), POINT_COLUMNS, wanted)
        return pa.Table.from_batches(batches, schema=EVENTS)

    def read_path(self, path: str, instant_us: int) -> Any:
        return self._journal.as_of(instant_us, rule(equals=path), missing_ok=True)

    def read_events(
        self, wanted: Wanted, since: Moment | None, until: Moment | None, events: tuple[str, ...]
    ) -> Iterator[Any]:
        return self._journal.read(_make_rule(wanted), since, until, columns=EVENT_COLUMNS, events=events)

    def read_tree(self, instant: Moment, text: str) -> Any:
        return self._journal.as_of(instant, rule(text), missing_ok=True)

    def read_tree_before(self, seq: int, wanted: Wanted) -> Any:
        try:
            return self._journal.as_of(rule=_make_rule(wanted), seq=seq - 1, missing_ok=True)
        except journal.JournalGone:
            return None

    def describe(self) -> dict[str, Any]:
        ((bus, offsets),) = self._journal.offsets().items()
        return {"bus": bus, **offsets, "bytes": sum(piece.bytes for piece in Log(self._directory).view().pieces)}


def _make_rule(wanted: Wanted) -> Rule | None:
    if wanted is None or isinstance(wanted, str):
        return None if wanted is None else rule(wanted)
    return rule(equals_one_of=list(wanted))


class BusArchive(_PointReader):
    """The journal of a daemon, asked over the bus."""

    def __init__(self, url: str | None, options: Mapping[str, Any]) -> None:
        self._peer = Peer(url, name="radar history", **options)
        self._peer.connect()
        # A daemon without a journal, or one that this user must not read, refuses now and not with the first chart.
        try:
            self.describe()
        except JetError:
            self._peer.close()
            raise

    def close(self) -> None:
        """Leave the bus."""
        self._peer.close()

    def read_part(self, path: str, within: LogRange, make: MakePoints) -> Iterator[Points]:
        ends = {"seq": within.seq, "seqUntil": within.seq_until, "columns": POINT_COLUMNS}
        if within.since_us > 0:
            ends["since"] = within.since_us
        if within.until_us != LogRange().until_us:
            ends["until"] = within.until_us
        # Cuts have no path, so a question about the path would leave them out.
        cuts = self._read_all(Pager("range", {**ends, "events": list(CUTS)}))
        found = self._read_all(Pager("range", {**ends, "events": list(TREE_EVENTS)}, rule(equals=path)))
        yield make(pa.concat_tables([found, cuts]).sort_by("ts") if cuts.num_rows else found)

    def _read_all(self, pager: Pager) -> Any:
        return run_query(read_all(pager), self._ask).select(POINT_COLUMNS).cast(EVENTS)

    def read_path(self, path: str, instant_us: int) -> Any:
        return run_query(read_all(Pager("as_of", {"instant": instant_us}, rule(equals=path))), self._ask)

    def read_events(
        self, wanted: Wanted, since: Moment | None, until: Moment | None, events: tuple[str, ...]
    ) -> Iterator[Any]:
        within = run_query(pin(AskedAt(), since, until), self._ask)
        params = within.make_params() | {"events": list(events), "columns": EVENT_COLUMNS}
        pager = Pager("range", params, _make_rule(wanted))
        while pager.request is not None:
            yield from pager.feed(self._ask(pager.request)).to_batches()

    def read_tree(self, instant: Moment, text: str) -> Any:
        within = run_query(pin(AskedAt(), instant), self._ask)
        place = {"seq": within.seq_until - 1} if instant == "now" else {"instant": within.since_us}
        return run_query(read_all(Pager("as_of", place, rule(text))), self._ask)

    def read_tree_before(self, seq: int, wanted: Wanted) -> Any:
        try:
            return run_query(read_all(Pager("as_of", {"seq": seq - 1}, _make_rule(wanted))), self._ask)
        except JetError as problem:
            if not is_dropped(problem):
                raise
            return None

    def describe(self) -> dict[str, Any]:
        offsets: dict[str, Any] = self._ask(JournalRequest("offsets", {}))
        return offsets

    def _ask(self, request: JournalRequest) -> Any:
        return self._peer.call(request.path, **request.params)
