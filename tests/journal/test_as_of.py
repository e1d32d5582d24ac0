"""The tree at an instant: from the nearest snapshot and what came after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jetbus.journal
from jetbus.errors import NotFound
from jetbus.journal import BeforeJournal, Journal, JournalError, JournalGone, NotRecorded, maintenance, snapshots
from jetbus.journal.recorded_units import UNIT, add_unit_column
from jetbus.journal.segment import list_segments
from jetbus.journal.tree import TREE
from jetbus.rules import parse_rule
from support.journal_model import BEGIN_US, Event, Row, cut, open_writer, plant, record, rows, tree_after, write


def add(ts: int, path: str, value: str | None = "0", peer: str = "a#1", detail: str | None = None) -> Event:
    return Event(BEGIN_US + ts, "add", path, value, peer, "method" if value is None else "state", detail)


def change(ts: int, path: str, value: str, peer: str = "a#1") -> Event:
    return Event(BEGIN_US + ts, "change", path, value, peer)


def remove(ts: int, path: str) -> Event:
    return Event(BEGIN_US + ts, "remove", path, None, "a#1", "state")


def brief_tree(journal: Journal, ts: int, **wishes: Any) -> list[tuple[Any, ...]]:
    """Return a tree in short: path, value, owner, created_seq, seq."""
    table = journal.as_of(BEGIN_US + ts, **wishes)
    assert table.schema == TREE.append(UNIT)
    return [(row["path"], row["value"], row["peer"], row["created_seq"], row["seq"]) for row in table.to_pylist()]


STORIES: dict[str, tuple[list[Event], list[tuple[Any, ...]]]] = {
    "add": ([add(1, "x")], [("x", "0", "a#1", 1, 1)]),
    "change": ([add(1, "x"), change(2, "x", "5", "b#2")], [("x", "5", "a#1", 1, 2)]),
    "remove": ([add(1, "x"), add(1, "y"), remove(2, "x")], [("y", "0", "a#1", 2, 2)]),
    "again": (
        [add(1, "x"), add(1, "y"), remove(2, "x"), add(3, "x", "9", "c#3")],
        [("y", "0", "a#1", 2, 2), ("x", "9", "c#3", 4, 4)],
    ),
    "again and changed": (
        [add(1, "x"), remove(2, "x"), add(3, "x", "9", "c#3"), change(4, "x", "10")],
        [("x", "10", "c#3", 3, 4)],
    ),
    "method": ([add(1, "m", None)], [("m", None, "a#1", 1, 1)]),
    "restart": ([add(1, "x"), Event(BEGIN_US + 2, "start"), add(3, "y")], [("y", "0", "a#1", 3, 3)]),
    "stop": ([add(1, "x"), Event(BEGIN_US + 2, "stop")], []),
    "requests": ([add(1, "x"), Event(BEGIN_US + 2, "set", "x", "7", "b#2", "state")], [("x", "0", "a#1", 1, 1)]),
    "never added": ([change(1, "x", "1"), change(2, "x", "2", "b#2")], [("x", "2", "a#1", 1, 2)]),
    "never added, changed often": (
        [change(n, path, str(n), f"p#{n}") for n in range(1, 6) for path in ("x", "y")],
        [("x", "5", "p#1", 1, 9), ("y", "5", "p#1", 2, 10)],
    ),
    "changed after its remove": (
        [add(1, "x"), remove(1, "x"), change(2, "x", "1", "b#2"), change(2, "x", "2")],
        [("x", "2", "b#2", 3, 4)],
    ),
    "not there": ([add(1, "x"), remove(2, "y")], [("x", "0", "a#1", 1, 1)]),
}


@pytest.mark.parametrize("batch", [1, 2, 100], ids=["single", "pairs", "at once"])
@pytest.mark.parametrize(("events", "wanted"), STORIES.values(), ids=STORIES)
def test_stories(tmp_path: Path, events: list[Event], wanted: list[tuple[Any, ...]], batch: int) -> None:
    """The tree has what was added and not removed since, with its last value, first owner and place of creation."""
    record(tmp_path, [cut(events, batch)])
    assert brief_tree(jetbus.journal.open(tmp_path), 1000) == wanted


@pytest.mark.parametrize(("events", "wanted"), STORIES.values(), ids=STORIES)
def test_stories_over_snapshots(tmp_path: Path, events: list[Event], wanted: list[tuple[Any, ...]]) -> None:
    """A tree that is built from a snapshot after every event is the same."""
    record(tmp_path, [[[event]] for event in events])
    assert snapshots.list_snapshots(tmp_path) == list(range(1, len(events) + 1))
    for seq in snapshots.list_snapshots(tmp_path)[-1:]:
        (tmp_path / "snapshots" / f"{seq:020}.arrow").unlink()
    assert brief_tree(jetbus.journal.open(tmp_path), 1000) == wanted


@pytest.mark.parametrize(("events", "wanted"), STORIES.values(), ids=STORIES)
def test_stories_in_parquet(tmp_path: Path, events: list[Event], wanted: list[tuple[Any, ...]]) -> None:
    """A tree that is told from compacted events, without any snapshot, is the same."""
    record(tmp_path, [[events], [[Event(BEGIN_US + 2000, "peer", peer="z#9")]]])
    assert jetbus.journal.compact(tmp_path).events == len(events)
    for file in (tmp_path / "snapshots").iterdir():
        file.unlink()
    assert brief_tree(jetbus.journal.open(tmp_path), 1000) == wanted


EVENTS = plant(600)
ROWS = rows(EVENTS)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    directory = tmp_path_factory.mktemp("journal")
    record(directory, [cut(segment, 40) for segment in cut(EVENTS, 150)])
    return jetbus.journal.open(directory)


def test_every_seq_and_every_instant(journal: Journal) -> None:
    """The tree after each seq, and at each instant, is what its events tell one by one."""
    for seq in range(0, 601, 7):
        assert journal.as_of(seq=seq).to_pylist() == tree_after(ROWS[:seq])
    for ts_us in range(BEGIN_US - 1, EVENTS[-1].ts_us + 2000, 7300):
        past = sum(event.ts_us <= ts_us for event in EVENTS)
        assert journal.as_of(ts_us, missing_ok=True).to_pylist() == tree_after(ROWS[:past])


def test_now(journal: Journal) -> None:
    """Without instant or seq it is the tree as it is; a seq to come is the same."""
    assert journal.as_of().to_pylist() == tree_after(ROWS)
    assert journal.as_of(seq=10_000).to_pylist() == tree_after(ROWS)
    assert journal.as_of("now").to_pylist() == tree_after(ROWS)


def test_instant_and_seq(journal: Journal) -> None:
    """Instant and seq at once are refused."""
    with pytest.raises(JournalError, match="not both"):
        journal.as_of("now", seq=3)


@pytest.mark.parametrize("text", ["plant/line1/**", "plant/** value>5", "value:number", "plant/*/s3", "nowhere"])
def test_rules(journal: Journal, text: str) -> None:
    """A rule picks elements by path and by the value they have then, not by values on the way."""
    rule = parse_rule(text)
    test = rule.matches_value

    def matches(row: Row) -> bool:
        if not rule.matches_path(row["path"]):
            return False
        return test is None or (row["value"] is not None and test(json.loads(row["value"])))

    found = 0
    for seq in range(50, 600, 50):
        wanted = [row for row in tree_after(ROWS[:seq]) if matches(row)]
        assert journal.as_of(seq=seq, rule=text, missing_ok=True).to_pylist() == wanted
        found += len(wanted)
    assert bool(found) == (text != "nowhere")


def test_a_snapshot_stands_for_what_is_gone(tmp_path: Path) -> None:
    """After old segments are dropped, trees since the last snapshot before are still known, and no earlier one."""
    record(tmp_path, [[segment] for segment in cut(EVENTS, 150)])
    for segment in list_segments(tmp_path)[:2]:
        segment.path.unlink()
        segment.index_path.unlink()
    journal = jetbus.journal.open(tmp_path)
    for seq in (300, 301, 450, 599):
        assert journal.as_of(seq=seq).to_pylist() == tree_after(ROWS[:seq])
    with pytest.raises(JournalGone) as gone:
        journal.as_of(seq=200)
    assert gone.value.first_seq == 301


def test_without_any_snapshot(tmp_path: Path) -> None:
    """If nothing is known of the time before, a tree is known from the next start of the daemon on."""
    events = [add(1, "x"), change(2, "x", "2"), Event(BEGIN_US + 3, "start"), add(4, "y")]
    record(tmp_path, [[[event]] for event in events])
    first = list_segments(tmp_path)[0]
    first.path.unlink()
    first.index_path.unlink()
    for file in (tmp_path / "snapshots").iterdir():
        file.unlink()
    journal = jetbus.journal.open(tmp_path)
    with pytest.raises(JournalGone, match="no snapshot"):
        journal.as_of(seq=2)
    assert journal.as_of(seq=3).num_rows == 0
    assert journal.as_of(seq=4)["path"].to_pylist() == ["y"]


def test_snapshots_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long segment gets snapshots within it, and each is the tree of its seq."""
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVENTS", 64)
    record(tmp_path, [cut(EVENTS, 33)])
    assert snapshots.list_snapshots(tmp_path) == [*range(64, 600, 64), 600]
    for seq in snapshots.list_snapshots(tmp_path):
        assert add_unit_column(snapshots.read_snapshot(tmp_path, seq)).to_pylist() == tree_after(ROWS[:seq])


