"""One way to the past: questions that mean one moment, for folders and daemons alike."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.journal.instants import US_PER_S, write_instant
from jetbus.journal.source import (
    AskedAt,
    FolderAnswers,
    JournalRequest,
    Pager,
    pin,
    read_all,
    read_history,
    run_query,
)
from jetbus.player.recording import Recording
from jetbus.radar.archive import Archive, BusArchive, LocalArchive
from jetbus.recorder.recorder import _read_tree
from jetbus.rules import rule
from jetbus.spark.journals import Wanted, open_place
from jetbus.spark.options import DaemonAddress
from jetbus.testing import RunningDaemon, running_daemon
from support.busy import PATH, BusyOwner, check_reader


class SlowClock:
    """A clock that passes a second with each look."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        self.s += 1.0
        return self.s


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    with running_daemon(journal=tmp_path / "journal") as made:
        yield made


def answers_of(peer: jetbus.Peer) -> Callable[[JournalRequest], Any]:
    return lambda request: peer.call(request.path, **request.params)


def test_an_instant_is_resolved_once(daemon: RunningDaemon, tmp_path: Path) -> None:
    """However long the way to the journal takes, ``-10s`` is ten seconds before the question, for all paths."""
    with jetbus.Peer(daemon.url) as peer:
        for name in "abc":
            peer.add_state(name, 1)
        folder = FolderAnswers(jetbus.journal.open(tmp_path / "journal"))
        for ask in (answers_of(peer), folder):
            asked = AskedAt(SlowClock())
            windows = [run_query(pin(asked, "-10s", "-1s"), ask) for _ in range(3)]
            assert [(one.until_us or 0) - (one.since_us or 0) for one in windows] == [9 * US_PER_S] * 3
            # By that clock, 1, 2 and 3 s have passed since the question; each is taken back.
            plain = run_query(pin(AskedAt(), "-10s"), ask)
            assert (plain.since_us or 0) - (windows[-1].since_us or 0) >= 2.9 * US_PER_S


def test_pages_share_the_window(daemon: RunningDaemon) -> None:
    """All pages of a range ask for the same instants and the same end."""
    with jetbus.Peer(daemon.url) as peer:
        states = [peer.add_state(name, 0) for name in "ab"]
        for number in range(20):
            states[0].change(number)
        seen: list[JournalRequest] = []

        def ask(request: JournalRequest) -> Any:
            seen.append(request)
            states[1].change(len(seen))  # the journal grows between two pages
            return peer.call(request.path, **request.params)

        within = run_query(pin(AskedAt(), "-1h"), ask)
        table = run_query(read_all(Pager("range", within.make_params(), page_rows=3)), ask)
        pages = seen[1:]
        assert len(pages) > 5
        windows = {(one.params["since"], one.params["seqUntil"]) for one in pages}
        assert windows == {(within.since_us, within.seq_until)}
        assert table["seq"].to_pylist() == list(range(1, within.seq_until))


