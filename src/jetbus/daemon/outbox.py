"""Outboxes: the frames for one peer, gathered, joined and written once for all messages that arrived together.

**Gathering.** While the daemon handles the messages of a read, ``Flow`` collects the outboxes that received something;
then each is written once. With ``journal_fsync = always`` that happens at the end of the turn instead, so that one
commit of the journal (a *group commit*) covers what all connections have sent in this turn::

    read A: handle, handle    read B: handle    end of turn: commit once, write the outboxes of all peers

**Slow peers.** A peer that reads more slowly than it is sent to becomes *slow*: its events queue up one by one. Above
the soft limit a change takes the place of an older change of the same fetch and path that is still queued
(*conflation*)::

    socket <- | add a | change a 1 | change b 7 | response | change a 2 |     below the soft limit: appended
    socket <- | add a | change a 2 | change b 7 | response |                  above it: replaces "change a 1"

So the queue grows with the number of paths and not with time, and the newest value always arrives. Adds, removes,
responses and the events of fetches with ``every`` are never dropped. At the hard limit the peer is disconnected. One
slow peer never delays another.

Messages of a *sorted* fetch are parts of a window, each of which builds upon those before it. Above the soft limit all
that are queued give way to one place for the whole window, which is encoded only when it is written::

    socket <- | response | part s 1-3 | change b 7 | part s 2-9 |             below the soft limit: appended
    socket <- | response | window s   | change b 7 |                          above it, until the window is written

A peer for which one turn makes more than ``GATHERED_SHARE`` of the hard limit, by long messages of sorted fetches,
counts as slow until the end of that turn.

A window brings a list up to date whatever was sent before, so that a slow peer ends with the same list as a fast one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic as clock
from typing import Any, Protocol

from jetbus.bus.account import Account
from jetbus.bus.audiences import Audience
from jetbus.bus.ports import Part
from jetbus.wire.framing import frame_batch
from jetbus.wire.lane import OutboxCore

log = logging.getLogger("jetbus.outbox")

DRAIN_BYTES = 256 * 1024
"""Bytes of a slow peer's queue that are handed to the socket at once."""
HOLD_S = 0.1
"""Wait before the disk is tried again for the outboxes that it holds up."""
GRACE_S = 0.5
"""Time for which a peer may be slow before it can be closed because all peers, or those of its address, keep too much:
one long event makes many peers slow for a moment, and they share its bytes."""
LARGE_BYTES = 16 * 1024
"""Several parts are handed to the socket without being joined if the last one is that large: a copy costs more."""
BATCH_BYTES = 64 * 1024
"""A batch that has become that long is closed and another one begun, so that its peer can begin to read."""
GATHERED_SHARE = 1 / 16
"""Share of the hard limit that may be gathered in one turn before a peer counts as slow."""
LARGE_PARTS_MAX = 256
"""More parts than that are joined all the same: there must be many small ones among them."""


