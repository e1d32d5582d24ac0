"""Which parts of the far bus came from the near one, and must not go back there.

A bus has no name, so bridges leave notes on it, as states that everybody can see. Every bridge has an id of its own,
and says it twice:

    $bridge/ID        on its far bus: bridge ID reads this bus
    PREFIX$bridge     on its near bus: what is below PREFIX was mounted by bridge ID

The second is mounted by further bridges like any other state, so that it is found at any depth. A bridge that sees an
*area* (all below a prefix) of a bridge that reads the bus it would mount it into, leaves the area out: all that is
there is on that bus already. The same bus at both ends shows itself in the bridge's own first note on its near bus.

A note is always on the far bus before its counterpart is on the near one, so that a bridge which sees the second and
then hears from the other bus has heard of the first, if there is one. Until then, an area is closed. When the second
goes, an area stays until all that went with it has gone, too. So nothing is mounted wrongly even for a moment.

Nothing here knows of connections.
"""

from __future__ import annotations

from typing import Any

NOTE = "$bridge"
READERS = f"{NOTE}/"


def read_prefix(text: str) -> str:
    """The prefix of an area, which ends in a slash; ValueError for a text that is none.

    >>> read_prefix("plant2")
    'plant2/'
    """
    if not text.strip("/") or text.startswith("$"):
        raise ValueError(f"{text!r} is no prefix to mount a bus at; give one such as plant2")
    return text.rstrip("/") + "/"


class Areas:
    """The areas of the far bus, and who reads the near bus. Each method tells whether other areas are closed now."""

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._readers: set[str] = set()
        self._ids: dict[str, str] = {}
        """The bridge that has mounted an area, by the prefix of the area."""
        self.unsure: set[str] = set()
        """Areas of which it is not yet known whether their bridge reads the near bus."""
        self._leaving: set[str] = set()
        self.closed: tuple[str, ...] = ()
        """The prefixes of what is not to be mounted; ``path.startswith(closed)``."""

    @property
    def same_bus(self) -> bool:
        """Whether both ends of this bridge are at the same bus."""
        return self._own_id in self._readers

    def add_reader(self, path: str) -> bool:
        """A bridge reads the near bus."""
        self._readers.add(path.removeprefix(READERS))
        return self._close()

    def remove_reader(self, path: str) -> bool:
        """A bridge reads the near bus no longer; what it mounted when it did is still from there."""
        reader = path.removeprefix(READERS)
        if reader not in self._ids.values():
            self._readers.discard(reader)
        return self._close()

    def add(self, path: str, told: Any) -> bool:
        """There is an area on the far bus; it is closed until ``be_sure``."""
        bridge_id = told.get("id") if isinstance(told, dict) else None
        prefix = path.removesuffix(NOTE)
        if not prefix or not isinstance(bridge_id, str):
            return False
        self._leaving.discard(prefix)
        if self._ids.get(prefix) != bridge_id:
            self._ids[prefix] = bridge_id
            self.unsure.add(prefix)
        return self._close()

    def be_sure(self, prefixes: set[str]) -> bool:
        """All is known of the near bus that was there when these areas were seen."""
        self.unsure -= prefixes
        return self._close()

    def leave(self, path: str) -> str:
        """An area is about to go: its prefix for ``remove``."""
        prefix = path.removesuffix(NOTE)
        self._leaving.add(prefix)
        return prefix

    def remove(self, prefix: str) -> bool:
        """All that was in an area has been told to be gone, unless the area has come back meanwhile."""
        if prefix in self._leaving:
            self._leaving.discard(prefix)
            self.unsure.discard(prefix)
            self._ids.pop(prefix, None)
        return self._close()

    def clear(self) -> None:
        """Nothing is known of the far bus any more."""
        self._ids.clear()
        self._leaving.clear()
        self.unsure.clear()
        self._close()

    def _close(self) -> bool:
        before = self.closed
        if self.same_bus:
            self.closed = ("",)
        else:
            known = self._readers | {self._own_id}
            self.closed = tuple(
                prefix for prefix, bridge_id in self._ids.items() if prefix in self.unsure or bridge_id in known
            )
        return self.closed != before
