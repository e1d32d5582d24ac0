"""A disk that is full, read-only or gone: the owner of the writer goes on, nothing is written wrong, gaps are told.

Real faults: a limit on the size of files, a small file system, one that is remounted read-only, a removed directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetbus.journal import JournalError, JournalInUse, Settings, Writer, batch, segment_writer
from jetbus.journal.segment import list_segments
from support.journal_files import Row, SkippingClock, abandon, file_size_limit, rows_of, values_of, write_changes

LAZY = Settings(fsync="never")
SMALL = Settings(fsync="never", compression=None, buffered_bytes_max=20_000, flush_events=20)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount a file system")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def try_again(writer: Writer) -> bool:
    """Commit without waiting for the time of the next attempt."""
    writer.retry_now()
    return writer.commit()


def gaps(rows: list[Row]) -> list[Any]:
    return [json.loads(row["detail"]) for row in rows if row["event"] == "gap"]


def fill(disk: Path) -> Path:
    """Use up all that is left of a file system."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while file.write(b"x"):
            pass
    return ballast


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_full_disk(small_disk: Path, fsync: Any) -> None:
    """While the disk is full events wait; when there is space again all are written, and nothing is missed."""
    with Writer(small_disk / "journal", Settings(fsync=fsync, compression=None)) as writer:
        write_changes(writer, 0, 10)
        assert writer.commit()
        ballast = fill(small_disk)
        number = 10
        while writer.problem is None:
            write_changes(writer, number, number + 100)
            number += 100
            writer.commit()
            assert number < 100_000
        assert "No space left on device; free some space" in writer.problem
        write_changes(writer, number, number + 5)
        assert not writer.commit()
        assert writer.pending >= 5
        assert values_of(small_disk / "journal") == [str(n) for n in range(number + 5 - writer.pending)]
        ballast.unlink()
        assert try_again(writer)
        assert writer.problem is None
        assert (writer.missed, writer.pending) == (0, 0)
        assert writer.seq == number + 6
    assert values_of(small_disk / "journal") == [str(n) for n in range(number + 5)]
    assert gaps(rows_of(small_disk / "journal")) == []


