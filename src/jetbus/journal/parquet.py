"""The compacted part of a journal: Parquet files, and the manifest that names them.

**Spans.** Each file is one span of the log: consecutive events of one day, sorted by path. Sorting by path and cutting
the file into small row groups lets a reader of few paths skip nearly all of it by the statistics of the column
``path``. The column ``seq`` restores the order; readers get events in order of seq, as from segments. A file without
any source time or quality has no columns for them, as a plain segment.

**Manifest.** ``manifest.json`` is replaced atomically, and that is the moment a compaction or a pruning takes effect.
Events up to ``upto`` are read from the files it names, later ones from segments. So no reader ever sees an event twice
or misses one, whatever other files are in the directory.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetbus.journal.events import CLEARING_EVENTS
from jetbus.journal.filters import EventFilter, match_any
from jetbus.journal.journal_errors import JournalDamaged, NotAJournal
from jetbus.journal.segment import NO_LATE_US, SCHEMA, STAMPS, fill_columns, open_regular, read_json, replace_file
from jetbus.rules import Rule

MANIFEST_FILE = "manifest.json"
MANIFEST_FORMAT = 1


@dataclass(frozen=True)
class Span:
    """A Parquet file: consecutive events of one day."""

    file: str
    """Path relative to the journal."""
    first: int
    last: int
    ts_min_us: int
    ts_max_us: int
    bytes: int
    late_min_us: int = NO_LATE_US[0]
    """First instant, by the owners, of its values of the past."""
    late_max_us: int = NO_LATE_US[1]


@dataclass(frozen=True)
class Manifest:
    """The Parquet files of a journal, and the events they stand for."""

    upto: int = 0
    """Every event up to this seq is in a Parquet file, or was in one that has been pruned."""
    spans: tuple[Span, ...] = ()
    """Oldest first."""
    replaced: tuple[str, ...] = ()
    """Segments that the last compaction replaced; they are deleted once it is committed."""
    joined: tuple[str, ...] = ()
    """Parquet files that the last compaction joined into others; the next compaction deletes them."""


def read_manifest(directory: Path) -> Manifest:
    """Return the present manifest, an empty one if nothing has been compacted yet."""
    try:
        fields = read_json(directory / MANIFEST_FILE)
        version = fields["format"]
        spans = tuple(Span(**span) for span in fields["spans"])
        manifest = Manifest(fields["upto"], spans, tuple(fields["replaced"]), tuple(fields.get("joined", ())))
    except FileNotFoundError:
        return Manifest()
    except (ValueError, KeyError, TypeError):
        raise NotAJournal(
            f"{directory / MANIFEST_FILE} is damaged; restore it from a backup to read the Parquet files"
        ) from None
    if version != MANIFEST_FORMAT:
        raise NotAJournal(
            f"{directory / MANIFEST_FILE} has format {version}, this jetbus knows {MANIFEST_FORMAT}; use a later jetbus"
        )
    return manifest


def read_manifest_mark(directory: Path) -> tuple[int, int, int]:
    """Return a value that differs whenever the manifest was replaced."""
    try:
        status = (directory / MANIFEST_FILE).stat()
    except FileNotFoundError:
        return 0, 0, 0
    return status.st_ino, status.st_mtime_ns, status.st_size


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest, atomically and durably."""
    text = json.dumps({"format": MANIFEST_FORMAT, **asdict(manifest)}, indent=1)
    replace_file(directory / MANIFEST_FILE, text.encode() + b"\n")


SPAN_ROWS = 1 << 19
"""Events in one file, at most: they are sorted in memory."""
ROW_GROUP_ROWS = 16 << 10
"""Events in one row group: few, so that one path is a small part of a file, but not so few that the footer is large."""
BATCH_ROWS = 1 << 16
"""Events in one batch that is read, at most."""

_REPEATED = ["event", "kind", "path", "peer", "detail", "quality"]
"""Columns with few distinct texts; read as dictionaries, they are cheap to reorder."""
_PATH_COLUMN = SCHEMA.get_field_index("path")
_VALUE_COLUMN = SCHEMA.get_field_index("value")


