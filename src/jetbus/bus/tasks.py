"""Tasks: work for one peer that takes more than a turn, as a generator of short steps.

The value that a step yields says when the next one may follow::

    yield               at once, or in the peer's next turn if the time of this one is used up
    yield READ          in a turn after the peer has read everything that it was sent
    yield work          once ``work``, which blocks, is done in a thread; ``work.result()`` returns its outcome

So a long answer is produced at the speed at which its peer reads, and nothing is produced ahead. The peer's next
messages wait for the end of its task. When its peer leaves, a task is closed, on the loop: its ``finally`` clauses run.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, cast

from jetbus.bus.ports import Outcome
from jetbus.errors import JetError

if TYPE_CHECKING:
    from jetbus.bus.ports import Worker


class _Mark(enum.Enum):
    READ = "read"


READ = _Mark.READ
"""The next step follows when the peer has read everything."""


class Work(Generic[Outcome]):
    """Blocking work of a task."""

    def __init__(self, worker: Worker, do: Callable[[], Outcome]) -> None:
        self._worker = worker
        self._do = do
        self._outcome: Outcome | JetError | None = None
        self.is_done = False

    def run(self, then: Callable[[], None]) -> None:
        """Do it in a thread, then call ``then`` on the loop."""

        def done(outcome: Outcome | JetError) -> None:
            self._outcome, self.is_done = outcome, True
            then()

        self._worker.run(self._do, done)

    def result(self) -> Outcome:
        """Return the outcome; raise it if it is an error."""
        if isinstance(self._outcome, JetError):
            raise self._outcome
        return cast(Outcome, self._outcome)


class Room:
    """Room for long searches: a limit for the bytes that all of them have found so far, and not sent yet.

    A search that finds no room waits, in the order of arrival; addresses take turns, so that one with many peers does
    not keep the others waiting. A search that is larger than the whole room takes all of it.
    """

    def __init__(self, most: Callable[[], int], count_wait: Callable[[], None]) -> None:
        self._most = most
        self._count_wait = count_wait
        self._used = 0
        self._is_serving = False
        self._waiting: dict[str, deque[Place]] = {}
        """Searches that wait, by address; the address that is served next is the first."""

    def take(self, place: Place) -> bool:
        """Give room to a search, or let it wait and return False."""
        if not self._waiting and self._fits(place):
            self._used += place.size
            return True
        self._count_wait()
        self._waiting.setdefault(place.address, deque()).append(place)
        return False

    def _fits(self, place: Place) -> bool:
        return not self._used or self._used + place.size <= self._most()

    def give_back(self, size: int) -> None:
        """Take back the room of a search that has ended, and let others start."""
        self._used -= size
        # After its peer has left, a search gives its room back as soon as it has entered, within this loop.
        if self._is_serving:
            return
        self._is_serving = True
        while (place := self._take_next()) is not None:
            self._used += place.size
            place.enter()
        self._is_serving = False

    def close(self) -> None:
        """Let no search enter any more, because the daemon stops."""
        self._waiting.clear()
        self._is_serving = True

    def _take_next(self) -> Place | None:
        """Return the search that enters next and let its address go behind the others; None while the room is full."""
        address, places = next(iter(self._waiting.items()), ("", None))
        if places is None or not self._fits(places[0]):
            return None
        place = places.popleft()
        del self._waiting[address]
        if places:
            self._waiting[address] = places
        return place


class Place(Work[None]):
    """A place in the room, as a step of the tasks that share it."""

    def __init__(self, room: Room, address: str, size: int) -> None:
        self._room = room
        self.address = address
        self.size = size
        self.is_done = False
        self._then: list[Callable[[], None]] = []

    def run(self, then: Callable[[], None]) -> None:
        """Enter at once, or call ``then`` on entering later."""
        if self.is_done:
            return
        self._then.append(then)
        if len(self._then) == 1 and self._room.take(self):
            self.is_done, self._then = True, []

    def enter(self) -> None:
        """Let the tasks go on."""
        # ``then`` refers to a task, which refers to this place: without the cycle a task ends with its session.
        self.is_done, waiting, self._then = True, self._then, []
        for then in waiting:
            then()

    def leave(self) -> None:
        """Give back the room. If its peer leaves while it waits, a search gives the room back when it has entered."""
        if self.is_done:
            self.is_done = False
            self._room.give_back(self.size)


Step = _Mark | Work[Any] | None
"""Condition under which a task goes on; None for none."""
