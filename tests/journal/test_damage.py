"""Damage after a clean stop: nothing is cut or dropped, no seq is given twice, and readers and the writer say so."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import jetbus.journal
from jetbus.journal import JournalDamaged, JournalError, Settings, Writer, compact, snapshots, verify
from jetbus.journal.index import RECORD_BYTES, read_index
from jetbus.journal.instants import US_PER_S, wall_clock_us
from jetbus.journal.segment import END_OF_STREAM, PLAIN, list_segments
from support.journal_files import Row, abandon, file_size_limit, rows_of, write_changes
from support.journal_model import BEGIN_US, cut, plant, read, record, rows, tree_after

LAZY = Settings(fsync="never", compression=None)


def flip(file: Path, at: int) -> None:
    """Change one bit."""
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << at % 8
    file.write_bytes(data)


def closed_journal(directory: Path, *batches: int) -> None:
    """Write a journal of one segment with batches of so many changes, and close it."""
    with Writer(directory, LAZY) as writer:
        for size in batches:
            write_changes(writer, writer.seq - 1, writer.seq - 1 + size)
            writer.commit()


def gaps(found: list[Row]) -> list[Row]:
    return [json.loads(row["detail"]) for row in found if row["event"] == "gap"]


def read_from(directory: Path, seq: int) -> list[Row]:
    return read(jetbus.journal.open(directory).read(seq=seq))


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_flipped_bit_after_a_clean_stop(tmp_path: Path, batch: int, caplog: pytest.LogCaptureFixture) -> None:
    """A batch that is damaged after a clean stop stays where it is; its seqs are told as a gap and not given again."""
    closed_journal(tmp_path, 4, 3, 5)
    segment = list_segments(tmp_path)[0]
    entry = read_index(segment.index_path)[batch]
    flip(segment.path, entry.end - 10)
    damaged, index = segment.path.read_bytes(), segment.index_path.read_bytes()
    assert [problem.seq for problem in verify(tmp_path)] == [entry.seq_first]
    with Writer(tmp_path, LAZY) as writer:
        assert writer.recovered.clean
        assert writer.recovered.lost == ((entry.seq_first, entry.seq_last),)
        assert writer.recovered.cut_bytes == 0
        write_changes(writer, 100, 102)
    assert segment.path.read_bytes() == damaged
    assert segment.index_path.read_bytes() == index
    wanted = f"events {entry.seq_first} to {entry.seq_last} are damaged or missing"
    assert wanted in caplog.text
    after = read_from(tmp_path, 13)
    assert [row["seq"] for row in after] == [13, 14, 15]
    (gap,) = gaps(after)
    assert wanted in gap["reason"]
    assert gap["missed"] == entry.count
    with pytest.raises(JournalDamaged) as received:
        read_from(tmp_path, entry.seq_first)
    assert received.value.next_seq == entry.seq_last + 1
    assert [problem.seq for problem in verify(tmp_path)] == [entry.seq_first]
    with Writer(tmp_path, LAZY) as writer:
        assert writer.recovered.lost == ()


def test_every_byte_after_a_clean_stop(tmp_path: Path) -> None:
    """Wherever in the last batch, the end mark or the index a bit flips after a clean stop, no seq is given twice."""
    for number, at in enumerate(range(0, 400, 7)):
        directory = tmp_path / str(number)
        closed_journal(directory, 2, 3)
        segment = list_segments(directory)[0]
        size = segment.path.stat().st_size
        position = read_index(segment.index_path)[-1].position
        if at < size - position:
            flip(segment.path, position + at)
        else:
            flip(segment.index_path, at % (2 * RECORD_BYTES))
        with Writer(directory, LAZY) as writer:
            first_seq = writer.seq - 1 if writer.recovered.lost else writer.seq
            assert first_seq == 6


def test_last_segment_removed_after_a_clean_stop(tmp_path: Path) -> None:
    """A journal that was closed with an event it does not have any more tells the gap and goes on behind it."""
    closed_journal(tmp_path, 4)
    closed_journal(tmp_path, 3)
    for file in (list_segments(tmp_path)[-1].path, list_segments(tmp_path)[-1].index_path):
        file.unlink()
    with Writer(tmp_path, LAZY) as writer:
        assert writer.recovered.lost == ((5, 7),)
        assert writer.seq == 9
    assert [gap["missed"] for gap in gaps(read_from(tmp_path, 8))] == [3]


def test_bytes_that_nothing_names_are_kept_aside(tmp_path: Path) -> None:
    """Bytes after the last batch of a cleanly closed journal are moved aside, and the segment is whole again."""
    closed_journal(tmp_path, 4)
    segment = list_segments(tmp_path)[0]
    whole = segment.path.read_bytes()
    segment.path.write_bytes(whole + b"somebody else's")
    with Writer(tmp_path, LAZY) as writer:
        assert writer.recovered.aside_bytes == len(END_OF_STREAM) + 15
        assert writer.recovered.lost == ()
    assert segment.path.read_bytes() == whole
    (kept,) = (tmp_path / "damaged").iterdir()
    assert kept.read_bytes() == END_OF_STREAM + b"somebody else's"
    assert len(rows_of(tmp_path)) == 4


@pytest.mark.parametrize("closed", [True, False])
def test_sealed_segment_is_never_dropped(tmp_path: Path, closed: bool) -> None:
    """A sealed segment in which nothing can be read is kept aside, whether the writer closed or was killed."""
    closed_journal(tmp_path, 4)
    segment = list_segments(tmp_path)[0]
    segment.index_path.unlink()
    flip(segment.path, len(PLAIN.schema_bytes) + 9)
    data = segment.path.read_bytes()
    if not closed:
        (tmp_path / "lock").write_text("4711\n")
    with Writer(tmp_path, LAZY) as writer:
        assert writer.seq > 5
        assert writer.recovered.aside_bytes == len(data)
        assert writer.recovered.cut_bytes == 0
    (kept,) = (tmp_path / "damaged").iterdir()
    assert kept.read_bytes() == data


def test_sealed_segment_of_a_killed_writer(tmp_path: Path) -> None:
    """A batch of a segment that was sealed is damage, not a torn tail, though the writer was killed."""
    closed_journal(tmp_path, 4, 3)
    (tmp_path / "lock").write_text("4711\n")
    segment = list_segments(tmp_path)[0]
    flip(segment.path, read_index(segment.index_path)[-1].end - 10)
    with Writer(tmp_path, LAZY) as writer:
        assert not writer.recovered.clean
        assert (writer.recovered.cut_bytes, writer.recovered.lost) == (0, ((5, 7),))
        assert writer.seq == 9


def test_removed_lock_file_makes_nothing_torn(tmp_path: Path) -> None:
    """If nobody knows how the journal was left, unreadable bytes are kept."""
    writer = Writer(tmp_path, LAZY)
    write_changes(writer, 0, 4)
    writer.commit()
    write_changes(writer, 4, 7)
    writer.commit()
    abandon(writer)
    (tmp_path / "lock").unlink()
    segment = list_segments(tmp_path)[0]
    flip(segment.path, read_index(segment.index_path)[-1].end - 10)
    with Writer(tmp_path, LAZY) as writer:
        assert writer.recovered.lost == ((5, 7),)
        assert writer.seq == 9


def test_damage_is_told_once(tmp_path: Path) -> None:
    """A damaged batch is told as a gap once, though it is found again when the disk refuses for a while."""
    closed_journal(tmp_path, 4, 3)
    segment = list_segments(tmp_path)[0]
    flip(segment.path, read_index(segment.index_path)[-1].end - 10)
    with Writer(tmp_path, LAZY) as writer:
        with file_size_limit(100):
            assert not writer.commit()
        write_changes(writer, 7, 9)
        writer.retry_now()
        assert writer.commit()
    assert [gap["missed"] for gap in gaps(read_from(tmp_path, 8))] == [3]


# -- a lost index


def lose(index: Path) -> None:
    index.unlink()


def shorten(index: Path) -> None:
    os.truncate(index, index.stat().st_size - RECORD_BYTES - 5)


def spoil(index: Path) -> None:
    flip(index, 3)


@pytest.mark.parametrize("damage", [lose, shorten, spoil])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_index_is_made_anew(tmp_path: Path, damage: Callable[[Path], None], number: int) -> None:
    """Without its index a segment is read as before; verify says so, and the next writer makes the index anew."""
    events = plant(300)
    record(tmp_path, [cut(segment, 40) for segment in cut(events, 100)])
    segment = list_segments(tmp_path)[number]
    index = segment.index_path.read_bytes()
    damage(segment.index_path)
    assert read(jetbus.journal.open(tmp_path).read()) == rows(events)
    assert jetbus.journal.open(tmp_path).as_of().to_pylist() == tree_after(rows(events))
    assert {problem.file for problem in verify(tmp_path)} == {segment.index_path.name}
    Writer(tmp_path, LAZY).close()
    assert segment.index_path.read_bytes() == index
    assert verify(tmp_path) == []


def test_index_lost_while_it_is_read(tmp_path: Path) -> None:
    """A reader that was open before goes on without the index."""
    closed_journal(tmp_path, 4, 3)
    journal = jetbus.journal.open(tmp_path)
    assert len(read(journal.read())) == 7
    list_segments(tmp_path)[0].index_path.unlink()
    assert len(read(journal.read())) == 7


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_index_lost_and_a_batch_damaged(tmp_path: Path, batch: int) -> None:
    """Without its index, only the damaged batch of a sealed segment cannot be read, and whoever comes there is told."""
    closed_journal(tmp_path, 4, 3, 5)
    closed_journal(tmp_path, 2)
    segment = list_segments(tmp_path)[0]
    entry = read_index(segment.index_path)[batch]
    segment.index_path.unlink()
    flip(segment.path, entry.position + 9)
    with pytest.raises(JournalDamaged, match="is damaged at byte"):
        read_from(tmp_path, 1)
    after = entry.seq_last + 1 if batch else 13  # with the first batch, where the others begin cannot be known
    assert [row["seq"] for row in read_from(tmp_path, after)] == list(range(after, 15))
    assert verify(tmp_path) != []
    with Writer(tmp_path, LAZY) as writer:
        assert writer.seq == 15


@pytest.mark.parametrize("since", [100, 150, 299])
def test_lost_segment_is_no_silent_hole(tmp_path: Path, since: int) -> None:
    """A read over a lost segment names the missing file, also if nothing before it is read."""
    events = plant(300, step_us=1000)
    record(tmp_path, [cut(segment, 40) for segment in cut(events, 100)])
    lost = list_segments(tmp_path)[1]
    lost.path.unlink()
    lost.index_path.unlink()
    journal = jetbus.journal.open(tmp_path)
    batches = journal.read(since=events[since].ts_us)
    if since < 200:
        with pytest.raises(JournalDamaged, match=r"events 101 to 200 .* 0*101.arrows is not there") as loss:
            list(batches)
        assert loss.value.next_seq == 201
    else:
        assert read(batches)[-1]["seq"] == 300


# -- trees


def test_tree_after_damage(tmp_path: Path) -> None:
    """After the next start of the daemon the tree is known again, whatever is damaged before it."""
    events = [*plant(100), *plant(200, begin_us=BEGIN_US + US_PER_S)]
    record(tmp_path, [cut(segment, 40) for segment in cut(events, 100)])
    for seq in snapshots.list_snapshots(tmp_path):
        (tmp_path / "snapshots" / f"{seq:020}.arrow").unlink()
    segment = list_segments(tmp_path)[0]
    flip(segment.path, read_index(segment.index_path)[0].end - 10)
    journal = jetbus.journal.open(tmp_path)
    assert journal.as_of().to_pylist() == tree_after(rows(events))
    with pytest.raises(JournalError, match="is damaged at byte"):
        journal.as_of(seq=41)


@pytest.mark.parametrize("checksum", [True, False])
def test_damaged_snapshot(tmp_path: Path, checksum: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A tree whose snapshot is damaged comes from an earlier one."""
    events = plant(300)
    record(tmp_path, [cut(segment, 40) for segment in cut(events, 100)])
    newest = tmp_path / "snapshots" / f"{300:020}.arrow"
    if not checksum:
        newest.with_suffix(".crc32").unlink()
        newest.write_bytes(newest.read_bytes()[:200])
    journal = jetbus.journal.open(tmp_path)
    for at in range(0, newest.stat().st_size, 97) if checksum else [0]:
        if checksum:
            flip(newest, at)
        assert journal.as_of().to_pylist() == tree_after(rows(events))
        if checksum:
            flip(newest, at)
    assert "00300.arrow is damaged" in caplog.text


