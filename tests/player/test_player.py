"""The player: what a bus is told when a recording is played onto it, and how it is steered."""

from __future__ import annotations

import asyncio
import math
import threading
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus import PeerAsync, journal
from jetbus.journal import BadInstant, JournalError, Settings, Writer
from jetbus.peer.simple import SimplePeer
from jetbus.player import Player, Progress, play
from jetbus.player.projection import SETTLE_EVENTS
from jetbus.rules import rule as make_rule
from jetbus.testing import RunningDaemon, running_daemon
from support.bus_watcher import watching
from support.peers import raised, run, until
from support.recordings import PLANT, Moment, at_us, call, method, recording, seen

END = {"pump/on": None, "valve": {"open": [1, 2.5, "ä"]}}


@pytest.mark.parametrize("speed", [1.0, 0, math.inf, 3.0])
@pytest.mark.parametrize("scheme", ["jet", "jetb"])
def test_what_was_recorded_happens_again(daemon: RunningDaemon, plant: Path, speed: float, scheme: str) -> None:
    """Every add, change and remove happens again, in order, at any speed and by any protocol; the end stays."""

    async def case() -> None:
        async with watching(daemon.url) as watcher:
            url = daemon.url if scheme == "jet" else daemon.binary_url
            async with Player(plant, url, speed=speed, prefix="again/") as player:
                await player.wait()
                assert await watcher.states() == {f"again/{path}": value for path, value in END.items()}
                expected = seen(PLANT, "again/")
                assert await watcher.after(len(expected)) == expected
                progress = player.progress
                assert progress.events == len(PLANT)
                assert (progress.position_us, progress.elements, progress.ended) == (at_us(100) + 1, 3, True)
            await watcher.until_states({})

    run(case())


