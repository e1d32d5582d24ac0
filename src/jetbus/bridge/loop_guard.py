"""Loop guard: which parts of the far bus came from the near one, and must not go back there.

A bus is nameless, so bridges leave notes on it, as states that all peers can see. Every bridge has an id of its own,
and says it twice:

    $bridge/ID        on its far bus: bridge ID reads this bus
    PREFIX$bridge     on its near bus: elements below PREFIX were mounted by bridge ID

The second is mounted by further bridges like any other state, so that it is found at any depth. A bridge that sees an
*area* (all below a prefix) of a bridge that reads the bus it would mount it into, leaves the area out: all that is
there is on that bus already. The same bus at both ends shows itself in the bridge's own first note on its near bus.

A note is always on the far bus before its counterpart is on the near one, so that a bridge which sees the second and
then hears from the other bus has heard of the first, if there is one. Until then, an area is closed. When the second
goes, an area stays until all that went with it has gone, too. So nothing is mounted wrongly even for a moment.

Notes cannot be forged from the content of the other bus. A bridge has two secrets, one per note, and its id is made of
the hashes of both::

    id = hash(hash(PREFIX, area secret), hash(reader secret))

    on the far bus    $bridge/ID       reader secret, hash(PREFIX, area secret)
    on the near bus   PREFIX$bridge    area secret, PREFIX, hash(reader secret)

Either note proves that it is of bridge ID, and a peer of only one bus cannot write the note of the other. A copy of
a note of an area stands for an area only where the path ends in the same PREFIX.

Nothing here knows of connections.
"""

from __future__ import annotations

import hashlib
import secrets

from jetbus.json_types import Json
from jetbus.paths import BRIDGE_NOTE

NOTE = BRIDGE_NOTE
READERS = f"{NOTE}/"


def read_prefix(text: str) -> str:
    """Return the prefix of an area, which ends in a slash; raise ValueError if the text cannot be one.

    >>> read_prefix("plant2")
    'plant2/'
    """
    if not text.strip("/") or text.startswith("$"):
        raise ValueError(f"{text!r} is not a prefix to mount a bus at; give one such as plant2")
    return text.rstrip("/") + "/"


class Seal:
    """The secrets of a bridge, and the public part of them in its two notes."""

    def __init__(self, prefix: str) -> None:
        area_secret, reader_secret = secrets.token_hex(16), secrets.token_hex(16)
        area_hash, reader_hash = _hash("area", prefix, area_secret), _hash("reader", reader_secret)
        self.id = _hash("bridge", area_hash, reader_hash)
        self.area_note = {"id": self.id, "prefix": prefix, "secret": area_secret, "other": reader_hash}
        self.reader_note = {"id": self.id, "secret": reader_secret, "other": area_hash}


def read_area_note(path: str, note: Json) -> str | None:
    """Return the id of the bridge that has mounted the elements beside a note, None if the note proves nothing."""
    fields = _texts(note, "id", "prefix", "secret", "other")
    if fields is None:
        return None
    bridge_id, prefix, secret, other = fields
    # Further bridges put their own prefixes before it, so the path ends in PREFIX at any depth.
    if not f"/{path.removesuffix(NOTE)}".endswith(f"/{prefix}") or not prefix:
        return None
    return bridge_id if bridge_id == _hash("bridge", _hash("area", prefix, secret), other) else None


def read_reader_note(path: str, note: Json) -> str | None:
    """Return the id of the bridge that reads the bus of a note, None if the note proves nothing."""
    fields = _texts(note, "id", "secret", "other")
    if fields is None:
        return None
    bridge_id, secret, other = fields
    if path != READERS + bridge_id:
        return None
    return bridge_id if bridge_id == _hash("bridge", other, _hash("reader", secret)) else None


def _hash(*parts: str) -> str:
    """Hash texts, none of which can run into the next."""
    return hashlib.sha256("\0".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def _texts(note: Json, *names: str) -> list[str] | None:
    if not isinstance(note, dict):
        return None
    texts = [note.get(name) for name in names]
    return [text for text in texts if isinstance(text, str)] if all(isinstance(text, str) for text in texts) else None


class LoopGuard:
    """Areas of the far bus, and readers of the near bus.

    Methods that change these return whether ``closed`` or ``loops`` are other ones now.

    The bridge's own note on its near bus counts only while ``is_introducing``: both buses are the same from the start,
    or not at all, and a copy of the note that is added later must not end the bridge.
    """

    def __init__(self, own_id: str) -> None:
        self._own_id = own_id
        self._readers: set[str] = set()
        self._ids: dict[str, str] = {}
        """The bridge that has mounted an area, by the prefix of the area."""
        self.unsure: set[str] = set()
        """Areas of which it is not yet known whether their bridge reads the near bus."""
        self._leaving: set[str] = set()
        self.is_introducing = True
        self.closed: tuple[str, ...] = ()
        """Prefixes that must not be mounted: loops, and areas that are not decided yet."""
        self.loops: tuple[str, ...] = ()
        """Prefixes that must not stay mounted. A new note must not unmount elements that were there before it."""

    @property
    def same_bus(self) -> bool:
        """True if both ends of this bridge are at the same bus."""
        return self._own_id in self._readers

    def add_reader(self, path: str, note: Json) -> bool:
        """Note that a bridge reads the near bus."""
        reader = read_reader_note(path, note)
        if reader is None or (reader == self._own_id and not self.is_introducing):
            return False
        self._readers.add(reader)
        return self._close()

    def remove_reader(self, path: str) -> bool:
        """Note that a bridge no longer reads the near bus; the elements it has mounted are still from there."""
        reader = path.removeprefix(READERS)
        # While its area is still there, the values in it are still those of the near bus.
        if reader not in self._ids.values():
            self._readers.discard(reader)
        return self._close()

    def add(self, path: str, note: Json) -> bool:
        """Note an area on the far bus; it is closed until ``be_sure``."""
        bridge_id = read_area_note(path, note)
        prefix = path.removesuffix(NOTE)
        if bridge_id is None:
            return False
        self._leaving.discard(prefix)
        # Another bridge at the same place: facts about the former say nothing about this one.
        if self._ids.get(prefix) != bridge_id:
            self._ids[prefix] = bridge_id
            self.unsure.add(prefix)
        return self._close()

    def be_sure(self, prefixes: set[str]) -> bool:
        """Decide on areas: all is known of the near bus that was there when they were seen."""
        self.unsure -= prefixes
        return self._close()

    def leave(self, path: str) -> str:
        """Note that an area is about to go; return its prefix, for ``remove``."""
        prefix = path.removesuffix(NOTE)
        self._leaving.add(prefix)
        return prefix

    def remove(self, prefix: str) -> bool:
        """Forget an area of which all is gone, unless the area has come back meanwhile."""
        if prefix in self._leaving:
            self._leaving.discard(prefix)
            self.unsure.discard(prefix)
            self._ids.pop(prefix, None)
        return self._close()

    def clear(self) -> None:
        """Forget all that is known of the far bus."""
        self._ids.clear()
        self._leaving.clear()
        self.unsure.clear()
        self._close()

    def _close(self) -> bool:
        before = self.closed, self.loops
        if self.same_bus:
            # The empty prefix: everything.
            self.closed = self.loops = ("",)
        else:
            known = self._readers | {self._own_id}
            ids = self._ids.items()
            self.closed = tuple(prefix for prefix, bridge_id in ids if prefix in self.unsure or bridge_id in known)
            self.loops = tuple(prefix for prefix in self.closed if prefix not in self.unsure)
        return (self.closed, self.loops) != before
