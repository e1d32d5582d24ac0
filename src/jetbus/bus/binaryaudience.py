"""Audiences of peers that speak binary.

Every fetch has an id of its own there, so members are not told the same frame. What they share is the *inside* of a
message of several events: the chunk is put together once, and each member gets it behind its own fetch id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from jetbus.bus.audience import Audience, Chunk, Part
from jetbus.bus.past import Then
from jetbus.bus.sorting import Window
from jetbus.wire import binary

if TYPE_CHECKING:
    from jetbus.bus.tree import Element

SEVERAL_BYTES = 64 * 1024
"""A message of several events is closed when it has become that long."""

_EVENT = bytes((binary.EVENT,))
_SEVERAL = bytes((binary.EVENT, binary.SEVERAL))
_TOLD = [bytes((number,)) for number in range(256)]
_HEAD_BYTES = 6
"""Type, what is told, fetch id."""


class _Addressed(Struct, gc=False):
    """A chunk as one member gets it."""

    chunk: Chunk
    fetch_id: bytes
    header: Callable[[int], bytes]

    beside: ClassVar = False

    def joined(self) -> bytes:
        inside = self.chunk.joined()
        return b"".join((self.header(_HEAD_BYTES + len(inside)), _SEVERAL, self.fetch_id, inside))

    def apart(self) -> tuple[bytes, ...]:
        inside = self.chunk.joined()
        return b"".join((self.header(_HEAD_BYTES + len(inside)), _SEVERAL, self.fetch_id)), inside


class BinaryAudience(Audience):
    """All binary fetches that are told of the same elements, with the same rights."""

    __slots__ = ("_alone", "_fitted_told", "_room")

    _room: int
    """How many bytes the open chunk may still take; an outbox that was lent takes all."""
    _alone: bytes
    """The fetch id of the only member while its outbox is lent, else empty."""
    _fitted_told: int
    """What the fitted head tells."""

    def tell_body(self, told: int, kind: str, path: str, tail: bytes) -> None:
        """Send one event, its path and body as they stand in a frame, to all members."""
        pieces = self.open_pieces
        if pieces is None:
            self._fitted_bytes = -1
            if self._lend is None:
                pieces = self._open(Chunk(), kind, path, (told, tail))
                self._room, self._alone = SEVERAL_BYTES, b""
            else:
                self.open_pieces = pieces = self._lend(self)
                (self._alone,) = self.members.values()
        size = len(tail)
        if self._alone:
            if size != self._fitted_bytes or told != self._fitted_told:
                self._fitted_bytes, self._fitted_told = size, told
                self._fitted = b"".join((self._header(_HEAD_BYTES + size), _EVENT, _TOLD[told], self._alone))
            pieces.append(self._fitted)
        else:
            pieces.append(_TOLD[told])
            self._room -= size
            if self._room < 0:
                self.open_pieces = None
        pieces.append(tail)

    def first(self, element: Element, fetch_id: bytes) -> bytes:
        return self._whole((self._told("add", element), self.tail("add", element)), fetch_id)

    def then(self, kind: str, then: Then, fetch_id: bytes) -> bytes:
        told = binary.TOLD[kind] | (binary.FETCH_ONLY if then.fetch_only else 0)
        ts = binary.instant(then.ts) if then.ts else b""
        return self._whole((told, self.dialect.tail(kind, then, then.fetch_only) + ts), fetch_id)

    def first_window(self, window: Window, fetch_id: bytes) -> bytes:
        return self._whole((binary.TOLD["sorted"], binary.json_body(window.whole())), fetch_id)

    def _addressed(self, chunk: Chunk, fetch_id: bytes) -> Part:
        return _Addressed(chunk, fetch_id, self._header)

    def _whole(self, event: tuple[int, bytes], fetch_id: bytes) -> bytes:
        told, tail = event
        return b"".join((self._header(_HEAD_BYTES + len(tail)), _EVENT, _TOLD[told], fetch_id, tail))

    def _told(self, kind: str, element: Element) -> int:
        return binary.TOLD[kind] | (binary.FETCH_ONLY if element.fetch_only_for(self.auth) else 0)

    def _tell_element(self, kind: str, element: Element) -> None:
        if self.window is None:
            self.tell_body(self._told(kind, element), kind, element.path, self.tail(kind, element))
            return
        told = self.window.update(kind, element)
        if told is not None:
            self._tell_sorted(element.path, (binary.TOLD["sorted"], binary.json_body(told)))

    def _tell_sorted(self, path: str, event: tuple[int, bytes]) -> None:
        """A list stands alone in its message."""
        for outbox, fetch_id in self.members.items():
            outbox.put(self._whole(event, fetch_id))
        for outbox, fetch_id in self._slow.items():
            outbox.put_event(self, path, "sorted", self._whole(event, fetch_id))
