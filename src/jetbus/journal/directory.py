"""The small files of a journal directory: its identity, its heartbeat and the writer's lock.

**Identity.** ``journal.json`` has the format, the name of the bus and an id that is created once.

**Heartbeat.** A log ends with its last event, which does not say whether nothing has happened since or the writer
has ended. So an idle writer leaves a heartbeat, at most every ``HEARTBEAT_EVERY_S``: the last committed seq, and an
instant such that every event up to it has at most that seq. A reader that looks at the heartbeat first and at the log
afterwards knows that nothing else happened until then. The file is one line of fixed length, overwritten in place
without fsync, which takes 10 microseconds of processor time a second. If the line is torn, its checksum is wrong; if
the log lacks its seq, it is ignored. In both cases nothing is known beyond the last event.

**Lock.** A journal has one writer. The lock is on the directory itself, because a lock file can be removed by hand,
and a second writer would then lock another file. Where a file system cannot lock directories (NFS), the
file ``lock`` is locked instead. Its text says how the journal was left: the pid of a writer that has not closed it, or
``closed`` and the last seq. Only a journal that was not closed can end in a torn batch; after a clean stop a batch that
cannot be read is damage.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import uuid
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from jetbus.journal.journal_errors import JournalError, JournalInUse, NotAJournal
from jetbus.journal.segment import FILE_MODE, read_json, read_regular, replace_file, sync_directory

IDENTITY_FORMAT = 1
IDENTITY_FILE = "journal.json"


class Identity(NamedTuple):
    """Name of the bus and id of a journal."""

    bus: str
    id: str


def read_identity(directory: Path) -> Identity:
    """Return the identity of the journal in a directory; raise ``NotAJournal`` if there is none."""
    try:
        fields = read_json(directory / IDENTITY_FILE)
        identity = Identity(str(fields["bus"]), str(fields["id"]))
        version = fields["format"]
    except (FileNotFoundError, NotADirectoryError):
        raise NotAJournal(f"{directory} is not a journal: it has no {IDENTITY_FILE}") from None
    except (ValueError, KeyError, TypeError):
        raise NotAJournal(
            f"{directory / IDENTITY_FILE} is damaged; restore it from a backup, or remove it to have it created again"
        ) from None
    if version != IDENTITY_FORMAT:
        raise NotAJournal(f"{directory} has format {version}, this jetbus knows {IDENTITY_FORMAT}; use a later jetbus")
    return identity


def ensure_identity(directory: Path, bus: str | None = None) -> Identity:
    """Return the identity of a journal, created if there is none; ``bus`` renames its bus."""
    if not (directory / IDENTITY_FILE).exists():
        identity = Identity(bus or socket.gethostname(), str(uuid.uuid4()))
    else:
        found = read_identity(directory)
        identity = found._replace(bus=bus or found.bus)
        if identity == found:
            return found
    write_identity(directory, identity)
    return identity


def write_identity(directory: Path, identity: Identity) -> None:
    """Replace the identity of a journal atomically."""
    text = json.dumps({"format": IDENTITY_FORMAT, **identity._asdict()})
    replace_file(directory / IDENTITY_FILE, text.encode() + b"\n")


HEARTBEAT_FILE = "heartbeat"
HEARTBEAT_EVERY_S = 1.0
"""Idle time, without events or heartbeat, after which a writer leaves a heartbeat."""


class Heartbeat(NamedTuple):
    """A promise: every event up to the instant ``us`` has a seq of at most ``seq``."""

    seq: int
    us: int


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the last heartbeat, or None without a valid one."""
    try:
        numbers, _, checksum = read_regular(directory / HEARTBEAT_FILE).rpartition(b" ")
        if int(checksum, 16) != crc32(numbers):
            return None
        seq, us = map(int, numbers.split())
    except (OSError, ValueError, JournalError):
        return None
    return Heartbeat(seq, us)


