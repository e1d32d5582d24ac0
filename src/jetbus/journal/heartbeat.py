"""The heartbeat of a journal: a small file in which the writer says how far time has come while nothing happens.

A log ends with its last event. Whether nothing has happened since then or nobody has written since then cannot be seen
from it. So a writer that has nothing to write leaves a heartbeat, at most every ``EVERY_S``: the last seq it has
committed and an instant such that every event up to that instant has at most that seq. A reader that looks at the
heartbeat first and at the log afterwards knows that nothing else happened until then.

The file has one line of fixed length, written over in place, without fsync and without a second file: that takes 10
microseconds of processor time a second, and no disk is waited for. A line that is torn or was lost with the power fails
its checksum or is missing; then nothing is known beyond the last event. The same holds if the log lacks the seq that
the heartbeat names.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from jetbus.journal.segment import FILE_MODE

FILE = "heartbeat"
EVERY_S = 1.0
"""How long a writer has written nothing, events or heartbeat, before it leaves a heartbeat."""


class Heartbeat(NamedTuple):
    """Every event up to the instant ``us`` has a seq of at most ``seq``."""

    seq: int
    us: int


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the last heartbeat, None if there is none that can be trusted."""
    try:
        numbers, _, checksum = (directory / FILE).read_bytes().rpartition(b" ")
        if int(checksum, 16) != crc32(numbers):
            return None
        seq, us = map(int, numbers.split())
    except (OSError, ValueError):
        return None
    return Heartbeat(seq, us)


def write_heartbeat(directory: Path, heartbeat: Heartbeat) -> None:
    """Replace the last heartbeat. A disk that refuses is no problem: the reader then knows less."""
    numbers = b"%020d %020d" % heartbeat
    with contextlib.suppress(OSError):
        descriptor = os.open(directory / FILE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            os.pwrite(descriptor, b"%s %08x\n" % (numbers, crc32(numbers)), 0)
        finally:
            os.close(descriptor)
