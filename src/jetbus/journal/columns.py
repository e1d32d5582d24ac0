"""The Arrow batch of events that are to be committed.

Each column becomes an offset buffer and a data buffer by a handful of calls that loop in C, and these become Arrow
arrays as they are: there is no Python object per event and column at any time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.buffers import BATCH_EVENTS_MAX, FIELDS, Other, Pending
from jetbus.journal.segment import END_OF_STREAM, EVENTS, KINDS, SCHEMA, SCHEMA_BYTES

COLUMN_BYTES_MAX = 2**31 - 1
"""What the texts of one column of a batch may take: offsets are 32 bits."""


class TooBig(Exception):
    """The texts of a column do not fit into one batch."""


def make_batch(pending: Pending, seq_first: int) -> Any:
    """The Arrow record batch of these events; raises ``TooBig`` if a column would not fit."""
    count = len(pending)
    paths, values, peers = (pending.rows[field::FIELDS] for field in range(FIELDS))
    absent: list[Sequence[int]] = [[other.row for other in pending.others if other.absent[i]] for i in range(FIELDS)]
    events, kinds, details = _said_of_others(pending.others, count)
    columns = [
        pc.add(_COUNTING.slice(0, count), seq_first, memory_pool=_POOL),
        pa.Array.from_buffers(SCHEMA.field("ts").type, count, [None, pa.py_buffer(_instants(pending, count))], 0),
        events,
        kinds,
        _texts(paths, absent[0]),
        _json_texts(values, absent[1]),
        _peers(peers, absent[2]),
        details,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def encode(batch: Any, options: Any) -> memoryview:
    """The batch as an encapsulated Arrow message, as it stands in a segment."""
    sink = pa.BufferOutputStream(memory_pool=_POOL)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    return memoryview(sink.getvalue())[len(SCHEMA_BYTES) : -len(END_OF_STREAM)]


def _instants(pending: Pending, count: int) -> bytes:
    runs = zip(pending.instants, pairwise([*pending.starts, count]), strict=True)
    return b"".join([_INSTANT.pack(instant) * (stop - start) for instant, (start, stop) in runs])


def _said_of_others(others: list[Other], count: int) -> tuple[Any, Any, Any]:
    """The columns event, kind and detail; those of changes only are made beforehand."""
    if not others:
        return _CHANGES.slice(0, count), _STATES.slice(0, count), _NO_DETAILS.slice(0, count)
    events = bytearray([_EVENT_CODES["change"]]) * count
    kinds = bytearray([_KIND_CODES["state"]]) * count
    for other in others:
        events[other.row] = _EVENT_CODES[other.event]
        kinds[other.row] = _KIND_CODES[other.kind]
    told = [other for other in others if other.detail is not None]
    return _coded(events, _EVENT_WORDS), _coded(kinds, _KIND_WORDS), _details(told, count)


def _coded(codes: bytearray, words: Any) -> Any:
    picked = pa.Array.from_buffers(pa.uint8(), len(codes), [None, pa.py_buffer(codes)], 0)
    return pc.take(words, picked, memory_pool=_POOL)


def _details(told: list[Other], count: int) -> Any:
    """The column detail: null for all but these."""
    lengths, present = memoryview(bytearray(4 * (count + 1))).cast("i"), bytearray((count + 7) // 8)
    texts = [_as_utf8(other.detail or b"") for other in told]
    for other, text in zip(told, texts, strict=True):
        lengths[other.row + 1] = len(text)
        present[other.row >> 3] |= 1 << (other.row & 7)
    data = b"".join(texts)
    _check_size(data)
    buffers = [pa.py_buffer(present), _summed(pa.int32(), lengths), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), count, buffers, count - len(told))


def _texts(texts: list[str], absent: Sequence[int]) -> Any:
    joined = "".join(texts)
    if joined.isascii():
        return _array(texts, absent, joined.encode())
    # A path with half a surrogate pair can be told in JSON, but there is no UTF-8 for it.
    return _array([text.encode(errors="backslashreplace") for text in texts], absent)


def _peers(peers: list[str], absent: Sequence[int]) -> Any:
    """Mostly all events of a batch are by the same peer."""
    if absent or len(set(peers)) > 1:
        return _texts(peers, absent)
    return _repeated(_texts(peers[:1], [])[0], len(peers))


def _json_texts(texts: list[bytes], absent: Sequence[int]) -> Any:
    joined = b"".join(texts)
    if joined.isascii():
        return _array(texts, absent, joined)
    return _array([_as_utf8(text) for text in texts], absent)


def _as_utf8(text: bytes) -> bytes:
    """What is not UTF-8 would make the whole column unreadable; it is marked instead."""
    return text if text.isascii() else bytes(text).decode(errors="replace").encode()


def _array(parts: Sequence[bytes | str], absent: Sequence[int], joined: bytes | None = None) -> Any:
    """A string array of these parts, of which those at ``absent`` are null."""
    data = b"".join(parts) if joined is None else joined  # type: ignore[arg-type]
    _check_size(data)
    buffers = [_validity(len(parts), absent), _offsets(parts), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.string(), len(parts), buffers, len(absent))


def _check_size(data: bytes) -> None:
    if len(data) > COLUMN_BYTES_MAX:
        raise TooBig


def _offsets(parts: Sequence[bytes | str]) -> Any:
    """Where each part begins, and where the last one ends."""
    try:
        return _summed(pa.uint8(), b"\0" + bytes(map(len, parts)))
    except ValueError:  # a part is longer than a byte can say
        return pa.py_buffer(struct.pack(f"={len(parts) + 1}i", *accumulate(map(len, parts), initial=0)))


def _summed(kind: Any, lengths: bytes | memoryview) -> Any:
    """The running sums of lengths, as a buffer of offsets."""
    counted = pa.Array.from_buffers(kind, len(lengths), [None, pa.py_buffer(lengths)], 0)
    return pc.cumulative_sum(counted.cast(pa.int32(), memory_pool=_POOL), memory_pool=_POOL).buffers()[1]


def _validity(count: int, absent: Sequence[int]) -> Any:
    if not absent:
        return None
    bits = bytearray(b"\xff") * ((count + 7) // 8)
    for row in absent:
        bits[row >> 3] &= ~(1 << (row & 7))
    return pa.py_buffer(bits)


def _repeated(text: Any, count: int) -> Any:
    return pa.repeat(text, count, memory_pool=_POOL)


_POOL = pa.system_memory_pool()
"""It keeps what one commit has used for the next. Arrow's own pools give it back at once, and the page faults of
getting it again cost a third of a commit."""
_INSTANT = struct.Struct("=q")
_COUNTING = pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), BATCH_EVENTS_MAX)), 1)
_CHANGES = _repeated(pa.scalar("change"), BATCH_EVENTS_MAX)
_STATES = _repeated(pa.scalar("state"), BATCH_EVENTS_MAX)
_NO_DETAILS = _repeated(pa.scalar(None, pa.string()), BATCH_EVENTS_MAX)
_EVENT_WORDS, _KIND_WORDS = pa.array(EVENTS), pa.array(KINDS)
_EVENT_CODES = {event: code for code, event in enumerate(EVENTS)}
_KIND_CODES = {kind: code for code, kind in enumerate(KINDS)}
