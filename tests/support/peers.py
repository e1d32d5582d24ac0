"""Both peers behind one face, so that a case is written once: every call can be awaited.

What ``PeerAsync`` does on the running loop, ``Peer`` does in a thread. States, methods, fetches and mirrors that a
call gives are wrapped in the same way.
"""

from __future__ import annotations

import asyncio
import inspect
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import jetbus
from jetbus.peer.aio import ElementAsync
from jetbus.peer.blocking import BlockingElement

DEADLINE_S = 20.0
THREADS = 32
FACES = {"async": jetbus.PeerAsync, "async in Python": jetbus.PeerAsync, "blocking": jetbus.Peer}
_WRAPPED = (
    ElementAsync,
    BlockingElement,
    jetbus.FetchAsync,
    jetbus.Fetch,
    jetbus.MirrorAsync,
    jetbus.Mirror,
)


def run(case: Coroutine[Any, Any, None]) -> None:
    """Run a case to its end, with a limit."""

    async def limited() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
        await asyncio.wait_for(case, 3 * DEADLINE_S)

    asyncio.run(limited())


class Ended(Exception):
    """A fetch that was to tell more has ended."""


class Twin:
    """A peer, or something it gave, whose calls can be awaited."""

    def __init__(self, inner: Any, *, blocking: bool) -> None:
        self.inner = inner
        self.blocking = blocking
        self._loop: AsyncIterator[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        member = getattr(self.inner, name)
        if not callable(member):
            return member

        async def call(*args: Any, **options: Any) -> Any:
            return await self.do(lambda: member(*args, **options))

        return call

    async def do(self, work: Callable[[], Any]) -> Any:
        """Do something with what is inside, in the way of the face, and wait for its outcome."""
        outcome = await asyncio.to_thread(work) if self.blocking else work()
        if inspect.isawaitable(outcome):
            outcome = await outcome
        return Twin(outcome, blocking=self.blocking) if isinstance(outcome, _WRAPPED) else outcome

    async def take(self, count: int) -> list[Any]:
        """The next events of a fetch; a value that does not fit its type is given as the error it raises."""
        return [await self._next() for _ in range(count)]

    async def _next(self) -> Any:
        try:
            if self.blocking:
                return await asyncio.to_thread(self._next_blocking)
            return await asyncio.wait_for(self._next_async(), DEADLINE_S)
        except jetbus.InvalidValue as problem:
            return problem

    async def _next_async(self) -> Any:
        if self._loop is None:
            self._loop = aiter(self.inner)
        try:
            async for event in self._loop:
                return event
        except BaseException:
            self._loop = None  # as with every loop that an error has ended
            raise
        raise Ended

    def _next_blocking(self) -> Any:
        try:
            return self.inner.next(DEADLINE_S)
        except StopIteration:
            raise Ended from None

    async def rest(self) -> list[Any]:
        """The events up to the end of a fetch."""
        if self.blocking:
            return await asyncio.to_thread(list, self.inner)
        return [event async for event in self.inner]


class PeerFactory:
    """Address and face of the peers of a test."""

    def __init__(self, url: str, face: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self.face = face
        self.tls = tls

    @asynccontextmanager
    async def peer(self, **options: Any) -> AsyncIterator[Any]:
        """A connected peer, closed at the end of the block."""
        peer = self.make(**options)
        await peer.connect()
        try:
            yield peer
        finally:
            await peer.close()

    def make(self, url: str | None = None, **options: Any) -> Twin:
        """A peer that is not yet connected."""
        return Twin(FACES[self.face](url or self.url, tls=self.tls, **options), blocking=self.face == "blocking")


def brief(events: list[Any]) -> list[tuple[str, str, Any]]:
    """Return the main fields of events."""
    return [(event.kind, event.path, event.value) for event in events]


async def until(true: Callable[[], Any]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(DEADLINE_S):
        while not true():
            await asyncio.sleep(0.002)


async def raised(work: Awaitable[Any]) -> Exception:
    """The error that something ends in."""
    try:
        result = await work
    except Exception as problem:
        return problem
    raise AssertionError(f"no error, but {result!r}")
