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
from collections import Counter, deque
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

    A search that finds no room waits, in the order of arrival; addresses take turns. Several searches of one address
    have at most half of the room, and the first one of an address may exceed the room by half, so that it need not wait
    for those of another address. A search that is larger than the whole room takes all of it.
    """

    def __init__(self, most: Callable[[], int], count_wait: Callable[[], None]) -> None:
        self._most = most
        self._count_wait = count_wait
        self._used: Counter[str] = Counter()
        """Bytes by address."""
        self._is_serving = False
        self._waiting: dict[str, deque[Place]] = {}
        """Searches that wait, by address; the address that is served next is the first."""

    def take(self, place: Place) -> bool:
        """Give room to a search, or let it wait and return False."""
        self._waiting.setdefault(place.address, deque()).append(place)
        if self._take_next(place) is place:
            return True
        self._count_wait()
        return False

    def give_back(self, address: str, size: int) -> None:
        """Take back room that a search does not need any more, and let others start."""
        self._used[address] -= size
        if not self._used[address]:
            del self._used[address]
        # After its peer has left, a search gives its room back as soon as it has entered, within this loop.
        if self._is_serving:
            return
        self._is_serving = True
        while (other := self._take_next()) is not None:
            other.enter()
        self._is_serving = False

    def close(self) -> None:
        """Let no search enter any more, because the daemon stops."""
        self._waiting.clear()
        self._is_serving = True

    def _take_next(self, only: Place | None = None) -> Place | None:
        """Give room to the search that enters next, or to ``only`` if that is the next one.

        Its address goes behind the others. Return None while nothing that waits has room.
        """
        most, used = self._most(), self._used.total()
        for address, places in self._waiting.items():
            place, own = places[0], self._used[address]
            if own and own + place.size > most // 2:
                continue  # its address must not keep others waiting
            room = most if own else most + most // 2
            if (used and used + place.size > room) or (only is not None and place is not only):
                return None
            places.popleft()
            del self._waiting[address]
            if places:
                self._waiting[address] = places
            self._used[address] += place.size
            return place
        return None


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
            self._room.give_back(self.address, self.size)

    def shrink(self, size: int) -> None:
        """Give back the room that the search does not take."""
        if self.is_done and size < self.size:
            more, self.size = self.size - size, size
            self._room.give_back(self.address, more)


Step = _Mark | Work[Any] | None
"""Condition under which a task goes on; None for none."""
