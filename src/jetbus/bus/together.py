"""Audiences of fetches that take the changes of one turn together, in one message.

A change alone costs a frame, an object and five keys. Together they are a flat list of path, value and fetchOnly, which
is a third of the bytes and much less to read. What is no change is told the usual way, in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from jetbus.bus.audience import Audience, Chunk
from jetbus.rules import Rule
from jetbus.wire.dialects import Dialect
from jetbus.wire.framing import Framing

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.audience import Event
    from jetbus.bus.tree import Element

TOGETHER_BYTES = 64 * 1024
"""A message of several changes is closed when it has become that long."""

_ONLY = (b"false", b"true")
_OPEN, _CLOSE = b'"params":[', b"]}"


class _Changes(Chunk):
    """A chunk that is one message."""

    __slots__ = ("_frame",)

    beside: ClassVar = True

    def __init__(self, frame: Callable[[bytes], bytes]) -> None:
        super().__init__()
        self._frame = frame

    def joined(self) -> bytes:
        if self._joined is None:
            self._joined = self._frame(_tail(self.pieces))
        return self._joined


class TogetherAudience(Audience):
    """All fetches that are told the same bytes, changes together."""

    __slots__ = ("_gathering", "_room")

    def __init__(
        self, fetch_id: bytes, rule: Rule, dialect: Dialect, framing: Framing, auth: Auth | None, every: bool
    ) -> None:
        super().__init__(fetch_id, rule, dialect, framing, auth, every)
        self.key = (*self.key[:2], f"{dialect.name}, together", *self.key[3:])
        self.plain = False
        self._gathering = False
        """Whether the open chunk is one of changes."""
        self._room = 0
        """How many bytes it may still take."""

    def on_change(self, element: Element) -> None:
        if self.value_test is None:
            self._tell_change(element)
        else:
            super().on_change(element)

    def _tell_element(self, kind: str, element: Element) -> None:
        if kind == "change":
            self._tell_change(element)
        else:
            super()._tell_element(kind, element)

    def _tell_change(self, element: Element) -> None:
        path_json, value = element.path_json, element.value or b""
        only = _ONLY[element.fetch_only if element.access is None else element.fetch_only_for(self.auth)]
        pieces = self.open_pieces
        if pieces is None or not self._gathering:
            pieces = self._open(_Changes(self.frame), "change", element.path, (path_json, value, only))
            self._gathering, self._room = True, TOGETHER_BYTES
        pieces += (path_json, value, only)
        self._room -= len(path_json) + len(value)
        if self._room < 0:
            self.open_pieces = None

    def tell(self, kind: str, path: str, tail: bytes) -> None:
        if self._gathering:
            self._gathering, self.open_pieces = False, None
        super().tell(kind, path, tail)

    def _whole(self, event: Event, fetch_id: bytes) -> bytes:
        return super()._whole(event if isinstance(event, bytes) else _tail(event), fetch_id)


def _tail(pieces: list[bytes] | tuple[bytes, ...]) -> bytes:
    return b"".join((_OPEN, b",".join(pieces), _CLOSE))
