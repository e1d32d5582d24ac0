"""Events on their way to disk: what is appended, and the Arrow batch that is made of it.

The hot part is one list that grows by three references an event (path, value, peer). All else about the usual event, a
change of a state, is known beforehand; events that are something else are noted beside the list, and instants as runs,
one per turn of the owner. At a commit each column becomes an offset buffer and a data buffer by a handful of calls that
loop in C, and these become Arrow arrays as they are: there is no Python object per event and column at any time.

A seq is given when a batch is made, not before: what was dropped while the disk refused has none, and there is no gap.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, NamedTuple

import pyarrow as pa

from jetbus.journal.instants import write_instant
from jetbus.journal.segment import END_OF_STREAM, SCHEMA, SCHEMA_BYTES

BATCH_EVENTS_MAX = 65_536
"""No record batch is longer."""
_FIELDS = 3
_EVENT_BYTES = 96
"""About what an event takes in memory besides its texts."""


class TooBig(Exception):
    """The texts of a column do not fit into one batch."""


class Other(NamedTuple):
    """What is to be known of an event that is not simply the change of a state."""

    row: int
    event: str
    kind: str | None = None
    detail: bytes | None = None
    absent: tuple[bool, ...] = (False, False, False)
    """Which of path, value and peer are null."""


class Pending:
    """Events that are not committed yet, in order."""

    __slots__ = ("instants", "missed", "missed_reason", "missed_since_us", "others", "rows", "starts")

    def __init__(self, now_us: int) -> None:
        self.rows: list[Any] = []
        """Path, value and peer of each event in turn."""
        self.others: list[Other] = []
        self.starts = [0]
        """The first event of each run, and in ``instants`` its instant."""
        self.instants = [now_us]
        self.missed = 0
        """Events that were dropped just before these."""
        self.missed_since_us = 0
        self.missed_reason = ""

    def __len__(self) -> int:
        return len(self.rows) // _FIELDS

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        details = sum(len(other.detail or b"") for other in self.others)
        return sum(map(len, self.rows)) + _EVENT_BYTES * len(self) + details

    @property
    def span_us(self) -> tuple[int, int]:
        """The first and the last instant of these events; a run at the end may have none yet."""
        last = -2 if self.starts[-1] == len(self) and len(self.starts) > 1 else -1
        return self.instants[0], self.instants[last]

    def start_run(self, now_us: int) -> None:
        """Events from here on have this instant."""
        count = len(self.rows) // _FIELDS
        if self.starts[-1] == count:
            self.instants[-1] = now_us
        else:
            self.starts.append(count)
            self.instants.append(now_us)

    def append(
        self, event: str, kind: str | None, texts: tuple[str | None, bytes | None, str | None], detail: bytes | None
    ) -> None:
        """Any event."""
        path, value, peer = texts
        self.others.append(Other(len(self), event, kind, detail, (path is None, value is None, peer is None)))
        self.rows.extend((path or "", value or b"", peer or ""))

    def miss(self, count: int, since_us: int, reason: str) -> None:
        """Note that events before these were dropped."""
        if not count:
            return
        self.missed += count
        self.missed_since_us = min(self.missed_since_us or since_us, since_us)
        self.missed_reason = self.missed_reason or reason

    def drop(self, reason: str) -> Pending:
        """What is left when all these events are dropped: the note that they are missed."""
        left = Pending(self.instants[-1])
        left.miss(self.missed, self.missed_since_us, self.missed_reason)
        left.miss(len(self), self.instants[0], reason)
        return left

    def join(self, later: Pending) -> None:
        """Take in the events that come directly after these."""
        count = len(self)
        self.rows += later.rows
        self.others += [other._replace(row=other.row + count) for other in later.others]
        if self.starts[-1] == count:
            del self.starts[-1], self.instants[-1]
        self.starts += [start + count for start in later.starts]
        self.instants += later.instants

    def with_gap(self) -> Pending:
        """These events, and before them one that tells what was missed, if anything was."""
        if not self.missed:
            return self
        told = {"reason": self.missed_reason, "missed": self.missed, "since": write_instant(self.missed_since_us)}
        gap = Pending(self.instants[0])
        gap.append("gap", None, (None, None, None), json.dumps(told).encode())
        gap.join(self)
        return gap

    def split(self, size: int) -> list[Pending]:
        """The same events in parts of at most so many each."""
        if len(self) <= size:
            return [self]
        parts = [self._part(first, min(first + size, len(self))) for first in range(0, len(self), size)]
        parts[0].miss(self.missed, self.missed_since_us, self.missed_reason)
        return parts

    def _part(self, first: int, end: int) -> Pending:
        part = Pending(self.instants[0])
        part.rows = self.rows[first * _FIELDS : end * _FIELDS]
        part.others = [other._replace(row=other.row - first) for other in self.others if first <= other.row < end]
        part.starts, part.instants = [], []
        for (start, stop), instant in zip(pairwise([*self.starts, len(self)]), self.instants, strict=True):
            if start < end and stop > first:
                part.starts.append(max(start - first, 0))
                part.instants.append(instant)
        return part


# -- columns


def make_batch(pending: Pending, seq_first: int) -> Any:
    """The Arrow record batch of these events; raises ``TooBig`` if a column would not fit."""
    count = len(pending)
    seqs = struct.pack(f"={count}q", *range(seq_first, seq_first + count))
    fields = [pending.rows[field::_FIELDS] for field in range(_FIELDS)]
    paths, values, peers = fields
    absent: list[Sequence[int]] = [[other.row for other in pending.others if other.absent[i]] for i in range(_FIELDS)]
    events, kinds, details = _said_of_others(pending.others, count)
    columns = [
        pa.Array.from_buffers(SCHEMA.field("seq").type, count, [None, pa.py_buffer(seqs)], 0),
        pa.Array.from_buffers(SCHEMA.field("ts").type, count, [None, pa.py_buffer(_instants(pending, count))], 0),
        events,
        kinds,
        _texts(paths, absent[0]),
        _json_texts(values, absent[1]),
        _texts(peers, absent[2]),
        details,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def encode(batch: Any, options: Any) -> memoryview:
    """The batch as an encapsulated Arrow message, as it stands in a segment."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())[len(SCHEMA_BYTES) : -len(END_OF_STREAM)]


