"""The past of a bus for Radar: from a journal's directory, or from a daemon that keeps one.

Everything here blocks, and is called in threads. A local journal is read by as many threads as there are cores, since a
first look at ten million points is mostly decoding. A daemon is asked by a peer of its own, so that a long history does
not delay live values.

Points that were read once are not read again. A chart that moves to the left and is brought up to date reads

    held   older                 known                newer
     o   |--------------|----------------------|--------------|
         since                  known.next_seq          end of the journal

where ``held`` is the value in force when the range starts. The known points started with such a value, too, which is
dropped: its own event is among the older ones. If late values have come since, the path is read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from jetbus.journal.events import CUTS, TREE_EVENTS, VALUE_EVENTS
from jetbus.journal.filters import LogRange
from jetbus.journal.source import JournalRequest, JournalSource, open_folder
from jetbus.json_types import JsonObject
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


class Archive:
    """The past of a bus, as a journal has it."""

    def __init__(self, source: JournalSource, close: Callable[[], None], threads: Executor | None = None) -> None:
        self._source = source
        self._threads = threads
        """Threads that read parts of a long range side by side; without them it is read at once."""
        self.close = close
        """Closes the connection or the threads."""

    # -- points

    def read_points(self, path: str, member: str, since_us: int, known: Points | None) -> Points:
        """Return the points of a path, or of a member of its values, from an instant on, given those that are known."""
        offsets = self.describe()
        first, after, first_us = offsets["first"], offsets["last"] + 1, offsets["first_ts"]
        if first_us is None or since_us <= first_us:
            since_us = 0  # there is nothing before it

        def make(events: Any) -> Points:
            return make_points(pick_member(events, member) if member else events, since_us, after)

        # Late values belong between points that are known, so everything is read again.
        is_extended = known is not None and known.since_us <= since_us
        if self._has_late(path, LogRange(known.next_seq if is_extended and known else first, after, since_us)):
            begin = [make(EVENTS.empty_table()), *([make(self._read_held(path, since_us))] if since_us else [])]
            whole = make(self._read_range(path, LogRange(first, after, since_us), late=True))
            return join_points([*begin, whole])._replace(next_seq=after)
        # Only the end is missing. Journals are append-only, so points that are known stay as they are.
        if known is not None and known.since_us <= since_us:
            if known.next_seq >= after:
                return known
            newer = self._read_part(path, LogRange(max(known.next_seq, first), after), make)
            return join_points([known, *newer])._replace(next_seq=after)
        # The value in force when the range starts came before it.
        before = [make(self._read_held(path, since_us))] if since_us else []
        if known is None:
            found = self._read_part(path, LogRange(first, after, since_us), make)
            return join_points([make(EVENTS.empty_table()), *before, *found])
        # The known points start with the value in force then: its own event is read now.
        is_held = bool(known.us.size) and int(known.us[0]) < known.since_us
        known = _skip(known, int(is_held))
        older = self._read_part(path, LogRange(first, after, since_us, known.since_us), make)
        newer = self._read_part(path, LogRange(max(known.next_seq, first), after), make)
        parts = [make(EVENTS.empty_table()), *before, *older, known, *newer]
        return join_points(parts)._replace(next_seq=after)

    def _read_held(self, path: str, since_us: int) -> Any:
        """Return the value that held just before an instant, as an event of the time it came."""
        span = self._source.pin(since_us - 1)
        tree = self._source.read_corrected_tree(span, rule(equals=path))
        columns = {
            "ts": tree["ts"],
            "event": pa.array(["add"] * tree.num_rows, pa.string()),
            "value": tree["value"],
            "quality": tree["quality"],
            "late": tree["late"],
        }
        return pa.table(columns, schema=EVENTS)

    def _read_part(self, path: str, within: LogRange, make: MakePoints) -> Iterable[Points]:
        """Return the points of a path, and cuts, in a range; ``make`` takes a table of events."""
        # Ranges of seqs, not of time: each has about as many events as any other.
        count = min(64, (within.seq_until - within.seq) // EVENTS_PER_THREAD + 1) if self._threads else 1
        step = (within.seq_until - within.seq) // count + 1
        seqs = range(within.seq, within.seq_until, step)
        parts = [LogRange(seq, min(seq + step, within.seq_until), within.since_us, within.until_us) for seq in seqs]
        run = map if self._threads is None or len(parts) < 2 else self._threads.map
        return run(lambda part: make(self._read_range(path, part)), parts)

    def _read_range(self, path: str, within: LogRange, *, late: bool = False) -> pa.Table:
        params: JsonObject = {"seq": within.seq, "seqUntil": within.seq_until, "columns": POINT_COLUMNS}
        # Cuts have no path, so the rule alone would leave them out.
        params |= {"events": list(VALUE_EVENTS if late else TREE_EVENTS), "always": list(CUTS)}
        if within.since_us > 0:
            params["since"] = within.since_us
        if within.until_us != LogRange().until_us:
            params["until"] = within.until_us
        return self._source.read_effective_table(params, rule(equals=path)).select(EVENTS.names)

    def _has_late(self, path: str, within: LogRange) -> bool:
        """Return True if late values of a path came in a range of seqs that are not before an instant."""
        params: JsonObject = {"seq": within.seq, "seqUntil": within.seq_until, "columns": ["seq"], "late": True}
        params |= {"since": within.since_us} if within.since_us > 0 else {}
        return any(batch.num_rows for batch in self._source.read_events(params, rule(equals=path)))

    # -- events and trees

    def read_events(
        self, wanted: Wanted, since: Moment | None, until: Moment | None, events: tuple[str, ...]
    ) -> Iterator[pa.RecordBatch]:
        """Return record batches of events with ``EVENT_COLUMNS`` and ``late``, in effective time."""
        params = self._source.pin(since, until).make_params() | {"events": list(events), "columns": EVENT_COLUMNS}
        return self._source.read_effective(params, _make_rule(wanted))

    def read_tree(self, instant: Moment, text: str, *, corrected: bool = False) -> pa.Table:
        """Return the tree at an instant as a table: what the bus showed, or what was true."""
        if not corrected:
            return self._source.read_tree(instant, rule(text))
        span = self._source.pin(instant)
        return self._source.read_corrected_tree(span._replace(since_us=None) if instant == "now" else span, rule(text))

    def read_tree_before(self, seq: int, wanted: Wanted) -> pa.Table | None:
        """Return the tree just before an event as a table; None if it is not known any more."""
        return self._source.read_tree_before(seq, _make_rule(wanted))

    def describe(self) -> dict[str, Any]:
        """Return the name and id of the bus, and the first and last event of the journal; instants in microseconds."""
        return self._source.describe()


def _skip(points: Points, count: int) -> Points:
    """Return points without the first ones."""
    return points._replace(
        us=points.us[count:],
        numbers=points.numbers[count:],
        texts=None if points.texts is None else points.texts.slice(count),
        bad=None if points.bad is None else points.bad[count:],
        late=None if points.late is None else points.late[count:],
    )


def _make_rule(wanted: Wanted) -> Rule | None:
    if wanted is None or isinstance(wanted, str):
        return None if wanted is None else rule(wanted)
    return rule(equals_one_of=list(wanted))


class LocalArchive(Archive):
    """The journal in a directory of this machine."""

    def __init__(self, directory: Path) -> None:
        threads = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="radar-read")
        super().__init__(open_folder(directory), lambda: threads.shutdown(wait=False, cancel_futures=True), threads)


class BusArchive(Archive):
    """The journal of a daemon, asked over the bus."""

    def __init__(self, url: str | None, options: Mapping[str, Any]) -> None:
        peer = Peer(url, name="radar history", **options)
        peer.connect()

        def ask(request: JournalRequest) -> Any:
            return peer.call(request.path, **request.params)

        super().__init__(JournalSource(ask), peer.close)
        # A daemon without a journal, or one that this user must not read, refuses now and not with the first chart.
        try:
            self.describe()
        except BaseException:
            peer.close()
            raise
