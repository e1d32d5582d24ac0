"""After any crash: the torn tail is cut, what was committed is there, seqs go on without gap or repeat."""

from __future__ import annotations

import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jetbus.journal import Settings, Writer, verify
from jetbus.journal.index import RECORD_BYTES, IndexEntry, read_index
from jetbus.journal.recovery import recover
from jetbus.journal.segment import PLAIN, Segment, list_segments, locate_segment
from support.journal_files import abandon, rows_of, values_of, write_changes

BATCHES = [4, 1, 3, 2, 3]
"""Events per batch of the segment that is cut."""


class Torn:
    """A journal that was left without closing, and copies of it to damage."""

    def __init__(self, directory: Path, compression: str | None) -> None:
        self.whole = directory / "whole"
        self.copy = directory / "copy"
        writer = Writer(self.whole, Settings(compression=compression, fsync="never"))  # type: ignore[arg-type]
        for number in range(len(BATCHES)):
            writer.now_us += 1000
            write_changes(writer, sum(BATCHES[:number]), sum(BATCHES[: number + 1]))
            writer.commit()
        abandon(writer)
        self.segment = locate_segment(self.copy, 1)
        self.data = locate_segment(self.whole, 1).path.read_bytes()
        self.index = locate_segment(self.whole, 1).index_path.read_bytes()
        self.entries: list[IndexEntry] = read_index(locate_segment(self.whole, 1).index_path)

    def damage(self, data: bytes, index: bytes | None) -> Segment:
        """A fresh copy with these files."""
        shutil.rmtree(self.copy, ignore_errors=True)
        self.copy.mkdir()
        self.segment.path.write_bytes(data)
        if index is not None:
            self.segment.index_path.write_bytes(index)
        return self.segment

    def batches_within(self, size: int) -> int:
        """Return the number of batches that are whole in a segment of this size."""
        return sum(entry.end <= size for entry in self.entries)

    def check(self, batches: int, cut_bytes: int | None = None) -> None:
        """Recover the copy: it has exactly so many batches, and a writer goes on."""
        events = sum(BATCHES[:batches])
        found = recover(self.copy)
        assert found.last_seq == events
        assert found.damaged == 0
        if cut_bytes is not None:
            assert found.cut_bytes == cut_bytes
        assert values_of(self.copy) == [str(number) for number in range(events)]

    def go_on(self, batches: int) -> None:
        """Open the copy for writing and write two events more."""
        events = sum(BATCHES[:batches])
        recover(self.copy)
        with Writer(self.copy, Settings(fsync="never")) as writer:
            assert (writer.recovered.last_seq, writer.recovered.cut_bytes) == (events, 0)
            assert writer.seq == events + 1
            write_changes(writer, events, events + 2)
        assert values_of(self.copy) == [str(number) for number in range(events + 2)]


@pytest.fixture(params=[None, "lz4"], ids=["plain", "lz4"])
def torn(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Torn]:
    """A journal that was left without closing, in memory where there is such a file system: fsync costs nothing."""
    in_memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=in_memory if in_memory.is_dir() else tmp_path) as directory:
        yield Torn(Path(directory), request.param)


def test_segment_cut_at_every_byte(torn: Torn) -> None:
    """Wherever the segment is cut in its last two batches, the whole batches before remain and the rest is cut."""
    for size in range(torn.entries[-2].position, len(torn.data) + 1):
        torn.damage(torn.data[:size], torn.index)
        batches = torn.batches_within(size)
        torn.check(batches, cut_bytes=size - torn.entries[batches - 1].end)
        if size % 97 == 0:
            torn.damage(torn.data[:size], torn.index)
            torn.go_on(batches)


def test_killed_within_a_batch_at_every_byte(torn: Torn) -> None:
    """A batch that is not yet in the index counts if it is whole, and is cut if it is not."""
    for size in range(torn.entries[-1].position, len(torn.data) + 1):
        torn.damage(torn.data[:size], torn.index[:-RECORD_BYTES])
        torn.check(torn.batches_within(size))


