"""Parquet files of the journal: each is one span of the log, consecutive events of one day, sorted by path.

Sorting by path and cutting the file into small row groups lets a reader of few paths skip nearly all of it by the
statistics of the column ``path``. The column ``seq`` restores the order; readers get events in order of seq, as ever.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetbus.journal.errors import JournalDamaged
from jetbus.journal.manifest import Span
from jetbus.journal.segment import CLEARING_EVENTS, SCHEMA
from jetbus.journal.sieve import Sieve, is_one_of
from jetbus.rules import Rule

SPAN_ROWS = 1 << 19
"""Events in one file, at the most: what is sorted in memory at once."""
ROW_GROUP_ROWS = 16 << 10
"""Events in one row group: few, so that the rows of one path are a small part of a file, but not so few that the footer
is a big one.
"""
BATCH_ROWS = 1 << 16
"""Events in one batch that is read, at the most."""

_REPEATED = ["event", "kind", "path", "peer", "detail"]
"""Columns with few distinct texts: read as dictionaries, which are cheap to reorder."""
_PATH_COLUMN = SCHEMA.get_field_index("path")
_VALUE_COLUMN = SCHEMA.get_field_index("value")


def write_span(file: Path, events: Any) -> None:
    """Write a table of consecutive events as one Parquet file."""
    ordered = _by_path(events)
    pq.write_table(
        ordered,
        file,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        use_dictionary=[*_REPEATED, "value"] if _repeat(ordered["value"]) else _REPEATED,
        column_encoding={"seq": "DELTA_BINARY_PACKED", "ts": "DELTA_BINARY_PACKED"},
        write_statistics=["seq", "ts", "path"],
        write_page_checksum=True,
        store_schema=False,
    )


def _by_path(events: Any) -> Any:
    """The events in order of path and, of one path, in order of seq as they come; those without a path at the end."""
    paths = events["path"].combine_chunks().dictionary_encode()
    ranks = pc.rank(paths.dictionary, tiebreaker="first").cast(pa.int32())  # sorts each distinct path once
    return events.combine_chunks().take(pc.array_sort_indices(ranks.take(paths.indices)))


def _repeat(values: Any) -> bool:
    """Whether values are few different ones, by the row group in the middle; a dictionary of many is a burden."""
    some = values.slice(len(values) // 2, ROW_GROUP_ROWS)
    return 4 * len(some.unique()) <= len(some)


@lru_cache(maxsize=64)
def _footer(file: Path, _bytes: int) -> Any:
    """The footer of a file, which never changes."""
    return pq.read_metadata(file)


def read_span(directory: Path, span: Span, columns: list[str], sieve: Sieve) -> Generator[Any]:
    """The wanted events of a span in order of seq, as record batches with these columns."""
    file = directory / span.file
    footer = _footer(file, span.bytes)
    groups = [group for group in range(footer.num_row_groups) if _may_match(footer.row_group(group), sieve)]
    if not groups:
        return
    needed = [name for name in SCHEMA.names if name in {*columns, "seq", *sieve.columns}]
    batch = _read_groups(file, span, footer, groups, needed)
    if batch.num_rows:
        batch = sieve.keep(batch, sieve.first_mask(batch))
    if not batch.num_rows:
        return
    if sieve.only_for_trees:
        batch = _without_superseded(batch)
    batch = batch.select([*dict.fromkeys([*columns, "seq"])])
    batch = _in_order(batch, span).select(columns)
    for start in range(0, batch.num_rows, BATCH_ROWS):
        yield _plain(batch.slice(start, BATCH_ROWS))


def _read_groups(file: Path, span: Span, footer: Any, groups: list[int], columns: list[str]) -> Any:
    texts = [*_REPEATED, "value"] if _values_repeat(footer, groups) else _REPEATED
    with pq.ParquetFile(
        file, metadata=footer, read_dictionary=texts, page_checksum_verification=True, memory_map=False
    ) as parquet:
        try:
            table = parquet.read_row_groups(groups, columns=columns)
        except (OSError, pa.ArrowInvalid) as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise JournalDamaged(
                f"{file} is damaged: {error}; restore it from a backup, then verify again", next_seq=span.last + 1
            ) from None
    return table.select(columns).unify_dictionaries().combine_chunks().to_batches()[0]


def _values_repeat(footer: Any, groups: list[int]) -> bool:
    """Whether the values are few different ones: then they take little room, too."""
    chunks = [footer.row_group(group).column(_VALUE_COLUMN) for group in groups]
    return bool(sum(chunk.total_uncompressed_size for chunk in chunks) < 4 * sum(chunk.num_values for chunk in chunks))


def _may_match(group: Any, sieve: Sieve) -> bool:
    """Whether the statistics of a row group leave room for a match."""
    rule = sieve.rule
    if rule is None:
        return True
    statistics = group.column(_PATH_COLUMN).statistics
    if sieve.always and (statistics is None or statistics.null_count):
        return True  # the daemon's starts and stops have no path
    if statistics is None or not statistics.has_min_max:
        return statistics is None or statistics.null_count != group.num_rows
    return _paths_may_match(rule, statistics.min, statistics.max)


def _paths_may_match(rule: Rule, lowest: str, highest: str) -> bool:
    if rule.exact_paths is not None:
        return any(lowest <= path <= highest for path in rule.exact_paths)
    size = len(rule.prefix)
    return lowest[:size] <= rule.prefix <= highest[:size]


def _without_superseded(batch: Any) -> Any:
    """The events, sorted by path, without changes that stand between two other changes of the same path.

    No tree that comes after them tells of those, unless the bus was emptied in between.
    """
    if pc.any(is_one_of(batch.column("event"), CLEARING_EVENTS)).as_py() or batch.num_rows < 3:
        return batch
    paths = batch.column("path").indices
    changes = is_one_of(batch.column("event"), ["change"])
    pairs = pc.and_(pc.equal(paths[1:], paths[:-1]), pc.and_(changes[1:], changes[:-1]))
    pairs = pc.fill_null(pairs, False)
    edge = pa.repeat(pa.scalar(True), 1)
    return batch.filter(pa.concat_arrays([edge, pc.invert(pc.and_(pairs[:-1], pairs[1:])), edge]))


def _in_order(batch: Any, span: Span) -> Any:
    seq = batch.column("seq")
    if batch.num_rows == span.last - span.first + 1:
        return batch.take(pc.inverse_permutation(pc.subtract(seq, span.first)))
    return batch.take(pc.sort_indices(seq))


def _plain(batch: Any) -> Any:
    """The batch with plain texts instead of dictionaries."""
    schema = pa.schema([SCHEMA.field(name) for name in batch.schema.names])
    return batch.cast(schema)
