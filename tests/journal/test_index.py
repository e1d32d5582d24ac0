"""The sidecar index: fixed records with checksums; what is cut or wrong ends it."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetbus.journal.index import RECORD_BYTES, IndexEntry, pack, read_index, unpack

ENTRIES = [
    IndexEntry(1, 10, 1_000, 2_000, 464, 500, 0xFFFFFFFF),
    IndexEntry(11, 1, 2_000, 2_000, 964, 120, 0),
    IndexEntry(12, 65_536, -5, 2**62, 1084, 2**40, 7),
]


def test_records_are_read_as_written(tmp_path: Path) -> None:
    """Records are of one size and keep all their fields, whatever their range."""
    path = tmp_path / f"{ENTRIES[0].seq_first:020}.index"
    path.write_bytes(pack(ENTRIES))
    assert path.stat().st_size == 3 * RECORD_BYTES == 3 * 56
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
