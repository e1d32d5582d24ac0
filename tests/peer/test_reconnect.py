"""Loss and return of the daemon: nothing is lost, and nothing is reported twice."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import jetbus
from jetbus.peer import connection
from jetbus.peer.connection import BACKOFF_MAX_S, BACKOFF_S, backoff_s
from jetbus.testing import RunningDaemon, running_daemon
from support.daemon import Daemon
from support.peers import Ended, PeerFactory, Twin, brief, raised, run, until


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Come back quickly, to keep the tests short."""
    monkeypatch.setattr(connection, "BACKOFF_S", 0.005)
    monkeypatch.setattr(connection, "BACKOFF_MAX_S", 0.02)


pytestmark = pytest.mark.usefixtures("quick")


async def restarted(daemon: RunningDaemon) -> None:
    await asyncio.to_thread(daemon.restart)


async def same(mirror: Twin, picture: dict[str, Any]) -> None:
    await until(lambda: dict(mirror.inner) == picture)


def test_everything_comes_back(bus: PeerFactory, daemon: RunningDaemon) -> None:
    """States with their newest values, methods, names, fetches and mirrors are there again after a restart."""

    async def case() -> None:
        returns: Counter[str] = Counter()

        def both_returned(times: int) -> Callable[[], bool]:
            return lambda: returns == {"owner": times, "client": times}

        async with (
            bus.peer(name="owner", on_return=lambda: returns.update(["owner"])) as owner,
            bus.peer(on_return=lambda: returns.update(["client"])) as client,
        ):
            state = await owner.add_state("pump/1", 1, on_set=lambda _value: None)
            await owner.add_method("pump/add", lambda a, b: a + b)
            gone = await owner.add_state("pump/2", 2)
            mirror = await client.mirror("pump/**")
            await mirror.ready()
            await gone.remove()
            for value in range(5):
                await state.change(value)
                await restarted(daemon)
                await until(both_returned(value + 1))
                await same(mirror, {"pump/1": value, "pump/add": None})
            # The owner is back when it has sent everything again, which another peer may be ahead of.
            await client.wait_for("pump/1")
            await client.wait_for("pump/add")
            await client.set("pump/1", 50)
            assert await client.call("pump/add", 1, 2) == 3
            assert mirror.inner["pump/1"] == 50
            names = [value["name"] for value in (await client.get_all(starts_with="$jet/peers/")).values()]
            assert "owner" in names

    run(case())


def test_fetch_tells_the_difference(bus: PeerFactory, daemon: RunningDaemon) -> None:
    """After a reconnect a fetch tells what changed, came and went meanwhile, and nothing else."""
    returned = threading.Event()
    lost = threading.Event()

    async def case() -> None:
        async with (
            bus.peer(on_loss=lost.set, on_return=returned.set) as owner,
            bus.peer() as client,
        ):
            states = [await owner.add_state(f"pump/{number}", number) for number in range(100)]
            fetch = await client.fetch(policy="every")
            await fetch.take(100)
            await asyncio.to_thread(daemon.stop)
            await until(lambda: not owner.connected and not client.connected)
            await states[1].change("changed")
            assert isinstance(await raised(states[2].remove()), jetbus.NotConnected)
            await states[3].change(3)
            await asyncio.to_thread(daemon.start)
            await until(lambda: owner.connected and client.connected)
            await owner.add_state("pump/new", "new")
            # The owner may come back before or after the client: then some states go and come once more.
            picture: dict[str, Any] = {f"pump/{number}": number for number in range(100)}
            wanted = picture | {"pump/1": "changed", "pump/new": "new"}
            del wanted["pump/2"]
            while picture != wanted:
                (event,) = await fetch.take(1)
                if event.kind == "remove":
                    del picture[event.path]
                else:
                    assert (event.path in picture) is (event.kind == "change")
                    picture[event.path] = event.value
            assert lost.is_set()
            await until(returned.is_set)

    run(case())


def test_no_second_flood(bus: PeerFactory) -> None:
    """A fetch reports nothing after a reconnect if nothing has changed."""

    async def case() -> None:
        lost = threading.Event()
        async with bus.peer() as owner, bus.peer(on_loss=lost.set) as client:
            states = {path: await owner.add_state(path, path) for path in ("a", "b", "c")}
            fetch = await client.fetch(policy="every")
            listing = await client.fetch(sort_by="path", policy="every")
            await fetch.take(3)
            await listing.take(1)
            drop(client)
            await until(lost.is_set)
            await states["b"].change("new b")
            await states["c"].remove()
            await owner.add_state("d", "d")
            await until(lambda: client.connected)
            assert sorted(brief(await fetch.take(3))) == [
                ("add", "d", "d"),
                ("change", "b", "new b"),
                ("remove", "c", "c"),
            ]
            await until(lambda: [item.path for item in listing.items] == ["a", "b", "d"])
            await states["a"].change("last")
            assert brief(await fetch.take(1)) == [("change", "a", "last")]

    run(case())


