"""Sorted fetches: all matches in order, and the notifications about changes in the visible range.

A sorted fetch shows the positions ``first`` to ``last``, counted from 1. It receives ``{"changes": [...], "n": n}``:
the visible entries that have another occupant or value, by absolute position, and the number of visible entries.
Entries with equal keys keep the order in which the elements were added.

All matches have to stay sorted, also the invisible ones, as any of them may move into the range. They are stored in a
list of sorted blocks, so that a change among a million matches moves the references of one block and not all::

    blocks   [ 1 1 2 3 5 ]  [ 8 8 9 ]  [ 12 13 13 20 ]        a full block is cut into halves, an empty one removed
    highest        5            9            20               bisected to find the block, then the block is bisected

A position is the number of entries in the blocks before, plus the offset in the block. Only blocks up to the end of the
range are counted; for entries behind it the exact position does not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from jetbus.rules import Sort
from jetbus.rules.work import meter
from jetbus.wire import jsonrpc
from jetbus.wire.notifications import PLAIN_SORTED_ENTRY, encode_sorted_changes, encode_sorted_entry

if TYPE_CHECKING:
    from jetbus.bus.access import Auth
    from jetbus.bus.descriptions import Asked
    from jetbus.bus.tree import Element

BLOCK_ENTRIES_MAX = 1000
ENTRY_UNITS = 3
"""Work units of an entry in a message."""


class _Descending:
    """A text in reversed order; numbers and booleans are simply negated."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __lt__(self, other: _Descending) -> bool:
        return other.text < self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]


Entry: TypeAlias = "tuple[Any, int, Element]"
"""Key, number and element. Numbers are unique, so comparing two entries never gets as far as the elements."""


