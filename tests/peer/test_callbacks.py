"""Requests with a result callback: of PeerAsync on a loop that the caller names, of Peer beside the blocking ones."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import jetbus
from jetbus import SetResult
from jetbus.peer.subscription import Subscription
from jetbus.rules import rule
from jetbus.testing import RunningDaemon, running_daemon
from support.listener import listening
from support.peers import DEADLINE_S, run, until

USERS = {
    "users": {"ann": {"password": "secret", "auth": {"fetchGroups": ["staff"], "setGroups": [], "callGroups": []}}}
}


@pytest.fixture(params=["JSON", "binary"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The url of a daemon with a user, in each protocol."""
    users = tmp_path / "users.json"
    users.write_text(json.dumps(USERS))
    with running_daemon(users=users, journal=tmp_path / "journal", journal_groups=("staff",)) as daemon:
        yield daemon.url if request.param == "JSON" else daemon.binary_url


class Results:
    """A callback that notes the futures it is called with, and in which thread."""

    def __init__(self) -> None:
        self._done: SimpleQueue[Any] = SimpleQueue()
        self.count = 0
        self.thread: threading.Thread | None = None

    def __call__(self, done: Any) -> None:
        assert done.done()
        self.count += 1
        self.thread = threading.current_thread()
        self._done.put(done)

    def next(self) -> Any:
        """The next future, for a thread that may wait."""
        return self._done.get(timeout=DEADLINE_S)

    async def next_async(self) -> Any:
        """The next future, for the event loop."""
        return await asyncio.wait_for(asyncio.to_thread(self.next), DEADLINE_S)


REQUESTS: dict[str, tuple[Callable[..., Any], Callable[[Any], bool]]] = {
    "add_state": (lambda call: call("new/state", 1), lambda state: state.path == "new/state" and state.added),
    "add_method": (lambda call: call("new/method", abs), lambda method: method.path == "new/method" and method.added),
    "set": (lambda call: call("pump/speed", 7, value_as_result=True), lambda result: result == SetResult(7)),
    "call": (lambda call: call("pump/add", 1, 2), lambda result: result == 3),
    "get": (lambda call: call("pump/speed"), lambda value: isinstance(value, int)),
    "get_all": (lambda call: call("pump/speed"), lambda found: found.keys() == {"pump/speed"}),
    "history": (lambda call: call("pump/speed"), lambda table: table["num"].to_pylist()[0] == 0),
    "frame": (lambda call: call("pump/speed"), lambda frame: list(frame.columns) == ["pump/speed"]),
    "tree": (lambda call: call(text="pump/speed"), lambda table: table["path"].to_pylist() == ["pump/speed"]),
    "fetch": (lambda call: call("pump/speed"), lambda fetch: isinstance(fetch, jetbus.Fetch | jetbus.FetchAsync)),
    "start_fetch": (
        lambda call: call(Subscription("mine", rule("pump/speed"))),
        lambda fetch: isinstance(fetch, jetbus.Fetch | jetbus.FetchAsync),
    ),
    "mirror": (lambda call: call("pump/speed"), lambda mirror: isinstance(mirror, jetbus.Mirror | jetbus.MirrorAsync)),
    "wait_for": (lambda call: call("pump/speed value>-1"), lambda event: event.path == "pump/speed"),
    "info": (lambda call: call(), lambda info: info["name"] == "jetbus"),
    "config": (lambda call: call(name="pump"), lambda result: result is None),
    "authenticate": (lambda call: call("ann", "secret"), lambda groups: groups is not None),
}
"""Every request of a connected peer, and what its result is like; those that connect and close stand for themselves."""
CONNECTION = {"connect", "close"}
DECORATORS = {"state", "method"}
ORDER = sorted(REQUESTS, key=lambda name: name != "authenticate")
"""Authenticate comes before the first fetch."""


def add_pump(owner: jetbus.Peer) -> None:
    owner.add_state("pump/speed", 0, on_set=lambda _value: None)
    owner.add_method("pump/add", lambda a, b: a + b)


