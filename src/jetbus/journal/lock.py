"""The writer's lock: one writer per journal, however it ends.

The lock is on the directory itself, not on a file in it: a file can be removed by somebody who tidies up, and a second
writer would then lock another one. Where a file system cannot lock a directory (NFS), the file ``lock`` is locked
instead.

The file ``lock`` says how the journal was left: the pid of a writer that has not closed it, or ``closed`` and the seq
of the last event. Only a journal that was not closed can end in a torn batch; after a clean stop a batch that cannot be
read is damage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from pathlib import Path
from typing import NamedTuple

from jetbus.journal.errors import JournalInUse
from jetbus.journal.segment import FILE_MODE, sync_directory

FILE = "lock"
_TEXT_BYTES = 64
"""The text is padded to this length and overwritten in place, which needs no space on a full disk."""
_CANNOT_LOCK = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Left(NamedTuple):
    """How the writer before left a journal."""

    clean: bool = True
    """Whether it closed the journal, or there was none."""
    torn: bool = False
    """Whether it is known that it did not: then the journal may end in the middle of a batch."""
    last_seq: int = 0
    """The seq of the last event, if it closed and said so."""


def read_left(directory: Path) -> Left:
    """Read how a journal was left; while a writer has it open, as if that one had been killed."""
    try:
        return _parse((directory / FILE).read_bytes())
    except OSError:
        return Left()


def _parse(text: bytes) -> Left:
    words = text.split()
    if not words:
        return Left()
    if words[0] == b"closed" and len(words) == 2 and words[1].isdigit():
        return Left(last_seq=int(words[1]))
    return Left(clean=False, torn=True)


class Lock:
    """The lock of one journal, taken when made."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._file = -1
        try:
            self._take()
            self._before = os.pread(self._file, _TEXT_BYTES, 0)
            self._write(str(os.getpid()))
            if not self._before:
                sync_directory(directory)
        except BaseException:
            self._close()
            raise
        self.left = _parse(self._before)

    def _take(self) -> None:
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use() from None
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._in_use() from None

    def _in_use(self) -> JournalInUse:
        holder = b""
        with contextlib.suppress(OSError):
            holder = self._path.read_bytes()[:_TEXT_BYTES].strip()
        by = f" by process {holder.decode(errors='replace')}" if holder.isdigit() else ""
        return JournalInUse(f"{self._path.parent} is being written{by}; stop that writer or choose another directory")

    def holds(self) -> bool:
        """Whether the directory that is locked is still the one at its path, with its ``lock`` file in it.

        A missing file alone is put back: the directory's lock has kept everybody else out.
        """
        try:
            if not os.path.samestat(self._path.parent.stat(), os.fstat(self._directory)):
                return False
        except OSError:
            return False
        if not os.fstat(self._file).st_nlink:
            self._put_back()
        return True

    def _put_back(self) -> None:
        with contextlib.suppress(OSError):
            fresh = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(self._file)
            self._file = fresh
            self._write(str(os.getpid()))

    def release(self, *, clean: bool = True, last_seq: int = 0) -> None:
        """Let the next writer in and tell it how the journal is left."""
        if clean:
            self._write(f"closed {last_seq}" if last_seq else "")
        self._close()

    def restore(self) -> None:
        """Let the next writer in as if this one had never been."""
        self._write(self._before.decode(errors="replace").strip())
        self._close()

    def _close(self) -> None:
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)

    def _write(self, text: str) -> None:
        # A full disk must not keep anybody from writing the journal's last events, so no error matters. It is synced:
        # after a power loss the text decides whether the end of the log may be torn.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, text.ljust(_TEXT_BYTES - 1).encode() + b"\n", 0)
            os.fsync(self._file)


def warn_of_others(directory: Path) -> str | None:
    """Say that others can read a journal, if they can."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & stat.S_IRWXO:
        return None
    return f"{directory} is open to other users (mode {mode:04o}); close it with: chmod o-rwx {directory}"