def test_index_cut_at_every_byte(torn: Torn) -> None:
    """Wherever the index is cut, no event is lost: whole batches tell all that it said."""
    for size in range(len(torn.index) - 2 * RECORD_BYTES, len(torn.index)):
        torn.damage(torn.data, torn.index[:size])
        torn.check(len(BATCHES), cut_bytes=0)
        assert torn.segment.index_path.read_bytes() == torn.index


def test_index_lost(torn: Torn) -> None:
    """Without any index it is made anew."""
    torn.damage(torn.data, None)
    torn.check(len(BATCHES))
    assert torn.segment.index_path.read_bytes() == torn.index


def test_cut_before_the_first_batch_at_every_byte(torn: Torn) -> None:
    """A segment without a whole batch is removed, and its name tells the seq to go on with."""
    for size in range(torn.entries[0].end):
        torn.damage(torn.data[:size], b"")
        assert recover(torn.copy).last_seq == 0
        assert list(torn.copy.iterdir()) == []
    later = locate_segment(torn.copy, 1000)
    later.path.write_bytes(torn.data[:100])
    (torn.copy / "lock").write_text("4711\n")
    with Writer(torn.copy) as writer:
        assert writer.seq == 1000
        assert writer.recovered.cut_bytes == 100


def test_end_mark_cut_at_every_byte(torn: Torn) -> None:
    """A torn end mark is cut and written again."""
    torn.damage(torn.data, torn.index)
    recover(torn.copy)
    sealed = torn.segment.path.read_bytes()
    assert len(sealed) == len(torn.data) + 8
    for size in range(len(torn.data), len(sealed)):
        torn.damage(sealed[:size], torn.index)
        torn.check(len(BATCHES), cut_bytes=size - len(torn.data))
        assert torn.segment.path.read_bytes() == sealed


def test_every_byte_of_the_last_batch_flipped(torn: Torn) -> None:
    """A wrong bit in a batch that the index names is damage, also after a kill: nothing is cut, its seqs are lost."""
    last = torn.entries[-1]
    for position in range(last.position, last.end):
        wrong = bytearray(torn.data)
        wrong[position] ^= 1 << position % 8
        torn.damage(bytes(wrong), torn.index)
        found = recover(torn.copy)
        assert (found.last_seq, found.cut_bytes, found.lost) == (last.seq_last, 0, ((last.seq_first, last.seq_last),))
        assert torn.segment.path.read_bytes()[: last.end] == wrong


def test_flipped_bit_after_a_kill(torn: Torn) -> None:
    """The writer after a kill records a gap for a damaged batch and reuses no seq; verify reports the batch."""
    last = torn.entries[-1]
    wrong = bytearray(torn.data)
    wrong[last.end - 20] ^= 1
    torn.damage(bytes(wrong), torn.index)
    (torn.copy / "lock").write_text("4711\n")
    with Writer(torn.copy, Settings(fsync="never")) as writer:
        assert writer.seq == last.seq_last + 2, "the gap comes first"
        write_changes(writer, 100, 101)
    assert [problem.seq for problem in verify(torn.copy)] == [last.seq_first]
    rows = rows_of(torn.copy, from_segment=last.seq_last + 1)
    assert [(row["seq"], row["event"]) for row in rows] == [(last.seq_last + 1, "gap"), (last.seq_last + 2, "change")]
    assert f"events {last.seq_first} to {last.seq_last} are damaged or missing" in rows[0]["detail"]


def test_batch_that_did_not_reach_the_disk(torn: Torn) -> None:
    """After a power loss, a last batch of zeros was never written, whatever the index says: it is cut."""
    last = torn.entries[-1]
    torn.damage(torn.data[: last.position] + bytes(last.length), torn.index)
    torn.check(len(BATCHES) - 1, cut_bytes=last.length)