def write_span(file: Path, events: pa.Table) -> None:
    """Write a table of consecutive events as one Parquet file."""
    if all(events[name].null_count == events.num_rows for name in STAMPS):
        events = events.drop_columns(list(STAMPS))
    ordered = _sort_by_path(events)
    repeated = [name for name in _REPEATED if name in ordered.column_names]
    pq.write_table(
        ordered,
        file,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        use_dictionary=[*repeated, "value"] if _has_few_values(ordered["value"]) else repeated,
        column_encoding={"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
        write_statistics=["seq", "ts", "path"],
        write_page_checksum=True,
        store_schema=False,
    )


def _sort_by_path(events: pa.Table) -> pa.Table:
    """Return events in order of path, then seq; those without a path come last."""
    paths = events["path"].combine_chunks().dictionary_encode()
    ranks = pc.rank(paths.dictionary, tiebreaker="first").cast(pa.int32())  # sorts each distinct path once
    return events.combine_chunks().take(pc.array_sort_indices(ranks.take(paths.indices)))


def _has_few_values(values: pa.ChunkedArray) -> bool:
    """Return whether a dictionary of the values would be small, judging by the row group in the middle."""
    some = values.slice(len(values) // 2, ROW_GROUP_ROWS)
    return 4 * len(some.unique()) <= len(some)


@lru_cache(maxsize=64)
def _read_footer(file: Path, _bytes: int) -> pq.FileMetaData:
    """Return the footer of a file; files never change, so it is cached by path and size."""
    with open_regular(file) as opened:
        return pq.read_metadata(opened)


def read_span(directory: Path, span: Span, columns: list[str], event_filter: EventFilter) -> Generator[pa.RecordBatch]:
    """Yield the wanted events of a span in order of seq, as record batches with these columns."""
    file = directory / span.file
    footer = _read_footer(file, span.bytes)
    groups = [group for group in range(footer.num_row_groups) if _may_match(footer.row_group(group), event_filter)]
    if not groups:
        return
    # ``seq`` in any case: files are sorted by path, and readers get events in order of seq.
    stored = footer.schema.names
    needed = [name for name in stored if name in {*columns, "seq", *event_filter.columns}]
    batch = _read_groups(file, span, footer, groups, needed)
    if batch.num_rows:
        batch = event_filter.select_rows(batch, event_filter.mask_by_first_columns(batch))
    if not batch.num_rows:
        return
    # Cheaper here than later: the rows are still sorted by path.
    if event_filter.for_trees:
        batch = _drop_superseded(batch)
    batch = batch.select([name for name in dict.fromkeys([*columns, "seq"]) if name in stored])
    batch = _sort_by_seq(batch, span)
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield fill_columns(_decode_dictionaries(batch.slice(start, BATCH_ROWS)), columns)


def _read_groups(
    file: Path, span: Span, footer: pq.FileMetaData, groups: list[int], columns: list[str]
) -> pa.RecordBatch:
    texts = [name for name in _REPEATED if name in columns]
    texts += ["value"] if _stores_few_values(footer, groups) else []
    with pq.ParquetFile(
        file, metadata=footer, read_dictionary=texts, page_checksum_verification=True, memory_map=False
    ) as parquet:
        try:
            table = parquet.read_row_groups(groups, columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise JournalDamaged(
                f"{file} is damaged: {error}; restore it from a backup, then run verify", next_seq=span.last + 1
            ) from None
    return table.select(columns).unify_dictionaries().combine_chunks().to_batches()[0]


def _stores_few_values(footer: pq.FileMetaData, groups: list[int]) -> bool:
    """Return whether the values are dictionary-encoded, judging by their size."""
    chunks = [footer.row_group(group).column(_VALUE_COLUMN) for group in groups]
    return bool(sum(chunk.total_uncompressed_size for chunk in chunks) < 4 * sum(chunk.num_values for chunk in chunks))


def _may_match(group: pq.RowGroupMetaData, event_filter: EventFilter) -> bool:
    """Return whether a row group can have matches, judging by its statistics."""
    rule = event_filter.rule
    if rule is None:
        return True
    statistics = group.column(_PATH_COLUMN).statistics
    if event_filter.always and (statistics is None or statistics.null_count):
        return True  # starts and stops of the daemon have no path
    if statistics is None or not statistics.has_min_max:
        return statistics is None or statistics.null_count != group.num_rows
    return _paths_may_match(rule, statistics.min, statistics.max)


def _paths_may_match(rule: Rule, lowest: str, highest: str) -> bool:
    if rule.exact_paths is not None:
        return any(lowest <= path <= highest for path in rule.exact_paths)
    size = len(rule.prefix)
    return lowest[:size] <= rule.prefix <= highest[:size]


def _drop_superseded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return events, sorted by path, without changes that lie between two other changes of the same path.

    They cannot affect a later tree, unless the tree was cleared in between.
    """
    if pc.any(match_any(batch.column("event"), CLEARING_EVENTS)).as_py() or batch.num_rows < 3:
        return batch
    # A change is superseded if both neighbours in the file are changes of the same path.
    paths = batch.column("path").indices
    changes = match_any(batch.column("event"), ["change"])
    pairs = pc.and_(pc.equal(paths[1:], paths[:-1]), pc.and_(changes[1:], changes[:-1]))
    pairs = pc.fill_null(pairs, False)
    edge = pa.repeat(pa.scalar(True), 1)
    return batch.filter(pa.concat_arrays([edge, pc.invert(pc.and_(pairs[:-1], pairs[1:])), edge]))


def _sort_by_seq(batch: pa.RecordBatch, span: Span) -> pa.RecordBatch:
    # A complete span is a permutation of its seqs, which is faster to invert than to sort.
    seq = batch.column("seq")
    if batch.num_rows == span.last - span.first + 1:
        return batch.take(pc.inverse_permutation(pc.subtract(seq, span.first)))
    return batch.take(pc.sort_indices(seq))


def _decode_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with plain strings instead of dictionaries."""
    schema = pa.schema([SCHEMA.field(name) for name in batch.schema.names])
    return batch.cast(schema)
