"""Requests on their way: each ends once, in order, and none before its time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetbus.bus.routes import BUCKETS_KEPT, TICKS_PER_S, Route, Routes
from jetbus.bus.session import Session
from jetbus.wire.dialects import NODE_JET_3
from support.inmemory import RecordingOutbox

TICK_S = 0.002
"""A deadline may be met this late, because deadlines are kept in ticks."""


def _session(number: int) -> Session:
    return Session(number, RecordingOutbox())


def _route(owner: Session, request_id: bytes = b"1") -> Route:
    return Route(_session(99), request_id, owner, b"{}", True, False)


def test_ids_are_unique_texts() -> None:
    """Every route has an id of its own towards its owner, as a JSON text."""
    routes, owner = Routes(), _session(1)
    assert [routes.open(_route(owner), 5.0) for _ in range(3)] == [b'"r1"', b'"r2"', b'"r3"']


def test_ids_of_node_jet_3() -> None:
    """A node-jet 3 owner gets a number as text, unique among the owners."""
    routes, owner, other = Routes(), _session(1), _session(2)
    owner.dialect = NODE_JET_3
    routes.open(_route(other), 5.0)
    assert routes.open(_route(owner), 5.0) == b'"2"'


def test_an_answer_closes_a_route_once() -> None:
    """An answer finds its route; a second answer finds none."""
    routes, owner = Routes(), _session(1)
    route = _route(owner)
    route_id = routes.open(route, 5.0)
    assert routes.count == 1
    assert routes.close(owner, route_id) is route
    assert routes.close(owner, route_id) is None
    assert routes.count == 0
    assert owner.routes == {}


def test_only_the_owner_can_answer() -> None:
    """A third peer cannot answer in the owner's place."""
    routes, owner, third = Routes(), _session(1), _session(2)
    route = _route(owner)
    route_id = routes.open(route, 5.0)
    assert routes.close(third, route_id) is None
    assert routes.close(owner, route_id) is route


@pytest.mark.parametrize("route_id", [b"", b"r1", b"1", b'"r2"', b'"x"'])
def test_unknown_ids(route_id: bytes) -> None:
    """An answer to nothing is dropped."""
    routes, owner = Routes(), _session(1)
    routes.open(_route(owner), 5.0)
    assert routes.close(owner, route_id) is None
    assert routes.count == 1


def test_deadlines() -> None:
    """A route ends at its deadline, not before; what has been answered does not end again."""
    routes, owner = Routes(), _session(1)
    first, second, answered = _route(owner), _route(owner), _route(owner)
    routes.open(second, 7.0)
    routes.open(first, 5.0)
    routes.close(owner, routes.open(answered, 5.0))
    assert routes.expired(4.999) == []
    assert routes.expired(5.0 + TICK_S) == [first]
    assert routes.expired(6.999) == []
    assert routes.expired(100.0) == [second]
    assert routes.expired(1000.0) == []
    assert owner.routes == {}
    assert routes.count == 0


def test_late_answer() -> None:
    """An answer after the deadline is dropped."""
    routes, owner = Routes(), _session(1)
    route_id = routes.open(_route(owner), 1.0)
    assert len(routes.expired(2.0)) == 1
    assert routes.close(owner, route_id) is None


def test_order_of_expiry() -> None:
    """Routes whose time is up together end in the order of their deadlines, and then as they were opened."""
    routes, owner = Routes(), _session(1)
    deadlines = [3.0, 1.0, 2.0, 1.0, 3.0]
    opened = [_route(owner, b"%d" % number) for number in range(5)]
    for route, deadline in zip(opened, deadlines, strict=True):
        routes.open(route, deadline)
    assert [route.request_id for route in routes.expired(10.0)] == [b"1", b"3", b"2", b"0", b"4"]