def test_it_does_not_happen_earlier(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Events that are due later are not played now."""
    source = recording(tmp_path, [Moment(0, "add", "a", 1), Moment(1_000_000, "change", "a", 2)])

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url) as player:
            assert await watcher.after(1) == [("add", "a", 1)]
            assert player.progress.events == 1
            assert not player.progress.ended
            player.speed = math.inf
            await player.wait()
            assert await watcher.after(2) == [("add", "a", 1), ("change", "a", 2)]

    run(case())


RANGES: dict[str, tuple[dict[str, Any], dict[str, Any], list[tuple[str, str, Any]]]] = {
    "since": (
        {"since": at_us(60)},
        {"pump/speed": 300, "pump/on": True},
        seen(PLANT[8:]),
    ),
    "until": ({"until": at_us(40)}, {}, seen(PLANT[:5])),
    "both": ({"since": at_us(40), "until": at_us(61)}, {"pump/speed": 100, "pump/on": True}, seen(PLANT[6:8])),
    "wider than what there is": ({"since": 0, "until": at_us(10**9)}, {}, seen(PLANT)),
    "as text": (
        {"since": "2026-01-01T00:00:00.09Z", "until": "2026-01-01T00:00:00.1Z"},
        {"pump/speed": 500, "pump/on": None},
        seen(PLANT[12:13]),
    ),
}


@pytest.mark.parametrize(("limits", "tree", "events"), RANGES.values(), ids=RANGES)
def test_a_range(
    daemon: RunningDaemon, plant: Path, limits: dict[str, Any], tree: dict[str, Any], events: list[Any]
) -> None:
    """A range begins with the tree as it was then, and has what happened after it up to its end."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url, speed=0, **limits) as player:
            await player.wait()
            await watcher.after(len(tree) + len(events) + bool(tree))
            received = [event for event in watcher.events if event[1] != "pump/run" or not tree]
            assert dict(event[1:] for event in received[: len(tree)]) == tree
            assert received[len(tree) :] == events

    run(case())


RULES = {
    "a path": ("pump/on", [one for one in seen(PLANT) if one[1] == "pump/on"]),
    "values": (
        "pump/speed value>150",
        [
            ("add", "pump/speed", 200),
            ("change", "pump/speed", 300),
            ("change", "pump/speed", 400),
            ("change", "pump/speed", 500),
            ("remove", "pump/speed", 500),
        ],
    ),
}


@pytest.mark.parametrize(("rule", "expected"), RULES.values(), ids=RULES)
def test_a_rule(daemon: RunningDaemon, plant: Path, rule: str, expected: list[Any]) -> None:
    """With a rule, what matches is played; what comes to match is added, what ceases to is removed."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url, speed=0, rule=rule) as player:
            await player.wait()
            assert await watcher.after(len(expected)) == expected

    run(case())


RESTART = [
    Moment(0, "start"),
    Moment(1, "add", "a", 1),
    Moment(2, "add", "b", 1),
    Moment(10, "stop"),
    Moment(20, "start"),
    Moment(21, "add", "b", 2),
    Moment(30, "start"),
    Moment(31, "add", "a", 3),
]


@pytest.mark.parametrize("rule", [None, "**", "a", "b"])
def test_a_restart_of_what_was_recorded(daemon: RunningDaemon, tmp_path: Path, rule: str | None) -> None:
    """At a recorded stop or start everything leaves the bus, with and without a rule."""
    source = recording(tmp_path, RESTART)
    expected = [
        ("add", "a", 1),
        ("add", "b", 1),
        ("remove", "a", 1),
        ("remove", "b", 1),
        ("add", "b", 2),
        ("remove", "b", 2),
        ("add", "a", 3),
    ]

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url, speed=0, rule=rule) as player:
            await player.wait()
            wanted = [event for event in expected if rule in (None, "**", event[1])]
            assert await watcher.after(len(wanted)) == wanted

    run(case())


def test_methods_answer_from_the_recording(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A method answers as it did at the last call with the same arguments before; what was never asked is refused."""
    source = recording(
        tmp_path,
        [
            method(0, "add", "m"),
            call(10, "m", [1], outcome="ok"),
            call(20, "m", {"a": 2}, outcome="error", code=-32602, error="Invalid params", data={"message": "too much"}),
            call(30, "m", [1], outcome="error", code=-1, error="broken"),
            Moment(40, "add", "end", 1),
        ],
    )

    async def case() -> None:
        async with PeerAsync(daemon.url) as client, Player(source, daemon.url, prefix="r/") as player:
            player.pause()
            await player.seek(at_us(25))
            assert await client.call("r/m", 1) is None
            assert "too much" in str(await raised(client.call("r/m", a=2)))
            assert "no call of m with these arguments was recorded" in str(await raised(client.call("r/m", 3)))
            await player.seek(at_us(35))
            assert "broken" in str(await raised(client.call("r/m", 1)))
            await player.seek(at_us(5))
            assert "no call of m with these arguments was recorded" in str(await raised(client.call("r/m", 1)))

    run(case())


def test_played_states_are_read_only(daemon: RunningDaemon, plant: Path) -> None:
    """A set of what is played is refused as read-only, and changes nothing."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url, speed=0) as player:
            await player.wait()
            problem = await raised(watcher.peer.set("valve", 1))
            assert isinstance(problem, jetbus.ReadOnly)
            assert await watcher.states() == END

    run(case())


def test_pause_and_resume(daemon: RunningDaemon, plant: Path) -> None:
    """A player that is paused stands still with everything on the bus, and goes on from there."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url, speed=0.001) as player:
            player.pause()
            await player.seek(at_us(60))
            assert player.progress.paused
            assert player.progress.position_us == at_us(60)
            assert await watcher.states() == {"pump/speed": 300, "pump/on": True}
            before = player.progress
            player.speed = math.inf
            assert not await _ends(player, within_s=0.1)
            assert player.progress == before
            player.resume()
            await player.wait()
            assert await watcher.states() == END

    run(case())


async def _ends(player: Player, within_s: float) -> bool:
    try:
        await asyncio.wait_for(player.wait(), within_s)
    except TimeoutError:
        return False
    return True


SEEKS = [
    (100, {"pump/on": None, "valve": END["valve"]}),
    (35, {"pump/speed": 0, "pump/on": True}),
    (0, {"pump/speed": 0}),
    (92, {"pump/speed": 500, "pump/on": None}),
    (1, {"pump/speed": 0, "pump/on": False}),
]


def test_seek(daemon: RunningDaemon, plant: Path) -> None:
    """Forth and back: after a seek the bus has the tree of that instant, and the rest is played from there."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url) as player:
            player.pause()
            for ms, expected in SEEKS:
                await player.seek(at_us(ms))
                assert await watcher.states() == expected
                assert player.progress.position_us == at_us(ms)
            player.speed = 0
            player.resume()
            await player.wait()
            assert await watcher.states() == END
            assert player.progress.ended
            player.pause()
            await player.seek(at_us(60))
            assert not player.progress.ended
            watcher.events.clear()
            player.resume()
            await player.wait()
            expected_events = seen(PLANT[8:])
            assert await watcher.after(len(expected_events)) == expected_events
            assert await watcher.states() == END

    run(case())


def test_seek_to_the_end_of_a_range(daemon: RunningDaemon, plant: Path) -> None:
    """The end of a range is not in it, also not by a seek."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url, until=at_us(40)) as player:
            await player.seek(at_us(40))
            assert await watcher.states() == {"pump/speed": 0, "pump/on": True}

    run(case())


@pytest.mark.parametrize("ms", [-1000, 10**6])
def test_seek_beyond_the_range(daemon: RunningDaemon, plant: Path, ms: int) -> None:
    """An instant that is not in the range is refused, and the range is told."""

    async def case() -> None:
        async with Player(plant, daemon.url, speed=0) as player:
            with pytest.raises(
                BadInstant, match=r"outside the range, which is from 2025-12-31T23:59:59.999999Z to 2026-01-01T00:00:00"
            ):
                await player.seek(at_us(ms))

    run(case())


def test_loop(daemon: RunningDaemon, plant: Path) -> None:
    """A loop begins anew with the tree of the start, again and again, until it is to be the last round."""

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(plant, daemon.url, speed=0, loop=True) as player:
            await until(lambda: player.progress.rounds >= 2)
            player.loop = False
            await player.wait()
            rounds = player.progress.rounds + 1
            events = seen(PLANT)
            left = [("remove", "pump/on", None), ("remove", "pump/run", None), ("remove", "valve", END["valve"])]
            expected = [*events, *((*left, *events) * (rounds - 1))]
            found = await watcher.after(len(expected))
            assert sorted(found, key=str) == sorted(expected, key=str)
            assert found[-len(events) :] == events
            assert player.progress.events == rounds * len(PLANT)

    run(case())


def test_a_path_that_is_taken(daemon: RunningDaemon, plant: Path) -> None:
    """On a bus that has the path already the player does not begin, says what to do and leaves nothing behind."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            await owner.add_state("pump/on", "live")
            problem = await raised(Player(plant, daemon.url, since=at_us(50)).start())
            assert isinstance(problem, jetbus.Occupied)
            assert "use a prefix" in str(problem)
            async with watching(daemon.url) as watcher:
                await watcher.until_states({"pump/on": "live"})

    run(case())


def test_a_path_that_is_taken_on_the_way(daemon: RunningDaemon, plant: Path) -> None:
    """Paths of other owners stay theirs; the rest is played, and their number is reported."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner, watching(daemon.url) as watcher:
            await owner.add_state("valve", "live")
            async with Player(plant, daemon.url, speed=0) as player:
                await player.wait()
                assert player.progress.refused == 1
                assert await watcher.states() == {"pump/on": None, "valve": "live"}

    run(case())


def test_the_bus_is_restarted(daemon: RunningDaemon, plant: Path) -> None:
    """After the bus returns, everything is there again, and the replay goes on to its end."""

    async def case() -> None:
        async with Player(plant, daemon.url) as player:
            player.pause()
            await player.seek(at_us(60))
            await asyncio.to_thread(daemon.restart)
            async with watching(daemon.url) as watcher:
                await watcher.until_states({"pump/speed": 300, "pump/on": True})
            player.resume()
            await player.wait()
            async with watching(daemon.url) as watcher:
                await watcher.until_states(END)

    run(case())


def test_played_while_the_bus_is_away(daemon: RunningDaemon, plant: Path) -> None:
    """Events that are due while the bus is away are made up for when it is back."""

    async def case() -> None:
        async with Player(plant, daemon.url) as player:
            player.pause()
            await player.seek(at_us(60))
            await asyncio.to_thread(daemon.stop)
            player.resume()
            await until(lambda: player.progress.position_us > at_us(95))
            await asyncio.to_thread(daemon.start)
            await player.wait()
            async with watching(daemon.url) as watcher:
                await watcher.until_states(END)

    run(case())


@pytest.mark.parametrize("cut_after", [1, 700, 1900])
def test_a_connection_that_breaks_in_full_flow(daemon: RunningDaemon, tmp_path: Path, cut_after: int) -> None:
    """Elements that were being added when the connection broke are added again, too."""
    moments = [Moment(number / 1000, "add", f"s/{number}", number) for number in range(2000)]
    source = recording(tmp_path, [Moment(0, "start"), *moments])

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url, speed=0) as player:
            await until(lambda: player.progress.events > cut_after)
            player.peer.abort()  # the cable is pulled
            await player.wait()
            await watcher.until_states({f"s/{number}": number for number in range(2000)})
            assert player.progress.refused == 0

    run(case())


