"""Sorted fetches: the window of positions ``first`` to ``last`` over all matches, kept sorted, and what changed in
it.

A sorted fetch is told ``{"changes": [...], "n": count}``: the entries of the window that have another occupant or
value, by absolute position, and how many entries the window has now. Ties keep the order in which the elements were
added.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from jetbus.rules import Sort
from jetbus.wire import jsonrpc

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.tree import Element


class _Descending:
    """Turns the order of text round; numbers and booleans are simply negated."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Descending) -> bool:
        return other.text < self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


class Window:
    """All matches in order, and the part of them that is told."""

    def __init__(self, sort: Sort, auth: Auth | None) -> None:
        self._sort = sort
        self._auth = auth
        self._entries: list[Element] = []
        self._keys: list[tuple[Any, int]] = []
        self._key_of: dict[Element, tuple[Any, int]] = {}
        self._count = 0

    def fill(self, elements: Iterable[Element]) -> None:
        """Start with these matches."""
        pairs = sorted(((self._key(element), element) for element in elements), key=lambda pair: pair[0])
        self._keys = [key for key, _ in pairs]
        self._entries = [element for _, element in pairs]
        self._key_of = {element: key for key, element in pairs}
        self._count = len(self._visible())

    def snapshot(self) -> list[tuple[int, Element]]:
        """The window's entries with their positions."""
        return list(enumerate(self._visible(), self._sort.first))

    def whole(self) -> bytes:
        """The first message of a fetch: the whole window, also when it is empty."""
        return self._message(self.snapshot())

    def update(self, kind: str, element: Element) -> bytes | None:
        """Take in an event; gives the message to tell, or None when the window looks as before."""
        old = self._take_out(element)
        new = None if kind == "remove" else self._put_in(element)
        moved = [position for position in (old, new) if position is not None]
        if not moved:
            return None
        count, self._count = self._count, len(self._visible())
        # Between the old and the new place, or from the only one to the end, every occupant is another one.
        start = max(min(moved), self._sort.first)
        end = max(moved) if len(moved) == 2 else len(self._entries)
        end = min(end, self._sort.first + self._count - 1)
        if start > end and count == self._count:
            return None
        return self._message([(position, self._entries[position - 1]) for position in range(start, end + 1)])

    def _key(self, element: Element) -> tuple[Any, int]:
        value = jsonrpc.loads(element.value) if self._sort.by is not None and element.value is not None else None
        key = self._sort.key(element.path, value)
        if self._sort.descending:
            key = _Descending(key) if isinstance(key, str) else -key
        return key, element.number

    def _take_out(self, element: Element) -> int | None:
        key = self._key_of.pop(element, None)
        if key is None:
            return None
        index = bisect_left(self._keys, key)
        del self._keys[index], self._entries[index]
        return index + 1

    def _put_in(self, element: Element) -> int:
        key = self._key(element)
        index = bisect_left(self._keys, key)
        self._keys.insert(index, key)
        self._entries.insert(index, element)
        self._key_of[element] = key
        return index + 1

    def _visible(self) -> list[Element]:
        return self._entries[self._sort.first - 1 : self._sort.last]

    def _message(self, changes: list[tuple[int, Element]]) -> bytes:
        told = b",".join(self._entry(position, element) for position, element in changes)
        return b'{"changes":[%b],"n":%d}' % (told, self._count)

    def _entry(self, position: int, element: Element) -> bytes:
        return entry(position, element, element.fetch_only_for(self._auth))


def entry(position: int, element: Element, fetch_only: bool) -> bytes:
    """One entry of a sorted list."""
    value = b"" if element.value is None else b',"value":' + element.value
    only = b',"fetchOnly":true' if fetch_only else b""
    return b'{"path":%b%b,"index":%d%b}' % (element.path_json, value, position, only)
