"""Owners with a buffer: whatever breaks, every value of their states is in the journal."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

import jetbus
from jetbus import journal
from jetbus.peer import connection
from jetbus.testing import running_daemon
from support.daemon import Daemon

WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Come back quickly, to keep the tests short."""
    monkeypatch.setattr(connection, "BACKOFF_MAX_S", 0.05)


class MortalDaemon:
    """A daemon with a journal that is killed and started again at the same addresses."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self._options = ("--journal", str(directory), *options)
        self.daemon = Daemon.start(*self._options)
        self._addresses = [
            part for name, address in self.daemon.listens.items() for part in (f"--{name.replace('_', '-')}", address)
        ]

    def url(self, scheme: str) -> str:
        return f"{scheme}://{self.daemon.listens[{'jet': 'tcp', 'jetb': 'binary', 'ws': 'ws'}[scheme]]}"

    def kill(self) -> None:
        self.daemon.process.send_signal(signal.SIGKILL)
        self.daemon.process.wait()
        self.daemon.close_log()

    def start(self) -> None:
        self.daemon = Daemon.start(*self._options, *self._addresses)

    def recorded(self, path: str) -> list[str]:
        """All values of a state in the order of their time, each once."""
        values: dict[int, str] = {}
        for batch in journal.open(self.directory).read(None, events=("add", "change", "past")):
            for row in batch.to_pylist():
                if row["path"] == path:
                    values[row["source_ts"]] = row["value"]
        return [values[ts] for ts in sorted(values)]

    def history(self, path: str) -> list[str]:
        """The values of a state in effective time, equal neighbours as one."""
        rows = journal.open(self.directory).history(path).to_pylist()
        assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
        return [value for value, _ in groupby(row["value"] for row in rows if row["event"] != "remove")]


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[MortalDaemon]:
    daemon = MortalDaemon(tmp_path / "log")
    yield daemon
    daemon.daemon.stop()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("scheme", ["jet", "jetb", "ws"])
@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_killed_daemon_loses_nothing(mortal: MortalDaemon, tmp_path: Path, scheme: str, place: str) -> None:
    """Values from before the kill that were not on disk yet, and those until the daemon is back, are recorded."""
    place = "memory" if place == "memory" else str(tmp_path / "buffer")
    with jetbus.Peer(mortal.url(scheme), buffer=place) as peer:
        assert peer.buffer is not None
        state = peer.add_state("pump/n", 0)
        for number in range(1, 300):
            state.change(number)
        mortal.kill()
        until(lambda: not peer.connected)
        for number in range(300, 600):
            state.change(number)
        mortal.start()
        until(lambda: peer.connected)
        for number in range(600, 700):
            state.change(number)
        until(lambda: not len(peer.buffer or ()))
        assert peer.get("pump/n") == 699
        assert peer.buffer.gaps == []
    assert mortal.recorded("pump/n") == mortal.history("pump/n") == [str(number) for number in range(700)]


def test_an_asynchronous_owner(mortal: MortalDaemon) -> None:
    """PeerAsync keeps values in the same way, those that others set included, and waits for their record to close."""

    async def case() -> None:
        async with jetbus.PeerAsync(mortal.url("jet"), buffer="memory") as peer:
            state = await peer.add_state("pump/n", 0, on_set=lambda _value: None)
            await peer.set("pump/n", 1)
            await asyncio.to_thread(mortal.kill)
            while peer.connected:
                await asyncio.sleep(0.01)
            state.change(2, quality="uncertain")
            await asyncio.to_thread(mortal.start)
            while not peer.connected or len(peer.buffer or ()):
                await asyncio.sleep(0.01)
            state.change(3)

    asyncio.run(asyncio.wait_for(case(), WITHIN_S))
    assert mortal.recorded("pump/n") == ["0", "1", "2", "3"]


OWNER = """
import sys, jetbus
with jetbus.Peer(sys.argv[1], buffer=sys.argv[2]) as peer:
    state = peer.add_state("pump/n", int(sys.argv[3]))
    print("ready", flush=True)
    for line in sys.stdin:
        state.change(int(line))
        print("changed", flush=True)
