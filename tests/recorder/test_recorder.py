"""The recorder on our own daemon: what it writes, and what it makes of lost connections and of journals that exist."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus import PeerAsync, journal
from jetbus.daemon.config import Address
from jetbus.journal import JournalInUse, Settings, verify
from jetbus.journal.segment import list_segments
from jetbus.recorder import Recorder, record
from jetbus.testing import RunningDaemon, running_daemon
from support.journal_files import file_size_limit
from support.peers import run, until
from support.recorded_events import check_chain, recorded_events, rows, tree, until_tree


@pytest.mark.parametrize("scheme", ["jet", "ws", "jetb"])
def test_what_is_seen_is_recorded(daemon: RunningDaemon, tmp_path: Path, scheme: str) -> None:
    """Whatever the transport: what is there is added, then every add, change and remove is written in order."""
    urls = {"jet": daemon.url, "ws": daemon.ws_url, "jetb": daemon.binary_url}

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            speed = await owner.add_state("pump/speed", 1)
            await owner.add_method("pump/stop", lambda: None)
            async with Recorder(urls[scheme], tmp_path / "log") as recorder:
                for value in (2, None, {"rpm": [True, 1.5]}, "ä"):
                    speed.change(value)
                picture = await owner.add_state("picture", jetbus.Blob(b"\x00", "image/png"), on_set=lambda _: None)
                await speed.remove()
                blob = {"mime": "image/png", "base64": "AA=="}
                await until_tree(recorder, {"picture": blob})
                await picture.remove()
                await until_tree(recorder, {})
        assert recorded_events(tmp_path / "log") == [
            ("start",),
            ("add", "pump/speed", 1),
            ("add", "pump/stop", None),
            *[("change", "pump/speed", value) for value in (2, None, {"rpm": [True, 1.5]}, "ä")],
            ("add", "picture", blob),
            ("remove", "pump/speed", "ä"),
            ("remove", "picture", blob),
            ("stop",),
        ]

    run(case())


def test_what_is_told_beside(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Start and stop name recorder, url and rule; kinds and flags are told; nobody's name is made up."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            await owner.add_state("a", 1)
            await owner.add_state("b", b"", on_set=lambda _: None)
            await owner.add_method("c", lambda: None)
            async with Recorder(daemon.url, tmp_path, rule="**", name="logger"):
                pass

    run(case())
    start, a, b, c, stop = rows(tmp_path)
    said = {"recorder": "logger", "url": daemon.url, "rule": "**"}
    assert start["detail"] == {"version": jetbus.__version__, **said, "restart": False}
    assert stop["detail"] == said
    assert [(row["kind"], row["detail"], row["peer"]) for row in (a, b, c)] == [
        ("state", {"fetchOnly": True}, None),
        ("state", {"type": "application/octet-stream"}, None),
        ("method", None, None),
    ]


def test_a_rule_says_what_is_recorded(daemon: RunningDaemon, tmp_path: Path) -> None:
    """With a rule only what matches is recorded; what ceases to match is removed."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            hot = await owner.add_state("plant/hot", 9)
            await owner.add_state("plant/cold", 1)
            await owner.add_state("other", 9)
            async with Recorder(daemon.url, tmp_path, rule="plant/** value>7") as recorder:
                await until_tree(recorder, {"plant/hot": 9})
                hot.change(2)
                await until_tree(recorder, {})
                hot.change(8)
                await until_tree(recorder, {"plant/hot": 8})

    run(case())
    assert recorded_events(tmp_path)[1:-1] == [
        ("add", "plant/hot", 9),
        ("remove", "plant/hot", 2),
        ("add", "plant/hot", 8),
    ]


def test_a_sorted_rule_is_refused(tmp_path: Path) -> None:
    """A sorted list is nothing to record; that is said before anything is done."""
    with pytest.raises(ValueError, match="without sort"):
        Recorder(None, tmp_path / "log", rule=jetbus.rule(sort_by="value"))
    assert not (tmp_path / "log").exists()


