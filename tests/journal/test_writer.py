"""The writer: what is appended is on disk as it was, in batches that a commit makes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetbus.journal import Settings, Writer, verify
from jetbus.journal.batch import BATCH_EVENTS_MAX, PendingEvents, build_batch
from jetbus.journal.index import read_index
from jetbus.journal.instants import US_PER_S
from jetbus.journal.segment import END_OF_STREAM, list_segments, locate_segment
from support.journal_files import SkippingClock, rows_of, values_of, write_changes

LAZY = Settings(fsync="never")
START_US = 1_772_366_400_000_000


class ManualClock:
    """A clock that is set by hand."""

    def __init__(self, now_us: int = START_US) -> None:
        self.now_us = now_us

    def __call__(self) -> int:
        return self.now_us


def brief_events(directory: Path) -> list[tuple[Any, ...]]:
    """All events without seq, instant and stamps."""
    return [tuple(row.values())[2:8] for row in rows_of(directory)]


def test_every_kind_of_event(tmp_path: Path) -> None:
    """Each event has all that was told of it, and null where nothing was."""
    with Writer(tmp_path, LAZY) as writer:
        writer.append("start", detail=b'{"version":"1"}')
        writer.append("peer", peer="pump#1", detail=b"{}")
        writer.append("add", "state", "plant/speed", b"1", "pump#1", b'{"fetchOnly":true}')
        writer.change("plant/speed", b'{"a":[1,2]}', "pump#1")
        writer.append("add", "method", "plant/stop", None, "pump#1")
        writer.append("call", "method", "plant/stop", b"[]", "#2", b'{"outcome":"ok","us":12}')
        writer.change("plant/speed", b"", "")
        writer.append("stop")
    assert brief_events(tmp_path) == [
        ("start", None, None, None, None, '{"version":"1"}'),
        ("peer", None, None, None, "pump#1", "{}"),
        ("add", "state", "plant/speed", "1", "pump#1", '{"fetchOnly":true}'),
        ("change", "state", "plant/speed", '{"a":[1,2]}', "pump#1", None),
        ("add", "method", "plant/stop", None, "pump#1", None),
        ("call", "method", "plant/stop", "[]", "#2", '{"outcome":"ok","us":12}'),
        ("change", "state", "plant/speed", "", "", None),
        ("stop", None, None, None, None, None),
    ]


texts = st.text(max_size=12)
EVENTS = st.one_of(
    st.tuples(st.just("change"), st.just("state"), texts, texts, texts, st.none()),
    st.tuples(
        st.sampled_from(["add", "remove", "set", "call", "peer", "gone"]),
        st.sampled_from([None, "state", "method"]),
        *[st.none() | texts] * 4,
    ),
)
STEPS = st.lists(st.one_of(EVENTS, st.integers(-5, 1000), st.just("commit"), st.just("reopen")), max_size=60)


@given(steps=STEPS, compression=st.sampled_from([None, "lz4", "zstd"]))
@settings(max_examples=60, deadline=None)
def test_anything_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], compression: Any
) -> None:
    """Whatever is appended, committed and reopened in whatever order, plain pyarrow reads exactly that."""
    directory = tmp_path_factory.mktemp("journal")
    chosen = Settings(fsync="never", compression=compression)
    writer = Writer(directory, chosen, now_us=ManualClock())
    expected: list[tuple[Any, int]] = []
    now_us = START_US
    for step in steps:
        if isinstance(step, int):
            writer.now_us = writer.now_us + step
            now_us = max(now_us, now_us + step)
        elif step == "commit":
            assert writer.commit()
        elif step == "reopen":
            writer.close()
            writer = Writer(directory, chosen, now_us=ManualClock())
            now_us = max([START_US, *(instant for _, instant in expected)])
        else:
            event, kind, path, value, peer, detail = step
            if event == "change":
                writer.change(path, value.encode(), peer)
            else:
                encoded = [text if text is None else text.encode() for text in (value, detail)]
                writer.append(event, kind, path, encoded[0], peer, encoded[1])
            expected.append((step, now_us))
            assert writer.seq == len(expected) + 1
    writer.close()
    rows = rows_of(directory)
    assert [tuple(row.values())[2:8] for row in rows] == [event for event, _ in expected]
    assert [round(row["ts"].timestamp() * 1e6) for row in rows] == [instant for _, instant in expected]


def test_seqs_go_on_over_restarts(tmp_path: Path) -> None:
    """The seq of the next event is known before it is committed, and goes on where the last writer ended."""
    for first in range(0, 15, 5):
        with Writer(tmp_path, LAZY) as writer:
            assert writer.recovered.last_seq == first
            assert writer.seq == first + 1
            write_changes(writer, first, first + 3)
            writer.commit()
            write_changes(writer, first + 3, first + 5)
            assert (writer.seq, writer.pending) == (first + 6, 2)
    assert [row["seq"] for row in rows_of(tmp_path)] == list(range(1, 16))


def test_a_commit_is_one_batch(tmp_path: Path) -> None:
    """Events become one record batch per commit; a commit of nothing makes none."""
    with Writer(tmp_path, LAZY) as writer:
        for count in (3, 0, 5):
            write_changes(writer, 0, count)
            assert writer.commit()
            assert writer.pending == 0
        assert [entry.count for entry in read_index(locate_segment(tmp_path, 1).index_path)] == [3, 5]
        assert writer.stats()["flushes"] == 2


def test_no_batch_is_longer_than_allowed(tmp_path: Path) -> None:
    """Events taken at once that are too many for a batch become several batches, with everything in its place."""
    count = BATCH_EVENTS_MAX + 10
    with Writer(tmp_path, LAZY, now_us=ManualClock()) as writer:
        write_changes(writer, 0, 5)
        writer.now_us += 7
        write_changes(writer, 5, BATCH_EVENTS_MAX - 1)
        writer.append("remove", "state", "a", None, "p#1")
        writer.append("add", "state", "b", b"1", "p#1", b"{}")
        writer.now_us += 7
        write_changes(writer, BATCH_EVENTS_MAX + 1, count)
    rows = rows_of(tmp_path)
    assert [entry.count for entry in read_index(locate_segment(tmp_path, 1).index_path)] == [BATCH_EVENTS_MAX, 10]
    assert [rows[at]["event"] for at in (-12, -11, -10, -9)] == ["change", "remove", "add", "change"]
    assert rows[-10]["detail"] == "{}"
    assert {row["ts"].microsecond for row in rows[:5]} == {0}
    assert {row["ts"].microsecond for row in rows[5 : BATCH_EVENTS_MAX + 1]} == {7}
    assert {row["ts"].microsecond for row in rows[BATCH_EVENTS_MAX + 1 :]} == {14}


def test_instants_never_go_back(tmp_path: Path) -> None:
    """A clock that is set back does not take the journal with it, also not over a restart."""
    clock = ManualClock()
    with Writer(tmp_path, LAZY, now_us=clock) as writer:
        for now_us in (START_US + 10, START_US + 5, START_US + 20):
            writer.now_us = now_us
            write_changes(writer, 0, 1)
    clock.now_us = START_US - 1_000_000
    with Writer(tmp_path, LAZY, now_us=clock) as writer:
        assert writer.now_us == START_US + 20
        write_changes(writer, 0, 1)
    assert [row["ts"].microsecond for row in rows_of(tmp_path)] == [10, 10, 20, 20]


BROKEN_TEXTS = {
    "half a surrogate pair in a path": (("a\ud800b", b"1", "p"), ("a\\ud800b", "1", "p")),
    "value that is no UTF-8": (("a", b'"\xff\xfe"', "p"), ("a", '"\ufffd\ufffd"', "p")),
    "value cut in a letter": (("a", '"ü'.encode()[:-1], "p"), ("a", '"\ufffd', "p")),
    "half a surrogate pair in a peer": (("a", b"1", "\udc00"), ("a", "1", "\\udc00")),
    "nul": (("a\0b", b"1", "p"), ("a\0b", "1", "p")),
}


@pytest.mark.parametrize(("given", "read"), BROKEN_TEXTS.values(), ids=BROKEN_TEXTS)
def test_texts_that_are_none(tmp_path: Path, given: tuple[str, bytes, str], read: tuple[str, str, str]) -> None:
    """A text that has no UTF-8 is marked where it is wrong and spoils none of its neighbours."""
    with Writer(tmp_path, LAZY) as writer:
        writer.change("ü/1", '"ä"'.encode(), "ö#1")
        writer.change(*given)
        writer.change("ü/2", '"€"'.encode(), "ö#2")
    assert [row[2:5] for row in brief_events(tmp_path)] == [("ü/1", '"ä"', "ö#1"), read, ("ü/2", '"€"', "ö#2")]


def test_sealed_by_size(tmp_path: Path) -> None:
    """A segment that has grown to the size is sealed, and the next begins with the next seq."""
    with Writer(tmp_path, Settings(fsync="never", segment_bytes=8192)) as writer:
        for number in range(100):
            write_changes(writer, number, number + 1)
            writer.commit()
        segments = list_segments(tmp_path)
        assert len(segments) > 3
        for segment in segments[:-1]:
            data = segment.path.read_bytes()
            assert data.endswith(END_OF_STREAM)
            assert 8192 <= len(data) < 8192 + 2048
        assert not segments[-1].path.read_bytes().endswith(END_OF_STREAM)
    assert segments[-1].path.read_bytes().endswith(END_OF_STREAM)
    assert len(rows_of(tmp_path)) == 100


def test_sealed_by_age(tmp_path: Path) -> None:
    """A segment of the age is sealed at the next occasion, with or without events, and none is made for nothing."""
    clock = SkippingClock()
    with Writer(tmp_path, Settings(fsync="never", segment_age_s=1000), monotonic_s=clock) as writer:
        write_changes(writer, 0, 1)
        writer.commit()
        segment = writer.open_segment
        assert segment is not None
        writer.commit()
        assert writer.open_segment == segment
        clock.skip(1000)
        writer.commit()
        assert locate_segment(tmp_path, 1).path.read_bytes().endswith(END_OF_STREAM)
        assert len(list_segments(tmp_path)) == 1
        write_changes(writer, 1, 2)
        writer.commit()
        assert len(list_segments(tmp_path)) == 2
    assert values_of(tmp_path) == ["0", "1"]


def test_a_sealed_segment_has_a_snapshot(tmp_path: Path) -> None:
    """For each sealed segment there is a snapshot when the writer has closed."""
    with Writer(tmp_path, LAZY) as writer:
        writer.append("start")
        writer.append("add", "state", "a", b"1", "p#1")
    assert [path.name for path in (tmp_path / "snapshots").glob("*.arrow")] == [f"{2:020}.arrow"]


def test_written_in_another_thread(tmp_path: Path) -> None:
    """Events can be appended while those taken before are written elsewhere."""
    with Writer(tmp_path, Settings(fsync="never", segment_bytes=20_000)) as writer:
        thread: threading.Thread | None = None
        for turn in range(200):
            write_changes(writer, turn * 50, turn * 50 + 50)
            assert writer.seq == turn * 50 + 51
            if thread is not None:
                thread.join()
            thread = threading.Thread(target=writer.write, args=(writer.take(),))
            thread.start()
        assert thread is not None
        thread.join()
        assert writer.pending == 0
    assert values_of(tmp_path) == [str(number) for number in range(10_000)]


def test_stats(tmp_path: Path) -> None:
    """The writer tells what it has done since it was opened."""
    with Writer(tmp_path, LAZY, now_us=ManualClock()) as writer:
        assert writer.stats() == {
            "seq": 1, "events": 0, "bytes": 0, "segments": 0, "flushes": 0, "last_commit_us": None, "pending": 0,
            "problem": None, "missed": 0,
        }  # fmt: skip
        write_changes(writer, 0, 10)
        writer.commit()
        write_changes(writer, 10, 12)
        stats = writer.stats()
        size = locate_segment(tmp_path, 1).path.stat().st_size
        assert (stats["seq"], stats["events"], stats["pending"], stats["segments"]) == (13, 10, 2, 1)
        assert 0 < stats["bytes"] < size
        assert stats["last_commit_us"] == START_US
        assert writer.pending_bytes > 2 * len("plant/speed")


REFUSED: dict[str, dict[str, Any]] = {
    "fsync": {"fsync": "sometimes"},
    "compression": {"compression": "gzip"},
    "flush_ms": {"flush_ms": 0},
    "segment_bytes": {"segment_bytes": 100},
    "keep_bytes": {"keep_bytes": 0},
    "buffered_bytes_max": {"buffered_bytes_max": -1},
}


@pytest.mark.parametrize(("name", "given"), REFUSED.items(), ids=REFUSED)
def test_settings_are_checked(name: str, given: dict[str, Any]) -> None:
    """A setting out of its range is refused by name."""
    with pytest.raises(ValueError, match=name):
        Settings(**given)


def test_columns_are_made_without_a_list_of_values() -> None:
    """A batch of the longest size has its columns in place, and the instants of its runs."""
    pending = PendingEvents(5)
    for number in range(BATCH_EVENTS_MAX):
        if number % 1000 == 0:
            pending.start_run(5 + number)
        pending.rows.extend(("a/b", b"%d" % number, "p#1"))
    batch = build_batch(pending, 100)
    batch.validate(full=True)
    assert batch.column("value").to_pylist() == [str(number) for number in range(BATCH_EVENTS_MAX)]
    assert batch.column("seq").to_pylist() == list(range(100, 100 + BATCH_EVENTS_MAX))
    assert batch.column("ts").cast("int64").to_pylist() == [n // 1000 * 1000 + 5 for n in range(BATCH_EVENTS_MAX)]
    assert batch.column("detail").null_count == BATCH_EVENTS_MAX


EVENTS_OF_A_BATCH: dict[str, list[tuple[Any, ...]]] = {
    "changes by one peer": [("change", "state", "a", b"1", "p#1", None)] * 20,
    "changes by two": [("change", "state", "a", b"1", f"p#{number % 2}", None) for number in range(20)],
    "one that is no change": [
        *[("change", "state", "a", b"1", "p#1", None)] * 11,
        ("set", "state", "a", b"2", "q#2", '{"error":"zu groß"}'.encode()),
        *[("change", "state", "a", b"1", "p#1", None)] * 9,
    ],
    "no change at all": [("add", "method", f"m/{number}", None, "p#1", b"{}") for number in range(9)],
    "with and without detail": [("add", "state", "a", b"1", "p#1", b"{}" if n % 3 else None) for n in range(30)],
    "nobody's": [("start", None, None, None, None, b"{}"), ("stop", None, None, None, None, None)],
    "texts of 255 and 256": [("change", "state", "a" * n, b"1" * n, "p" * n, None) for n in (255, 256, 1, 70_000)],
    "details of any length": [("call", "method", "m", b"[]", "p#1", b"1" * n) for n in (255, 256, 1, 70_000)],
    "a peer that is no text": [("change", "state", "a", b"1", "\udc00", None)] * 3,
}


@pytest.mark.parametrize("events", EVENTS_OF_A_BATCH.values(), ids=EVENTS_OF_A_BATCH)
def test_columns_of_a_batch(events: list[tuple[Any, ...]]) -> None:
    """Whatever events come together in a batch, each is read as it was appended."""
    pending = PendingEvents(5)
    for event, kind, path, value, peer, detail in events:
        if event == "change":
            pending.rows.extend((path, value, peer))
        else:
            pending.append(event, kind, (path, value, peer), detail)
    batch = build_batch(pending, 7)
    batch.validate(full=True)
    read = [tuple(row.values())[2:] for row in batch.to_pylist()]
    assert read == [tuple(_as_read(part) for part in event) for event in events]


def _as_read(part: str | bytes | None) -> str | None:
    return part.decode() if isinstance(part, bytes) else part and part.replace("\udc00", "\\udc00")


UNKNOWN = {"event": ("chnge", "state"), "kind": ("add", "stat")}


@pytest.mark.parametrize(("event", "kind"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_events_are_refused(tmp_path: Path, event: str, kind: str) -> None:
    """An event or kind that there is not is refused where it is appended, and nothing is written of it."""
    with Writer(tmp_path, LAZY) as writer:
        with pytest.raises(ValueError, match="unknown event"):
            writer.append(event, kind, "a", b"1", "p#1")
        assert writer.pending == 0


def test_without_pyarrow() -> None:
    """Without pyarrow the error says what to install."""
    program = "import sys; sys.modules['pyarrow'] = None; import jetbus.journal; jetbus.journal.Writer"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.endswith("the journal needs pyarrow; install it with: pip install 'jetbus[history]'\n")


def test_clock_that_jumps_forward_and_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a clock has jumped forward and back, the journal's time goes on at half speed until they meet."""
    true_us, mono = START_US, 0.0

    def record(ahead_s: float) -> int:
        writer.now_us = true_us + int(ahead_s * US_PER_S)
        writer.append("peer")
        return writer.now_us

    with Writer(tmp_path, Settings(fsync="never"), now_us=lambda: START_US, monotonic_s=lambda: mono) as writer:
        record(0)
        ahead_us = record(3600)
        assert ahead_us == START_US + 3600 * US_PER_S
        seen = []
        for _ in range(8):
            true_us, mono = true_us + 900 * US_PER_S, mono + 900
            seen.append(record(0))
        assert seen[:5] == [ahead_us + step * 450 * US_PER_S for step in range(5)]
        assert seen[-1] == true_us, "they have met"
        assert writer.commit()
    assert "the clock is 2700 s behind the last event" in caplog.text
    assert "until it has caught up, the journal's time runs at 0.5 of its speed" in caplog.text
    assert "the clock has caught up" in caplog.text
    assert verify(tmp_path) == []