def test_damage_in_the_middle_is_left_and_counted(torn: Torn) -> None:
    """A wrong batch with good ones after it is damage: nothing is cut, no seq is given twice."""
    wrong = bytearray(torn.data)
    wrong[torn.entries[1].end - 8] ^= 1
    torn.damage(bytes(wrong), torn.index)
    found = recover(torn.copy)
    assert (found.last_seq, found.cut_bytes, found.damaged) == (sum(BATCHES), 0, 1)
    assert torn.segment.path.read_bytes()[: len(wrong)] == wrong
    assert read_index(torn.segment.index_path) == torn.entries


@pytest.mark.parametrize("zeros", [1, 8, 4096], ids=["1", "8", "4096"])
def test_zeros_of_a_power_loss(torn: Torn, zeros: int) -> None:
    """Zeros after the last batch, or in place of one that the index does not name, are cut."""
    torn.damage(torn.data + bytes(zeros), torn.index)
    torn.check(len(BATCHES), cut_bytes=zeros)
    last = torn.entries[-1]
    blank = torn.data[: last.position] + bytes(last.length)
    torn.damage(blank, torn.index[:-RECORD_BYTES])
    torn.check(len(BATCHES) - 1, cut_bytes=last.length)
    half = torn.data[: last.end - last.length // 2] + bytes(last.length // 2)
    torn.damage(half, torn.index[:-RECORD_BYTES])
    torn.check(len(BATCHES) - 1, cut_bytes=last.length)


def test_zeros_in_place_of_texts(tmp_path: Path) -> None:
    """Zeros where texts should be make no batch, though Arrow has nothing against them."""
    torn = Torn(tmp_path, None)
    values = b"".join(b"%d" % number for number in range(sum(BATCHES[:-1]), sum(BATCHES)))
    assert torn.data.count(values) == 1
    torn.damage(torn.data.replace(values, bytes(len(values))), torn.index[:-RECORD_BYTES])
    torn.check(len(BATCHES) - 1, cut_bytes=torn.entries[-1].length)


def test_lost_index_of_a_dropped_segment(tmp_path: Path) -> None:
    """An index whose segment was dropped in the moment of a crash is removed."""
    Writer(tmp_path).close()
    lost = locate_segment(tmp_path, 5).index_path
    lost.write_bytes(b"x")
    Writer(tmp_path).close()
    assert not lost.exists()


def test_snapshots_of_what_is_lost(tmp_path: Path) -> None:
    """A snapshot of events that a power loss took is dropped, so that their seqs can be given again."""
    with Writer(tmp_path, Settings(fsync="never")) as writer:
        write_changes(writer, 0, 3)
    too_late = tmp_path / "snapshots" / f"{9:020}.arrow"
    too_late.write_bytes(b"x")
    with Writer(tmp_path) as writer:
        assert writer.seq == 4
    assert not too_late.exists()


def test_plain_pyarrow_reads_what_is_being_written(tmp_path: Path) -> None:
    """The segment that is being written can be read by anybody after every commit, without its end mark."""
    with Writer(tmp_path, Settings(fsync="never")) as writer:
        for number in range(10):
            write_changes(writer, number, number + 1)
            writer.commit()
            with pa.ipc.open_stream(locate_segment(tmp_path, 1).path.read_bytes()) as stream:
                assert stream.read_all().num_rows == number + 1


def test_schema_is_the_same_for_all(torn: Torn) -> None:
    """Every segment begins with the same bytes, so that a batch can be read with them alone."""
    assert torn.data.startswith(PLAIN.schema_bytes)
    assert torn.entries[0].position == len(PLAIN.schema_bytes)
    last = torn.entries[-1]
    with pa.ipc.open_stream(PLAIN.schema_bytes + torn.data[last.position : last.end]) as stream:
        assert stream.read_all().num_rows == BATCHES[-1]


# -- kill -9

NURSERY = """
import os, sys, time
from jetbus.journal import Settings, Writer, verify

def load(directory, fsync, keep_bytes, number, said):
    writer = Writer(directory, Settings(fsync=fsync, segment_bytes=20_000, keep_bytes=keep_bytes or None))
    writer.append("start", detail=b'{"from": %d}' % number)
    writer.commit()
    os.write(said, b"open %d\\n" % os.getpid())
    while True:
        writer.now_us = time.time_ns() // 1000
        for _ in range(number % 40 + 1):
            writer.change(f"plant/pump{number % 10}/speed", b"%d" % number, "pump#1")
            number += 1
        if writer.commit():
            os.write(said, b"%d\\n" % number)

for line in sys.stdin:
    directory, fsync, keep_bytes, number = line.split()
    child = os.fork()
    if not child:
        try:
            load(directory, fsync, int(keep_bytes), int(number), 1)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""
"""A process that has loaded everything and becomes a loaded writer, again and again, in no time."""


class Nursery:
    """Writers to be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def acknowledged(self, directory: Path, fsync: str, first: int, after_s: float, keep_bytes: int = 0) -> int:
        """Run a loaded writer, kill it after a while, and give the number up to which it said it had committed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{directory} {fsync} {keep_bytes} {first}\n".encode())
        self._process.stdin.flush()
        opened = re.compile(rb"open (\d+)\n")
        said = self._read_until(opened, 60)
        child = int(opened.findall(said)[0])
        said += self._read_until(None, after_s)
        os.kill(child, signal.SIGKILL)
        said += self._read_until(re.compile(rb"dead\n"), 60)
        numbers = re.findall(rb"^(\d+)$", said, re.MULTILINE)
        return int(numbers[-1]) if numbers else first

    def _read_until(self, end: re.Pattern[bytes] | None, within_s: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + within_s
        said = b""
        while end is None or not end.search(said):
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                assert end is None, f"no {end} but {said[-1000:]!r}"
                break
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            assert read, "the writer ended by itself"
            said += read
        return said

    def close(self) -> None:
        """End the process; its last writer is dead already."""
        with self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    """A process that makes loaded writers."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def moments() -> random.Random:
    """Random moments; a failing run tells its seed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


class Killed:
    """Acknowledged events of a journal whose writers are killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.number = 0
        self._checked_seq = 0

    def check(self, said: int, *, dropped: bool = False) -> None:
        """New events are one unbroken row of numbers, and no acknowledged one is missing."""
        last_seq = recover(self.directory).last_seq
        numbers = [int(value) for value in values_of(self.directory, from_segment=self._checked_seq + 1)]
        first = numbers[0] if dropped and numbers else self.number
        assert numbers == list(range(first, first + len(numbers)))
        self.number = max(self.number, first + len(numbers))
        assert self.number >= said
        self._checked_seq = last_seq


@pytest.mark.parametrize(("fsync", "rounds"), [("always", 20), ("never", 30)])
def test_killed_at_random_moments(
    tmp_path: Path, nursery: Nursery, moments: random.Random, fsync: str, rounds: int
) -> None:
    """A writer killed again and again loses nothing it acknowledged, and repeats and skips no seq."""
    killed = Killed(tmp_path)
    for _ in range(rounds):
        killed.check(nursery.acknowledged(tmp_path, fsync, killed.number, moments.uniform(0, 0.05)))
    rows = rows_of(tmp_path)
    assert rows[0]["seq"] == 1
    assert [row["event"] for row in rows].count("start") == rounds
    assert [int(row["value"]) for row in rows if row["event"] == "change"] == list(range(killed.number))


def test_killed_while_retention_drops(tmp_path: Path, nursery: Nursery, moments: random.Random) -> None:
    """Killed while old segments are dropped, what is left is one unbroken end of the log."""
    killed = Killed(tmp_path)
    for _ in range(10):
        after_s = moments.uniform(0.05, 0.2)
        said = nursery.acknowledged(tmp_path, "never", killed.number, after_s, keep_bytes=60_000)
        killed.check(said, dropped=True)
    with Writer(tmp_path, Settings(keep_bytes=60_000)):
        pass
    assert sum(segment.size_bytes for segment in list_segments(tmp_path)) <= 60_000
    assert rows_of(tmp_path)[0]["seq"] > 1
