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
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any, Self

from jetbus.errors import NotConnected
from jetbus.loops import new_loop
from jetbus.peer.aiofaces import take_in
from jetbus.peer.asking import CallParams, SetParams, SetResult, call_args, read_set_result, read_set_value
from jetbus.peer.blockingfaces import Element, Fetch, Method, Mirror, Sorted, State
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.fetching import QUEUE_MAX, Event, Fetching, Policy, call_back
from jetbus.peer.session import ANSWER_S
from jetbus.peer.shared import SharedPeer, Slot
from jetbus.peer.values import Instant, plain, write_moment
from jetbus.rules import Rule, rule

__all__ = ["Element", "Fetch", "Method", "Mirror", "Peer", "Sorted", "State"]


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
        answer_s: float = ANSWER_S,
        on_loss: Callable[[], Any] | None = None,
        on_return: Callable[[], Any] | None = None,
    ) -> None:
        """``answer_s`` is how long the daemon itself may take to answer; owners have a time of their own."""
        self._core = SharedPeer(
            url,
            name=name,
            user=user,
            password=password,
            reconnect=reconnect,
            tls=tls,
            answer_s=answer_s,
            on_loss=self._aside(on_loss),
            on_return=self._aside(on_return),
        )
        self._session = self._core.session
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
        slot = Slot()
        self._session.add(owned, slot)
        slot.wait(self._session.answer_s)

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
        params = SetParams(path, plain(value), timeout_s, value_as_result)
        read = read_set_value if value_as_result else read_set_result
        return self._routed("set", params, timeout_s, read, path)  # type: ignore[no-any-return]

    def call(self, path: str, /, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a method with positional or with keyword arguments."""
        return self._routed("call", CallParams(path, call_args(args, kwargs), timeout_s), timeout_s, None, path)

    def _routed(
        self, method: str, params: Any, timeout_s: float | None, read: Callable[[Any], Any] | None, path: str
    ) -> Any:
        self._check_may_wait()
        slot = Slot()
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
            callback=functools.partial(take_in, values),
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
