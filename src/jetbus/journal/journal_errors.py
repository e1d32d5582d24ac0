"""The errors of the journal, named by what the caller can do about them.

    JournalError            base class; the text has the cause and the next step
        JournalInUse        another process writes or compacts the journal
        JournalGone         retention has dropped the requested events
        JournalReplaced     the journal is another one than before
        JournalDamaged      a part of a file cannot be read; later events can
        NotAJournal         the directory is without a journal, or has one of another format
        BadInstant          a text is neither an instant nor a duration (also a ValueError)
        UnknownEvent        a kind of event of that name does not exist (also a ValueError)
        NotRecorded         nothing recorded matches a path or rule at that time (also NotFound)
        BeforeJournal       an instant is before the first event (also NotFound)
        NoJournal           the daemon keeps no journal (also NotFound)

They are raised by code that reads and writes files and are never sent over the bus. The last three are raised by peers,
too, and are ``JetError``s: the past has the same words for both.
"""

from __future__ import annotations

from jetbus.errors import NotFound
from jetbus.json_types import Json

__all__ = [
    "BadInstant",
    "BeforeJournal",
    "JournalDamaged",
    "JournalError",
    "JournalGone",
    "JournalInUse",
    "JournalReplaced",
    "NoJournal",
    "NotAJournal",
    "NotRecorded",
    "UnknownEvent",
]

NEEDS_PYARROW = "the journal needs pyarrow; install it with: pip install 'jetbus[history]'"


class JournalError(Exception):
    """Base class of the journal's errors."""


class JournalInUse(JournalError):
    """Another process writes to or compacts this journal."""


class JournalGone(JournalError):
    """Retention has dropped the requested events; ``first_seq`` is the first event in the journal."""

    def __init__(self, text: str, *, first_seq: int) -> None:
        super().__init__(text)
        self.first_seq = first_seq


class JournalReplaced(JournalError):
    """The journal is another one than before: it ends before an event that was in it."""


class JournalDamaged(JournalError):
    """A part of a file cannot be read; ``next_seq`` is the first event after it."""

    def __init__(self, text: str, *, next_seq: int) -> None:
        super().__init__(text)
        self.next_seq = next_seq


class NotAJournal(JournalError):
    """The directory is without a journal, or has one of a format that this version cannot read."""


class BadInstant(JournalError, ValueError):
    """A text that is neither an instant nor a duration."""


class UnknownEvent(JournalError, ValueError):
    """A name that is not one of a kind of event."""


class NotRecorded(JournalError, NotFound):
    """Nothing in the journal matches a path or a rule at that time; ``similar`` is the path that may be meant."""

    similar: str | None = None


class BeforeJournal(JournalError, NotFound):
    """An instant is before the first event of the journal, which knows nothing of it."""

    def __init__(self, instant: Json, begin: str = "") -> None:
        super().__init__(instant, f"{instant} is before the journal begins, which is at {begin}; give a later one")


class NoJournal(JournalError, NotFound):
    """The daemon keeps no journal."""

    def __init__(self, path: Json = "$jet/journal") -> None:
        super().__init__(
            path,
            "the daemon keeps no journal; start it with `jetd --journal DIR`, or record any daemon with"
            " `jet record DIR` and read that with jetbus.journal",
        )
