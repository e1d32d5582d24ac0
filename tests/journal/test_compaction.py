"""Compaction and pruning: the same log in other files, whatever happens on the way."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import jetbus.journal
from jetbus.journal import JournalError, JournalGone, JournalInUse, compaction, parquet, snapshots
from jetbus.journal.parquet import read_manifest
from jetbus.journal.segment import list_segments
from support.journal_model import BEGIN_US, Event, Row, cut, open_writer, plant, read, record, rows, tree_after, write

EVENTS = plant(1000)
ROWS = rows(EVENTS)
DAY_US = 86_400_000_000


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans and row groups that a few hundred events fill."""
    monkeypatch.setattr(compaction, "SPAN_ROWS", 150)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 32)


def five_segments(directory: Path) -> None:
    record(directory, [cut(segment, 45) for segment in cut(EVENTS, 200)])


def check(directory: Path, wanted: list[Row] = ROWS) -> None:
    """Readers see exactly these events, and the trees that they tell."""
    journal = jetbus.journal.open(directory)
    assert read(journal.read()) == wanted
    assert read(journal.read("plant/line1/**")) == [row for row in wanted if "/line1/" in (row["path"] or "")]
    for seq in (wanted[0]["seq"] + 77, wanted[-1]["seq"] - 150, wanted[-1]["seq"]):
        assert journal.as_of(seq=seq).to_pylist() == tree_after(ROWS[:seq])


def test_the_same_log(tmp_path: Path) -> None:
    """All segments but the newest become Parquet, and readers see the same log."""
    five_segments(tmp_path)
    done = jetbus.journal.compact(tmp_path)
    assert (done.segments, done.events) == (4, 800)
    assert [segment.first_seq for segment in list_segments(tmp_path)] == [801]
    files = sorted(tmp_path.glob("parquet/*/*"))
    assert len(files) == done.files == 800 // 150 + 1
    assert done.bytes_after == sum(file.stat().st_size for file in files)
    check(tmp_path)
    assert jetbus.journal.verify(tmp_path) == []


def test_idempotent(tmp_path: Path) -> None:
    """A second compaction finds nothing to do and changes nothing."""
    five_segments(tmp_path)
    jetbus.journal.compact(tmp_path)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.name != compaction.LOCK}
    assert jetbus.journal.compact(tmp_path) == jetbus.journal.Compacted()
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.name != compaction.LOCK} == before


def test_piece_by_piece(tmp_path: Path) -> None:
    """Compacting after every segment gives the same log in as few files, and a writer goes on with the next seq."""
    for segment in cut(EVENTS, 100):
        record(tmp_path, [[segment]])
        jetbus.journal.compact(tmp_path)
    assert len(list_segments(tmp_path)) == 1
    assert [span.last for span in read_manifest(tmp_path).spans] == [150, 300, 450, 600, 750, 900]
    check(tmp_path)
    assert jetbus.journal.verify(tmp_path) == []


def five_and_one_more(directory: Path) -> None:
    """Yield a compacted journal whose last file has room, and a sealed segment after it."""
    record(directory, [cut(segment, 45) for segment in cut(EVENTS[:900], 180)])
    jetbus.journal.compact(directory)
    record(directory, [[EVENTS[900:]]])


def test_a_file_with_room_is_joined(tmp_path: Path) -> None:
    """New events go into the last file of their day; the old one stays until the next compaction."""
    five_and_one_more(tmp_path)
    old = read_manifest(tmp_path).spans
    assert [(span.first, span.last) for span in old[-2:]] == [(451, 600), (601, 720)]
    started = jetbus.journal.open(tmp_path).dataset()
    done = jetbus.journal.compact(tmp_path)
    assert (done.segments, done.joined, done.files, done.events) == (1, 1, 2, 180)
    assert [(span.first, span.last) for span in read_manifest(tmp_path).spans[-2:]] == [(601, 750), (751, 900)]
    assert done.bytes_after == sum(span.bytes for span in read_manifest(tmp_path).spans[-2:])
    assert started.count_rows() == 1000
    check(tmp_path)
    assert jetbus.journal.compact(tmp_path) == jetbus.journal.Compacted()
    assert not (tmp_path / old[-1].file).exists()
    check(tmp_path)
    assert jetbus.journal.verify(tmp_path) == []