class _Entries:
    """Entries in order, as a list of sorted blocks."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        ordered = sorted(entries)
        half = BLOCK_ENTRIES_MAX // 2
        self._blocks = [ordered[at : at + half] for at in range(0, len(ordered), half)]
        self._highest = [block[-1] for block in self._blocks]
        self._count = len(ordered)

    def __len__(self) -> int:
        return self._count

    def copy(self) -> _Entries:
        """Return the same entries, to be changed apart."""
        entries = _Entries()
        entries._blocks = [block[:] for block in self._blocks]
        entries._highest, entries._count = self._highest[:], self._count
        return entries

    def add(self, entry: Entry, last: int) -> int:
        """Add an entry and return its position, or some position behind ``last`` where it is behind that."""
        self._count += 1
        if not self._blocks:
            self._blocks, self._highest = [[entry]], [entry]
            return 1
        at = min(bisect_left(self._highest, entry), len(self._blocks) - 1)
        block = self._blocks[at]
        offset = bisect_left(block, entry)
        block.insert(offset, entry)
        self._highest[at] = block[-1]
        # The new entry may be the highest of the last block, never of another one: the bisection has seen to that.
        position = self._position(at, offset, last)
        if len(block) > BLOCK_ENTRIES_MAX:
            half = len(block) // 2
            # Halves have room for entries on both sides; a block that is cut at its end would be cut again at once.
            self._blocks[at : at + 1] = [block[:half], block[half:]]
            self._highest[at : at + 1] = [block[half - 1], block[-1]]
        return position

    def remove(self, entry: Entry, last: int) -> int:
        """Remove an entry and return the position it had, or some position behind ``last``."""
        self._count -= 1
        at = bisect_left(self._highest, entry)
        block = self._blocks[at]
        offset = bisect_left(block, entry)
        position = self._position(at, offset, last)
        del block[offset]
        if block:
            self._highest[at] = block[-1]
        else:
            del self._blocks[at], self._highest[at]
        return position

    def between(self, first: int, last: int) -> list[Entry]:
        """Return the entries at the positions ``first`` to ``last``."""
        found: list[Entry] = []
        skip, wanted = first - 1, last - first + 1
        for block in self._blocks:
            if skip >= len(block):
                skip -= len(block)
                continue
            found += block[skip : skip + wanted - len(found)]
            skip = 0
            if len(found) >= wanted:
                break
        return found

    def block_sizes(self) -> list[int]:
        """Return the number of entries in each block."""
        return [len(block) for block in self._blocks]

    def _position(self, at: int, offset: int, last: int) -> int:
        position = offset + 1
        for block in islice(self._blocks, at):
            position += len(block)
            # Counting on would only tell how far behind the range it is.
            if position > last:
                break
        return position


def sort_key(sort: Sort, element: Element) -> Any:
    """Return the key by which a sorted fetch or get compares an element with others."""
    value = element.value
    key = sort.key(element.path, None if sort.by is None or value is None else jsonrpc.loads(value))
    if not sort.descending:
        return key
    return _Descending(key) if isinstance(key, str) else -key


class SortedMatches:
    """All matches of a sorted fetch in order, and the range of positions that its members see."""

    def __init__(self, sort: Sort, auth: Auth | None) -> None:
        self._sort = sort
        self.auth = auth
        self.asked: Asked | None = None
        """Parts of descriptions that entries have, None for nothing."""
        self._entries = _Entries()
        self._entry_of: dict[Element, Entry] = {}
        self._count = 0

    def fill(self, entries: Iterable[Entry]) -> None:
        """Start with the entries of these matches."""
        self._entry_of = {entry[2]: entry for entry in entries}
        self._entries = _Entries(self._entry_of.values())
        self._count = self._count_visible()

    def take_over(self, other: SortedMatches) -> None:
        """Start with the matches of another one."""
        self._entry_of = dict(other._entry_of)
        self._entries = other._entries.copy()
        self._count = self._count_visible()

    def place(self, element: Element, matches: bool) -> None:
        """Put an element into its place, or take it out; positions are not needed yet."""
        old = self._entry_of.pop(element, None)
        if old is not None:
            self._entries.remove(old, 0)
        if matches:
            new = self._entry_of[element] = self.entry(element)
            self._entries.add(new, 0)

    def visible(self) -> list[Element]:
        """Return the elements in the range, in their order."""
        return [element for _, _, element in self._entries.between(self._sort.first, self._sort.last)]

    def encode_all(self) -> bytes:
        """Return a message that is right whatever was sent before: all visible entries, even if there are none."""
        return self.encode(self._sort.first, self._sort.last)

    def block_sizes(self) -> list[int]:
        """Return the number of entries in each block, for tests and measurements."""
        return self._entries.block_sizes()

    def update(self, kind: str, element: Element) -> tuple[int, int] | None:
        """Apply an event; return the first and last position to send, None if the visible entries are as before."""
        first, last = self._sort.first, self._sort.last
        moved = []
        # Removed by its old key, since the element has the new value already.
        old = self._entry_of.pop(element, None)
        if old is not None:
            moved.append(self._entries.remove(old, last))
        if kind != "remove":
            new = self._entry_of[element] = self.entry(element)
            moved.append(self._entries.add(new, last))
        if not moved:
            # The removal of an element that never matched.
            return None
        count, self._count = self._count, self._count_visible()
        # Between the old and the new place, or from the only one to the end, every position has another occupant.
        start = max(min(moved), first)
        end = max(moved) if len(moved) == 2 else len(self._entries)
        end = min(end, first + self._count - 1)
        # The number of visible entries may shrink without any entry having another occupant.
        if start > end and count == self._count:
            return None
        return start, end

    def _count_visible(self) -> int:
        return max(0, min(len(self._entries), self._sort.last) - self._sort.first + 1)

    def entry(self, element: Element) -> Entry:
        """Return the entry of an element as it is now."""
        return sort_key(self._sort, element), element.number, element

    def encode(self, start: int, end: int) -> bytes:
        """Return a message with the entries at these positions, none if the last comes before the first."""
        entries = self._entries.between(start, end) if start <= end else []
        meter.units += ENTRY_UNITS * len(entries)
        changes = []
        for position, (_, _, element) in enumerate(entries, start):
            value = element.value
            if value is None or element.fetch_only or element.access is not None or self.asked is not None:
                members = b"" if self.asked is None else self.asked.encode(element)
                changes.append(encode_sorted_entry(position, element, element.fetch_only_for(self.auth), members))
            else:  # most entries, without two calls for each
                changes.append(PLAIN_SORTED_ENTRY % (element.path_json, value, position))
        return encode_sorted_changes(changes, self._count)
