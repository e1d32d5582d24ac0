"""Handles: the states, methods, fetches and mirrors that a peer returns, for ``PeerAsync`` and for ``Peer``.

A handle holds no state of its own except for waiting. The session knows the elements of the peer, and a
``Subscription`` the reports of a fetch; handles of the two peers differ only in whether waiting is an
``await`` or blocks the thread.

**Iteration.** ``async for`` over a fetch is the innermost loop of many programs. An async generator wraps every value
that it yields, for the loop to unwrap again, which was a fifth of the time of a fast reader. ``_iterator.c`` does
without: its ``await`` returns an event that is there at once, and awaits the fetch's own ``__anext__`` only when the
queue is empty. Where it could not be compiled, the generator ``iterate_in_python`` takes its place and does the same.
Either leaves unused events to the next loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Self, Unpack

from jetbus.errors import Invalid, NotConnected, TimedOut, TooSlow
from jetbus.json_types import Json, JsonObject
from jetbus.peer.callbacks import call_back
from jetbus.peer.elements import Owned, OwnedMethod, OwnedState
from jetbus.peer.events import Event
from jetbus.peer.peer_session import PeerSession
from jetbus.peer.requests import BlockingWaiter
from jetbus.peer.signatures import show_options
from jetbus.peer.subscription import Subscription
from jetbus.schema import Described, read_quality, read_time
from jetbus.wire.lane import IS_PURE

if TYPE_CHECKING:
    from jetbus.peer.aio import PeerAsync
    from jetbus.peer.blocking import Peer
    from jetbus.peer.connection import OnResult
    from jetbus.peer.threads import OnResult as OnFuture

log = logging.getLogger("jetbus.peer")


class ElementHandle:
    """A state or method that this peer owns."""

    def __init__(self, session: PeerSession, owned: Owned) -> None:
        self._session = session
        self._owned = owned

    @property
    def path(self) -> str:
        """Its path in the tree."""
        return self._owned.path

    @property
    def added(self) -> bool:
        """True if it is on the bus, or will be as soon as the connection is back."""
        return self._owned.added

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path!r}{self._describe()}{'' if self.added else ', removed'}>"

    def _describe(self) -> str:
        return ""


class StateHandle(ElementHandle):
    """A state that this peer owns."""

    _owned: OwnedState

    @property
    def value(self) -> Any:
        """The value that it was given last, by ``change`` or by a set."""
        return self._owned.value

    def _describe(self) -> str:
        return f" = {self.value!r}"

    def change(
        self,
        value: Any,
        *,
        ts: datetime | str | int | None = None,
        quality: str | Mapping[str, Json] | None = None,
        past: bool = False,
    ) -> None:
        """Give it a new value, which all its fetchers see.

        ``ts`` is when it was measured: a datetime, RFC 3339 text with an offset or microseconds since 1970. ``quality``
        is ``"good"``, ``"uncertain"``, ``"bad"`` or a dict with ``level`` and ``reason``. A value that is ``past`` is
        recorded; unless it is newer than the present one, that stays the state's.
        """
        if ts is None and quality is None and not past:
            self._session.change(self._owned, value)
        else:
            self._session.change_described(self._owned, value, make_meta(ts, quality, past=past))

    @show_options(Described)
    def describe(self, **described: Unpack[Described]) -> None:
        """Replace its description, by the same keywords as ``add_state``; fetches that ask for schemas get it."""
        self._owned.set_description(described)
        self._session.redescribe(self._owned, self._owned.schema)


def make_meta(ts: datetime | str | int | None, quality: str | Mapping[str, Json] | None, *, past: bool) -> JsonObject:
    """Return time and quality of a value as parameters of a change; raise ``Invalid`` for those that mean nothing."""
    meta: JsonObject = {}
    try:
        if ts is not None:
            meta["ts"] = read_time(ts)
        if quality is not None:
            read_quality(quality)
            meta["quality"] = quality
    except ValueError as problem:
        raise Invalid("quality" if "quality" in str(problem) else "ts", str(problem)) from None
    if past and ts is None:
        raise Invalid("past", "a value of the past needs its time, ts=")
    return meta | ({"past": True} if past else {})


class MirrorHandle(Mapping[str, Any]):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, session: PeerSession, values: dict[str, Any]) -> None:
        self._session = session
        self._values = values

    def __getitem__(self, path: str) -> Any:
        self._session.check_usable()
        return self._values[path]

    def __iter__(self) -> Iterator[str]:
        self._session.check_usable()
        # A copy, because the bus changes the values during an iteration.
        return iter(list(self._values))

    def __len__(self) -> int:
        self._session.check_usable()
        return len(self._values)

    def __repr__(self) -> str:
        return f"Mirror({self._values!r})"

    def copy(self) -> dict[str, Any]:
        """Return a dict of its present values."""
        self._session.check_usable()
        return self._values.copy()


class Iterated(Protocol):
    """The part of a fetch that a loop over it uses."""

    _taken: Iterator[Any]
    """Events that have been taken from the queue; replaced by the next ones when they are used up."""

    async def __anext__(self) -> Any: ...


async def iterate_in_python(fetch: Iterated) -> AsyncGenerator[Any]:
    """Iterate over a fetch without the compiled part."""
    while True:
        for event in fetch._taken:
            yield event
        try:
            event = await fetch.__anext__()
        except StopAsyncIteration:
            return
        yield event


iterate: Callable[[Iterated], AsyncIterator[Any]] = iterate_in_python
if not IS_PURE:
    with suppress(ImportError):
        from jetbus.peer._iterator import FetchIterator

        iterate = FetchIterator

COMPILED = iterate is not iterate_in_python
"""True if ``async for`` over a fetch is compiled."""


class ElementAsync(ElementHandle):
    """A state or method of ``PeerAsync``."""

    def __init__(self, peer: PeerAsync, owned: Owned) -> None:
        super().__init__(peer.session, owned)
        self._peer = peer

    def add(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Add it to the bus again after ``remove``."""
        return self._peer._begin(self._peer._add(self._owned, None), on_result)

    def remove(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Remove it from the bus; it can be added again."""
        return self._peer._begin(self._remove(), on_result)

    async def _remove(self) -> None:
        future = self._peer._future()
        self._session.remove(self._owned, future)
        await future


class StateAsync(ElementAsync, StateHandle):
    """A state that this peer owns."""


class MethodAsync(ElementAsync):
    """A method that this peer owns; calling it calls the function."""

    _owned: OwnedMethod

    def __init__(self, peer: PeerAsync, owned: OwnedMethod) -> None:
        super().__init__(peer, owned)
        functools.update_wrapper(self, owned.function, updated=())  # for ``help`` and ``inspect.signature``

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._owned.function(*args, **kwargs)


class FetchAsync:
    """A running fetch: iterate over it for its events. ``async with`` or ``close()`` ends it."""

    def __init__(self, peer: PeerAsync, subscription: Subscription) -> None:
        self._peer = peer
        self._subscription = subscription
        self._taken: Iterator[Any] = iter(())
        self._woken = asyncio.Event()
        subscription.wake = self._woken.set

    def __repr__(self) -> str:
        return _describe_fetch(self, self._subscription)

    @property
    def conflated(self) -> int:
        """Number of events that a newer one replaced before they were read."""
        return self._subscription.conflated

    async def _wait(self) -> None:
        self._peer._check_loop()
        # The caller has just looked, and events arrive on this very loop: none can have come in between.
        self._woken.clear()
        await self._woken.wait()

    async def ready(self) -> Self:
        """Wait until everything that matched at the start is in the queue."""
        while not self._subscription.complete and not self._subscription.ended:
            await self._wait()
        if self._subscription.error is not None:
            raise self._subscription.error
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return iterate(self)

    async def __anext__(self) -> Any:
        subscription = self._subscription
        while True:
            for event in self._taken:
                return event
            if taken := subscription.take(awaiting=True):
                self._taken = map(check_event, taken) if subscription.is_typed else iter(taken)
            elif subscription.error is not None:
                raise subscription.error
            elif subscription.ended:
                raise StopAsyncIteration
            else:
                try:
                    await self._wait()  # another loop over this fetch may have taken the events meanwhile
                finally:
                    subscription.awaited = False

    async def await_callback(self, callback: Callable[[Any], Awaitable[Any]]) -> None:
        """Await a callback for one event after the other, until the fetch ends."""
        subscription = self._subscription
        while True:
            taken = subscription.take()
            for event in taken:
                try:
                    await callback(event)
                except Exception:
                    log.exception("a callback failed")
            if not taken and subscription.ended:
                break
            if not taken:
                await self._wait()
        _log_slow_callback(subscription)

    def close(self, *, on_result: OnResult | None = None) -> None:
        """End the fetch.

        With ``on_result`` the daemon is asked to confirm it.
        """
        if on_result is None:
            self._peer.session.unfetch(self._subscription)
            return
        future = self._peer._future()
        future.add_done_callback(functools.partial(call_back, on_result))
        try:
            self._peer.session.unfetch(self._subscription, future)
        except NotConnected as problem:
            future.set_exception(problem)

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *_exc: object) -> None:
        self.close()


class SortedAsync(FetchAsync):
    """A sorted fetch: ``items`` is always the current list, iterating gives each new one."""

    @property
    def items(self) -> list[Event]:
        """The current list."""
        return self._subscription.items


def _describe_fetch(handle: object, subscription: Subscription) -> str:
    if subscription.ended:
        state = "closed" if subscription.error is None else f"ended: {subscription.error}"
    else:
        state = "complete" if subscription.complete else "starting"
    return f"<{type(handle).__name__} {subscription.id!r}, {len(subscription.known)} matches, {state}>"


def _log_slow_callback(subscription: Subscription) -> None:
    if isinstance(subscription.error, TooSlow):
        log.error("the callback of a fetch is too slow, so the fetch has ended: %s", subscription.error)


def check_event(event: Any) -> Any:
    """Return an event, or raise the error of one with a value that does not fit the type."""
    if isinstance(event, Event) and event.problem is not None:
        raise event.problem
    return event


def apply_event(values: dict[str, Any], event: Event) -> None:
    """Apply an event to the values of a mirror."""
    if event.problem is not None:
        log.error("a mirror keeps the old value of %s: %s", event.path, event.problem)
    elif event.kind == "remove":
        values.pop(event.path, None)
    else:
        values[event.path] = event.value


class MirrorAsync(MirrorHandle):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: PeerAsync, subscription: Subscription, values: dict[str, Any]) -> None:
        super().__init__(peer.session, values)
        self._fetch = FetchAsync(peer, subscription)

    async def ready(self) -> Self:
        """Wait until it shows everything that matches."""
        await self._fetch.ready()
        return self

    def close(self, *, on_result: OnResult | None = None) -> None:
        """Stop following the bus; the values stay as they are."""
        self._fetch.close(on_result=on_result)

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *_exc: object) -> None:
        self.close()


class BlockingElement(ElementHandle):
    """A state or method of ``Peer``."""

    def __init__(self, peer: Peer, owned: Owned) -> None:
        super().__init__(peer._session, owned)
        self._peer = peer

    def add(self) -> None:
        """Add it to the bus again after ``remove``."""
        self._peer._add(self._owned)

    def remove(self) -> None:
        """Remove it from the bus; it can be added again."""
        self._peer._check_may_wait()
        slot = BlockingWaiter()
        self._session.remove(self._owned, slot)
        slot.wait(self._session.answer_s)

    def add_async(self, *, on_result: OnFuture | None = None) -> Future[None]:
        """Add it to the bus again, without waiting."""
        return self._peer._request_handle(lambda answer: self._session.add(self._owned, answer), None, on_result)

    def remove_async(self, *, on_result: OnFuture | None = None) -> Future[None]:
        """Remove it from the bus, without waiting."""
        return self._peer._request_handle(lambda answer: self._session.remove(self._owned, answer), None, on_result)


class State(BlockingElement, StateHandle):
    """A state that this peer owns."""


class Method(BlockingElement):
    """A method that this peer owns; calling it calls the function."""

    def __init__(self, peer: Peer, owned: Owned, function: Callable[..., Any]) -> None:
        super().__init__(peer, owned)
        self._function = function
        functools.update_wrapper(self, function, updated=())  # for ``help`` and ``inspect.signature``

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Fetch:
    """A running fetch: iterate over it for its events. ``with`` or ``close()`` ends it."""

    def __init__(self, peer: Peer, subscription: Subscription, callback: Callable[[Any], Any] | None = None) -> None:
        self._peer = peer
        self._subscription = subscription
        self._callback = callback
        self._callback_scheduled = False
        self._taken: deque[Any] = deque()
        self._woken = threading.Event()
        subscription.wake = self._wake

    def _wake(self) -> None:
        self._woken.set()
        # One run takes all that is queued, so one at a time is enough.
        if self._callback is not None and not self._callback_scheduled:
            self._callback_scheduled = True
            self._peer._submit(self._run_callback, self._callback)

    def _run_callback(self, callback: Callable[[Any], Any]) -> None:
        """Call the callback, in its thread, for everything in the queue, which has the limit of an iterator's."""
        # Before the queue is emptied: events that come later schedule another run.
        self._callback_scheduled = False
        for event in self._subscription.take():
            self._peer._call_back(callback, event)
        _log_slow_callback(self._subscription)

    def __repr__(self) -> str:
        return _describe_fetch(self, self._subscription)

    @property
    def conflated(self) -> int:
        """Number of events that a newer one replaced before they were read."""
        return self._subscription.conflated

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait until everything that matched at the start is in the queue."""
        while not self._subscription.complete and not self._subscription.ended:
            self._wait(timeout_s)
            self._woken.clear()
        self._woken.set()  # another thread may wait for events
        if self._subscription.error is not None:
            raise self._subscription.error
        return self

    def _wait(self, timeout_s: float | None) -> None:
        self._peer._check_may_wait()
        if not self._woken.wait(timeout_s):
            raise TimedOut({"fetch": self._subscription.id}, f"no event of the fetch came within {timeout_s:g} s")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout_s: float | None = None) -> Any:
        """Return the next event; raise ``TimedOut`` if there is none in time."""
        while True:
            try:
                event = self._taken.popleft()
            except IndexError:
                event = None
            if event is None:  # wait outside of the except block: an interrupt should not show the IndexError
                self._take_more(timeout_s)
                continue
            if isinstance(event, Event) and event.problem is not None:
                raise event.problem
            return event

    def _take_more(self, timeout_s: float | None) -> None:
        """Wait until there are events and take them."""
        subscription = self._subscription
        self._peer._session.check_usable()
        while True:
            # Before looking: an event that comes after the look sets it again, and the wait ends at once.
            self._woken.clear()
            taken = subscription.take()
            if taken:
                self._taken.extend(taken)
                return
            if subscription.ended:
                raise subscription.error or StopIteration
            self._wait(timeout_s)

    def close(self) -> None:
        """End the fetch."""
        self._peer._session.unfetch(self._subscription)

    def close_async(self, *, on_result: OnFuture | None = None) -> Future[None]:
        """End the fetch; the future is done when the daemon has confirmed it."""
        session = self._peer._session
        return self._peer._request_handle(lambda answer: session.unfetch(self._subscription, answer), None, on_result)

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_exc: object) -> None:
        self.close()


class Sorted(Fetch):
    """A sorted fetch: ``items`` is always the current list, iterating gives each new one."""

    @property
    def items(self) -> list[Event]:
        """The current list."""
        return self._subscription.items


class Mirror(MirrorHandle):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: Peer, subscription: Subscription, values: dict[str, Any]) -> None:
        super().__init__(peer.session, values)
        self._fetch = Fetch(peer, subscription)

    def ready(self, timeout_s: float | None = None) -> Self:
        """Wait until it shows everything that matches."""
        self._fetch.ready(timeout_s)
        return self

    def close(self) -> None:
        """Stop following the bus; the values stay as they are."""
        self._fetch.close()

    def close_async(self, *, on_result: OnFuture | None = None) -> Future[None]:
        """Stop following the bus; the future is done when the daemon has confirmed it."""
        return self._fetch.close_async(on_result=on_result)

    def __enter__(self) -> Self:
        return self.ready()

    def __exit__(self, *_exc: object) -> None:
        self.close()