def test_not_tried_again_at_once(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error the disk is left alone for a while, whatever is appended."""
    monkeypatch.setattr(segment_writer, "RETRY_S", 1000.0)
    with Writer(small_disk / "journal", LAZY) as writer:
        ballast = fill(small_disk)
        write_changes(writer, 0, 100)
        assert not writer.commit()
        ballast.unlink()
        write_changes(writer, 100, 200)
        assert not writer.commit()
        assert writer.pending == 200
        assert try_again(writer)
    assert values_of(small_disk / "journal") == [str(n) for n in range(200)]


def test_what_does_not_fit_into_memory_is_missed(tmp_path: Path) -> None:
    """Beyond the limit the oldest events are dropped and counted, and the first event after tells of the gap."""
    with Writer(tmp_path, SMALL, now_us=lambda: 1_000_000) as writer:
        write_changes(writer, 0, 10)
        assert writer.commit()
        with file_size_limit(list_segments(tmp_path)[0].path.stat().st_size + 100):
            for number in range(10, 1010, 10):
                writer.now_us += 1
                write_changes(writer, number, number + 10)
                assert not writer.commit()
                assert writer.pending_bytes <= 20_000
        assert writer.problem is not None
        missed = writer.missed
        assert 0 < missed < 1000
        assert writer.pending == 1000 - missed
        assert try_again(writer)
        assert writer.problem is None
        assert (writer.missed, writer.pending) == (missed, 0)
        write_changes(writer, 1010, 1015)
    rows = rows_of(tmp_path)
    assert [row["event"] for row in rows[:12]] == [*["change"] * 10, "gap", "change"]
    assert [row["value"] for row in rows[11:]] == [str(n) for n in range(10 + missed, 1015)]
    (gap,) = gaps(rows)
    assert gap["missed"] == missed
    assert gap["since"] == "1970-01-01T00:00:01.000001Z"
    assert "File too large" in gap["reason"]


def miss(writer: Writer, directory: Path) -> None:
    """Have the disk refuse for so long that all that was appended is dropped, then take again."""
    with file_size_limit(list_segments(directory)[0].path.stat().st_size + 100):
        writer.change("big", b'"%s"' % (b"x" * 50_000), "p#1")
        assert not writer.commit()
        assert writer.take_lost() is None
    assert try_again(writer)


def test_what_was_missed_is_known(tmp_path: Path) -> None:
    """The writer returns the paths of a gap once, when the gap is written and not before."""
    with Writer(tmp_path, SMALL) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        writer.append("add", "state", "a", b"1", "p#1")
        writer.append("peer", None, None, None, "p#2")
        write_changes(writer, 1, 3)
        miss(writer, tmp_path)
        lost = writer.take_lost()
        assert lost is not None
        assert (lost.paths, lost.everything) == ({"a", "big", "plant/speed"}, False)
        assert writer.take_lost() is None


@pytest.mark.parametrize("why", ["a start", "too many paths"])
def test_it_may_be_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """After a missed start, or more paths than are remembered, every path counts as lost."""
    monkeypatch.setattr(batch, "LOST_PATHS_MAX", 5)
    with Writer(tmp_path, SMALL) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        if why == "a start":
            writer.append("start")
        else:
            for number in range(5):
                writer.change(f"p{number}", b"1", "p#1")
        miss(writer, tmp_path)
        lost = writer.take_lost()
        assert lost is not None
        assert (lost.paths, lost.everything) == (set(), True)


def test_everything_missed(tmp_path: Path) -> None:
    """An event too big to wait is missed alone, and so told."""
    with Writer(tmp_path, SMALL) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        with file_size_limit(1000):
            writer.change("big", b'"%s"' % (b"x" * 50_000), "p#1")
            assert not writer.commit()
            assert (writer.pending, writer.missed) == (0, 1)
        assert try_again(writer)
    assert [row["event"] for row in rows_of(tmp_path)] == ["change", "gap"]


def test_nobody_writes(tmp_path: Path) -> None:
    """If nobody takes appended events, memory stays within the limit and a gap is recorded in their place."""
    with Writer(tmp_path, Settings(fsync="never", buffered_bytes_max=1_000_000)) as writer:
        for _ in range(20):
            writer.now_us += 1
            write_changes(writer, 0, 10_000)
        missed = writer.missed
        assert missed > 0
        assert writer.pending == 200_000 - missed
        assert writer.seq == 200_001 - missed
    rows = rows_of(tmp_path)
    assert rows[0]["event"] == "gap"
    assert gaps(rows)[0]["missed"] == missed
    assert len(rows) == 200_001 - missed


@pytest.mark.parametrize("room", range(0, 900, 60))
def test_cut_short_anywhere(tmp_path: Path, room: int) -> None:
    """Wherever in a batch or its index the disk ends, both files are cut back to the last commit."""
    with Writer(tmp_path, SMALL) as writer:
        write_changes(writer, 0, 3)
        writer.commit()
        segment = list_segments(tmp_path)[0]
        before = (segment.path.read_bytes(), segment.index_path.read_bytes())
        with file_size_limit(len(before[0]) + room):
            write_changes(writer, 3, 30)
            assert not writer.commit()
        assert (segment.path.read_bytes(), segment.index_path.read_bytes()) == before
        assert try_again(writer)
    assert values_of(tmp_path) == [str(n) for n in range(30)]


def test_index_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch whose index record cannot be written is taken back."""
    write = os.pwrite

    def write_unless_index(descriptor: int, data: memoryview, position: int) -> int:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".index":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, position)

    with Writer(tmp_path, SMALL) as writer:
        write_changes(writer, 0, 3)
        writer.commit()
        segment = list_segments(tmp_path)[0]
        before = segment.path.read_bytes()
        write_changes(writer, 3, 5)
        with monkeypatch.context() as full_disk:
            full_disk.setattr(os, "pwrite", write_unless_index)
            assert not writer.commit()
        assert segment.path.read_bytes()[: len(before)] == before
        assert try_again(writer)
    assert values_of(tmp_path) == [str(n) for n in range(5)]