def test_many_more_than_are_sent_at_once(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Long runs of adds, changes and removes of one instant arrive whole and in order."""
    count = 3 * SETTLE_EVENTS
    moments = [
        *[Moment(0, "add", f"s/{number}", number) for number in range(count)],
        *[Moment(0, "change", f"s/{number}", -number) for number in range(count)],
        *[Moment(0, "remove", f"s/{number}", -number) for number in range(count)],
        *[Moment(0, "add", f"s/{number}", None) for number in range(count)],
        Moment(1, "stop"),
    ]
    source = recording(tmp_path, moments)

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url) as player:
            await player.wait()
            found = await watcher.after(5 * count)
            assert found[: 4 * count] == seen(moments)
            assert await watcher.states() == {}

    run(case())


def test_a_change_of_what_nobody_added(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A recording that begins in the middle shows a state from its first change on; an add twice is a change."""
    source = recording(
        tmp_path,
        [
            Moment(0, "change", "a", 1),
            Moment(1, "add", "a", 2),
            Moment(2, "remove", "b", 1),
            Moment(3, "remove", "a", 2),
        ],
    )

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url, speed=0) as player:
            await player.wait()
            assert await watcher.after(3) == [("add", "a", 1), ("change", "a", 2), ("remove", "a", 2)]

    run(case())


