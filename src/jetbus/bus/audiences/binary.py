"""Audiences of fetches of the binary protocol.

There every fetch has an id of its own, so members do not receive the same frames. They share the *content* of a message
with several events: it is composed once, and every member receives it behind its own fetch id::

    chunk       kind | path | body | kind | path | body | ...
    member A    header | 4 | several | id of A | (chunk)
    member B    header | 4 | several | id of B | (chunk)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from jetbus.bus.audiences.audience import Audience, Chunk
from jetbus.bus.replay import PastElement
from jetbus.wire import binary

if TYPE_CHECKING:
    from jetbus.bus.ports import Part
    from jetbus.bus.tree import Element

SEVERAL_BYTES = 64 * 1024
"""Length at which a message with several events is closed."""

_EVENT = bytes((binary.EVENT,))
_SEVERAL = bytes((binary.EVENT, binary.SEVERAL))
_BYTES = [bytes((number,)) for number in range(256)]
_HEAD_BYTES = 6
"""Message type, kind of notification, fetch id."""


class _AddressedChunk(Struct, gc=False):
    """A chunk as one member receives it."""

    chunk: Chunk
    fetch_id: bytes
    header: Callable[[int], bytes]

    coexists: ClassVar = False

    def joined(self) -> bytes:
        content = self.chunk.joined()
        return b"".join((self.header(_HEAD_BYTES + len(content)), _SEVERAL, self.fetch_id, content))

    def apart(self) -> tuple[bytes, ...]:
        content = self.chunk.joined()
        return b"".join((self.header(_HEAD_BYTES + len(content)), _SEVERAL, self.fetch_id)), content


class BinaryAudience(Audience):
    """Binary fetches with members that receive events of the same elements, with the same rights."""

    __slots__ = ("_cached_kind", "_lone_id", "_room_bytes")

    _room_bytes: int
    """Bytes that the open chunk may still take; a borrowed outbox is not limited."""
    _lone_id: bytes
    """Fetch id of the only member while its outbox is borrowed, else empty."""
    _cached_kind: int
    """Kind of notification of the cached head."""

    def send_body(self, number: int, kind: str, path: str, tail: bytes) -> None:
        """Send one event to all members. ``tail`` has path and body as they stand in a frame."""
        pieces = self.open_pieces
        if pieces is None:
            # The head names the only member, which may be another one by now.
            self._cached_tail_bytes = -1
            if self._lend is None:
                pieces = self._open(Chunk(), kind, path, (number, tail))
                self._room_bytes, self._lone_id = SEVERAL_BYTES, b""
            else:
                self.open_pieces = pieces = self._lend(self)
                (self._lone_id,) = self.members.values()
        size = len(tail)
        # A borrowed outbox has one reader: complete frames with its id, and nothing to join later.
        if self._lone_id:
            if size != self._cached_tail_bytes or number != self._cached_kind:
                self._cached_tail_bytes, self._cached_kind = size, number
                self._cached_head = b"".join((self._header(_HEAD_BYTES + size), _EVENT, _BYTES[number], self._lone_id))
            pieces.append(self._cached_head)
        else:
            pieces.append(_BYTES[number])
            self._room_bytes -= size
            if self._room_bytes < 0:
                # Peers need the whole message before its first event; a long
                # turn should not make them wait for all of it.
                self.close_chunk()
        pieces.append(tail)

    def encode_add(self, element: Element, fetch_id: bytes) -> bytes:
        return self._encode_event((self._number("add", element), self.encode_tail("add", element)), fetch_id)

    def encode_node_add(self, node: str, fetch_id: bytes) -> bytes:
        return self._encode_event(self._node_event("add", node), fetch_id)

    def send_node(self, kind: str, node: str) -> None:
        number, tail = self._node_event(kind, node)
        self.send_body(number, kind, node, tail)

    def _node_event(self, kind: str, node: str) -> tuple[int, bytes]:
        return binary.NOTIFICATIONS[kind] | binary.NODE, self.dialect.encode_node(kind, node)

    def encode_past(self, kind: str, element: PastElement, fetch_id: bytes) -> bytes:
        number = binary.NOTIFICATIONS[kind] | (binary.FETCH_ONLY if element.fetch_only else 0)
        ts = binary.encode_instant(element.ts) if element.ts else b""
        return self._encode_event((number, self.dialect.encode_tail(kind, element, element.fetch_only) + ts), fetch_id)

    def encode_sorted(self, changes: bytes, fetch_id: bytes) -> bytes:
        event = binary.NOTIFICATIONS["sorted"], binary.encode_json_body(changes)
        return self._encode_event(event, fetch_id)

    def _address(self, chunk: Chunk, fetch_id: bytes) -> Part:
        return _AddressedChunk(chunk, fetch_id, self._header)

    def _encode_event(self, event: tuple[int, bytes], fetch_id: bytes) -> bytes:
        number, tail = event
        return b"".join((self._header(_HEAD_BYTES + len(tail)), _EVENT, _BYTES[number], fetch_id, tail))

    def _number(self, kind: str, element: Element) -> int:
        """Return the number of a notification, with the flag for elements that the members can only fetch."""
        return binary.NOTIFICATIONS[kind] | (binary.FETCH_ONLY if element.fetch_only_for(self.auth) else 0)

    def _send_element(self, kind: str, element: Element) -> None:
        if self.sorted_matches is None:
            self.send_body(self._number(kind, element), kind, element.path, self.encode_tail(kind, element))
            return
        changed = self.sorted_matches.update(kind, element)
        if changed is not None and self._is_awaited():
            body = binary.encode_json_body(self.sorted_matches.encode(*changed))
            self._send_sorted(element.path, (binary.NOTIFICATIONS["sorted"], body))
            self._note_sorted(len(body), 0)  # ``put`` has counted it

    def _send_sorted(self, path: str, event: tuple[int, bytes]) -> None:
        """Send a list, which is always a message of its own."""
        for outbox, fetch_id in self.members.items():
            # ``put`` closes the open chunk, so that the list keeps its place among the events.
            outbox.put(self._encode_event(event, fetch_id))
        for outbox, fetch_id in self._slow.items():
            outbox.put_event(self, path, "sorted", self._encode_event(event, fetch_id))
