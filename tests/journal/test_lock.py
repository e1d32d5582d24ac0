"""One writer per journal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jetbus.journal import JournalError, JournalInUse, Settings, Writer
from support.journal_files import abandon

HOLD = """
import sys
from jetbus.journal import Writer
writer = Writer(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def hold(directory: Path) -> subprocess.Popen[bytes]:
    """A process that has the journal open until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"open\n"
    return process


def test_second_writer_is_refused(tmp_path: Path) -> None:
    """The second writer is told which process writes, and harms nothing; after a kill the lock is free."""
    with hold(tmp_path) as process:
        with pytest.raises(JournalInUse, match=rf"is being written by process {process.pid}; .*another directory"):
            Writer(tmp_path)
        process.kill()
        process.wait()
        with Writer(tmp_path) as writer:
            assert not writer.recovered.clean


def test_second_writer_in_the_same_process(tmp_path: Path) -> None:
    """A process cannot write the same journal twice either."""
    with Writer(tmp_path), pytest.raises(JournalInUse, match=str(os.getpid())):
        Writer(tmp_path)


def test_closed_writer_lets_the_next_in(tmp_path: Path) -> None:
    """A writer that closed leaves a clean journal; one that did not is noticed once."""
    Writer(tmp_path).close()
    first = Writer(tmp_path)
    assert first.recovered.clean
    abandon(first)
    second = Writer(tmp_path)
    assert not second.recovered.clean
    second.close()
    with Writer(tmp_path) as third:
        assert third.recovered.clean


def test_closing_twice(tmp_path: Path) -> None:
    """Closing again does nothing, writing after it is refused."""
    writer = Writer(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(JournalError, match="is closed"):
        writer.commit()
    Writer(tmp_path).close()


def test_directory_that_cannot_be(tmp_path: Path) -> None:
    """A directory that cannot be made is named with the cause."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JournalError, match=r"cannot write to .*file/journal: Not a directory"):
        Writer(tmp_path / "file" / "journal")


def test_later_format_is_refused(tmp_path: Path) -> None:
    """A journal of a later format is left alone, and its lock with it."""
    (tmp_path / "journal.json").write_text('{"format": 2, "bus": "x", "id": "y"}')
    for _ in range(2):
        with pytest.raises(JournalError, match="format 2"):
            Writer(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.json", "lock"]


def test_identity(tmp_path: Path) -> None:
    """The id of a journal is made once; its bus has the name of the host until it is given one."""
    with Writer(tmp_path) as writer:
        first = writer.identity
        assert first.bus == os.uname().nodename
    with Writer(tmp_path, Settings(bus="plant")) as writer:
        assert writer.identity == first._replace(bus="plant")
    with Writer(tmp_path) as writer:
        assert writer.identity == first._replace(bus="plant")
