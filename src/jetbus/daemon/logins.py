"""Logins: the queue of passwords to check, and the threads that hash them.

Checking a password takes tens of milliseconds of a core, on purpose, and every peer may ask for it. So that guessing
is slow and does not delay others:

- Passwords are hashed in threads of their own, never in those that read the journal or do other work.
- After a few failures an address, and a user, must wait between two attempts, however many connections they come by.
- After a login from an address a user is *known* there. Known users have a thread of their own, and wait
  only because of failures of that very user at that very address.
- Attempts wait in a queue of bounded length, and addresses take turns. When the queue is full, the newest attempt of
  the address that has most of it is refused. Attempts of closed connections are dropped.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from jetbus.bus.access import Auth
from jetbus.bus.ports import Outcome
from jetbus.errors import JetError, LimitReached, LoginRefused

if TYPE_CHECKING:
    from jetbus.bus.session import Session

FREE_FAILURES = 3
"""Failures after which attempts have to wait."""
WAIT_S, WAIT_S_MAX = 0.5, 2.0
"""The first wait after a failure, and the longest."""
FORGET_S = 60.0
"""After that time without a failure earlier ones count no longer."""
STRANGER_THREADS, KNOWN_THREADS = 2, 1

Done = Callable[[Auth | JetError], None]
"""Function that receives the rights of a user after the login, or the error."""


class Limits(Protocol):
    """The settings that count here."""

    @property
    def logins_waiting_max(self) -> int: ...

    @property
    def logins_known_max(self) -> int: ...


class Threads(Protocol):
    """Runs work in threads of its own, and then ``done`` on the loop with the outcome."""

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None], /) -> None: ...

    def stop(self) -> None: ...


@dataclass(slots=True)
class _Attempt:
    """One password to check."""

    session: Session
    user: str
    keys: tuple[Hashable, ...]
    """Keys that failures are counted by: address and user, or both together for a user known there."""
    work: Callable[[], Auth]
    done: Done


@dataclass(slots=True)
class _Failures:
    """Failures of one address, user or both."""

    count: int = 0
    until: float = 0.0
    """The next attempt must not start before that."""


@dataclass(slots=True)
class _Lane:
    """A queue and the threads that work on it."""

    threads: Threads
    threads_max: int
    running: int = 0
    waiting: list[_Attempt] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    """When each address was served last, as a count of attempts."""
    begun: int = 0
    timer: asyncio.TimerHandle | None = None


class Logins:
    """All attempts to log in to a daemon."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: Callable[[str, int], Threads],
        limits: Callable[[], Limits],
        limit_hits: Counter[str],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._limit_hits = limit_hits
        self._strangers = _Lane(threads("jetd-login", STRANGER_THREADS), STRANGER_THREADS)
        self._known_users = _Lane(threads("jetd-known-login", KNOWN_THREADS), KNOWN_THREADS)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._failures: OrderedDict[Hashable, _Failures] = OrderedDict()

    @property
    def waiting(self) -> int:
        """Return how many attempts wait or are under way."""
        return sum(len(lane.waiting) + lane.running for lane in (self._strangers, self._known_users))

    def attempt(self, session: Session, user: str, work: Callable[[], Auth], done: Done) -> None:
        """Check a password by ``work`` when it is its turn, then call ``done`` with what it returned or raised."""
        address = session.address
        # Guesses from elsewhere count against another key, so they cannot lock a known user out.
        known = (address, user) in self._known
        keys: tuple[Hashable, ...] = ((address, user),) if known else (("address", address), ("user", user))
        lane = self._known_users if known else self._strangers
        lane.waiting.append(_Attempt(session, user, keys, work, done))
        if len(lane.waiting) > self._limits().logins_waiting_max:
            self._refuse_one(lane)
        self._pump(lane)

    def run(self, work: Callable[[], Outcome], done: Callable[[Outcome | JetError], None]) -> None:
        """Run other work that hashes, for users that are logged in."""
        self._known_users.threads.run(work, done)

    def stop(self) -> None:
        """End the threads; nothing is answered any more."""
        for lane in (self._strangers, self._known_users):
            lane.waiting.clear()
            if lane.timer is not None:
                lane.timer.cancel()
            lane.threads.stop()

    def _refuse_one(self, lane: _Lane) -> None:
        """Make room: drop attempts of closed connections, or else refuse one of the address that has most of them."""
        lane.waiting = [attempt for attempt in lane.waiting if not attempt.session.gone]
        limit = self._limits().logins_waiting_max
        if len(lane.waiting) <= limit:
            return
        ((address, _),) = Counter(attempt.session.address for attempt in lane.waiting).most_common(1)
        # The newest, because the others have waited longer already.
        newest = next(attempt for attempt in reversed(lane.waiting) if attempt.session.address == address)
        lane.waiting.remove(newest)
        self._limit_hits["logins_waiting_max"] += 1
        newest.done(LimitReached("logins_waiting_max", limit, "too many logins wait; try again later"))

    def _pump(self, lane: _Lane) -> None:
        """Start as many attempts as there are free threads, or wait until the next one may start."""
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        while lane.running < lane.threads_max:
            lane.waiting = [attempt for attempt in lane.waiting if not attempt.session.gone]
            if not lane.waiting:
                return
            now = self._loop.time()
            # An attempt that must wait does not hold up those behind it.
            ready = [attempt for attempt in lane.waiting if self._begins_at(attempt) <= now]
            if not ready:
                lane.timer = self._loop.call_at(min(map(self._begins_at, lane.waiting)), self._pump, lane)
                return
            self._begin(lane, min(ready, key=lambda attempt: lane.served[attempt.session.address]))

    def _begin(self, lane: _Lane, attempt: _Attempt) -> None:
        lane.waiting.remove(attempt)
        lane.running += 1
        lane.begun += 1
        lane.served[attempt.session.address] = lane.begun
        # Forgetting costs at worst one turn out of order.
        if len(lane.served) > self._limits().logins_known_max:
            lane.served.clear()

        def finished(outcome: Auth | JetError) -> None:
            lane.running -= 1
            # Other errors, such as a damaged file, are not the fault of whoever tried.
            if isinstance(outcome, LoginRefused):
                self._count_failure(attempt)
            elif not isinstance(outcome, JetError):
                self._remember(attempt)
            attempt.done(outcome)
            self._pump(lane)

        lane.threads.run(attempt.work, finished)

    def _begins_at(self, attempt: _Attempt) -> float:
        """Return the time before which an attempt must not start."""
        return max((self._failures[key].until for key in attempt.keys if key in self._failures), default=0.0)

    def _count_failure(self, attempt: _Attempt) -> None:
        now = self._loop.time()
        for key in attempt.keys:
            failures = self._failures.pop(key, None)
            # Popped and put back in, so that the oldest failures are the first to be forgotten.
            if failures is None or now - failures.until > FORGET_S:
                failures = _Failures()
            failures.count += 1
            failures.until = now + wait_s(failures.count)
            self._failures[key] = failures
        _shorten(self._failures, self._limits().logins_known_max)

    def _remember(self, attempt: _Attempt) -> None:
        """A user has logged in, and is known at that address from now on."""
        pair = (attempt.session.address, attempt.user)
        self._failures.pop(pair, None)
        self._known[pair] = None
        self._known.move_to_end(pair)
        _shorten(self._known, self._limits().logins_known_max)


def wait_s(failures: int) -> float:
    """Return how long the next attempt must wait after so many failures.

    >>> [wait_s(count) for count in (3, 4, 5, 6, 7)]
    [0.0, 0.5, 1.0, 2.0, 2.0]
    """
    return 0.0 if failures <= FREE_FAILURES else min(WAIT_S * 2.0 ** min(failures - FREE_FAILURES - 1, 16), WAIT_S_MAX)


def _shorten(ordered: OrderedDict[Any, Any], length_max: int) -> None:
    """Forget the oldest entries."""
    while len(ordered) > length_max:
        ordered.popitem(last=False)


def login_address(host: str) -> str:
    """Return the address by which logins from a host are counted: an IPv6 host can choose from a whole /64 network.

    >>> login_address("2001:db8::1:2:3:4"), login_address("10.0.0.5")
    ('2001:db8::/64', '10.0.0.5')
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if address.version == 4 or address.is_loopback:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False))