def test_densities(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Rules say how densely: not at all, or a sample in which the last value is never lost."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            fast = await owner.add_state("fast", 0)
            secret = await owner.add_state("secret", 0)
            slow = await owner.add_state("slow", 0)
            table = [("fast", "sample 100ms"), ("secret", "skip")]
            async with Recorder(daemon.url, tmp_path, densities=table) as recorder:
                for number in range(1, 1001):
                    for state in (fast, secret, slow):
                        state.change(number)
                await until_tree(recorder, {"fast": 1000, "slow": 1000})

    run(case())
    changes = [row["path"] for row in rows(tmp_path) if row["event"] == "change"]
    assert changes.count("slow") == 1000
    assert 1 <= changes.count("fast") < 500
    assert "secret" not in changes


def test_a_lost_connection_is_a_gap(daemon: RunningDaemon, tmp_path: Path) -> None:
    """After a lost connection a gap says since when and why; what changed, went and came meanwhile is told after it."""

    async def case() -> None:
        async with Recorder(daemon.url, tmp_path) as recorder, PeerAsync(daemon.url) as owner:
            async with PeerAsync(daemon.url) as leaving:
                await leaving.add_state("going", 1)
                changing = await owner.add_state("changing", 1)
                await until_tree(recorder, {"going": 1, "changing": 1})
                last = recorder.stats()["seq"] - 1
                await asyncio.to_thread(daemon.stop)
                await until(lambda: not (recorder.connected or owner.connected))
            changing.change(2)
            await asyncio.to_thread(daemon.start)
            await until(lambda: recorder.connected and owner.connected)
            await owner.add_state("coming", 1)
            await until_tree(recorder, {"changing": 2, "coming": 1})
        last_row, gap, *after = rows(tmp_path)[last - 1 :]
        assert gap["event"] == "gap"
        assert gap["detail"].keys() == {"reason", "recorder", "url", "since"}
        assert gap["detail"]["reason"] == "the connection was lost"
        assert last_row["ts"] <= datetime.fromisoformat(gap["detail"]["since"]) <= gap["ts"]
        assert [row["event"] for row in after if row["path"] == "going"] == ["remove"]
        check_chain(tmp_path)

    run(case())


def test_only_the_difference_is_told(daemon: RunningDaemon, tmp_path: Path) -> None:
    """If nothing has changed since the connection was lost, only a gap is recorded."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            states = {f"s/{number}": number for number in range(100)}
            for path, value in states.items():
                await owner.add_state(path, value)
            async with Recorder(daemon.url, tmp_path) as recorder:
                await until_tree(recorder, states)
                recorder.peer.abort()  # the cable is pulled
                await until(lambda: not recorder.connected)
                await until(lambda: recorder.connected)
                await owner.add_state("more", 1)
                await until_tree(recorder, states | {"more": 1})

    run(case())
    assert recorded_events(tmp_path)[101:] == [("gap",), ("add", "more", 1), ("stop",)]


def test_stopped_in_full_flow(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Everything that happened before the recorder was stopped is recorded."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            state = await owner.add_state("a", 0)
            async with Recorder(daemon.url, tmp_path):
                for number in range(1, 20_001):
                    state.change(number)
                await owner.info()  # the daemon has them all

    run(case())
    assert [row["value"] for row in rows(tmp_path) if row["event"] == "change"] == list(range(1, 20_001))


def test_stopped_while_the_connection_is_away(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A recorder that is stopped without a connection has recorded until when it knew."""

    async def case() -> None:
        async with Recorder(daemon.url, tmp_path) as recorder:
            await asyncio.to_thread(daemon.stop)
            await until(lambda: not recorder.connected)

    run(case())
    assert recorded_events(tmp_path) == [("start",), ("gap",), ("stop",)]


def test_a_journal_is_continued(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A journal that was closed goes on with the next seq, a start and all that is there."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            await owner.add_state("a", 1)
            for _ in range(2):
                async with Recorder(daemon.url, tmp_path) as recorder:
                    await until_tree(recorder, {"a": 1})
                assert tree(tmp_path) == {}

    run(case())
    assert recorded_events(tmp_path) == [("start",), ("add", "a", 1), ("stop",)] * 2
    assert [row["detail"]["restart"] for row in rows(tmp_path) if row["event"] == "start"] == [False, True]
    check_chain(tmp_path)


def test_it_must_be_started(tmp_path: Path) -> None:
    """A recorder that is not started says so, and stopping it is nothing."""

    async def case() -> None:
        recorder = Recorder(None, tmp_path / "log")
        with pytest.raises(RuntimeError, match="not started"):
            await recorder.wait()
        with pytest.raises(RuntimeError, match="not started"):
            recorder.stats()
        await recorder.stop()

    run(case())
    assert not (tmp_path / "log").exists()


def test_cancelled_while_it_starts(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A start that is given up half way leaves a journal that the next recorder can have."""

    async def case() -> None:
        for turns in range(5):
            recorder = Recorder(daemon.url, tmp_path)
            starting = asyncio.create_task(recorder.start())
            await connected(recorder)
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        async with Recorder(daemon.url, tmp_path):
            pass

    run(case())


def test_one_recorder_a_journal(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A second recorder is told that the journal is in use; the first goes on."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner, Recorder(daemon.url, tmp_path) as recorder:
            with pytest.raises(JournalInUse, match="is being written"):
                await Recorder(daemon.url, tmp_path).start()
            await owner.add_state("a", 1)
            await until_tree(recorder, {"a": 1})

    run(case())


def test_without_a_daemon(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Without a daemon the error says so, and no journal is begun."""
    daemon.stop()

    async def case() -> None:
        with pytest.raises(jetbus.NotConnected, match="no daemon at"):
            await Recorder(daemon.url, tmp_path / "log").start()

    run(case())
    assert not (tmp_path / "log").exists()


def test_disk_trouble(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A journal that vanishes under the recorder is a problem that is told, and ends when the disk is well again."""
    log, away = tmp_path / "log", tmp_path / "away"

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            state = await owner.add_state("a", 0)
            settings = Settings(segment_bytes=4096, fsync="never", flush_ms=5)
            async with Recorder(daemon.url, log, settings=settings) as recorder:
                await until_tree(recorder, {"a": 0})
                log.rename(away)
                while recorder.problem is None:  # a segment that is open goes on; the next one has no place
                    for _ in range(100):
                        state.change(state.value + 1)
                    await owner.info()
                away.rename(log)
                await until(lambda: recorder.problem is None and not recorder.stats()["pending"])
                await until_tree(recorder, {"a": state.value})
                last.append(state.value)

    last: list[int] = []
    run(case())
    values = [row["value"] for row in rows(log) if row["event"] == "change"]
    assert values == list(range(1, last[0] + 1))
    assert verify(log) == []


def test_what_the_disk_has_missed_is_made_good(daemon: RunningDaemon, tmp_path: Path) -> None:
    """After the disk has failed for too long, the journal has a gap and then the present state."""
    log = tmp_path / "log"

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            states = {path: await owner.add_state(path, 0) for path in ("changed", "removed", "quiet", "big")}
            settings = Settings(fsync="never", flush_ms=10, buffered_bytes_max=20_000)
            async with Recorder(daemon.url, log, settings=settings) as recorder:
                with file_size_limit(list_segments(log)[0].path.stat().st_size + 100):
                    states["changed"].change(1)
                    await states.pop("removed").remove()
                    await owner.add_state("fresh", 2)
                    while recorder.stats()["missed"] < 50:
                        states["big"].change("x" * 1000)
                        await owner.info()
                    assert recorder.problem is not None
                last = states["big"].value
                await until_tree(recorder, {"changed": 1, "quiet": 0, "big": last, "fresh": 2})
                assert recorder.problem is None
                states["quiet"].change(3)
                await until_tree(recorder, {"changed": 1, "quiet": 3, "big": last, "fresh": 2})

    run(case())
    assert [event for event, *_ in recorded_events(log) if event in ("start", "gap", "stop")] == [
        "start",
        "gap",
        "stop",
    ]
    assert ("remove", "removed", 0) in recorded_events(log)
    assert verify(log) == []


def test_record_until_stopped(daemon: RunningDaemon, tmp_path: Path) -> None:
    """``record`` records in its own loop until it is told to stop."""
    stop, started = threading.Event(), threading.Event()
    recording = threading.Thread(
        target=record,
        args=(daemon.url, tmp_path),
        kwargs={"stop": stop, "rule": "a", "on_start": lambda _recorder: started.set()},
    )
    with jetbus.Peer(daemon.url) as owner:
        owner.add_state("a", 1)
        owner.add_state("b", 1)
        recording.start()
        assert started.wait(20)
        stop.set()
        recording.join(20)
    assert not recording.is_alive()
    assert recorded_events(tmp_path) == [("start",), ("add", "a", 1), ("stop",)]


def test_a_refused_fetch_ends_the_recording(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A daemon that comes back and refuses the fetch ends the recording; why is raised, and is in the journal."""

    async def recorded() -> None:
        async with Recorder(daemon.url, tmp_path) as recorder:
            await asyncio.to_thread(daemon.stop)
            host, port = daemon.listening["tcp"].split(":")
            with running_daemon(tcp=Address(host, int(port)), fetches_max=0):
                await recorder.wait()

    async def case() -> None:
        with pytest.raises(jetbus.JetError, match="fetches_max"):
            await recorded()

    run(case())
    assert "fetches_max" in rows(tmp_path)[-1]["detail"]["reason"]


async def connected(recorder: Recorder) -> None:
    async with asyncio.timeout(20):
        while not recorder.connected:
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(3))
def test_the_journal_has_what_is_on_the_bus(daemon: RunningDaemon, tmp_path: Path, seed: int) -> None:
    """Whatever happens, in whichever order, the tree of the journal becomes that of the bus."""
    rng = random.Random(seed)

    async def case() -> None:
        recorder = Recorder(daemon.url, tmp_path)
        await recorder.start()
        async with PeerAsync(daemon.url) as owner:
            states: dict[str, Any] = {}
            for _ in range(12):
                for _ in range(rng.randrange(60)):
                    path = f"s/{rng.randrange(20)}"
                    if path not in states:
                        states[path] = await owner.add_state(path, rng.random())
                    elif rng.random() < 0.2:
                        await states.pop(path).remove()
                    else:
                        states[path].change(rng.choice([None, True, 1, "x", rng.random()]))
                event = rng.choice(["look", "cut", "stop"])
                if event == "cut":
                    await connected(recorder)
                    recorder.peer.abort()
                elif event == "stop":
                    await recorder.stop()
                    recorder = Recorder(daemon.url, tmp_path)
                    await recorder.start()
                await until_tree(recorder, {path: state.value for path, state in states.items()})
        await recorder.stop()

    run(case())
    check_chain(tmp_path)


def test_descriptions_are_recorded(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Schemas, source times and qualities that a daemon tells are recorded, and a new schema as an event of its own."""

    async def case() -> None:
        async with PeerAsync(daemon.url) as owner:
            state = await owner.add_state("pump", 1, unit="rpm")
            await owner.add_state("other", 2)
            async with Recorder(daemon.url, tmp_path) as recorder:
                state.change(2, ts=5_000_000, quality={"level": "bad", "reason": "cable"})
                state.describe(unit="Hz")
                await until_tree(recorder, {"pump": 2, "other": 2})
                state.change(3)
                await until_tree(recorder, {"pump": 3, "other": 2})
                found = {row["path"]: row["unit"] for row in journal.open(tmp_path).as_of().to_pylist()}
                assert found == {"pump": "Hz", "other": None}

    run(case())
    of_pump = [row for row in rows(tmp_path) if row["path"] == "pump"]
    assert [(row["event"], row["value"]) for row in of_pump if row["event"] in ("add", "describe")] == [
        ("add", 1),
        ("describe", None),
    ]
    stamped = {(row["value"], row["quality"], row["source_ts"].second) for row in of_pump if row["source_ts"]}
    assert stamped == {(2, '{"level":"bad","reason":"cable"}', 5)}
