"""Effective time: histories and corrected trees with values that came late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jetbus.journal
from jetbus.journal import effective
from jetbus.journal.log import Log, SegmentPiece
from jetbus.journal.source import AskedAt, FolderAnswers, JournalSource, open_folder
from support.journal_model import BEGIN_US, Event, moment, record

S = 1_000_000


def change(at: float, value: str, path: str = "x", source: float | None = None) -> Event:
    return Event(us(at), "change", path, value, "a#1", source_us=None if source is None else us(source))


def past(at: float, source: float, value: str, path: str = "x") -> Event:
    return Event(us(at), "past", path, value, "a#1", "state", source_us=us(source))


def add(at: float, value: str, path: str = "x", source: float | None = None) -> Event:
    source_us = None if source is None else us(source)
    return Event(us(at), "add", path, value, "a#1", "state", source_us=source_us)


def us(at: float) -> int:
    return BEGIN_US + round(at * S)


CUT_OFF = [
    Event(us(0), "start"),
    add(1, "1", source=0.999),
    change(2.001, "2", source=2),
    Event(us(3), "remove", "x", "2", "a#1", "state"),
    add(9, "6", source=8),
    past(9.1, 2.0005, "3"),
    past(9.2, 4, "4"),
    past(9.3, 5, "50"),
    change(10, "7", source=9.9),
    past(10.1, 5, "5"),
    past(10.2, 8, "6"),
]
"""An owner that could not be heard from 2 s to 9 s."""


def show(rows: Sequence[dict[str, Any]]) -> list[tuple[float, str, str, bool]]:
    return [
        ((round(row["ts"].timestamp() * S) - BEGIN_US) / S, row["event"], row["value"], row["late"]) for row in rows
    ]


def test_history_is_in_effective_time(tmp_path: Path) -> None:
    """Late values stand between those that came in time, corrected ones are left out, and all are marked."""
    record(tmp_path, [[CUT_OFF[:7]], [CUT_OFF[7:]]])
    expected = [
        (1, "add", "1", False),
        (2.001, "change", "2", False),
        (2.001, "past", "3", True),  # later than 2, which was 1 ms under way
        (3, "remove", "2", False),
        (4, "past", "4", True),
        (5, "past", "5", True),
        (8, "past", "6", True),
        (9, "add", "6", False),
        (10, "change", "7", False),
    ]
    journal = jetbus.journal.open(tmp_path)
    assert show(journal.history("x").to_pylist()) == expected
    source = open_folder(tmp_path)
    assert show(source.read_history(source.pin(), jetbus.rule("x")).to_pylist()) == expected
    assert show(journal.history("x", since=us(3.5), until=us(8.5)).to_pylist()) == expected[4:7]


def test_a_value_that_is_told_again_counts_once(tmp_path: Path) -> None:
    """A value that came as a change and again as a late one, since its owner did not hear that it came, is one row."""
    record(tmp_path, [[[add(0, "0", source=0), change(1.01, "1", source=1), change(1.02, "2", source=1.005)]]])
    before = jetbus.journal.open(tmp_path).history("x").to_pylist()
    record(tmp_path, [[[past(2, 1, "1"), past(2.1, 1.005, "2")]]])
    after = jetbus.journal.open(tmp_path).history("x").to_pylist()
    assert [row["value"] for row in after] == [row["value"] for row in before] == ["0", "1", "2"]
    assert [row["late"] for row in after] == [False, True, True]


@pytest.mark.parametrize(
    ("at", "shown", "true"),
    [(2.5, "2", "3"), (3.5, None, None), (4.5, None, "4"), (5.5, None, "5"), (8.5, None, "6"), (9.5, "6", "6")],
    ids=str,
)
def test_trees_that_were_shown_and_that_were_true(
    tmp_path: Path, at: float, shown: str | None, true: str | None
) -> None:
    """The tree of an instant is what the bus showed; the corrected one has the values that came late."""
    record(tmp_path, [[CUT_OFF]])
    journal = jetbus.journal.open(tmp_path)
    found = [journal.as_of(us(at), "x", missing_ok=True, corrected=corrected) for corrected in (False, True)]
    assert [tree["value"].to_pylist() for tree in found] == [[] if one is None else [one] for one in (shown, true)]
    assert found[1].column_names == [*found[0].column_names, "late"]


def test_value_rules_test_corrected_values(tmp_path: Path) -> None:
    """A rule with a value test matches what was true, and not what the bus showed."""
    record(tmp_path, [[[add(0, "1"), change(1, "2"), past(3, 2, "9")]]])
    source = open_folder(tmp_path)
    span = source.pin(us(2.5))
    assert source.read_corrected_tree(span, jetbus.rule("x value=9"))["late"].to_pylist() == [True]
    assert source.read_corrected_tree(span, jetbus.rule("x value=2")).num_rows == 0


def test_few_batches_are_read_for_late_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index leads to the batches that have late values of a range, wherever they are in the journal."""
    batches = [[change(at, str(at))] for at in range(1, 200)]
    batches[150].append(past(151, 3.5, "late"))
    batches[180].append(past(181, 90, "later"))
    record(tmp_path, [batches[start : start + 20] for start in range(0, 199, 20)])
    read: list[int] = []
    read_piece = SegmentPiece._touched

    def count(self: SegmentPiece, within: Any) -> Any:
        touched = read_piece(self, within)
        read.extend(entry.seq_first for entry in touched)
        return touched

    monkeypatch.setattr(SegmentPiece, "_touched", count)
    journal = jetbus.journal.open(tmp_path)
    late = list(journal.read("x", us(3), us(4), late=True, columns=["value"]))
    assert pa.Table.from_batches(late)["value"].to_pylist() == ["late"]
    assert read == [151]
    jetbus.journal.compact(tmp_path)
    spans = [piece for piece in Log(tmp_path).view().pieces if piece.late_min_us <= piece.late_max_us]
    assert (spans[0].late_min_us, spans[-1].late_max_us) == (us(3.5), us(90))
    assert pa.Table.from_batches(journal.read("x", us(3), us(4), late=True))["value"].to_pylist() == ["late"]
    assert list(journal.read("x", us(4), us(5), late=True)) == []


