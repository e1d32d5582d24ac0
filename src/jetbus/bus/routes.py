"""Routes: requests that wait for the response of an owner.

A route is open until the owner responds, its time is up or the owner is lost, whichever comes first; a later response
is dropped. Requests have no timers of their own. Deadlines are rounded up to ticks, and all routes of a tick are in one
bucket; one timer waits for the earliest tick::

    ticks (heap)   5001   5002   9000
    buckets         {r1, r2}  {r7}   {}         a response removes its route from its bucket

An empty bucket stays until its tick comes or until there are too many empty ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING

from jetbus.wire.lane import RouteCore, RoutesCore

if TYPE_CHECKING:
    from jetbus.bus.session import Session

TICKS_PER_S = 1000
"""Event loops keep time in milliseconds, so that finer ticks would gain nothing."""
BUCKETS_KEPT = 10_000
"""Number of buckets above which empty ones are removed, once there are twice as many as after the last removal."""


class Route(RouteCore):
    """A request that waits for the response of an owner."""

    __slots__ = ()

    def __init__(
        self,
        requester: Session,
        request_id: bytes,
        owner: Session,
        message: bytes,
        is_set: bool,
        by_jsonrpc: bool,
        path: str = "",
        asked: bytes = b"",
    ) -> None:
        self.requester = requester
        self.request_id = request_id
        self.owner = owner
        self.message = message
        """The request as it came, for the error when its time is up."""
        self.is_set = is_set
        self.by_jsonrpc = by_jsonrpc
        """True if the request has a member ``jsonrpc``, as only those of C++ peers do, which expect other responses."""
        self.path = path
        self.asked = asked
        """Value or arguments of the request, if there is a journal."""
        self.requested = b""
        """Value of a set if its requester asks for the new value of the state; as JSON, or as body if it speaks
        binary."""
        self.opened_us = 0
        """Instant at which it was opened, in microseconds, if there is a journal."""
        self.kept_bytes = 0
        """Bytes in the requester's account while it is open."""
        self.id = b""
        self.bucket: dict[bytes, Route] = {}
        """The routes that expire with it; it takes itself out when it is answered."""


class Routes(RoutesCore):
    """Open routes, by the id under which the owner knows them."""

    def __init__(self) -> None:
        self._count = 0
        self._buckets: dict[int, dict[bytes, Route]] = {}
        self._ticks: list[int] = []
        self._sweep_at = BUCKETS_KEPT
        # Requests that came together have the same deadline; this is the bucket of the last one while there is one.
        self._deadline = -1.0
        self._bucket: dict[bytes, Route] = {}
        self.wake: Callable[[float], None] = lambda _deadline: None
        """Called with the earliest deadline whenever an earlier one appears."""

    def open(self, route: Route, deadline: float) -> bytes:
        """Open a route until ``deadline`` and return its id as JSON."""
        self._count = count = self._count + 1
        owner = route.owner
        # Owners repeat the id in their response, so it has the form that their dialect expects.
        route.id = route_id = owner.dialect.route_id(count)
        bucket = self._bucket if deadline == self._deadline else self.bucket_of(deadline)
        bucket[route_id] = owner.routes[route_id] = route
        route.bucket = bucket
        return route_id

    def bucket_of(self, deadline: float) -> dict[bytes, Route]:
        """Return the bucket of a deadline, which the next routes are likely to share."""
        # Rounded up: a request may wait a millisecond longer, never shorter.
        tick = int(deadline * TICKS_PER_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
            # Sweeping takes a pass over all buckets; doubling the limit makes it constant per bucket.
            if len(self._ticks) > self._sweep_at:
                self._sweep()
            bucket = self._buckets[tick] = {}
            heapq.heappush(self._ticks, tick)
            if self._ticks[0] == tick:
                self.wake(tick / TICKS_PER_S)
        self._deadline, self._bucket = deadline, bucket
        return bucket

    def _sweep(self) -> None:
        """Forget the empty buckets: those of long timeouts would wait for their tick, hours after the answer."""
        self._buckets = {tick: bucket for tick, bucket in self._buckets.items() if bucket}
        self._ticks = sorted(self._buckets)
        self._sweep_at = max(BUCKETS_KEPT, 2 * len(self._ticks))

    @staticmethod
    def close(owner: Session, route_id: bytes) -> Route | None:
        """Close the route with this id to an owner and return it, None if it is not open."""
        route = owner.routes.pop(route_id, None)
        if route is not None:
            del route.bucket[route_id]
            route.requester.account.note(-route.kept_bytes)
        return route

    def expired(self, now: float) -> list[Route]:
        """Close the routes past their deadline and return them."""
        late = []
        self._deadline = -1.0
        # The cached bucket may be among those that are taken out here.
        tick = int(now * TICKS_PER_S + 1e-6)  # a deadline that was a tick once must be one again
        while self._ticks and self._ticks[0] <= tick:
            for route in self._buckets.pop(heapq.heappop(self._ticks)).values():
                del route.owner.routes[route.id]
                route.requester.account.note(-route.kept_bytes)
                late.append(route)
        return late

    def next_deadline(self) -> float | None:
        """Return the earliest deadline, None if no route is open."""
        self._deadline = -1.0
        # All of their routes are answered: the timer need not wake for them.
        while self._ticks and not self._buckets[self._ticks[0]]:
            del self._buckets[heapq.heappop(self._ticks)]
        return self._ticks[0] / TICKS_PER_S if self._ticks else None

    @property
    def bucket_count(self) -> int:
        """Number of buckets, empty ones included."""
        return len(self._ticks)

    @property
    def count(self) -> int:
        """Number of open routes."""
        return sum(len(bucket) for bucket in self._buckets.values())
