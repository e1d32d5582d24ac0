"""Retention drops whole segments, oldest first, by age and by size; the newest stays."""

from __future__ import annotations

from pathlib import Path

import jetbus.journal
from jetbus.journal import Settings, Writer
from jetbus.journal.maintenance import drop_old
from jetbus.journal.segment import list_segments
from support.journal_files import rows_of, write_changes

S = 1_000_000
EVERYTHING = 2**62


def five_segments(directory: Path) -> None:
    """Segments of ten events each, at the seconds 100, 200, ... 500."""
    for number in range(5):
        with Writer(directory, Settings(fsync="never"), now_us=lambda: 0) as writer:
            writer.now_us = (number + 1) * 100 * S
            writer.append("start")
            write_changes(writer, number * 9, number * 9 + 9)


def firsts(directory: Path) -> list[int]:
    return [segment.first_seq for segment in list_segments(directory)]


def test_by_age(tmp_path: Path) -> None:
    """Segments whose last event is older than allowed go, and their indexes with them."""
    five_segments(tmp_path)
    chosen = Settings(keep_s=250)
    assert drop_old(tmp_path, chosen, 350 * S, upto_seq=EVERYTHING) == 0
    assert drop_old(tmp_path, chosen, 451 * S, upto_seq=EVERYTHING) == 2
    assert firsts(tmp_path) == [21, 31, 41]
    assert len(list(tmp_path.glob("*.index"))) == 3
    assert drop_old(tmp_path, chosen, 451 * S, upto_seq=EVERYTHING) == 0


def test_newest_stays(tmp_path: Path) -> None:
    """However old or big, the newest segment stays, and seqs go on."""
    five_segments(tmp_path)
    assert drop_old(tmp_path, Settings(keep_s=1, keep_bytes=4096), 10**6 * S, upto_seq=EVERYTHING) == 4
    assert firsts(tmp_path) == [41]
    with Writer(tmp_path) as writer:
        assert writer.seq == 51


def test_by_size(tmp_path: Path) -> None:
    """The oldest segments go until the others are small enough together."""
    five_segments(tmp_path)
    sizes = [segment.size_bytes for segment in list_segments(tmp_path)]
    assert drop_old(tmp_path, Settings(keep_bytes=sum(sizes)), 0, upto_seq=EVERYTHING) == 0
    assert drop_old(tmp_path, Settings(keep_bytes=sum(sizes[2:])), 0, upto_seq=EVERYTHING) == 2
    assert firsts(tmp_path) == [21, 31, 41]
    assert rows_of(tmp_path)[0]["seq"] == 21


def test_no_further_than_told(tmp_path: Path) -> None:
    """Segments beyond the last snapshot are not dropped."""
    five_segments(tmp_path)
    assert drop_old(tmp_path, Settings(keep_bytes=4096), 0, upto_seq=25) == 2
    assert firsts(tmp_path) == [21, 31, 41]


def test_nothing_is_dropped_by_default(tmp_path: Path) -> None:
    """Without a limit everything is kept."""
    five_segments(tmp_path)
    assert drop_old(tmp_path, Settings(), 10**9 * S, upto_seq=EVERYTHING) == 0


def test_writer_drops_as_it_goes(tmp_path: Path) -> None:
    """A writer keeps its journal within the size, and the tree is known at every instant that is left."""
    chosen = Settings(fsync="never", segment_bytes=8192, keep_bytes=40_000)
    with Writer(tmp_path, chosen) as writer:
        writer.append("start")
        writer.append("add", "state", "plant/speed", b"0", "pump#1")
        for number in range(400):
            write_changes(writer, number, number + 1)
            writer.commit()
        stats = writer.stats()
    assert sum(segment.size_bytes for segment in list_segments(tmp_path)) <= 40_000
    assert stats["events"] == 402
    rows = rows_of(tmp_path)
    assert rows[0]["seq"] > 2
    assert rows[-1]["value"] == "399"
    tree = jetbus.journal.open(tmp_path).as_of(seq=rows[0]["seq"])
    assert tree.column("value").to_pylist() == [rows[0]["value"]]
    assert tree.column("created_seq").to_pylist() == [2]
