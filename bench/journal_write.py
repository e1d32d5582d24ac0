"""Measure the journal's writer: events per second of CPU, bytes per event, plain against dictionary-encoded paths.

    python bench/journal_write.py                  three rounds of a million events each, about two minutes
    python bench/journal_write.py --quick          one round of 300,000 events
    python bench/journal_write.py --rounds 5 --events 2000000 --strict

The events are changes of 1,000 states with paths of 20 to 30 characters and numbers as values, 50 in a turn and 10,000
in a commit. A writer's figure counts the loop that appends, `take` and `write` with index, checksum and fsync, in user
and kernel; making the values is not counted. The cost of closing, with the snapshot of the tree, is printed beside it.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from bars import MISSED, OK, Verdict, bars_table
from compare import markdown, short
from run import machine, say
from servers import BENCH

from jetbus.journal import Settings, Writer
from jetbus.journal.batch import PendingEvents, build_batch, encode_batch
from jetbus.journal.segment import PLAIN

EVENTS_PER_CPU_S_LEAST = 1e6
CHANGE_US_MOST = 0.3
STATES = 1000
TURN_EVENTS = 50
COMMIT_EVENTS = 10_000
COMPRESSIONS: tuple[Any, ...] = ("lz4", "zstd", None)
FSYNCS: tuple[Any, ...] = ("interval", "never", "always")

Row = tuple[str, bytes, str]


def changes(count: int) -> Iterator[list[Row]]:
    """Changes of a plant, commit by commit: states in random order, each value a step from the one before."""
    rng = random.Random(1)
    paths = [f"plant/line{n % 20}/sensor{n:04d}/value" for n in range(STATES)]
    peers = [f"plc#{n}" for n in range(10)]
    levels = [rng.uniform(0, 100) for _ in range(STATES)]
    for _ in range(count // COMMIT_EVENTS):
        rows = []
        for at in rng.choices(range(STATES), k=COMMIT_EVENTS):
            levels[at] += rng.gauss(0, 0.1)
            rows.append((paths[at], b"%.3f" % levels[at], peers[at % 10]))
        yield rows


def append_and_commit(writer: Writer, rows: list[Row]) -> None:
    """Turn by turn, as the loop of a daemon does it, and one commit."""
    change = writer.change
    for first in range(0, len(rows), TURN_EVENTS):
        writer.now_us += 250
        for path, value, peer in rows[first : first + TURN_EVENTS]:
            change(path, value, peer)
    if not writer.commit():
        sys.exit(f"bench: {writer.problem}")


class Run(NamedTuple):
    """Figures of one run of a writer."""

    per_cpu_s: float
    closing_us: float
    event_bytes: float


def write(directory: str, count: int, **settings: Any) -> Run:
    """Write so many events with these settings."""
    writer = Writer(Path(directory) / "journal", Settings(**settings))
    spent_s = 0.0
    for rows in changes(count):
        begin_s = time.process_time()
        append_and_commit(writer, rows)
        spent_s += time.process_time() - begin_s
    begin_s = time.process_time()
    writer.close()
    closing_s = time.process_time() - begin_s
    stats = writer.stats()
    assert stats["missed"] == 0
    return Run(stats["events"] / spent_s, closing_s / stats["events"] * 1e6, stats["bytes"] / stats["events"])


def appending_us(rows: list[Row]) -> float:
    """Microseconds of one change more than a call of nothing."""
    with tempfile.TemporaryDirectory() as directory:
        writer = Writer(directory, Settings(fsync="never", buffered_bytes_max=1 << 40))
        loop_s = min(_spent_s(rows, _nothing) for _ in range(3))
        change_s = []
        for _ in range(3):
            change_s.append(_spent_s(rows, writer.change))
            writer.take()
        writer.close()
    return (min(change_s) - loop_s) / len(rows) * 1e6


def _spent_s(rows: list[Row], call: Callable[[str, bytes, str], None]) -> float:
    begin_s = time.process_time()
    for path, value, peer in rows:
        call(path, value, peer)
    return time.process_time() - begin_s


def _nothing(_path: str, _value: bytes, _peer: str) -> None:
    pass


class Layout:
    """How the paths could be stored, measured on the same batches."""

    def __init__(self, count: int) -> None:
        self.batches = []
        self.count = 0
        for rows in changes(count):
            pending = PendingEvents(self.count)
            for row in rows:
                pending.rows.extend(row)
            self.batches.append(build_batch(pending, self.count + 1))
            self.count += len(rows)

    def plain(self, compression: Any) -> tuple[float, float]:
        """Bytes and microseconds per event with plain strings, each batch on its own."""
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        begin_s = time.process_time()
        size = sum(len(encode_batch(batch, options)) for batch in self.batches)
        return size / self.count, (time.process_time() - begin_s) / self.count * 1e6

    def dictionary(self, compression: Any) -> tuple[float, float]:
        """The same with one growing dictionary of paths and its deltas in the stream."""
        at = PLAIN.schema.get_field_index("path")
        schema = PLAIN.schema.set(at, pa.field("path", pa.dictionary(pa.int32(), pa.string())))
        options = pa.ipc.IpcWriteOptions(
            compression=compression, use_threads=False, emit_dictionary_deltas=True, unify_dictionaries=False
        )
        known = pa.array([], pa.string())
        sink = pa.BufferOutputStream()
        begin_s = time.process_time()
        with pa.ipc.new_stream(sink, schema, options=options) as stream:
            for batch in self.batches:
                paths = batch.column(at)
                codes = pc.index_in(paths, known)
                if codes.null_count:
                    fresh = paths.filter(codes.is_null()).unique()
                    known = pa.concat_arrays([known, fresh])
                    codes = pc.index_in(paths, known)
                columns = [*batch.columns[:at], pa.DictionaryArray.from_arrays(codes, known), *batch.columns[at + 1 :]]
                stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        size = len(sink.getvalue())
        return size / self.count, (time.process_time() - begin_s) / self.count * 1e6


def layouts_table(count: int) -> str:
    layout = Layout(count)
    lines = []
    for compression in COMPRESSIONS:
        plain_bytes, plain_us = layout.plain(compression)
        other_bytes, other_us = layout.dictionary(compression)
        lines.append(
            [
                compression or "none",
                f"{plain_bytes:.1f}",
                f"{other_bytes:.1f} ({other_bytes / plain_bytes:.2f}x)",
                f"{plain_us:.3f}",
                f"{other_us:.3f} ({other_us / plain_us:.2f}x)",
            ]
        )
    head = ["compression", "plain: bytes/event", "dictionary", "plain: encode us/event", "dictionary"]
    return "\n### Paths as plain strings and dictionary-encoded\n\n" + markdown(head, lines)


def writers_table(runs: dict[tuple[Any, Any], list[Run]]) -> str:
    base = median(run.per_cpu_s for run in runs["lz4", "interval"])
    lines = []
    for (compression, fsync), measured in runs.items():
        rate = median(run.per_cpu_s for run in measured)
        closing_us = median(run.closing_us for run in measured)
        cells = [f"{short(rate)} ({rate / base:.2f}x)", f"{measured[0].event_bytes:.1f}", f"{closing_us:.2f}"]
        lines.append([compression or "none", fsync, *cells])
    head = ["compression", "fsync", "events/cpu s", "bytes/event", "closing: us/event"]
    return "\n### The writer alone\n\n" + markdown(head, lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="medians over so many rounds")
    parser.add_argument("--events", type=int, default=1_000_000, metavar="N", help="events per run")
    parser.add_argument("--quick", action="store_true", help="one round of 300,000 events")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.events = 1, 300_000
    if args.rounds < 1 or not COMMIT_EVENTS <= args.events <= 20_000_000:
        parser.error("at least one round, of 10,000 to 20,000,000 events")
    return args


def main() -> int:
    args = arguments()
    cases = [*((compression, "interval") for compression in COMPRESSIONS), *(("lz4", fsync) for fsync in FSYNCS[1:])]
    with tempfile.TemporaryDirectory() as directory:
        write(directory, COMMIT_EVENTS)  # loads everything that is loaded only once, which is not a cost of the writer
    runs: dict[tuple[Any, Any], list[Run]] = {}
    for number in range(args.rounds):
        say(f"round {number + 1} of {args.rounds}")
        for compression, fsync in cases:
            with tempfile.TemporaryDirectory() as directory:
                run = write(directory, args.events, compression=compression, fsync=fsync)
            runs.setdefault((compression, fsync), []).append(run)
            say(f"{compression or 'none'}, fsync {fsync}: {short(run.per_cpu_s)}/cpu s")
    rate = median(run.per_cpu_s for run in runs["lz4", "interval"])
    change_us = appending_us(next(changes(COMMIT_EVENTS)) * 20)
    verdicts = [
        Verdict(
            f"the writer alone: at least {short(EVENTS_PER_CPU_S_LEAST)} events/cpu s (lz4, fsync interval)",
            short(rate),
            OK if rate >= EVENTS_PER_CPU_S_LEAST else MISSED,
        ),
        Verdict(
            f"change: below {CHANGE_US_MOST} us more than a call of nothing",
            f"{change_us:.2f} us",
            OK if change_us < CHANGE_US_MOST else MISSED,
        ),
    ]
    head = f"## The journal's writer\n\n{machine()}, pyarrow {pa.__version__}, {args.events:,} events a run\n"
    text = head + writers_table(runs) + layouts_table(min(args.events, 1_000_000)) + bars_table(verdicts)
    print(text)
    folder = BENCH / "results"
    folder.mkdir(exist_ok=True)
    (folder / time.strftime("journal-%Y%m%d-%H%M%S.md")).write_text(text)
    return 1 if args.strict and any(row.verdict == MISSED for row in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
