"""Staleness: states that have not changed for as long as their schema allows.

Every state with ``stale`` in its schema has one deadline. A change does not move it in the heap, which would cost a
search; it only notes its time (``Meta.changed_at``). When the deadline comes, the state has either changed since, and
gets a new deadline, or it is stale::

    heap        (100.0, pump)  (103.5, tank)  (160.0, door)          the daemon has one timer, for the first
    changed_at           97.0          101.0           100.0
    at 100.0    pump: 97.0 + 5 = 102.0 is still to come              --> (102.0, pump)

A stale state is without a deadline until it changes again. Entries that are no longer valid stay in the heap until
they are due, or until there are more of them than of others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from jetbus.bus.descriptions import Meta

if TYPE_CHECKING:
    from jetbus.bus.tree import Element

AT_ONCE = 500
"""Number of states that become stale before other work has its turn."""
INVALID_MAX = 1_000
"""Number of invalid entries that are always kept."""


class Staleness:
    """Deadlines of states, the earliest first, and the meta data that says which are stale. Callers pass the time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Element]] = []
        self._deadlines: dict[Element, float] = {}
        """The valid deadline of each state."""
        self._count = 0
        self.stale = 0
        """Number of states that are stale now."""
        self.wake: Callable[[float], None] = lambda _deadline: None
        """Called with the earliest deadline whenever an earlier one appears."""

    def __len__(self) -> int:
        return len(self._deadlines)

    def begin(self, element: Element, now: float) -> None:
        """Start to watch a state with a schema that says when it is stale."""
        if element.description.stale_s and not element.is_method:
            element.meta = replace(element.meta or Meta(), changed_at=now, _members=None)
            self._watch(element, now + element.description.stale_s)

    def end(self, element: Element) -> None:
        """Watch a state no longer; it is not stale any more."""
        self._deadlines.pop(element, None)
        meta = element.meta
        if meta is not None and meta.stale:
            self.stale -= 1
            element.meta = replace(meta, stale=False, _members=None)

    def renew(self, element: Element, source_us: int | None, quality: bytes | None, now: float) -> None:
        """Set the meta data of a new value; a stale state lives again."""
        stale_s, before = element.description.stale_s, element.meta
        revives = before is not None and before.stale is True
        if revives:
            self.stale -= 1
        if stale_s:
            element.meta = Meta(source_us, quality, now, False if revives else None)
            if revives:
                self._watch(element, now + stale_s)
        else:
            element.meta = Meta(source_us, quality) if source_us is not None or quality is not None else None

    def mark_due(self, now: float) -> list[Element]:
        """Mark states that have become stale, some at a time, and return them; their next change revives them."""
        late: list[Element] = []
        while self._heap and self._heap[0][0] <= now and len(late) < AT_ONCE:
            deadline, _, element = heapq.heappop(self._heap)
            meta = element.meta
            if self._deadlines.get(element) != deadline or meta is None:
                continue
            deadline = meta.changed_at + element.description.stale_s
            if deadline > now:
                self._watch(element, deadline)
            else:
                del self._deadlines[element]
                element.meta = replace(meta, stale=True, _members=None)
                self.stale += 1
                late.append(element)
        return late

    def _watch(self, element: Element, deadline: float) -> None:
        """Set the deadline of a state, in place of the one that it has."""
        self._deadlines[element] = deadline
        if len(self._heap) > 2 * len(self._deadlines) + INVALID_MAX:
            self._heap = [(at, number, one) for at, number, one in self._heap if self._deadlines.get(one) == at]
            heapq.heapify(self._heap)
        self._count += 1
        heapq.heappush(self._heap, (deadline, self._count, element))
        if self._heap[0][1] == self._count:
            self.wake(deadline)

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, None if nothing is watched."""
        return self._heap[0][0] if self._heap else None
