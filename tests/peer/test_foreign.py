"""Both peers on the daemons of node-jet, and stand-ins for cjet and lua-jet: they know fewer words, some wrongly."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import jetbus
from jetbus import SetResult
from jetbus.peer.simple import SimplePeer
from jetbus.testing import RunningDaemon
from support.foreign import KINDS, NAMES, ForeignDaemon
from support.node import Node, Version
from support.peers import PeerFactory, brief, raised, run, until
from support.standin import ROUTES_MAX, at_websocket_path, standing_in

pytestmark = pytest.mark.interop

STAND_INS = ["cjet", "lua"]
_numbers = count(1)


@pytest.fixture(scope="module", params=[*KINDS, *STAND_INS], ids=[*NAMES, *STAND_INS])
def foreign(request: pytest.FixtureRequest) -> Iterator[str]:
    """The url of a node-jet daemon or of a stand-in; shared: each test has its own prefix."""
    if request.param in STAND_INS:
        with standing_in(request.param) as url:
            yield url
        return
    with ForeignDaemon(*request.param) as daemon:
        yield daemon.url


@pytest.fixture
def bus(foreign: str, face: str) -> PeerFactory:
    return PeerFactory(foreign, face)


@pytest.fixture
def at() -> str:
    """A prefix of this test's own."""
    return f"test{next(_numbers)}"


def test_owner_and_client(bus: PeerFactory, at: str) -> None:
    """Add, change, get, set, call and remove work on every daemon."""

    async def case() -> None:
        async with bus.peer(name="owner") as owner, bus.peer() as client:
            info = await client.info()
            assert info.get("name") in ("node-jet", "cjet", None)
            state = await owner.add_state(f"{at}/speed", 1, on_set=lambda value: min(value, 10))
            await owner.add_method(f"{at}/add", lambda a, b: a + b)
            assert await client.get_all(starts_with=at) == {f"{at}/speed": 1}
            assert await client.set(f"{at}/speed", 7) == SetResult(7)
            assert await client.set(f"{at}/speed", 70) == SetResult(10 if info else None, 1)  # lua-jet has no get
            assert state.value == 10
            assert await client.get_all(f"{at}/speed") == {f"{at}/speed": 10}
            assert await client.call(f"{at}/add", 1, 2) == 3
            assert await client.call(f"{at}/add", a=3, b=4) == 7
            await state.remove()
            assert await client.get_all(starts_with=at) == {}

    run(case())


def test_errors(bus: PeerFactory, at: str) -> None:
    """Errors in the words of other daemons are the same classes, and an owner's own words arrive."""

    def refuse(_value: Any) -> None:
        raise jetbus.Refused("too hot", {"limit": 80}, code=-7)

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state(f"{at}/speed", 1, on_set=refuse)
            await owner.add_state(f"{at}/read-only", 1)
            assert isinstance(await raised(client.set(f"{at}/nothing", 1)), jetbus.NotFound)
            assert isinstance(await raised(client.add_state(f"{at}/speed", 1)), jetbus.Occupied)
            assert isinstance(await raised(client.set(f"{at}/read-only", 1)), jetbus.ReadOnly)
            refused = await raised(client.set(f"{at}/speed", 1))
            assert isinstance(refused, jetbus.Refused)
            assert (refused.own_code, refused.message, refused.data) == (-7, "too hot", {"limit": 80})

    run(case())


def test_value_as_result(bus: PeerFactory, at: str) -> None:
    """The value that a state took is the result where the daemon asks the owner for it; where it does not, none is."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state(f"{at}/speed", 1, on_set=lambda value: min(value, 10))
            is_cjet = (await client.info()).get("name") == "cjet"
            taken = await client.set(f"{at}/speed", 7, value_as_result=True)
            assert taken == SetResult(7)
            adapted = await client.set(f"{at}/speed", 70, value_as_result=True)
            assert adapted == (SetResult(10, 1) if is_cjet else SetResult(10))

    run(case())


def test_a_state_is_not_called(bus: PeerFactory, at: str) -> None:
    """The call of a state is refused by the daemon or by the owner, and sets nothing."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            state = await owner.add_state(f"{at}/speed", 1, on_set=lambda _value: None)
            for args in ([3], []):
                problem = await raised(client.call(f"{at}/speed", *args))
                assert isinstance(problem, jetbus.NotMethod)
                assert str(problem) == f"{at}/speed is a state; set or fetch it"
            assert state.value == 1

    run(case())


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_a_name_on_node_jet_3_with_batches(transport: str, face: str) -> None:
    """A peer with a name connects to node-jet 3 with batches, which holds back the error for a service it lacks."""

    async def case(bus: PeerFactory) -> None:
        async with bus.peer(name="pump") as peer:
            await peer.add_state("pump/speed", 1, on_set=lambda _value: None)
            assert (await peer.set("pump/speed", 2)).value == 2
            assert await peer.get("pump/speed") == 2

    with ForeignDaemon(3, transport, batches=True) as daemon:
        run(case(PeerFactory(daemon.url, face)))
        with SimplePeer(daemon.url) as asking:
            assert asking.daemon["name"] == "node-jet"