def taking(kind: type, option: str) -> set[str]:
    """The public methods of a class that take an option."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return {name for name, method in methods if name[0] != "_" and option in inspect.signature(method).parameters}


def test_every_request_takes_a_result_callback(url: str) -> None:
    """Every request of PeerAsync, not awaited, calls back once, on the loop, with the future of its result."""
    assert taking(jetbus.PeerAsync, "on_result") == {*REQUESTS, *CONNECTION, *DECORATORS}

    async def case() -> None:
        peer = jetbus.PeerAsync(url)
        connected = Results()
        peer.connect(on_result=connected)
        assert (await connected.next_async()).result() is None
        for name in ORDER:
            results = Results()
            ask, expected = REQUESTS[name]
            ask(functools.partial(getattr(peer, name), on_result=results))
            done = await results.next_async()
            assert expected(done.result()), name
            assert (results.count, results.thread) == (1, threading.main_thread()), name
        closed = Results()
        peer.close(on_result=closed)
        assert (await closed.next_async()).result() is None
        assert not peer.connected

    with jetbus.Peer(url) as owner:
        add_pump(owner)
        run(case())


def test_a_request_with_a_callback_can_be_awaited_too(url: str) -> None:
    """A request with a callback can also be awaited, with the same result."""

    async def case() -> None:
        async with jetbus.PeerAsync(url) as peer:
            results = Results()
            state = await peer.add_state("a", 1, on_set=lambda _value: None, on_result=results)
            assert (await results.next_async()).result() is state
            assert await peer.set("a", 2, on_result=results) == SetResult(2)
            assert (await results.next_async()).result() == SetResult(2)
            assert await peer.get_all("a", on_result=results) == (await results.next_async()).result() == {"a": 2}

    run(case())


def test_elements_and_fetches_call_back(url: str) -> None:
    """Removing and adding again what one owns, and ending a fetch or mirror, take a callback as well."""

    async def case() -> None:
        async with jetbus.PeerAsync(url) as peer:
            results = Results()
            state = await peer.add_state("a", 1)
            for work in (state.remove, state.add):
                work(on_result=results)
                assert (await results.next_async()).result() is None
            for ended in (peer.fetch("a"), peer.mirror("a")):
                ended.close(on_result=results)
                assert (await results.next_async()).exception() is None
            ended.close(on_result=results)
            assert (await results.next_async()).exception() is None  # it had ended before
            for decorate, path in ((peer.state, "b"), (peer.method, "c")):
                face = decorate(path, on_result=results)(lambda *_args: None)
                assert (await results.next_async()).result() is face
            assert results.count == 7

    run(case())


def test_many_requests_are_under_way(url: str) -> None:
    """Requests with a callback run in parallel, and each is told its own result."""

    async def case() -> None:
        begun: list[int] = []
        received: dict[int, int] = {}
        all_begun = asyncio.Event()

        async def slow(value: int) -> int:
            begun.append(value)
            await all_begun.wait()
            return value

        def note(number: int, done: asyncio.Future[Any]) -> None:
            received[number] = done.result()

        async with jetbus.PeerAsync(url) as owner, jetbus.PeerAsync(url) as peer:
            await owner.add_method("slow", slow)
            for number in range(50):
                peer.call("slow", number, on_result=functools.partial(note, number))
            await until(lambda: len(begun) == 50)
            assert peer.open_request_count == 50
            all_begun.set()
            await until(lambda: len(received) == 50)
            assert received == {number: number for number in range(50)}

    run(case())


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], type[jetbus.JetError]]] = {
    "set": (lambda peer, seen: peer.set("nothing", 1, on_result=seen), jetbus.NotFound),
    "call": (lambda peer, seen: peer.call("nothing", on_result=seen), jetbus.NotFound),
    "add_state": (lambda peer, seen: peer.add_state("taken", 1, on_result=seen), jetbus.Occupied),
    "wait_for": (lambda peer, seen: peer.wait_for("nothing", timeout_s=0.01, on_result=seen), jetbus.TimedOut),
    "fetch": (lambda peer, seen: peer.fetch("taken", since=1, on_result=seen), jetbus.JetError),
    "authenticate": (lambda peer, seen: peer.authenticate("bob", "?", on_result=seen), jetbus.LoginRefused),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_reach_the_callback(url: str, name: str) -> None:
    """Refusals of the bus are in the future that the callback gets."""
    ask, kind = REFUSED[name]

    async def case() -> None:
        async with jetbus.PeerAsync(url) as owner, jetbus.PeerAsync(url) as peer:
            await owner.add_state("taken", 1)
            results = Results()
            ask(peer, results)
            assert isinstance((await results.next_async()).exception(), kind)

    run(case())


@pytest.mark.parametrize("name", list(REQUESTS))
def test_without_a_connection(name: str) -> None:
    """Without a connection the callback is told so, whichever request it is of."""
    ask, _ = REQUESTS[name]

    async def case() -> None:
        peer = jetbus.PeerAsync("jet://127.0.0.1:1", loop=asyncio.get_running_loop())
        results = Results()
        ask(functools.partial(getattr(peer, name), on_result=results))
        assert type((await results.next_async()).exception()) is jetbus.NotConnected
        peer.connect(on_result=results)
        assert type((await results.next_async()).exception()) is jetbus.NotConnected

    run(case())


def test_a_lost_connection_reaches_callbacks() -> None:
    """If the connection breaks or the peer closes, open requests call back with that error."""

    async def case() -> None:
        async with listening(silent={"set", "get", "fetch"}) as listener:
            peer = jetbus.PeerAsync(listener.url, reconnect=False)
            await peer.connect()
            results = Results()
            peer.set("a", 1, on_result=results)
            peer.get_all("a", on_result=results)
            await until(lambda: {"set", "get"} <= {message["method"] for message in listener.heard})
            listener.close()
            for _ in range(2):
                assert isinstance((await results.next_async()).exception(), jetbus.ConnectionLost)
            await peer.connect()
            peer.set("a", 1, on_result=results)
            peer.get_all("a", on_result=results)
            peer.fetch("a", on_result=results)
            peer.wait_for("a", on_result=results)
            await asyncio.sleep(0)  # those of several steps begin
            await peer.close()
            for _ in range(4):
                assert isinstance((await results.next_async()).exception(), jetbus.NotConnected)
            assert results.count == 6

    run(case())


def test_a_failing_callback_is_logged(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises is logged and hurts nobody else."""

    async def case() -> None:
        async with jetbus.PeerAsync(url) as peer:
            await peer.set("nothing", 1, on_result=lambda done: done.result())

    with caplog.at_level(logging.ERROR, "jetbus.peer"), pytest.raises(jetbus.NotFound):
        run(case())
    assert [record.message for record in caplog.records] == ["a callback failed"]


