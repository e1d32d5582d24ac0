"""Events on their way to disk, and the Arrow record batches they become.

Appending is the hot path. An event costs three references (path, value, peer) at the end of one flat list, because
nearly all events are changes of states and everything else about them is known. Events of other kinds have an entry in
``specials``, and instants are stored as runs, one per turn of the writer's owner:

    rows       path value peer | path value peer | path value peer | ...
    specials   row 1: "add", kind, detail
    instants   rows 0..1: 12:00:00.000     rows 2..: 12:00:00.050
    stamps     row 2: source time, quality

``build_batch`` turns this into Arrow columns. Each column becomes an offset buffer and a data buffer by a few calls
that loop in C, so there is never a Python object per event and column.

Events have no seq here. It is assigned when the batch is written, so events that are dropped while the disk fails leave
no gap in the seqs.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.events import CLEARING_EVENTS
from jetbus.journal.instants import write_instant
from jetbus.journal.segment import END_OF_STREAM, EVENTS, KINDS, NO_LATE_US, PLAIN, SCHEMA, STAMPED, Layout

BATCH_EVENTS_MAX = 65_536
"""Events in a record batch, at most."""
FIELDS = 3
"""References per event in ``rows``."""
_EVENT_BYTES = 96
"""Approximate memory of an event without its texts."""
_STAMP_BYTES = 96
"""Approximate memory of a source time and a quality."""
LOST_PATHS_MAX = 100_000
"""Paths of dropped events that are remembered, so that their present values can be recorded later."""


class SpecialEvent(NamedTuple):
    """The fields of an event that is not the change of a state."""

    row: int
    event: str
    kind: str | None = None
    detail: bytes | None = None
    absent: tuple[bool, ...] = (False, False, False)
    """True for each of path, value and peer that is null."""


class Stamp(NamedTuple):
    """The source time and the quality of an event that has either."""

    row: int
    source_us: int | None
    quality: bytes | None
    """JSON: text, or an object with a reason."""


class LostPaths:
    """The paths of dropped events; ``everything`` if they may be any."""

    __slots__ = ("everything", "paths")

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.everything = False

    def add(self, paths: Iterable[str], *, everything: bool = False) -> None:
        """Add paths; beyond ``LOST_PATHS_MAX`` of them everything counts as lost."""
        self.paths.update(paths)
        self.everything = self.everything or everything or len(self.paths) > LOST_PATHS_MAX
        if self.everything:
            self.paths = set()


class PendingEvents:
    """Events that are appended and not yet committed, in order."""

    __slots__ = (
        "instants",
        "lost",
        "missed",
        "missed_reason",
        "missed_since_us",
        "rows",
        "specials",
        "stamps",
        "starts",
    )

    def __init__(self, now_us: int) -> None:
        self.rows: list[Any] = []
        """Path, value and peer of each event, one after the other."""
        self.specials: list[SpecialEvent] = []
        self.stamps: list[Stamp] = []
        self.starts = [0]
        """The first row of each run; ``instants`` has its instant."""
        self.instants = [now_us]
        self.missed = 0
        """Number of events that were dropped just before these."""
        self.missed_since_us = 0
        self.missed_reason = ""
        self.lost = LostPaths()

    def __len__(self) -> int:
        return len(self.rows) // FIELDS

    @property
    def size_bytes(self) -> int:
        """Approximate size in memory."""
        details = sum(len(special.detail or b"") for special in self.specials)
        stamps = sum(_STAMP_BYTES + len(stamp.quality or b"") for stamp in self.stamps)
        return sum(map(len, self.rows)) + _EVENT_BYTES * len(self) + details + stamps

    @property
    def span_us(self) -> tuple[int, int]:
        """The first and the last instant of these events."""
        # The last run may have no events yet.
        last = -2 if self.starts[-1] == len(self) and len(self.starts) > 1 else -1
        return self.instants[0], self.instants[last]

    @property
    def last(self) -> tuple[str, str, bytes, int] | None:
        """Event, path, value and instant of the last event; None if there are no events."""
        count = len(self)
        if not count:
            return None
        path, value, _ = self.rows[-FIELDS:]
        is_special = bool(self.specials) and self.specials[-1].row == count - 1
        # The last run may have no events yet.
        instant_us = self.instants[-2 if self.starts[-1] == count else -1]
        return self.specials[-1].event if is_special else "change", path, value, instant_us

    @property
    def late_us(self) -> tuple[int, int]:
        """The first and the last instant of the values of the past among these events."""
        if not self.stamps:
            return NO_LATE_US
        late = {special.row for special in self.specials if special.event == "past"}
        found = [stamp.source_us for stamp in self.stamps if stamp.row in late and stamp.source_us is not None]
        return (min(found), max(found)) if found else NO_LATE_US

    def start_run(self, now_us: int) -> None:
        """Give all events appended from now on this instant."""
        count = len(self.rows) // FIELDS
        if self.starts[-1] == count:
            # No event since the start of the last run: it can start later, at this instant.
            self.instants[-1] = now_us
        else:
            self.starts.append(count)
            self.instants.append(now_us)

    def append(
        self, event: str, kind: str | None, texts: tuple[str | None, bytes | None, str | None], detail: bytes | None
    ) -> None:
        """Append an event of any kind."""
        if event not in EVENTS or kind not in KINDS:
            raise ValueError(f"unknown event {event!r} of kind {kind!r}; choose from {', '.join(EVENTS)}")
        path, value, peer = texts
        self.specials.append(SpecialEvent(len(self), event, kind, detail, (path is None, value is None, peer is None)))
        self.rows.extend((path or "", value or b"", peer or ""))

    def stamp(self, source_us: int | None, quality: bytes | None) -> None:
        """Give the next event a source time and a quality, if it has either."""
        if source_us is not None or quality is not None:
            self.stamps.append(Stamp(len(self), source_us, quality))

    def inherit_missed(self, before: PendingEvents) -> None:
        """Take over the record of dropped events from a batch that precedes this one."""
        self._add_missed(before.missed, before.missed_since_us, before.missed_reason)
        self.lost.add(before.lost.paths, everything=before.lost.everything)

    def add_lost(self, count: int, since_us: int, reason: str) -> None:
        """Add committed events that were lost from disk; their paths are unknown."""
        self._add_missed(count, since_us, reason)
        self.lost.add((), everything=True)

    def _add_missed(self, count: int, since_us: int, reason: str) -> None:
        if not count:
            return
        self.missed += count
        self.missed_since_us = min(self.missed_since_us or since_us, since_us)
        self.missed_reason = self.missed_reason or reason

    def drop(self, reason: str) -> PendingEvents:
        """Drop all events; return an empty batch that records how many are missed."""
        left = PendingEvents(self.instants[-1])
        left.inherit_missed(self)
        left._add_missed(len(self), self.instants[0], reason)
        # Starts and stops clear the tree, so that the dropped events may concern any path.
        cleared = any(special.event in CLEARING_EVENTS for special in self.specials)
        left.lost.add(filter(None, self.rows[::FIELDS]), everything=cleared)
        return left

    def join(self, later: PendingEvents) -> None:
        """Append the events of the batch that follows this one."""
        # Rows of the later batch move up by the number of events here.
        count = len(self)
        self.rows += later.rows
        self.specials += [special._replace(row=special.row + count) for special in later.specials]
        self.stamps += [stamp._replace(row=stamp.row + count) for stamp in later.stamps]
        if self.starts[-1] == count:
            del self.starts[-1], self.instants[-1]
        self.starts += [start + count for start in later.starts]
        self.instants += later.instants

    def with_gap(self) -> PendingEvents:
        """Return these events, preceded by a ``gap`` event if any were missed before them."""
        if not self.missed:
            return self
        detail = {"reason": self.missed_reason, "missed": self.missed, "since": write_instant(self.missed_since_us)}
        gap = PendingEvents(self.instants[0])
        gap.append("gap", None, (None, None, None), json.dumps(detail).encode())
        gap.join(self)
        return gap

    def split(self, size: int) -> list[PendingEvents]:
        """Return the same events in batches of at most ``size``."""
        if len(self) <= size:
            return [self]
        parts = [self._part(first, min(first + size, len(self))) for first in range(0, len(self), size)]
        # The gap is written before the first part, and only there.
        parts[0].inherit_missed(self)
        return parts

    def _part(self, first: int, end: int) -> PendingEvents:
        part = PendingEvents(self.instants[0])
        part.rows = self.rows[first * FIELDS : end * FIELDS]
        part.specials = [
            special._replace(row=special.row - first) for special in self.specials if first <= special.row < end
        ]
        part.stamps = [stamp._replace(row=stamp.row - first) for stamp in self.stamps if first <= stamp.row < end]
        part.starts, part.instants = [], []
        for (start, stop), instant in zip(pairwise([*self.starts, len(self)]), self.instants, strict=True):
            if start < end and stop > first:
                part.starts.append(max(start - first, 0))
                part.instants.append(instant)
        return part


COLUMN_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of a column's texts in one batch, at most. A reader holds a whole batch in memory."""


