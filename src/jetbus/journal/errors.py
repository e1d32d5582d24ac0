"""Every error of the journal, named by what the caller can do about it.

    JournalError            the journal cannot do it; the text has the cause and the next step
        JournalInUse        another process writes there
        JournalGone         what was asked for has been dropped by retention
        JournalDamaged      a file cannot be read; what comes after it can
        NotAJournal         the directory holds no journal, or one of a later format
        BadInstant          a text that is no instant or no duration (a ValueError, too)

They never travel over the bus, so they are no ``JetError``.
"""

from __future__ import annotations

__all__ = ["BadInstant", "JournalDamaged", "JournalError", "JournalGone", "JournalInUse", "NotAJournal"]

NEEDS_PYARROW = "the journal needs pyarrow; install it with: pip install 'jetbus[history]'"


class JournalError(Exception):
    """The journal cannot do it."""


class JournalInUse(JournalError):
    """Another process writes to this journal; it has one writer at a time."""


class JournalGone(JournalError):
    """What was asked for has been dropped by retention; ``first_seq`` is the first event there is."""

    def __init__(self, text: str, *, first_seq: int) -> None:
        super().__init__(text)
        self.first_seq = first_seq


class JournalDamaged(JournalError):
    """A part of a file cannot be read; ``next_seq`` is the first event after it."""

    def __init__(self, text: str, *, next_seq: int) -> None:
        super().__init__(text)
        self.next_seq = next_seq


class NotAJournal(JournalError):
    """The directory holds no journal, or one of a format that this version does not know."""


class BadInstant(JournalError, ValueError):
    """A text that is neither an instant nor a duration."""
