"""Lengths of messages: which the daemon has accepted, and which made it close the connection.

Every daemon limits the length of a message (cjet to 512 bytes). jetbus states its limit in the answer to ``info``, with
which a connection starts. No other daemon does, it just closes the connection, and a peer that reconnects and sends
everything again would hit the same limit for ever. So a session works out which message was too long::

    sent on this connection      request 1    long change    request 2 (long)    request 3
    answered before it closed    yes                         no                  no
                                                             ^ suspect

A session notes its long messages, but only those longer than all before, since no other can be the first that is too
long. A response to a request proves that it and everything before it has arrived. When the connection ends, the suspect
is the first request without a response if that is a long one, else the longest change before it.

That may be chance, for daemons are restarted. So a first suspicion has few consequences: it is dropped when everything
that is sent again on the next connection is answered. Only a second one in a row counts as the daemon's limit. Nothing
here does I/O or knows the time.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jetbus.peer.elements import OwnedState

SHORT_BYTES = 256
"""Every daemon is expected to accept a message as short as this."""
NOTED_MAX = 64
"""Limit of long messages without a proof of arrival; older ones are forgotten."""


class LongMessage(NamedTuple):
    """A message that is longer than all before it on this connection."""

    size: int
    number: int
    """The number of the request; for a change that of the request before it."""
    is_request: bool
    state: OwnedState | None
    """The state that it changes, if it is a change."""


class Suspicion(NamedTuple):
    """The message on which the daemon seems to have closed the connection."""

    message: LongMessage
    is_confirmed: bool
    """True if it is the second one in a row."""


class Lengths:
    """Lengths that the daemon of a session accepts, as far as they are known."""

    def __init__(self) -> None:
        self.refused: float = float("inf")
        """The daemon refuses messages of this length or more."""
        self.batch: float = float("inf")
        """Batches of this length or more are split; that does no harm, so a first suspicion is enough."""
        self.accepted = SHORT_BYTES
        """The daemon accepts messages of this length."""
        self._suspected: float = float("inf")
        """Length of the message that the last connection may have ended on."""
        self._unproven: list[LongMessage] = []
        self.unremarkable = SHORT_BYTES
        """Messages up to this length need not be noted."""
        self.stated: int | None = None
        """Limit that the daemon has stated itself; then nothing has to be found out."""

    def learn(self, limit: int) -> None:
        """Take over the limit that the daemon states."""
        self.stated = self.accepted = self.unremarkable = limit
        self.refused = self.batch = limit + 1
        self._unproven = []

    def limit_batches(self, size: float) -> None:
        """Split batches longer than this."""
        self.batch = min(self.batch, size + 1)

    def note(self, message: LongMessage, open_requests: Container[int], last: int) -> None:
        """Note a long message; ``last`` is the number of the latest request."""
        if len(self._unproven) >= NOTED_MAX:
            self.forget_arrived(open_requests, last)
            # The oldest go: they have most likely arrived, and their requests just take long.
            del self._unproven[: 1 - NOTED_MAX]
        if self._unproven and not message.is_request and self._unproven[-1][1:3] == message[1:3]:
            self._unproven.pop()  # between two requests only the longest matters
        self._unproven.append(message)
        self.unremarkable = message.size

    def on_lost(self, open_requests: Container[int], last: int) -> Suspicion | None:
        """Return the message that the connection may have ended on."""
        answered = self.forget_arrived(open_requests, last)
        unproven, self._unproven = self._unproven, []
        self.unremarkable = self.accepted
        suspect = _find_suspect(unproven, answered + 1 if answered < last else None)
        if suspect is None:
            return None
        # A change alone proves nothing: it is without a response, so anything behind it may have been the cause.
        is_confirmed = suspect.is_request and self._suspected < float("inf")
        if is_confirmed:
            self.refused = min(self.refused, self._suspected, suspect.size)
        elif suspect.state is None and not suspect.is_request:
            # Half of it: by a little less at a time, one connection would be lost for each batch.
            self.limit_batches(max(self.accepted, suspect.size // 2))
        self._suspected = suspect.size
        return Suspicion(suspect, is_confirmed)

    def on_settled(self) -> None:
        """Drop the suspicion: everything that was sent again on the new connection is answered."""
        self._suspected = float("inf")

    def forget_arrived(self, open_requests: Container[int], last: int) -> int:
        """Forget the messages that have arrived; return the number of the latest request with a response."""
        # A response proves that all messages before its request have arrived, too.
        while last > 0 and last in open_requests:
            last -= 1
        arrived = [one for one in self._unproven if one.number < last or (one.is_request and one.number == last)]
        for message in arrived:
            self.accepted = max(self.accepted, message.size)
            self._unproven.remove(message)
        return last

    @property
    def has_unproven(self) -> bool:
        """True if there are long messages of which it is not known whether they have arrived."""
        return bool(self._unproven)

    @property
    def unproven_count(self) -> int:
        """Number of these messages."""
        return len(self._unproven)


def _find_suspect(unproven: list[LongMessage], unanswered: int | None) -> LongMessage | None:
    """Return the suspect; ``unanswered`` is the first request after the last response."""
    for message in unproven:
        if message.is_request and message.number == unanswered:
            return message
    # Each noted message is longer than those before it, so the last one is the longest.
    before = [message for message in unproven if unanswered is None or message.number < unanswered]
    return before[-1] if before else None
