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

from jetbus import PeerAsync
from jetbus.bridge import Bridge, Phase, SameBus
from jetbus.bridge.loop_guard import LoopGuard, Seal
from jetbus.testing import RunningDaemon, running_daemon
from support.bridges import Seen, raised, run, until

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
    """Return True if all wanted paths have been seen on each bus with a value."""
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
    """If one of two facing bridges is killed, the other does not take its mounts for something new."""

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


# -- strangers


def test_a_forged_note_unmounts_nothing(daemons: dict[str, RunningDaemon]) -> None:
    """Whatever note a stranger adds, made up or copied, what is below it stays mounted, and the bridge goes on."""

    async def case() -> None:
        a, b = daemons["a"].url, daemons["b"].url
        async with PeerAsync(a) as on_a, PeerAsync(b) as on_b:
            await on_a.add_state("tanks/level", 1)
            async with Bridge(a, b, prefix="a/") as bridge, Bridge(b, a, prefix="b/") as back:
                await on_b.wait_for("a/tanks/level", timeout_s=20)
                seen = await Seen(on_b).ready()
                copies = [
                    {"id": bridge.id},
                    {"id": back.id},
                    (await on_a.get_all("b/$bridge"))["b/$bridge"],
                    (await on_b.get_all("a/$bridge"))["a/$bridge"],
                    (await on_b.get_all(f"$bridge/{back.id}"))[f"$bridge/{back.id}"],
                    Seal("tanks/").area_note,
                ]
                for note in copies:
                    forged = await on_a.add_state("tanks/$bridge", note)
                    await on_a.add_state(f"sentinel{copies.index(note)}", 1)
                    await on_b.wait_for(f"a/sentinel{copies.index(note)}", timeout_s=20)
                    await forged.remove()
                area_note = copies[3]
                reader = {"id": bridge.id, "secret": area_note["secret"], "other": area_note["other"]}
                for note in ({"prefix": "a/"}, area_note, reader):
                    forged = await on_b.add_state(f"$bridge/{bridge.id}", note)
                    await on_b.get_all()
                    await forged.remove()
                # Even a true copy, by somebody who is on both buses, does not end a bridge that runs.
                true_note = (await on_a.get_all(f"$bridge/{bridge.id}"))[f"$bridge/{bridge.id}"]
                await on_b.add_state(f"$bridge/{bridge.id}", true_note)
                await on_a.add_state("last", 1)
                await on_b.wait_for("a/last", timeout_s=20)
                assert seen.count("a/tanks/level") == 1, "it was there, and was not removed"
                assert bridge.status.phase is Phase.MOUNTED

    run(case())


# -- the guard, alone

ME, ONE, TWO = Seal("me/"), Seal("a/"), Seal("a/")


def _reads(guard: LoopGuard, seal: Seal) -> bool:
    return guard.add_reader(f"$bridge/{seal.id}", seal.reader_note)


def test_an_area_is_closed_until_its_bridge_is_known() -> None:
    """An area is closed at first, then open or closed for good; what was mounted before is left there meanwhile."""
    guard = LoopGuard(ME.id)
    assert guard.add("a/$bridge", ONE.area_note)
    assert (guard.closed, guard.loops) == (("a/",), ())
    assert guard.be_sure({"a/"})
    assert (guard.closed, guard.loops) == ((), ())
    assert _reads(guard, ONE)
    assert (guard.closed, guard.loops) == (("a/",), ("a/",))


def test_its_own_area() -> None:
    """Everything that a bridge has mounted itself is a loop, however it came to the far bus."""
    guard = LoopGuard(ME.id)
    guard.add("copy/me/$bridge", ME.area_note)
    guard.be_sure({"copy/me/"})
    assert guard.loops == ("copy/me/",)


def test_a_reader_that_is_gone_is_remembered_while_its_area_is_there() -> None:
    """An area mounted from the near bus stays out, even after its bridge has left the near bus."""
    guard = LoopGuard(ME.id)
    _reads(guard, ONE)
    guard.add("a/$bridge", ONE.area_note)
    guard.be_sure({"a/"})
    assert not guard.remove_reader(f"$bridge/{ONE.id}")
    assert guard.loops == ("a/",)
    assert guard.remove(guard.leave("a/$bridge"))
    assert not guard.loops


def test_an_area_that_comes_back_at_once() -> None:
    """An area that is taken over by another bridge before all of the first is gone stays closed."""
    guard = LoopGuard(ME.id)
    _reads(guard, ONE)
    _reads(guard, TWO)
    guard.add("a/$bridge", ONE.area_note)
    guard.be_sure({"a/"})
    prefix = guard.leave("a/$bridge")
    guard.add("a/$bridge", TWO.area_note)
    guard.be_sure({"a/"})
    assert not guard.remove(prefix)
    assert guard.loops == ("a/",)


def test_the_same_bus_is_seen_at_the_beginning_only() -> None:
    """A bridge's own note on its near bus counts while it introduces itself."""
    guard = LoopGuard(ME.id)
    guard.is_introducing = False
    assert not _reads(guard, ME)
    assert not guard.same_bus
    guard.is_introducing = True
    assert _reads(guard, ME)
    assert guard.same_bus


FORGED: dict[str, tuple[str, Any]] = {
    "nothing": ("a/$bridge", None),
    "a number": ("a/$bridge", 1),
    "no fields": ("a/$bridge", {}),
    "only the id": ("a/$bridge", {"id": ONE.id}),
    "an id that is no text": ("a/$bridge", {**ONE.area_note, "id": 1}),
    "another prefix": ("tanks/$bridge", ONE.area_note),
    "a prefix within a segment": ("xa/$bridge", ONE.area_note),
    "no prefix": ("$bridge", ONE.area_note),
    "an empty prefix": ("tanks/$bridge", {**ONE.area_note, "prefix": ""}),
    "the id of another": ("a/$bridge", {**TWO.area_note, "id": ONE.id}),
    "the note of a reader": ("a/$bridge", {**ONE.reader_note, "prefix": "a/"}),
    "secret and hash exchanged": (
        "a/$bridge",
        {**ONE.area_note, "secret": ONE.area_note["other"], "other": ONE.area_note["secret"]},
    ),
}


@pytest.mark.parametrize(("path", "note"), FORGED.values(), ids=FORGED)
def test_notes_that_prove_nothing(path: str, note: Any) -> None:
    """A state that only looks like a note of bridge ONE, and is not its own, is none."""
    guard = LoopGuard(ME.id)
    _reads(guard, ONE)
    guard.add(path, note)
    guard.be_sure(set(guard.unsure))
    assert not guard.loops


@pytest.mark.parametrize(
    "note",
    [None, {}, ONE.area_note, {"id": ONE.id}, {**TWO.reader_note, "id": ONE.id}],
    ids=["none", "empty", "of an area", "only an id", "with a foreign secret"],
)
def test_readers_that_prove_nothing(note: Any) -> None:
    """A state that only looks like the note of a reader is none."""
    guard = LoopGuard(ME.id)
    assert not guard.add_reader(f"$bridge/{ONE.id}", note)
    assert not guard.add_reader("$bridge/other", ONE.reader_note)
