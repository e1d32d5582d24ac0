"""Conditions of a session: what its peer's next messages wait for, and every step from one condition to another.

The bus handles the messages of a peer in their order. While something has to happen before the next one, messages wait
in ``session.waiting``, and the condition of the session says for what::

                      AWAITS_ORDER                       AWAITS_WORK
         PUT_OFF <------------------- READY -----------------------------> AWAITING
                 -------------------> ^ ^ | <----------------------------- |  ^
                       IN_ORDER       | | |             ANSWERED           |  |
                                      | | |                                |  |
                           TASK_ENDS  | | | TASK             AWAITS_WORK   |  |
                                      | | +---------> WORKING -------------|--+
                                      | +------------ |                    |
                       TURN,          |               | TIME_IS_UP         | WORK_DONE
                       NOTHING_LEFT   |               v                    v
                                      +-------------- DUE <----------------+
                         READY ------ TIME_IS_UP ---> | ^
                         READY ------ UNREAD ----+    | |
                                                 v    v |
                                               STALLED -+        DUE -> STALLED: UNREAD
                                                                 STALLED -> DUE: HAS_READ

         READY, WORKING -- REFUSE --> REFUSED -- CLOSE --> CLOSED -- LEAVE --> GONE
         any of the above -- CLOSE --> CLOSED
         READY, DUE, AWAITING -- LEAVE --> GONE

``TRANSITIONS`` is the drawing as a table. Only ``Serving`` walks it: the daemon reports what has happened, by a method
of ``Serving``, and looks at the condition to know what to do next. A session that is refused, closed or gone stays so
whatever is reported later, since threads and timers may come too late for it.

Everything else about a session is data and not condition: messages that wait, the task with the step it has reached,
the fetch that was put off, and ``ended``, which says that no message will follow those that are there.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetbus.bus.session import Session


class Condition(enum.Enum):
    """Condition of a session; the value completes the sentence "its next message ..."."""

    READY = "is handled when it comes"
    WORKING = "waits while the task takes its steps, in this turn"
    PUT_OFF = "waits for a fetch, which waits until all that was sent before it is read"
    DUE = "waits for the next turn, as a task does if there is one"
    STALLED = "waits until the peer has read more of what it was sent"
    AWAITING = "waits for a password check, a thread or room for a search"
    REFUSED = "is dropped, and the daemon is about to close the connection"
    CLOSED = "is dropped, since the daemon has closed the connection"
    GONE = "cannot come: the peer has left the bus"

    @property
    def is_over(self) -> bool:
        """True if no message is handled any more."""
        return self is REFUSED or self is CLOSED or self is GONE


class Cause(enum.Enum):
    """Something that has happened to a session and may change its condition."""

    TIME_IS_UP = "the time of its turn is used up, or its next message is too long for this turn"
    TURN = "it has its next turn"
    NOTHING_LEFT = "the turn was used up, but there is nothing to do in another one"
    TASK = "a task starts, or goes on in a new turn"
    TASK_ENDS = "the task has taken its last step"
    AWAITS_WORK = "a service or a task waits for work outside the bus"
    ANSWERED = "the service that waited has answered"
    WORK_DONE = "the work of the task is done"
    AWAITS_ORDER = "a fetch has to wait until all that was sent before it is read"
    IN_ORDER = "all that was sent before the fetch is read"
    UNREAD = "the peer has left too much unread"
    HAS_READ = "the peer has read, or will never read again"
    REFUSE = "the peer cannot be served"
    CLOSE = "the daemon closes the connection"
    LEAVE = "the peer leaves the bus"


READY = Condition.READY
WORKING = Condition.WORKING
PUT_OFF = Condition.PUT_OFF
DUE = Condition.DUE
STALLED = Condition.STALLED
AWAITING = Condition.AWAITING
REFUSED = Condition.REFUSED
CLOSED = Condition.CLOSED
GONE = Condition.GONE

TRANSITIONS: dict[Condition, dict[Cause, Condition]] = {
    READY: {
        Cause.TIME_IS_UP: DUE,
        Cause.TASK: WORKING,
        Cause.AWAITS_WORK: AWAITING,
        Cause.AWAITS_ORDER: PUT_OFF,
        Cause.UNREAD: STALLED,
        Cause.REFUSE: REFUSED,
        Cause.CLOSE: CLOSED,
        Cause.LEAVE: GONE,
    },
    WORKING: {
        Cause.TIME_IS_UP: DUE,
        Cause.TASK_ENDS: READY,
        Cause.AWAITS_WORK: AWAITING,
        Cause.REFUSE: REFUSED,
        Cause.CLOSE: CLOSED,
    },
    PUT_OFF: {Cause.IN_ORDER: READY, Cause.CLOSE: CLOSED},
    DUE: {
        Cause.TURN: READY,
        Cause.NOTHING_LEFT: READY,
        Cause.UNREAD: STALLED,
        Cause.CLOSE: CLOSED,
        Cause.LEAVE: GONE,
    },
    STALLED: {Cause.HAS_READ: DUE, Cause.CLOSE: CLOSED},
    AWAITING: {Cause.ANSWERED: READY, Cause.WORK_DONE: DUE, Cause.CLOSE: CLOSED, Cause.LEAVE: GONE},
    REFUSED: dict.fromkeys(Cause, REFUSED) | {Cause.CLOSE: CLOSED},
    CLOSED: dict.fromkeys(Cause, CLOSED) | {Cause.LEAVE: GONE},
    GONE: dict.fromkeys(Cause, GONE),
}


def advance(session: Session, cause: Cause) -> Condition:
    """Put a session into the condition that follows a cause, and return it; raise if there is none in the table."""
    try:
        session.condition = after = TRANSITIONS[session.condition][cause]
    except KeyError:
        raise RuntimeError(f"{session.label} is {session.condition.name}, where {cause.name} cannot happen") from None
    return after
