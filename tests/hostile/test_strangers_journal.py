"""Journals made by strangers: the commands end, in bounded memory, and say what is wrong with which file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import jetbus.journal
from jetbus.journal import JournalDamaged, Settings, Writer, snapshots
from jetbus.journal.expansion import BATCH_BYTES_MAX
from jetbus.journal.segment import PLAIN, list_segments
from jetbus.journal.segment_writer import OpenSegment
from jetbus.journal.tree import TREE
from support.jet import Jet


@pytest.fixture
def jet(tmp_path: Path) -> Jet:
    """The command, without any bus."""
    return Jet("unix://@nobody-is-there", tmp_path)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A journal of one segment with ten events."""
    with Writer(tmp_path / "log", Settings(fsync="never")) as writer:
        writer.append("start")
        writer.append("add", "state", "plant/speed", b"1", "pump#1")
        for value in range(8):
            writer.change("plant/speed", b"%d" % value, "pump#1")
    return tmp_path / "log"


def copy_segment(directory: Path, segments: int, step: int, *, index: bool) -> None:
    """Copy the segment under many names that are not its own."""
    (segment,) = list_segments(directory)
    data, records = segment.path.read_bytes(), segment.index_path.read_bytes()
    for number in range(1, segments):
        name = directory / f"{1 + number * step:020}"
        name.with_suffix(".arrows").write_bytes(data)
        if index:
            name.with_suffix(".index").write_bytes(records)


FALSE_NAMES: dict[str, tuple[int, int, bool, str]] = {
    "many": (3000, 10, True, "0011.arrows"),
    "without index": (100, 10, False, "0011.arrows"),
    "far apart": (100, 1000, True, "1001.arrows"),
}


@pytest.mark.parametrize(("segments", "step", "index", "second"), FALSE_NAMES.values(), ids=FALSE_NAMES)
def test_false_names(jet: Jet, directory: Path, segments: int, step: int, index: bool, second: str) -> None:
    """Of many segments with false names, verify and at name the first ten, and end."""
    copy_segment(directory, segments, step, index=index)
    code, out, err = jet("journal", "verify", "log")
    problems = [json.loads(line) for line in out.splitlines()]
    assert code == 7
    assert len(problems) == 10
    assert any(
        problem["file"].endswith(second) and "but its first event is 1" in problem["text"] for problem in problems
    )
    assert re.search(r"\d+ problems, of which the first 10 are listed; --all lists all of them", err)
    code, out, err = jet("at", "now", "--journal", "log")
    assert (code, out) == (1, "")
    assert re.search(r"the tree after event \d+ of log is unknown: \d+ parts cannot be read, the first 10:", err)
    assert err.count("is damaged at byte") + err.count("is not there") == 10


def test_all_problems(jet: Jet, directory: Path) -> None:
    """With --all, verify lists every problem."""
    (segment,) = list_segments(directory)
    for number in range(1, 21):
        (directory / f"{1 + 10 * number:020}.arrows").write_bytes(segment.path.read_bytes())
    code, out, err = jet("journal", "verify", "log", "--all")
    assert (code, err) == (7, "")
    # The last segment could be one that is being written.
    assert sum("but its first event is 1" in line for line in out.splitlines()) == 19


def test_writer_goes_on(directory: Path) -> None:
    """A writer moves a last segment with a false name aside and goes on after the seq of that name."""
    (segment,) = list_segments(directory)
    for suffix, source in ((".arrows", segment.path), (".index", segment.index_path)):
        (directory / f"{501:020}").with_suffix(suffix).write_bytes(source.read_bytes())
    with Writer(directory, Settings(fsync="never")) as writer:
        writer.append("start")
        assert writer.commit()
        assert writer.committed_seq == 501
    assert [file.name for file in (directory / "damaged").iterdir()] == [f"{501:020}.0.bytes"]


