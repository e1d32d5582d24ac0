"""Statistics of a log: how many events of which kind, the busiest paths and peers, and missing events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.filters import EventFilter, LogRange
from jetbus.journal.log import Cursor, Log, SpanPiece
from jetbus.journal.segment import JournalRow

GAPS_MAX = 1000
"""Gaps that are listed, at most; the latest are. All are counted."""


@dataclass
class Stats:
    """Statistics of the log of one bus."""

    events: int = 0
    bytes: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    """Number of events of each kind."""
    top_paths: list[tuple[str, int]] = field(default_factory=list)
    """Paths with the most events, the busiest first."""
    top_peers: list[tuple[str, int]] = field(default_factory=list)
    gaps: list[JournalRow] = field(default_factory=list)
    """Seq, ts and detail of the ``gap`` events."""
    holes: list[tuple[int, int]] = field(default_factory=list)
    """First and last seq of missing parts in the middle of the log."""
    segments: int = 0
    parquet_files: int = 0
    first: int = 1
    last: int = 0
    first_ts: int | None = None
    last_ts: int | None = None


def collect_stats(log: Log, top: int) -> Stats:
    """Return the statistics of a log."""
    view = log.view()
    spans = [piece for piece in view.pieces if isinstance(piece, SpanPiece)]
    stats = Stats(
        bytes=sum(piece.bytes for piece in view.pieces),
        segments=len(view.pieces) - len(spans),
        parquet_files=len(spans),
        first=view.first,
        last=view.last,
    )
    if view.pieces:
        stats.first_ts, stats.last_ts = view.pieces[0].ts_min_us, view.pieces[-1].ts_max_us
    kinds: Counter[str] = Counter()
    paths: Counter[str] = Counter()
    peers: Counter[str] = Counter()
    next_seq = view.first
    for piece in view.pieces:
        if piece.first > next_seq:
            stats.holes.append((next_seq, piece.first - 1))
        next_seq = piece.last + 1
        within, gaps = LogRange(piece.first, next_seq), kinds["gap"]
        for batch in log.read(Cursor(piece.first, strict=False), ["event", "path", "peer"], EventFilter(within=within)):
            stats.events += batch.num_rows
            for counter, column in ((kinds, "event"), (paths, "path"), (peers, "peer")):
                counter.update(_count_texts(batch.column(column)))
        if kinds["gap"] > gaps:
            stats.gaps = [*stats.gaps, *_read_gaps(log, within)][-GAPS_MAX:]
    stats.kinds = dict(kinds.most_common())
    stats.top_paths, stats.top_peers = paths.most_common(top), peers.most_common(top)
    return stats


def _count_texts(column: pa.Array) -> dict[str, int]:
    counted = pc.value_counts(column)
    pairs = zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True)
    return {text: count for text, count in pairs if text is not None}


def _read_gaps(log: Log, within: LogRange) -> Iterator[JournalRow]:
    event_filter = EventFilter(events=["gap"], within=within)
    for batch in log.read(Cursor(within.seq, strict=False), ["seq", "ts", "detail"], event_filter):
        yield from batch.to_pylist()
