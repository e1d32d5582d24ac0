"""A client that watches a bus during a replay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jetbus import Event, PeerAsync
from support.peers import until

Seen = tuple[str, str, Any]


class Watcher:
    """Collects all events of a bus, in order."""

    def __init__(self, peer: PeerAsync) -> None:
        self.peer = peer
        self.events: list[Seen] = []

    def _note(self, event: Event) -> None:
        self.events.append((event.kind, event.path, event.value))

    async def watch(self) -> None:
        await self.peer.fetch("**", self._note, policy="every").ready()

    async def after(self, count: int) -> list[Seen]:
        """Wait for a number of events and return all so far."""
        await until(lambda: len(self.events) >= count)
        return list(self.events)

    async def states(self) -> dict[str, Any]:
        """Return the states on the bus."""
        return await self.peer.get_all("**")

    async def until_states(self, expected: dict[str, Any]) -> None:
        """Wait until the bus has exactly these states."""
        async with asyncio.timeout(20):
            while await self.states() != expected:
                await asyncio.sleep(0.005)


@asynccontextmanager
async def watching(url: str) -> AsyncIterator[Watcher]:
    """Watch the bus at a URL."""
    async with PeerAsync(url, name="watcher") as peer:
        watcher = Watcher(peer)
        await watcher.watch()
        yield watcher
