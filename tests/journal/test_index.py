"""The sidecar index: fixed records with checksums; what is cut or wrong ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetbus.journal.index import PARSED_INDEXES, RECORD_BYTES, IndexEntry, ParsedIndexes, pack, read_index, unpack
from jetbus.radar.archive import LocalArchive
from support.journal_model import open_writer

ENTRIES = [
    IndexEntry(1, 10, 1_000, 2_000, 464, 500, 0xFFFFFFFF),
    IndexEntry(11, 1, 2_000, 2_000, 964, 120, 0, -7, 1_000),
    IndexEntry(12, 65_536, -5, 2**62, 1084, 2**40, 7),
]


def test_records_are_read_as_written(tmp_path: Path) -> None:
    """Records are of one size and keep all their fields, whatever their range."""
    path = tmp_path / f"{ENTRIES[0].seq_first:020}.index"
    path.write_bytes(pack(ENTRIES))
    assert path.stat().st_size == 3 * RECORD_BYTES == 3 * 72
    assert read_index(path) == ENTRIES
    assert read_index(path, skip=2) == ENTRIES[2:]
    assert read_index(path, skip=3) == []


def test_records_of_another_segment(tmp_path: Path) -> None:
    """Records that do not start with the seq in the name of the file do not count."""
    path = tmp_path / f"{ENTRIES[0].seq_first + 1:020}.index"
    path.write_bytes(pack(ENTRIES))
    assert read_index(path) == []


def test_no_file(tmp_path: Path) -> None:
    """A segment without an index has no committed batches."""
    assert read_index(tmp_path / "x.index") == []


def test_cut_at_every_byte() -> None:
    """A record that is cut does not count, those before it do."""
    data = pack(ENTRIES)
    for size in range(len(data)):
        assert unpack(data[:size]) == ENTRIES[: size // RECORD_BYTES]


def test_every_flipped_bit_is_noticed() -> None:
    """One wrong bit anywhere in a record ends the index before it."""
    data = pack(ENTRIES)
    for position in range(RECORD_BYTES, 2 * RECORD_BYTES):
        for bit in range(8):
            wrong = bytearray(data)
            wrong[position] ^= 1 << bit
            assert unpack(bytes(wrong)) == ENTRIES[:1]


@pytest.mark.parametrize(
    "second",
    [ENTRIES[1]._replace(seq_first=12), ENTRIES[1]._replace(seq_first=10), ENTRIES[1]._replace(position=965)],
    ids=["seq jumps", "seq repeats", "position jumps"],
)
def test_records_follow_each_other(second: IndexEntry) -> None:
    """A record that does not follow the one before, however sound, ends the index."""
    assert unpack(pack([ENTRIES[0], second])) == ENTRIES[:1]


def test_a_batch_ends_where_the_next_begins() -> None:
    """The last seq and the end of a batch follow from its record."""
    assert ENTRIES[0].seq_last == 10
    assert ENTRIES[0].end == 964


def make_entries(count: int, seq: int = 1) -> list[IndexEntry]:
    """Return records of batches with one event and one byte each."""
    return [IndexEntry(seq + number, 1, number, number, 464 + number, 1, number) for number in range(count)]


def test_only_the_tail_is_parsed_again(tmp_path: Path) -> None:
    """A file that has grown is parsed from its last known record on, one that is the same not at all."""
    indexes, path = ParsedIndexes(), tmp_path / f"{1:020}.index"
    path.write_bytes(pack(make_entries(1000)))
    assert indexes.read(path) == indexes.read(path) == make_entries(1000)
    assert indexes.parsed == 1000
    with path.open("ab") as file:
        file.write(pack(make_entries(1003)[1000:]))
    assert indexes.read(path) == make_entries(1003)
    assert indexes.parsed == 1004
    path.unlink()
    assert indexes.read(path) == []


def test_an_index_that_was_cut_is_parsed_as_a_whole(tmp_path: Path) -> None:
    """Records that a restarted writer has cut off and replaced are not taken for those that were known."""
    indexes, path = ParsedIndexes(), tmp_path / f"{1:020}.index"
    path.write_bytes(pack(make_entries(10)))
    indexes.read(path)
    other = [*make_entries(5), *(entry._replace(crc=99) for entry in make_entries(12)[5:])]
    path.write_bytes(pack(other))
    assert indexes.read(path) == other
    path.write_bytes(pack(other[:3]))
    assert indexes.read(path) == other[:3]


def test_parsed_indexes_are_limited(tmp_path: Path) -> None:
    """Beyond the limit the indexes that were used least recently are dropped."""
    indexes = ParsedIndexes(entries_max=250)
    paths = [tmp_path / f"{seq:020}.index" for seq in (1, 101, 201, 301)]
    for path in paths:
        path.write_bytes(pack(make_entries(100, int(path.stem))))
        assert len(indexes.read(path)) == 100
    assert indexes.count() == 200
    indexes.read(paths[-1])
    assert indexes.parsed == 400
    indexes.read(paths[0])
    assert indexes.parsed == 500


def test_a_live_chart_parses_only_what_is_new(tmp_path: Path) -> None:
    """However many batches a journal has, asking it again parses the records that were added, whatever the range."""
    with open_writer(tmp_path, segment_bytes=100_000) as writer:
        batches = 0

        def add(count: int) -> None:
            nonlocal batches
            for _ in range(count):
                writer.append("add" if not batches else "change", "state", "speed", b"%d" % batches)
                writer.commit()
                batches += 1

        add(300)
        archive = LocalArchive(tmp_path)
        points = archive.read_points("speed", "", 0, None)
        assert points.us.size == batches
        for _ in range(5):
            before = PARSED_INDEXES.parsed
            add(3)
            points = archive.read_points("speed", "", 0, points)
            whole = archive.read_points("speed", "", 0, None)
            assert points.us.size == whole.us.size == batches
            # The new ones, and the last known one again; a new segment has no known one.
            assert PARSED_INDEXES.parsed - before <= 2 * (3 + 1)
        archive.close()