def test_first_segment_does_not_fit(tmp_path: Path) -> None:
    """If not even the head of a segment fits, no file is left behind, and writing works later."""
    with Writer(tmp_path, LAZY) as writer:
        with file_size_limit(100):
            write_changes(writer, 0, 3)
            assert not writer.commit()
            assert list_segments(tmp_path) == []
        assert try_again(writer)
    assert values_of(tmp_path) == ["0", "1", "2"]


def test_read_only_disk(small_disk: Path) -> None:
    """A disk that is read-only for a while is survived, and is written again when it can be."""
    directory = small_disk / "journal"
    with Writer(directory, Settings(fsync="never", segment_bytes=4096)) as writer:
        write_changes(writer, 0, 1000)
        assert writer.commit()
        assert writer.open_segment is None
        writer.wait_for_maintenance()
        mount("-t", "tmpfs", "-o", "ro", "tmpfs", str(directory))
        try:
            write_changes(writer, 1000, 1010)
            assert not writer.commit()
            for _ in range(3):
                assert not try_again(writer)
                assert "Read-only file system; make it writable" in str(writer.problem)
        finally:
            subprocess.run(["umount", directory], check=True)
        assert try_again(writer)
        assert (writer.problem, writer.missed) == (None, 0)
    assert values_of(directory) == [str(n) for n in range(1010)]


def test_opening_on_a_read_only_disk(small_disk: Path) -> None:
    """A journal on a read-only disk is not opened for writing; the error names it."""
    mount("-o", "remount,ro", str(small_disk))
    with pytest.raises(JournalError, match=r"cannot write to .*journal: Read-only file system"):
        Writer(small_disk / "journal")


def test_opening_on_a_full_disk(small_disk: Path) -> None:
    """A journal with a torn tail is opened on a full disk, too."""
    directory = small_disk / "journal"
    writer = Writer(directory, LAZY)
    write_changes(writer, 0, 3)
    writer.commit()
    write_changes(writer, 3, 6)
    writer.commit()
    abandon(writer)
    segment = list_segments(directory)[0]
    os.truncate(segment.path, segment.path.stat().st_size - 20)
    ballast = fill(small_disk)
    with Writer(directory, LAZY) as writer:
        assert (writer.seq, writer.recovered.cut_bytes > 0) == (4, True)
        write_changes(writer, 3, 1000)
        assert not writer.commit()
        ballast.unlink()
        assert try_again(writer)
    assert values_of(directory) == [str(n) for n in range(1000)]


def test_removed_directory(tmp_path: Path) -> None:
    """If the whole directory is removed, the next commit notices; lost events are counted and recorded as a gap."""
    directory = tmp_path / "journal"
    with Writer(directory, LAZY) as writer:
        write_changes(writer, 0, 10)
        assert writer.commit()
        bus_id = writer.identity
        shutil.rmtree(directory)
        write_changes(writer, 10, 20)
        assert not writer.commit()
        assert "was removed or replaced while it was being written" in str(writer.problem)
        assert try_again(writer)
        assert (writer.seq, writer.missed) == (22, 10)
        lost = writer.take_lost()
        assert lost is not None
        assert lost.everything
        with pytest.raises(JournalError):
            Writer(directory)
    rows = rows_of(directory)
    assert [row["seq"] for row in rows] == list(range(11, 22))
    (gap,) = gaps(rows)
    assert gap["missed"] == 10
    assert gap["reason"] == (
        "events 1 to 10 were committed and are lost: the directory was removed or replaced while it was being written"
    )
    assert [row["value"] for row in rows[1:]] == [str(number) for number in range(10, 20)]
    with Writer(directory) as writer:
        assert writer.seq == 22
        assert writer.identity == bus_id