def test_a_callback_needs_a_loop(url: str) -> None:
    """A request with a callback begins at once, so that there must be a loop: the running one or a named one."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        jetbus.PeerAsync(url).connect(on_result=Results())


# -- a loop that the caller names


def test_a_peer_runs_on_a_loop_that_the_caller_names(url: str) -> None:
    """A peer is built on a loop that does not run yet; what it sends and receives happens there."""
    loop = asyncio.new_event_loop()
    seen: list[tuple[str, Any]] = []

    def note(name: str) -> Callable[[Any], None]:
        def callback(received: Any) -> None:
            assert asyncio.get_running_loop() is loop
            seen.append((name, received.result() if isinstance(received, asyncio.Future) else received.value))
            if len(seen) == 4:
                loop.stop()

        return callback

    try:
        peer = jetbus.PeerAsync(url, loop=loop)
        other = jetbus.PeerAsync(url, loop=loop)
        peer.connect(on_result=note("connected"))
        assert seen == []
        loop.run_until_complete(other.connect())
        state = loop.run_until_complete(other.add_state("a", 1, on_set=lambda _value: None))
        assert seen == [("connected", None)]
        peer.fetch("a", note("event"))
        peer.set("a", 2, on_result=note("set"))
        loop.run_forever()  # until the callbacks stop it
        assert seen == [("connected", None), ("event", 1), ("event", 2), ("set", SetResult(2))]
        assert state.value == 2
        loop.run_until_complete(peer.close())
        loop.run_until_complete(other.close())
    finally:
        loop.close()


def test_a_named_loop_in_another_thread(url: str) -> None:
    """A loop that runs in a thread of the caller's takes a peer like any other work."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        peer = jetbus.PeerAsync(url, loop=loop)
        results = Results()
        loop.call_soon_threadsafe(lambda: peer.connect(on_result=results))
        assert results.next().result() is None
        loop.call_soon_threadsafe(lambda: peer.info(on_result=results))
        assert results.next().result()["name"] == "jetbus"
        assert results.thread is thread
        loop.call_soon_threadsafe(lambda: peer.close(on_result=results))
        assert results.next().result() is None
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_a_named_loop_is_the_only_one(url: str) -> None:
    """A peer that was given a loop does not connect on another one."""
    loop = asyncio.new_event_loop()
    try:
        with pytest.raises(RuntimeError, match="was given another event loop"):
            run(jetbus.PeerAsync(url, loop=loop).connect())  # type: ignore[arg-type]
    finally:
        loop.close()


