"""Words that the tests of bridges share."""

from __future__ import annotations

from typing import Any

from jetbus import Event, PeerAsync
from support.peers import DEADLINE_S, raised, run, until

__all__ = ["DEADLINE_S", "Seen", "mounted", "raised", "run", "until"]


async def mounted(peer: PeerAsync, prefix: str = "plant2/") -> dict[str, Any]:
    """Return everything below a prefix, without the prefix and without the notes of bridges."""
    values = await peer.get_all(starts_with=prefix)
    return {path.removeprefix(prefix): value for path, value in values.items() if not path.endswith("$bridge")}


class Seen:
    """Every event on a bus, from the first on."""

    def __init__(self, peer: PeerAsync) -> None:
        self.events: list[Event] = []
        self._fetch = peer.fetch(callback=self.events.append, policy="every")

    async def ready(self) -> Seen:
        await self._fetch.ready()
        return self

    def close(self) -> None:
        self._fetch.close()

    @property
    def paths(self) -> set[str]:
        """All paths that were ever there, without the notes of bridges."""
        return {event.path for event in self.events if "$bridge" not in event.path}

    def count(self, path: str) -> int:
        return sum(event.path == path for event in self.events)