def write_heartbeat(directory: Path, heartbeat: Heartbeat) -> None:
    """Overwrite the heartbeat. Errors are ignored: without it readers only know less."""
    numbers = b"%020d %020d" % heartbeat
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / HEARTBEAT_FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.pwrite(descriptor, b"%s %08x\n" % (numbers, crc32(numbers)), 0)
        finally:
            os.close(descriptor)


LOCK_FILE = "lock"
_TEXT_BYTES = 64
"""Length to which the text is padded; overwriting it in place needs no space on a full disk."""
_LOCK_UNSUPPORTED = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class LockState(NamedTuple):
    """State in which the previous writer left a journal."""

    clean: bool = True
    """True if it closed the journal, or there was no previous writer."""
    torn: bool = False
    """True if it is known not to have closed it; the journal may then end in the middle of a batch."""
    last_seq: int = 0
    """The seq of the last event, if the journal was closed; else 0."""


def read_lock_state(directory: Path) -> LockState:
    """Return how a journal was left; while a writer has it open, as if that writer had been killed."""
    try:
        return _parse_lock_text(read_regular(directory / LOCK_FILE))
    except (OSError, JournalError):
        return LockState()


def _parse_lock_text(text: bytes) -> LockState:
    words = text.split()
    if not words:
        return LockState()
    if words[0] == b"closed" and len(words) == 2 and words[1].isdigit():
        return LockState(last_seq=int(words[1]))
    return LockState(clean=False, torn=True)


class Lock:
    """The writer's lock on a journal, acquired on construction."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_FILE
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._file = -1
        try:
            self._take()
            self._previous_text = os.pread(self._file, _TEXT_BYTES, 0)
            self._write(str(os.getpid()))
            if not self._previous_text:
                sync_directory(directory)
        except BaseException:
            self._close()
            raise
        self.previous = _parse_lock_text(self._previous_text)

    def _take(self) -> None:
        try:
            fcntl.flock(self._directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # never wait: the other writer may run for months
            raise self._make_in_use_error() from None
        except OSError as error:
            if error.errno not in _LOCK_UNSUPPORTED:
                raise
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._make_in_use_error() from None

    def _make_in_use_error(self) -> JournalInUse:
        holder = b""
        with contextlib.suppress(OSError):
            holder = self._path.read_bytes()[:_TEXT_BYTES].strip()
        by = f" by process {holder.decode(errors='replace')}" if holder.isdigit() else ""
        return JournalInUse(f"{self._path.parent} is being written{by}; stop that writer or choose another directory")

    def holds(self) -> bool:
        """Return whether the locked directory is still the one at its path.

        If only the ``lock`` file is missing, it is restored: the lock on the directory has kept other writers out.
        """
        try:
            if not os.path.samestat(self._path.parent.stat(), os.fstat(self._directory)):
                return False
        except OSError:
            return False
        if not os.fstat(self._file).st_nlink:
            self._restore_file()
        return True

    def _restore_file(self) -> None:
        with contextlib.suppress(OSError):
            fresh = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
            fcntl.flock(fresh, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(self._file)
            self._file = fresh
            self._write(str(os.getpid()))

    def release(self, *, clean: bool = True, last_seq: int = 0) -> None:
        """Release the lock; with ``clean``, record that the journal was closed and its last seq."""
        if clean:
            self._write(f"closed {last_seq}" if last_seq else "")
        self._close()

    def restore(self) -> None:
        """Release the lock and leave the file as it was before."""
        self._write(self._previous_text.decode(errors="replace").strip())
        self._close()

    def _close(self) -> None:
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)

    def _write(self, text: str) -> None:
        # Errors are ignored: a full disk must not keep the writer from closing. The file is synced, because after a
        # power loss its text decides whether the end of the log may be torn.
        with contextlib.suppress(OSError):
            os.pwrite(self._file, text.ljust(_TEXT_BYTES - 1).encode() + b"\n", 0)
            os.fsync(self._file)


def describe_open_permissions(directory: Path) -> str | None:
    """Return a warning if other users can access a journal, else None."""
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & stat.S_IRWXO:
        return None
    return f"{directory} is open to other users (mode {mode:04o}); restrict it with: chmod o-rwx {directory}"
