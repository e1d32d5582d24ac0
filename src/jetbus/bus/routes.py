"""Requests on their way to an owner and back.

A route is open until the owner answers, its time is up or the owner is lost, whichever comes first; anything later
is dropped. Deadlines sit in buckets of one tick, so a request costs no timer of its own. A bucket outlives its routes
until its tick has come or there are too many empty ones.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from jetbus.bus.session import Session

TICKS_PER_S = 1000
"""Event loops keep time in milliseconds, so that finer ticks would gain nothing."""
BUCKETS_KEPT = 10_000
"""Empty buckets are looked for when there are more buckets than that, and twice as many as at the last time."""


class Route(Struct, eq=False):
    """One request that an owner has yet to answer."""

    requester: Session
    request_id: bytes
    owner: Session
    message: bytes
    """The request as it came, for the error when its time is up."""
    is_set: bool
    by_jsonrpc: bool
    """Whether the request said ``jsonrpc``, as only C++ peers do; they expect other answers."""
    path: str = ""
    asked: bytes = b""
    """The value or the arguments, where a record is kept."""
    opened_us: int = 0
    """The instant at which it was opened, in microseconds, where a record is kept."""
    id: bytes = b""
    bucket: Any = None
    """The routes that expire with it; it takes itself out when it is answered."""


class Routes:
    """All open routes by the id the owner knows them by."""

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
        """Open a route until ``deadline``; gives its id as JSON."""
        self._count = count = self._count + 1
        owner = route.owner
        route.id = route_id = owner.dialect.route_id(count)
        bucket = self._bucket if deadline == self._deadline else self._bucket_of(deadline)
        bucket[route_id] = owner.routes[route_id] = route
        route.bucket = bucket
        return route_id

    def _bucket_of(self, deadline: float) -> dict[bytes, Route]:
        tick = int(deadline * TICKS_PER_S) + 1
        bucket = self._buckets.get(tick)
        if bucket is None:
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
        """The route of that id towards this owner, now closed; None when there is none (any more)."""
        route = owner.routes.pop(route_id, None)
        if route is not None:
            del route.bucket[route_id]
        return route

    def expired(self, now: float) -> list[Route]:
        """Close and give the routes whose time is up."""
        late = []
        self._deadline = -1.0
        tick = int(now * TICKS_PER_S + 1e-6)  # a deadline that was a tick once must be one again
        while self._ticks and self._ticks[0] <= tick:
            for route in self._buckets.pop(heapq.heappop(self._ticks)).values():
                del route.owner.routes[route.id]
                late.append(route)
        return late

    def next_deadline(self) -> float | None:
        """When to ask for expired routes next; None when no route is open."""
        self._deadline = -1.0
        while self._ticks and not self._buckets[self._ticks[0]]:
            del self._buckets[heapq.heappop(self._ticks)]
        return self._ticks[0] / TICKS_PER_S if self._ticks else None

    @property
    def count(self) -> int:
        """How many routes are open."""
        return sum(len(bucket) for bucket in self._buckets.values())
