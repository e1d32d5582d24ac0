r"""The buffer of an owner: values that the daemon has not confirmed to have recorded.

A peer with a buffer gives every value its time and keeps it until the daemon has answered a ``sync`` that was sent
after it: since the messages of a peer are handled in order, one answer confirms everything before. What is not
confirmed when a connection breaks, and what changes until the next one, is sent again as values of the past.

Records are appended to parts, in the memory of the process or in the files of a folder, and each has a mark::

    keep, connected       SENT ------- confirm ------> RECORDED
                           |  ^
               take_back   v  |  take_late
    keep, disconnected    WAITING

A part goes when all of its records are RECORDED. If the buffer is full, the oldest part goes with all that is in it,
which leaves gaps: ``gaps`` tells of which states and from when to when. The daemon gets them, too; those that it
has not recorded are in a file of the folder.

A file of a folder is mapped into memory: a record is a copy of some bytes, without a call to the system, and is there
after the process was killed. It is found again by the next process that uses the folder, checksums and all.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from zlib import crc32

import msgspec

from jetbus.errors import Occupied

log = logging.getLogger("jetbus.peer")

BUFFER_BYTES = 64 << 20
"""Default of ``buffer_max``."""
PARTS = 16
"""Number of parts that a full buffer has: a sixteenth of it is dropped at once."""
PART_BYTES_MIN, PART_BYTES_MAX = 4 << 10, 4 << 20
GAPS_MAX = 1_000
"""Number of states whose gaps are told apart; those of further states are one gap without a path."""
SUFFIX = ".buffer"
LOCK = "lock"
GAPS_FILE = "gaps.json"

WAITING, RECORDED, SENT = 1, 2, 3
_HEAD = struct.Struct("<BII")
"""Mark, length and checksum of the next record: mark 0 is the end of a file."""
_RECORD_BYTES = 120
"""Memory that a record takes beside its texts, about."""


class BufferedValue(NamedTuple):
    """A value of a state, with the time that its owner gave it."""

    us: int
    """Time in microseconds since 1970."""
    path: str
    value: bytes
    """JSON text."""
    quality: bytes | None = None
    """JSON text; None if the owner has left it out."""


class Gap(NamedTuple):
    """Values of a state that were dropped because the buffer was full."""

    path: str
    """Empty for states of which there are too many to tell apart."""
    since_us: int
    until_us: int
    missed: int


class BufferPlace(NamedTuple):
    """BufferPlace of a record in a buffer."""

    part: BufferPart
    at: int


class BufferPart(Protocol):
    """Some records, in the order in which they were kept."""

    waiting: int
    """Number of records that are not RECORDED."""
    size: int
    """Bytes that it takes."""
    is_dropped: bool
    """True if its memory or files were released."""

    def append(self, record: BufferedValue, mark: int) -> int | None:
        """Append a record and return its place; None if there is no room for it."""

    def read(self, at: int) -> tuple[int, BufferedValue, int] | None:
        """Return mark and record at a place, and the place of the next one; None at the end."""

    def mark(self, at: int, mark: int) -> None:
        """Mark the record at a place."""

    def clear(self) -> None:
        """Forget all records, which are RECORDED, and start anew."""

    def drop(self) -> None:
        """Release the memory or files of the part."""

    def close(self) -> None:
        """Leave the records of the part to another process, if that is possible."""


class MemoryPart:
    """A part in the memory of the process."""

    def __init__(self, bytes_max: int) -> None:
        self.waiting = self.size = 0
        self.is_dropped = False
        self._bytes_max = bytes_max
        self._records: list[BufferedValue] = []
        self._marks = bytearray()

    def append(self, record: BufferedValue, mark: int) -> int | None:
        size = _RECORD_BYTES + len(record.value) + len(record.quality or b"")
        if self._records and self.size + size > self._bytes_max:
            return None
        self.size += size
        self.waiting += 1
        self._records.append(record)
        self._marks.append(mark)
        return len(self._marks) - 1

    def read(self, at: int) -> tuple[int, BufferedValue, int] | None:
        return (self._marks[at], self._records[at], at + 1) if at < len(self._marks) else None

    def mark(self, at: int, mark: int) -> None:
        self.waiting -= mark == RECORDED
        self._marks[at] = mark

    def clear(self) -> None:
        self._records.clear()
        self._marks.clear()
        self.size = 0

    def drop(self) -> None:
        self.is_dropped = True

    def close(self) -> None:
        self.is_dropped = True


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(BufferedValue).decode


class FilePart:
    """A part in a file that is mapped into memory."""

    def __init__(self, path: Path, bytes_max: int = 0) -> None:
        """Open a file, or create one with room for some bytes."""
        self._path = path
        with path.open("r+b" if not bytes_max else "x+b") as file:
            if bytes_max:
                allocate(file.fileno(), bytes_max)
            self.size = os.fstat(file.fileno()).st_size
            self._map = mmap.mmap(file.fileno(), self.size)
        self.waiting = self._end = 0
        self.is_dropped = False
        while (found := self.read(self._end)) is not None:
            mark, _, following = found
            if mark == SENT:  # by a process that is gone
                self._map[self._end] = WAITING
            self.waiting += mark != RECORDED
            self._end = following

    def append(self, record: BufferedValue, mark: int) -> int | None:
        body = _encode(record)
        at = self._end
        start = at + _HEAD.size
        end = start + len(body)
        if end > self.size:
            return None
        self._map[start:end] = body
        # The mark comes last: a process that is killed in between leaves no record rather than half of one.
        _HEAD.pack_into(self._map, at, 0, len(body), crc32(body))
        self._map[at] = mark
        self._end = end
        self.waiting += 1
        return at

    def read(self, at: int) -> tuple[int, BufferedValue, int] | None:
        start = at + _HEAD.size
        if start > self.size:
            return None
        mark, length, checksum = _HEAD.unpack_from(self._map, at)
        body = self._map[start : start + length]
        if mark not in (WAITING, RECORDED, SENT) or len(body) != length or crc32(body) != checksum:
            return None
        return mark, _decode(body), start + length

    def mark(self, at: int, mark: int) -> None:
        self.waiting -= mark == RECORDED
        self._map[at] = mark

    def clear(self) -> None:
        # Old records behind the new ones may be found by the next process; they are RECORDED.
        self._map[0] = self._end = 0

    def drop(self) -> None:
        self.close()
        self._path.unlink(missing_ok=True)

    def close(self) -> None:
        self.is_dropped = True
        self._map.close()


def allocate(descriptor: int, size: int) -> None:
    """Give a new file its size, and its room on disk: else a full disk would be a signal in the middle of a copy."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:
            os.write(descriptor, bytes(size))
    except OSError:
        os.ftruncate(descriptor, 0)
        raise