def drop(peer: Twin) -> None:
    """Break the connection of a peer under its feet."""
    peer.inner.abort()


def test_requests_when_the_connection_breaks(bus: PeerFactory, daemon: RunningDaemon) -> None:
    """A request in flight fails with ConnectionLost, one without a connection with NotConnected and its next step."""
    asked = threading.Event()
    go = threading.Event()

    async def wait() -> None:
        asked.set()
        await asyncio.to_thread(go.wait)

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_method("wait", wait)
            calls = [asyncio.ensure_future(client.call("wait")) for _ in range(3)]
            await until(lambda: client.open_request_count == 3 and asked.is_set())
            await asyncio.to_thread(daemon.stop)
            for call in calls:
                assert type(await raised(call)) is jetbus.ConnectionLost
            await until(lambda: not client.connected)
            for asking in (
                client.set("wait", 1),
                client.get_all(),
                client.info(),
                client.fetch(),
                client.add_state("x"),
            ):
                problem = await raised(asking)
                assert type(problem) is jetbus.NotConnected
                assert "connect()" in str(problem)
            assert client.open_request_count == 0
            go.set()
            await asyncio.to_thread(daemon.start)
            await until(lambda: client.connected)
            await client.wait_for("wait", timeout_s=20)
            assert await client.call("wait") is None

    run(case())


def test_without_reconnect(bus: PeerFactory, daemon: RunningDaemon) -> None:
    """Without reconnect a loss ends all fetches with an error, and nothing is tried."""
    lost = threading.Event()

    async def case() -> None:
        async with bus.peer(reconnect=False, on_loss=lost.set) as client:
            await client.add_state("a", 1)
            fetch = await client.fetch()
            waiting = asyncio.ensure_future(client.wait_for("never"))
            await fetch.take(1)
            await restarted(daemon)
            assert isinstance(await raised(fetch.take(1)), jetbus.NotConnected)
            assert isinstance(await raised(waiting), jetbus.NotConnected)
            await until(lost.is_set)
            assert not client.connected
            await client.connect()
            assert await client.get_all() == {"a": 1}

    run(case())


def test_connect_while_coming_back(bus: PeerFactory, daemon: RunningDaemon) -> None:
    """Connecting by hand while the peer is coming back by itself ends in one connection."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as watcher:
            await owner.add_state("a", 1)
            await asyncio.to_thread(daemon.stop)
            await until(lambda: not owner.connected and not watcher.connected)
            await raised(owner.connect())
            await asyncio.to_thread(daemon.start)
            await asyncio.gather(*(owner.connect() for _ in range(5)), return_exceptions=True)
            await until(lambda: owner.connected and watcher.connected)
            await watcher.wait_for("a", timeout_s=20)
            assert len(await watcher.get_all(starts_with="$jet/peers/")) == 2

    run(case())


def test_close_while_coming_back(bus: PeerFactory) -> None:
    """A peer can be closed at any moment of coming back, and is closed then."""

    async def case() -> None:
        own = asyncio.all_tasks()
        for turn in range(20):
            lost = threading.Event()
            async with bus.peer(on_loss=lost.set) as peer:
                await peer.fetch()
                drop(peer)
                await until(lost.is_set)
                await asyncio.sleep(turn / 2000)  # any moment will do
            assert not peer.connected
        assert asyncio.all_tasks() == own

    run(case())


def test_login_comes_back(face: str, tmp_path: Any) -> None:
    """A peer that was logged in logs in again."""
    users = tmp_path / "users.json"
    groups = {"fetchGroups": ["g"], "setGroups": ["g"], "callGroups": ["g"]}
    users.write_text(json.dumps({"users": {"ann": {"password": "secret", "auth": groups}}}))

    async def case() -> None:
        with running_daemon(users=users) as daemon:
            bus = PeerFactory(daemon.url, face)
            async with bus.peer(user="ann", password="secret") as owner, bus.peer() as client:
                await client.authenticate("ann", "secret")
                state = await owner.add_state("a", 1, access=groups)
                mirror = await client.mirror()
                await same(mirror, {"a": 1})
                await asyncio.to_thread(daemon.stop)
                await until(lambda: not owner.connected)
                await state.change(2)
                await asyncio.to_thread(daemon.start)
                await same(mirror, {"a": 2})

    run(case())


def test_clash_is_tried_again(bus: PeerFactory, daemon: RunningDaemon) -> None:
    """A path that is still occupied after a reconnect is tried again until it is free."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state("pump/1", 1)
            await asyncio.to_thread(daemon.stop)
            await until(lambda: not owner.connected)
            await asyncio.to_thread(daemon.start)
            # Whoever is first takes the path; the client tries until it has been the first once.
            taken = None
            while taken is None:
                await until(lambda: client.connected)
                try:
                    taken = await client.add_state("pump/1", "taken")
                except jetbus.Occupied:
                    await asyncio.to_thread(daemon.stop)
                    await until(lambda: not owner.connected and not client.connected)
                    await asyncio.to_thread(daemon.start)
            await until(lambda: owner.connected)
            await state.change(2)
            mirror = await client.mirror()
            await same(mirror, {"pump/1": "taken"})
            await taken.remove()
            await same(mirror, {"pump/1": 2})
            await state.change(3)
            await same(mirror, {"pump/1": 3})

    run(case())