def _instants(pending: Pending, count: int) -> bytes:
    if len(pending.instants) == 1:
        return struct.pack("=q", pending.instants[0]) * count
    lengths = [stop - start for start, stop in pairwise([*pending.starts, count])]
    return struct.pack(f"={count}q", *chain.from_iterable(map(repeat, pending.instants, lengths)))


def _said_of_others(others: list[Other], count: int) -> tuple[Any, Any, Any]:
    """The columns event, kind and detail; those of changes only are made beforehand."""
    if not others:
        return _CHANGES.slice(0, count), _STATES.slice(0, count), _NO_DETAILS.slice(0, count)
    events, kinds, details = [b"change"] * count, [b"state"] * count, [b""] * count
    for other in others:
        events[other.row] = other.event.encode()
        kinds[other.row] = (other.kind or "").encode()
        details[other.row] = other.detail or b""
    has_no_kind = [other.row for other in others if other.kind is None]
    has_detail = {other.row for other in others if other.detail is not None}
    has_no_detail = [row for row in range(count) if row not in has_detail]
    return _array(events, []), _array(kinds, has_no_kind), _json_texts(details, has_no_detail)


def _texts(texts: list[str], absent: Sequence[int]) -> Any:
    joined = "".join(texts)
    if joined.isascii():
        return _array(texts, absent, joined.encode())
    # A path with half a surrogate pair can be told in JSON, but there is no UTF-8 for it.
    return _array([text.encode(errors="backslashreplace") for text in texts], absent)


def _json_texts(texts: list[bytes], absent: Sequence[int]) -> Any:
    joined = b"".join(texts)
    if joined.isascii():
        return _array(texts, absent, joined)
    return _array([text if text.isascii() else _as_utf8(text) for text in texts], absent)


def _as_utf8(text: bytes) -> bytes:
    """What is not UTF-8 would make the whole column unreadable; it is marked instead."""
    return bytes(text).decode(errors="replace").encode()


def _array(parts: Sequence[bytes | str], absent: Sequence[int], joined: bytes | None = None) -> Any:
    """A string array of these parts, of which those at ``absent`` are null."""
    count = len(parts)
    try:
        offsets = struct.pack(f"={count + 1}i", *accumulate(map(len, parts), initial=0))
    except struct.error:
        raise TooBig from None
    data = b"".join(parts) if joined is None else joined  # type: ignore[arg-type]
    buffers = [_validity(count, absent), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), count, buffers, len(absent))


def _validity(count: int, absent: Sequence[int]) -> Any:
    if not absent:
        return None
    bits = bytearray(b"\xff") * ((count + 7) // 8)
    for row in absent:
        bits[row >> 3] &= ~(1 << (row & 7))
    return pa.py_buffer(bytes(bits))


def _always(text: bytes | None) -> Any:
    absent: Iterable[int] = range(BATCH_EVENTS_MAX) if text is None else ()
    return _array([text or b""] * BATCH_EVENTS_MAX, list(absent))


_CHANGES = _always(b"change")
_STATES = _always(b"state")
_NO_DETAILS = _always(None)
