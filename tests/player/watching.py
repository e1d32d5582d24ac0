"""A client that sees what is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jetbus import Event, PeerAsync
from peer.faces import until

Seen = tuple[str, str, Any]


class Watcher:
    """All events of a bus, in order."""

    def __init__(self, peer: PeerAsync) -> None:
        self.peer = peer
        self.events: list[Seen] = []

    def _note(self, event: Event) -> None:
        self.events.append((event.kind, event.path, event.value))

    async def watch(self) -> None:
        await self.peer.fetch("**", self._note, policy="every").ready()

    async def after(self, count: int) -> list[Seen]:
        """The events, once there are so many."""
        await until(lambda: len(self.events) >= count)
        return list(self.events)

    async def states(self) -> dict[str, Any]:
        """What is on the bus now."""
        return await self.peer.get("**")

    async def until_states(self, expected: dict[str, Any]) -> None:
        """Wait until this is on the bus."""
        async with asyncio.timeout(20):
            while await self.states() != expected:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watcher]:
    """Watch a bus."""
    async with PeerAsync(url, name="watcher") as peer:
        watcher = Watcher(peer)
        await watcher.watch()
        yield watcher