@dataclass(slots=True)
class Flow:
    """State shared by all outboxes of a daemon: limits, counters, and the outboxes to be written next."""

    loop: asyncio.AbstractEventLoop
    soft_bytes: int
    hard_bytes: int
    limit_hits: Counter[str]
    total_bytes: int = 128 << 20
    """Bytes that all slow peers together may leave unread."""
    queued_bytes: int = 0
    """Bytes queued for all slow peers."""
    slow: dict[SocketOutbox, None] = field(default_factory=dict)
    """Outboxes with a queue."""
    slow_since: dict[SocketOutbox, float] = field(default_factory=dict)
    """Outboxes whose peer does not read fast enough, with the time since when, longest first."""
    conflated: int = 0
    """Changes that a newer one has replaced."""
    sent: int = 0
    """Writes done."""
    sent_bytes: int = 0
    commit: Callable[[], bool] | None = None
    """Called before anything is written, where nobody may hear of what is not yet on disk; True if all of it is."""
    held: dict[SocketOutbox, None] = field(default_factory=dict)
    """Outboxes that wait for the disk."""
    _dirty: list[SocketOutbox] = field(default_factory=list)
    _gathering: bool = False

    def gather(self) -> None:
        """Begin to handle messages; what they cause is written by ``gathered``."""
        # A commit waits for the disk: it is worth having all that other connections bring in this turn, too.
        self._gathering = self.commit is None

    def note(self, outbox: SocketOutbox) -> None:
        """Write this outbox when what has arrived is taken in, or else at the end of the turn."""
        if not self._dirty and not self._gathering:
            self.loop.call_soon(self.flush)
        self._dirty.append(outbox)
        outbox._gather_max = self.hard_bytes

    def may_write(self, outbox: SocketOutbox) -> bool:
        """Return whether everything is on disk that has to be; if not, the outbox is released when it is."""
        if self.commit is None or not outbox.has_session or self.commit():
            return True
        if not self.held:
            self.loop.call_later(HOLD_S, self._release)
        self.held[outbox] = None
        return False

    def _release(self) -> None:
        # Those that still may not write are held again.
        held, self.held = self.held, {}
        for outbox in held:
            outbox.release()

    def gathered(self) -> None:
        """Finish handling messages: write what they have caused."""
        if self._gathering:
            self._gathering = False
            if self._dirty:
                self.flush()

    def close_longest(self) -> None:
        """Close the peer that leaves most unread, since all together leave too much."""
        self._close_longest(self.slow, "outbox_total_bytes", f"more than {self.total_bytes} bytes")

    def check_account(self, account: Account) -> None:
        """Close peers that leave most unread while too much is kept for all peers or those of one address."""
        latest = clock() - GRACE_S
        while limit := account.overdrawn:
            address = None if limit == "kept_bytes_max" else account.address
            slow = [
                outbox
                for outbox, since in self.slow_since.items()
                if since < latest and (address is None or outbox.account.address is address)
            ]
            if not slow:
                return
            self._close_longest(slow, limit, "more than is kept for them")

    def _close_longest(self, outboxes: Iterable[SocketOutbox], limit: str, amount: str) -> None:
        self.limit_hits[limit] += 1
        longest = max(outboxes, key=lambda outbox: outbox.unread_bytes)
        log.warning(
            "%s is closed: it has not read %d bytes, and slow peers together %s (%s)",
            longest.label,
            longest.unread_bytes,
            amount,
            limit,
        )
        longest.abort()

    def flush(self) -> None:
        """Write everything that has been gathered; an outbox that fails is closed, and the others are written."""
        dirty, self._dirty = self._dirty, []
        for outbox in dirty:
            try:
                outbox.flush()
            except Exception:
                log.exception("%s is closed: the daemon failed to write to it", outbox.label)
                outbox.abort()


class _CoexistingChunks:
    """Audiences whose chunks are open in one outbox at the same time, and are closed together."""

    __slots__ = ("audiences",)

    def __init__(self, audiences: list[Audience]) -> None:
        self.audiences = audiences

    def close_chunk(self) -> None:
        """Close the open chunks of all these audiences."""
        for audience in self.audiences:
            audience.close_chunk()


class _Window:
    """A place in a queue for the whole window of a sorted fetch, whose length is not known before it is written."""

    __slots__ = ("audience",)

    def __init__(self, audience: Audience) -> None:
        self.audience = audience

    def __len__(self) -> int:
        return 0


class Socket(Protocol):
    """The part of ``asyncio.Transport`` that an outbox uses."""

    def write(self, data: bytes, /) -> None: ...

    def writelines(self, parts: Iterable[bytes], /) -> None: ...

    def get_write_buffer_size(self) -> int: ...

    def abort(self) -> None: ...