@pytest.mark.parametrize("removed", ["segment", "index", "directory moved away", "segment after the last commit"])
def test_removed_under_load(tmp_path: Path, removed: str) -> None:
    """Whatever of the journal is removed between two commits, every acknowledged event is there or told as missed."""
    directory = tmp_path / "journal"
    with Writer(directory, LAZY) as writer:
        write_changes(writer, 0, 10)
        assert writer.commit()
        segment = list_segments(directory)[0]
        if removed == "index":
            segment.index_path.unlink()
        elif removed == "directory moved away":
            directory.rename(tmp_path / "away")
        else:
            segment.path.unlink()
        if removed != "segment after the last commit":
            write_changes(writer, 10, 20)
            assert not writer.commit()
            assert try_again(writer)
    rows = rows_of(directory)
    changes = 10 if removed == "segment after the last commit" else 20
    there = [row for row in rows if row["event"] == "change"]
    assert len(there) + writer.missed == changes
    assert sum(gap["missed"] for gap in gaps(rows)) == writer.missed == (0 if removed == "index" else 10)
    assert len({row["seq"] for row in rows}) == len(rows)


def test_replaced_directory(tmp_path: Path) -> None:
    """A directory that was put in the place of a journal, while no file of it was open, is not written unlocked."""
    directory, others = tmp_path / "journal", tmp_path / "others"
    with Writer(others, LAZY) as other:
        write_changes(other, 0, 3)
        other.commit()
        with Writer(directory, Settings(fsync="never", segment_bytes=4096)) as writer:
            write_changes(writer, 0, 1000)
            assert writer.commit()
            assert writer.open_segment is None
            directory.rename(tmp_path / "away")
            others.rename(directory)
            write_changes(writer, 1000, 1010)
            assert not writer.commit()
            assert not try_again(writer)
            assert "is being written by process" in str(writer.problem)
            directory.rename(others)
            (tmp_path / "away").rename(directory)
            assert try_again(writer)
    assert values_of(directory) == [str(number) for number in range(1010)]
    assert values_of(others) == ["0", "1", "2"]


def test_removed_lock_file_lets_nobody_in(tmp_path: Path) -> None:
    """A second writer is refused though the lock file was removed, and the file is put back."""
    with Writer(tmp_path, LAZY) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        (tmp_path / "lock").unlink()
        with pytest.raises(JournalInUse, match="is being written; stop that writer"):
            Writer(tmp_path)
        write_changes(writer, 1, 2)
        assert writer.commit()
        with pytest.raises(JournalInUse, match=f"by process {os.getpid()}"):
            Writer(tmp_path)
    assert values_of(tmp_path) == ["0", "1"]


