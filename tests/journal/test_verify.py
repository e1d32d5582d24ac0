"""Verifying: a whole journal has no problems, and every damage is found and named."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import jetbus.journal
from jetbus.journal import snapshots, verify
from jetbus.journal.index import RECORD_BYTES, IndexEntry, pack, read_index
from jetbus.journal.parquet import read_manifest
from jetbus.journal.segment import list_segments
from support.journal_model import cut, open_writer, plant, record, write

EVENTS = plant(500)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three segments, and before them two hundred events in Parquet."""
    record(tmp_path, [cut(segment, 40) for segment in cut(EVENTS[:300], 100)])
    jetbus.journal.compact(tmp_path)
    record(tmp_path, [cut(segment, 40) for segment in cut(EVENTS[300:], 100)])
    return tmp_path


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def test_all_is_well(directory: Path) -> None:
    """A whole journal has no problems, also while it is written."""
    assert verify(directory) == []
    with open_writer(directory) as writer:
        write(writer, EVENTS[-5:])
        assert writer.commit()
        assert verify(directory) == []


def damage_batch(directory: Path) -> None:
    segment = list_segments(directory)[1]
    entry = read_index(segment.index_path)[1]
    flip(segment.path, entry.position + entry.length - 3)


def damage_last_batch(directory: Path) -> None:
    segment = list_segments(directory)[-1]
    flip(segment.path, read_index(segment.index_path)[-1].end - 1)


def damage_record(directory: Path) -> None:
    flip(list_segments(directory)[1].index_path, RECORD_BYTES + 3)


def cut_index(directory: Path) -> None:
    index = list_segments(directory)[1].index_path
    index.write_bytes(index.read_bytes()[:RECORD_BYTES])


def cut_segment(directory: Path) -> None:
    path = list_segments(directory)[0].path
    path.write_bytes(path.read_bytes()[:-200])


def lose_segment(directory: Path) -> None:
    segment = list_segments(directory)[1]
    segment.path.unlink()
    segment.index_path.unlink()


def lose_index(directory: Path) -> None:
    list_segments(directory)[1].index_path.unlink()


def lose_last_index(directory: Path) -> None:
    list_segments(directory)[-1].index_path.unlink()


def cut_last_index(directory: Path) -> None:
    os.truncate(list_segments(directory)[-1].index_path, RECORD_BYTES)


def lose_last_segment(directory: Path) -> None:
    segment = list_segments(directory)[-1]
    segment.path.unlink()
    segment.index_path.unlink()


def rename_segment(directory: Path) -> None:
    segment = list_segments(directory)[1]
    for path in (segment.path, segment.index_path):
        path.rename(path.with_stem(f"{segment.first_seq + 1:020}"))


def lie_about_seqs(directory: Path) -> None:
    segment = list_segments(directory)[0]
    entries = [entry._replace(count=entry.count - 1) for entry in read_index(segment.index_path)[:1]]
    segment.index_path.write_bytes(pack(entries))


def lie_about_instants(directory: Path) -> None:
    segment = list_segments(directory)[0]
    first, *others = read_index(segment.index_path)
    lie = IndexEntry(*first[:2], first.ts_min_us + 1, *first[3:])
    segment.index_path.write_bytes(pack([lie, *others]))


def parquet(directory: Path) -> Path:
    return directory / read_manifest(directory).spans[0].file


def damage_parquet(directory: Path) -> None:
    flip(parquet(directory), 900)


def cut_parquet(directory: Path) -> None:
    parquet(directory).write_bytes(parquet(directory).read_bytes()[:-50])


def lose_parquet(directory: Path) -> None:
    parquet(directory).unlink()


def falsify_snapshot(directory: Path) -> None:
    seq = snapshots.list_snapshots(directory)[-1]
    tree = snapshots.read_snapshot(directory, seq)
    with pa.ipc.new_file(directory / "snapshots" / f"{seq:020}.arrow", tree.schema) as writer:
        writer.write_table(tree.slice(1))
    (directory / "snapshots" / f"{seq:020}.crc32").unlink()


def damage_snapshot(directory: Path) -> None:
    file = directory / "snapshots" / f"{snapshots.list_snapshots(directory)[-1]:020}.arrow"
    file.write_bytes(file.read_bytes()[:100])


def snapshot_of_the_future(directory: Path) -> None:
    file = directory / "snapshots" / f"{snapshots.list_snapshots(directory)[-1]:020}.arrow"
    file.rename(file.with_stem(f"{9999:020}"))


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "batch": (damage_batch, r"00301\.arrows, event 341: the batch at byte \d+ is damaged"),
    "last batch": (damage_last_batch, r"00401\.arrows, event 481: the batch"),
    "record": (damage_record, r"00301\.index, event 341: record 1 is damaged; 3 should be there"),
    "cut index": (cut_index, r"00301\.index, event 341: it ends at byte"),
    "cut segment": (cut_segment, r"00201\.arrows, event 281: the batch"),
    "lost segment": (lose_segment, r"00401\.arrows, event 401: events 301 to 400 are missing"),
    "lost index": (lose_index, r"00301\.index, event 301: the index is missing; the next writer rebuilds it"),
    "lost last index": (lose_last_index, r"00401\.index, event 401: the index is missing"),
    "cut last index": (cut_last_index, r"00401\.index, event 441: it ends at byte"),
    "lost last segment": (
        lose_last_segment,
        r"lock, event 401: .* closed with event 500; events 401 to 500 are missing",
    ),
    "renamed": (rename_segment, r"00302\.arrows, event 302: its name says .* event 302, but its first event is 301"),
    "seqs": (lie_about_seqs, r"00201\.arrows, event 201: its seqs"),
    "instants": (lie_about_instants, r"00201\.arrows, event 201: its instants"),
    "parquet": (damage_parquet, r"\.parquet, event 1: .* damaged"),
    "cut parquet": (cut_parquet, r"\.parquet, event 1: .*"),
    "lost parquet": (lose_parquet, r"\.parquet, event 1: the file is missing"),
    "false snapshot": (falsify_snapshot, r"snapshots/500, event 500: it differs from the tree"),
    "damaged snapshot": (
        damage_snapshot,
        r"snapshots/500, event 500: .* is damaged: the checksum does not match; remove it",
    ),
    "early snapshot": (snapshot_of_the_future, r"snapshots/9999, .* the last event is 500"),
}


@pytest.mark.parametrize(("damage", "wanted"), DAMAGES.values(), ids=DAMAGES)
def test_damages(directory: Path, damage: Callable[[Path], None], wanted: str) -> None:
    """Every damage is named with its file and the event from which on something is wrong."""
    damage(directory)
    problems = "\n".join(map(str, verify(directory)))
    assert re.search(wanted, problems), problems
