"""The threads of a blocking peer, and how work gets from one to the other.

::

    thread A --- set() -----------+                                      +--> socket
    thread B --- get() --------+  |  lock                                |
    thread C --- change() ---+ |  +-> SharedSession --- write at once ---+
                             | |           | out                         |
                             | +-----> the peer's loop: flush, receive, reconnect
                             |             |
                             +-> queued    +--> callbacks thread: on_set, methods, fetch callbacks, on_result

A ``Peer`` runs a ``PeerAsync`` on an event loop in a thread of its own. Going through the loop costs two changes of
thread per request, which is more than the request itself. So there are two ways:

- A request of one step (set, call) goes straight to the session, which a lock protects. If nothing is queued, the
  calling thread writes it to the socket itself; the response then wakes just that thread. Bytes that the socket does
  not take at once are left to the loop, and nothing may be written before them: the lock also covers that.
- A request of several steps (connect, get, wait_for) is handed to the loop as a coroutine.

Handlers and callbacks run one at a time in a second thread. They may therefore use the peer themselves, and a slow one
delays no response.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from typing import Any, Never, Self, cast

from jetbus.errors import JetError, NotConnected
from jetbus.loops import new_loop
from jetbus.peer.address import Endpoint
from jetbus.peer.aio import PeerAsync
from jetbus.peer.arguments import check_callback, refuse_pickling, refuse_positional
from jetbus.peer.buffer import Buffer
from jetbus.peer.callbacks import call_back, is_async
from jetbus.peer.codec import Codec
from jetbus.peer.elements import Owned, OwnedState, Spawn
from jetbus.peer.peer_session import PeerSession
from jetbus.peer.requests import HandleWaiter, Waiter
from jetbus.peer.sending import ANSWER_S
from jetbus.peer.signatures import show_options
from jetbus.peer.subscription import Subscription
from jetbus.peer.transport import StreamTransport

OnResult = Callable[[Future[Any]], object]
"""Callback of a request: called once, with the future that has the result or the error."""


class ResponseFuture(Future[Any]):
    """A response to come, for a thread that does not wait. It may be cancelled at any time."""

    def set_result(self, result: Any, /) -> None:
        with contextlib.suppress(InvalidStateError):  # another thread has just cancelled it
            super().set_result(result)

    def set_exception(self, exception: BaseException | None, /) -> None:
        with contextlib.suppress(InvalidStateError):
            super().set_exception(exception)


class SharedSession(PeerSession):
    """A session for several threads: one lock, a batch per thread, and a direct way to the socket."""

    def __init__(self, spawn: Spawn) -> None:
        super().__init__(spawn)
        # Reentrant, because its holder sends, and ``send`` takes it again.
        self.lock: threading.RLock = threading.RLock()
        self._batches = threading.local()
        self.write_now: Callable[[bytes], bool] = lambda _payload: False
        """Tries to write a payload at once; returns false if it must be queued."""

    def send(self, payload: bytes) -> None:
        batch: list[bytes] | None = getattr(self._batches, "payloads", None)
        if batch is not None:
            # No lock: a batch belongs to the thread that has opened it.
            batch.append(payload)
            return
        with self.lock:
            super().send(payload)

    def begin_batch(self) -> None:
        if self.has_batch():
            raise RuntimeError("a batch is open already; batches do not nest")
        self._batches.payloads = []

    def end_batch(self) -> None:
        batch, self._batches.payloads = self._batches.payloads, None
        if batch:
            with self.lock:
                for payload in self._join(batch):
                    self.send(payload)

    def has_batch(self) -> bool:
        """Return True if this thread has a batch open."""
        return getattr(self._batches, "payloads", None) is not None

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
            within_s = self.answer_s if within_s is None else within_s
            payload = self._encode_request(method, params, waiter, read, within_s, path)
            if payload:
                self.send(payload)

    def request_now(
        self,
        method: str,
        params: Any,
        waiter: Waiter,
        read: Callable[[Any], Any] | None,
        within_s: float,
        path: str,
    ) -> None:
        """Send a request that a thread blocks for; it is written at once if nothing is queued before it."""
        with self.lock:
            self.check_connected()
            payload = self._encode_request(method, params, waiter, read, within_s, path)
            # Whatever is queued was sent before, so this has to queue up behind it.
            if self.out or not self.write_now(payload):
                self.send(payload)

    def change(self, state: OwnedState, value: Any) -> None:
        batch: list[bytes] | None = getattr(self._batches, "payloads", None)
        with self.lock:
            if batch is None:
                super().change(state, value)
                return
            out, self.out = self.out, batch  # where the session puts its payloads
            try:
                super().change(state, value)
            finally:
                self.out = out

    # The rest is the same with the lock, so that each happens as one step.

    def send_unanswered(self, method: str, params: Any, path: str) -> None:
        with self.lock:
            super().send_unanswered(method, params, path)

    def add(self, owned: Owned, waiter: Waiter) -> None:
        with self.lock:
            super().add(owned, waiter)

    def remove(self, owned: Owned, waiter: Waiter) -> None:
        with self.lock:
            super().remove(owned, waiter)

    def next_fetch_id(self) -> str:
        with self.lock:
            return super().next_fetch_id()

    def fetch(self, subscription: Subscription) -> None:
        with self.lock:
            super().fetch(subscription)

    def unfetch(self, subscription: Subscription, waiter: Waiter | None = None) -> None:
        with self.lock:
            super().unfetch(subscription, waiter)

    def expire(self, now: float) -> None:
        with self.lock:
            super().expire(now)

    def begin_connection(self, codec: Codec) -> None:
        with self.lock:
            super().begin_connection(codec)

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
        """The part of a payload that the socket did not take; nothing may be written before it."""

    @property
    def session(self) -> SharedSession:
        return self._session

    def _use_address(self, address: Endpoint) -> None:
        super()._use_address(address)
        self._encrypted = address.tls

    def on_fork(self) -> None:
        self._session.lock = threading.RLock()  # a thread that is not in this process may hold the old one
        super().on_fork()

    def _schedule_flush(self) -> None:
        # Without the flag of the base class, which is for one thread: the session announces output only for the first
        # payload, and a flush that finds nothing does no harm.
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self.session.lock:
            # The second half of a payload comes before all others.
            if self._rest and isinstance(self._transport, StreamTransport):
                rest, self._rest = self._rest, b""
                self._transport.write_bytes(rest)
            super()._flush()

    async def _introduce(self) -> None:
        # The rest belongs to the connection before.
        self._rest = b""
        await super()._introduce()

    def _write_now(self, payload: bytes) -> bool:
        transport = self._transport
        # TLS and WebSocket keep state between two writes, which only the loop may touch.
        if self._rest or self._encrypted or not isinstance(transport, StreamTransport):
            return False
        file_number = transport.get_idle_socket()
        if file_number is None:
            return False
        # The loop has nothing to write, and cannot start to: ``_flush`` waits for the lock that the caller holds.
        data = transport.frame(payload)
        try:
            written = os.write(file_number, data)
        except OSError:
            return False  # the socket is full, or broken, which the loop will find out
        if written < len(data):
            self._rest = data[written:]
            self._schedule_flush()
        return True


class ThreadedConnection:
    """One end of a connection to a daemon, with an event loop in a thread of its own."""

    @show_options()
    def __init__(
        self,
        url: str | None = None,
        *misplaced: Never,
        name: str = "",
        user: str | None = None,
        password: str | None = None,
        wait: bool = False,
        wait_s: float | None = None,
        reconnect: bool = True,
        tls: ssl.SSLContext | None = None,
        answer_s: float = ANSWER_S,
        buffer: str | os.PathLike[str] | None = None,
        buffer_max: int | None = None,
        buffer_share: float | None = None,
        on_loss: Callable[[], Any] | None = None,
        on_return: Callable[[], Any] | None = None,
    ) -> None:
        """Create a peer; it does nothing until ``connect``.

        ``url`` may name several daemons, ``jet://a,b``, which are tried in turn, also when the connection is lost.

        With ``wait`` connecting waits for a daemon that does not run yet, with ``wait_s`` for so many seconds at most.

        ``answer_s`` is how long the daemon itself may take to answer; owners have a time of their own.

        With ``buffer`` no value of a state is lost while there is no connection: each is kept, ``"memory"`` or in a
        folder, until the daemon has recorded it, and sent later as a value of the past. ``buffer_max`` is the size in
        bytes, by default 64 MiB; ``buffer_share`` the part of the time in which late values are sent, by default 0.5.
        """
        refuse_positional(url, misplaced)
        check_callback(on_loss, "on_loss")  # as given: the core gets a wrapped one
        check_callback(on_return, "on_return")
        self._core = SharedPeer(
            url,
            name=name,
            user=user,
            password=password,
            wait=wait,
            wait_s=wait_s,
            reconnect=reconnect,
            tls=tls,
            answer_s=answer_s,
            buffer=buffer,
            buffer_max=buffer_max,
            buffer_share=buffer_share,
            on_loss=self._defer(on_loss),
            on_return=self._defer(on_return),
        )
        self._session = self._core.session
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lifecycle = threading.RLock()
        """Held while work is handed to the loop, so that none is left behind when it stops."""
        self._callbacks: ThreadPoolExecutor | None = None
        self._callbacks_thread_id = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse_pickling()

    # -- connection

    @property
    def session(self) -> SharedSession:
        """The conversation with the daemon, for other kinds of peers."""
        return self._session

    def abort(self) -> None:
        """Break the connection at once, as a pulled cable would: open requests fail, and the peer reconnects."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._core.abort)

    @property
    def connected(self) -> bool:
        """True if there is a connection to the daemon right now."""
        return self._core.connected

    @property
    def buffer(self) -> Buffer | None:
        """Values that the daemon has not yet recorded; None for a peer without a buffer."""
        return self._core.buffer

    @property
    def url(self) -> str:
        """The daemon's address, without the password."""
        return self._core.url

    @property
    def open_request_count(self) -> int:
        """Number of requests that wait for their response."""
        return self._core.open_request_count

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}, {'connected' if self.connected else 'not connected'}>"

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect to the daemon, introduce and authenticate this peer."""
        is_first = self._start()
        try:
            self._run(self._core.connect())
        except BaseException:
            # The thread was started for this attempt only.
            if is_first:
                self.close()
            raise

    def connect_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Connect without waiting. If it fails, connect again or ``close()``: the peer's thread is there already."""
        self._start()
        return self._begin(self._core.connect(), on_result)

    def close(self) -> None:
        """Close the connection; the elements of this peer leave the bus."""
        if self._session.is_abandoned:
            return  # nothing of it runs in this process, and its lock may be held by a thread that does not either
        self._check_may_wait()
        with self._lifecycle:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        # Outside of the lock, since callbacks that run until then may use the peer.
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        if self._callbacks is not None:
            # Without waiting, because this may be the callbacks thread itself.
            self._callbacks.shutdown(wait=False, cancel_futures=True)

    def close_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Close the connection without waiting; the callback runs in a thread of its own."""
        response = ResponseFuture()

        def close() -> None:
            try:
                self.close()
            except Exception as error:
                response.set_exception(error)
            else:
                response.set_result(None)

        future = self._add_callback(response, on_result)
        threading.Thread(target=close, name="jet-closing").start()
        return future

    async def _end(self) -> None:
        await self._core.close()
        # Requests of several steps: their threads would wait for ever for a loop that has stopped.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _start(self) -> bool:
        """Start the peer's thread with its event loop; return false if it runs already."""
        self._session.check_usable()
        with self._lifecycle:
            if self._thread is not None:
                return False
            loop = new_loop()
            self._callbacks = ThreadPoolExecutor(
                1, thread_name_prefix="jet-callbacks", initializer=self._note_callbacks_thread
            )

            def run() -> None:
                asyncio.set_event_loop(loop)
                try:
                    loop.run_forever()
                finally:
                    loop.close()

            self._loop = loop
            self._thread = threading.Thread(target=run, name="jet-peer", daemon=True)
            self._thread.start()
            return True

    # -- requests

    def _run(self, work: Awaitable[Any]) -> Any:
        """Run a coroutine on the peer's loop and wait for its result."""
        running = self._hand_over(work, waiting=True)
        try:
            return running.result()
        except CancelledError:
            raise _closed_error() from None
        except BaseException:
            # Ctrl-C ends the wait of this thread. The work on the loop must not go on without anybody waiting for it.
            running.cancel()
            raise

    def _begin(self, work: Awaitable[Any], on_result: OnResult | None) -> Future[Any]:
        """Run a coroutine on the peer's loop and return a future of its result."""
        response = ResponseFuture()
        try:
            running = self._hand_over(work)
        except NotConnected as error:
            response.set_exception(error)
        else:
            running.add_done_callback(functools.partial(_copy_result, response))
            response.add_done_callback(lambda done: running.cancel() if done.cancelled() else None)
        return self._add_callback(response, on_result)

    def _hand_over(self, work: Awaitable[Any], *, waiting: bool = False) -> Future[Any]:
        """Hand a coroutine to the loop."""
        coroutine = cast(Coroutine[Any, Any, Any], work)
        try:
            self._session.check_usable()
            with self._lifecycle:
                if waiting:
                    self._check_may_wait()
                if self._loop is None:
                    raise NotConnected("the peer is closed; connect() it, or use it in a with block")
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            # A coroutine that is dropped before it has run would cause a warning.
            coroutine.close()
            raise

    def _request_handle(self, send: Callable[[Waiter], None], handle: Any, on_result: OnResult | None) -> Future[Any]:
        """Send a request; the future has the handle once the daemon has confirmed it, or the error."""
        response = ResponseFuture()
        try:
            send(HandleWaiter(response, handle))
        except JetError as error:
            response.set_exception(error)
        return self._add_callback(response, on_result)

    def _add_callback(self, future: Future[Any], on_result: OnResult | None) -> Future[Any]:
        """Return the future after adding a callback to it, which will run in the callbacks thread."""
        if on_result is not None:
            future.add_done_callback(functools.partial(self._run_callback, on_result))
        return future

    def _run_callback(self, on_result: OnResult, future: Future[Any]) -> None:
        """Call back exactly once: if the callbacks thread ends first, in the thread that ends it."""
        try:
            submitted = self._callbacks.submit(self._call_back, on_result, future) if self._callbacks else None
        except RuntimeError:  # it has ended
            submitted = None
        if submitted is None:
            call_back(on_result, future)
        else:
            submitted.add_done_callback(lambda done: call_back(on_result, future) if done.cancelled() else None)

    def _note_callbacks_thread(self) -> None:
        self._callbacks_thread_id = threading.get_ident()

    def _check_may_ask(self, service: str, path: str) -> None:
        """Refuse a set or call that would wait for its own thread: that of the callbacks, which run one at a time."""
        if threading.get_ident() != self._callbacks_thread_id or path not in self._session.owned:
            return
        owned = self._session.owned[path]
        handler = owned.on_set if isinstance(owned, OwnedState) else getattr(owned, "function", None)
        if handler is None or is_async(inspect.unwrap(handler)):
            return  # the daemon answers itself, or the handler runs on the loop
        advice = "change it by its handle, change(value)" if service == "set" else "call the function itself"
        raise RuntimeError(
            f"cannot {service} {path} in a callback and wait for it: this peer owns it, and its callbacks run one at a"
            f" time in this very thread; {advice}, or use {service}_async"
        )

    def _check_may_wait(self) -> None:
        """Refuse to wait where waiting would never end."""
        self._session.check_usable()
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the peer's own loop would wait for itself; use PeerAsync there")
        if self._session.has_batch():
            raise RuntimeError(
                "a batch is sent when its block ends, so nothing inside can wait for a response;"
                " change states there, or use the methods that end in _async"
            )

    def _run_in_callbacks(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Wrap a function to run in the callbacks thread; an ``async`` one runs on the loop."""

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            outcome = await asyncio.get_running_loop().run_in_executor(
                self._callbacks, lambda: function(*args, **kwargs)
            )
            # A lambda or a partial object is not a coroutine function, but may return something to await.
            return await outcome if inspect.isawaitable(outcome) else outcome

        return run

    def _defer(self, callback: Callable[[], Any] | None) -> Callable[[], None] | None:
        """Wrap a callback to run in the callbacks thread."""
        if callback is None:
            return None
        return lambda: self._submit(callback)

    def _submit(self, callback: Callable[..., Any], *args: Any) -> None:
        if self._callbacks is not None:
            with contextlib.suppress(RuntimeError):
                self._callbacks.submit(self._call_back, callback, *args)

    def _call_back(self, callback: Callable[..., Any], *args: Any) -> None:
        """Call a function of the user in the callbacks thread; await its result on the peer's loop, if it can be."""

        def call() -> None:
            outcome = callback(*args)
            if inspect.isawaitable(outcome):
                self._await_outcome(outcome)

        call_back(call)

    def _await_outcome(self, outcome: Awaitable[Any]) -> None:
        """Wait, in the callbacks thread, until the peer's loop has awaited something."""

        async def wait() -> Any:
            return await outcome

        with self._lifecycle:
            if self._loop is None:
                return
            running = asyncio.run_coroutine_threadsafe(wait(), self._loop)
        with contextlib.suppress(CancelledError):  # the peer is closing
            running.result()


def _closed_error() -> NotConnected:
    return NotConnected("the peer was closed before the response came")


def _copy_result(response: ResponseFuture, running: Future[Any]) -> None:
    """Copy the outcome of work on the loop; closing the peer cancels it."""
    if running.cancelled():
        response.set_exception(_closed_error())
    elif (error := running.exception()) is not None:
        response.set_exception(error)
    else:
        response.set_result(running.result())
