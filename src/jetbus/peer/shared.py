"""A peer that several threads use: one lock round its session, and a direct way to the socket.

A request is written by the thread that asks, where that is possible, and its answer wakes just that thread. What the
socket does not take at once, and everything else, is written by the loop.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any

from jetbus.errors import TimedOut
from jetbus.peer.aio import PeerAsync
from jetbus.peer.elements import Owned, OwnedState, Spawn
from jetbus.peer.fetching import Fetching
from jetbus.peer.line import StreamLine
from jetbus.peer.session import Session, silent
from jetbus.peer.waiting import Waiter


class Slot:
    """A response to come, for a thread that waits."""

    __slots__ = ("_done", "_error", "_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._done = False
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._done

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._done = True
        self._lock.release()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._done = True
        self._lock.release()

    def wait(self, timeout_s: float, path: str = "") -> Any:
        if not self._lock.acquire(timeout=-1 if timeout_s == float("inf") else timeout_s):
            self._done = True
            raise TimedOut({"path": path}) if path else silent(timeout_s)
        if self._error is not None:
            raise self._error
        return self._result


class Answer(Future[Any]):
    """A response to come, for a thread that does not wait. Who cancels it is told nothing more."""

    def set_result(self, result: Any, /) -> None:
        with contextlib.suppress(InvalidStateError):  # another thread has just cancelled it
            super().set_result(result)

    def set_exception(self, exception: BaseException | None, /) -> None:
        with contextlib.suppress(InvalidStateError):
            super().set_exception(exception)


class SharedSession(Session):
    """A session that several threads use: one lock round what changes, and a direct way to the socket."""

    def __init__(self, spawn: Spawn) -> None:
        super().__init__(spawn)
        self.lock = threading.RLock()
        self._batches = threading.local()
        self.write_now: Callable[[bytes], bool] = lambda _message: False
        """Try to write a message at once; false when it must queue."""

    def send(self, message: bytes) -> None:
        batch: list[bytes] | None = getattr(self._batches, "messages", None)
        if batch is not None:
            batch.append(message)
            return
        with self.lock:
            super().send(message)

    def begin_batch(self) -> None:
        if self.gathers():
            raise RuntimeError("a batch is open already; batches do not nest")
        self._batches.messages = []

    def end_batch(self) -> None:
        batch, self._batches.messages = self._batches.messages, None
        if batch:
            with self.lock:
                for message in self._gathered(batch):
                    self.send(message)

    def request(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None = None,
        within_s: float | None = None,
        path: str = "",
    ) -> None:
        with self.lock:
            self.check_connected()
            self.send(self._ask(method, params, waiter, read, self.answer_s if within_s is None else within_s, path))

    def request_now(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None,
        within_s: float,
        path: str,
    ) -> None:
        """A request that somebody waits for: written at once if nothing is queued before it."""
        with self.lock:
            self.check_connected()
            message = self._ask(method, params, waiter, read, within_s, path)
            if self.out or not self.write_now(message):
                self.send(message)

    def gathers(self) -> bool:
        """Whether this thread has a batch open."""
        return getattr(self._batches, "messages", None) is not None

    # What several threads may do at once, each as one step.

    def change(self, state: OwnedState, value: Any) -> None:
        with self.lock:
            super().change(state, value)

    def add(self, owned: Owned, waiter: Waiter) -> None:
        with self.lock:
            super().add(owned, waiter)

    def remove(self, owned: Owned, waiter: Waiter) -> None:
        with self.lock:
            super().remove(owned, waiter)

    def next_fetch_id(self) -> str:
        with self.lock:
            return super().next_fetch_id()

    def fetch(self, fetching: Fetching) -> None:
        with self.lock:
            super().fetch(fetching)

    def unfetch(self, fetching: Fetching, waiter: Waiter | None = None) -> None:
        with self.lock:
            super().unfetch(fetching, waiter)

    def expire(self, now: float) -> None:
        with self.lock:
            super().expire(now)

    def on_connected(self) -> None:
        with self.lock:
            super().on_connected()

    def on_lost(self) -> None:
        with self.lock:
            super().on_lost()

    def on_closed(self) -> None:
        with self.lock:
            super().on_closed()


class SharedPeer(PeerAsync):
    """The asynchronous peer inside a blocking one."""

    _session: SharedSession

    def __init__(self, url: str | None, **options: Any) -> None:
        super().__init__(url, session=SharedSession, **options)
        self._session.write_now = self._write_now
        self._encrypted = self._address.tls
        self._rest = b""
        """What did not fit into the socket of a message that is written at once."""

    @property
    def session(self) -> SharedSession:
        return self._session

    def _schedule_flush(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self.session.lock:
            if self._rest and self._line is not None:
                rest, self._rest = self._rest, b""
                self._line.transport.write(rest)
            super()._flush()

    async def _introduce(self) -> None:
        self._rest = b""
        await super()._introduce()

    def _write_now(self, message: bytes) -> bool:
        line = self._line
        if self._rest or not isinstance(line, StreamLine) or self._encrypted:
            return False
        transport = line.transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        data = line.framed(message)
        try:
            written = os.write(transport.get_extra_info("socket").fileno(), data)
        except BlockingIOError:
            return False
        except OSError:
            return False  # the loop will find out
        if written < len(data):
            self._rest = data[written:]
            self._schedule_flush()
        return True