"""


def test_a_killed_owner_loses_nothing(mortal: MortalDaemon, tmp_path: Path) -> None:
    """The next process that adds the state sends the values that a killed owner has left in a folder."""

    def start(first: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OWNER, mortal.url("jet"), str(tmp_path / "buffer"), str(first)]
        owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert owner.stdout is not None
        assert owner.stdout.readline() == "ready\n"
        return owner

    owner = start(0)
    assert owner.stdin is not None
    assert owner.stdout is not None
    mortal.kill()
    for number in range(1, 50):
        owner.stdin.write(f"{number}\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "changed\n"
    owner.kill()
    owner.communicate()
    mortal.start()
    second = start(50)
    with jetbus.Peer(mortal.url("jet")) as client:

        def is_recorded() -> bool:
            table = client.history("pump/n", since="-1h").num_rows
            return table > 0 and len(mortal.recorded("pump/n")) >= 51

        until(is_recorded)
    second.communicate("")
    assert mortal.recorded("pump/n") == [str(number) for number in range(51)]


def test_repeated_values_count_once(tmp_path: Path) -> None:
    """A value that arrived although its confirmation did not is not told to others again, nor twice in the history."""
    with running_daemon(journal=tmp_path / "log", journal_fsync="always") as daemon:
        with jetbus.Peer(daemon.url) as client, jetbus.Peer(daemon.url, buffer="memory") as peer:
            assert peer.buffer is not None
            state = peer.add_state("pump/n", 0)
            fetch = client.fetch("pump/n").ready()
            assert fetch.next().value == 0
            state.change(1)
            assert fetch.next().value == 1
            peer.buffer.take_back()  # as if the connection had been lost with the answer
            peer.session.buffering._begin_to_drain()  # type: ignore[union-attr]
            until(lambda: not len(peer.buffer or ()))
            state.change(2)
            assert fetch.next().value == 2
        rows = [
            row
            for batch in journal.open(tmp_path / "log").read(None, events=("change", "past"))
            for row in batch.to_pylist()
        ]
        assert [(row["event"], row["value"]) for row in rows if row["event"] == "change"] == [
            ("change", "1"),
            ("change", "2"),
        ]
        history = journal.open(tmp_path / "log").history("pump/n").to_pylist()
        assert [row["value"] for row in history if row["event"] != "remove"] == ["0", "0", "1", "2"]


def test_a_daemon_without_a_journal(caplog: pytest.LogCaptureFixture) -> None:
    """One warning says that the daemon has no past; values are not kept meanwhile."""
    with running_daemon() as daemon, jetbus.Peer(daemon.url, buffer="memory") as peer:
        assert peer.buffer is not None
        state = peer.add_state("pump/n", 0)
        until(lambda: "keeps no journal" in caplog.text)
        count = len(peer.buffer)
        state.change(1)
        daemon.restart()
        until(lambda: peer.connected and peer.get("pump/n") == 1)
        assert len(peer.buffer) == count
        assert caplog.text.count("has no past") == 1


def test_options_that_mean_nothing() -> None:
    """Wrong options are refused with what to give."""
    with pytest.raises(ValueError, match="need a buffer"):
        jetbus.Peer(buffer_max=100)
    with pytest.raises(ValueError, match="at least"):
        jetbus.Peer(buffer="memory", buffer_max=100)
    with pytest.raises(ValueError, match="buffer_share is 2"):
        jetbus.Peer(buffer="memory", buffer_share=2)


@pytest.mark.parametrize("scheme", ["jet", "jetb"])
def test_a_full_buffer_leaves_a_gap(mortal: MortalDaemon, tmp_path: Path, scheme: str) -> None:
    """Values that a full buffer drops are a gap in the journal of each state, also if their owner ended meanwhile."""
    place = str(tmp_path / "buffer")
    first = jetbus.Peer(mortal.url(scheme), buffer=place, buffer_max=64 << 10)
    first.connect()
    states = [first.add_state(f"pump/{name}", 0) for name in "ab"]
    until(lambda: not len(first.buffer or ()))
    mortal.kill()
    until(lambda: not first.connected)
    for number in range(1, 3000):
        for state in states:
            state.change(number)
    assert first.buffer is not None
    assert first.buffer.dropped > 0
    gap = next(gap for gap in first.buffer.gaps if gap.path == "pump/a")
    first.close()
    mortal.start()
    with jetbus.Peer(mortal.url(scheme), buffer=place, buffer_max=64 << 10) as second:
        for name in "ab":
            second.add_state(f"pump/{name}", 2999)
        until(lambda: second.buffer is not None and not len(second.buffer) and not second.buffer.untold)
        rows = journal.open(mortal.directory).history("pump/a").to_pylist()
    (lost,) = [row for row in rows if row["event"] == "past" and row["value"] is None]
    at = rows.index(lost)
    assert (round(lost["ts"].timestamp() * 1e6), lost["quality"], lost["late"]) == (gap.since_us, "bad", True)
    values = [row["value"] for row in rows[at + 1 :] if row["event"] == "past"]
    assert values == [str(number) for number in range(1 + gap.missed, 3000)]
    assert {row["value"] for row in rows[:at]} <= {"0", None}
    assert journal.open(mortal.directory).as_of(gap.until_us, "pump/a", corrected=True)["value"].to_pylist() == [None]


def test_the_whole_way(mortal: MortalDaemon, tmp_path: Path) -> None:
    """Owners that are cut off in turns, and a daemon that is killed twice, leave no hole and no value out of order."""
    owners = [
        jetbus.Peer(mortal.url(scheme), name=f"owner{number}", buffer=place)
        for number, (scheme, place) in enumerate(
            [("jet", "memory"), ("jetb", str(tmp_path / "buffer")), ("ws", "memory"), ("jet", "memory")]
        )
    ]
    for owner in owners:
        owner.connect()
    states = {
        f"o{index}/{name}": owner.add_state(f"o{index}/{name}", 0)
        for index, owner in enumerate(owners)
        for name in "ab"
    }
    written = dict.fromkeys(states, 0)

    def change_all(times: int) -> None:
        for _ in range(times):
            for path, state in states.items():
                written[path] += 1
                state.change(written[path])

    change_all(50)
    for turn, owner in enumerate(owners):
        owner.abort()
        change_all(30)
        if turn % 2:
            mortal.kill()
            change_all(30)
            mortal.start()
        until(lambda: all(owner.connected for owner in owners))
        change_all(20)
    until(lambda: all(not len(owner.buffer or ()) for owner in owners))
    assert [owner.buffer.dropped for owner in owners if owner.buffer is not None] == [0] * len(owners)
    for owner in owners:
        owner.close()
    for path, last in written.items():
        assert mortal.recorded(path) == mortal.history(path) == [str(number) for number in range(last + 1)]
    tree = journal.open(mortal.directory).as_of(corrected=True)
    assert tree.num_rows == 0, "the owners have left, and have removed their states"
