"""Lengths of messages: which the daemon has taken, and which it has answered by closing the connection.

Every daemon has a limit, cjet one of 512 bytes, and none says a word when a message is longer: it closes the
connection. A peer that then says everything again would run into the same limit for ever. So a session notes the long
messages of a connection; only those longer than all before them, since no other can be the first that is too long. A
request that was answered, or a later one, proves that a message has arrived. When the connection ends, the first
request without an answer is the one to accuse if it is a long one, else the longest change before it. That may be
chance: daemons are restarted. So the first accusation is only a doubt, which ends when all that is said again on the
next connection is answered, and a second one in a row is taken as the daemon's limit. Nothing here does I/O or knows
the time.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

SHORT_BYTES = 256
"""No daemon is expected to refuse a message as short as this."""
NOTED_MAX = 64
"""How many long messages are remembered, those that have arrived not counted; older ones are forgotten."""


class Noted(NamedTuple):
    """A message that is longer than all before it on this connection."""

    size: int
    number: int
    """The number of the request; of a change that of the request before it."""
    is_request: bool
    subject: Any
    """The state it is about, if it gives one its value."""


class Accusation(NamedTuple):
    """The message on which the daemon seems to have closed the connection."""

    noted: Noted
    confirmed: bool
    """Whether it is not the first one in a row."""


class Lengths:
    """What a session knows of the lengths that its daemon takes."""

    def __init__(self) -> None:
        self.refused: float = float("inf")
        """A message of this length or more is refused for certain."""
        self.batch: float = float("inf")
        """A batch of this length or more is sent in parts; that harms nobody, so that a doubt is enough."""
        self.passed = SHORT_BYTES
        """A message of this length has arrived, or is short enough for every daemon."""
        self._doubted: float = float("inf")
        """The length of the message that the last connection may have ended on."""
        self._noted: list[Noted] = []
        self.unremarkable = SHORT_BYTES
        """Messages up to this length need not be noted."""

    def note(self, noted: Noted, pending: Container[int], last: int) -> None:
        """Remember a long message; ``pending`` are the requests without an answer, ``last`` is the latest of all."""
        if len(self._noted) >= NOTED_MAX:
            self.forget_arrived(pending, last)
            del self._noted[: 1 - NOTED_MAX]
        if self._noted and not noted.is_request and self._noted[-1][1:3] == noted[1:3]:
            self._noted.pop()  # between two requests only the longest matters
        self._noted.append(noted)
        self.unremarkable = noted.size

    def on_lost(self, pending: Container[int], last: int) -> Accusation | None:
        """The connection has ended; returns the message that it may have ended on."""
        answered = self.forget_arrived(pending, last)
        unproven, self._noted = self._noted, []
        self.unremarkable = self.passed
        accused = _accused(unproven, answered + 1 if answered < last else None)
        if accused is None:
            return None
        confirmed = accused.is_request and self._doubted < float("inf")
        if confirmed:
            self.refused = min(self.refused, self._doubted, accused.size)
        elif accused.subject is None and not accused.is_request:
            self.batch = min(self.batch, accused.size)
        self._doubted = accused.size
        return Accusation(accused, confirmed)

    def on_settled(self) -> None:
        """All that was said again on a new connection is answered: what was doubted has not been the reason."""
        self._doubted = float("inf")

    def forget_arrived(self, pending: Container[int], last: int) -> int:
        """Forget the messages that have arrived; returns the number of the latest request that was answered."""
        while last > 0 and last in pending:
            last -= 1
        arrived = [noted for noted in self._noted if noted.number < last or (noted.is_request and noted.number == last)]
        for noted in arrived:
            self.passed = max(self.passed, noted.size)
            self._noted.remove(noted)
        return last

    @property
    def are_noted(self) -> bool:
        """Whether there are long messages of which it is not known whether they have arrived."""
        return bool(self._noted)


def _accused(unproven: list[Noted], unanswered: int | None) -> Noted | None:
    """The message to accuse; ``unanswered`` is the first request behind the last answer."""
    for noted in unproven:
        if noted.is_request and noted.number == unanswered:
            return noted
    before = [noted for noted in unproven if unanswered is None or noted.number < unanswered]
    return before[-1] if before else None