def test_an_element_that_becomes_another(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Between two instants a state may have become a method of the same path; a seek makes it one."""
    source = recording(
        tmp_path, [Moment(0, "add", "a", 1), Moment(5, "remove", "a", 1), method(6, "add", "a"), Moment(9, "gap")]
    )

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url) as player:
            player.pause()
            for ms, expected in ((7, {}), (2, {"a": 1}), (7, {})):
                await player.seek(at_us(ms))
                assert await watcher.states() == expected
                assert player.progress.elements == 1

    run(case())


def test_access_is_kept(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A user who could not see a state when it was recorded does not see it in the replay."""
    secret = Moment(0, "add", "secret", 1, detail={"access": {"fetchGroups": ["staff"]}})
    source = recording(tmp_path, [secret, Moment(1, "add", "open", 1)])

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url, speed=0) as player:
            await player.wait()
            assert (player.progress.elements, player.progress.refused) == (2, 0)
            assert await watcher.states() == {"open": 1}

    run(case())


@pytest.mark.parametrize(("prefix", "expected"), [("", {"a": 1}), ("r/", {"r/$jet/version": "9", "r/a": 1})])
def test_the_daemons_own_states(daemon: RunningDaemon, tmp_path: Path, prefix: str, expected: dict[str, Any]) -> None:
    """A daemon's own states are played only if they cannot be taken for those of the playing bus."""
    source = recording(tmp_path, [Moment(0, "add", "$jet/version", "9"), Moment(1, "add", "a", 1)])

    async def case() -> None:
        async with watching(daemon.url) as watcher, Player(source, daemon.url, speed=0, prefix=prefix) as player:
            await player.wait()
            assert await watcher.states() == expected
            assert player.progress.refused == 0

    run(case())