def test_days_are_not_joined(tmp_path: Path) -> None:
    """A file of another day is left as it is, however small."""
    for day in range(3):
        record(tmp_path, [[[Event(BEGIN_US + day * DAY_US, "change", f"p{n}", "1", "x#1")]] for n in range(2)])
        jetbus.journal.compact(tmp_path)
    spans_now = read_manifest(tmp_path).spans
    assert [(span.first, span.last) for span in spans_now] == [(1, 2), (3, 4), (5, 5)]


def test_a_damaged_file_is_not_joined(tmp_path: Path) -> None:
    """A damaged file stays for verify to tell of, and what is new is compacted without it."""
    five_and_one_more(tmp_path)
    damaged = read_manifest(tmp_path).spans[-1]
    data = bytearray((tmp_path / damaged.file).read_bytes())
    data[100] ^= 0xFF
    (tmp_path / damaged.file).write_bytes(data)
    done = jetbus.journal.compact(tmp_path)
    assert (done.segments, done.joined) == (1, 0)
    assert damaged in read_manifest(tmp_path).spans
    assert read(jetbus.journal.open(tmp_path).read(seq=721)) == ROWS[720:]
    assert [problem.file for problem in jetbus.journal.verify(tmp_path)] == [damaged.file]


def test_days(tmp_path: Path) -> None:
    """Every file holds events of one day, in the folder of that day; a day ends at midnight in UTC."""
    ends = [BEGIN_US, BEGIN_US + DAY_US - 1, BEGIN_US + DAY_US, BEGIN_US + 3 * DAY_US - 1, BEGIN_US + 3 * DAY_US]
    events = [Event(ts_us, "change", f"p{n}", "1", "x#1") for ts_us in ends for n in range(3)]
    record(tmp_path, [[events], [[Event(ends[-1], "stop")]]])
    assert jetbus.journal.compact(tmp_path).files == 4
    found = {
        file.parent.name: (pq.read_metadata(file).num_rows, file.name) for file in tmp_path.glob("parquet/*/*.parquet")
    }
    assert found == {
        "day=2026-01-01": (6, f"{1:020}-{6:020}.parquet"),
        "day=2026-01-02": (3, f"{7:020}-{9:020}.parquet"),
        "day=2026-01-03": (3, f"{10:020}-{12:020}.parquet"),
        "day=2026-01-04": (3, f"{13:020}-{15:020}.parquet"),
    }
    assert read(jetbus.journal.open(tmp_path).read(seq_until=16)) == rows(events)


def test_sorted_by_path(tmp_path: Path) -> None:
    """Within a file events are sorted by path and then by seq, in zstd, with statistics to skip by."""
    five_segments(tmp_path)
    jetbus.journal.compact(tmp_path)
    file = min(tmp_path.glob("parquet/*/*"))
    keys = [(row["path"] is None, row["path"] or "", row["seq"]) for row in pq.read_table(file).to_pylist()]
    assert keys == sorted(keys)
    footer = pq.read_metadata(file)
    assert footer.num_row_groups > 3
    assert footer.row_group(0).column(4).compression == "ZSTD"
    first, second = (footer.row_group(group).column(4).statistics for group in (0, 1))
    assert first.max <= second.min


@pytest.mark.parametrize(("different", "has_one"), [(3, True), (1000, False)], ids=["few", "many"])
def test_values_that_repeat_have_a_dictionary(tmp_path: Path, different: int, has_one: bool) -> None:
    """Values of which there are few different ones are written once each; of many, a dictionary would be a burden."""
    with jetbus.journal.Writer(tmp_path, jetbus.journal.Settings(bus="plant", fsync="never")) as writer:
        for n in range(600):
            writer.append("add" if n == 0 else "change", "state", "plant/count", b"%d" % (n % different), "plant#1")
    table = jetbus.journal.open(tmp_path).table()
    parquet.write_span(tmp_path / "some.parquet", table)
    value = pq.read_metadata(tmp_path / "some.parquet").row_group(3).column(5)
    assert value.path_in_schema == "value"
    assert value.has_dictionary_page == has_one


