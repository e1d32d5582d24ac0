"""Progress of time in a journal in which nothing happens: the heartbeat of the writer, and its readers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import jetbus
from jetbus.journal import Settings, Writer, segment_writer
from jetbus.journal.directory import HEARTBEAT_FILE, Heartbeat, read_heartbeat, write_heartbeat
from support.journal_files import abandon, file_size_limit, rows_of, write_changes
from support.journal_model import BEGIN_US

LATER_US = BEGIN_US + 10_000_000


def open_writer(directory: Path, now_us: int = BEGIN_US) -> Writer:
    return Writer(directory, Settings(bus="plant", fsync="never"), now_us=lambda: now_us)


def known_us(directory: Path) -> int | None:
    """Return the instant up to which the journal is complete, as another process sees it."""
    return jetbus.journal.open(directory).offsets()["plant"]["now"]


@pytest.fixture
def every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that leaves a heartbeat whenever it has nothing to write."""
    monkeypatch.setattr(segment_writer, "HEARTBEAT_EVERY_S", 0.0)


def pass_time(writer: Writer, now_us: int) -> None:
    """Do what the owner of a writer does when nothing has happened until an instant."""
    writer.now_us = now_us
    assert writer.commit()


@pytest.mark.usefixtures("every_time")
def test_time_passes_in_a_quiet_journal(tmp_path: Path) -> None:
    """While nothing is appended, readers learn how far time has come; what is appended later is later."""
    with open_writer(tmp_path) as writer:
        write_changes(writer, 0, 3)
        assert writer.commit()
        assert known_us(tmp_path) == BEGIN_US
        for now_us in (LATER_US, LATER_US + 5):
            pass_time(writer, now_us)
            assert known_us(tmp_path) == writer.complete_us == now_us - 1
        write_changes(writer, 3, 4)
        assert writer.commit()
        assert known_us(tmp_path) == LATER_US + 5
    assert [row["seq"] for row in rows_of(tmp_path)] == [1, 2, 3, 4]


def test_a_busy_journal_has_no_heartbeat(tmp_path: Path) -> None:
    """A heartbeat is left only when nothing was written for a second: neither events nor another heartbeat."""
    clock_s = [100.0]
    left = []
    settings = Settings(bus="plant", fsync="never")
    with Writer(tmp_path, settings, now_us=lambda: BEGIN_US, monotonic_s=lambda: clock_s[0]) as writer:
        for step in range(60):
            clock_s[0] += 0.25
            if step < 20:
                write_changes(writer, step, step + 1)
            pass_time(writer, BEGIN_US + step * 250_000)
            left.append(read_heartbeat(tmp_path))
    assert set(left[:23]) == {None}
    assert len(set(left[23:])) == 10
    assert left[-1] == Heartbeat(20, BEGIN_US + 59 * 250_000 - 1)


@pytest.mark.usefixtures("every_time")
def test_time_stands_still_without_a_writer(tmp_path: Path) -> None:
    """After a stop the last event is all that is known, after a crash the last heartbeat."""
    writer = open_writer(tmp_path)
    write_changes(writer, 0, 1)
    writer.commit()
    pass_time(writer, LATER_US)
    abandon(writer)
    assert known_us(tmp_path) == LATER_US - 1
    with open_writer(tmp_path, LATER_US + 7) as writer:
        writer.append("stop")
    assert known_us(tmp_path) == LATER_US + 7


@pytest.mark.usefixtures("every_time")
def test_the_clock_never_goes_back(tmp_path: Path) -> None:
    """A writer whose wall clock is behind the last heartbeat goes on after it."""
    with open_writer(tmp_path) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        pass_time(writer, LATER_US)
    with open_writer(tmp_path) as writer:
        assert writer.now_us == LATER_US
        writer.now_us = BEGIN_US
        write_changes(writer, 1, 2)
    assert rows_of(tmp_path)[-1]["ts"].timestamp() * 1e6 == LATER_US


@pytest.mark.usefixtures("every_time")
def test_time_does_not_pass_events_that_wait(tmp_path: Path) -> None:
    """While the disk refuses, time stands still: there may be events before now that nobody can read."""
    with open_writer(tmp_path) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        pass_time(writer, LATER_US)
        write_changes(writer, 1, 5000)
        with file_size_limit(2048):
            writer.now_us = LATER_US + 100
            assert not writer.commit()
        assert writer.complete_us == known_us(tmp_path) == LATER_US - 1


TEXTS = {
    "nothing": b"",
    "torn": b"00000000000000000001 0000",
    "another number": b"%020d %020d %08x\n" % (1, LATER_US, 7),
    "no number": b"x y z\n",
}


@pytest.mark.parametrize("text", TEXTS)
def test_a_damaged_heartbeat_tells_nothing(tmp_path: Path, text: str) -> None:
    """A heartbeat that fails its checksum is ignored, by readers and by the next writer."""
    with open_writer(tmp_path) as writer:
        write_changes(writer, 0, 1)
    (tmp_path / HEARTBEAT_FILE).write_bytes(TEXTS[text])
    assert known_us(tmp_path) == BEGIN_US
    open_writer(tmp_path).close()


def test_a_heartbeat_of_events_that_are_not_there_tells_nothing(tmp_path: Path) -> None:
    """A heartbeat that names a seq which the log lacks is ignored: the log that it was about is another one."""
    with open_writer(tmp_path) as writer:
        write_changes(writer, 0, 1)
    write_heartbeat(tmp_path, Heartbeat(2, LATER_US))
    assert known_us(tmp_path) == BEGIN_US
    write_heartbeat(tmp_path, Heartbeat(1, LATER_US))
    assert known_us(tmp_path) == LATER_US


@pytest.mark.usefixtures("every_time")
def test_a_replaced_directory_gets_no_heartbeat(tmp_path: Path) -> None:
    """A writer whose directory was replaced by another journal leaves no heartbeat in that one."""
    with open_writer(tmp_path / "plant") as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        os.rename(tmp_path / "plant", tmp_path / "before")  # noqa: PTH104 - the writer still holds it
        with open_writer(tmp_path / "plant"):
            writer.now_us = LATER_US
            assert not writer.commit()
            assert not (tmp_path / "plant" / HEARTBEAT_FILE).exists()
