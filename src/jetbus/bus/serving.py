"""Serving: turns of sessions, their time limits, and the sessions that wait.

No peer may keep the others waiting, whatever it sends. The daemon sets the end of a peer's turn (``turn_ends``), and
the bus looks at the clock after everything that can be slow: rare services, batches, long texts, elements with many
audiences. Once the time is up, the peer's next messages wait until the daemon gives it another turn (``next_turn``).
Work on many elements is a task of short steps, see ``tasks``, which goes on in later turns.

The daemon reports the events of a peer (a turn, bytes that were read, the end of its messages, a closed connection),
and services report that they wait. Each report walks the table of ``conditions``, which nothing else changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from jetbus.bus.conditions import AWAITING, CLOSED, DUE, PUT_OFF, READY, STALLED, WORKING, Cause, Condition, advance
from jetbus.bus.tasks import READ, Step, Work
from jetbus.errors import JetError

if TYPE_CHECKING:
    from jetbus.bus.limits import Limits
    from jetbus.bus.session import Session


class Serving:
    """Turns, tasks and waiting messages of all sessions of a bus."""

    def __init__(
        self,
        clock: Callable[[], float],
        limits: Callable[[], Limits],
        limit_hits: Counter[str],
        answer_error: Callable[[Session, bytes, JetError], None],
    ) -> None:
        self.clock = clock
        self._limits = limits
        self._limit_hits = limit_hits
        self._answer_error = answer_error
        self.turn_ends = math.inf
        """Instant, by ``clock``, at which the turn of the peer that is served is over."""
        self._awaited_text = b""
        """The first text of this turn that has waited for it, and is handled however short the turn is."""

    # -- turns

    def end_turn(self, session: Session) -> None:
        """Let the session's next messages wait if the time of its turn is used up."""
        if self.clock() > self.turn_ends and session.condition is READY:
            advance(session, Cause.TIME_IS_UP)
            self._limit_hits["turn_us_max"] += 1

    def ends_before(self, session: Session, text: bytes) -> bool:
        """End the turn if its time is used up before a long text is handled; return True if the text has to wait."""
        if text is self._awaited_text or self.clock() <= self.turn_ends:
            return False
        self.end_turn(session)
        return True

    def next_turn(self, session: Session) -> list[bytes]:
        """Go on with the session's task, if it has one; return the messages that can be handled now."""
        if session.condition is DUE:
            outbox = session.outbox
            if session.awaits_reading and outbox.slow and not outbox.closed:
                advance(session, Cause.UNREAD)
                return []
            advance(session, Cause.TURN)
            if session.task is not None:
                self._go_on(session, session.task)
        waiting = self.take_waiting(session)
        self._awaited_text = waiting[0] if waiting else b""
        return waiting

    def settle(self, session: Session, has_unread: bool) -> Condition:
        """Return the condition after some messages were handled; without anything left to do no turn is due.

        ``has_unread`` says that the daemon has bytes of this peer that are not decoded yet.
        """
        if session.condition is DUE and not (has_unread or session.waiting or session.task):
            return advance(session, Cause.NOTHING_LEFT)
        return session.condition

    # -- waiting messages

    def hold_back(self, session: Session, messages: list[bytes]) -> None:
        """Let messages wait as long as the session waits; those of a session that is over are dropped."""
        if not session.condition.is_over:
            session.waiting += messages

    def postpone(self, session: Session, messages: list[bytes]) -> None:
        """Let messages wait for the next turn, because the first of them is long."""
        if session.condition is READY:
            advance(session, Cause.TIME_IS_UP)
        self.hold_back(session, messages)

    def take_waiting(self, session: Session) -> list[bytes]:
        """Remove and return the messages that need not wait any longer."""
        if session.condition is not READY:
            return []
        waiting, session.waiting = session.waiting, []
        return waiting

    # -- peers that do not read

    def stalls(self, session: Session) -> bool:
        """Return True if a session that asks for more leaves too much unread, and has to wait."""
        if session.outbox.unread_bytes <= self._limits().unread_bytes_max:
            return False
        advance(session, Cause.UNREAD)
        self._limit_hits["unread_bytes_max"] += 1
        return True

    def has_read(self, session: Session) -> bool:
        """Report that a peer has read, or will never read again; return True if it waited for that and is due now."""
        return session.condition is STALLED and advance(session, Cause.HAS_READ) is DUE

    # -- fetches in the order of arrival

    def fetch_in_order(self, session: Session, begin: Callable[[], None]) -> None:
        """Start a fetch when all that was sent before it is read; the peer's next messages wait for that."""
        if session.awaits_order():
            session.begin_fetch = begin
            advance(session, Cause.AWAITS_ORDER)
        else:
            begin()

    def begin_fetch(self, session: Session) -> None:
        """Report that all that was sent before a fetch is read: the fetch starts, if there is one."""
        begin = session.begin_fetch
        if session.condition is PUT_OFF and begin is not None:
            session.begin_fetch = None
            advance(session, Cause.IN_ORDER)
            begin()

    # -- tasks

    def begin_task(self, session: Session, request_id: bytes, steps: Generator[Step]) -> None:
        """Work in short steps, as far as the turn's time goes, and on in the next turns; later messages wait for it."""
        if session.outbox.closed:
            return  # no peer is left to read the answer
        session.task = steps
        session.task_id = request_id
        self._go_on(session, steps)

    def _go_on(self, session: Session, steps: Generator[Step]) -> None:
        advance(session, Cause.TASK)
        session.awaits_reading = False
        try:
            for step in steps:
                if session.outbox.closed:
                    break  # no peer is left to read the rest
                if isinstance(step, Work):
                    step.run(partial(self._on_work_done, session, steps))
                    if not step.is_done:
                        advance(session, Cause.AWAITS_WORK)
                        return
                elif self.clock() > self.turn_ends or (step is READ and not math.isinf(self.turn_ends)):
                    # The generator keeps its place: the next turn resumes it here.
                    session.awaits_reading = step is READ
                    advance(session, Cause.TIME_IS_UP)
                    self._limit_hits["turn_us_max"] += step is not READ
                    return
        except JetError as error:
            if session.task_id and session.condition is WORKING:
                self._answer_error(session, session.task_id, error)
        steps.close()
        # A session that was closed meanwhile has let go of its task already.
        if session.task is steps:
            session.task = None
        advance(session, Cause.TASK_ENDS)

    @staticmethod
    def _on_work_done(session: Session, steps: Generator[Step]) -> None:
        """Go on with a task in the next turn of its peer, or close it if the peer is gone."""
        if session.task is not steps:
            steps.close()
        elif session.condition is AWAITING:  # else the work took no time, and the task goes on by itself
            advance(session, Cause.WORK_DONE)
            session.released()

    # -- slow services: the next messages of the session wait for the response

    def hold(self, session: Session) -> None:
        """Let the session's next messages wait until ``release`` answers the request that is handled."""
        advance(session, Cause.AWAITS_WORK)

    def release(self, session: Session, request_id: bytes, outcome: bytes | JetError) -> None:
        """Respond to the request that held the session and handle the messages that have arrived since."""
        if advance(session, Cause.ANSWERED) is not READY:
            return
        if request_id and isinstance(outcome, JetError):
            self._answer_error(session, request_id, outcome)
        elif request_id and isinstance(outcome, bytes):
            session.send(session.dialect.encode_result(request_id, outcome))
        session.released()

    # -- the end

    def refuse(self, session: Session, reason: str) -> None:
        """Handle no more messages; the daemon sends the reason and closes the connection."""
        session.refusal = reason
        advance(session, Cause.REFUSE)

    def end(self, session: Session) -> None:
        """Report that the peer sends nothing more; it leaves when all that it has sent is handled."""
        session.ended = True

    def close(self, session: Session) -> None:
        """Report that the daemon has closed the connection: messages that were not handled are dropped."""
        if advance(session, Cause.CLOSE) is CLOSED:
            session.drop_work()

    def leave(self, session: Session) -> None:
        """Report that the peer leaves the bus; its memory is freed at once."""
        advance(session, Cause.LEAVE)
        session.drop_work()
        session.let_go()
