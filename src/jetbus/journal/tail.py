"""The segment that is being written, and its index. A batch is in both or in neither.

The batch comes first, then its record in the index; if anything fails, both files are cut back to what they were. Where
even that fails the tail is ``broken`` and must be recovered before anybody goes on.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from zlib import crc32

from jetbus.journal.index import RECORD_BYTES, Entry
from jetbus.journal.segment import END_OF_STREAM, FILE_MODE, SCHEMA_BYTES, segment_at, sync_directory


class Tail:
    """A new segment, open for appending."""

    def __init__(self, directory: Path, first_seq: int, *, durable: bool) -> None:
        self._durable = durable
        self.segment = segment_at(directory, first_seq)
        self.next_seq = first_seq
        self.position = len(SCHEMA_BYTES)
        self.broken = False
        self.opened_s = time.monotonic()
        self._index_position = 0
        self._unsynced = True
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._data = os.open(self.segment.path, flags, FILE_MODE)
        self._index = -1
        try:
            self._index = os.open(self.segment.index_path, flags & ~os.O_EXCL | os.O_TRUNC, FILE_MODE)
            _write_all(self._data, SCHEMA_BYTES, 0)
            if durable:
                sync_directory(directory)
        except OSError:
            self._close()
            with contextlib.suppress(OSError):
                self.segment.path.unlink()
                self.segment.index_path.unlink()
            raise

    def append(self, message: memoryview, count: int, ts_us: tuple[int, int], *, sync: bool) -> None:
        """Commit one batch; with ``sync`` the disk has it when this returns."""
        entry = Entry(self.next_seq, count, *ts_us, self.position, len(message), crc32(message))
        try:
            _write_all(self._data, message, self.position)
            if sync:
                os.fdatasync(self._data)
            _write_all(self._index, memoryview(entry.pack()), self._index_position)
            if sync:
                os.fdatasync(self._index)
        except OSError:
            self._cut_back()
            raise
        self.next_seq += count
        self.position = entry.end
        self._index_position += RECORD_BYTES
        self._unsynced = not sync

    def sync(self) -> None:
        """Let the disk have all that was appended."""
        if self._unsynced:
            os.fdatasync(self._data)
            os.fdatasync(self._index)
            self._unsynced = False

    def is_removed(self) -> bool:
        """Whether somebody removed one of the files."""
        return not os.fstat(self._data).st_nlink or not os.fstat(self._index).st_nlink

    def seal(self) -> None:
        """End the stream and close the files. A stream without its end can be read as well, so no error matters."""
        if not self.broken:
            self._write_end()
        self._close()

    def _write_end(self) -> None:
        try:
            _write_all(self._data, END_OF_STREAM, self.position)
            if self._durable:
                self._unsynced = True
                self.sync()
        except OSError:
            self._cut_back()

    def abandon(self) -> None:
        """Close the files as they are."""
        self._close()

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._index, self._index_position)
            os.ftruncate(self._data, self.position)
        except OSError:
            self.broken = True

    def _close(self) -> None:
        for descriptor in (self._data, self._index):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)


def _write_all(descriptor: int, data: memoryview | bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest = rest[written:]
        position += written
