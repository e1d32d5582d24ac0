"""Audiences of fetches with ``together``: all changes of a turn come in one message.

A single change costs a frame, an object and five keys. Combined changes are one flat list of path, value and fetchOnly,
a third of the bytes and much faster to decode. Other events are sent the usual way, in their place in the order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from jetbus.bus.audiences.audience import Audience, Chunk
from jetbus.rules import Rule
from jetbus.wire.dialects import Dialect
from jetbus.wire.framing import Framing
from jetbus.wire.notifications import encode_combined_tail

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.audiences.audience import Event
    from jetbus.bus.tree import Element

COMBINED_BYTES = 64 * 1024
"""Length at which a message with several changes is closed."""

_BOOLEANS = (b"false", b"true")


class _CombinedChunk(Chunk):
    """A chunk that is one message. Its order among chunks of other fetches is free."""

    __slots__ = ("_frame",)

    coexists: ClassVar = True

    def __init__(self, frame: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._frame = frame

    def joined(self) -> bytes:
        if self._joined is None:
            self._joined = self._frame(encode_combined_tail(self.pieces))
        return self._joined


class CombinedAudience(Audience):
    """Fetches with members that receive the same bytes, and all changes of a turn in one message."""

    __slots__ = ("_combines", "_room_bytes")

    def __init__(
        self, fetch_id: bytes, rule: Rule, dialect: Dialect, framing: Framing, auth: Auth | None, every: bool
    ) -> None:
        super().__init__(fetch_id, rule, dialect, framing, auth, every)
        # A fetch without ``together`` receives other bytes, so it must not find this audience.
        self.key = (*self.key[:2], f"{dialect.name}, together", *self.key[3:])
        # The bus sends plain audiences ready-made tails, which could not be combined.
        self.is_plain = False
        self._combines = False
        """True if the open chunk is one of combined changes."""
        self._room_bytes = 0
        """Bytes that the open chunk may still take."""

    def on_change(self, element: Element) -> None:
        if self.value_test is None:
            self._send_change(element)
        else:
            super().on_change(element)

    def _send_element(self, kind: str, element: Element) -> None:
        if kind == "change":
            self._send_change(element)
        else:
            super()._send_element(kind, element)

    def _send_change(self, element: Element) -> None:
        path_json, value = element.path_json, element.value or b""
        fetch_only = _BOOLEANS[element.fetch_only if element.access is None else element.fetch_only_for(self.auth)]
        pieces = self.open_pieces
        # An open chunk of single events cannot take combined changes, so a new one is opened behind it.
        if pieces is None or not self._combines:
            chunk = _CombinedChunk(self.frame)
            pieces = self._open(chunk, "change", element.path, (path_json, value, fetch_only))
            self._combines, self._room_bytes = True, COMBINED_BYTES
        pieces += (path_json, value, fetch_only)
        self._room_bytes -= len(path_json) + len(value)
        if self._room_bytes < 0:
            self.close_chunk()

    def send(self, kind: str, path: str, tail: bytes) -> None:
        # An add or remove must not overtake the changes before it.
        if self._combines:
            self._combines = False
            self.close_chunk()
        super().send(kind, path, tail)

    def _encode_event(self, event: Event, fetch_id: bytes) -> bytes:
        return super()._encode_event(event if isinstance(event, bytes) else encode_combined_tail(event), fetch_id)