def make_bomb(directory: Path) -> None:
    """Add a batch of a few kilobytes that expands beyond the limit."""
    value = '"' + "0" * (1 << 26) + '"'
    rows = [value] * (BATCH_BYTES_MAX // len(value) + 1)
    last_us = jetbus.journal.open(directory).offsets().popitem()[1]["last_ts"] or 0
    columns: dict[str, list[object]] = {
        "seq": list(range(11, 11 + len(rows))),
        "ts": [last_us] * len(rows),
        "event": ["change"] * len(rows),
        "path": ["plant/speed"] * len(rows),
        "value": [*rows],
    }
    arrays = [pa.array(columns.get(field.name, [None] * len(rows)), field.type) for field in PLAIN.schema]
    sink = pa.BufferOutputStream()
    stream = pa.ipc.new_stream(sink, PLAIN.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=PLAIN.schema))
    message = memoryview(sink.getvalue())[len(PLAIN.schema_bytes) :]
    assert len(message) < 100_000
    segment = OpenSegment(directory, 11, PLAIN, durable=False, opened_s=0)
    segment.append(message, len(rows), (last_us, last_us), sync=False)
    segment.seal()


def test_expanding_batch(jet: Jet, directory: Path) -> None:
    """A batch that expands beyond what a writer would write is refused before it is decompressed."""
    make_bomb(directory)
    wanted = f"has a batch that expands to more than {BATCH_BYTES_MAX} bytes"
    code, out, _ = jet("journal", "verify", "log")
    assert (code, json.loads(out.splitlines()[0])["file"]) == (7, f"{11:020}.arrows")
    assert wanted in out
    for words in (("at", "now"), ("history", "plant/speed")):
        code, out, err = jet(*words, "--journal", "log")
        assert code == 1
        assert wanted in err


def test_expanding_snapshot(directory: Path) -> None:
    """A snapshot that expands to far more than its file is refused; the tree comes from the events."""
    tree = jetbus.journal.open(directory).as_of()
    value = '"' + "0" * (1 << 26) + '"'
    rows = BATCH_BYTES_MAX // len(value) + 1
    bomb = pa.table({**{name: [None] * rows for name in TREE.names}, "value": [value] * rows}, schema=TREE)
    (seq,) = snapshots.list_snapshots(directory)
    with pa.ipc.new_file(
        directory / "snapshots" / f"{seq:020}.arrow", TREE, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        writer.write_table(bomb)
    (directory / "snapshots" / f"{seq:020}.crc32").unlink()
    with pytest.raises(JournalDamaged, match=r"is damaged: its \d+ bytes expand to \d+; remove it"):
        snapshots.read_snapshot(directory, seq)
    assert jetbus.journal.open(directory).as_of() == tree


def put_pipe(name: str) -> Callable[[Path], None]:
    """Return a function that puts a named pipe in the place of a file of a journal."""

    def put(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)

    return put


def nest(name: str) -> Callable[[Path], None]:
    """Return a function that writes a JSON file of a journal with a hundred thousand brackets."""

    def write(directory: Path) -> None:
        (directory / name).write_text("[" * 100_000)

    return write


STRANGE_FILES: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "pipe as segment": (put_pipe(f"{11:020}.arrows"), "it is not a regular file; remove it", ""),
    "pipe as index": (put_pipe(f"{1:020}.index"), "0001.index is not a regular file; remove it", ""),
    "pipe as snapshot": (put_pipe(f"snapshots/{10:020}.arrow"), "is not a regular file; remove it", ""),
    "pipe as heartbeat": (put_pipe("heartbeat"), "", ""),
    "pipe as lock": (put_pipe("lock"), "", ""),
    "pipe as identity": (put_pipe("journal.json"), "", "journal.json is not a regular file; remove it"),
    "pipe as manifest": (put_pipe("manifest.json"), "", "manifest.json is not a regular file; remove it"),
    "nested identity": (nest("journal.json"), "", "journal.json is damaged; restore it from a backup"),
    "nested manifest": (nest("manifest.json"), "", "manifest.json is damaged; restore it from a backup"),
}


@pytest.mark.parametrize(("damage", "problem", "error"), STRANGE_FILES.values(), ids=STRANGE_FILES)
def test_strange_files(jet: Jet, directory: Path, damage: Callable[[Path], None], problem: str, error: str) -> None:
    """Pipes and nested files in a journal neither block a command nor end it with a traceback."""
    damage(directory)
    at, verified = jet("at", "now", "--journal", "log"), jet("journal", "verify", "log")
    if error:
        assert at.code != 0
        assert error in at.err
        assert error in verified.err
    else:
        assert json.loads(at.out)["value"] == 7
        assert problem in verified.out
        assert (verified.code == 7) == bool(problem)