# -- the blocking peer


def test_the_blocking_peer_offers_async_methods(url: str) -> None:
    """Every request of PeerAsync is there in Peer twice: one blocks, the other gives a future or takes a callback."""
    names = {*REQUESTS, *CONNECTION}
    assert taking(jetbus.Peer, "on_result") == {f"{name}_async" for name in names}
    assert all(callable(getattr(jetbus.Peer, name)) for name in names)
    with jetbus.Peer(url) as owner:
        add_pump(owner)
        peer = jetbus.Peer(url)
        assert peer.connect_async().result(DEADLINE_S) is None
        for name in ORDER:
            results = Results()
            ask, expected = REQUESTS[name]
            future = ask(functools.partial(getattr(peer, f"{name}_async"), on_result=results))
            assert isinstance(future, Future), name
            assert expected(future.result(DEADLINE_S)), name
            assert results.next() is future, name
            assert (results.count, results.thread is threading.current_thread()) == (1, False), name
        assert peer.close_async().result(DEADLINE_S) is None
        assert not peer.connected


def test_blocking_elements_and_fetches(url: str) -> None:
    """Elements and fetches of Peer can be added, removed and ended without waiting, too."""
    assert taking(jetbus.State, "on_result") == taking(jetbus.Method, "on_result") == {"add_async", "remove_async"}
    assert taking(jetbus.Fetch, "on_result") == taking(jetbus.Mirror, "on_result") == {"close_async"}
    with jetbus.Peer(url) as peer:
        results = Results()
        state = peer.add_state_async("a", 1).result(DEADLINE_S)
        assert state.remove_async(on_result=results).result(DEADLINE_S) is None
        assert (results.next().result(), state.added) == (None, False)
        assert state.add_async(on_result=results).result(DEADLINE_S) is None
        assert (results.next().result(), state.added) == (None, True)
        fetch = peer.fetch_async("a").result(DEADLINE_S)
        assert fetch.next(DEADLINE_S).value == 1
        mirror = peer.mirror_async("a").result(DEADLINE_S)
        assert dict(mirror.ready(DEADLINE_S)) == {"a": 1}
        for ended in (fetch, mirror, mirror):
            assert ended.close_async(on_result=results).result(DEADLINE_S) is None
            assert results.next().exception() is None


def test_blocking_requests_in_flight(url: str) -> None:
    """One thread has many requests under way, and what was sent first is done first."""
    with jetbus.Peer(url) as owner, jetbus.Peer(url) as peer:
        seen: list[int] = []
        owner.add_state("a", 0, on_set=seen.append)
        futures = [peer.set_async("a", number) for number in range(200)]
        peer.set("a", 200)
        assert [future.result(DEADLINE_S) for future in futures] == [SetResult(number) for number in range(200)]
        assert seen == list(range(201))


def test_a_callback_may_use_the_peer(url: str) -> None:
    """A callback of Peer runs in the thread for callbacks, where it may make calls that block."""
    with jetbus.Peer(url) as owner, jetbus.Peer(url) as peer:
        add_pump(owner)
        received: SimpleQueue[Any] = SimpleQueue()
        peer.set_async("pump/speed", 7, on_result=lambda _done: received.put(peer.get_all("pump/speed")))
        assert received.get(timeout=DEADLINE_S) == {"pump/speed": 7}