def test_what_cannot_be_played(plant: Path, tmp_path: Path) -> None:
    """A range without anything, an empty journal, two buses and backwards are refused with what to do."""
    with pytest.raises(JournalError, match=r"plant is recorded from 2026-01-01T00:00:00.000000Z to"):
        Player(plant, since=at_us(200))
    with pytest.raises(JournalError, match="is empty"):
        Player(recording(tmp_path / "empty", []))
    with pytest.raises(JournalError, match="journals of 2 buses"):
        Player(journal.open(plant, recording(tmp_path / "other", PLANT)))
    with pytest.raises(ValueError, match="invalid speed"):
        Player(plant, speed=-1)
    with pytest.raises(journal.NotAJournal):
        Player(tmp_path / "nowhere")


def test_it_must_be_started(plant: Path) -> None:
    """A player that is not started says so."""

    async def case() -> None:
        with pytest.raises(RuntimeError, match="not started"):
            await Player(plant).wait()

    run(case())


def test_play_to_the_end(daemon: RunningDaemon, plant: Path) -> None:
    """``play`` plays in its own loop and gives how far it came."""
    progress = play(plant, daemon.url, speed=0, prefix="r/")
    assert isinstance(progress, Progress)
    assert (progress.events, progress.ended) == (len(PLANT), True)
    assert str(progress) == f"2026-01-01T00:00:00.100001Z, {len(PLANT)} events played"


def test_play_until_stopped(daemon: RunningDaemon, plant: Path) -> None:
    """``play`` can be told to stop."""
    stop = threading.Event()
    progress = play(journal.open(plant), daemon.url, loop=True, stop=stop, on_start=lambda _player: stop.set())
    assert not progress.ended


def test_a_recording_of_our_own_daemon(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A daemon's recording is played onto another: the same events, methods answer, bytes are bytes."""

    async def recorded(url: str) -> None:
        async with PeerAsync(url) as owner, PeerAsync(url) as client:
            await owner.add_state("picture", jetbus.Blob(b"\x00\x01", "image/png"))
            await owner.add_method("half", lambda number: {8: 4}[number])
            await client.call("half", 8)
            assert await raised(client.call("half", 7))

    with running_daemon(journal=tmp_path) as source:
        run(recorded(source.binary_url))
    until_us = journal.open(tmp_path).table(events=["gone"])["ts"].cast("int64")[0].as_py()

    async def case() -> None:
        playing = Player(tmp_path, daemon.binary_url, speed=0, until=until_us)
        async with PeerAsync(daemon.binary_url) as client, playing as player:
            await player.wait()
            assert await client.get_all("**") == {"picture": jetbus.Blob(b"\x00\x01", "image/png")}
            assert await client.call("half", 8) is None
            assert "KeyError" in str(await raised(client.call("half", 7)))

    run(case())


def test_descriptions_are_played(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A replay has the schemas, source times and qualities of the recording, also where it begins in the middle."""
    with Writer(tmp_path, Settings(fsync="never"), now_us=lambda: 0) as writer:
        writer.now_us = at_us(0)
        writer.append("add", "state", "pump", b"1", "plc#1", b'{"schema":{"unit":"rpm"}}', 5, b'"uncertain"')
        writer.now_us = at_us(10)
        writer.append_described("pump", b"2", "plc#1", 7_000_000, b'{"level":"bad","reason":"cable"}', False)
        writer.append_described("pump", b"1.5", "plc#1", 6_000_000, None, True)
        writer.now_us = at_us(20)
        writer.append("describe", "state", "pump", None, "plc#1", b'{"schema":{"unit":"Hz"}}')

    async def play_until(until_ms: float) -> Any:
        with SimplePeer(daemon.url) as peer:
            async with Player(tmp_path, daemon.url, until=at_us(until_ms), speed=0) as player:
                await player.wait()
                found = peer.describe(make_rule(equals="pump"))["pump"]
                return peer.get_all(make_rule(equals="pump"))["pump"], found["schema"], found["quality"], found["ts"]

    async def case() -> None:
        bad = {"level": "bad", "reason": "cable"}
        assert await play_until(5) == (1, {"unit": "rpm"}, "uncertain", "1970-01-01T00:00:00.000005Z")
        assert await play_until(15) == (2, {"unit": "rpm"}, bad, "1970-01-01T00:00:07.000000Z")
        assert await play_until(30) == (2, {"unit": "Hz"}, bad, "1970-01-01T00:00:07.000000Z")

    run(case())
