"""One writer per journal: a lock on the file ``lock``, held as long as the writer lives, however it ends.

The file also holds the pid of the writer, and is emptied when it closes: a pid that nobody holds the lock for tells
that the last writer did not close.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from jetbus.journal.errors import JournalInUse

FILE = "lock"


class Lock:
    """The lock of one journal, taken when made."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._descriptor = self._take()
        self.left_clean = not os.pread(self._descriptor, 32, 0).strip()
        """Whether the writer before closed, or there was none."""
        self._write(f"{os.getpid()}\n".encode())

    def _take(self) -> int:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            os.close(descriptor)
            by = f" by process {holder}" if holder else ""
            raise JournalInUse(
                f"{self._path.parent} is being written{by}; stop that writer or choose another directory"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def holds(self) -> bool:
        """Whether the file that is locked is still the one in the directory."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def release(self, *, clean: bool = True) -> None:
        """Let the next writer in; it learns whether this one closed."""
        if clean:
            with contextlib.suppress(OSError):
                self._write(b"")
        os.close(self._descriptor)

    def _write(self, text: bytes) -> None:
        # A full disk must not keep anybody from writing the journal's last events: the text is for people.
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)
