"""No loops: however buses are mounted into each other, nothing echoes and nothing grows."""

from __future__ import annotations

import asyncio
import functools
import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from bridge.buses import Seen, raised, run, until
from jetbus import PeerAsync
from jetbus.bridge import Bridge, Phase, SameBus
from jetbus.bridge.areas import Areas
from jetbus.testing import RunningDaemon, running_daemon

Links = list[tuple[str, str]]


@pytest.fixture
def daemons() -> Iterator[dict[str, RunningDaemon]]:
    """Buses a, b, c and d."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_daemon()) for name in "abcd"}


LINKS: dict[str, tuple[Links, dict[str, set[str]]]] = {
    "a chain": (
        [("a", "b"), ("b", "c"), ("c", "d")],
        {"a": set(), "b": {"a"}, "c": {"b", "b/a"}, "d": {"c", "c/b", "c/b/a"}},
    ),
    "two facing": ([("a", "b"), ("b", "a")], {"a": {"b"}, "b": {"a"}}),
    "a ring": (
        [("a", "b"), ("b", "c"), ("c", "a")],
        {"a": {"c", "c/b"}, "b": {"a", "a/c"}, "c": {"b", "b/a"}},
    ),
    "a ring and a tail": (
        [("a", "b"), ("b", "c"), ("c", "a"), ("a", "d")],
        {"a": {"c", "c/b"}, "b": {"a", "a/c"}, "c": {"b", "b/a"}, "d": {"a", "a/c", "a/c/b"}},
    ),
    "a diamond": (
        [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")],
        {"a": set(), "b": {"a"}, "c": {"a"}, "d": {"b", "b/a", "c", "c/a"}},
    ),
    "each into each": (
        list(itertools.permutations("abc", 2)),
        {"a": {"b", "b/c", "c", "c/b"}, "b": {"a", "a/c", "c", "c/a"}, "c": {"a", "a/b", "b", "b/a"}},
    ),
}
"""Which bus is mounted into which (at its name), and where on each bus the states of which others are to be."""


def _wanted(places: dict[str, set[str]], names: list[str]) -> dict[str, set[str]]:
    """The paths of states on each bus that has some."""
    return {
        bus: {f"{name}-{bus}" for name in names} | {f"{at}/{name}-{at[-1]}" for at in where for name in names}
        for bus, where in places.items()
    }


async def _spread(peers: dict[str, PeerAsync], seen: dict[str, Seen], places: dict[str, set[str]]) -> None:
    """Let states come and go on every bus, each of them over all bridges, and wait until all have arrived."""
    rounds = ["first", "second", "third"]
    for number, name in enumerate(rounds, 1):
        states = [await peers[bus].add_state(f"{name}-{bus}", 0) for bus in places]
        wanted = _wanted(places, rounds[:number])
        await until(functools.partial(_have, seen, wanted, 0))
        for state in states:
            state.change(1)
        await until(functools.partial(_have, seen, wanted, 1))


def _have(seen: dict[str, Seen], wanted: dict[str, set[str]], value: int) -> bool:
    """Whether all paths that are wanted on each bus have been seen there with a value."""
    return all(
        {event.path for event in seen[bus].events if event.value == value} >= paths for bus, paths in wanted.items()
    )


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
@pytest.mark.parametrize(("links", "places"), LINKS.values(), ids=LINKS)
def test_no_loops(
    daemons: dict[str, RunningDaemon], links: Links, places: dict[str, set[str]], backwards: bool
) -> None:
    """Every bus has the states of every other along every simple way, its own never, and each event comes once."""

    async def case() -> None:
        async with AsyncExitStack() as stack:
            peers = {bus: await stack.enter_async_context(PeerAsync(daemons[bus].url)) for bus in places}
            seen = {bus: await Seen(peers[bus]).ready() for bus in places}
            for far, near in reversed(links) if backwards else links:
                bridge = Bridge(daemons[far].url, daemons[near].url, prefix=f"{far}/")
                await stack.enter_async_context(bridge)
            await _spread(peers, seen, places)
            wanted = _wanted(places, ["first", "second", "third"])
            assert {bus: seen[bus].paths for bus in places} == wanted
            counts = {seen[bus].count(path) for bus in places for path in wanted[bus]}
            assert counts == {2}
            notes = {event.kind for bus in places for event in seen[bus].events if "$bridge" in event.path}
            assert notes == {"add"}

    run(case())


def test_started_together(daemons: dict[str, RunningDaemon]) -> None:
    """Bridges that start at the same moment, with states on all buses, mount nothing wrongly even for a moment."""
    links, places = LINKS["each into each"]

    async def case() -> None:
        async with AsyncExitStack() as stack:
            peers = {bus: await stack.enter_async_context(PeerAsync(daemons[bus].url)) for bus in places}
            seen = {bus: await Seen(peers[bus]).ready() for bus in places}
            for bus, peer in peers.items():
                await peer.add_state(f"early-{bus}", 1)
            bridges = [Bridge(daemons[far].url, daemons[near].url, prefix=f"{far}/") for far, near in links]
            await asyncio.gather(*(bridge.start() for bridge in bridges))
            await _spread(peers, seen, places)
            assert {bus: seen[bus].paths for bus in places} == _wanted(places, ["early", "first", "second", "third"])
            await asyncio.gather(*(bridge.stop() for bridge in bridges))

    run(case())


@pytest.mark.parametrize("lost", "abc")
def test_a_daemon_returns(daemons: dict[str, RunningDaemon], lost: str) -> None:
    """A daemon of a ring may go and come back: all is as before, and nothing was where it should not be."""
    links, places = LINKS["a ring"]

    async def case() -> None:
        async with AsyncExitStack() as stack:
            peers = {bus: await stack.enter_async_context(PeerAsync(daemons[bus].url)) for bus in places}
            mirrors = {bus: await peers[bus].mirror().ready() for bus in places}
            seen = {bus: await Seen(peers[bus]).ready() for bus in places}
            for far, near in links:
                await stack.enter_async_context(Bridge(daemons[far].url, daemons[near].url, prefix=f"{far}/"))
            await _spread(peers, seen, places)
            await asyncio.to_thread(daemons[lost].restart)
            wanted = _wanted(places, ["first", "second", "third"])
            await until(
                lambda: all({path for path in mirrors[bus] if "$bridge" not in path} == wanted[bus] for bus in places)
            )
            assert {bus: seen[bus].paths for bus in places} == wanted

    run(case())


def test_a_bridge_returns(daemons: dict[str, RunningDaemon]) -> None:
    """Of two facing bridges one may stop and another take its place, again and again; the other never echoes."""

    async def case() -> None:
        async with PeerAsync(daemons["a"].url) as a, PeerAsync(daemons["b"].url) as b:
            await a.add_state("x", 1)
            await b.add_state("y", 1)
            seen_a, seen_b = await Seen(a).ready(), await Seen(b).ready()
            async with Bridge(daemons["a"].url, daemons["b"].url, prefix="a/"):
                for number in range(5):
                    async with Bridge(daemons["b"].url, daemons["a"].url, prefix="b/"):
                        await a.add_state(f"sentinel{number}", 1)
                        await b.wait_for(f"a/sentinel{number}", timeout_s=20)
            for number in range(5):
                back = Bridge(daemons["b"].url, daemons["a"].url, prefix="b/")
                async with back, Bridge(daemons["a"].url, daemons["b"].url, prefix="a/"):
                    await b.add_state(f"last{number}", 1)
                    await a.wait_for(f"b/last{number}", timeout_s=20)
            lasts, sentinels = {f"last{number}" for number in range(5)}, {f"sentinel{number}" for number in range(5)}
            assert seen_a.paths == {"x", "b/y"} | sentinels | {f"b/{last}" for last in lasts}
            assert seen_b.paths == {"y", "a/x"} | lasts | {f"a/{sentinel}" for sentinel in sentinels}

    run(case())


PROGRAM = """
import sys
from jetbus.bridge import run_bridge
run_bridge(*sys.argv[1:3], prefix="a/")
"""


def test_a_bridge_is_killed(daemons: dict[str, RunningDaemon]) -> None:
    """When one of two facing bridges is killed, what it had mounted is not taken for something new by the other."""

    async def case() -> None:
        async with PeerAsync(daemons["a"].url) as a, PeerAsync(daemons["b"].url) as b:
            for number in range(200):
                await a.add_state(f"{number}", number)
            mirror = await b.mirror(starts_with="a/").ready()
            seen = await Seen(a).ready()
            async with Bridge(daemons["b"].url, daemons["a"].url, prefix="b/"):
                process = subprocess.Popen([sys.executable, "-c", PROGRAM, daemons["a"].url, daemons["b"].url])
                await until(lambda: len(mirror) == 201)
                process.kill()
                process.wait()
                await until(lambda: not mirror)
                await b.add_state("last", 1)
                await a.wait_for("b/last", timeout_s=20)
                assert {path for path in seen.paths if path.startswith("b/")} == {"b/last"}

    run(case())


def test_requests_over_several_levels(daemons: dict[str, RunningDaemon]) -> None:
    """Set and call reach an owner three buses away, and its answer comes back all the way."""

    async def case() -> None:
        async with AsyncExitStack() as stack:
            for far, near in LINKS["a chain"][0]:
                await stack.enter_async_context(Bridge(daemons[far].url, daemons[near].url, prefix=f"{far}/"))
            owner = await stack.enter_async_context(PeerAsync(daemons["a"].url))
            client = await stack.enter_async_context(PeerAsync(daemons["d"].url))
            state = await owner.add_state("x", 0, on_set=lambda value: min(value, 10))
            await owner.add_method("double", lambda number: 2 * number)
            mirror = await client.mirror("c/b/a/**").ready()
            await until(lambda: {"c/b/a/x", "c/b/a/double"} <= set(mirror))
            assert (await client.set("c/b/a/x", 50)).adapted
            assert mirror["c/b/a/x"] == state.value == 10
            assert await client.call("c/b/a/double", 4) == 8

    run(case())


SAME: dict[str, Any] = {
    "the same url": lambda daemon: daemon.url,
    "WebSocket": lambda daemon: daemon.ws_url,
    "binary": lambda daemon: daemon.binary_url,
}


@pytest.mark.parametrize("other_url", SAME.values(), ids=SAME)
def test_onto_its_own_bus(far: RunningDaemon, other_url: Any) -> None:
    """A bridge from a bus onto itself does not start, whichever way it connects, and leaves nothing behind."""

    async def case() -> None:
        async with PeerAsync(far.url) as peer:
            await peer.add_state("x", 1)
            seen = await Seen(peer).ready()
            bridge = Bridge(far.url, other_url(far), prefix="a/")
            problem = await raised(bridge.start())
            assert isinstance(problem, SameBus)
            assert "a bridge needs two" in str(problem)
            assert bridge.status.phase is Phase.STOPPED
            await until(lambda: seen.events[-1].kind == "remove")
            assert seen.paths == {"x"}

    run(case())


def test_a_rule_hides_no_notes(daemons: dict[str, RunningDaemon]) -> None:
    """A loop is recognised whatever the rules of the bridges are."""

    async def case() -> None:
        a, b = daemons["a"].url, daemons["b"].url
        async with PeerAsync(a) as peer, PeerAsync(b) as other:
            seen, seen_other = await Seen(peer).ready(), await Seen(other).ready()
            rule = "**temperature"
            async with Bridge(a, b, prefix="a/", rule=rule), Bridge(b, a, prefix="b/", rule=rule):
                for name in ("one", "two", "three"):
                    await peer.add_state(f"{name}/temperature", 1)
                    await other.wait_for(f"a/{name}/temperature", timeout_s=20)
                await other.add_state("last/temperature", 1)
                await peer.wait_for("b/last/temperature", timeout_s=20)
                assert not {path for path in seen.paths if path.startswith("b/a/")}
                assert not {path for path in seen_other.paths if path.startswith("a/b/")}

    run(case())


# -- areas, alone


def test_an_area_is_closed_until_its_bridge_is_known() -> None:
    """An area is closed at first, then open or closed for good."""
    areas = Areas("me")
    assert areas.add("a/$bridge", {"id": "one"})
    assert list(areas.closed) == ["a/"]
    assert areas.be_sure({"a/"})
    assert list(areas.closed) == []
    assert areas.add_reader("$bridge/one")
    assert list(areas.closed) == ["a/"]


def test_its_own_area() -> None:
    """What a bridge has mounted itself is a loop, however it came to the far bus."""
    areas = Areas("me")
    areas.add("copy/a/$bridge", {"id": "me"})
    areas.be_sure({"copy/a/"})
    assert list(areas.closed) == ["copy/a/"]


def test_a_reader_that_is_gone_is_remembered_while_its_area_is_there() -> None:
    """What was mounted from the near bus stays out, even when its bridge has already left the near bus."""
    areas = Areas("me")
    areas.add_reader("$bridge/one")
    areas.add("a/$bridge", {"id": "one"})
    areas.be_sure({"a/"})
    assert not areas.remove_reader("$bridge/one")
    assert list(areas.closed) == ["a/"]
    assert areas.remove(areas.leave("a/$bridge"))
    assert list(areas.closed) == []


def test_an_area_that_comes_back_at_once() -> None:
    """An area that is taken over by another bridge before all of the first is gone stays closed."""
    areas = Areas("me")
    areas.add_reader("$bridge/one")
    areas.add_reader("$bridge/two")
    areas.add("a/$bridge", {"id": "one"})
    areas.be_sure({"a/"})
    prefix = areas.leave("a/$bridge")
    areas.add("a/$bridge", {"id": "two"})
    areas.be_sure({"a/"})
    assert not areas.remove(prefix)
    assert list(areas.closed) == ["a/"]


@pytest.mark.parametrize("told", [None, 1, {}, {"id": 1}, ["id"]], ids=str)
def test_notes_that_are_none(told: Any) -> None:
    """A state that only looks like a note is none."""
    areas = Areas("me")
    assert not areas.add("a/$bridge", told)
    assert not areas.add("$bridge", {"id": "one"})
    assert list(areas.closed) == []
