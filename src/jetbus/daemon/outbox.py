"""The way out to one peer: what it is to be told is gathered, joined and written once for all that arrived together.

A peer that reads more slowly than it is told becomes *slow*: its events then queue up one by one. Above the soft
limit a change takes the place of an older change of the same fetch and path that is still queued, so that the newest
value always arrives; add, remove, responses and fetches with ``every`` are never dropped. At the hard limit the peer
is given up. One slow peer never delays another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from jetbus.bus.audience import Audience, Part
from jetbus.wire.framing import as_batch

log = logging.getLogger("jetbus.outbox")

DRAIN_BYTES = 256 * 1024
"""How much of a slow peer's queue is handed to the socket at once."""
LARGE_BYTES = 16 * 1024
"""Several parts are handed to the socket without being joined if the last one is that large: a copy costs more."""
BATCH_BYTES = 64 * 1024
"""A batch that has become that long is closed and another one begun, so that its peer can begin to read."""
LARGE_PARTS_MAX = 256
"""More parts than that are joined all the same: there must be many small ones among them."""


@dataclass(slots=True)
class Flow:
    """What all outboxes of a daemon share: limits, counters and whose turn it is to be written."""

    loop: asyncio.AbstractEventLoop
    soft_bytes: int
    hard_bytes: int
    limit_hits: Counter[str]
    conflated: int = 0
    """Changes that a newer one has replaced."""
    sent: int = 0
    """Writes done."""
    sent_bytes: int = 0
    commit: Callable[[], object] | None = None
    """Called before anything is written, where nobody may hear of what is not yet on disk."""
    _dirty: list[SocketOutbox] = field(default_factory=list)
    _gathering: bool = False

    def gather(self) -> None:
        """Messages are about to be taken in; what they cause is written with ``gathered``."""
        # A commit waits for the disk: it is worth having all that other connections bring in this turn, too.
        self._gathering = self.commit is None

    def note(self, outbox: SocketOutbox) -> None:
        """Write this outbox when what has arrived is taken in, or else at the end of the turn."""
        if not self._dirty and not self._gathering:
            self.loop.call_soon(self.flush)
        self._dirty.append(outbox)

    def gathered(self) -> None:
        """The messages are taken in."""
        if self._gathering:
            self._gathering = False
            self.flush()

    def flush(self) -> None:
        """Write everything that has been gathered."""
        dirty, self._dirty = self._dirty, []
        for outbox in dirty:
            outbox.flush()


class _Beside:
    """Audiences whose chunks are open in one outbox at the same time; they are closed together."""

    __slots__ = ("audiences",)

    def __init__(self, audiences: list[Audience]) -> None:
        self.audiences = audiences

    @property
    def open_pieces(self) -> None:
        return None

    @open_pieces.setter
    def open_pieces(self, _closed: None) -> None:
        for audience in self.audiences:
            audience.open_pieces = None


