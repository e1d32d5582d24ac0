"""The bus remembers: a durable, replayable, gap-free log of every event, as Arrow IPC segments in a directory.

The writing half appends events and commits them in groups; one writer per directory. The reading half needs no lock
and reads while somebody writes. Needs pyarrow: ``pip install 'jetbus[history]'``.
"""

from __future__ import annotations

try:
    import pyarrow as _pyarrow  # noqa: F401 - here, to say what is missing before anything else does
except ModuleNotFoundError as _missing:
    raise ModuleNotFoundError(
        "the journal needs pyarrow; install it with: pip install 'jetbus[history]'", name="pyarrow"
    ) from _missing

from jetbus.journal.compaction import Compacted, Pruned, compact, prune
from jetbus.journal.density import Densities
from jetbus.journal.errors import BadInstant, JournalError, JournalGone, JournalInUse, NotAJournal
from jetbus.journal.instants import read_duration, read_instant
from jetbus.journal.reader import Journal, Offsets, open  # noqa: A004 - journal.open(...) is how it reads
from jetbus.journal.recovery import Recovered
from jetbus.journal.settings import Settings
from jetbus.journal.stats import Stats
from jetbus.journal.verify import Problem, verify
from jetbus.journal.writer import Writer

__all__ = [
    "BadInstant",
    "Compacted",
    "Densities",
    "Journal",
    "JournalError",
    "JournalGone",
    "JournalInUse",
    "NotAJournal",
    "Offsets",
    "Problem",
    "Pruned",
    "Recovered",
    "Settings",
    "Stats",
    "Writer",
    "compact",
    "open",
    "prune",
    "read_duration",
    "read_instant",
    "verify",
]
