"""Source times, qualities and schemas in a journal, and the two layouts of segments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import jetbus.journal
from jetbus.journal import Densities, Journal, Settings, Writer
from jetbus.journal.segment import PLAIN, SCHEMA, STAMPED, find_layout, list_segments
from support.journal_files import SkippingClock, abandon, rows_of
from support.journal_model import BEGIN_US, Event, moment, open_writer, record, rows, tree_after, write


def schema(**members: Any) -> str:
    return json.dumps({"schema": members})


EVENTS = [
    Event(BEGIN_US, "start"),
    Event(BEGIN_US + 1, "add", "x", "0", "a#1", "state", schema(unit="rpm"), BEGIN_US - 5, "uncertain"),
    Event(BEGIN_US + 2, "add", "y", "0", "a#1", "state"),
    Event(BEGIN_US + 3, "change", "x", "1", "a#1", source_us=BEGIN_US + 2),
    Event(BEGIN_US + 4, "change", "y", "1", "a#1"),
    Event(BEGIN_US + 5, "describe", "x", None, "a#1", "state", schema(unit="Hz")),
    Event(BEGIN_US + 6, "change", "x", "2", "a#1", quality="bad"),
    Event(BEGIN_US + 7, "past", "x", "9", "a#1", "state", source_us=BEGIN_US - 60),
    Event(BEGIN_US + 8, "change", "x", "3", "a#1", quality='{"level":"bad","reason":"cable"}'),
    Event(BEGIN_US + 9, "change", "x", "4", "a#1"),
    Event(BEGIN_US + 10, "remove", "x", "4", "a#1", "state"),
    Event(BEGIN_US + 11, "add", "x", "5", "a#1", "state"),
]


def one_segment(directory: Path) -> None:
    record(directory, [[EVENTS]])


def one_batch_each(directory: Path) -> None:
    record(directory, [[[event] for event in EVENTS]])


def one_segment_each(directory: Path) -> None:
    record(directory, [[[event]] for event in EVENTS])


def parquet(directory: Path) -> None:
    record(directory, [[[event]] for event in EVENTS])
    jetbus.journal.compact(directory)


STORAGES: list[Callable[[Path], None]] = [one_segment, one_batch_each, one_segment_each, parquet]


@pytest.fixture(params=STORAGES, ids=[storage.__name__ for storage in STORAGES])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    request.param(tmp_path)
    assert jetbus.journal.verify(tmp_path) == []
    return jetbus.journal.open(tmp_path)


def test_events_keep_source_time_and_quality(journal: Journal) -> None:
    """Every event is read as it was written, also column by column."""
    assert journal.table().to_pylist() == rows(EVENTS)
    assert journal.table().schema == SCHEMA
    brief_elements = journal.table(columns=["quality", "seq"]).to_pylist()
    assert brief_elements == [{"quality": row["quality"], "seq": row["seq"]} for row in rows(EVENTS)]
    assert journal.table("x", columns=["source_ts"], events=["past"])["source_ts"].to_pylist() == [
        moment(BEGIN_US - 60)
    ]
    assert sorted(journal.dataset().to_table(columns=["seq", "quality"]).to_pylist(), key=lambda row: row["seq"]) == [
        {"seq": row["seq"], "quality": row["quality"]} for row in rows(EVENTS)
    ]


def test_trees_have_the_stamp_of_the_last_value(journal: Journal) -> None:
    """A tree has source time, quality and unit as of its seq; a value of the past changes nothing."""
    for seq in range(1, len(EVENTS) + 1):
        assert journal.as_of(seq=seq).to_pylist() == tree_after(rows(EVENTS)[:seq])


def test_history_has_units(journal: Journal) -> None:
    """A row of a history has the unit that was valid then, also if the range begins after the add; none was before."""
    assert [(r["value"], r["unit"]) for r in journal.history("x", until=BEGIN_US + 9).to_pylist()] == [
        ("9", None),
        ("0", "rpm"),
        ("1", "rpm"),
        ("2", "Hz"),
        ("3", "Hz"),
    ]
    assert [r["unit"] for r in journal.history("x", since=BEGIN_US + 3).to_pylist()] == ["rpm", *["Hz"] * 4, None]
    assert [r["unit"] for r in journal.history("x", events=["past"]).to_pylist()] == [None]
    assert [r["unit"] for r in journal.history("y").to_pylist()] == [None, None]
    assert journal.history("z", missing_ok=True).column_names == journal.history("x").column_names


def test_plain_events_cost_nothing(tmp_path: Path) -> None:
    """A journal without stamps has no columns for them, in segments or Parquet."""
    plain = [event._replace(source_us=None, quality=None) for event in EVENTS]
    record(tmp_path, [[plain[:6]], [plain[6:]]])
    for segment in list_segments(tmp_path):
        assert find_layout(segment.path.read_bytes()) is PLAIN
        assert pa.ipc.open_stream(segment.path).schema.names == SCHEMA.names[:8]
    jetbus.journal.compact(tmp_path)
    (file,) = (tmp_path / "parquet").glob("*/*.parquet")
    assert pq.read_schema(file).names == SCHEMA.names[:8]


def test_a_stamp_begins_a_stamped_segment(tmp_path: Path) -> None:
    """The first stamp seals a plain segment; the layout returns to plain after a segment without stamps."""

    def change(value: str, **stamp: Any) -> list[Event]:
        return [Event(BEGIN_US, "change", "x", value, "a#1", **stamp)]

    clock = SkippingClock()
    with Writer(tmp_path, Settings(segment_age_s=1), now_us=lambda: 0, monotonic_s=clock) as writer:
        for events in [change("1"), change("2", quality="bad"), change("3"), change("4")]:
            write(writer, events)
            assert writer.commit()
            clock.skip(2)
            assert writer.commit()
    layouts = [find_layout(segment.path.read_bytes()) for segment in list_segments(tmp_path)]
    assert [layout is STAMPED for layout in layouts] == [False, True, True, False]
    assert [row["value"] for row in rows_of(tmp_path)] == ["1", "2", "3", "4"]


def test_one_seal_per_writer_in_a_mixed_journal(tmp_path: Path) -> None:
    """Plain and stamped batches share a segment once it is stamped."""
    with open_writer(tmp_path) as writer:
        for number in range(20):
            write(writer, [Event(BEGIN_US, "change", "x", "1", "a#1", quality="bad" if number % 3 == 1 else None)])
            assert writer.commit()
    assert len(list_segments(tmp_path)) == 2


@pytest.mark.parametrize("lost", ["index", "end of index", "schema"])
def test_recovery_of_a_stamped_segment(tmp_path: Path, lost: str) -> None:
    """A writer that is killed leaves a stamped segment that is repaired like any other."""
    writer = open_writer(tmp_path)
    for event in EVENTS:
        write(writer, [event])
        assert writer.commit()
    abandon(writer)
    last = list_segments(tmp_path)[-1]
    if lost == "index":
        last.index_path.unlink()
    elif lost == "end of index":
        last.index_path.write_bytes(last.index_path.read_bytes()[:-20])
    else:
        data = bytearray(last.path.read_bytes())
        data[100] ^= 0xFF
        last.path.write_bytes(data)
    open_writer(tmp_path).close()
    found = jetbus.journal.open(tmp_path).table().to_pylist()
    if lost != "schema":
        assert found == rows(EVENTS)
    else:
        # Without its schema a segment counts as plain: its events are there, without their stamps.
        assert [row["value"] for row in found] == [event.value for event in EVENTS]


def test_samples_keep_their_stamp(tmp_path: Path) -> None:
    """A sampled change is recorded with the source time and quality of the value that is recorded."""
    with Writer(
        tmp_path, Settings(fsync="never"), densities=Densities([("x", "sample 1s"), ("z", "skip")]), now_us=lambda: 0
    ) as writer:
        for number in range(3):
            writer.now_us = BEGIN_US + number
            writer.append_described(
                "x", b"%d" % number, "a#1", BEGIN_US - number, b'"bad"' if number == 2 else None, False
            )
            writer.append_described("y", b"%d" % number, "a#1", None, b'"good"', False)
            writer.append_described("z", b"%d" % number, "a#1", None, b'"good"', False)
        writer.now_us = BEGIN_US + 1_000_000
    brief_elements = [(r["path"], r["value"], r["source_ts"], r["quality"]) for r in rows_of(tmp_path)]
    assert brief_elements == [*[("y", str(n), None, "good") for n in range(3)], ("x", "2", moment(BEGIN_US - 2), "bad")]


def test_large_batches_are_split_with_their_stamps(tmp_path: Path) -> None:
    """Stamps stay with their events when a batch is split, joined and preceded by a gap."""
    with Writer(tmp_path, Settings(fsync="never"), now_us=lambda: 0) as writer:
        writer.now_us = BEGIN_US
        for number in range(70_000):
            if number % 1000:
                writer.change("x", b"%d" % number, "a#1")
            else:
                writer.append_described("x", b"%d" % number, "a#1", number, None, False)
        assert writer.commit()
    table = jetbus.journal.open(tmp_path).table(columns=["value", "source_ts"])
    stamped = table.filter(table["source_ts"].is_valid())
    assert stamped["value"].to_pylist() == [str(n) for n in range(0, 70_000, 1000)]
    assert stamped["source_ts"].cast(pa.int64()).to_pylist() == list(range(0, 70_000, 1000))


def test_watches_see_stamps(tmp_path: Path) -> None:
    """A watch collects source times and qualities."""
    with open_writer(tmp_path) as writer:
        watch = writer.watch(lambda path: path == "x", 100)
        write(writer, EVENTS)
        brief_elements = [(e.event, e.source_us, e.quality) for e in writer.unwatch(watch)]
    assert brief_elements[:4] == [
        ("start", None, None),
        ("add", BEGIN_US - 5, b'"uncertain"'),
        ("change", BEGIN_US + 2, None),
        ("describe", None, None),
    ]


def test_elements_over_time(journal: Journal) -> None:
    """The table of elements has one row for each time that a description was valid, from any instant on."""

    def brief_elements(**query: Any) -> list[tuple[Any, ...]]:
        found = journal.elements(**query).to_pylist()
        offsets = [[row[name] and int((row[name] - moment(BEGIN_US)).microseconds) for name in SPAN] for row in found]
        return [(row["path"], row["unit"], *ends) for row, ends in zip(found, offsets, strict=True)]

    assert brief_elements() == [("x", "rpm", 1, 5), ("y", None, 2, None), ("x", "Hz", 5, 10), ("x", None, 11, None)]
    assert brief_elements(since=BEGIN_US + 7, rule="x") == [("x", "Hz", 7, 10), ("x", None, 11, None)]
    assert brief_elements(until=BEGIN_US + 4, rule="x") == [("x", "rpm", 1, None)]
    assert json.loads(journal.elements("x")["schema"].to_pylist()[0]) == {"unit": "rpm"}


SPAN = ("valid_from", "valid_to")