class ColumnTooLarge(Exception):
    """The texts of a column exceed ``COLUMN_BYTES_MAX``."""


def build_batch(pending: PendingEvents, seq_first: int, layout: Layout = PLAIN) -> pa.RecordBatch:
    """Return these events as an Arrow record batch; raise ``ColumnTooLarge`` if a column does not fit.

    A plain layout cannot hold stamps.
    """
    count = len(pending)
    paths, values, peers = (pending.rows[field::FIELDS] for field in range(FIELDS))
    absent: list[Sequence[int]] = [
        [special.row for special in pending.specials if special.absent[i]] for i in range(FIELDS)
    ]
    events, kinds, details = _build_special_columns(pending.specials, count)
    columns = [
        pc.add(_COUNTING.slice(0, count), seq_first, memory_pool=_POOL),
        pa.Array.from_buffers(SCHEMA.field("ts").type, count, [None, pa.py_buffer(_build_instants(pending, count))], 0),
        events,
        kinds,
        _build_text_column(paths, absent[0]),
        _build_json_column(values, absent[1]),
        _build_peer_column(peers, absent[2]),
        details,
    ]
    if layout is STAMPED:
        columns += _build_stamp_columns(pending.stamps, count)
    return pa.RecordBatch.from_arrays(columns, schema=layout.schema)