class SocketOutbox(OutboxCore):
    """The outbox of one connection."""

    __slots__ = (
        "_batches",
        "_closed",
        "_counted_bytes",
        "_dropped",
        "_flow",
        "_full",
        "_head",
        "_latest",
        "_queue",
        "_queued_bytes",
        "_shares",
        "_sorted",
        "_transport",
        "_windows",
        "_written_bytes",
        "account",
        "audiences",
        "conflated",
        "has_session",
        "label",
        "on_abort",
    )

    def __init__(self, transport: Socket, flow: Flow) -> None:
        self._transport = transport
        self._flow = flow
        self.account = Account.alone()
        """The account of its peer, once that has a session."""
        self._written_bytes = 0
        """Bytes of the last write."""
        self._counted_bytes = 0
        """Unread bytes as the account has them."""
        self._parts: list[Any] = []
        """Bytes, and chunks that are shared with other outboxes."""
        self._shares = False
        """True if there are chunks among the parts."""
        self.conflated = 0
        """Changes that a newer one has replaced before this peer took them."""
        self._gathered_bytes = 0
        self._gather_max = 0
        """Bytes that may be gathered without a look at the hard limit, as the flow knew it when this turn began."""
        self._batches = False
        """True if the frames are messages after a comma, and all that is written together is one batch."""
        self._last: Audience | _CoexistingChunks | None = None
        """The audience whose open chunk is the last part, or those whose open chunks are the last parts."""
        self.slow = False
        self.has_session = False
        """True once the peer can be sent events and responses, not only pages."""
        self._full = False
        """True if the socket takes no more; else a slow outbox waits for the disk."""
        self._queue: list[bytes | _Window] = []
        self._head = 0
        """Index of the first queued frame that is not yet written."""
        self._dropped = 0
        """Number of frames cut off the front of the list, so that positions stay valid."""
        self._queued_bytes = 0
        self._latest: dict[tuple[Audience, str], int] = {}
        """Positions of the latest changes that may be replaced."""
        self._sorted: dict[Audience, list[int]] = {}
        """Positions of the messages of sorted fetches; some may be written already."""
        self._windows: dict[Audience, int] = {}
        """Positions of the windows that wait to be encoded and written."""
        self._closed = False
        self.audiences: Iterable[Audience] = ()
        """The audiences this outbox is a member of, as its session keeps them."""
        self.label = ""
        self.on_abort: Callable[[], None] | None = None
        """Called when the daemon closes the connection, before the transport is aborted."""

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        if self._closed:
            return 0
        return self._gathered_bytes + self._queued_bytes + self._transport.get_write_buffer_size()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def unread_bytes(self) -> int:
        """Bytes written or queued that the peer has not taken; once it does, ``resume`` is called."""
        return 0 if self._closed else self._queued_bytes + self._transport.get_write_buffer_size()

    @property
    def has_unsent(self) -> bool:
        """True if something waits here that was not handed to the socket yet."""
        return bool(self._parts) or self._head < len(self._queue)

    # -- what the bus puts in

    def put(self, frame: bytes) -> None:
        if self.slow:
            self._enqueue(frame)
            return
        # What is put in now follows the open chunk, so nothing may be added to that any more.
        if self._last is not None:
            self._last.close_chunk()
            self._last = None
        if not self._parts:
            self._flow.note(self)
        # The first part of a turn: from here on the outbox is due to be written.
        self._parts.append(frame)
        gathered = self._gathered_bytes = self._gathered_bytes + len(frame)
        if gathered > self._flow.hard_bytes:
            self._give_up()

    def write_to(self, socket: Socket) -> None:
        """Write to another socket from now on; what was put in before goes to the former one."""
        self.flush()
        self._transport = socket

    def batch(self) -> None:
        self.flush()
        self._batches = True

    def put_chunk(self, audience: Audience, chunk: Part) -> None:
        last = self._last
        # Combined changes of several fetches stay open side by side, since their order is free.
        if chunk.coexists and type(last) is _CoexistingChunks:
            last.audiences.append(audience)
        else:
            if last is not None:
                last.close_chunk()
            self._last = _CoexistingChunks([audience]) if chunk.coexists else audience
        if not self._parts:
            self._flow.note(self)
        self._parts.append(chunk)
        self._shares = True

    def lend(self, audience: Audience) -> list[bytes]:
        last = self._last
        if last is not None:
            last.close_chunk()
        self._last = audience
        parts = self._parts
        if not parts:
            self._flow.note(self)
        # The audience appends to the list itself. That saves a chunk, and joining it, for the usual single fetcher.
        return parts

    def put_event(self, audience: Audience, path: str, kind: str, frame: bytes) -> None:
        if audience.every:
            self._enqueue(frame)
            return
        if kind == "sorted":
            self._put_sorted(audience, frame)
            return
        key = (audience, path)
        if kind != "change":
            # A change must not move before an add or behind a remove: the next one begins a new entry.
            self._latest.pop(key, None)
        else:
            position = self._latest.get(key, -1)
            # A frame before ``_head`` is with the socket already and cannot be replaced.
            if self._queued_bytes > self._flow.soft_bytes and position - self._dropped >= self._head:
                self._replace(position, frame)
                self._count_conflated(1)
                return
            self._latest[key] = self._dropped + len(self._queue)
        self._enqueue(frame)

    def _put_sorted(self, audience: Audience, frame: bytes) -> None:
        # The window is encoded later than this event, and has it then.
        if audience in self._windows:
            self._count_conflated(1)
            return
        positions = self._sorted.setdefault(audience, [])
        if self._queued_bytes > self._flow.soft_bytes:
            queued = [position for position in positions if position - self._dropped >= self._head]
            if queued:
                for position in queued:
                    self._replace(position, b"")
                self._queue[queued[0] - self._dropped] = _Window(audience)
                self._windows[audience] = queued[0]
                positions.clear()
                self._count_conflated(len(queued))
                return
        positions.append(self._dropped + len(self._queue))
        self._enqueue(frame)

    def note_gathered(self, size: int) -> None:
        self._gathered_bytes += size
        if self._gathered_bytes > self._flow.hard_bytes * GATHERED_SHARE and not self._closed:
            # Nothing is written before the end of the turn, so the socket does not fill meanwhile.
            self.pause()
            self._flow.loop.call_soon(self.resume)

    def awaits_window(self, audience: Audience) -> bool:
        return audience in self._windows

    def _replace(self, position: int, frame: bytes) -> None:
        """Replace a queued frame."""
        at = position - self._dropped
        more = len(frame) - len(self._queue[at])
        self._flow.queued_bytes += more
        self._queued_bytes += more
        self._queue[at] = frame

    def _count_conflated(self, count: int) -> None:
        self._flow.conflated += count
        self.conflated += count

    def forget(self, audience: Audience) -> None:
        if self._latest:
            self._latest = {key: position for key, position in self._latest.items() if key[0] is not audience}
        self._sorted.pop(audience, None)
        position = self._windows.pop(audience, None)
        if position is not None:
            self._replace(position, b"")

    def forget_all(self) -> None:
        for audience in list(self._windows):
            self.forget(audience)
        self._latest, self._sorted = {}, {}

    def _enqueue(self, frame: bytes) -> None:
        if self._closed:
            return
        flow, before_bytes = self._flow, self._queued_bytes
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        flow.queued_bytes += len(frame)
        # Counted once per crossing, not once per event above the limit.
        if before_bytes <= flow.soft_bytes < self._queued_bytes:
            flow.limit_hits["outbox_soft_bytes"] += 1
            flow.slow[self] = None
        if flow.queued_bytes > flow.total_bytes and flow.slow:
            flow.close_longest()
        self._count()
        if self.waiting_bytes > self._flow.hard_bytes:
            self._give_up()

    def _count(self) -> None:
        """Charge the account with what the peer leaves unread."""
        unread_bytes = 0
        if self.slow and not self._closed:
            # The socket keeps the whole of a long write until its last byte is taken.
            unread_bytes = self._queued_bytes + max(self._transport.get_write_buffer_size(), self._written_bytes)
        more_bytes = unread_bytes - self._counted_bytes
        self._counted_bytes = unread_bytes
        self.account.note(more_bytes)
        if more_bytes > 0:
            self._flow.check_account(self.account)

    def _give_up(self) -> None:
        if self._closed:
            return
        log.warning(
            "%s is closed: it has not read %d bytes, more than outbox_hard_bytes = %d",
            self.label,
            self.waiting_bytes,
            self._flow.hard_bytes,
        )
        self._flow.limit_hits["outbox_hard_bytes"] += 1
        self.abort()

    def abort(self) -> None:
        """Close the connection at once: nothing is written any more, and nothing of the peer is handled."""
        # Taken out first, because ``close`` forgets it.
        on_abort = self.on_abort
        self.close()
        if on_abort is not None:
            on_abort()
        self._transport.abort()

    def close(self) -> None:
        """Forget everything; nothing is written any more."""
        self._closed = True
        self._flow.queued_bytes -= self._queued_bytes
        self._flow.slow.pop(self, None)
        self._flow.slow_since.pop(self, None)
        self._count()
        self.on_abort = None
        self.audiences = ()
        self._parts = []
        self._queue = []
        self._latest, self._sorted, self._windows = {}, {}, {}
        self._gathered_bytes = self._queued_bytes = 0

    # -- what the event loop takes out

    def flush(self) -> None:
        """Write what was gathered in this turn."""
        # Before the first byte, because what has left cannot be taken back if the disk fails.
        if self._parts and not self._flow.may_write(self):
            self._stop_writing()
            return
        parts = self._take_gathered()
        if not parts:
            return
        if len(parts) == 1:
            self._write(parts[0])
        elif self._batches:
            self._write_batches(parts)
        # One write with one copy is cheaper than many parts, unless a part is so large that the copy dominates.
        elif len(parts[-1]) < LARGE_BYTES or len(parts) > LARGE_PARTS_MAX:
            self._write(b"".join(parts))
        else:
            self._prepare(sum(map(len, parts)))
            self._transport.writelines(parts)
        if self._transport.get_write_buffer_size() > self._flow.hard_bytes:
            self._give_up()

    def _take_gathered(self) -> list[bytes]:
        if self._last is not None:
            self._last.close_chunk()
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
            data = frame_batch(data)
        self._prepare(len(data))
        self._transport.write(data)

    def _write_batches(self, parts: list[bytes]) -> None:
        first = size = 0
        for at, part in enumerate(parts):
            # Only between messages: a borrowed outbox has heads and tails as parts of their own.
            if size > BATCH_BYTES and part[:1] == b",":
                self._write(b"".join(parts[first:at]))
                first, size = at, 0
            size += len(part)
        self._write(b"".join(parts[first:]))

    def _prepare(self, size: int) -> None:
        """Count bytes that are about to be written."""
        self._written_bytes = size
        self._flow.sent += 1
        self._flow.sent_bytes += size

    def pause(self) -> None:
        """Stop writing, because the socket is full; queue what was gathered."""
        self._full = True
        self._stop_writing()

    def _stop_writing(self) -> None:
        gathered = self._take_gathered()
        # It was put in before the socket was full, so it is queued before anything that comes later.
        if gathered:
            self._enqueue(b"".join(gathered))
        self._set_slow(True)

    def release(self) -> None:
        """Write what was held until it was on disk, unless the socket is full."""
        if not self._full and not self._closed:
            self.resume()

    def resume(self) -> None:
        """Write what is queued, as far as the socket takes it."""
        self._full = False
        if not self._flow.may_write(self):
            return
        self.slow = False  # a write that fills the socket again sets it
        while self._head < len(self._queue) and not self.slow:
            data = self._dequeue()
            if data:  # else only places that nothing is left of
                self._write(data)
        if self._head == len(self._queue):
            self._dropped += self._head
            self._queue, self._head, self._latest, self._sorted = [], 0, {}, {}
            self._flow.slow.pop(self, None)
        if not self.slow:
            self._set_slow(False)

    def _dequeue(self) -> bytes:
        first, size = self._head, 0
        frames: list[bytes] = []
        while self._head < len(self._queue) and size < DRAIN_BYTES:
            frame = self._queue[self._head]
            if isinstance(frame, _Window):
                del self._windows[frame.audience]
                frame = frame.audience.encode_window(self)
                self._replace(self._dropped + self._head, frame)
            frames.append(frame)
            size += len(frame)
            self._head += 1
        data = b"".join(frames)
        # The list is cut only now and then, and must not keep alive what is written.
        self._queue[first : self._head] = [b""] * (self._head - first)
        self._queued_bytes -= size
        self._flow.queued_bytes -= size
        # Cutting the list at each read would move all that is left each time.
        if self._head > 10_000:
            del self._queue[: self._head]
            self._dropped += self._head
            self._head = 0
            for positions in self._sorted.values():
                positions[:] = [position for position in positions if position >= self._dropped]
        return data

    def _set_slow(self, slow: bool) -> None:
        self.slow = slow
        if slow:
            self._flow.slow_since.setdefault(self, clock())
        else:
            self._flow.slow_since.pop(self, None)
        self._count()
        for audience in self.audiences:
            # Slow members are sent events one by one, so every audience has to know.
            audience.rejoin(self)


def _apart(parts: list[Any]) -> list[bytes]:
    """Return the parts as bytes objects; large ones stay shared with other outboxes."""
    pieces: list[bytes] = []
    for part in parts:
        if type(part) is bytes:
            pieces.append(part)
        else:
            pieces += part.apart()
    return pieces