class Site:
    """A daemon and the folder of its journal, as readers find them."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    def run(self, *words: str) -> list[dict[str, Any]]:
        """Return the records that a command prints."""
        jet = Path(sys.executable).with_name("jet")
        done = subprocess.run([jet, *words, "--output", "jsonl"], capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def ask(self, read: Callable[[jetbus.Peer], Any]) -> Any:
        """Return the answer of a peer."""
        with jetbus.Peer(self.url) as peer:
            return read(peer)

    async def ask_async(self, read: Callable[[jetbus.PeerAsync], Any]) -> Any:
        """Return the answer of a peer on an event loop."""
        async with jetbus.PeerAsync(self.url) as peer:
            return await read(peer)

    @property
    def begin(self) -> str:
        """Instant of the first event of the path."""
        ((_, offsets),) = jetbus.journal.open(self.folder).offsets().items()
        return write_instant(offsets["first_ts"] or 0)


def read_archive(archive: Archive) -> list[Any]:
    try:
        batches = archive.read_events([PATH], None, None, ("add", "change"))
        return [int(value) for batch in batches for value in batch["value"].to_pylist()]
    finally:
        archive.close()


def read_chart(archive: Archive) -> list[Any]:
    try:
        return [int(number) for number in archive.read_points(PATH, "", 0, None).numbers]
    finally:
        archive.close()


def read_task(place: Path | DaemonAddress) -> list[Any]:
    bus = open_place(place)
    try:
        batches = bus.events(Wanted(("value",), rule(equals=PATH)), *bus.ends())
        return [int(value) for batch in batches for value in batch["value"].to_pylist()]
    finally:
        bus.close()


def read_recording(folder: Path) -> list[Any]:
    recording = Recording(folder, rule(equals=PATH), None, None)
    events = [event for chunk in recording.after(recording.start_us) for event in chunk]
    return [int(event.value or 0) for event in events if event.path == PATH]


def read_before_recording(folder: Path) -> list[Any]:
    """Return the tree from which a recorder goes on after a crash."""
    return [int(known.value or 0) for path, known in _read_tree(folder).items() if path == PATH]


def values(table: Any) -> list[Any]:
    return [int(number) for number in table["num"].to_pylist()]


READERS: dict[str, Callable[[Site], list[Any]]] = {
    "Peer.history": lambda site: values(site.ask(lambda peer: peer.history(PATH))),
    "Peer.tree": lambda site: values(site.ask(lambda peer: peer.tree(text=PATH))),
    "Peer.frame": lambda site: [site.ask(lambda peer: peer.frame(PATH, every="1ms"))[PATH].iloc[-1]],
    "PeerAsync.history": lambda site: values(asyncio.run(site.ask_async(lambda peer: peer.history(PATH)))),
    "PeerAsync.tree": lambda site: values(asyncio.run(site.ask_async(lambda peer: peer.tree(text=PATH)))),
    "jet history": lambda site: [row["value"] for row in site.run("history", PATH, "--url", site.url)],
    "jet history of a folder": lambda site: [
        row["value"] for row in site.run("history", PATH, "--journal", str(site.folder))
    ],
    "jet at": lambda site: [row["value"] for row in site.run("at", "now", PATH, "--url", site.url)],
    "jet diff": lambda site: [row["after"] for row in site.run("diff", site.begin, "now", PATH, "--url", site.url)],
    "jet journal export": lambda site: [
        row["value"] for row in site.run("journal", "export", str(site.folder), "--rule", PATH)
    ],
    "Radar's archive of a daemon": lambda site: read_archive(BusArchive(site.url, {})),
    "Radar's archive of a folder": lambda site: read_archive(LocalArchive(site.folder)),
    "Radar's chart of a daemon": lambda site: read_chart(BusArchive(site.url, {})),
    "Radar's chart of a folder": lambda site: read_chart(LocalArchive(site.folder)),
    "a task of Spark over the bus": lambda site: read_task(DaemonAddress(site.url)),
    "a task of Spark over a folder": lambda site: read_task(site.folder),
    "a player": lambda site: read_recording(site.folder),
    "a recorder": lambda site: read_before_recording(site.folder),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_readers_end_beside_a_busy_owner(
    read: Callable[[Site], list[Any]], daemon: RunningDaemon, tmp_path: Path
) -> None:
    """A reader ends with exactly what there was when it was asked, however fast an owner goes on."""
    with BusyOwner(daemon.url):
        check_reader(daemon.url, lambda: read(Site(daemon.url, tmp_path / "journal")))


def test_a_rule_without_words_on_the_wire(daemon: RunningDaemon) -> None:
    """Tests that a daemon cannot make are made here, and columns that only they need are left out."""
    with jetbus.Peer(daemon.url) as peer:
        for name in ("a/x/b", "a/x/y/b", "a/b"):
            peer.add_state(name, 1)
        ask = answers_of(peer)
        within = run_query(pin(AskedAt()), ask)
        pager = Pager("range", {**within.make_params(), "columns": ["seq"], "events": ["add"]}, rule("a/*/b"))
        assert run_query(read_all(pager), ask).column_names == ["seq"]
        found = run_query(read_history(AskedAt(), rule("a/*/b"), None, None), ask)
        assert found["path"].to_pylist() == ["a/x/b"]
