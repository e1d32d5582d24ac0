"""The journal: a durable, replayable log of every event on a bus, as Arrow IPC segments in a directory.

The writing half appends events and commits them in groups; a directory has one writer. The reading half needs no lock
and reads while a writer writes. Both need pyarrow (``pip install 'jetbus[history]'``); instants and errors can be
imported without it.

    writer            appends events;  ``batch``, ``segment_writer``, ``segment``, ``index``, ``sampling``, ``settings``
    recovery          the end of a journal after a crash;  ``directory``, identity, heartbeat and lock
    maintenance       snapshots and retention;  ``compaction`` to ``parquet``, ``verification``, ``stats``
    reader            one object for several directories;  ``log`` of one, ``filters``, ``tree``, ``snapshots``
    effective         events in the order in which they were true
    expansion         the size of compressed batches in memory
    source            questions, asked of a folder and of a daemon in one way;  ``pages`` of answers
    instants          instants and durations as people write them;  ``events``, ``journal_errors``
    typed             values in columns of their types;  ``recorded_units``, ``pandas_frames``
    export            files for other tools;  ``spreadsheet``, events as CSV
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jetbus.journal.instants import read_duration, read_instant
from jetbus.journal.journal_errors import (
    NEEDS_PYARROW,
    BadInstant,
    BeforeJournal,
    JournalDamaged,
    JournalError,
    JournalGone,
    JournalInUse,
    JournalReplaced,
    NoJournal,
    NotAJournal,
    NotRecorded,
    UnknownEvent,
)

if TYPE_CHECKING:
    from jetbus.journal.compaction import Compacted, Pruned, compact, prune
    from jetbus.journal.reader import Journal, Offsets, open  # noqa: A004 - journal.open(...) is how it reads
    from jetbus.journal.recovery import Recovered
    from jetbus.journal.sampling import Densities
    from jetbus.journal.settings import Settings
    from jetbus.journal.stats import Stats
    from jetbus.journal.verification import Problem, verify
    from jetbus.journal.writer import Writer

__all__ = [
    "BadInstant",
    "BeforeJournal",
    "Compacted",
    "Densities",
    "Journal",
    "JournalDamaged",
    "JournalError",
    "JournalGone",
    "JournalInUse",
    "JournalReplaced",
    "NoJournal",
    "NotAJournal",
    "NotRecorded",
    "Offsets",
    "Problem",
    "Pruned",
    "Recovered",
    "Settings",
    "Stats",
    "UnknownEvent",
    "Writer",
    "compact",
    "open",
    "prune",
    "read_duration",
    "read_instant",
    "verify",
]

_MODULES = {
    "compaction": ("Compacted", "Pruned", "compact", "prune"),
    "sampling": ("Densities",),
    "reader": ("Journal", "Offsets", "open"),
    "recovery": ("Recovered",),
    "settings": ("Settings",),
    "stats": ("Stats",),
    "verification": ("Problem", "verify"),
    "writer": ("Writer",),
}
"""The modules of the names that are imported on first use."""
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'jetbus.journal' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"jetbus.journal.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "pyarrow":
            raise
        raise ModuleNotFoundError(NEEDS_PYARROW, name="pyarrow") from missing
