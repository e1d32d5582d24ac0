"""Staleness: states that have not changed for as long as their schema allows.

Every state with ``stale`` in its schema has one deadline. A change does not move it in the heap, which would cost a
search; it only notes its time (``Meta.changed_at``). When the deadline comes, the state has either changed since, and
gets a new deadline, or it is stale::

    heap        (100.0, pump)  (103.5, tank)  (160.0, door)          the daemon has one timer, for the first
    changed_at           97.0          101.0           100.0
    at 100.0    pump: 97.0 + 5 = 102.0 is still to come              --> (102.0, pump)

A stale state has no deadline until it changes again. Entries that are no longer valid stay in the heap until they are
due, or until there are more of them than of others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetbus.bus.tree import Element

AT_ONCE = 500
"""Number of states that become stale before other work has its turn."""
INVALID_MAX = 1_000
"""Number of invalid entries that are always kept."""


class Staleness:
    """Deadlines of states, the earliest first. The bus brings the time along."""

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

    def watch(self, element: Element, deadline: float) -> None:
        """Set the deadline of a state, in place of the one that it has."""
        self._deadlines[element] = deadline
        if len(self._heap) > 2 * len(self._deadlines) + INVALID_MAX:
            self._heap = [(at, number, one) for at, number, one in self._heap if self._deadlines.get(one) == at]
            heapq.heapify(self._heap)
        self._count += 1
        heapq.heappush(self._heap, (deadline, self._count, element))
        if self._heap[0][1] == self._count:
            self.wake(deadline)

    def forget(self, element: Element) -> None:
        """Watch a state no longer, because it is gone or can no longer be stale."""
        self._deadlines.pop(element, None)

    def take_due(self, now: float) -> list[Element]:
        """Return states that have become stale, some at a time; they are watched again from their next change on."""
        late: list[Element] = []
        while self._heap and self._heap[0][0] <= now and len(late) < AT_ONCE:
            deadline, _, element = heapq.heappop(self._heap)
            if self._deadlines.get(element) != deadline or element.meta is None:
                continue
            deadline = element.meta.changed_at + element.description.stale_s
            if deadline > now:
                self.watch(element, deadline)
            else:
                del self._deadlines[element]
                late.append(element)
        return late

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, None if nothing is watched."""
        return self._heap[0][0] if self._heap else None
