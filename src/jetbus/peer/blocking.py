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
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from jetbus.errors import NotConnected, TimedOut
from jetbus.loops import new_loop
from jetbus.peer import aio
from jetbus.peer.aio import GRACE_S, ROUTED_S, PeerAsync
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy
from jetbus.peer.line import StreamLine
from jetbus.peer.session import Session, SetResult, Waiter, read_set_result
from jetbus.rules import Rule, rule
from jetbus.wire import jsonrpc
from jetbus.wire.framing import STREAM


class _Slot:
    """A response to come, for a thread that waits."""

    __slots__ = ("_error", "_lock", "_result")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return not self._lock.locked()

    def set_result(self, result: Any, /) -> None:
        self._result = result
        self._lock.release()

    def set_exception(self, exception: BaseException, /) -> None:
        self._error = exception
        self._lock.release()

    def wait(self, timeout_s: float, path: str = "") -> Any:
        if not self._lock.acquire(timeout=timeout_s):
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
        if getattr(self._batches, "messages", None) is not None:
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
        *,
        read: Callable[[Any], Any] | None = None,
        deadline: float = float("inf"),
        path: str = "",
    ) -> int:
        with self._lock:
            return super().request(method, params, waiter, read=read, deadline=deadline, path=path)

    def request_now(
        self, method: bytes, params: bytes, waiter: Waiter, read: Callable[[Any], Any] | None, path: str
    ) -> int:
        """A request that somebody waits for: written at once if nothing is queued before it."""
        with self._lock:
            self.check_connected()
            if self.out or getattr(self._batches, "messages", None) is not None:
                return super().request(method, params, waiter, read=read, path=path)
            number = self._register(waiter, read, path)
            message = b'{"id":%d,"method":"%b","params":%b}' % (number, method, params)
            if not self.write_now(message):
                self.send(message)
            return number

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

    def _schedule_flush(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        with self._shared._lock:
            if self._rest and self._line is not None:
                rest, self._rest = self._rest, b""
                self._line.transport.write(rest)
            super()._flush()

    def _write_now(self, message: bytes) -> bool:
        line = self._line
        if self._rest or not isinstance(line, StreamLine) or self._address.tls:
            return False
        transport = line.transport
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        data = STREAM.header(len(message)) + message
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


class _Element:
    """What states and methods of ``Peer`` share."""

    def __init__(self, peer: Peer, owned: Owned) -> None:
        self._peer = peer
        self._owned = owned

    @property
    def path(self) -> str:
        """Where it hangs in the tree."""
        return self._owned.path

    @property
    def added(self) -> bool:
        """Whether it is on the bus, or will be as soon as the connection is back."""
        return self._owned.added

    def add(self) -> None:
        """Hang it into the bus again."""
        self._peer._add(self._owned)

    def remove(self) -> None:
        """Take it off the bus; it can be added again."""
        slot = _Slot()
        self._peer._session.remove(self._owned, slot)
        slot.wait(ROUTED_S + GRACE_S, self._owned.path)


class State(_Element):
    """A state this peer owns."""

    _owned: OwnedState

    @property
    def value(self) -> Any:
        """Its value as last changed or set."""
        return self._owned.value

    def change(self, value: Any) -> None:
        """Give it a new value and tell the bus."""
        self._peer._session.change(self._owned, value)


class Method(_Element):
    """A method this peer owns; calling it calls the function."""

    _owned: OwnedMethod

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return inspect.unwrap(self._owned.function)(*args, **kwargs)


class Fetch:
    """A running fetch: iterate over it for its events. ``with`` or ``close()`` ends it."""

    def __init__(self, peer: Peer, fetching: Fetching) -> None:
        self._peer = peer
        self._fetching = fetching
        self._taken: Iterator[Any] = iter(())
        self._something = threading.Event()
        fetching.wake = self._something.set

    @property
    def conflated(self) -> int:
        """How many events a newer one has replaced before they were read."""
        return self._fetching.conflated

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait until all that was there at the start has been told."""
        while not self._fetching.complete and not self._fetching.ended:
            self._wait(timeout_s)
        if self._fetching.error is not None:
            raise self._fetching.error
        return self

    def _wait(self, timeout_s: float | None) -> None:
        if not self._something.wait(timeout_s):
            raise TimedOut({"fetch": self._fetching.id})
        self._something.clear()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Any:
        """The next event; raises ``TimedOut`` if there is none in time."""
        for event in self._taken:
            if isinstance(event, Event) and event.problem is not None:
                raise event.problem
            return event
        while True:
            self._something.clear()
            taken = self._fetching.take()
            if taken:
                self._taken = iter(taken)
                return self.next(timeout_s)
            if self._fetching.ended:
                if self._fetching.error is not None:
                    raise self._fetching.error
                raise StopIteration
            if not self._something.wait(timeout_s):
                raise TimedOut({"fetch": self._fetching.id})

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


class Mirror(Mapping[str, Any]):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: Peer, fetching: Fetching, values: dict[str, Any]) -> None:
        self._fetch = Fetch(peer, fetching)
        self._values = values

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait for the first full picture."""
        self._fetch.ready(timeout_s)
        return self

    def close(self) -> None:
        """Stop following the bus; the last picture stays."""
        self._fetch.close()

    def __getitem__(self, path: str) -> Any:
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Mirror({self._values!r})"

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
        if self._thread is None:
            self._start()
        try:
            self._run(self._core.connect())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; what this peer owns leaves the bus."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        self._check_thread()
        self._run(self._core.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._loop = self._thread = None
        if self._callbacks is not None:
            self._callbacks.shutdown(wait=False, cancel_futures=True)

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

    def _run(self, work: Awaitable[Any]) -> Any:
        """Run something on the peer's own loop and wait for it."""
        if self._loop is None:
            if inspect.iscoroutine(work):
                work.close()
            raise NotConnected("the peer is closed; connect() it, or use it in a with block")
        self._check_thread()
        return asyncio.run_coroutine_threadsafe(_await(work), self._loop).result()

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking call on the peer's own loop would wait for itself; use PeerAsync there")

    def _in_callbacks(self, function: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """The function, run in the thread for callbacks."""

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            work = functools.partial(function, *args, **kwargs)
            outcome = await asyncio.get_running_loop().run_in_executor(self._callbacks, work)
            return await outcome if inspect.isawaitable(outcome) else outcome

        return run

    def _aside(self, callback: Callable[[], Any] | None) -> Callable[[], None] | None:
        if callback is None:
            return None
        return lambda: self._submit(callback)

    def _submit(self, callback: Callable[..., Any], *args: Any) -> None:
        if self._callbacks is not None:
            with contextlib.suppress(RuntimeError):
                self._callbacks.submit(_logged, callback, *args)

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
        return Method(self, owned)

    def _add(self, owned: Owned) -> None:
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
        params = b'{"path":%b,"value":%b' % (jsonrpc.encode(path), jsonrpc.encode(value))
        if value_as_result:
            params += b',"valueAsResult":true'
        read = SetResult if value_as_result else read_set_result
        return self._routed(b"set", params, timeout_s, read, path)  # type: ignore[no-any-return]

    def call(self, path: str, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method with positional or with keyword arguments."""
        if args and kwargs:
            raise TypeError("a Jet method takes positional or keyword arguments, not both")
        params = b'{"path":%b,"args":%b' % (jsonrpc.encode(path), jsonrpc.encode(kwargs or args))
        return self._routed(b"call", params, timeout_s, None, path)

    def _routed(
        self, method: bytes, params: bytes, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> Any:
        self._check_thread()
        if timeout_s is not None:
            params += b',"timeout":%b' % jsonrpc.encode(timeout_s)
        slot = _Slot()
        number = self._session.request_now(method, params + b"}", slot, read, path)
        try:
            return slot.wait((ROUTED_S if timeout_s is None else timeout_s) + GRACE_S, path)
        except TimedOut:
            self._session.forget(number)
            raise

    def get(self, text: str | Rule | None = None, **keywords: Any) -> dict[str, Any]:
        """The states that match now, path to value, in order."""
        return self._run(self._core.get(text, **keywords))  # type: ignore[no-any-return]

    def fetch(
        self,
        text: str | Rule | None = None,
        callback: Callable[[Any], None] | None = None,
        *,
        policy: Policy = "latest",
        queue_max: int = QUEUE_MAX,
        type: Any = None,  # noqa: A002
        **keywords: Any,
    ) -> Fetch:
        """Be told of everything that matches: iterate over it, or give a callback. See ``PeerAsync.fetch``."""
        wanted = rule(text, **keywords)
        told = None if callback is None else functools.partial(self._submit, callback)
        fetching = Fetching(
            self._session.next_fetch_id(), wanted, value_type=type, policy=policy, queue_max=queue_max, callback=told
        )
        fetch = Sorted(self, fetching) if wanted.sort else Fetch(self, fetching)
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

    def wait_for(self, text: str | Rule, *, timeout_s: float | None = None, **keywords: Any) -> Event:
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


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def _logged(callback: Callable[..., Any], *args: Any) -> None:
    try:
        callback(*args)
    except Exception:
        aio.log.exception("a callback failed")