def test_closing_on_a_full_disk(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Closing does not fail on a full disk; what is lost is counted and logged, the next writer knows of it."""
    directory = small_disk / "journal"
    with Writer(directory, Settings(fsync="never", compression=None)) as writer:
        write_changes(writer, 0, 3)
        writer.commit()
        ballast = fill(small_disk)
        write_changes(writer, 3, 2000)
    assert writer.missed == 1997
    assert "closed without its last 1997 events" in caplog.text
    ballast.unlink()
    with Writer(directory, LAZY) as writer:
        assert writer.seq == 4
        assert not writer.recovered.clean
    assert values_of(directory) == ["0", "1", "2"]


# -- fsync: the real call, watched or failing as a worn-out disk does


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were synced, in order."""
    names: list[str] = []
    really = os.fdatasync

    def watched(descriptor: int) -> None:
        really(descriptor)
        names.append(Path(f"/proc/self/fd/{descriptor}").readlink().suffix)

    monkeypatch.setattr(os, "fdatasync", watched)
    return names


def test_fsync_always(tmp_path: Path, synced: list[str]) -> None:
    """With always each commit is on disk when it returns: the batch first, then the index that names it."""
    with Writer(tmp_path, Settings(fsync="always")) as writer:
        for number in range(3):
            write_changes(writer, number, number + 1)
            assert writer.commit()
            assert synced == [".arrows", ".index"] * (number + 1)
        writer.commit()
        assert len(synced) == 6


def test_fsync_interval(tmp_path: Path, synced: list[str]) -> None:
    """With interval a commit does not wait for the disk until the interval is over; then all before is on disk."""
    clock = SkippingClock()
    with Writer(
        tmp_path, Settings(fsync="interval", fsync_ms=3_600_000, segment_age_s=86_400), monotonic_s=clock
    ) as writer:
        for number in range(3):
            write_changes(writer, number, number + 1)
            assert writer.commit()
        assert synced == []
        clock.skip(3600)
        assert writer.commit()
        assert synced == [".arrows", ".index"]
        clock.skip(3600)
        assert writer.commit()
        assert len(synced) == 2
    assert synced == [".arrows", ".index"] * 2


def test_fsync_never(tmp_path: Path, synced: list[str]) -> None:
    """With never the system decides, also when a segment is sealed."""
    with Writer(tmp_path, Settings(fsync="never", fsync_ms=1, segment_bytes=4096)) as writer:
        for number in range(20):
            write_changes(writer, number, number + 1)
            assert writer.commit()
    assert synced == []


def refuse(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_fsync_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that the disk did not take are neither acknowledged nor written twice."""
    with Writer(tmp_path, Settings(fsync="always")) as writer:
        write_changes(writer, 0, 3)
        assert writer.commit()
        with monkeypatch.context() as worn_out:
            worn_out.setattr(os, "fdatasync", refuse)
            write_changes(writer, 3, 6)
            assert not writer.commit()
            assert "Input/output error" in str(writer.problem)
            assert values_of(tmp_path) == ["0", "1", "2"]
        assert try_again(writer)
    assert values_of(tmp_path) == [str(n) for n in range(6)]


@pytest.mark.parametrize("failing", ["before the index", "after the index"])
def test_nothing_can_be_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """A batch that fails and cannot be cut back is recovered as after a crash, and is there once."""
    with Writer(tmp_path, Settings(fsync="always")) as writer:
        write_changes(writer, 0, 3)
        assert writer.commit()
        calls = iter([None, refuse] if failing == "after the index" else [refuse])
        really = os.fdatasync
        with monkeypatch.context() as worn_out:
            worn_out.setattr(os, "fdatasync", lambda descriptor: (next(calls) or really)(descriptor))
            worn_out.setattr(os, "ftruncate", refuse)
            write_changes(writer, 3, 6)
            assert not writer.commit()
        write_changes(writer, 6, 9)
        assert try_again(writer)
        assert writer.seq == 10
    assert values_of(tmp_path) == [str(n) for n in range(9)]


def test_dropped_though_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that may be on disk and is dropped while it cannot be looked up takes no other event with it."""
    directory, away = tmp_path / "journal", tmp_path / "away"
    with Writer(directory, Settings(fsync="always", buffered_bytes_max=20_000, flush_events=20)) as writer:
        write_changes(writer, 0, 3)
        assert writer.commit()
        with monkeypatch.context() as worn_out:
            worn_out.setattr(os, "fdatasync", refuse)
            worn_out.setattr(os, "ftruncate", refuse)
            write_changes(writer, 3, 6)
            assert not writer.commit()
        directory.rename(away)
        directory.write_text("in the way")
        for number in range(6, 606, 10):
            write_changes(writer, number, number + 10)
            assert not try_again(writer)
        missed = writer.missed
        assert 3 < missed < 600
        directory.unlink()
        away.rename(directory)
        assert try_again(writer)
        assert writer.missed == missed
    assert [int(value) for value in values_of(directory)] == [*range(6), *range(3 + missed, 606)]
    assert [gap["missed"] for gap in gaps(rows_of(directory))] == [missed]