def test_a_segment_that_grows_has_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The segment that is being written gets snapshots meanwhile, so that no instant is far from one."""
    monkeypatch.setattr(maintenance, "GROWN_EVENTS", 64)
    with open_writer(tmp_path) as writer:
        for batch in cut(EVENTS, 33):
            write(writer, batch)
            assert writer.commit()
        writer.wait_for_maintenance()
        assert len(list_segments(tmp_path)) == 1
        assert snapshots.list_snapshots(tmp_path) == [*range(66, 600, 66)]
        for seq in (66, 100, 594, 600):
            assert jetbus.journal.open(tmp_path).as_of(seq=seq).to_pylist() == tree_after(ROWS[:seq])


def test_snapshots_are_taken_once(tmp_path: Path) -> None:
    """Taking a snapshot again changes nothing; one of an open segment may be taken, too."""
    with open_writer(tmp_path) as writer:
        write(writer, EVENTS[:100])
        assert writer.commit()
        snapshots.take(tmp_path, 77)
        before = (tmp_path / "snapshots" / f"{77:020}.arrow").stat()
        snapshots.take(tmp_path, 77)
        assert (tmp_path / "snapshots" / f"{77:020}.arrow").stat() == before
        assert add_unit_column(snapshots.read_snapshot(tmp_path, 77)).to_pylist() == tree_after(ROWS[:77])
        assert list((tmp_path / "snapshots").glob("*.tmp")) == []
    snapshots.drop_after(tmp_path, 80)
    assert snapshots.list_snapshots(tmp_path) == [77]
    snapshots.drop_before(tmp_path, 78)
    assert snapshots.list_snapshots(tmp_path) == []


# -- from one tree to another


def test_diff(journal: Journal) -> None:
    """A diff names what was added, removed and changed between two instants, with the values before and after."""
    a, b = EVENTS[150].ts_us, EVENTS[450].ts_us
    before = {row["path"]: row for row in tree_after(row for row, e in zip(ROWS, EVENTS, strict=True) if e.ts_us <= a)}
    after = {row["path"]: row for row in tree_after(row for row, e in zip(ROWS, EVENTS, strict=True) if e.ts_us <= b)}
    wanted = []
    for path in sorted({*before, *after}):
        if path not in before:
            wanted.append({"path": path, "what": "added", "before": None, "after": after[path]["value"]})
        elif path not in after:
            wanted.append({"path": path, "what": "removed", "before": before[path]["value"], "after": None})
        elif before[path]["value"] != after[path]["value"]:
            values = {"before": before[path]["value"], "after": after[path]["value"]}
            wanted.append({"path": path, "what": "changed", **values})
    assert {row["what"] for row in wanted} == {"added", "removed", "changed"}
    assert journal.diff(a, b).to_pylist() == wanted
    part = [row for row in wanted if row["path"].startswith("plant/line1/")]
    assert journal.diff(a, b, "plant/line1/**").to_pylist() == part
    assert journal.diff(a, a).num_rows == 0


def test_diff_of_methods(tmp_path: Path) -> None:
    """Methods have no value: they come and go, but never change."""
    record(tmp_path, [[[add(1, "m", None), add(1, "gone", None), remove(2, "gone"), add(3, "new", None)]]])
    found = jetbus.journal.open(tmp_path).diff(BEGIN_US + 1, BEGIN_US + 3).to_pylist()
    assert [(row["path"], row["what"]) for row in found] == [("gone", "removed"), ("new", "added")]


def test_history(journal: Journal) -> None:
    """The history of a path is its values with instants and peers, without the requests unless asked for."""
    path = next(event.path for event in EVENTS if event.event == "set") or ""
    wanted = [row for row in ROWS if row["path"] == path]
    columns = ["ts", "seq", "event", "value", "peer", "source_ts", "quality", "late", "unit"]
    kinds = ("add", "change", "remove")
    narrow = [
        {name: row[name] for name in columns[:-2]} | {"late": False, "unit": None}
        for row in wanted
        if row["event"] in kinds
    ]
    assert journal.history(path, typed=False).to_pylist() == narrow
    assert journal.history(path, typed=False).column_names == columns
    assert journal.history(path).column_names == [*columns[:4], "num", "text", "flag", "json", *columns[4:]]
    assert journal.history(path, events=["set"]).num_rows == sum(row["event"] == "set" for row in wanted) > 0
    later = EVENTS[300].ts_us
    assert journal.history(path, since=later)["seq"].to_pylist() == [
        row["seq"] for row in narrow if EVENTS[row["seq"] - 1].ts_us >= later
    ]
    assert journal.history("nowhere", missing_ok=True).num_rows == 0


MISSING: dict[str, tuple[Callable[[Journal], Any], type[Exception], str]] = {
    "a history of no path": (
        lambda journal: journal.history("plant/line1/s33"),
        NotRecorded,
        "nothing in the journal matches plant/line1/s33 in that time; did you mean plant/line1/s3?",
    ),
    "a history that ends too early": (
        lambda journal: journal.history("plant/line1/s3", until="2001-01-01"),
        BeforeJournal,
        "2001-01-01 is before the journal begins, which is at 2",
    ),
    "a tree of no rule": (
        lambda journal: journal.as_of(rule="plnt/**"),
        NotRecorded,
        "nothing in the journal matches plnt/** at that time; the tree of that time, without a rule, lists what there",
    ),
    "a tree of no time": (lambda journal: journal.as_of("2001-01-01"), BeforeJournal, "before the journal begins"),
    "differences of no time": (
        lambda journal: journal.diff("2001-01-01", "now"),
        BeforeJournal,
        "before the journal begins",
    ),
}


@pytest.mark.parametrize("case", MISSING.values(), ids=MISSING)
def test_what_was_not_recorded_is_named(
    journal: Journal, case: tuple[Callable[[Journal], Any], type[Exception], str]
) -> None:
    """A question about something that the journal does not have is an error with the next step, not an empty table."""
    ask, kind, text = case
    with pytest.raises(kind) as caught:
        ask(journal)
    assert text in str(caught.value)
    assert isinstance(caught.value, NotFound)


def test_several_buses(tmp_path: Path) -> None:
    """Trees and diffs of several buses stand one below the other, each row with its bus."""
    record(tmp_path / "a", [[[add(1, "x"), add(5, "y")]]], bus="north")
    record(tmp_path / "b", [[[add(2, "x", "7")]]], bus="south")
    journal = jetbus.journal.open(tmp_path / "a", tmp_path / "b")
    tree = journal.as_of(BEGIN_US + 3)
    assert [(row["bus"], row["path"], row["value"]) for row in tree.to_pylist()] == [
        ("north", "x", "0"),
        ("south", "x", "7"),
    ]
    found = journal.diff(BEGIN_US + 1, BEGIN_US + 9).to_pylist()
    assert [(row["bus"], row["path"], row["what"]) for row in found] == [
        ("north", "y", "added"),
        ("south", "x", "added"),
    ]
