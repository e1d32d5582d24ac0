"""The work meter: counts the cost of rules, so that the rules of one peer cannot use up the time of others.

A unit is about a tenth of a microsecond: one simple test of a path or a value, one step of a pattern, one member of a
list. Single tests do not report to the meter, as that would cost more than the test. The loops around them report in
bulk, and only a test that can be expensive by itself (a pattern, a glob with many stars, a long list) reports its own
units.

``units`` only grows; read it before and after a piece of work to know its cost. A caller that wants to
bound a piece of work sets a ceiling for it::

    with meter.ceiling(1_000_000, "rule_work_max"):
        found = tree.matching(rule)        # LimitReached names rule_work_max once a million units are used up

Two ways to report keep a half-finished event from being torn apart. ``spend`` may raise and is for work that can be
given up as a whole: looking for the states of a fetch or a get. ``units += n`` never raises and is for tests that run
while an event is delivered to many peers, where one peer's rule must not end the delivery to the others.

``steps_left`` bounds the steps that patterns with back references may take until it is set anew, as only these
tests can take exponential work. Beyond it they match nothing.

Each thread has a meter of its own, without a ceiling at first: queries of the past run in threads beside the bus.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from jetbus.errors import LimitReached

UNLIMITED = sys.maxsize


class Meter(threading.local):
    """Work units of the current thread and the ceiling of the work at hand."""

    # Attributes of the class are the initial values for every thread; the first assignment makes them the thread's own.
    units: int = 0
    """All units counted so far in this thread."""
    steps_left: int = UNLIMITED
    """Pattern steps still allowed."""
    _stop_at: int = UNLIMITED
    _limit: str = ""
    _allowed: int = UNLIMITED

    def spend(self, units: int) -> None:
        """Count units; raise ``LimitReached`` where that exceeds the ceiling."""
        self.units += units
        if self.units > self._stop_at:
            raise LimitReached(self._limit, self._allowed, "too much work for one request")

    @property
    def left(self) -> int:
        """Units left below the ceiling; negative once it is exceeded."""
        return self._stop_at - self.units

    @contextmanager
    def ceiling(self, units: int, limit: str) -> Iterator[None]:
        """Allow the work within this context so many units; ``limit`` names the setting they come from.

        Within another ceiling the lower one holds.
        """
        before = self._stop_at, self._limit, self._allowed
        # A ceiling within another one may be lower, never higher.
        if self.units + units < self._stop_at:
            self._stop_at, self._limit, self._allowed = self.units + units, limit, units
        try:
            yield
        finally:
            self._stop_at, self._limit, self._allowed = before


meter = Meter()
"""The meter of the current thread."""