class SocketOutbox:
    """The outbox of one connection."""

    __slots__ = (
        "_batches",
        "_closed",
        "_dropped",
        "_flow",
        "_gathered_bytes",
        "_head",
        "_last",
        "_latest",
        "_parts",
        "_queue",
        "_queued_bytes",
        "_shares",
        "_transport",
        "audiences",
        "label",
        "slow",
    )

    def __init__(self, transport: asyncio.Transport, flow: Flow) -> None:
        self._transport = transport
        self._flow = flow
        self._parts: list[Any] = []
        """Bytes, and chunks that are shared with other outboxes."""
        self._shares = False
        """Whether there are chunks among the parts."""
        self._gathered_bytes = 0
        self._batches = False
        """Whether the frames are messages after a comma, and all that is written together is one batch."""
        self._last: Audience | _Beside | None = None
        """The audience whose open chunk is the last part, or those whose open chunks are the last parts."""
        self.slow = False
        self._queue: list[bytes] = []
        self._head = 0
        """Index of the first queued frame that is not yet written."""
        self._dropped = 0
        """How many frames have been cut off the front of the list, for positions that stay valid."""
        self._queued_bytes = 0
        self._latest: dict[tuple[Audience, str], int] = {}
        self._closed = False
        self.audiences: Iterable[Audience] = ()
        """The audiences this outbox is a member of, as its session keeps them."""
        self.label = ""

    @property
    def waiting_bytes(self) -> int:
        """How much the peer has not taken yet."""
        if self._closed:
            return 0
        return self._gathered_bytes + self._queued_bytes + self._transport.get_write_buffer_size()

    # -- what the bus puts in

    def put(self, frame: bytes) -> None:
        if self.slow:
            self._enqueue(frame)
            return
        if self._last is not None:
            self._last.open_pieces = None
            self._last = None
        if not self._parts:
            self._flow.note(self)
        self._parts.append(frame)
        self._gathered_bytes += len(frame)
        if self._gathered_bytes > self._flow.hard_bytes:
            self._give_up()

    def batch(self) -> None:
        self.flush()
        self._batches = True

    def put_chunk(self, audience: Audience, chunk: Part) -> None:
        last = self._last
        if chunk.beside and type(last) is _Beside:
            last.audiences.append(audience)
        else:
            if last is not None:
                last.open_pieces = None
            self._last = _Beside([audience]) if chunk.beside else audience
        if not self._parts:
            self._flow.note(self)
        self._parts.append(chunk)
        self._shares = True

    def lend(self, audience: Audience) -> list[bytes]:
        last = self._last
        if last is not None:
            last.open_pieces = None
        self._last = audience
        parts = self._parts
        if not parts:
            self._flow.note(self)
        return parts

    def put_event(self, audience: Audience, path: str, kind: str, frame: bytes) -> None:
        if audience.every or kind == "sorted":
            self._enqueue(frame)
            return
        key = (audience, path)
        if kind != "change":
            self._latest.pop(key, None)
        else:
            position = self._latest.get(key, -1) - self._dropped
            if self._queued_bytes > self._flow.soft_bytes and position >= self._head:
                self._queued_bytes += len(frame) - len(self._queue[position])
                self._queue[position] = frame
                self._flow.conflated += 1
                return
            self._latest[key] = self._dropped + len(self._queue)
        self._enqueue(frame)

    def forget(self, audience: Audience) -> None:
        if self._latest:
            self._latest = {key: position for key, position in self._latest.items() if key[0] is not audience}

    def _enqueue(self, frame: bytes) -> None:
        if self._closed:
            return
        before_bytes = self._queued_bytes
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        if before_bytes <= self._flow.soft_bytes < self._queued_bytes:
            self._flow.limit_hits["outbox_soft_bytes"] += 1
        if self.waiting_bytes > self._flow.hard_bytes:
            self._give_up()

    def _give_up(self) -> None:
        if self._closed:
            return
        log.warning(
            "%s is closed: it has not taken %d bytes, more than outbox_hard_bytes = %d",
            self.label,
            self.waiting_bytes,
            self._flow.hard_bytes,
        )
        self._flow.limit_hits["outbox_hard_bytes"] += 1
        self.close()
        self._transport.abort()

    def close(self) -> None:
        """Forget everything; nothing is written any more."""
        self._closed = True
        self._parts = []
        self._queue = []
        self._latest = {}
        self._gathered_bytes = self._queued_bytes = 0

    # -- what the event loop takes out

    def flush(self) -> None:
        """Write what was gathered in this turn."""
        parts = self._take_gathered()
        if not parts:
            return
        if len(parts) == 1:
            self._write(parts[0])
        elif self._batches:
            self._write_batches(parts)
        elif len(parts[-1]) < LARGE_BYTES or len(parts) > LARGE_PARTS_MAX:
            self._write(b"".join(parts))
        else:
            self._prepare(sum(map(len, parts)))
            self._transport.writelines(parts)
        if self._transport.get_write_buffer_size() > self._flow.hard_bytes:
            self._give_up()

    def _take_gathered(self) -> list[bytes]:
        if self._last is not None:
            self._last.open_pieces = None
            self._last = None
        parts, self._parts = self._parts, []
        self._gathered_bytes = 0
        if self._closed or not parts:
            return []
        if self._shares:
            self._shares = False
            parts = [parts[0].joined()] if len(parts) == 1 else _apart(parts)
        return parts

    def _write(self, data: bytes) -> None:
        if self._batches:
            data = as_batch(data)
        self._prepare(len(data))
        self._transport.write(data)

    def _write_batches(self, parts: list[bytes]) -> None:
        first = size = 0
        for at, part in enumerate(parts):
            if size > BATCH_BYTES and part[:1] == b",":
                self._write(b"".join(parts[first:at]))
                first, size = at, 0
            size += len(part)
        self._write(b"".join(parts[first:]))

    def _prepare(self, size: int) -> None:
        """Bytes are about to be written."""
        flow = self._flow
        if flow.commit is not None:
            flow.commit()
        flow.sent += 1
        flow.sent_bytes += size

    def pause(self) -> None:
        """The socket takes no more for the moment; what was gathered goes first when it does again."""
        gathered = self._take_gathered()
        if gathered:
            self._enqueue(b"".join(gathered))
        self._set_slow(True)

    def resume(self) -> None:
        """The socket takes more: write what is queued, as far as it goes."""
        self.slow = False  # a write that fills the socket again sets it
        while self._head < len(self._queue) and not self.slow:
            self._write(self._dequeue())
        if self._head == len(self._queue):
            self._dropped += self._head
            self._queue, self._head, self._latest = [], 0, {}
        if not self.slow:
            self._set_slow(False)

    def _dequeue(self) -> bytes:
        first, size = self._head, 0
        while self._head < len(self._queue) and size < DRAIN_BYTES:
            size += len(self._queue[self._head])
            self._head += 1
        data = b"".join(self._queue[first : self._head])
        self._queued_bytes -= size
        if self._head > 10_000:
            del self._queue[: self._head]
            self._dropped += self._head
            self._head = 0
        return data

    def _set_slow(self, slow: bool) -> None:
        self.slow = slow
        for audience in self.audiences:
            audience.rejoin(self)


def _apart(parts: list[Any]) -> list[bytes]:
    """Bytes only; what is shared stays shared."""
    pieces: list[bytes] = []
    for part in parts:
        if type(part) is bytes:
            pieces.append(part)
        else:
            pieces += part.apart()
    return pieces
