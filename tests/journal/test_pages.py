"""Pages of trees and histories: each table is computed once, however many pages it has."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import jetbus
from jetbus.journal import Journal, pages
from jetbus.journal.pages import PageCursors, read_page, write_history_page, write_tree_page
from jetbus.testing import running_daemon
from support.journal_files import SkippingClock
from support.journal_model import BEGIN_US, Event, record

STATES = 40


class CountingJournal(Journal):
    """A journal that counts how often a tree or a history is computed."""

    def __init__(self, directory: Path) -> None:
        super().__init__([directory])
        self.computed: Counter[str] = Counter()

    def as_of(self, *args: Any, **options: Any) -> Any:
        self.computed["tree"] += 1
        return super().as_of(*args, **options)

    def history(self, *args: Any, **options: Any) -> Any:
        self.computed["history"] += 1
        return super().history(*args, **options)


@pytest.fixture
def journal(tmp_path: Path) -> CountingJournal:
    adds = [Event(BEGIN_US, "add", f"s/{number}", "0", "plc#1", "state") for number in range(STATES)]
    changes = [Event(BEGIN_US + number, "change", "s/0", str(number), "plc#1") for number in range(1, STATES)]
    record(tmp_path, [[[*adds, *changes]]])
    return CountingJournal(tmp_path)


def read_tree(journal: Journal, cursors: PageCursors, *, caller: str = "") -> list[str]:
    """Read a tree in pages of three rows."""
    paths: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = write_tree_page(journal, offset=offset, limit=3, cursors=cursors, caller=caller)
        table, offset = read_page(page)
        paths += table["path"].to_pylist()
        assert table.schema.metadata[b"total"] == b"%d" % STATES
    return paths


def read_history(journal: Journal, cursors: PageCursors) -> list[str]:
    """Read the history of a path in pages of three rows."""
    values: list[str] = []
    offset: int | None = 0
    while offset is not None:
        table, offset = read_page(write_history_page(journal, "s/0", offset=offset, limit=3, cursors=cursors))
        values += table["value"].to_pylist()
    return values


def test_tree_is_computed_once(journal: CountingJournal) -> None:
    """All pages of a tree come from one computation, and no cursor is left at the end."""
    cursors = PageCursors()
    assert read_tree(journal, cursors) == [f"s/{number}" for number in range(STATES)]
    assert journal.computed["tree"] == 1
    assert len(cursors) == 0


def test_history_is_computed_once(journal: CountingJournal) -> None:
    """All pages of a history come from one computation, and no cursor is left at the end."""
    cursors = PageCursors()
    assert read_history(journal, cursors) == [str(number) for number in range(STATES)]
    assert journal.computed["history"] == 1
    assert len(cursors) == 0


def test_page_without_cursor_is_computed(journal: CountingJournal) -> None:
    """A page can be asked for at any position, also after its cursor was dropped."""
    table, offset = read_page(write_tree_page(journal, offset=STATES - 2, limit=3, cursors=PageCursors()))
    assert (table["path"].to_pylist(), offset) == ([f"s/{STATES - 2}", f"s/{STATES - 1}"], None)


def test_cursors_are_not_shared(journal: CountingJournal) -> None:
    """Every caller has cursors of its own."""
    cursors = PageCursors()
    for caller in ("ann#1", "ben#2"):
        write_tree_page(journal, limit=3, cursors=cursors, caller=caller)
    assert len(cursors) == 2
    for caller in ("ann#1", "ben#2"):
        write_tree_page(journal, offset=3, limit=3, cursors=cursors, caller=caller)
    assert journal.computed["tree"] == 2


def test_oldest_cursor_is_dropped(journal: CountingJournal) -> None:
    """Beyond the limit the oldest cursor goes, and its reader still gets every row."""
    dropped: list[None] = []
    cursors = PageCursors(lambda: 2, on_drop=lambda: dropped.append(None))
    for caller in ("ann#1", "ben#2", "cid#3"):
        write_tree_page(journal, limit=3, cursors=cursors, caller=caller)
    assert (len(cursors), len(dropped)) == (2, 1)
    table, _ = read_page(write_tree_page(journal, offset=3, limit=3, cursors=cursors, caller="ann#1"))
    assert table["path"].to_pylist() == ["s/3", "s/4", "s/5"]
    assert journal.computed["tree"] == 4


def test_cursors_are_limited_by_bytes(journal: CountingJournal) -> None:
    """A table that is too large is not kept between two pages."""
    cursors = PageCursors(bytes_max=lambda: 10)
    write_tree_page(journal, limit=3, cursors=cursors)
    assert len(cursors) == 0


def test_pages_of_trees_are_limited_by_bytes(journal: CountingJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a tree or history ends with the row that crosses its size, and says where the next one begins."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    table, offset = read_page(write_tree_page(journal))
    assert (table.num_rows, offset) == (1, 1)
    table, _ = read_page(write_history_page(journal, "s/0"))
    assert table.num_rows == 1


def test_idle_cursors_are_dropped(journal: CountingJournal) -> None:
    """A cursor that nobody uses for a while does not stay in memory."""
    clock = SkippingClock()
    cursors = PageCursors(monotonic_s=clock)
    write_tree_page(journal, limit=3, cursors=cursors)
    clock.skip(pages.CURSOR_IDLE_S + 1)
    write_history_page(journal, "s/0", limit=3, cursors=cursors)
    assert len(cursors) == 1


def test_paging_over_the_bus_is_linear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that pages through a tree makes the daemon compute it once; cursors beyond the limit are counted."""
    computed: list[Any] = []
    as_of = Journal.as_of

    def count_and_read(self: Journal, *args: Any, **options: Any) -> Any:
        computed.append(args)
        return as_of(self, *args, **options)

    monkeypatch.setattr(Journal, "as_of", count_and_read)
    with (
        running_daemon(journal=tmp_path / "journal", journal_cursors_max=1) as daemon,
        jetbus.Peer(daemon.url) as peer,
    ):
        for number in range(STATES):
            peer.add_state(f"s/{number}", number)
        offset: int | None = 0
        rows = 0
        while offset is not None:
            table, offset = read_page(peer.call("$jet/journal/as_of", offset=offset, limit=3))
            rows += table.num_rows
        assert (rows, len(computed)) == (STATES, 1)
        for rule in ("s/1*", "s/2*"):
            peer.call("$jet/journal/as_of", rule=rule, limit=1)
        assert peer.get_all("$jet/limit_hits")["$jet/limit_hits"]["journal_cursors_max"] == 1
