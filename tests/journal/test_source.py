"""One way to the past: questions that mean one moment, for folders and daemons alike."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.cli.journals import open_daemon
from jetbus.cli.target import Target
from jetbus.journal.instants import US_PER_S
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
from jetbus.radar.archive import BusArchive
from jetbus.rules import rule
from jetbus.spark.journals import Wanted, open_place
from jetbus.spark.options import DaemonAddress
from jetbus.testing import RunningDaemon, running_daemon

BUSY_PER_S = 5_000
CHANGES_BEFORE = 30_000
"""More than a page, so that a reader asks again while the owner goes on."""


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


READERS: dict[str, Callable[[jetbus.Peer, RunningDaemon], int]] = {
    "Peer.history": lambda peer, _daemon: peer.history("busy").num_rows,
    "Peer.tree": lambda peer, _daemon: peer.tree(text="busy")["num"].to_pylist()[0] + 1,
    "Peer.frame": lambda peer, _daemon: int(peer.frame("busy", every="1ms")["busy"].iloc[-1]) + 1,
    "jet history": lambda _peer, daemon: _read_by_command(daemon),
    "Radar": lambda _peer, daemon: _read_by_radar(daemon),
    "a task of Spark": lambda _peer, daemon: _read_by_task(daemon),
}


def _read_by_command(daemon: RunningDaemon) -> int:
    with Target(daemon.url).connect() as peer:
        source = open_daemon(peer)
        return len(source.history("busy", source.pin()))


def _read_by_radar(daemon: RunningDaemon) -> int:
    archive = BusArchive(daemon.url, {})
    try:
        found = archive.read_events(["busy"], None, None, ("add", "change"))
        return sum(batch.num_rows for batch in found)
    finally:
        archive.close()


def _read_by_task(daemon: RunningDaemon) -> int:
    bus = open_place(DaemonAddress(daemon.url))
    try:
        wanted = Wanted(("seq",), rule(equals="busy"))
        return sum(batch.num_rows for batch in bus.events(wanted, *bus.ends()))
    finally:
        bus.close()


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_readers_end_beside_a_busy_owner(
    read: Callable[[jetbus.Peer, RunningDaemon], int], daemon: RunningDaemon
) -> None:
    """A reader ends with what there was when it was asked, however fast an owner goes on."""
    with jetbus.Peer(daemon.url) as owner, jetbus.Peer(daemon.url) as reader:
        state = owner.add_state("busy", 0)
        for number in range(1, CHANGES_BEFORE):
            state.change(number)
        owner.info()
        stop, count = threading.Event(), CHANGES_BEFORE

        def change() -> None:
            nonlocal count
            while not stop.wait(1 / 100):
                for _ in range(BUSY_PER_S // 100):
                    state.change(count)
                    count += 1

        busy = threading.Thread(target=change)
        busy.start()
        try:
            before = count
            found = read(reader, daemon)
            after = count
        finally:
            stop.set()
            busy.join()
        assert CHANGES_BEFORE <= before <= found + BUSY_PER_S
        assert CHANGES_BEFORE <= found <= after


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
