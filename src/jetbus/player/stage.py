"""What a player shows on the bus at the moment, and how it is put there, changed and taken away.

Everything goes out in the order in which it is told here. Nobody waits for the daemon with each of it; but after every
``BREATH_EVENTS`` the daemon is asked a question, and its answer says that it has got all before. So it is never
flooded, however fast the replay. While there is no connection, what changes is kept by the peer, and what is added
waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple, cast

import msgspec

from jetbus.errors import JetError, NotConnected, Occupied
from jetbus.peer.aio import MethodAsync, PeerAsync, StateAsync
from jetbus.player.reel import Happened

log = logging.getLogger("jetbus.player")

BREATH_EVENTS = 500
AGAIN_S, AGAIN_MAX = 0.25, 20
"""How often, and how many times, what is occupied after a reconnect is added again."""

Answer = Callable[[str, Any], Awaitable[Any]]
"""How a call is answered: the path of the method as it was recorded, the arguments."""

_READ_ONLY = cast(Callable[[Any], Any], None)
"""A state without a function that takes sets is read-only."""


class Shown(NamedTuple):
    """Something that is on the bus, as it was added; its value is that of now."""

    element: StateAsync | MethodAsync
    is_method: bool
    detail: str | None


class Stage:
    """The elements of a recording on a bus."""

    def __init__(self, peer: PeerAsync, prefix: str, answer: Answer) -> None:
        self._peer = peer
        self._prefix = prefix
        self._answer = answer
        self._shown: dict[str, Shown] = {}
        self._online = asyncio.Event()
        self._leaving: set[asyncio.Task[None]] = set()
        self._unsent = False
        """Whether a remove is yet to be sent."""
        self._breath = 0

    def __len__(self) -> int:
        return len(self._shown)

    @property
    def refused(self) -> list[str]:
        """The paths, as recorded, that the bus did not take."""
        return [path for path, shown in self._shown.items() if not shown.element.added]

    # -- the connection

    def on_loss(self) -> None:
        """The connection is lost."""
        self._online.clear()

    async def on_return(self) -> None:
        """It is there: what was on its way when it was lost is added again; the rest the peer adds by itself."""
        self._online.set()
        for _ in range(AGAIN_MAX):
            if not await self._add_again():
                return
            # Often the daemon has not yet given up our own old connection.
            await asyncio.sleep(AGAIN_S)

    async def _add_again(self) -> bool:
        """Add what the bus has not taken; whether something still is in the way."""
        in_the_way = False
        for path in self.refused:
            shown = self._shown.get(path)
            if shown is not None and not shown.element.added:
                try:
                    await shown.element.add()
                except Occupied:
                    in_the_way = True
                except JetError as problem:
                    log.error("%s could not be added again: %s", shown.element.path, problem)
        return in_the_way

    # -- what happens

    async def show(self, happened: Happened) -> None:
        """Add an element, or give a state its value."""
        assert happened.path is not None  # noqa: S101
        await self._removes_sent()
        shown = self._shown.get(happened.path)
        if shown is not None and happened.event == "add" and not _same_element(shown, happened):
            self._take(happened.path)
            await self._removes_sent()
            shown = None
        if shown is None:
            await self._add(happened)
        elif isinstance(shown.element, StateAsync) and happened.value is not None:
            shown.element.change(_raw(happened.value))
        await self._breathe()

    async def _add(self, happened: Happened) -> None:
        assert happened.path is not None  # noqa: S101
        while True:
            await self._online.wait()
            try:
                self._shown[happened.path] = self._new(happened.path, happened)
            except NotConnected:
                self._online.clear()
            else:
                return

    def _new(self, path: str, happened: Happened) -> Shown:
        there, options = self._prefix + path, _options(happened.detail)
        if happened.kind == "method":
            return Shown(self._peer.method(there, **options)(self._answering(path)), True, happened.detail)
        value = _raw(happened.value or "null")
        return Shown(self._peer.state(there, value, **options)(_READ_ONLY), False, happened.detail)

    def _answering(self, path: str) -> Callable[..., Awaitable[Any]]:
        async def answer(*args: Any, **kwargs: Any) -> Any:
            return await self._answer(path, kwargs or list(args))

        return answer

    async def take(self, path: str) -> None:
        """Remove an element, if it is there."""
        self._take(path)
        await self._breathe()

    def _take(self, path: str) -> None:
        shown = self._shown.pop(path, None)
        if shown is not None and shown.element.added:
            task = asyncio.create_task(_remove(shown.element))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            self._unsent = True

    async def clear(self) -> None:
        """Remove everything."""
        await self._keep(set())

    async def become(self, tree: Iterable[Happened]) -> None:
        """Show this tree and nothing else; what is there already stays and gets its value."""
        wanted = list(tree)
        await self._keep({happened.path for happened in wanted if happened.path is not None})
        for happened in wanted:
            await self.show(happened)
        await self.settle()

    async def _keep(self, paths: set[str]) -> None:
        for path in [path for path in self._shown if path not in paths]:
            await self.take(path)

    # -- the daemon

    async def _removes_sent(self) -> None:
        """Let the tasks that remove begin, so that what comes next is sent after them."""
        if self._unsent:
            await asyncio.sleep(0)
            self._unsent = False

    async def _breathe(self) -> None:
        self._breath += 1
        if self._breath >= BREATH_EVENTS:
            await self.settle()

    async def settle(self) -> None:
        """Wait until the daemon has got all that was told."""
        self._breath = 0
        await self._removes_sent()
        while True:
            await self._online.wait()
            try:
                await self._peer.info()
            except NotConnected:
                # Its return sets it again; without one there is nothing to wait for but that.
                if not self._peer.connected:
                    self._online.clear()
            else:
                return

    async def check(self) -> None:
        """Raise why something is not on the bus, if anything is not."""
        for path in self.refused:
            try:
                await self._shown[path].element.add()
            except Occupied:
                there = self._prefix + path
                raise Occupied(
                    there, f"{there} is on that bus already; play with a prefix, or onto a bus of its own"
                ) from None


async def _remove(element: StateAsync | MethodAsync) -> None:
    try:
        await element.remove()
    except NotConnected:
        pass  # then it is gone anyway
    except JetError as problem:
        log.error("%s could not be removed: %s", element.path, problem)


def _same_element(shown: Shown, happened: Happened) -> bool:
    return (shown.is_method, shown.detail) == (happened.kind == "method", happened.detail)


def _options(detail: str | None) -> dict[str, Any]:
    """What its owner said of an element and still holds: who may see it."""
    told = msgspec.json.decode(detail) if detail else {}
    return {"access": told["access"]} if "access" in told else {}


def _raw(text: str) -> msgspec.Raw:
    """A value as it was recorded; it is passed on as it is."""
    return msgspec.Raw(text.encode())