def bytes_read() -> int:
    return int(dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())["rchar"])


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes with Linux' /proc")
def test_history_reads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history of one path of many reads a small part of the compacted files."""
    monkeypatch.setattr(compaction, "SPAN_ROWS", 100_000)
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS", 1000)
    rng = random.Random(3)
    events = [
        Event(BEGIN_US, "change", f"plant/s{rng.randrange(500)}", str(rng.random()), "x#1") for _ in range(50_000)
    ]
    record(tmp_path, [[events], [[Event(BEGIN_US, "stop")]]])
    jetbus.journal.compact(tmp_path)
    (file,) = tmp_path.glob("parquet/*/*")
    journal = jetbus.journal.open(tmp_path)
    before = bytes_read()
    found = journal.history("plant/s123")
    touched = bytes_read() - before
    assert found["value"].to_pylist() == [event.value for event in events if event.path == "plant/s123"]
    assert touched < file.stat().st_size / 5


# -- killed on the way

COMPACT = """
import os, signal, sys
from jetbus.journal import compact, compaction, parquet, prune
compaction.SPAN_ROWS, parquet.ROW_GROUP_ROWS = 150, 32
left = int(sys.argv[2])
def step(name):
    global left
    left -= 1
    if left < 0:
        print(name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
print("begin", flush=True)
compact(sys.argv[1], on_step=step)
prune(sys.argv[1], keep_bytes=int(sys.argv[3]), on_step=step)
print("done", flush=True)
"""


def start(directory: Path, steps: int, keep_bytes: int = 1 << 40) -> subprocess.Popen[str]:
    """A process that compacts and prunes, and kills itself after so many steps."""
    command = [sys.executable, "-c", COMPACT, str(directory), str(steps), str(keep_bytes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


STEPS = 2 * 6 + 1 + 2 * 4
"""Two for each file, the commit, two for each segment."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, str]]:
    """Journals whose compaction was killed after each of its steps, and the name of that step."""
    model = tmp_path_factory.mktemp("model")
    five_segments(model)
    running: dict[int, tuple[Path, subprocess.Popen[str]]] = {}
    found: dict[int, tuple[Path, str]] = {}
    for steps in range(STEPS + 1):
        place = tmp_path_factory.mktemp("killed") / "journal"
        shutil.copytree(model, place)
        running[steps] = (place, start(place, steps))
        if len(running) == 3 or steps == STEPS:
            for number, (directory, process) in running.items():
                out, _ = process.communicate(timeout=120)
                assert process.returncode == (0 if number == STEPS else -signal.SIGKILL)
                found[number] = (directory, out.split("\n")[1])
            running.clear()
    return found


@pytest.mark.parametrize("steps", range(STEPS + 1))
def test_killed_at_each_step(killed: dict[int, tuple[Path, str]], steps: int) -> None:
    """Killed after any step, readers see the same log, and the next compaction finishes the work."""
    directory, name = killed[steps]
    kinds = ["wrote"] * 12 + ["committed"] + ["deleted"] * 8 + ["done"]
    assert name.startswith(kinds[steps])
    check(directory)
    jetbus.journal.compact(directory)
    check(directory)
    assert len(list_segments(directory)) == 1
    assert sorted(str(file.relative_to(directory)) for file in directory.glob("parquet/*/*")) == sorted(
        span.file for span in read_manifest(directory).spans
    )
    assert jetbus.journal.verify(directory) == []


JOINING_STEPS = ["wrote"] * 4 + ["committed"] + ["deleted"] * 2 + ["done"]


def test_killed_while_joining(tmp_path: Path) -> None:
    """Killed at any step of joining a file with what is new, readers see the same log; the next run tidies up."""
    model = tmp_path / "model"
    five_and_one_more(model)
    for steps, kind in enumerate(JOINING_STEPS):
        place = tmp_path / str(steps)
        shutil.copytree(model, place)
        out, _ = start(place, steps).communicate(timeout=120)
        assert out.split("\n")[1].startswith(kind)
        check(place)
        for _ in range(2):
            jetbus.journal.compact(place)
        check(place)
        named = sorted(span.file for span in read_manifest(place).spans)
        assert sorted(str(file.relative_to(place)) for file in place.glob("parquet/*/*")) == named
        assert len(named) == 6
        assert jetbus.journal.verify(place) == []


def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Killed at any moment, again and again while segments come, nothing is lost or doubled."""
    rng = random.Random()
    written = 0
    for segment in cut(EVENTS, 90):
        record(tmp_path, [cut(segment, 45)])
        written += len(segment)
        process = start(tmp_path, 1000)
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        time.sleep(rng.random() * 0.05)  # the moment is what is tried, nothing waits for it
        process.kill()
        process.communicate(timeout=60)
        assert read(jetbus.journal.open(tmp_path).read()) == ROWS[:written]
    jetbus.journal.compact(tmp_path)
    check(tmp_path)


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
def test_killed_while_pruning(tmp_path: Path, steps: int) -> None:
    """Killed while it prunes, readers see the whole log or the shorter one, and the next pruning tidies up."""
    five_segments(tmp_path)
    jetbus.journal.compact(tmp_path)
    spans_before = read_manifest(tmp_path).spans
    keep_bytes = sum(s.size_bytes for s in list_segments(tmp_path)) + sum(span.bytes for span in spans_before[3:])
    process = start(tmp_path, steps, keep_bytes)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    check(tmp_path, ROWS if steps == 0 else ROWS[spans_before[2].last :])
    jetbus.journal.prune(tmp_path, keep_bytes=keep_bytes)
    check(tmp_path, ROWS[spans_before[2].last :])
    assert len(list(tmp_path.glob("parquet/*/*"))) == len(spans_before) - 3


# -- others at work meanwhile


def test_readers_meanwhile(tmp_path: Path) -> None:
    """Readers see one log without gap or repeat while segments come and are compacted."""
    committed = 0
    done = threading.Event()
    problems: list[BaseException] = []
    record(tmp_path, [[EVENTS[:10]]])
    committed = 10

    def keep_reading() -> None:
        try:
            journal = jetbus.journal.open(tmp_path)
            while not done.is_set():
                least = committed
                found = read(journal.read(columns=["seq", "path"]))
                assert [row["seq"] for row in found] == list(range(1, len(found) + 1))
                assert len(found) >= least
                seq = max(1, least // 2)
                assert journal.as_of(seq=seq).to_pylist() == tree_after(ROWS[:seq])
        except BaseException as problem:
            problems.append(problem)

    readers = [threading.Thread(target=keep_reading) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for segment in cut(EVENTS[10:], 40):
            record(tmp_path, [cut(segment, 13)])
            committed += len(segment)
            jetbus.journal.compact(tmp_path)
    finally:
        done.set()
        for reader in readers:
            reader.join(60)
    assert problems == []
    check(tmp_path)


def test_a_reader_that_has_begun(tmp_path: Path) -> None:
    """A reader that has begun with segments goes on with Parquet when they are compacted under its feet."""
    five_segments(tmp_path)
    batches = jetbus.journal.open(tmp_path).read()
    found = read([next(batches)])
    jetbus.journal.compact(tmp_path)
    assert found + read(batches) == ROWS


def test_one_at_a_time(tmp_path: Path) -> None:
    """A second compaction of the same journal is refused while one is under way."""
    five_segments(tmp_path)
    refused: list[str] = []

    def again(_step: str) -> None:
        with pytest.raises(JournalInUse, match="being compacted") as in_use:
            jetbus.journal.compact(tmp_path)
        refused.append(str(in_use.value))

    jetbus.journal.compact(tmp_path, on_step=again)
    assert len(refused) > 3
    check(tmp_path)


def test_an_open_writer(tmp_path: Path) -> None:
    """The segment that is being written is left alone, and the writer does not notice."""
    with open_writer(tmp_path, segment_bytes=4096) as writer:
        for batch in cut(EVENTS, 20):
            write(writer, batch)
            assert writer.commit()
            jetbus.journal.compact(tmp_path)
        assert writer.problem is None
        assert read_manifest(tmp_path).upto > 500
        check(tmp_path)
    check(tmp_path)


def test_damage_is_not_compacted(tmp_path: Path) -> None:
    """A damaged segment is not turned into Parquet and not deleted: the compaction says what is wrong."""
    five_segments(tmp_path)
    segment = list_segments(tmp_path)[1]
    data = bytearray(segment.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.path.write_bytes(data)
    with pytest.raises(JournalError, match="damaged at byte"):
        jetbus.journal.compact(tmp_path)
    assert len(list_segments(tmp_path)) == 5
    assert read(jetbus.journal.open(tmp_path).read(seq=401)) == ROWS[400:]


# -- pruning


@pytest.fixture
def compacted(tmp_path: Path) -> Path:
    five_segments(tmp_path)
    jetbus.journal.compact(tmp_path)
    return tmp_path


def test_prune_by_age(compacted: Path) -> None:
    """Files with nothing younger than the age go, and what is asked for of them is gone."""
    first, second, third, *_ = read_manifest(compacted).spans
    kept_us = second.ts_max_us + 1
    done = jetbus.journal.prune(compacted, keep_s=100, now_us=kept_us + 100_000_000)
    assert (done.files, done.events) == (2, second.last)
    assert done.bytes == first.bytes + second.bytes
    check(compacted, ROWS[second.last :])
    journal = jetbus.journal.open(compacted)
    with pytest.raises(JournalGone) as gone:
        read(journal.read(seq=second.last))
    assert gone.value.first_seq == third.first
    with pytest.raises(JournalGone):
        journal.as_of(seq=second.first)


def test_prune_by_size(compacted: Path) -> None:
    """The oldest files go until Parquet and segments together are small enough; segments stay."""
    manifest = read_manifest(compacted)
    segment_bytes = sum(segment.size_bytes for segment in list_segments(compacted))
    total = segment_bytes + sum(span.bytes for span in manifest.spans)
    assert jetbus.journal.prune(compacted, keep_bytes=total).files == 0
    assert jetbus.journal.prune(compacted, keep_bytes=total - 1).files == 1
    assert jetbus.journal.prune(compacted, keep_bytes=0).files == len(manifest.spans) - 1
    assert len(list_segments(compacted)) == 1
    assert list(compacted.glob("parquet/*")) == []
    check(compacted, ROWS[800:])
    record(compacted, [[[Event(EVENTS[-1].ts_us, "stop")]]])
    assert jetbus.journal.open(compacted).offsets()["plant"]["last"] == 1001


def test_snapshots_stand_between_files(compacted: Path) -> None:
    """There is a snapshot at the end of each file, none within, and what is left after a pruning begins with one."""
    ends = [span.last for span in read_manifest(compacted).spans]
    assert snapshots.list_snapshots(compacted) == [*ends, 1000] == [150, 300, 450, 600, 750, 800, 1000]
    jetbus.journal.prune(compacted, keep_s=0.001, now_us=read_manifest(compacted).spans[1].ts_max_us + 1001)
    assert snapshots.list_snapshots(compacted) == [300, 450, 600, 750, 800, 1000]
    jetbus.journal.prune(compacted, keep_bytes=0)
    assert snapshots.list_snapshots(compacted) == [800, 1000]


def test_no_wish_no_pruning(compacted: Path) -> None:
    """Without an age or a size nothing is dropped."""
    assert jetbus.journal.prune(compacted) == jetbus.journal.Pruned()
    check(compacted)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only(compacted: Path) -> None:
    """A journal on a read-only disk is read all the same."""
    for path in [compacted, *compacted.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    check(compacted)
