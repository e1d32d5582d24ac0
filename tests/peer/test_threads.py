"""One blocking peer, many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import jetbus
from jetbus.testing import RunningDaemon, running_daemon
from support.peers import DEADLINE_S

THREADS = 100
ROUNDS = 5


@pytest.fixture(params=["jet", "ws"])
def url(request: pytest.FixtureRequest, daemon: RunningDaemon) -> str:
    return daemon.url if request.param == "jet" else daemon.ws_url


def test_many_threads_share_a_peer(url: str) -> None:
    """A hundred threads set, call, get, change and fetch through one peer, and each gets its own answers."""
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> None:
        barrier.wait(DEADLINE_S)
        path = f"thread/{number}"
        state = peer.add_state(path, -1, on_set=lambda value: value + 1)
        peer.add_method(f"double/{number}", lambda value: [number, 2 * value])
        fetch = peer.fetch(path, policy="every")
        seen = [fetch.next(DEADLINE_S).value]
        for turn in range(ROUNDS):
            assert peer.set(path, 10 * turn, value_as_result=True).value == 10 * turn + 1
            assert peer.call(f"double/{number}", turn) == [number, 2 * turn]
            assert peer.call("shared", number, turn) == [number, turn]
            state.change(-turn)
            assert peer.get_all(path)[path] == -turn
            seen += [fetch.next(DEADLINE_S).value for _ in range(2)]
        assert seen == [-1, *(value for turn in range(ROUNDS) for value in (10 * turn + 1, -turn))]
        fetch.close()

    with jetbus.Peer(url) as other, jetbus.Peer(url) as peer:
        other.add_method("shared", lambda number, turn: [number, turn])
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(work, range(THREADS)))
        mirror = peer.mirror("thread/*").ready(DEADLINE_S)
        assert dict(mirror) == {f"thread/{number}": 1 - ROUNDS for number in range(THREADS)}
        assert peer.open_request_count == 0


def test_what_ends_a_wait_tells_only_itself(url: str) -> None:
    """Whoever waits for an event in vain, or is interrupted, sees nothing of the queue that was empty."""
    with jetbus.Peer(url) as peer, peer.fetch("nothing") as fetch:
        with pytest.raises(jetbus.TimedOut) as problem:
            fetch.next(0)
        assert problem.value.__context__ is None


def test_threads_change_one_state(url: str) -> None:
    """However many threads change a state, the bus ends with the value its owner has."""
    with jetbus.Peer(url) as peer, jetbus.Peer(url) as client:
        state = peer.add_state("shared", 0)

        def work(number: int) -> None:
            for turn in range(50):
                state.change([number, turn])

        with ThreadPoolExecutor(20) as threads:
            list(threads.map(work, range(20)))
        peer.info()
        assert client.get_all() == {"shared": state.value}


def test_threads_add_one_path(daemon: RunningDaemon) -> None:
    """Of many threads that add the same path one has it, the others are told that it is occupied."""

    def add(number: int) -> jetbus.State | None:
        try:
            return peer.add_state("shared", number, on_set=lambda _value: None)
        except jetbus.Occupied:
            return None

    with jetbus.Peer(daemon.url) as peer:
        with ThreadPoolExecutor(20) as threads:
            added = [state for state in threads.map(add, range(20)) if state is not None]
        assert len(added) == 1
        peer.set("shared", "set")
        assert added[0].value == "set"


def test_threads_share_a_fetch(daemon: RunningDaemon) -> None:
    """Threads that iterate over one fetch share its events: none is lost, none is seen twice."""
    with jetbus.Peer(daemon.url) as peer:
        state = peer.add_state("shared", 0)
        fetch = peer.fetch("shared", policy="every").ready()
        with ThreadPoolExecutor(10) as threads:
            parts = [threads.submit(lambda: [event.value for event in fetch]) for _ in range(10)]
            for value in range(1, 1001):
                state.change(value)
            peer.info()
            fetch.close()
            seen = sorted(value for part in parts for value in part.result(DEADLINE_S))
        assert seen == list(range(1001))


def test_batches_are_per_thread(daemon: RunningDaemon) -> None:
    """A batch gathers what its own thread does; other threads go on meanwhile."""
    with jetbus.Peer(daemon.url) as peer, jetbus.Peer(daemon.url) as client, ThreadPoolExecutor(1) as threads:
        inside = peer.add_state("inside", 0)
        outside = peer.add_state("outside", 0)
        with peer.batch():
            inside.change(1)
            threads.submit(outside.change, 1).result(DEADLINE_S)
            assert threads.submit(peer.get_all).result(DEADLINE_S) == {"inside": 0, "outside": 1}
        client.wait_for("inside value=1", timeout_s=DEADLINE_S)


# Calls from handlers.


def _calls(peer: jetbus.Peer) -> dict[str, Callable[[], Any]]:
    return {
        "set": lambda: peer.set("other/state", 1, value_as_result=True).value,
        "call": lambda: peer.call("other/add", 1, 2),
        "get": lambda: peer.get_all("other/state")["other/state"],
        "add": lambda: peer.add_state("own/new", 5).value,
        "fetch": lambda: peer.fetch("other/state").next(DEADLINE_S).path,
        "mirror": lambda: dict(peer.mirror("other/*").ready(DEADLINE_S)),
        "wait_for": lambda: peer.wait_for("other/state", timeout_s=DEADLINE_S).path,
    }


OUTCOMES = {
    "set": 1,
    "call": 3,
    "get": 0,
    "add": 5,
    "fetch": "other/state",
    "mirror": {"other/state": 0, "other/add": None},
    "wait_for": "other/state",
}


@pytest.mark.parametrize(("name", "outcome"), OUTCOMES.items(), ids=OUTCOMES)
def test_handlers_may_wait(url: str, name: str, outcome: Any) -> None:
    """A handler may make blocking calls on its own peer."""
    with jetbus.Peer(url) as other, jetbus.Peer(url) as peer, jetbus.Peer(url) as client:
        other.add_state("other/state", 0, on_set=lambda _value: None)
        other.add_method("other/add", lambda a, b: a + b)
        peer.add_method("own/method", _calls(peer)[name])
        assert client.call("own/method") == outcome


@pytest.mark.parametrize("name", OUTCOMES)
def test_asynchronous_handlers_may_not_wait(daemon: RunningDaemon, name: str) -> None:
    """A blocking call in an asynchronous handler would stop the peer's own loop, so it is refused at once."""
    with jetbus.Peer(daemon.url) as other, jetbus.Peer(daemon.url) as peer, jetbus.Peer(daemon.url) as client:
        other.add_state("other/state", 0, on_set=lambda _value: None)
        other.add_method("other/add", lambda a, b: a + b)

        async def handler() -> Any:
            return _calls(peer)[name]()

        peer.add_method("own/method", handler)
        with pytest.raises(jetbus.Refused) as refused:
            client.call("own/method")
        assert "would wait for itself" in refused.value.data["message"]