def test_blocking_refusals_are_in_the_future(url: str) -> None:
    """Refusals of the bus are in the future; a wrong use of Python is raised at once."""
    with jetbus.Peer(url) as owner, jetbus.Peer(url) as peer:
        add_pump(owner)
        assert isinstance(peer.set_async("nothing", 1).exception(DEADLINE_S), jetbus.NotFound)
        assert isinstance(peer.add_state_async("pump/speed", 1).exception(DEADLINE_S), jetbus.Occupied)
        assert isinstance(peer.wait_for_async("x", timeout_s=0.01).exception(DEADLINE_S), jetbus.TimedOut)
        assert isinstance(peer.fetch_async("a", since=1).exception(DEADLINE_S), jetbus.JetError)
        with pytest.raises(TypeError, match="positional or keyword"):
            peer.call_async("pump/add", 1, b=2)
        with pytest.raises(TypeError, match="cannot encode a value of type object"):
            peer.set_async("pump/speed", object())
        with pytest.raises(jetbus.InvalidRule):
            peer.get_all_async("a", contains=7)


@pytest.mark.parametrize("name", [*REQUESTS, "connect"])
def test_blocking_without_a_connection(name: str) -> None:
    """Without a connection every future of Peer says so, and so does its callback."""
    peer = jetbus.Peer("jet://127.0.0.1:1")
    ask: Callable[..., Any] = REQUESTS[name][0] if name in REQUESTS else lambda call: call()
    results = Results()
    future = ask(functools.partial(getattr(peer, f"{name}_async"), on_result=results))
    assert type(future.exception(DEADLINE_S)) is jetbus.NotConnected
    assert results.next() is future
    peer.close()


def test_closing_ends_every_future() -> None:
    """Every open request of a Peer that is closed ends, and calls back once."""

    async def case() -> None:
        async with listening(silent={"set", "get", "fetch", "add"}) as listener:
            peer = jetbus.Peer(listener.url)
            await asyncio.to_thread(peer.connect)
            results = Results()
            futures: list[Future[Any]] = [
                peer.set_async("a", 1, on_result=results),
                peer.get_all_async("a", on_result=results),
                peer.fetch_async("a", on_result=results),
                peer.add_state_async("a", 1, on_result=results),
                peer.wait_for_async("a", on_result=results),
            ]
            closed = peer.close_async()
            await asyncio.to_thread(closed.result, DEADLINE_S)
            for future in futures:
                assert isinstance(future.exception(0), jetbus.NotConnected)
            for _ in futures:
                await results.next_async()
            assert results.count == len(futures)

    run(case())


def test_a_cancelled_future(url: str) -> None:
    """A future that is cancelled is given up: nobody waits for its request any more, and the peer goes on."""
    release = threading.Event()
    with jetbus.Peer(url) as owner, jetbus.Peer(url) as peer:
        owner.add_method("slow", lambda: release.wait(DEADLINE_S))
        results = Results()
        called = peer.call_async("slow", on_result=results)
        assert peer.open_request_count == 1
        assert called.cancel()
        assert peer.open_request_count == 0
        waiting = peer.wait_for_async("nothing", on_result=results)
        assert waiting.cancel()
        for _ in range(2):
            assert results.next().cancelled()
        release.set()
        assert peer.info_async().result(DEADLINE_S)["name"] == "jetbus"


def test_requests_in_a_batch() -> None:
    """Requests that do not wait go into a batch with the changes; those that block are refused there."""

    async def case() -> None:
        async with listening() as listener:
            peer = jetbus.Peer(listener.url)
            await asyncio.to_thread(peer.connect)
            state = await asyncio.to_thread(peer.add_state, "a", 1)

            def work() -> None:
                with peer.batch():
                    state.change(2)
                    future = peer.set_async("b", 3)
                    with pytest.raises(RuntimeError, match="nothing inside can wait"):
                        peer.set("b", 4)
                assert future.result(DEADLINE_S) == SetResult(3)

            await asyncio.to_thread(work)
            batch = next(message for message in listener.heard if isinstance(message, list))
            assert [message["method"] for message in batch] == ["change", "set"]
            await asyncio.to_thread(peer.close)

    run(case())


def test_a_restart_resumes_a_fetch_with_a_callback(daemon: RunningDaemon) -> None:
    """The callback of a fetch is called once, not again when the fetch continues on a new connection."""
    results = Results()
    back = threading.Event()
    with jetbus.Peer(daemon.url, on_return=back.set) as peer:
        fetch = peer.fetch_async("a", on_result=results).result(DEADLINE_S)
        daemon.restart()
        assert back.wait(DEADLINE_S)
        peer.add_state("a", 1)
        assert fetch.next(DEADLINE_S).value == 1
        assert results.count == 1
