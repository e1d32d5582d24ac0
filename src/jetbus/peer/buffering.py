"""Buffering: a session that keeps every value of its states until the daemon has recorded it.

::

    change     -> a change with its time, now or, without a connection, not at all; either way the buffer keeps it
    lost       -> what is not confirmed counts as not arrived
    connected  -> states are added with their latest values, then what the buffer has follows as values of the past
    sweep      -> some times a second ``sync``, whose answer confirms everything that was sent before it, and ``gap``
                  for each state of which the full buffer has dropped values

**Draining** leaves the line to others. A batch of late values is followed by an ``info``, and its answer tells how long
the daemon and the line took. The next batch comes after a pause, so that draining takes up ``share`` of the time.

A daemon that cannot confirm, because it is not jetbus or keeps no journal, has no past to fill: then nothing is kept
while it is connected, and a warning says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from jetbus.errors import ConnectionLost, JetError, TimedOut
from jetbus.json_types import JsonObject
from jetbus.peer.buffer import BUFFER_BYTES, Buffer, BufferedValue, Gap
from jetbus.peer.requests import SessionWaiter, Waiter
from jetbus.peer.values import encode_checked

if TYPE_CHECKING:
    from jetbus.peer.elements import OwnedState
    from jetbus.peer.peer_session import PeerSession

log = logging.getLogger("jetbus.peer")

SHARE = 0.5
"""Part of the time in which late values are sent, by default."""
LATE_VALUES_MAX, LATE_BYTES_MAX = 200, 64 << 10
"""Size of a batch of late values: it must not keep live values waiting."""
INTERNAL_ERROR = -32603


class BufferOptions:
    """The options ``buffer``, ``buffer_max`` and ``buffer_share`` of a peer, checked."""

    def __init__(self, place: str | os.PathLike[str], bytes_max: int | None, share: float | None) -> None:
        self.place = place
        self.bytes_max = BUFFER_BYTES if bytes_max is None else bytes_max
        self.share = SHARE if share is None else share
        if not 0 < self.share <= 1:
            raise ValueError(f"buffer_share is {share}; give the part of the time to send late values in, such as 0.5")


def read_buffer_options(
    place: str | os.PathLike[str] | None, bytes_max: int | None, share: float | None
) -> BufferOptions | None:
    """Return the options of a buffer; None for none."""
    if place is None:
        if bytes_max is not None or share is not None:
            raise ValueError('buffer_max and buffer_share need a buffer; give buffer="memory" or buffer="/a/folder"')
        return None
    return BufferOptions(place, bytes_max, share)


class Buffering:
    """The buffer of a session, and the values of it that are on their way."""

    def __init__(self, session: PeerSession, options: BufferOptions) -> None:
        self._session = session
        self._options = options
        self.buffer = Buffer(options.place, options.bytes_max)
        self.call_later: Callable[[float, Callable[[], None]], object] = lambda _delay_s, call: call()
        """Calls a function after some seconds, on the peer's loop. Set by peers that have one."""
        self._paths: set[str] = set()
        """States that the daemon of this connection has confirmed."""
        self._is_confirming = False
        """True unless the daemon of this connection is known to record nothing."""
        self._is_settled = False
        """True from when everything was added again on this connection."""
        self._is_draining = False
        self._is_syncing = False
        self._has_warned = False
        self._told: dict[str, Gap] = {}
        """Gaps that the daemon of this connection was told, and has not answered."""

    @property
    def is_on(self) -> bool:
        """True if values are to be kept."""
        return self._is_confirming or not self._session.connected

    def reopen(self) -> None:
        """Use the buffer again after ``close``."""
        if self.buffer.is_closed:
            self.buffer = Buffer(self._options.place, self._options.bytes_max)

    # -- values

    def change(self, state: OwnedState, value: Any, meta: JsonObject | None = None) -> None:
        """Give a state a new value, with its time; without a connection it only goes to the buffer."""
        session = self._session
        is_past, quality, us = False, None, None
        if meta is not None:
            is_past, us = bool(meta.get("past")), meta.get("ts")
            quality = encode_checked(meta["quality"], state.path) if "quality" in meta else None
        text = encode_checked(value, state.path)
        if state.is_checked and not state.check(value, text if meta is None else b""):
            return
        with session.lock:
            record = BufferedValue(self.buffer.next_us() if us is None else us, state.path, text, quality)
            payload = session.codec.encode_timed(state.change_head, record, is_past=is_past)
            session.check_length(state, payload)
            if not is_past:
                state.value, state.meta = value, {**(meta or {}), "ts": record.us}
            if not state.added:
                return
            # A state that the daemon has not confirmed may be refused: the change is sent, and the value waits, too.
            self.buffer.keep(record, is_sent=session.connected and state.path in self._paths)
            if session.connected:
                session.send(payload)

    def keep_added(self, state: OwnedState) -> None:
        """Keep the value that a state is about to be added with, which gets its time."""
        if state.value is None or not self.is_on:
            return
        meta = state.meta = {"ts": self.buffer.next_us(), **(state.meta or {})}
        quality = encode_checked(meta["quality"], state.path) if "quality" in meta else None
        text = encode_checked(state.value, state.path)
        self.buffer.keep(BufferedValue(meta["ts"], state.path, text, quality), is_sent=True)

    # -- the course of a connection

    def on_connected(self, *, is_jetbus: bool) -> None:
        """Start with a connection on which nothing is added yet."""
        self._is_confirming, self._is_settled = is_jetbus, False
        self._is_draining = self._is_syncing = False
        self._told.clear()
        if not is_jetbus:
            self._warn("is not jetbus")

    def on_added(self, path: str) -> None:
        """Note that the daemon has a state of this peer."""
        with self._session.lock:
            self._paths.add(path)
            if self._is_settled:
                self.buffer.look_again()
                self._begin_to_drain()

    def on_removed(self, path: str) -> None:
        """Note that the daemon no longer has a state of this peer."""
        self._paths.discard(path)

    def on_settled(self) -> None:
        """Send late values, since everything has been added again."""
        with self._session.lock:
            self._is_settled = True
            self._begin_to_drain()

    def on_lost(self) -> None:
        """Count everything that is not confirmed as not arrived."""
        self._paths.clear()
        self._is_settled = False
        if not self.buffer.is_closed:
            self.buffer.take_back()

    def close(self) -> None:
        """Leave the buffer to the next process that uses it."""
        self.buffer.close()

    # -- late values

    def _begin_to_drain(self) -> None:
        if self._is_confirming and not self._is_draining and self.buffer.late:
            self._is_draining = True
            self._drain()

    def _drain(self) -> None:
        session = self._session
        with session.lock:
            values: list[BufferedValue] = []
            if session.connected and self._is_settled:
                values = self.buffer.take_late(self._paths, LATE_VALUES_MAX, LATE_BYTES_MAX)
            if not values:
                self._is_draining = False
                return
            session.send_late(values)
            session.request("info", {}, _DrainWaiter(self, monotonic()))

    def on_drained(self, began_s: float) -> None:
        """Send the next late values after a pause."""
        took_s = monotonic() - began_s
        self.call_later(took_s * (1 - self._options.share) / self._options.share, self._drain)

    # -- confirmation

    def sweep(self) -> None:
        """Ask the daemon to confirm the values sent so far, unless it is asked already; tell it of gaps."""
        if self._is_settled and self._is_confirming and self.buffer.untold:
            self._tell_gaps()
        if self._is_settled and self._is_confirming and not self._is_syncing and self.buffer.in_flight:
            self.sync(SessionWaiter())

    def _tell_gaps(self) -> None:
        with self._session.lock:
            for gap in list(self.buffer.untold.values()):
                # A gap without a path is one of so many states that any may have it.
                paths = {gap.path} & self._paths if gap.path else self._paths - self.buffer.untold.keys()
                if self._told.get(gap.path) == gap or not paths:
                    continue
                self._told[gap.path] = gap
                for path in sorted(paths):
                    params = {"path": path, "since": gap.since_us, "until": gap.until_us, "missed": gap.missed}
                    self._session.request("gap", params, _GapWaiter(self, gap))

    def on_gap_recorded(self, gap: Gap) -> None:
        """Forget a gap that the daemon has recorded."""
        with self._session.lock:
            self.buffer.forget_gap(gap)

    def sync(self, waiter: Waiter) -> None:
        """Ask the daemon to confirm the values sent so far; the waiter gets the answer."""
        with self._session.lock:
            self._is_syncing = True
            self._session.request("sync", {}, _SyncedWaiter(self, self.buffer.sent, waiter))

    def on_synced(self, sent: int) -> None:
        """Forget the values sent before a sync that is answered."""
        with self._session.lock:
            self._is_syncing = False
            self.buffer.confirm(sent)

    def on_not_synced(self, error: BaseException) -> None:
        """Go on without a confirmation."""
        with self._session.lock:
            self._is_syncing = False
            if isinstance(error, ConnectionLost | TimedOut):
                return  # ``on_lost`` knows what to do, or a later sync is answered
            if isinstance(error, JetError) and error.code == INTERNAL_ERROR:
                log.warning("the daemon has not recorded everything, so it is sent again: %s", error)
                self.buffer.take_back()
                self._begin_to_drain()
                return
            self._is_confirming = False
            self.buffer.take_back()
            self._warn("keeps no journal")

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "the daemon %s, so it has no past: values are not kept in the buffer while it is connected, and what"
                " changed without a connection is not sent later; use jetd with --journal DIR",
                reason,
            )


class _DrainWaiter(SessionWaiter):
    """Waiter of the request behind a batch of late values."""

    def __init__(self, buffering: Buffering, began_s: float) -> None:
        self._buffering, self._began_s = buffering, began_s

    def set_result(self, _result: Any, /) -> None:
        self._buffering.on_drained(self._began_s)


class _GapWaiter(SessionWaiter):
    """Waiter of a ``gap``."""

    def __init__(self, buffering: Buffering, gap: Gap) -> None:
        self._buffering, self._gap = buffering, gap

    def set_result(self, _result: Any, /) -> None:
        self._buffering.on_gap_recorded(self._gap)


class _SyncedWaiter(SessionWaiter):
    """Waiter of a ``sync``."""

    def __init__(self, buffering: Buffering, sent: int, waiter: Waiter) -> None:
        self._buffering, self._sent, self._waiter = buffering, sent, waiter

    def set_result(self, result: Any, /) -> None:
        self._buffering.on_synced(self._sent)
        if not self._waiter.done():
            self._waiter.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        self._buffering.on_not_synced(exception)
        if not self._waiter.done():
            self._waiter.set_result(False)
