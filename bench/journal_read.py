"""How quickly a journal is read: everything, the tree at an instant, the history of one path.

    .venv/bin/python bench/journal_read.py                     # 10 million events of 10,000 states; about a minute
    .venv/bin/python bench/journal_read.py --events 2000000

Builds a journal under a temporary folder, measures it as segments, compacts it, and measures again. Every bar is a
row: the bar, the measured figure, ok or MISSED. Bytes are counted by the kernel (``rchar`` of /proc/self/io), so
they are those really read, footers and indexes included.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

import jetbus.journal
from jetbus.journal import Journal, snapshots
from jetbus.journal.directory import ensure_identity
from jetbus.journal.index import IndexEntry
from jetbus.journal.segment import END_OF_STREAM, PLAIN, locate_segment

ROWS_PER_S_LEAST = 5e6
AS_OF_S_MOST = 0.5
HISTORY_SHARE_MOST = 0.05

FLUSH_EVENTS = 10_000
SEGMENT_BYTES = 64 << 20
STEP_US = 50
BEGIN_US = 1_767_225_600_000_000


def batches(states: int, events: int) -> Iterator[Any]:
    """Record batches as a plant of this many states makes them: all are added, then changed in random order."""
    paths = pa.array([f"plant/line{i % 20}/machine{i // 20 % 50}/sensor{i}/value" for i in range(states)])
    rng = random.Random(1)
    order = pa.array(rng.sample(range(states), states))
    for first in range(1, events + 1, FLUSH_EVENTS):
        count = min(FLUSH_EVENTS, events + 1 - first)
        seq = pc.add(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), count)), first - 1)
        picks = pc.bit_wise_and(pc.multiply(seq, rng.randrange(1, 1 << 30) | 1), (1 << 40) - 1)
        which = order.take(pc.subtract(picks, pc.multiply(pc.divide(picks, states), states)))
        event = "change"
        if first <= states:
            which, event = pc.subtract(seq, 1), "add"
        number = pc.add(20.0, pc.divide(pc.bit_wise_and(picks, 1023).cast(pa.float64()), 64.0))
        constant = {name: pa.repeat(pa.scalar(text), count) for name, text in (("event", event), ("kind", "state"))}
        yield pa.record_batch(
            [
                seq,
                pc.add(pc.multiply(seq, STEP_US), BEGIN_US).cast(pa.timestamp("us", tz="UTC")),
                constant["event"],
                constant["kind"],
                paths.take(which),
                number.cast(pa.string()),
                pc.binary_join_element_wise("plc#", pc.add(pc.bit_wise_and(which, 15), 1).cast(pa.string()), ""),
                pa.nulls(count, pa.string()),
            ],
            schema=PLAIN.schema,
        )


def build(directory: Path, states: int, events: int) -> None:
    """A journal as the writer leaves it: segments, indexes and snapshots."""
    ensure_identity(directory, "bench")
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    data, entries = bytearray(PLAIN.schema_bytes), list[IndexEntry]()
    for batch in batches(states, events):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, PLAIN.schema, options=options) as writer:
            writer.write_batch(batch)
        message = sink.getvalue().to_pybytes()[len(PLAIN.schema_bytes) :].removesuffix(END_OF_STREAM)
        ts = batch.column("ts")
        seq = batch.column("seq")[0].as_py()
        entries.append(IndexEntry(seq, len(batch), ts[0].value, ts[-1].value, len(data), len(message), crc32(message)))
        data += message
        if len(data) > SEGMENT_BYTES or entries[-1].seq_last >= events - FLUSH_EVENTS:  # the newest is not compacted
            segment = locate_segment(directory, entries[0].seq_first)
            segment.path.write_bytes(data + END_OF_STREAM)
            segment.index_path.write_bytes(b"".join(entry.pack() for entry in entries))
            snapshots.take(directory, entries[-1].seq_last)
            data, entries = bytearray(PLAIN.schema_bytes), []


def read_bytes() -> int:
    """How many bytes this process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def timed(call: Callable[[], object], tries: int = 1) -> float:
    """How long it takes, at the best of some tries: others may be using the machine."""
    took = []
    for _ in range(tries):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return min(took)


