"""Batches: several messages in one text.

Their members are handled like single messages. In the dialect of 2012, which follows JSON-RPC 2.0, a batch is also
answered by one batch; all other dialects answer message by message.

While a batch is open, its session's way out is led through here. A response is known by its id; whatever is none of
the batch's responses (events do not come this way at all) passes. The batch goes out when its last request has been
answered, which for a set or call is when the owner answers. Its members may be handled in several turns; a
``BatchEnd`` behind them says when all are.

    [{"id":1,...},{"id":2,...}]   ->   receive()   ->   {"id":1,...}  {"id":2,...}   ->   [{"id":1,...},{"id":2,...}]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from jetbus.bus.conditions import DUE, READY
from jetbus.errors import JetError
from jetbus.wire import jsonrpc, legacy

if TYPE_CHECKING:
    from jetbus.bus.bus import Bus
    from jetbus.bus.session import Session

# The bus composes every response with its id first, so the first bytes are enough to tell responses from requests.
_RESPONSE = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*"|[^,]*),"(?!method)')
MEMBERS_AT_ONCE = 100
"""Number of members of a batch between two looks at the clock."""


class _Batch:
    """The responses to the requests of one batch."""

    def __init__(self, awaited: Sequence[bytes]) -> None:
        self.awaited = Counter(awaited)
        self.responses: list[bytes] = []
        self.size_bytes = 0

    def add(self, response_id: bytes, response: bytes) -> None:
        # Nothing stops a peer from using one id for several requests of a batch.
        if self.awaited[response_id] > 1:
            self.awaited[response_id] -= 1
        else:
            del self.awaited[response_id]
        self.responses.append(response)
        self.size_bytes += len(response)

    def take(self) -> bytes:
        """Return the collected responses as one message and forget them."""
        message = b"[" + b",".join(self.responses) + b"]"
        self.responses, self.size_bytes = [], 0
        return message


class BatchEnd(bytes):
    """End of a batch among the messages that wait: no message, and no JSON, so that it costs the usual ones nothing."""

    _batches: Batches
    _batch: _Batch

    def __new__(cls, batches: Batches, batch: _Batch) -> Self:
        end = super().__new__(cls)
        end._batches, end._batch = batches, batch
        return end

    def close(self) -> None:
        """Answer the batch as soon as its last request is answered."""
        self._batches.end(self._batch)


class Batches:
    """The open batches of one session. ``overflow`` is called when a batch grows beyond ``bytes_max``."""

    def __init__(self, session: Session, bytes_max: int, overflow: Callable[[], object]) -> None:
        self._session = session
        self._bytes_max = bytes_max
        self._overflow = overflow
        self._open: list[_Batch] = []
        self._handled: _Batch | None = None

    def open(self, awaited: Sequence[bytes]) -> BatchEnd:
        """Start a batch of requests with these ids; return the texts to handle behind its last member."""
        session, batch = self._session, _Batch(awaited)
        self._open.append(batch)
        # Responses come without a header, since they are parts of a message, and get one in ``_send``.
        session.batches, session.header, session.put = self, _no_header, self.put
        self._handled = batch
        return BatchEnd(self, batch)

    def interrupt(self) -> None:
        """Stop handling the members, because one waits for a slow service; send the batch after its last response."""
        batch, self._handled = self._handled, None
        if batch is not None:
            self._close_if_answered(batch)

    def end(self, batch: _Batch) -> None:
        """Note that all members of a batch have been handled."""
        if batch is self._handled:
            self.interrupt()

    def put(self, frame: bytes) -> None:
        """Send a message, or keep it until the batch that it belongs to is answered."""
        found = _RESPONSE.match(frame)
        batch = self._batch_of(found[1]) if found else None
        if found is None or batch is None:
            self._send(frame)
            return
        batch.add(found[1], frame)
        # The limit is a matter of memory, not of correctness: the answer goes out in two batches instead.
        if batch.size_bytes > self._bytes_max:
            self._overflow()
            self._send(batch.take())
        self._close_if_answered(batch)

    def _batch_of(self, response_id: bytes) -> _Batch | None:
        if response_id == jsonrpc.NULL:
            return self._handled  # an error about a member without a readable id
        return next((batch for batch in self._open if response_id in batch.awaited), None)

    def _close_if_answered(self, batch: _Batch) -> None:
        if batch.awaited or batch is self._handled:
            return
        self._open.remove(batch)
        if batch.responses:
            self._send(batch.take())
        # From here on responses cost as much as without batches.
        if not self._open:
            session = self._session
            session.batches, session.header, session.put = None, session.framing.header, session.outbox.put

    def _send(self, message: bytes) -> None:
        session = self._session
        session.outbox.put(session.framing.header(len(message)) + message)


def _no_header(_length: int) -> bytes:
    return b""


def awaited_ids(members: Sequence[bytes]) -> list[bytes]:
    """Return the ids of the requests among the members of a batch, each of which is answered exactly once."""
    found = []
    for member in members:
        try:
            envelope = jsonrpc.decode_envelope(member)
            request_id = jsonrpc.read_id(envelope.id)
        except (JetError, *jsonrpc.UNREADABLE):
            continue
        if request_id and (envelope.method or not (envelope.result or envelope.error)):
            found.append(request_id)
    return found


# -- receiving


def receive_batch(bus: Bus, session: Session, text: bytes, members: list[bytes]) -> None:
    """Handle the members of a batch."""
    # A peer that owns or fetches something has shown its dialect before.
    is_new = not session.elements and not session.fetches
    if session.dialect.has_nodes or (is_new and legacy.may_be_legacy(text) and _has_legacy(members)):
        limit = bus.limits.batch_bytes_max
        batches = session.batches or Batches(session, limit, lambda: bus.limit_hits.update(["batch_bytes_max"]))
        members.append(batches.open(awaited_ids(members)))
    _receive_members(bus, session, members)


def _receive_members(bus: Bus, session: Session, members: list[bytes]) -> None:
    """Handle the members of a batch; where the turn ends among them, the rest waits for the next one."""
    for start in range(0, len(members), MEMBERS_AT_ONCE):
        some = members[start : start + MEMBERS_AT_ONCE]
        if session.condition is not READY:
            bus.serving.hold_back(session, members[start:])
            break
        bus.receive(session, some, bus.now)
        bus.serving.end_turn(session)
    # A member waits for a slow service, and the mark behind the
    # batch with it. The last response ends the batch instead.
    if session.condition not in (READY, DUE) and session.batches is not None:
        session.batches.interrupt()


def _has_legacy(members: Sequence[bytes]) -> bool:
    """Return True if a member of a batch is a request of 2012."""
    for member in members:
        try:
            if legacy.is_legacy(jsonrpc.decode_envelope(member)):
                return True
        except (JetError, *jsonrpc.UNREADABLE):
            continue
    return False