def test_wake() -> None:
    """Whoever keeps the time is told of each deadline that is earlier than all others."""
    routes, owner = Routes(), _session(1)
    woken: list[float] = []
    routes.wake = woken.append
    for deadline in (5.0, 6.0, 4.0, 4.0, 5.5, 3.0):
        routes.open(_route(owner), deadline)
    assert woken == [pytest.approx(5.0, abs=TICK_S), pytest.approx(4.0, abs=TICK_S), pytest.approx(3.0, abs=TICK_S)]
    assert all(received >= deadline for received, deadline in zip(woken, (5.0, 4.0, 3.0), strict=True))


def test_next_deadline() -> None:
    """The next deadline is that of the earliest route that is still open."""
    routes, owner = Routes(), _session(1)
    assert routes.next_deadline() is None
    early = routes.open(_route(owner), 1.0)
    late = routes.open(_route(owner), 9.0)
    assert routes.next_deadline() == pytest.approx(1.0, abs=TICK_S)
    routes.close(owner, early)
    assert routes.next_deadline() == pytest.approx(9.0, abs=TICK_S)
    routes.close(owner, late)
    assert routes.next_deadline() is None


@pytest.mark.parametrize("deadline", [number / 100 for number in (0, 1, 28, 56, 57, 113, 1234567, 98765432)])
def test_woken_in_time(deadline: float) -> None:
    """Whoever wakes at the deadline that was told finds the route expired."""
    routes, owner = Routes(), _session(1)
    routes.open(_route(owner), deadline)
    received = routes.next_deadline()
    assert received is not None
    assert len(routes.expired(received)) == 1


def test_wake_after_all_were_answered() -> None:
    """A deadline is told also when an earlier, answered one has not passed yet, or the keeper was not told of it."""
    routes, owner = Routes(), _session(1)
    woken: list[float] = []
    routes.wake = woken.append
    routes.close(owner, routes.open(_route(owner), 5.0))
    assert routes.next_deadline() is None
    routes.open(_route(owner), 7.0)
    assert woken[-1] == pytest.approx(7.0, abs=TICK_S)


def test_answered_requests_of_long_timeouts_leave_nothing_behind() -> None:
    """However many requests with timeouts of hours are answered at once, few of their deadlines are remembered."""
    routes, owner = Routes(), _session(1)
    waiting = _route(owner)
    routes.open(waiting, 4000.0)
    for number in range(5 * BUCKETS_KEPT):
        routes.close(owner, routes.open(_route(owner), 3600.0 + number / TICKS_PER_S))
    assert routes.bucket_count <= BUCKETS_KEPT + 1
    assert routes.count == 1
    assert routes.expired(5000.0) == [waiting]


_story = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 400)),
        st.tuples(st.just("answer"), st.integers(0, 30)),
        st.tuples(st.just("wait"), st.integers(0, 100)),
    ),
    max_size=40,
)


@given(_story)
@settings(deadline=None)
def test_every_route_ends_once(story: list[tuple[str, int]]) -> None:
    """A keeper of the time who wakes only when told ends each unanswered route once, at its deadline or just after."""
    routes, owners = Routes(), [_session(1), _session(2)]
    alarm: list[float] = []
    routes.wake = lambda deadline: alarm.__setitem__(slice(None), [deadline])
    now = 0.0
    deadlines: dict[bytes, float] = {}
    ended: list[bytes] = []

    def pass_time(until: float) -> None:
        nonlocal now
        while alarm and alarm[0] <= until:
            now = alarm.pop()
            for route in routes.expired(now):
                assert deadlines[route.id] <= now <= deadlines[route.id] + TICK_S
                ended.append(route.id)
            deadline = routes.next_deadline()
            if deadline is not None:
                assert deadline > now, "woken for nothing, and to be woken again at once"
                alarm[:] = [deadline]
        now = until

    for kind, number in story:
        if kind == "open":
            route_id = routes.open(_route(owners[number % 2]), now + number / 100)
            deadlines[route_id] = now + number / 100
        elif kind == "answer":
            route = routes.close(owners[number % 2], b'"r%d"' % number)
            if route is not None:
                ended.append(route.id)
        else:
            pass_time(now + number / 100)
    pass_time(now + 1000)
    assert sorted(ended) == sorted(deadlines)
    assert routes.count == 0
    assert routes.next_deadline() is None
