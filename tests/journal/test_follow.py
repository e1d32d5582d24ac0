"""Following a journal: every event once and in order, over rotation and compaction, or a clear word."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import jetbus.journal
from jetbus.journal import JournalGone
from jetbus.journal.segment import list_segments
from support.journal_model import Event, Row, cut, moment, open_writer, plant, read, record, rows, write

EVENTS = plant(3000)
ROWS = rows(EVENTS)


class Follower:
    """A thread that follows until it has seen the seq it waits for, or something goes wrong."""

    def __init__(self, batches: Iterator[object], stop: threading.Event, last: int) -> None:
        self.rows: list[Row] = []
        self.error: Exception | None = None
        self._batches, self._stop, self._last = batches, stop, last
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for batch in self._batches:
                self.rows += read([batch])
                if self.rows[-1]["seq"] >= self._last:
                    self._stop.set()
        except Exception as error:
            self.error = error

    def result(self) -> list[Row]:
        self._thread.join(60)
        self._stop.set()
        assert not self._thread.is_alive()
        assert self.error is None
        return self.rows


def test_live_over_rotation_and_compaction(tmp_path: Path) -> None:
    """Followers see every event once and in order while the writer rotates and the journal is compacted."""
    open_writer(tmp_path).close()
    followers = []
    for rule in (None, "plant/line1/**"):
        stop = threading.Event()
        last = max(row["seq"] for row in ROWS if rule is None or (row["path"] or "").startswith("plant/line1/"))
        batches = jetbus.journal.open(tmp_path).follow(seq=1, rule=rule, stop=stop, poll_s=0.001)
        followers.append(Follower(batches, stop, last))
    for number, segment in enumerate(cut(EVENTS, 100)):
        with open_writer(tmp_path) as writer:
            for batch in cut(segment, 9):
                write(writer, batch)
                assert writer.commit()
        if number % 7 == 6:
            jetbus.journal.compact(tmp_path)
    assert followers[0].result() == ROWS
    assert followers[1].result() == [row for row in ROWS if (row["path"] or "").startswith("plant/line1/")]


def test_from_the_next_event(tmp_path: Path) -> None:
    """Without a seq, it begins with the next event that is committed after the call."""
    with open_writer(tmp_path) as writer:
        write(writer, EVENTS[:10])
        assert writer.commit()
        stop = threading.Event()
        batches = jetbus.journal.open(tmp_path).follow(stop=stop, poll_s=0.001, columns=["seq"])
        write(writer, EVENTS[10:20])
        assert writer.commit()
        assert read([next(batches)]) == [{"seq": seq} for seq in range(11, 21)]
        stop.set()
        assert list(batches) == []


def test_from_a_seq_to_come(tmp_path: Path) -> None:
    """A follower may wait for a seq that is not there yet."""
    with open_writer(tmp_path) as writer:
        batches = jetbus.journal.open(tmp_path).follow(seq=16, poll_s=0.001)
        write(writer, EVENTS[:20])
        assert writer.commit()
        assert read([next(batches)]) == ROWS[15:20]


def test_stop_while_waiting(tmp_path: Path) -> None:
    """A follower that waits for events that never come ends when it is told to."""
    record(tmp_path, [[EVENTS[:10]]])
    stop = threading.Event()
    follower = Follower(jetbus.journal.open(tmp_path).follow(stop=stop, poll_s=600), stop, 99)
    stop.set()
    assert follower.result() == []


def test_behind_retention(tmp_path: Path) -> None:
    """A follower that is too slow for retention is told which event is the next there is."""
    record(tmp_path, [[segment] for segment in cut(EVENTS[:400], 100)])
    batches = jetbus.journal.open(tmp_path).follow(seq=1)
    assert read([next(batches)]) == ROWS[:100]
    for segment in list_segments(tmp_path)[:3]:
        segment.path.unlink()
        segment.index_path.unlink()
    with pytest.raises(JournalGone) as gone:
        next(batches)
    assert gone.value.first_seq == 301


def test_several_buses(tmp_path: Path) -> None:
    """Several journals are followed at once, each in its own order."""
    with open_writer(tmp_path / "a", bus="north") as north, open_writer(tmp_path / "b", bus="south") as south:
        journal = jetbus.journal.open(tmp_path / "a", tmp_path / "b")
        batches = journal.follow(seq={"north": 1, "south": 1}, poll_s=0.001, columns=["bus", "seq"])
        write(south, EVENTS[:2])
        assert south.commit()
        assert read([next(batches)]) == [{"bus": "south", "seq": 1}, {"bus": "south", "seq": 2}]
        write(north, EVENTS[:1])
        assert north.commit()
        assert read([next(batches)]) == [{"bus": "north", "seq": 1}]


def test_after_a_restart_that_cut(tmp_path: Path) -> None:
    """A torn tail that a restarted writer cuts was never seen, and what it writes instead is."""
    record(tmp_path, [[EVENTS[:10]]])
    (segment,) = list_segments(tmp_path)
    with segment.path.open("ab") as file:
        file.write(b"\xff\xff\xff\xff torn")
    batches = jetbus.journal.open(tmp_path).follow(seq=1, poll_s=0.001)
    assert read([next(batches)]) == ROWS[:10]
    with open_writer(tmp_path) as writer:
        write(writer, [Event(EVENTS[10].ts_us, "start", detail="{}")])
        assert writer.commit()
        (row,) = read([next(batches)])
    assert (row["seq"], row["event"], row["ts"]) == (11, "start", moment(EVENTS[10].ts_us))