# -- any log against plain Python

PATHS = ("x", "y")


@st.composite
def plants(draw: st.DrawFn) -> tuple[list[Event], list[Event]]:
    """Return a log in which nothing was late, and one in which some values were, some of them twice."""
    true, came, held = [add(0, '"begin"', path, 0) for path in PATHS], [], []
    came += true
    at = 0.0
    for number in range(draw(st.integers(1, 25))):
        at += draw(st.integers(1, 3))
        path = draw(st.sampled_from(PATHS))
        delay = draw(st.integers(0, 2)) / 1000
        true.append(change(at, str(number), path, at))
        how = draw(st.sampled_from(["live", "late", "twice"]))
        if how != "late":
            came.append(change(at + delay, str(number), path, at))
        if how != "live":
            held.append((at, number, path))
        is_back = draw(st.booleans())
        if held and is_back:
            for source, value, owner in draw(st.permutations(held)):
                if draw(st.booleans()):
                    came.append(past(at + 0.5, source, '"wrong"', owner))
                came.append(past(at + 0.5, source, str(value), owner))
            held = []
    came += [past(at + 1, source, str(value), owner) for source, value, owner in held]
    return true, came


def cut(events: list[Event], ends: list[int]) -> list[list[list[Event]]]:
    """Return events as batches, in segments of two."""
    edges = [0, *sorted({end % len(events) for end in ends} - {0}), len(events)]
    batches = [events[begin:end] for begin, end in pairwise(edges)]
    return [batches[at : at + 2] for at in range(0, len(batches), 2)]


@settings(max_examples=60, deadline=None)
@given(plants(), st.lists(st.integers(0, 100), max_size=6), st.booleans(), st.integers(1, 4))
def test_any_log_equals_the_one_in_which_nothing_was_late(
    logs: tuple[list[Event], list[Event]], ends: list[int], compacted: bool, page_rows: int
) -> None:
    """However values are delayed, doubled and corrected, history and corrected trees are those of the true log."""
    true, came = logs
    with TemporaryDirectory() as folder:
        record(Path(folder), cut(came, ends))
        if compacted:
            jetbus.journal.compact(folder)
        journal = jetbus.journal.open(folder)
        source = JournalSource(FolderAnswers(journal), AskedAt(), page_rows=page_rows)
        for path in PATHS:
            expected = [event.value for event in true if event.path == path]
            assert journal.history(path, typed=False)["value"].to_pylist() == expected
        rows = [row for batch in source.read_effective({"seqUntil": len(came) + 1}) for row in batch.to_pylist()]
        assert [row["ts"] for row in rows] == sorted(row["ts"] for row in rows)
        for path in PATHS:
            assert [row["value"] for row in rows if row["path"] == path] == [
                event.value for event in true if event.path == path
            ]
        for event in true:
            at = event.ts_us + 10_000  # later than any delay of a live value
            last = {one.path: one.value for one in true if one.ts_us <= at}
            tree = journal.as_of(at, corrected=True)
            assert dict(zip(tree["path"].to_pylist(), tree["value"].to_pylist(), strict=True)) == last


def test_a_stream_holds_back_what_is_needed() -> None:
    """A stream yields events while it is read, in the same order as a whole table."""
    names = ["ts", "seq", "event", "path", "value", "source_ts"]

    def table(rows: list[tuple[float, int, str, str, str, float]]) -> pa.Table:
        columns = [list(column) for column in zip(*rows, strict=True)]
        columns[0], columns[5] = ([moment(us(at)) for at in columns[index]] for index in (0, 5))
        fields = [jetbus.journal.segment.SCHEMA.field(name) for name in names]
        return pa.table(columns, schema=pa.schema(fields))

    live = table([(at, at, "change", "x", str(at), at - 0.5) for at in range(1, 60)])
    late = table([(70, 100 + at, "past", "x", f"late {at}", at - 0.4) for at in range(1, 60, 7)])
    order = effective.EffectiveOrder(late)
    parts = [part for batch in live.to_batches(max_chunksize=5) if (part := order.add(batch)) is not None]
    assert sum(part.num_rows for part in parts) > 40
    found = pa.concat_tables([*parts, order.end()])
    values = found["value"].to_pylist()
    assert len(values) == live.num_rows + late.num_rows
    for at in range(1, 60, 7):
        assert values.index(f"late {at}") == values.index(str(at)) + 1