def test_clock_that_went_back(tmp_path: Path) -> None:
    """Now and durations count by the journal's clock, which does not go back when the machine's does."""
    ahead_us = wall_clock_us() + 3600 * US_PER_S
    with Writer(tmp_path, LAZY, now_us=lambda: ahead_us) as writer:
        writer.append("start")
        writer.append("add", "state", "a", b"1", "p#1")
        writer.commit()
        writer.now_us = wall_clock_us()
        writer.change("a", b"2", "p#1")
    journal = jetbus.journal.open(tmp_path)
    assert journal.as_of("now")["value"].to_pylist() == ["2"]
    assert journal.as_of("-1h", missing_ok=True).num_rows == 0
    assert journal.table(since="-1s").num_rows == 3
    assert journal.history("a", since="-1m").num_rows == 2


# -- who may read it


def test_closed_to_others(tmp_path: Path) -> None:
    """Everything that is made for a journal is closed to other users, whatever the umask."""
    directory = tmp_path / "journal"
    before = os.umask(0)
    try:
        events = plant(300, begin_us=BEGIN_US)
        record(directory, [cut(segment, 40) for segment in cut(events, 100)])
        compact(directory)
        flip(list_segments(directory)[-1].path, len(PLAIN.schema_bytes) + 9)
        Writer(directory, LAZY).close()
    finally:
        os.umask(before)
    made = [directory, *directory.rglob("*")]
    assert {path.suffix for path in made} > {".arrows", ".index", ".json", ".parquet", ".arrow", ".crc32"}
    for path in made:
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path


def test_open_directory_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A directory that was there and is open to others stays so, with a warning that names the way to close it."""
    tmp_path.chmod(0o755)
    Writer(tmp_path, LAZY).close()
    assert f"chmod o-rwx {tmp_path}" in caplog.text
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