def measure_file(record: BufferedValue) -> int:
    """Return the bytes that a file for this record must have."""
    return _HEAD.size + len(_encode(record))


class Folder:
    """The files of a buffer. One process at a time uses a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            import fcntl
        except ModuleNotFoundError:
            raise RuntimeError('a buffer in a folder needs Linux or macOS; use buffer="memory" here') from None
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Occupied(
                str(path), f"the buffer {path} is used by another process; give each peer a folder of its own"
            ) from None
        self._count = 0

    def open_parts(self) -> Iterator[FilePart]:
        """Open the files that an earlier process has left, oldest first."""
        for file in sorted(self.path.glob(f"*{SUFFIX}")):
            if file.stem.isdigit():
                self._count = int(file.stem)
                if file.stat().st_size:
                    yield FilePart(file)
                else:
                    file.unlink()  # the process was killed just after it had created it

    def make_part(self, bytes_max: int) -> FilePart:
        """Create the next file."""
        self._count += 1
        return FilePart(self.path / f"{self._count:012}{SUFFIX}", bytes_max)

    def read_gaps(self) -> list[Gap]:
        """Return the gaps that an earlier process has left."""
        try:
            return msgspec.json.decode((self.path / GAPS_FILE).read_bytes(), type=list[Gap])
        except (FileNotFoundError, msgspec.DecodeError):
            return []

    def write_gaps(self, gaps: Sequence[Gap]) -> None:
        """Keep gaps for the next process."""
        fresh = self.path / (GAPS_FILE + ".tmp")
        try:
            fresh.write_bytes(msgspec.json.encode(gaps))
            fresh.replace(self.path / GAPS_FILE)
        except OSError as problem:
            log.error("cannot write the gaps of the buffer %s: %s", self.path, problem)

    def close(self) -> None:
        """Leave the folder to others."""
        os.close(self._lock)


class Buffer:
    """Values that an owner keeps until they are recorded.

    >>> buffer = Buffer("memory")
    >>> buffer.keep(BufferedValue(buffer.next_us(), "pump/speed", b"800"), is_sent=False)
    >>> [value.path for value in buffer.take_late({"pump/speed"}, 10, 1000)]
    ['pump/speed']
    >>> buffer.confirm(buffer.sent)
    >>> len(buffer)
    0
    """

    def __init__(
        self, place: str | os.PathLike[str], bytes_max: int = BUFFER_BYTES, clock_ns: Callable[[], int] = time.time_ns
    ) -> None:
        if bytes_max < PART_BYTES_MIN:
            raise ValueError(f"buffer_max is {bytes_max} bytes; give at least {PART_BYTES_MIN}")
        self.place = str(place)
        """``"memory"``, or the folder."""
        self.bytes_max = bytes_max
        self.dropped = 0
        """Number of values that were dropped because the buffer was full."""
        self.confirmed = 0
        """Number of values that the daemon has recorded."""
        self.sent = 0
        """Number of values sent on this connection; a sync confirms all up to the number at which it was sent."""
        self.is_closed = False
        self._clock_ns = clock_ns
        self._last_us = 0
        self._part_bytes = min(max(bytes_max // PARTS, PART_BYTES_MIN), PART_BYTES_MAX)
        self._folder = None if self.place == "memory" else Folder(Path(place))
        self._parts: deque[BufferPart] = deque()
        self._in_flight: deque[BufferPlace] = deque()
        """Records marked SENT, in the order of sending."""
        self._gaps: dict[str, Gap] = {}
        self.untold: dict[str, Gap] = {}
        """Gaps that the daemon has not recorded, by path."""
        self._doubtful: dict[str, Gap] = {}
        """Gaps that there are if the values that were sent before they were dropped did not arrive."""
        self._next: BufferPlace | None = None
        """BufferPlace of the record that ``take_late`` looks at next; None for the first one."""
        if self._folder is not None:
            self._parts.extend(self._folder.open_parts())
            self.untold = {gap.path: gap for gap in self._folder.read_gaps()}

    def __len__(self) -> int:
        """Return the number of values that are not confirmed."""
        return sum(part.waiting for part in self._parts)

    def __repr__(self) -> str:
        return f"<Buffer {self.place}: {len(self)} values, {self.bytes} of {self.bytes_max} bytes>"

    @property
    def bytes(self) -> int:
        """Bytes that the values take, with those of a part that are confirmed before others of it."""
        return sum(part.size for part in self._parts)

    @property
    def late(self) -> int:
        """Number of values that are still to be sent as values of the past."""
        return len(self) - len(self._in_flight)

    @property
    def in_flight(self) -> int:
        """Number of values that are sent and not confirmed."""
        return len(self._in_flight)

    @property
    def gaps(self) -> list[Gap]:
        """Gaps that dropped values have left, one for each state."""
        return list(self._gaps.values())

    def next_us(self) -> int:
        """Return the present time, later than any before: path and time identify a value."""
        self._last_us = max(self._clock_ns() // 1000, self._last_us + 1)
        return self._last_us

    def keep(self, record: BufferedValue, *, is_sent: bool) -> None:
        """Keep a value that has just been sent, or that cannot be sent at the moment."""
        mark = SENT if is_sent else WAITING
        at = self._parts[-1].append(record, mark) if self._parts else None
        if at is None:
            part = self._make_part(record)
            at = part.append(record, mark)
            assert at is not None  # noqa: S101
        if is_sent:
            self.sent += 1
            self._in_flight.append(BufferPlace(self._parts[-1], at))

    def _make_part(self, record: BufferedValue) -> BufferPart:
        """Append a part with room for a record at least, and make room for it."""
        while self._parts and self.bytes + self._part_bytes > self.bytes_max:
            self._drop_oldest()
        part: BufferPart = MemoryPart(self._part_bytes)
        if self._folder is not None:
            try:
                part = self._folder.make_part(max(self._part_bytes, measure_file(record)))
            except OSError as problem:
                log.error("cannot write to the buffer %s, values are kept in memory meanwhile: %s", self.place, problem)
        self._parts.append(part)
        return part

    def _drop_oldest(self) -> None:
        part = self._parts[0]
        at, waiting = 0, part.waiting
        gaps: dict[str, Gap] = {}
        while (found := part.read(at)) is not None:
            mark, record, at = found
            if mark != RECORDED:
                _extend_gap(self._doubtful if mark == SENT else gaps, record)
        if waiting:
            if not self.dropped:
                log.error(
                    "the buffer %s is full (%d bytes), the oldest values are dropped; see peer.buffer.gaps, and give it"
                    " more room with buffer_max",
                    self.place,
                    self.bytes_max,
                )
            self.dropped += waiting
            self._keep_gaps(gaps)
        self._remove(part)

    def _keep_gaps(self, gaps: Mapping[str, Gap]) -> None:
        for gap in gaps.values():
            _merge_gap(self._gaps, gap)
            _merge_gap(self.untold, gap)
        if gaps and self._folder is not None:
            self._folder.write_gaps(list(self.untold.values()))

    def forget_gap(self, gap: Gap) -> None:
        """Forget a gap that the daemon has recorded, unless it has grown."""
        if self.untold.get(gap.path) == gap:
            del self.untold[gap.path]
            if self._folder is not None and not self.is_closed:
                self._folder.write_gaps(list(self.untold.values()))

    def _empty(self, part: BufferPart) -> None:
        """Free a part of which everything is recorded; the last one is used again."""
        if part is not self._parts[-1]:
            self._remove(part)
            return
        part.clear()
        if self._next is not None and self._next.part is part:
            self._next = BufferPlace(part, 0)

    def _remove(self, part: BufferPart) -> None:
        self._parts.remove(part)
        if self._next is not None and self._next.part is part:
            self._next = None
        part.drop()

    # -- draining

    def take_late(self, paths: Container[str], count_max: int, bytes_max: int) -> list[BufferedValue]:
        """Return the oldest values of these paths that were not sent on this connection, and mark them as sent."""
        taken: list[BufferedValue] = []
        size = 0
        while len(taken) < count_max and size < bytes_max and (found := self._find_late(paths)) is not None:
            place, record = found
            place.part.mark(place.at, SENT)
            self.sent += 1
            self._in_flight.append(place)
            taken.append(record)
            size += len(record.value)
        return taken

    def _find_late(self, paths: Container[str]) -> tuple[BufferPlace, BufferedValue] | None:
        """Return the next value of these paths that waits."""
        first = 0 if self._next is None else self._parts.index(self._next.part)
        for index in range(first, len(self._parts)):
            part = self._parts[index]
            at = self._next.at if self._next is not None and self._next.part is part else 0
            while (found := part.read(at)) is not None:
                place = BufferPlace(part, at)
                mark, record, at = found
                self._next = BufferPlace(part, at)
                if mark == WAITING and record.path in paths:
                    return place, record
        return None

    def look_again(self) -> None:
        """Let ``take_late`` start with the oldest value, since there are paths that it has passed over."""
        self._next = None

    def confirm(self, sent: int) -> None:
        """Forget the values that were sent up to a number."""
        for _ in range(len(self._in_flight) - (self.sent - sent)):
            part, at = self._in_flight.popleft()
            if not part.is_dropped:
                part.mark(at, RECORDED)
                self.confirmed += 1
                if not part.waiting:
                    self._empty(part)
        if not self._in_flight:
            self._doubtful.clear()

    def take_back(self) -> None:
        """Note that unconfirmed values may not have arrived."""
        for part, at in self._in_flight:
            if not part.is_dropped:
                part.mark(at, WAITING)
        self._in_flight.clear()
        self._keep_gaps(self._doubtful)
        self._doubtful.clear()
        self.look_again()

    def close(self) -> None:
        """Leave the folder to another process; values in memory are gone."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._folder is None:
            if len(self):
                log.warning("%d values of the buffer were not recorded; name a folder to keep them", len(self))
            return
        for part in list(self._parts):
            if part.waiting:
                part.close()
            else:
                self._remove(part)
        self._folder.close()


def _extend_gap(gaps: dict[str, Gap], record: BufferedValue) -> None:
    _merge_gap(gaps, Gap(record.path, record.us, record.us, 1))


def _merge_gap(gaps: dict[str, Gap], gap: Gap) -> None:
    """Add a gap to those of the same state."""
    path = gap.path if gap.path in gaps or len(gaps) < GAPS_MAX else ""
    other = gaps.get(path, Gap(path, gap.since_us, gap.until_us, 0))
    gaps[path] = Gap(
        path, min(other.since_us, gap.since_us), max(other.until_us, gap.until_us), other.missed + gap.missed
    )
