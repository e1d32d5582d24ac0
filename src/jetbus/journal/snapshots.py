"""Snapshots: the whole tree just after one event, so that an instant long ago is near to something known.

A snapshot is an Arrow file in ``snapshots/``, named by its seq, with its checksum in a file beside it. It is only a
short cut: it is made from the log, it is there whole or not at all, and without it, or when it is damaged, the same
tree comes from an earlier one and more replay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa

from jetbus.journal.errors import JournalDamaged, JournalGone
from jetbus.journal.scan import Cursor, Log
from jetbus.journal.segment import (
    CLEARING_EVENTS,
    DIRECTORY_MODE,
    open_private,
    replace_file,
    seq_name,
    sync_directory,
)
from jetbus.journal.sieve import Range, Sieve
from jetbus.journal.tree import COLUMNS, Replay, empty, in_order, matching, matching_paths
from jetbus.rules import Rule

SNAPSHOT_EVENTS = 400_000
"""Events between two snapshots, about: what is replayed at the most to tell the tree of an instant."""
FOLDER = "snapshots"
_SUFFIX = ".arrow"
_CHECKSUM = ".crc32"
_UNFINISHED = ".tmp"

_log = logging.getLogger("jetbus.journal")


def list_snapshots(directory: Path) -> list[int]:
    """The seqs of all snapshots, oldest first."""
    return sorted(int(file.stem) for file in (directory / FOLDER).glob("*" + _SUFFIX) if file.stem.isdecimal())


def read_snapshot(directory: Path, seq: int) -> Any:
    """The tree just after this seq, as it was taken; ``JournalDamaged`` if it is not what was written."""
    file = _file(directory, seq)
    data = file.read_bytes()
    try:
        checksum = int(_checksum_file(directory, seq).read_bytes(), 16)
    except (FileNotFoundError, ValueError):
        checksum = None
    try:
        if checksum is not None and checksum != crc32(data):
            raise pa.ArrowInvalid("its checksum is wrong")
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise JournalDamaged(f"the snapshot {file} is damaged: {error}; remove it", next_seq=seq + 1) from None


def take(directory: Path, upto_seq: int) -> None:
    """Make the snapshot of ``upto_seq`` and those on the way that have become due. The events must be committed.

    Called by the writer when a segment is sealed or has grown; may be called for any seq, by anybody, again and again.
    """
    log = Log(directory)
    due = range(_latest(directory, upto_seq) + SNAPSHOT_EVENTS, upto_seq, SNAPSHOT_EVENTS)
    take_each(log, [*due, upto_seq])
    drop_before(directory, log.view().first - 1)


def take_each(log: Log, seqs: Iterable[int]) -> None:
    """Make the snapshots of these seqs, as far as they are not there and the log tells."""
    for seq in seqs:
        if not _file(log.directory, seq).exists():
            with suppress(JournalGone):  # a log that begins in the middle tells no tree before the next start
                _write(log.directory, seq, tree_at(log, seq))


def thin_out(directory: Path, upto_seq: int, keep: Container[int]) -> None:
    """Drop the snapshots up to a seq that are not to be kept."""
    for seq in list_snapshots(directory):
        if seq <= upto_seq and seq not in keep:
            _drop(directory, seq)


def drop_before(directory: Path, seq: int) -> None:
    """Drop the snapshots before this seq: nothing follows them in the log any more."""
    for old in list_snapshots(directory):
        if old < seq:
            _drop(directory, old)
    for unfinished in (directory / FOLDER).glob("*" + _UNFINISHED):
        if unfinished.stem < seq_name(seq):
            unfinished.unlink(missing_ok=True)


def drop_after(directory: Path, seq: int) -> None:
    """Drop the snapshots after this seq: for a writer that found its log shorter than it was, after a power loss."""
    for young in list_snapshots(directory):
        if young > seq:
            _drop(directory, young)


def tree_then(log: Log, instant_us: int, rule: Rule | None = None) -> Any:
    """The tree at an instant, in order of creation."""
    span = log.span_around(instant_us)
    if span is None:
        return tree_at(log, log.seq_at(instant_us), rule)
    # To find the seq would take the whole file, which is read for the tree anyway.
    return tree_at(log, span.last, rule, before=span.first, until_us=instant_us + 1)


def tree_at(
    log: Log, seq: int, rule: Rule | None = None, *, before: int | None = None, until_us: int = Range.until_us
) -> Any:
    """The tree just after this seq, in order of creation: nearest snapshot (taken before some seq) plus replay.

    With ``until_us``, events from that instant on do not count.
    """
    start, tree = _nearest(log.directory, seq if before is None else before - 1)
    if tree is None and log.view().first == 1:
        start, tree = 0, empty()
    always = CLEARING_EVENTS if rule else ()
    sieve = Sieve(rule, within=Range(seq_until=seq + 1, until_us=until_us), always=always, only_for_trees=True)
    replay = Replay(None if tree is None else matching_paths(tree, sieve.paths))
    # The value tests are for the tree, not for each event that led to it.
    sieve.looks_at_values = False
    cursor = Cursor(start + 1, strict=tree is not None)
    damage: JournalDamaged | None = None
    while True:
        try:
            replay.feed(log.read(cursor, COLUMNS, sieve))
            break
        except JournalDamaged as error:
            damage, cursor = error, Cursor(error.next_seq, strict=True)
        except JournalGone as error:
            cursor = Cursor(error.first_seq, strict=True)
        replay = Replay(None)  # what was before is not known; from the next start of the daemon on it does not matter
    tree = replay.tree()
    if not replay.known:
        if damage is not None:
            raise damage
        first = log.view().first
        raise JournalGone(
            f"the tree after event {seq} of {log.directory} is gone: the log begins with event {first}"
            " and there is no snapshot to start from",
            first_seq=first,
        )
    return in_order(matching(tree, rule))


def _nearest(directory: Path, seq: int) -> tuple[int, Any]:
    """The latest snapshot that is not after a seq, and its seq; 0 and None if there is none."""
    while latest := _latest(directory, seq):
        try:
            return latest, read_snapshot(directory, latest)
        except FileNotFoundError:  # dropped in this very moment, and so are all before it
            continue
        except JournalDamaged as error:
            _log.warning("%s", error)
            seq = latest - 1
    return 0, None


def _latest(directory: Path, seq: int) -> int:
    return max((one for one in list_snapshots(directory) if one <= seq), default=0)


def _file(directory: Path, seq: int) -> Path:
    return directory / FOLDER / (seq_name(seq) + _SUFFIX)


def _checksum_file(directory: Path, seq: int) -> Path:
    return directory / FOLDER / (seq_name(seq) + _CHECKSUM)


def _drop(directory: Path, seq: int) -> None:
    _file(directory, seq).unlink(missing_ok=True)
    _checksum_file(directory, seq).unlink(missing_ok=True)


def _write(directory: Path, seq: int, tree: Any) -> None:
    file = _file(directory, seq)
    file.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, tree.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(tree)
    data = memoryview(sink.getvalue())
    replace_file(_checksum_file(directory, seq), b"%08x\n" % crc32(data))
    fresh = file.with_suffix(_UNFINISHED)
    with open_private(fresh) as written:
        written.write(data)
        written.flush()
        os.fsync(written.fileno())
    fresh.replace(file)
    sync_directory(file.parent)
