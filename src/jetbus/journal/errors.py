"""The errors of the journal, named by what the caller can do about them.

    JournalError            base class; the text has the cause and the next step
        JournalInUse        another process writes or compacts the journal
        JournalGone         retention has dropped the requested events
        JournalDamaged      a part of a file cannot be read; later events can
        NotAJournal         the directory has no journal, or one of a newer format
        BadInstant          a text is neither an instant nor a duration (also a ValueError)
        UnknownEvent        there is no kind of event of that name (also a ValueError)

They are raised by code that reads and writes files and are never sent over the bus, so they are not ``JetError``s.
"""

from __future__ import annotations

__all__ = ["BadInstant", "JournalDamaged", "JournalError", "JournalGone", "JournalInUse", "NotAJournal", "UnknownEvent"]

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


class JournalDamaged(JournalError):
    """A part of a file cannot be read; ``next_seq`` is the first event after it."""

    def __init__(self, text: str, *, next_seq: int) -> None:
        super().__init__(text)
        self.next_seq = next_seq


class NotAJournal(JournalError):
    """The directory has no journal, or one of a format that this version cannot read."""


class BadInstant(JournalError, ValueError):
    """A text that is neither an instant nor a duration."""


class UnknownEvent(JournalError, ValueError):
    """A name that is not one of a kind of event."""
