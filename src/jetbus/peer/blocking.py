"""``Peer``: the same names as ``PeerAsync``, but every call waits for its answer. Safe from any thread.

    with jetbus.Peer("jet://localhost") as peer:
        peer.set("pump/speed", 1200)
        for event in peer.fetch("pump/**"):
            print(event.kind, event.path, event.value)

It has an event loop of its own in its own thread. A request is written by the thread that asks, straight to the
socket where that is possible, and its answer wakes just that thread. Handlers and callbacks run one at a time in a
second thread, so they may use the peer themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Self

from jetbus.errors import NotConnected, TimedOut, TooSlow
from jetbus.loops import new_loop
from jetbus.peer import aio
from jetbus.peer.aio import PeerAsync
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.faces import ElementFace, MirrorFace, StateFace
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy, call_back
from jetbus.peer.line import StreamLine
from jetbus.peer.session import (
    GRACE_S,
    ROUTED_S,
    Session,
    SetResult,
    Waiter,
    call_params,
    read_set_result,
    read_set_value,
    set_params,
)
from jetbus.peer.values import Instant, write_moment
from jetbus.rules import Rule, rule


class _Slot:
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
            raise TimedOut({"path": path})
        if self._error is not None:
            raise self._error
        return self._result


class _SharedSession(Session):
    """A session that several threads use: one lock round what changes, and a direct way to the socket."""

    def __init__(self, spawn: Callable[[Awaitable[Any], Callable[[Any, BaseException | None], None]], None]) -> None:
        super().__init__(spawn=spawn)
        self._lock = threading.RLock()
        self._batches = threading.local()
        self.write_now: Callable[[bytes], bool] = lambda _message: False
        """Try to write a message at once; false when it must queue."""

    def send(self, message: bytes) -> None:
        batch: list[bytes] | None = getattr(self._batches, "messages", None)
        if batch is not None:
            batch.append(message)
            return
        with self._lock:
            self.out.append(message)
            if len(self.out) == 1:
                self.on_output()

    def begin_batch(self) -> None:
        if self.gathers():
            raise RuntimeError("a batch is open already; batches do not nest")
        self._batches.messages = []

    def end_batch(self) -> None:
        batch, self._batches.messages = self._batches.messages, None
        if batch:
            self.send(batch[0] if len(batch) == 1 else b"[" + b",".join(batch) + b"]")

    def request(
        self,
        method: bytes,
        params: bytes,
        waiter: Waiter,
        read: Callable[[Any], Any] | None = None,
        within_s: float = float("inf"),
        path: str = "",
    ) -> None:
        with self._lock:
            super().request(method, params, waiter, read, within_s, path)

    def request_now(
        self,
        method: bytes,
        params: bytes,
        waiter: Waiter,
        read: Callable[[Any], Any] | None,
        within_s: float,
        path: str,
    ) -> None:
        """A request that somebody waits for: written at once if nothing is queued before it."""
        with self._lock:
            self.check_connected()
            message = self._ask(method, params, waiter, read, within_s, path)
            if self.out or not self.write_now(message):
                self.send(message)

    def gathers(self) -> bool:
        """Whether this thread has a batch open."""
        return getattr(self._batches, "messages", None) is not None

    # What several threads may do at once, each as one step.

    def change(self, state: OwnedState, value: Any) -> None:
        with self._lock:
            super().change(state, value)

    def add(self, owned: Owned, waiter: Waiter) -> None:
        with self._lock:
            super().add(owned, waiter)

    def remove(self, owned: Owned, waiter: Waiter) -> None:
        with self._lock:
            super().remove(owned, waiter)

    def next_fetch_id(self) -> str:
        with self._lock:
            return super().next_fetch_id()

    def fetch(self, fetching: Fetching) -> None:
        with self._lock:
            super().fetch(fetching)

    def unfetch(self, fetching: Fetching) -> None:
        with self._lock:
            super().unfetch(fetching)

    def expire(self, now: float) -> None:
        with self._lock:
            super().expire(now)

    def on_connected(self) -> None:
        with self._lock:
            super().on_connected()

    def on_lost(self) -> None:
        with self._lock:
            super().on_lost()


class _Core(PeerAsync):
    """The asynchronous peer inside, with a session that threads share."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._shared = _SharedSession(self._spawn)
        self._session = self._shared
        self._session.on_output = self._schedule_flush
        self._session.on_clash = self._on_clash
        self._shared.write_now = self._write_now
        self._rest = b""
        """What did not fit into the socket of a message that is written at once."""

    def _schedule_flush(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._shared._lock:
            if self._rest and self._line is not None:
                rest, self._rest = self._rest, b""
                self._line.transport.write(rest)
            super()._flush()

    async def _introduce(self) -> None:
        self._rest = b""
        await super()._introduce()

    def _write_now(self, message: bytes) -> bool:
        line = self._line
        if self._rest or not isinstance(line, StreamLine) or self._address.tls:
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


class _Element(ElementFace):
    """What states and methods of ``Peer`` share."""

    def __init__(self, peer: Peer, owned: Owned) -> None:
        super().__init__(peer._session, owned)
        self._peer = peer

    def add(self) -> None:
        """Hang it into the bus again."""
        self._peer._add(self._owned)

    def remove(self) -> None:
        """Take it off the bus; it can be added again."""
        self._peer._check_may_wait()
        slot = _Slot()
        self._session.remove(self._owned, slot)
        slot.wait(ROUTED_S + GRACE_S, self._owned.path)


class State(_Element, StateFace):
    """A state this peer owns."""


class Method(_Element):
    """A method this peer owns; calling it calls the function."""

    def __init__(self, peer: Peer, owned: Owned, function: Callable[..., Any]) -> None:
        super().__init__(peer, owned)
        self._function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Fetch:
    """A running fetch: iterate over it for its events. ``with`` or ``close()`` ends it."""

    def __init__(self, peer: Peer, fetching: Fetching, callback: Callable[[Any], None] | None = None) -> None:
        self._peer = peer
        self._fetching = fetching
        self._callback = callback
        self._telling = False
        self._taken: deque[Any] = deque()
        self._something = threading.Event()
        fetching.wake = self._wake

    def _wake(self) -> None:
        self._something.set()
        if self._callback is not None and not self._telling:
            self._telling = True
            self._peer._submit(self._tell, self._callback)

    def _tell(self, callback: Callable[[Any], None]) -> None:
        """Tell the callback, in its thread, all that waits; the queue between has a limit as for an iterator."""
        self._telling = False
        for event in self._fetching.take():
            call_back(callback, event)
        if isinstance(self._fetching.error, TooSlow):
            aio.log.error("a callback was too slow, its fetch has ended: %s", self._fetching.error)

    @property
    def conflated(self) -> int:
        """How many events a newer one has replaced before they were read."""
        return self._fetching.conflated

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait until all that was there at the start has been told."""
        while not self._fetching.complete and not self._fetching.ended:
            self._wait(timeout_s)
            self._something.clear()
        self._something.set()  # another thread may wait for events
        if self._fetching.error is not None:
            raise self._fetching.error
        return self

    def _wait(self, timeout_s: float | None) -> None:
        self._peer._check_may_wait()
        if not self._something.wait(timeout_s):
            raise TimedOut({"fetch": self._fetching.id})

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Any:
        """The next event; raises ``TimedOut`` if there is none in time."""
        while True:
            try:
                event = self._taken.popleft()
            except IndexError:
                self._more(timeout_s)
                continue
            if isinstance(event, Event) and event.problem is not None:
                raise event.problem
            return event

    def _more(self, timeout_s: float | None) -> None:
        """Wait for more to take."""
        fetching = self._fetching
        while True:
            self._something.clear()
            taken = fetching.take()
            if taken:
                self._taken.extend(taken)
                return
            if fetching.ended:
                raise fetching.error or StopIteration
            self._wait(timeout_s)

    def close(self) -> None:
        """End the fetch."""
        self._peer._session.unfetch(self._fetching)

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Sorted(Fetch):
    """A sorted fetch: ``items`` is always the current list, iterating gives each new one."""

    @property
    def items(self) -> list[Event]:
        """The current list."""
        return self._fetching.items


class Mirror(MirrorFace):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: Peer, fetching: Fetching, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._fetch = Fetch(peer, fetching)

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait for the first full picture."""
        self._fetch.ready(timeout_s)
        return self

    def close(self) -> None:
        """Stop following the bus; the last picture stays."""
        self._fetch.close()

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Peer:
    """A peer whose calls block, usable from any thread.

    >>> with Peer("jet://localhost") as peer:        # doctest: +SKIP
    ...     peer.set("pump/speed", 1200)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "",
        user: str | None = None,
        password: str | None = None,
        reconnect: bool = True,
        tls: ssl.SSLContext | None = None,
        on_loss: Callable[[], Any] | None = None,
        on_return: Callable[[], Any] | None = None,
    ) -> None:
        self._core = _Core(
            url,
            name=name,
            user=user,
            password=password,
            reconnect=reconnect,
            tls=tls,
            on_loss=self._aside(on_loss),
            on_return=self._aside(on_return),
        )
        self._session = self._core._shared
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lifecycle = threading.RLock()
        """Held while work is handed to the loop, so that none is left behind when it stops."""
        self._callbacks: ThreadPoolExecutor | None = None

    # -- connection

    @property
    def connected(self) -> bool:
        """Whether there is a connection to the daemon right now."""
        return self._core.connected

    @property
    def url(self) -> str:
        """Where the daemon is, without password."""
        return self._core.url

    @property
    def open_request_count(self) -> int:
        """How many requests wait for their response."""
        return self._core.open_request_count

    def __enter__(self) -> Self:
        self.connect()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def connect(self) -> None:
        """Connect to the daemon, introduce and authenticate this peer."""
        with self._lifecycle:
            starting = self._thread is None
            if starting:
                self._start()
        try:
            self._run(self._core.connect())
        except BaseException:
            if starting:
                self.close()
            raise

    def close(self) -> None:
        """Close the connection; what this peer owns leaves the bus."""
        self._check_may_wait()
        with self._lifecycle:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=False, cancel_futures=True)

    async def _end(self) -> None:
        await self._core.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _start(self) -> None:
        loop = new_loop()
        self._callbacks = ThreadPoolExecutor(1, thread_name_prefix="jet-callbacks")

        def run() -> None:
            asyncio.set_event_loop(loop)
            try:
                loop.run_forever()
            finally:
                loop.close()

        self._loop = loop
        self._thread = threading.Thread(target=run, name="jet-peer", daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run something on the peer's own loop and wait for it."""
        try:
            with self._lifecycle:
                self._check_may_wait()
                if self._loop is None:
                    raise NotConnected("the peer is closed; connect() it, or use it in a with block")
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        except CancelledError:
            raise NotConnected("the peer was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def _check_may_wait(self) -> None:
        """Refuse to wait where waiting would never end."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the peer's own loop would wait for itself; use PeerAsync there")
        if self._session.gathers():
            raise RuntimeError("a batch is sent when its block ends: only changes go into it, nothing that waits")

    def _in_callbacks(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """The function, run in the thread for callbacks; if it is ``async``, on the loop."""

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            if inspect.iscoroutinefunction(function):
                return await function(*args, **kwargs)
            outcome = await asyncio.get_running_loop().run_in_executor(
                self._callbacks, lambda: function(*args, **kwargs)
            )
            return await outcome if inspect.isawaitable(outcome) else outcome

        return run

    def _aside(self, callback: Callable[[], Any] | None) -> Callable[[], None] | None:
        if callback is None:
            return None
        return lambda: self._submit(callback)

    def _submit(self, callback: Callable[..., Any], *args: Any) -> None:
        if self._callbacks is not None:
            with contextlib.suppress(RuntimeError):
                self._callbacks.submit(call_back, callback, *args)

    # -- owner

    def add_state(
        self,
        path: str,
        value: Any = None,
        *,
        on_set: Callable[[Any], Any] | None = None,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
        type: Any = None,  # noqa: A002
    ) -> State:
        """Own a state. Without ``on_set`` it is read-only; see ``PeerAsync.add_state``."""
        handler = None if on_set is None else self._in_callbacks(on_set)
        owned = OwnedState(path, value, handler, access, timeout_s, type)
        self._add(owned)
        return State(self, owned)

    def add_method(
        self,
        path: str,
        function: Callable[..., Any],
        *,
        access: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Method:
        """Own a method: an array becomes positional, an object keyword arguments."""
        owned = OwnedMethod(path, self._in_callbacks(function), access, timeout_s)
        self._add(owned)
        return Method(self, owned, function)

    def _add(self, owned: Owned) -> None:
        self._check_may_wait()
        slot = _Slot()
        self._session.add(owned, slot)
        slot.wait(ROUTED_S + GRACE_S, owned.path)

    def state(self, path: str, value: Any = None, **options: Any) -> Callable[[Callable[[Any], Any]], State]:
        """Decorate the ``on_set`` of a state."""
        return lambda on_set: self.add_state(path, value, on_set=on_set, **options)

    def method(self, path: str, **options: Any) -> Callable[[Callable[..., Any]], Method]:
        """Decorate a function to become a method."""
        return lambda function: self.add_method(path, function, **options)

    @contextlib.contextmanager
    def batch(self) -> Generator[None]:
        """Send the changes of this thread inside the block as one message."""
        self._session.begin_batch()
        try:
            yield
        finally:
            self._session.end_batch()

    # -- client

    def set(self, path: str, value: Any, *, timeout_s: float | None = None, value_as_result: bool = False) -> SetResult:
        """Ask the owner to set a state. The result tells a warning if the owner adapted the value."""
        params = set_params(path, value, timeout_s, value_as_result)
        read = read_set_value if value_as_result else read_set_result
        return self._routed(b"set", params, timeout_s, read, path)  # type: ignore[no-any-return]

    def call(self, path: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method with positional or with keyword arguments."""
        if args and kwargs:
            raise TypeError("a Jet method takes positional or keyword arguments, not both")
        return self._routed(b"call", call_params(path, kwargs or args, timeout_s), timeout_s, None, path)

    def _routed(
        self, method: bytes, params: bytes, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> Any:
        self._check_may_wait()
        slot = _Slot()
        within_s = self._session.patience_s(timeout_s)
        self._session.request_now(method, params, slot, read, within_s, path)
        return slot.wait(within_s, path)

    def get(self, text: str | Rule | None = None, *, as_of: Instant | None = None, **keywords: Any) -> dict[str, Any]:
        """The states that match now, or matched at an instant, path to value, in order."""
        return self._run(self._core.get(text, as_of=as_of, **keywords))  # type: ignore[no-any-return]

    def fetch(
        self,
        text: str | Rule | None = None,
        callback: Callable[[Any], None] | None = None,
        *,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        type: Any = None,  # noqa: A002
        since: Instant | None = None,
        **keywords: Any,
    ) -> Fetch:
        """Be told of everything that matches: iterate over it, or give a callback. See ``PeerAsync.fetch``."""
        wanted = rule(text, **keywords)
        moment = None if since is None else write_moment(since)
        fetching = Fetching(
            self._session.next_fetch_id(),
            wanted,
            value_type=type,
            policy=policy,
            queue_max=queue_max,
            since=moment,
        )
        fetch = Sorted(self, fetching, callback) if wanted.sort else Fetch(self, fetching, callback)
        self._session.fetch(fetching)
        return fetch

    def mirror(self, text: str | Rule | None = None, *, type: Any = None, **keywords: Any) -> Mirror:  # noqa: A002
        """A live dict of everything that matches."""
        values: dict[str, Any] = {}
        fetching = Fetching(
            self._session.next_fetch_id(),
            rule(text, **keywords),
            value_type=type,
            callback=functools.partial(aio.take_in, values),
        )
        mirror = Mirror(self, fetching, values)
        self._session.fetch(fetching)
        return mirror

    def wait_for(self, text: str | Rule | None = None, *, timeout_s: float | None = None, **keywords: Any) -> Event:
        """Wait until something matches, and give the event that told it."""
        return self._run(self._core.wait_for(text, timeout_s=timeout_s, **keywords))  # type: ignore[no-any-return]

    def info(self) -> dict[str, Any]:
        """What the daemon says of itself."""
        return self._run(self._core.info())  # type: ignore[no-any-return]

    def config(self, **settings: Any) -> None:
        """Tell the daemon about this peer, for instance its ``name``."""
        self._run(self._core.config(**settings))

    def authenticate(self, user: str, password: str) -> Any:
        """Log in; must come before the first fetch. Also used when the connection comes back."""
        return self._run(self._core.authenticate(user, password))
