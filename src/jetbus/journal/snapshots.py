"""Snapshots: the whole tree just after one event, so that the tree of any instant needs little replay.

    log        1 ............ 400000 ............ 800000 ....... 1000000
    snapshot                  S                   S
    tree at 900000 =                              S + events 800001..900000

A snapshot is an Arrow file in ``snapshots/``, named by its seq, with its checksum in a second file. It is derived from
the log and only a shortcut: it exists as a whole or not at all, and if it is missing or damaged, the same tree comes
from an earlier snapshot and more events.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from zlib import crc32

import pyarrow as pa

from jetbus.journal.events import CLEARING_EVENTS
from jetbus.journal.expansion import BATCH_BYTES_MAX, EXPANSION_MAX, measure_parts
from jetbus.journal.filters import EventFilter, LogRange
from jetbus.journal.journal_errors import JournalDamaged, JournalError, JournalGone
from jetbus.journal.log import Cursor, Log
from jetbus.journal.segment import (
    DIRECTORY_MODE,
    format_seq,
    open_private,
    read_regular,
    replace_file,
    sync_directory,
)
from jetbus.journal.tree import (
    COLUMNS,
    TREE,
    TreeBuilder,
    make_empty_tree,
    select_matching,
    select_matching_paths,
    sort_by_creation,
)
from jetbus.rules import Rule

SNAPSHOT_EVENTS = 400_000
"""Approximate number of events between two snapshots: the most that a query for a tree has to replay."""
DAMAGES_SHOWN = 10
"""Damaged parts of a journal that an error lists, at most."""
FOLDER = "snapshots"
_SUFFIX = ".arrow"
_CHECKSUM = ".crc32"
_UNFINISHED = ".tmp"
_MAGIC_BYTES = 8

_log = logging.getLogger("jetbus.journal")


def list_snapshots(directory: Path) -> list[int]:
    """Return the seqs of all snapshots, oldest first."""
    return sorted(int(file.stem) for file in (directory / FOLDER).glob("*" + _SUFFIX) if file.stem.isdecimal())


def read_snapshot(directory: Path, seq: int) -> pa.Table:
    """Return the snapshot of a seq; raise ``JournalDamaged`` if its checksum does not match."""
    file = _file(directory, seq)
    try:
        data = read_regular(file)
        checksum = _read_checksum(directory, seq)
        if checksum is not None and checksum != crc32(data):
            raise pa.ArrowInvalid("the checksum does not match")
        # An Arrow file is a stream between a magic word and a footer, which snapshots do not need.
        stream = pa.py_buffer(data)[_MAGIC_BYTES:]
        _check_expansion(stream)
        tree = pa.ipc.open_stream(stream).read_all()
        if not tree.schema.equals(TREE):
            raise pa.ArrowInvalid("its columns are not those of a tree")
        return tree
    except FileNotFoundError:
        raise
    except (pa.ArrowException, JournalError, OSError, ValueError) as error:
        raise JournalDamaged(f"the snapshot {file} is damaged: {error}; remove it", next_seq=seq + 1) from None


def _read_checksum(directory: Path, seq: int) -> int | None:
    try:
        return int(read_regular(_checksum_file(directory, seq)), 16)
    except (FileNotFoundError, ValueError):
        return None


def _check_expansion(stream: pa.Buffer) -> None:
    """Raise ``ValueError`` if a snapshot would take far more memory than its file is large."""
    size_bytes = sum(
        measure_parts(memoryview(message.metadata), memoryview(message.body))
        for message in pa.ipc.MessageReader.open_stream(stream)
        if message.type == "record batch"
    )
    if size_bytes > max(BATCH_BYTES_MAX, EXPANSION_MAX * stream.size):
        raise ValueError(f"its {stream.size} bytes expand to {size_bytes}")


def take(directory: Path, upto_seq: int) -> None:
    """Write the snapshot of ``upto_seq`` and those before it that are due. The events must be committed.

    The writer calls it when a segment is sealed or has grown. It may be called for any seq, repeatedly.
    """
    log = Log(directory)
    due = range(_latest(directory, upto_seq) + SNAPSHOT_EVENTS, upto_seq, SNAPSHOT_EVENTS)
    write_missing(log, [*due, upto_seq])
    drop_before(directory, log.view().first - 1)


def write_missing(log: Log, seqs: Iterable[int]) -> None:
    """Write the snapshots of these seqs that do not exist yet."""
    for seq in seqs:
        if not _file(log.directory, seq).exists():
            # The log starts in the middle or is damaged: no tree is known before the next start.
            with suppress(JournalGone, JournalDamaged):
                _write(log.directory, seq, read_tree_at_seq(log, seq))


def thin_out(directory: Path, upto_seq: int, keep: Container[int]) -> None:
    """Drop the snapshots up to a seq, except those in ``keep``."""
    for seq in list_snapshots(directory):
        if seq <= upto_seq and seq not in keep:
            _drop(directory, seq)


def drop_before(directory: Path, seq: int) -> None:
    """Drop the snapshots before this seq, when the events after them have been dropped."""
    for old in list_snapshots(directory):
        if old < seq:
            _drop(directory, old)
    for unfinished in (directory / FOLDER).glob("*" + _UNFINISHED):
        if unfinished.stem < format_seq(seq):
            unfinished.unlink(missing_ok=True)


def drop_after(directory: Path, seq: int) -> None:
    """Drop the snapshots after this seq, when a power loss has shortened the log."""
    for young in list_snapshots(directory):
        if young > seq:
            _drop(directory, young)


def read_tree_at_instant(log: Log, instant_us: int, rule: Rule | None = None) -> pa.Table:
    """Return the tree at an instant, in order of creation."""
    span = log.find_span(instant_us)
    if span is None:
        return read_tree_at_seq(log, log.seq_at(instant_us), rule)
    # Finding the seq would read the whole file, which is read for the tree anyway.
    return read_tree_at_seq(log, span.last, rule, before=span.first, until_us=instant_us + 1)


def read_tree_at_seq(
    log: Log, seq: int, rule: Rule | None = None, *, before: int | None = None, until_us: int = LogRange.until_us
) -> pa.Table:
    """Return the tree just after a seq, in order of creation: the nearest snapshot plus the events after it.

    ``before`` uses only snapshots before that seq; ``until_us`` ignores events from that instant on.
    """
    start, tree = _nearest(log.directory, seq if before is None else before - 1)
    if tree is None and log.view().first == 1:
        start, tree = 0, make_empty_tree()
    always = CLEARING_EVENTS if rule else ()
    event_filter = EventFilter(
        rule, within=LogRange(seq_until=seq + 1, until_us=until_us), always=always, for_trees=True
    )
    builder = TreeBuilder(None if tree is None else select_matching_paths(tree, event_filter.paths))
    # The value tests apply to the tree, not to each event that led to it.
    event_filter.looks_at_values = False
    losses: list[JournalDamaged | JournalGone] = []

    def forget(loss: JournalDamaged | JournalGone) -> None:
        losses.append(loss)
        builder.forget()

    builder.add(log.read(Cursor(start + 1, strict=tree is not None), COLUMNS, event_filter, on_loss=forget))
    tree = builder.build()
    if not builder.known:
        raise _explain_unknown_tree(log, seq, [loss for loss in losses if isinstance(loss, JournalDamaged)])
    return sort_by_creation(select_matching(tree, rule))


def _explain_unknown_tree(log: Log, seq: int, damages: list[JournalDamaged]) -> JournalDamaged | JournalGone:
    """Return the error for a tree that cannot be built, with the first of the damages that are the reason."""
    unknown = f"the tree after event {seq} of {log.directory} is unknown"
    if not damages:
        first = log.view().first
        text = f"{unknown}: the log begins with event {first} and there is no snapshot before it"
        return JournalGone(text, first_seq=first)
    if len(damages) == 1:
        return damages[0]
    # The cause of each; the advice behind the semicolon is the same for all.
    listed = ", ".join(str(damage).partition(";")[0] for damage in damages[:DAMAGES_SHOWN])
    some = f", the first {DAMAGES_SHOWN}" if damages[DAMAGES_SHOWN:] else ""
    text = f"{unknown}: {len(damages)} parts cannot be read{some}: {listed}; restore them from a backup"
    return JournalDamaged(text, next_seq=damages[-1].next_seq)


def _nearest(directory: Path, seq: int) -> tuple[int, pa.Table | None]:
    """Return the seq and the tree of the latest intact snapshot up to a seq; 0 and None if there is none."""
    while latest := _latest(directory, seq):
        try:
            return latest, read_snapshot(directory, latest)
        except FileNotFoundError:  # dropped meanwhile, as are all before it
            continue
        except JournalDamaged as error:
            _log.warning("%s", error)
            seq = latest - 1
    return 0, None


def _latest(directory: Path, seq: int) -> int:
    return max((one for one in list_snapshots(directory) if one <= seq), default=0)


def _file(directory: Path, seq: int) -> Path:
    return directory / FOLDER / (format_seq(seq) + _SUFFIX)


def _checksum_file(directory: Path, seq: int) -> Path:
    return directory / FOLDER / (format_seq(seq) + _CHECKSUM)


def _drop(directory: Path, seq: int) -> None:
    _file(directory, seq).unlink(missing_ok=True)
    _checksum_file(directory, seq).unlink(missing_ok=True)


def _write(directory: Path, seq: int, tree: pa.Table) -> None:
    file = _file(directory, seq)
    file.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, tree.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(tree)
    data = memoryview(sink.getvalue())
    # The checksum first: a snapshot that is there can then always be verified.
    replace_file(_checksum_file(directory, seq), b"%08x\n" % crc32(data))
    fresh = file.with_suffix(_UNFINISHED)
    with open_private(fresh) as written:
        written.write(data)
        written.flush()
        os.fsync(written.fileno())
    fresh.replace(file)
    sync_directory(file.parent)
