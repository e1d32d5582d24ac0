"""The buffer of an owner by itself: what it keeps, forgets, drops and finds again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.errors import Occupied
from jetbus.peer.buffer import PART_BYTES_MIN, Buffer, BufferedValue, Gap

EVERYTHING = {"a", "b", "c"}


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else str(tmp_path / "buffer")


def value_of(number: int, path: str = "a", size: int = 0) -> BufferedValue:
    return BufferedValue(number, path, b"%d" % number + b" " * size)


def drain(buffer: Buffer, paths: Any = EVERYTHING) -> list[int]:
    return [record.us for record in buffer.take_late(paths, 10_000, 1 << 30)]


def test_what_is_sent_waits_for_its_confirmation(place: str) -> None:
    """A sync confirms what was sent before it; the rest is sent again after a loss, oldest first."""
    buffer = Buffer(place)
    for number in range(3):
        buffer.keep(value_of(number), is_sent=True)
    mark = buffer.sent
    buffer.keep(value_of(3), is_sent=True)
    buffer.confirm(mark)
    assert (len(buffer), buffer.confirmed, buffer.late) == (1, 3, 0)
    buffer.take_back()
    buffer.keep(value_of(4), is_sent=False)
    assert buffer.late == 2
    assert drain(buffer) == [3, 4]
    assert drain(buffer) == []
    buffer.confirm(buffer.sent)
    assert len(buffer) == 0


def test_paths_that_are_not_there_wait(place: str) -> None:
    """A state that the daemon does not have yet keeps nobody else waiting, and is sent when it is there."""
    buffer = Buffer(place)
    for number, path in enumerate("abab"):
        buffer.keep(value_of(number, path), is_sent=False)
    assert drain(buffer, {"b"}) == [1, 3]
    assert drain(buffer, EVERYTHING) == []
    buffer.look_again()
    assert drain(buffer, EVERYTHING) == [0, 2]


def test_a_full_buffer_drops_the_oldest(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """A full buffer drops its oldest values, and says of which state, how many, and from when to when."""
    buffer = Buffer(place, PART_BYTES_MIN * 4)
    for number in range(100):
        buffer.keep(value_of(number, "ab"[number % 2], 500), is_sent=False)
    kept = drain(buffer)
    assert kept == list(range(kept[0], 100))
    assert 0 < buffer.bytes <= buffer.bytes_max
    assert buffer.dropped == kept[0] == sum(gap.missed for gap in buffer.gaps)
    first = next(gap for gap in buffer.gaps if gap.path == "a")
    assert (first.since_us, first.until_us) == (0, (kept[0] - 1) // 2 * 2)
    assert caplog.text.count("is full") == 1


def test_what_was_sent_and_dropped_is_a_gap_only_if_it_did_not_arrive(place: str) -> None:
    """Values dropped after they were sent leave a gap when the connection breaks, not when they are confirmed."""
    for arrives in (True, False):
        buffer = Buffer(place, PART_BYTES_MIN * 4)
        for number in range(100):
            buffer.keep(value_of(number, "a", 500), is_sent=True)
        assert buffer.dropped
        assert buffer.gaps == []
        if arrives:
            buffer.confirm(buffer.sent)
        buffer.take_back()
        assert buffer.gaps == ([] if arrives else [Gap("a", 0, buffer.dropped - 1, buffer.dropped)])
        buffer.confirm(buffer.sent)
        drain(buffer)
        buffer.confirm(buffer.sent)
        buffer.close()


def test_times_are_told_apart() -> None:
    """Two values never have the same time, even if the clock stands or goes back."""
    clock = iter([5_000, 5_000, 1_000, 9_000])
    buffer = Buffer("memory", clock_ns=lambda: next(clock))
    assert [buffer.next_us() for _ in range(4)] == [5, 6, 7, 9]


def test_a_folder_survives_its_process(tmp_path: Path) -> None:
    """The next process finds all values that are not confirmed, also those that were sent, each once."""
    left = Buffer(tmp_path)
    for number in range(10):
        left.keep(value_of(number), is_sent=number < 8)
    left.confirm(left.sent - 4)
    left._folder.close()  # type: ignore[union-attr]  # the lock of a process that is gone
    found = Buffer(tmp_path)
    assert drain(found) == [4, 5, 6, 7, 8, 9]


def test_a_folder_is_used_by_one_process(tmp_path: Path) -> None:
    """The second user of a folder is told what to do."""
    first = Buffer(tmp_path)
    with pytest.raises(Occupied, match="give each peer a folder of its own"):
        Buffer(tmp_path)
    first.close()
    Buffer(tmp_path).close()


def test_a_damaged_file_ends_early(tmp_path: Path) -> None:
    """Records from a flipped bit on are left out; those before it are kept."""
    left = Buffer(tmp_path)
    for number in range(10):
        left.keep(value_of(number), is_sent=False)
    left.close()
    (file,) = tmp_path.glob("*.buffer")
    data = bytearray(file.read_bytes())
    data[data.index(b"\xc4\x015") + 2] ^= 1
    file.write_bytes(data)
    assert drain(Buffer(tmp_path)) == [0, 1, 2, 3, 4]


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Without room on disk values stay in memory, and the log says so."""

    def refuse(_descriptor: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    buffer = Buffer(tmp_path)
    monkeypatch.setattr("jetbus.peer.buffer.allocate", refuse)
    buffer.keep(value_of(1), is_sent=False)
    assert drain(buffer) == [1]
    assert "No space left" in caplog.text


@given(st.lists(st.sampled_from(["keep", "send", "drain", "mark", "confirm", "lose"]), max_size=60), st.booleans())
def test_nothing_is_lost_between(tmp_path_factory: pytest.TempPathFactory, steps: list[str], in_folder: bool) -> None:
    """Whatever happens in which order, a value is confirmed or still there, and late ones come in their order."""
    buffer = Buffer(tmp_path_factory.mktemp("buffer") if in_folder else "memory")
    known: set[int] = set()
    confirmed: set[int] = set()
    on_line: list[int] = []
    mark, marked = 0, 0
    for number, step in enumerate(steps):
        if step in ("keep", "send"):
            buffer.keep(value_of(number), is_sent=step == "send")
            known.add(number)
            on_line += [number] if step == "send" else []
        elif step == "drain":
            late = drain(buffer)
            assert late == sorted(known - confirmed - set(on_line))
            on_line += late
        elif step == "mark":
            mark, marked = buffer.sent, len(on_line)
        elif step == "confirm":
            buffer.confirm(mark)
            confirmed.update(on_line[:marked])
            del on_line[:marked]
            marked = 0
        else:
            buffer.take_back()
            on_line, mark, marked = [], buffer.sent, 0
        assert len(buffer) == len(known - confirmed)
    buffer.take_back()
    assert drain(buffer) == sorted(known - confirmed)
    buffer.confirm(buffer.sent)
    buffer.close()
