"""Retention: whole segments are dropped, oldest first, by the age of their last event and by the size of all together.

The newest segment always stays, and with it the seq to go on with. What was compacted to Parquet is older than any
segment and goes first; pruning it is the business of compaction.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from jetbus.journal.index import read_index
from jetbus.journal.instants import US_PER_S
from jetbus.journal.segment import Segment, list_segments
from jetbus.journal.settings import Settings


def drop_old(directory: Path, settings: Settings, now_us: int, *, upto_seq: int) -> int:
    """Drop the segments up to ``upto_seq`` that are too old or too much; tells how many."""
    segments = list_segments(directory)
    sizes = [segment.size_bytes for segment in segments]
    total_bytes = sum(sizes)
    dropped = 0
    for (segment, after), size in zip(pairwise(segments), sizes, strict=False):
        too_much = settings.keep_bytes is not None and total_bytes > settings.keep_bytes
        if after.first_seq > upto_seq + 1 or not (too_much or _is_too_old(segment, settings, now_us)):
            break
        segment.path.unlink(missing_ok=True)
        segment.index_path.unlink(missing_ok=True)
        total_bytes -= size
        dropped += 1
    return dropped


def _is_too_old(segment: Segment, settings: Settings, now_us: int) -> bool:
    if settings.keep_s is None:
        return False
    entries = read_index(segment.index_path)
    return bool(entries) and entries[-1].ts_max_us < now_us - settings.keep_s * US_PER_S
