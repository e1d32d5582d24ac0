"""Watching a writer: what is appended from a moment on is told once and in order, wherever it is by then."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetbus.journal import Settings, Writer, writer
from jetbus.journal.writer import AppendedEvent, Watch

LAZY = Settings(fsync="never")


def everything(_path: str) -> bool:
    return True


def short(seen: list[AppendedEvent]) -> list[tuple[str, str, bytes | None]]:
    return [(one.event, one.path, one.value) for one in seen]


def test_what_comes_after_the_moment(tmp_path: Path) -> None:
    """A watch has the events since it began, taken or not, and none from before."""
    with Writer(tmp_path, LAZY) as journal:
        journal.change("a", b"0", "p#1")
        taken = journal.take()
        watch = journal.watch(everything, 100)
        journal.now_us += 5
        journal.change("a", b"1", "p#1")
        journal.write(taken)
        boundary = journal.committed_seq
        journal.now_us += 5
        journal.append("add", "method", "m", None, "p#1", b"{}")
        journal.commit()
        journal.append("set", "state", "a", b"3", "p#2")
        journal.append("stop")
        journal.append("remove", "state", "a", b"1", "p#1")
        seen = journal.unwatch(watch)
        journal.change("a", b"9", "p#1")
    assert boundary == 1
    assert short(seen) == [("change", "a", b"1"), ("add", "m", None), ("stop", "", None), ("remove", "a", b"1")]
    assert seen[1].ts_us - seen[0].ts_us == 5
    assert (seen[1].kind, seen[1].detail) == ("method", b"{}")


def test_only_what_is_wanted(tmp_path: Path) -> None:
    """Events of other paths are left out; each path is asked about once."""
    asked: list[str] = []

    def wanted(path: str) -> bool:
        asked.append(path)
        return path == "b"

    with Writer(tmp_path, LAZY) as journal:
        watch = journal.watch(wanted, 100)
        for number in range(3):
            journal.change("a", b"%d" % number, "p#1")
            journal.change("b", b"%d" % number, "p#1")
            journal.commit()
        assert [seen.value for seen in journal.unwatch(watch)] == [b"0", b"1", b"2"]
    assert asked == ["a", "b"]


@pytest.mark.parametrize(("events_max", "value"), [(10, b"1"), (1000, b"1" * 100_000)], ids=["events", "bytes"])
def test_too_many(tmp_path: Path, events_max: int, value: bytes) -> None:
    """Beyond a limit of events or bytes a watch keeps nothing, and says so."""
    with Writer(tmp_path, LAZY) as journal:
        watch: Watch = journal.watch(everything, events_max)
        for _ in range(100):
            journal.change("a", value, "p#1")
        assert journal.unwatch(watch) == []
        assert watch.full


def test_what_the_journal_has_to_drop_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that the journal drops for want of memory have happened all the same."""
    monkeypatch.setattr(writer, "_CHECK_SIZE_EVERY", 30)
    with Writer(tmp_path, Settings(fsync="never", buffered_bytes_max=4096)) as journal:
        watch = journal.watch(everything, 1000)
        for number in range(100):
            journal.now_us += 1
            journal.change("a", b"%d" % number, "p#1")
        assert journal.missed > 0
        assert [seen.value for seen in journal.unwatch(watch)] == [b"%d" % number for number in range(100)]