def row(bar: str, measured: str, kept: bool | None = None) -> None:
    verdict = "" if kept is None else ("ok" if kept else "MISSED")
    sys.stdout.write(f"{bar:<62} {measured:<46} {verdict}\n")
    sys.stdout.flush()


def measure(journal: Journal, directory: Path, what: str, events: int, states: int, *, compacted: bool) -> None:
    rng = random.Random(2)
    size_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.suffix in (".arrows", ".parquet"))
    row(f"{what}: size", f"{size_bytes / 1e6:.0f} MB, {size_bytes / events:.1f} bytes an event")

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    rates = []
    for _ in range(3):
        begin = time.process_time()
        rows = sum(batch.num_rows for batch in journal.read())
        rates.append(rows / (time.process_time() - begin))
        assert rows == events
    row(f"{what}: all columns, rows/s of one core", f"{max(rates) / 1e6:.1f} M", max(rates) >= ROWS_PER_S_LEAST)
    begin = time.process_time()
    rows = sum(batch.num_rows for batch in journal.read("plant/line7/**", columns=["ts", "path", "value"]))
    row(f"{what}: a prefix rule, rows tested/s", f"{events / (time.process_time() - begin) / 1e6:.1f} M, {rows} found")
    begin = time.process_time()
    rows = sum(
        batch.num_rows for batch in journal.read("plant/*/machine7/** value>30", columns=["ts", "path", "value"])
    )
    row(
        f"{what}: a glob and a value, rows tested/s",
        f"{events / (time.process_time() - begin) / 1e6:.1f} M, {rows} found",
    )
    pa.set_cpu_count(2)
    pa.set_io_thread_count(8)

    seqs = [events, *(rng.randrange(states, events) for _ in range(20))]
    took = [timed(partial(journal.as_of, BEGIN_US + STEP_US * seq), tries=5) for seq in seqs]
    assert journal.as_of(seq=seqs[-1]).num_rows == states
    measured = f"median {statistics.median(took):.3f} s, worst {max(took):.3f} s"
    row(f"{what}: as_of, {len(seqs)} instants, under {AS_OF_S_MOST} s", measured, max(took) < AS_OF_S_MOST)

    shares, took = [], []
    for _ in range(10):
        number = rng.randrange(states)
        path = f"plant/line{number % 20}/machine{number // 20 % 50}/sensor{number}/value"
        fresh = jetbus.journal.open(directory)
        before, begin = read_bytes(), time.perf_counter()
        found = fresh.history(path)
        took.append(time.perf_counter() - begin)
        shares.append((read_bytes() - before) / size_bytes)
        assert found.num_rows > 1
    measured = f"worst {max(shares) * 100:.2f} % of the bytes, {statistics.median(took) * 1e3:.0f} ms"
    row(f"{what}: history of one path", measured, max(shares) < HISTORY_SHARE_MOST if compacted else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--states", type=int, default=10_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jetbus-bench-") as folder:
        directory = Path(folder)
        took = timed(lambda: build(directory, chosen.states, chosen.events))
        row("building", f"{took:.1f} s for {chosen.events:,} events, {chosen.states:,} states")
        journal = jetbus.journal.open(directory)
        measure(journal, directory, "segments", chosen.events, chosen.states, compacted=False)
        begin = time.perf_counter()
        done = jetbus.journal.compact(directory)
        took = time.perf_counter() - begin
        row("compaction", f"{took:.1f} s, {done.events / took / 1e6:.2f} M events/s, {done.files} files")
        measure(journal, directory, "parquet", chosen.events, chosen.states, compacted=True)


if __name__ == "__main__":
    main()