def test_the_routes_of_cjet_are_full(face: str) -> None:
    """If too many requests wait for an owner on cjet, the error says so and what to do."""

    async def case(url: str) -> None:
        release = asyncio.Event()
        async with (
            jetbus.PeerAsync(url) as owner,
            PeerFactory(url, face).peer() as client,
            jetbus.PeerAsync(url) as others,
        ):
            await owner.add_method("slow", release.wait)
            await owner.add_state("speed", 1, on_set=lambda _value: None)
            waiting = [others.call("slow") for _ in range(ROUTES_MAX)]
            await others.info()  # behind all of them
            problem = await raised(client.set("speed", 2))
            assert isinstance(problem, jetbus.LimitReached)
            assert str(problem) == (
                "too many requests are waiting for that owner (routing table full); try again later"
            )
            release.set()
            await asyncio.gather(*waiting)
            await client.set("speed", 2)

    with standing_in("cjet") as url:
        run(case(url))


def test_the_websocket_path_of_cjet(face: str) -> None:
    """A WebSocket URL without a path reaches cjet, which serves one path only; another path is taken as it is."""

    async def case(url: str) -> None:
        async with PeerFactory(url, face).peer() as peer:
            assert (await peer.info())["name"] == "cjet"
            await peer.add_state("s", 1)
            assert await peer.get_all("s") == {"s": 1}
        problem = await raised(PeerFactory(f"{url}/other", face).make().connect())
        assert isinstance(problem, jetbus.NotConnected)
        assert "the WebSocket handshake was refused" in str(problem)

    with standing_in("cjet") as url, at_websocket_path(url, "/api/jet/") as ws_url:
        run(case(ws_url))
    with standing_in("cjet") as url, at_websocket_path(url, "/nowhere") as ws_url:
        refused = _connect(ws_url, face)
        assert isinstance(refused, jetbus.NotConnected)
        assert "the WebSocket handshake was refused" in str(refused)


def _connect(url: str, face: str) -> Exception:
    async def case() -> None:
        found.append(await raised(PeerFactory(url, face).make().connect()))

    found: list[Exception] = []
    run(case())
    return found[0]


def test_fetch(bus: PeerFactory, at: str) -> None:
    """A fetch tells what is there and what happens, with the value that a removed state had last."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client, bus.peer() as other:
            state = await owner.add_state(f"{at}/1", 1)
            fetches = [await peer.fetch(f"{at}/**", policy="every") for peer in (client, other)]
            for fetch in fetches:
                assert brief(await fetch.take(1)) == [("add", f"{at}/1", 1)]
            await state.change(2)
            await owner.add_state(f"{at}/2", {"a": None})
            await state.remove()
            for fetch in fetches:
                events = await fetch.take(3)
                assert brief(events) == [
                    ("change", f"{at}/1", 2),
                    ("add", f"{at}/2", {"a": None}),
                    ("remove", f"{at}/1", 2),
                ]
                assert not any(event.is_method for event in events)
                await fetch.close()

    run(case())


def test_value_rule(bus: PeerFactory, at: str) -> None:
    """A value rule holds, even where the daemon filters wrongly or knows none."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            low = await owner.add_state(f"{at}/low", 5)
            high = await owner.add_state(f"{at}/high", 50)
            fetch = await client.fetch(f"{at}/** value<10", policy="every")
            assert brief(await fetch.take(1)) == [("add", f"{at}/low", 5)]
            for state, value in ((low, 6), (low, 60), (low, 61), (high, 7), (low, 8)):
                await state.change(value)
            assert brief(await fetch.take(4)) == [
                ("change", f"{at}/low", 6),
                ("remove", f"{at}/low", 60),
                ("add", f"{at}/high", 7),
                ("add", f"{at}/low", 8),
            ]
            assert await client.get_all(f"{at}/** value<8") == {f"{at}/high": 7}

    run(case())


RULES: dict[str, dict[str, Any]] = {
    "contains_not": {"contains_not": "/b"},
    "ends_not_with": {"ends_not_with": "b"},
    "equals_not_one_of": {"equals_not_one_of": ["no", "where"]},
    "case_insensitive": {"ends_with": "/A", "case_insensitive": True},
    "has_one_of": {"value": jetbus.has_one_of(1)},
    "field": {"fields": {"x.y": jetbus.above(1)}},
    "equal": {"value": "text"},
    "everything": {},
}
VALUES = {"a": [1, 2], "b": "text", "c": {"x": {"y": 2}}, "d": 3, "dd/b": True}


