"""History as a chart needs it: per pixel the first, lowest, highest and last value, so that no spike is lost.

Zoomed out over ten million points, a chart has the same peaks as zoomed in: a bucket keeps its extremes, and
with its first and last value the line enters and leaves it where the data does. Points of a path are held in memory as
two arrays after the first request, and only extended, at their end by newer and at their start by older points, so that
a zoom is a few binary searches and reductions.

Numbers make a line. Everything else (booleans, texts, objects) makes bands: stretches of time with one value. After a
removal, a stop or start of the daemon, and a gap in the journal there is no value until the next event of the path.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from jetbus.journal.events import CUTS

if TYPE_CHECKING:
    from jetbus.radar.archive import Archive

CACHE_BYTES_MAX = 512 * 1024 * 1024
POINTS_MAX = 8_000
"""Buckets of one answer: more than any screen has pixels."""
BANDS_MAX = 5_000
ENDS = ("remove", *CUTS)
"""Events after which no value is known."""

Times = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

SERIES = pa.schema(
    [
        ("ts", pa.int64()),  # microseconds of the bucket's first event
        ("first", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("last", pa.float64()),
        ("count", pa.int64()),
        ("end", pa.int64()),  # microseconds of the bucket's last event
        ("bad", pa.int64()),  # events of a quality that is not good
        ("late", pa.int64()),  # events that came late
    ]
)
BANDS = pa.schema(
    [("ts", pa.int64()), ("value", pa.string()), ("count", pa.int64()), ("bad", pa.int64()), ("late", pa.int64())]
)
EVENTS = pa.schema(
    [
        ("ts", pa.timestamp("us", "UTC")),
        ("event", pa.string()),
        ("value", pa.string()),
        ("quality", pa.string()),
        ("late", pa.bool_()),
    ]
)
NOT_GOOD = r'^(bad|uncertain)$|"level"\s*:\s*"(bad|uncertain)"'
"""Pattern of qualities that are a word or an object with a level."""


class Points(NamedTuple):
    """Events of one path in order of time; a number is NaN for a cut and for a value of another type."""

    us: Times
    numbers: Numbers
    texts: Any
    """Values as JSON text, null after a cut: an Arrow array. None if all values are numbers, which saves the memory."""
    bad: Flags | None
    """True for values of a quality that is not good; None if all are good."""
    late: Flags | None
    """True for values that came late; None if all came in time."""
    since_us: int
    """Instant from which on all events are here; the first point may be older: the value that held then."""
    next_seq: int

    @property
    def nbytes(self) -> int:
        return int(self.us.nbytes + self.numbers.nbytes + (0 if self.texts is None else self.texts.nbytes))


def make_points(events: Any, since_us: int, next_seq: int) -> Points:
    """Read the columns ``ts``, ``event`` and ``value`` of a table or batch of events."""
    us = _flat(pc.cast(events["ts"], pa.int64())).to_numpy(zero_copy_only=False)
    is_cut = pc.is_in(events["event"], value_set=pa.array(ENDS))
    texts = events["value"]
    if pc.any(is_cut).as_py():
        texts = pc.if_else(is_cut, pa.scalar(None, pa.string()), texts)
    texts = _flat(texts)
    try:
        # The usual path has nothing but numbers: one cast for all, and no texts to keep.
        numbers, kept = pc.cast(texts, pa.float64()), None
    except pa.ArrowInvalid:  # some are not numbers: JSON's numbers start with a digit or a minus, all else does not
        numeric = pc.match_substring_regex(texts, "^-?[0-9]")
        numbers = pc.cast(pc.if_else(numeric, texts, pa.scalar(None, pa.string())), pa.float64())
        kept = texts
    found: Numbers = pc.fill_null(numbers, float("nan")).to_numpy(zero_copy_only=False)
    return Points(us, found, kept, _read_quality(events["quality"]), _read_late(events["late"]), since_us, next_seq)


def _read_quality(qualities: Any) -> Flags | None:
    if qualities.null_count == len(qualities):
        return None
    is_bad = pc.fill_null(pc.match_substring_regex(_flat(qualities), NOT_GOOD), False)
    flags: Flags = is_bad.to_numpy(zero_copy_only=False)
    return flags if flags.any() else None


def _read_late(flags: Any) -> Flags | None:
    found: Flags = _flat(flags).to_numpy(zero_copy_only=False)
    return found if found.any() else None


def pick_member(events: Any, member: str) -> Any:
    """Return events with a member of their objects as values; other values become null."""

    def pick(text: str | None) -> str | None:
        value = msgspec.json.decode(text) if text else None
        for step in member.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        return None if value is None else msgspec.json.encode(value).decode()

    picked = [pick(text) for text in events["value"].to_pylist()]
    return events.set_column(events.schema.get_field_index("value"), "value", pa.array(picked, pa.string()))


def join_points(parts: Iterable[Points]) -> Points:
    """Join points that follow each other in time; the seq to go on with is that of the last.

    Cuts after another cut, and before the first value of all, say nothing and are left out.
    """
    kept = list(parts)
    texts = None
    if any(part.texts is not None for part in kept):
        texts = pa.concat_arrays([_texts_of(part) for part in kept])
    us = np.concatenate([part.us for part in kept])
    numbers = np.concatenate([part.numbers for part in kept])
    bad = _join_flags([(part.us.size, part.bad) for part in kept])
    late = _join_flags([(part.us.size, part.late) for part in kept])
    is_cut = np.isnan(numbers)
    if is_cut.any():
        if texts is not None:
            is_cut &= pc.is_null(texts).to_numpy(zero_copy_only=False)
        useful = ~(is_cut & np.concatenate([[kept[0].since_us == 0], is_cut[:-1]]))
        us, numbers = us[useful], numbers[useful]
        texts = None if texts is None else texts.filter(pa.array(useful))
        bad = None if bad is None else bad[useful]
        late = None if late is None else late[useful]
    return Points(us, numbers, texts, bad, late, kept[0].since_us, kept[-1].next_seq)


def _join_flags(parts: Iterable[tuple[int, Flags | None]]) -> Flags | None:
    """Join flags, given their number; None if none of them is set."""
    parts = list(parts)
    if all(flags is None for _, flags in parts):
        return None
    return np.concatenate([np.zeros(size, np.bool_) if flags is None else flags for size, flags in parts])


def _slice_flags(flags: Flags | None, begin: int, end: int) -> Flags:
    return np.zeros(end - begin, np.bool_) if flags is None else flags[begin:end]


def _texts_of(points: Points) -> Any:
    """Return the values as JSON text, also where only the numbers were kept."""
    if points.texts is not None:
        return points.texts
    numbers = pa.array(points.numbers, from_pandas=True)
    texts = pc.cast(numbers, pa.string())
    # Kept as floats, an integer would come back as 1.0.
    return pc.replace_substring_regex(texts, r"\.0$", "")


def _flat(array: Any) -> Any:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def reduce_points(points: Points, since_us: int, until_us: int, buckets: int) -> Any:
    """Return a table ``SERIES`` of the numbers in a range, with the point in force at its start.

    The first row may be older than ``since_us``: the value that held there.
    """
    buckets = max(1, min(buckets, POINTS_MAX))
    # One point before the range: its value is in force when the range starts.
    begin = max(int(np.searchsorted(points.us, since_us)) - 1, 0)
    end = int(np.searchsorted(points.us, until_us))
    us, numbers = points.us[begin:end], points.numbers[begin:end]
    if us.size <= 2 * buckets:
        # Few points are drawn as they are, each a bucket of its own.
        starts = np.arange(us.size)
    else:
        # Edges are looked up in the sorted times: a division for each of ten million points takes far longer.
        edges = np.linspace(since_us, until_us, buckets + 1)[:-1].astype(np.int64)
        # A gap (NaN) is a bucket of its own, or the extremes beside it would paint over it.
        gap = np.isnan(numbers)
        changes = np.flatnonzero(gap[1:] != gap[:-1]) + 1 if gap.any() else np.empty(0, np.int64)
        starts = np.unique(np.concatenate([[0], np.searchsorted(us, edges), changes]))
        starts = starts[starts < us.size]
    flags = [_slice_flags(one, begin, end) for one in (points.bad, points.late)]
    return _reduce(us, numbers, flags, starts.astype(np.int64))


def _reduce(us: Times, numbers: Numbers, flags: list[Flags], starts: Times) -> Any:
    if not starts.size:
        return SERIES.empty_table()
    ends = np.concatenate([starts[1:], [us.size]]) - 1
    columns = [
        us[starts],
        numbers[starts],
        # These two pass over NaN, which only a bucket of a gap consists of.
        np.fmin.reduceat(numbers, starts),
        np.fmax.reduceat(numbers, starts),
        numbers[ends],
        ends - starts + 1,
        us[ends],
        *(np.add.reduceat(one, starts, dtype=np.int64) for one in flags),
    ]
    arrays = [pa.array(column, from_pandas=True) for column in columns]  # NaN becomes null
    return pa.Table.from_arrays(arrays, schema=SERIES)


def find_bands(points: Points, since_us: int, until_us: int) -> Any:
    """Return a table ``BANDS``: the stretches of one value, each good or not, in a range.

    There are at most ``BANDS_MAX``, shortest merged first.
    """
    begin = max(int(np.searchsorted(points.us, since_us)) - 1, 0)
    end = int(np.searchsorted(points.us, until_us))
    kept = None if points.texts is None else points.texts.slice(begin, end - begin)
    texts = _texts_of(points._replace(numbers=points.numbers[begin:end], texts=kept))
    codes = pc.fill_null(texts, "").dictionary_encode().indices.to_numpy(zero_copy_only=False)
    us = points.us[begin:end]
    bad, late = (_slice_flags(one, begin, end) for one in (points.bad, points.late))
    is_new = (codes[1:] != codes[:-1]) | (bad[1:] != bad[:-1])
    starts = np.flatnonzero(np.concatenate([[True], is_new])) if us.size else np.empty(0, np.int64)
    if starts.size > BANDS_MAX:
        # Too many to draw: keep one a slot of time, with the number of points that it stands for.
        slot = (us[starts] - since_us) // max((until_us - since_us) // BANDS_MAX, 1)
        starts = starts[np.concatenate([[True], np.diff(slot) != 0])]
    counts = np.diff(np.concatenate([starts, [us.size]]))
    sums = [np.add.reduceat(one, starts, dtype=np.int64) if starts.size else starts for one in (bad, late)]
    arrays = [pa.array(us[starts]), texts.take(pa.array(starts)), pa.array(counts), *map(pa.array, sums)]
    return pa.Table.from_arrays(arrays, schema=BANDS)


class SeriesCache:
    """Points of the paths that were asked for last, extended when asked for again."""

    def __init__(self, archive: Archive, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._archive = archive
        self._bytes_max = bytes_max
        self._points: OrderedDict[tuple[str, str], Points] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, path: str, member: str, since_us: int, until_us: int) -> Points:
        """Return the points of a path, or of a member of its values, from an instant on; blocks while files are read.

        A screen more than was asked for is read, so that the next step to the left costs nothing.
        """
        key = (path, member)
        with self._lock:
            known = self._points.get(key)
        if known is None or known.since_us > since_us:
            since_us = max(since_us - (until_us - since_us), 0)
        else:
            since_us = known.since_us
        # Without the lock: reading takes long. Two requests for the same path both read it, and the later result stays.
        points = self._archive.read_points(path, member, since_us, known)
        with self._lock:
            self._points[key] = points
            self._points.move_to_end(key)
            # The path that was just asked for stays, even if it is too large by itself.
            while len(self._points) > 1 and sum(kept.nbytes for kept in self._points.values()) > self._bytes_max:
                self._points.popitem(last=False)
        return points