def test_close_from_a_handler(daemon: RunningDaemon) -> None:
    """A callback may close its own peer."""
    closed = threading.Event()
    peer = jetbus.Peer(daemon.url)
    peer.connect()

    def close(_event: jetbus.Event) -> None:
        peer.close()
        closed.set()

    peer.add_state("a", 1)
    peer.fetch("a", close)
    assert closed.wait(DEADLINE_S)
    assert not peer.connected


def test_close_frees_all_who_wait(url: str) -> None:
    """Threads that wait for an answer, an event or a state are freed with an error or an end when the peer closes."""
    go = threading.Event()
    with jetbus.Peer(url) as other:
        other.add_method("wait", go.wait, timeout_s=60)
        peer = jetbus.Peer(url)
        peer.connect()
        fetch = peer.fetch("never")

        def outcome(work: Callable[[], Any]) -> Any:
            try:
                return work()
            except jetbus.NotConnected:
                return "not connected"

        works: list[Callable[[], Any]] = [
            lambda: peer.call("wait"),
            lambda: list(fetch),
            lambda: peer.wait_for("never"),
        ]
        with ThreadPoolExecutor(9) as threads:
            waiting = [threads.submit(outcome, work) for work in works * 3]
            while peer.open_request_count < 3 or len(peer.session.fetches) < 4:
                assert not any(one.done() for one in waiting)
            peer.close()
            assert [one.result(DEADLINE_S) for one in waiting] == ["not connected", [], "not connected"] * 3
        go.set()


def test_use_while_closing() -> None:
    """Threads that use a peer while it closes get an answer or an error, and never hang."""
    with running_daemon() as daemon:
        for _ in range(20):
            peer = jetbus.Peer(daemon.url)
            peer.connect()
            start = threading.Barrier(9)

            def use(peer: jetbus.Peer = peer, start: threading.Barrier = start) -> None:
                start.wait(DEADLINE_S)
                try:
                    while True:
                        peer.get_all()
                        peer.info()
                except jetbus.NotConnected:
                    pass

            with ThreadPoolExecutor(8) as threads:
                using = [threads.submit(use) for _ in range(8)]
                start.wait(DEADLINE_S)
                peer.close()
                for one in using:
                    one.result(DEADLINE_S)


def test_a_blocking_caller_has_one_request_in_flight(url: str) -> None:
    """While a thread waits for the response to its request it sends no other; the twins that do not wait send many."""
    with jetbus.Peer(url) as owner, jetbus.Peer(url) as client:
        in_flight: list[int] = []
        all_sent = threading.Event()
        owner.add_method("count", lambda _number: in_flight.append(client.open_request_count))
        owner.add_state("counted", 0, on_set=lambda _value: in_flight.append(client.open_request_count))
        owner.add_method("wait", lambda _number: all_sent.wait(DEADLINE_S))
        for number in range(5):
            client.call("count", number)
            client.set("counted", number)
        assert in_flight == [1] * 10
        futures = [client.call_async("wait", number) for number in range(5)]
        assert client.open_request_count == 5
        all_sent.set()
        assert [future.result(DEADLINE_S) for future in futures] == [True] * 5


def test_handlers_run_in_another_thread_than_the_caller(url: str) -> None:
    """Handlers and callbacks run in a thread of the peer, one at a time, while the caller goes on in its own."""
    with jetbus.Peer(url) as peer:
        threads: list[int] = []
        done = threading.Event()

        def note(_value: Any) -> None:
            threads.append(threading.get_ident())

        def finish(future: Any) -> None:
            note(future)
            done.set()

        peer.add_state("s", 0, on_set=note)
        peer.add_method("m", note)
        peer.fetch("s", note).ready(DEADLINE_S)
        peer.set("s", 1)
        peer.call("m", 2)
        peer.set_async("s", 3, on_result=finish)
        assert done.wait(DEADLINE_S)
        # One thread of the peer for all of them, and not this one.
        assert len(threads) >= 4
        assert len(set(threads)) == 1
        assert threading.get_ident() not in threads
