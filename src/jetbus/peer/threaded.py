"""The thread of a blocking peer: an event loop of its own, a second thread for callbacks, and how work gets there.

``Peer`` is this with the verbs of the bus, as ``PeerAsync`` is ``Connected`` with them. A request goes one of two ways:
straight to the session, which any thread may use, or to the loop if it takes several steps. Either can be waited for
or gives a future; the callbacks of futures run in the thread for callbacks, where they may use the peer themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import ssl
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Self, cast

from jetbus.errors import JetError, NotConnected
from jetbus.loops import new_loop
from jetbus.peer.fetching import call_back
from jetbus.peer.session import ANSWER_S
from jetbus.peer.shared import Answer, SharedPeer
from jetbus.peer.waiting import Outcome, Waiter

OnResult = Callable[[Future[Any]], object]
"""Callback of a request: called once, with the future that has the result or the error."""


class Threaded:
    """One end of a connection to a daemon, with an event loop in a thread of its own."""

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
        starting = self._start()
        try:
            self._run(self._core.connect())
        except BaseException:
            if starting:
                self.close()
            raise

    def connect_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Connect without waiting. If it fails, connect again or ``close()``: the peer's thread is there already."""
        self._start()
        return self._begin(self._core.connect(), on_result)

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

    def close_async(self, *, on_result: OnResult | None = None) -> Future[None]:
        """Close the connection without waiting; the callback runs in a thread of its own."""
        answer = Answer()

        def close() -> None:
            try:
                self.close()
            except Exception as problem:
                answer.set_exception(problem)
            else:
                answer.set_result(None)

        future = self._calling_back(answer, on_result)
        threading.Thread(target=close, name="jet-closing").start()
        return future

    async def _end(self) -> None:
        await self._core.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _start(self) -> bool:
        """Start the peer's thread with its event loop; returns whether there was none yet."""
        with self._lifecycle:
            if self._thread is not None:
                return False
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
            return True

    # -- requests

    def _run(self, work: Awaitable[Any]) -> Any:
        """Run something on the peer's own loop and wait for it."""
        running = self._hand_over(work, waiting=True)
        try:
            return running.result()
        except CancelledError:
            raise _closed_meanwhile() from None
        except BaseException:
            running.cancel()
            raise

    def _begin(self, work: Awaitable[Any], on_result: OnResult | None) -> Future[Any]:
        """Run something on the peer's own loop without waiting for it."""
        answer = Answer()
        try:
            running = self._hand_over(work)
        except NotConnected as problem:
            answer.set_exception(problem)
        else:
            running.add_done_callback(functools.partial(_pass_on, answer))
            answer.add_done_callback(lambda given: running.cancel() if given.cancelled() else None)
        return self._calling_back(answer, on_result)

    def _hand_over(self, work: Awaitable[Any], *, waiting: bool = False) -> Future[Any]:
        """Hand a coroutine to the loop."""
        coroutine = cast(Coroutine[Any, Any, Any], work)
        try:
            with self._lifecycle:
                if waiting:
                    self._check_may_wait()
                if self._loop is None:
                    raise NotConnected("the peer is closed; connect() it, or use it in a with block")
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except BaseException:
            coroutine.close()
            raise

    def _ask(self, send: Callable[[Waiter], None], outcome: Any, on_result: OnResult | None) -> Future[Any]:
        """Send a request whose confirmation stands for an outcome; what the bus refuses is in the future."""
        answer = Answer()
        try:
            send(Outcome(answer, outcome))
        except JetError as problem:
            answer.set_exception(problem)
        return self._calling_back(answer, on_result)

    def _calling_back(self, future: Future[Any], on_result: OnResult | None) -> Future[Any]:
        """Return the future, whose end is told to the callback in the thread for callbacks."""
        if on_result is not None:
            future.add_done_callback(functools.partial(self._tell_result, on_result))
        return future

    def _tell_result(self, on_result: OnResult, future: Future[Any]) -> None:
        """Call back once, whatever happens: if the thread for callbacks ends first, in the thread that ends it."""
        try:
            telling = self._callbacks.submit(call_back, on_result, future) if self._callbacks else None
        except RuntimeError:  # it has ended
            telling = None
        if telling is None:
            call_back(on_result, future)
        else:
            telling.add_done_callback(lambda told: call_back(on_result, future) if told.cancelled() else None)

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


def _closed_meanwhile() -> NotConnected:
    return NotConnected("the peer was closed meanwhile")


def _pass_on(answer: Answer, running: Future[Any]) -> None:
    """Tell what the loop's work has ended in; it is cancelled when the peer is closed."""
    if running.cancelled():
        answer.set_exception(_closed_meanwhile())
    elif (problem := running.exception()) is not None:
        answer.set_exception(problem)
    else:
        answer.set_result(running.result())
