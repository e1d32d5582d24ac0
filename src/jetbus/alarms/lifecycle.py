"""Lifecycle of an alarm, as ISA-18.2 means it: one table of states, acts and the states that follow.

::

                 raise                    ack
      normal ------------> unacknowledged -----> acknowledged
        ^  ^                |  ^     ^  |              |
        |  |          clear |  | raise  | clear        | clear
        |  | ack            v  |     |  v (latch)      |
        |  +------------ returned    latched <---------+ (latch)
        |                               |              |
        +-------------------------------+  ack         |
        +----------------------------------------------+ (no latch)

      any state --shelve--> shelved --unshelve--> unacknowledged if it is raised, else normal
      any state --disable-> out_of_service --enable--> likewise

A shelved alarm, and one that is out of service, keeps its condition under watch, but asks nobody for anything. Acts
that have no row in the table change nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Act", "AlarmState", "Known", "step"]


class AlarmState(StrEnum):
    """State of an alarm at a path."""

    NORMAL = "normal"
    UNACKNOWLEDGED = "unacknowledged"
    ACKNOWLEDGED = "acknowledged"
    RETURNED = "returned"
    """The condition is gone, and was never acknowledged."""
    LATCHED = "latched"
    """The condition is gone, but the alarm stays until it is acknowledged."""
    SHELVED = "shelved"
    OUT_OF_SERVICE = "out_of_service"


class Act(StrEnum):
    """Act on an alarm: of its condition, of an operator, or of time."""

    RAISE = "raise"
    CLEAR = "clear"
    ACK = "ack"
    SHELVE = "shelve"
    UNSHELVE = "unshelve"
    DISABLE = "disable"
    ENABLE = "enable"


class Known(NamedTuple):
    """Facts about an alarm besides its state."""

    is_raised: bool
    latch: bool


_ANY = (AlarmState.NORMAL, AlarmState.UNACKNOWLEDGED, AlarmState.ACKNOWLEDGED, AlarmState.RETURNED, AlarmState.LATCHED)
_STEPS: dict[tuple[AlarmState, Act], AlarmState] = {
    (AlarmState.NORMAL, Act.RAISE): AlarmState.UNACKNOWLEDGED,
    (AlarmState.RETURNED, Act.RAISE): AlarmState.UNACKNOWLEDGED,
    (AlarmState.LATCHED, Act.RAISE): AlarmState.UNACKNOWLEDGED,
    (AlarmState.UNACKNOWLEDGED, Act.CLEAR): AlarmState.RETURNED,
    (AlarmState.ACKNOWLEDGED, Act.CLEAR): AlarmState.NORMAL,
    (AlarmState.UNACKNOWLEDGED, Act.ACK): AlarmState.ACKNOWLEDGED,
    (AlarmState.RETURNED, Act.ACK): AlarmState.NORMAL,
    (AlarmState.LATCHED, Act.ACK): AlarmState.NORMAL,
    **{(state, Act.SHELVE): AlarmState.SHELVED for state in (*_ANY, AlarmState.SHELVED)},
    **{(state, Act.DISABLE): AlarmState.OUT_OF_SERVICE for state in (*_ANY, AlarmState.SHELVED)},
    (AlarmState.SHELVED, Act.UNSHELVE): AlarmState.NORMAL,
    (AlarmState.OUT_OF_SERVICE, Act.ENABLE): AlarmState.NORMAL,
}
_LATCHING: dict[tuple[AlarmState, Act], AlarmState] = {
    (AlarmState.UNACKNOWLEDGED, Act.CLEAR): AlarmState.LATCHED,
    (AlarmState.ACKNOWLEDGED, Act.CLEAR): AlarmState.LATCHED,
}
"""Rows that an alarm with ``latch`` has instead."""
_BACK = (Act.UNSHELVE, Act.ENABLE)


def step(state: AlarmState, act: Act, known: Known) -> AlarmState | None:
    """Return the next state of an alarm; None if the act changes nothing.

    >>> step(AlarmState.NORMAL, Act.RAISE, Known(is_raised=True, latch=False))
    <AlarmState.UNACKNOWLEDGED: 'unacknowledged'>
    """
    row = state, act
    following = _LATCHING.get(row) if known.latch else None
    following = following or _STEPS.get(row)
    if following is AlarmState.NORMAL and act in _BACK and known.is_raised:
        return AlarmState.UNACKNOWLEDGED
    return following