@pytest.mark.parametrize("keywords", RULES.values(), ids=RULES)
def test_rules(bus: PeerFactory, at: str, keywords: dict[str, Any]) -> None:
    """Every rule matches what it should, whichever words of it the daemon understands."""
    rule = jetbus.rule(f"{at}/**", **keywords)
    test = rule.matches_value

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            for name, value in VALUES.items():
                await owner.add_state(f"{at}/{name}", value)
            wanted = {
                f"{at}/{name}": value
                for name, value in VALUES.items()
                if rule.matches_path(f"{at}/{name}") and (test is None or test(value))
            }
            assert wanted
            mirror = await client.mirror(rule)
            await mirror.ready()
            assert dict(mirror.inner) == wanted
            assert await client.get_all(rule) == wanted

    run(case())


def test_fetch_everything(bus: PeerFactory, at: str) -> None:
    """A fetch without a rule tells everything, also where the daemon wants one."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state(f"{at}/1", 1)
            mirror = await client.mirror()
            await mirror.ready()
            assert mirror.inner[f"{at}/1"] == 1
            assert (await client.get_all())[f"{at}/1"] == 1

    run(case())


def test_glob(bus: PeerFactory, at: str) -> None:
    """A glob is tested by the peer."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            for name in ("a/x", "b/x", "b/c/x", "a/y"):
                await owner.add_state(f"{at}/{name}", name)
            assert await client.get_all(f"{at}/*/x") == {f"{at}/a/x": "a/x", f"{at}/b/x": "b/x"}
            fetch = await client.fetch(f"{at}/*/x")
            assert sorted(event.value for event in await fetch.take(2)) == ["a/x", "b/x"]

    run(case())


def test_sorted(bus: PeerFactory, at: str) -> None:
    """A sorted fetch has the right list, put in order by the daemon or, where it cannot, by the peer."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            states = {
                name: await owner.add_state(f"{at}/{name}", value) for name, value in (("a", 3), ("b", 1), ("c", 2))
            }
            options = {"sort_by": "value", "descending": True, "last": 2}
            fetch = await client.fetch(f"{at}/**", **options)
            await fetch.ready()
            assert [item.value for item in fetch.items] == [3, 2]
            await states["b"].change(9)
            await until(lambda: [item.value for item in fetch.items] == [9, 3])
            await states["a"].remove()
            await until(lambda: [item.path for item in fetch.items] == [f"{at}/b", f"{at}/c"])
            assert list(await client.get_all(f"{at}/**", **options)) == [f"{at}/b", f"{at}/c"]

    run(case())


def test_batch(bus: PeerFactory, at: str) -> None:
    """A batch is understood."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            states = [await owner.add_state(f"{at}/{number}", 0) for number in range(3)]
            mirror = await client.mirror(f"{at}/**")
            await mirror.ready()

            def change() -> None:
                with owner.inner.batch():
                    for state in states:
                        state.inner.change(1)

            await owner.do(change)
            await until(lambda: set(mirror.inner.values()) == {1})

    run(case())


NODE_OWNERS: tuple[Version, ...] = (1, 2, 3)


@pytest.fixture(scope="module", params=NODE_OWNERS, ids=[f"nj{version}" for version in NODE_OWNERS])
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A Node.js process with peers of node-jet."""
    process = Node(request.param)
    yield process
    process.close()


def test_node_jet_owner_and_client(node: Node, daemon: RunningDaemon, face: str) -> None:
    """On our bus, node-jet peers own what ours use, and use what ours own."""
    host, port = daemon.listening["tcp"].rsplit(":", 1)
    theirs = node.peer()
    theirs.do("connect", config={"ip": host, "port": int(port)})

    async def case() -> None:
        async with PeerFactory(daemon.url, face).peer() as ours:
            theirs.add_state("their/state", 1)
            theirs.add_method("their/method", "accept")
            fetch = await ours.fetch("their/state", policy="every")
            await fetch.ready()
            assert await ours.set("their/state", 5) == SetResult(5)
            await ours.call("their/method", 1)
            assert brief(await fetch.take(2)) == [("add", "their/state", 1), ("change", "their/state", 5)]
            state = await ours.add_state("our/state", 1, on_set=lambda value: min(value, 10))
            await ours.add_method("our/method", lambda *args: list(args))
            await asyncio.to_thread(theirs.set, "our/state", 70)
            assert state.value == 10
            called = await asyncio.to_thread(theirs.call, "our/method", [1, 2])
            assert called in ([1, 2], {}, None)
            await asyncio.to_thread(theirs.close)
            assert brief(await fetch.take(1)) == [("remove", "their/state", 5)]

    run(case())


def test_timeout(bus: PeerFactory, at: str) -> None:
    """An owner that never answers is timed out, by the daemon or, where it knows no timeouts, by the peer."""

    async def case() -> None:
        async with bus.peer() as owner, bus.peer() as client:
            await owner.add_state(f"{at}/slow", 0, on_set=lambda _value: None)
            owner_session = owner.inner.session
            owner_session.owned.clear()  # it forgets what it owns and answers nothing
            problem = await raised(client.set(f"{at}/slow", 1, timeout_s=-1.5))
            assert isinstance(problem, jetbus.TimedOut)

    run(case())