def encode_batch(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> memoryview:
    """Return the batch as an encapsulated Arrow message, as segments contain it."""
    sink = pa.BufferOutputStream(memory_pool=_POOL)
    layout = PLAIN if batch.num_columns == len(PLAIN.schema) else STAMPED
    with pa.ipc.new_stream(sink, layout.schema, options=options) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())[len(layout.schema_bytes) : -len(END_OF_STREAM)]


def _build_instants(pending: PendingEvents, count: int) -> bytes:
    runs = zip(pending.instants, pairwise([*pending.starts, count]), strict=True)
    return b"".join([_INSTANT.pack(instant) * (stop - start) for instant, (start, stop) in runs])


def _build_special_columns(specials: list[SpecialEvent], count: int) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the columns event, kind and detail."""
    # Most batches have only changes; their columns are slices of constants.
    if not specials:
        return _CHANGES.slice(0, count), _STATES.slice(0, count), _NO_DETAILS.slice(0, count)
    events = bytearray([_EVENT_CODES["change"]]) * count
    kinds = bytearray([_KIND_CODES["state"]]) * count
    for special in specials:
        events[special.row] = _EVENT_CODES[special.event]
        kinds[special.row] = _KIND_CODES[special.kind]
    detailed = [(special.row, special.detail) for special in specials if special.detail is not None]
    return _decode_codes(events, _EVENT_WORDS), _decode_codes(kinds, _KIND_WORDS), _build_sparse_column(detailed, count)


def _decode_codes(codes: bytearray, words: pa.Array) -> pa.Array:
    picked = pa.Array.from_buffers(pa.uint8(), len(codes), [None, pa.py_buffer(codes)], 0)
    return pc.take(words, picked, memory_pool=_POOL)


def _build_sparse_column(texts: list[tuple[int, bytes]], count: int) -> pa.Array:
    """Return a column of texts, which is null except in these rows."""
    lengths, present = memoryview(bytearray(4 * (count + 1))).cast("i"), bytearray((count + 7) // 8)
    valid = [(row, _replace_invalid_utf8(text)) for row, text in texts]
    for row, text in valid:
        lengths[row + 1] = len(text)
        present[row >> 3] |= 1 << (row & 7)
    data = b"".join([text for _, text in valid])
    _check_column_size(data)
    buffers = [pa.py_buffer(present), _accumulate_lengths(pa.int32(), lengths), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), count, buffers, count - len(valid))


def _build_stamp_columns(stamps: list[Stamp], count: int) -> list[pa.Array]:
    """Return the columns source_ts and quality."""
    instants, present = memoryview(bytearray(8 * count)).cast("q"), bytearray((count + 7) // 8)
    timed = [stamp for stamp in stamps if stamp.source_us is not None]
    for row, source_us, _ in timed:
        instants[row] = source_us  # type: ignore[assignment]  # checked above
        present[row >> 3] |= 1 << (row & 7)
    buffers = [pa.py_buffer(present), pa.py_buffer(instants)]
    times = pa.Array.from_buffers(SCHEMA.field("source_ts").type, count, buffers, count - len(timed))
    qualities = [(stamp.row, _unquote_word(stamp.quality)) for stamp in stamps if stamp.quality is not None]
    return [times, _build_sparse_column(qualities, count)]


def _unquote_word(quality: bytes) -> bytes:
    """Return a quality as its column has it: a bare word such as ``bad``, or a JSON object."""
    return quality[1:-1] if quality.startswith(b'"') else quality


def _build_text_column(texts: list[str], absent: Sequence[int]) -> pa.Array:
    joined = "".join(texts)
    if joined.isascii():
        return _build_string_array(texts, absent, joined.encode())
    # JSON can express half a surrogate pair, UTF-8 cannot.
    return _build_string_array([text.encode(errors="backslashreplace") for text in texts], absent)


def _build_peer_column(peers: list[str], absent: Sequence[int]) -> pa.Array:
    """Return the column peer."""
    # Usually all events of a batch are by one peer.
    if absent or len(set(peers)) > 1:
        return _build_text_column(peers, absent)
    return _repeat_scalar(_build_text_column(peers[:1], [])[0], len(peers))


def _build_json_column(texts: list[bytes], absent: Sequence[int]) -> pa.Array:
    joined = b"".join(texts)
    if joined.isascii():
        return _build_string_array(texts, absent, joined)
    return _build_string_array([_replace_invalid_utf8(text) for text in texts], absent)


def _replace_invalid_utf8(text: bytes) -> bytes:
    """Replace invalid bytes, which would make the whole column unreadable."""
    return text if text.isascii() else bytes(text).decode(errors="replace").encode()


def _build_string_array(parts: Sequence[bytes | str], absent: Sequence[int], joined: bytes | None = None) -> pa.Array:
    """Return a string array of these parts, with nulls at the rows in ``absent``."""
    data = b"".join(parts) if joined is None else joined  # type: ignore[arg-type]
    _check_column_size(data)
    buffers = [_build_validity(len(parts), absent), _build_offsets(parts), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers, len(absent))


def _check_column_size(data: bytes) -> None:
    if len(data) > COLUMN_BYTES_MAX:
        raise ColumnTooLarge


def _build_offsets(parts: Sequence[bytes | str]) -> pa.Buffer:
    """Return the offset buffer of an array: the start of each part, and the end of the last one."""
    # Lengths below 256 become a bytes object in one call, which Arrow widens and sums up.
    try:
        return _accumulate_lengths(pa.uint8(), b"\0" + bytes(map(len, parts)))
    except ValueError:  # a part is longer than 255
        return pa.py_buffer(struct.pack(f"={len(parts) + 1}i", *accumulate(map(len, parts), initial=0)))


def _accumulate_lengths(kind: pa.DataType, lengths: bytes | memoryview) -> pa.Buffer:
    """Return the running sums of lengths as a buffer of offsets."""
    counted = pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(lengths)], 0)
    return pc.cumulative_sum(counted.cast(pa.int32(), memory_pool=_POOL), memory_pool=_POOL).buffers()[1]


def _build_validity(count: int, absent: Sequence[int]) -> pa.Buffer | None:
    if not absent:
        return None
    # A validity bitmap has one bit per row, least significant first; 0 is null.
    bits = bytearray(b"\xff") * ((count + 7) // 8)
    for row in absent:
        bits[row >> 3] &= ~(1 << (row & 7))
    return pa.py_buffer(bits)


def _repeat_scalar(text: pa.Scalar, count: int) -> pa.Array:
    return pa.repeat(text, count, memory_pool=_POOL)


_POOL = pa.system_memory_pool()
"""Keeps the memory of one commit for the next. Arrow's own pools return it to the system at once, and the page faults
of getting it again cost a third of a commit."""
_INSTANT = struct.Struct("=q")
_COUNTING = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), BATCH_EVENTS_MAX)), 1)
_CHANGES = _repeat_scalar(pa.scalar("change"), BATCH_EVENTS_MAX)
_STATES = _repeat_scalar(pa.scalar("state"), BATCH_EVENTS_MAX)
_NO_DETAILS = _repeat_scalar(pa.scalar(None, pa.string()), BATCH_EVENTS_MAX)
_EVENT_WORDS, _KIND_WORDS = pa.array(EVENTS), pa.array(KINDS)
_EVENT_CODES = {event: code for code, event in enumerate(EVENTS)}
_KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
