"""Tasks: work for one peer that takes more than a turn, as a generator of short steps.

What a step yields says when the next one may follow::

    yield               at once, or in the peer's next turn if the time of this one is used up
    yield READ          in a turn after the peer has read everything that it was sent
    yield work          once ``work``, which blocks, is done in a thread; ``work.result()`` returns its outcome

So a long answer is produced at the speed at which its peer reads, and nothing is produced ahead. The peer's next
messages wait for the end of its task. A task whose peer is gone is closed, on the loop: its ``finally`` clauses run.
"""

from __future__ import annotations

import enum
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


Step = _Mark | Work[Any] | None
"""Condition under which a task goes on; None for none."""
