"""Statistics of a journal."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import jetbus.journal
from jetbus.journal.segment import list_segments
from support.journal_model import cut, plant, record, rows

EVENTS = plant(500)
ROWS = rows(EVENTS)


@pytest.mark.parametrize("compacted", [False, True], ids=["segments", "parquet"])
def test_stats(tmp_path: Path, compacted: bool) -> None:
    """Events are counted by kind, path and peer, gaps are listed, files are counted and measured."""
    record(tmp_path, [cut(segment, 50) for segment in cut(EVENTS, 100)])
    if compacted:
        jetbus.journal.compact(tmp_path)
    stats = jetbus.journal.open(tmp_path).stats(top=3)["plant"]
    assert stats.events == 500
    assert stats.kinds == Counter(event.event for event in EVENTS)
    paths = Counter(event.path for event in EVENTS if event.path)
    assert [count for _, count in stats.top_paths] == [count for _, count in paths.most_common(3)]
    assert all(paths[path] == count for path, count in stats.top_paths)
    peers = Counter(event.peer for event in EVENTS if event.peer)
    assert [count for _, count in stats.top_peers] == [count for _, count in peers.most_common(3)]
    gaps = [{name: row[name] for name in ("seq", "ts", "detail")} for row in ROWS if row["event"] == "gap"]
    assert gaps
    assert stats.gaps == gaps
    assert (stats.segments, stats.parquet_files) == ((1, 1) if compacted else (5, 0))
    assert (stats.first, stats.last) == (1, 500)
    assert (stats.first_ts, stats.last_ts) == (EVENTS[0].ts_us, EVENTS[-1].ts_us)
    on_disk = sum(file.stat().st_size for kind in ("*.arrows", "parquet/*/*") for file in tmp_path.glob(kind))
    assert 0.9 * on_disk < stats.bytes <= on_disk
    assert stats.holes == []


def test_holes(tmp_path: Path) -> None:
    """A stretch that is missing in the middle is named, and the rest is counted."""
    record(tmp_path, [[segment] for segment in cut(EVENTS, 100)])
    second = list_segments(tmp_path)[1]
    second.path.unlink()
    second.index_path.unlink()
    stats = jetbus.journal.open(tmp_path).stats()["plant"]
    assert stats.holes == [(101, 200)]
    assert stats.events == 400