def kill(daemon: Daemon) -> None:
    """End a daemon without any farewell."""
    daemon.process.kill()
    daemon.process.wait()
    assert daemon.process.stdout is not None
    daemon.process.stdout.close()
    daemon.close_log()


def test_killed_in_mid_stream(face: str) -> None:
    """A daemon killed again and again while states change ends with every mirror equal to the bus."""
    daemon = Daemon.start()
    listens = daemon.listens
    chance = random.Random(7)

    async def restart(daemon: Daemon) -> Daemon:
        await asyncio.to_thread(kill, daemon)
        options = ("--tcp", listens["tcp"], "--ws", listens["ws"], "--unix", "off")
        return await asyncio.to_thread(lambda: Daemon.start(*options))

    async def case() -> None:
        nonlocal daemon
        bus = PeerFactory(f"jet://{listens['tcp']}", face)
        ws = PeerFactory(f"ws://{listens['ws']}", face)
        async with bus.peer() as owner, ws.peer() as other, bus.peer() as client, ws.peer() as watcher:
            states = [await owner.add_state(f"pump/{number}", 0, on_set=lambda _value: None) for number in range(20)]
            states += [await other.add_state(f"tank/{number}", 0) for number in range(20)]
            mirrors = [await client.mirror(), await watcher.mirror("pump/*"), await owner.mirror("** value>50")]
            fetch = await watcher.fetch("tank/**", policy="every")
            picture: dict[str, Any] = {}
            going = True

            async def stream() -> None:
                while going:
                    await chance.choice(states).change(chance.randrange(100))
                    await asyncio.sleep(0)

            async def follow() -> None:
                while True:
                    (event,) = await fetch.take(1)
                    if event.kind == "remove":
                        del picture[event.path]
                    else:
                        assert (event.path in picture) is (event.kind == "change"), event
                        picture[event.path] = event.value

            streaming, following = asyncio.ensure_future(stream()), asyncio.ensure_future(follow())
            for _ in range(3):
                daemon = await restart(daemon)
                await until(lambda: all(peer.connected for peer in (owner, other, client, watcher)))
            going = False
            await streaming
            values = {state.path: state.value for state in states}
            await same(mirrors[0], values)
            await same(mirrors[1], {path: value for path, value in values.items() if path.startswith("pump/")})
            await same(mirrors[2], {path: value for path, value in values.items() if value > 50})
            tank = {path: value for path, value in values.items() if path.startswith("tank/")}
            await until(lambda: picture == tank or following.done())
            assert await client.get_all() == values
            await fetch.close()
            assert isinstance(await raised(following), Ended)
            assert picture == tank

    try:
        run(case())
    finally:
        kill(daemon)


@pytest.mark.parametrize("attempt", [0, 1, 5, 20, 2000])
def test_backoff_is_full_jitter(attempt: int) -> None:
    """Before each attempt a peer waits for anything between nothing and a limit that doubles up to the highest."""
    limit_s = min(BACKOFF_MAX_S, BACKOFF_S * 2.0 ** min(attempt, 30))
    chance = iter((0.0, 0.5, 1.0)).__next__
    waits = [backoff_s(attempt, chance) for _ in range(3)]
    assert waits[0] == 0
    assert waits[1] == pytest.approx(waits[2] / 2)
    assert 0 < waits[2] <= limit_s
