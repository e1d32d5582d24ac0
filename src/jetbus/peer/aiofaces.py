"""What ``PeerAsync`` hands out: states, methods, fetches, sorted fetches and mirrors. Waiting is ``await`` here."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import TYPE_CHECKING, Any, Self

from jetbus.errors import NotConnected
from jetbus.peer.elements import Owned, OwnedMethod
from jetbus.peer.faces import ElementFace, MirrorFace, StateFace
from jetbus.peer.fetching import Event, Fetching, call_back
from jetbus.peer.iterating import iterate

if TYPE_CHECKING:
    from jetbus.peer.aio import PeerAsync
    from jetbus.peer.connected import OnResult

log = logging.getLogger("jetbus.peer")


class ElementAsync(ElementFace):
    """What states and methods of ``PeerAsync`` share."""

    def __init__(self, peer: PeerAsync, owned: Owned) -> None:
        super().__init__(peer.session, owned)
        self._peer = peer

    def add(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Hang it into the bus again."""
        return self._peer._begin(self._peer._add(self._owned, None), on_result)

    def remove(self, *, on_result: OnResult | None = None) -> Awaitable[None]:
        """Take it off the bus; it can be added again."""
        return self._peer._begin(self._remove(), on_result)

    async def _remove(self) -> None:
        future = self._peer._future()
        self._session.remove(self._owned, future)
        await future


class StateAsync(ElementAsync, StateFace):
    """A state this peer owns."""


class MethodAsync(ElementAsync):
    """A method this peer owns; calling it calls the function."""

    _owned: OwnedMethod

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._owned.function(*args, **kwargs)


class FetchAsync:
    """A running fetch: iterate over it for its events. ``async with`` or ``close()`` ends it."""

    def __init__(self, peer: PeerAsync, fetching: Fetching) -> None:
        self._peer = peer
        self._fetching = fetching
        self._taken: Iterator[Any] = iter(())
        self._something = asyncio.Event()
        fetching.wake = self._something.set

    @property
    def conflated(self) -> int:
        """How many events a newer one has replaced before they were read."""
        return self._fetching.conflated

    async def _wait(self) -> None:
        self._something.clear()
        await self._something.wait()

    async def ready(self) -> Self:
        """Wait until all that was there at the start has been told (and read into the queue)."""
        while not self._fetching.complete and not self._fetching.ended:
            await self._wait()
        if self._fetching.error is not None:
            raise self._fetching.error
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return iterate(self)

    async def __anext__(self) -> Any:
        fetching = self._fetching
        while True:
            for event in self._taken:
                return event
            if taken := fetching.take(awaiting=True):
                self._taken = map(checked, taken) if fetching.typed else iter(taken)
            elif fetching.error is not None:
                raise fetching.error
            elif fetching.ended:
                raise StopAsyncIteration
            else:
                try:
                    await self._wait()  # another loop over this fetch may then have taken more than it needs
                finally:
                    fetching.awaited = False

    def close(self, *, on_result: OnResult | None = None) -> None:
        """End the fetch.

        With ``on_result`` the daemon is asked to confirm it.
        """
        if on_result is None:
            self._peer.session.unfetch(self._fetching)
            return
        future = self._peer._future()
        future.add_done_callback(functools.partial(call_back, on_result))
        try:
            self._peer.session.unfetch(self._fetching, future)
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
        return self._fetching.items


def checked(event: Any) -> Any:
    """The event, or list of events, if its value could be read as the type that was asked for."""
    if isinstance(event, Event) and event.problem is not None:
        raise event.problem
    return event


def take_in(values: dict[str, Any], event: Event) -> None:
    """Follow an event in a mirror."""
    if event.problem is not None:
        log.error("the mirror keeps the old value: %s", event.problem)
    elif event.kind == "remove":
        values.pop(event.path, None)
    else:
        values[event.path] = event.value


class MirrorAsync(MirrorFace):
    """A live dict: path to value of everything that matches now. A method's value is None."""

    def __init__(self, peer: PeerAsync, fetching: Fetching, values: dict[str, Any]) -> None:
        super().__init__(values)
        self._fetch = FetchAsync(peer, fetching)

    async def ready(self) -> Self:
        """Wait for the first full picture."""
        await self._fetch.ready()
        return self

    def close(self, *, on_result: OnResult | None = None) -> None:
        """Stop following the bus; the last picture stays."""
        self._fetch.close(on_result=on_result)

    async def __aenter__(self) -> Self:
        return await self.ready()

    async def __aexit__(self, *_exc: object) -> None:
        self.close()
