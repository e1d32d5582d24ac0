"""Series: history reduced to what a chart has pixels for, without losing a spike or painting over a gap."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetbus.radar.series import BANDS_MAX, Points, find_bands, join_points, make_points, reduce_points


def points_of(
    rows: Sequence[tuple[int, str, str | None]], qualities: Sequence[str | None] = (), late: Sequence[bool] = ()
) -> Points:
    """Make points of (microseconds, event, JSON text)."""
    instants = [datetime.fromtimestamp(us / 1e6, UTC) for us, _event, _value in rows]
    columns: dict[str, Any] = {
        "ts": pa.array(instants, pa.timestamp("us", "UTC")),
        "event": pa.array([event for _us, event, _value in rows], pa.string()),
        "value": pa.array([value for _us, _event, value in rows], pa.string()),
        "quality": pa.array(list(qualities) or [None] * len(rows), pa.string()),
        "late": pa.array(list(late) or [False] * len(rows), pa.bool_()),
    }
    return make_points(pa.table(columns), 0, len(rows) + 1)


def test_a_spike_survives() -> None:
    """One sample among a hundred thousand is still the highest value of its bucket."""
    rows = [(us * 1000, "change", "1000" if us == 54_321 else "1") for us in range(100_000)]
    reduced = reduce_points(points_of(rows), 0, 100_000_000, 200)
    assert reduced.num_rows <= 200 + 1
    assert max(reduced["max"].to_pylist()) == 1000
    assert sum(reduced["count"].to_pylist()) == 100_000


@given(
    numbers=st.lists(st.floats(-1e6, 1e6) | st.none(), min_size=1, max_size=300),
    buckets=st.integers(1, 40),
)
def test_extremes_and_counts_are_kept(numbers: list[float | None], buckets: int) -> None:
    """Whatever the buckets: lowest, highest, first, last and the number of all points are those of the data."""
    rows = [
        (us, "remove" if number is None else "change", None if number is None else repr(number))
        for us, number in enumerate(numbers)
    ]
    reduced = reduce_points(points_of(rows), 0, len(rows), buckets).to_pydict()
    known = [number for number in numbers if number is not None]
    assert min((low for low in reduced["min"] if low is not None), default=None) == min(known, default=None)
    assert max((high for high in reduced["max"] if high is not None), default=None) == max(known, default=None)
    assert reduced["first"][0] == numbers[0]
    assert reduced["last"][-1] == numbers[-1]
    assert sum(reduced["count"]) == len(numbers)
    assert reduced["ts"] == sorted(reduced["ts"])


def test_a_gap_stays_a_gap() -> None:
    """Between a removal and the next add there is no value, however coarse the buckets are."""
    rows: list[tuple[int, str, str | None]] = [(us, "change", "5") for us in range(100)]
    rows += [(100, "remove", None)]
    rows += [(us, "change", "7") for us in range(200, 300)]
    reduced = reduce_points(points_of(rows), 0, 300, 1)
    assert reduced["max"].to_pylist() == [5, None, 7]


def test_the_value_in_force_at_the_beginning_is_there() -> None:
    """A range begins with the value that held there, though it was set before."""
    reduced = reduce_points(points_of([(10, "add", "3"), (500, "change", "4")]), 100, 1000, 10)
    assert reduced["last"].to_pylist() == [3, 4]
    assert reduced["ts"].to_pylist() == [10, 500]


def test_points_are_extended() -> None:
    """New events are appended to known ones."""
    joined = join_points([points_of([(1, "add", "1")]), points_of([(2, "change", "2")])])
    assert reduce_points(joined, 0, 10, 10)["last"].to_pylist() == [1, 2]
    assert find_bands(joined, 0, 10)["value"].to_pylist() == ["1", "2"]


def test_other_values_make_bands() -> None:
    """Texts, booleans and gaps become stretches of one value; equal values in a row are one stretch."""
    rows = [(0, "add", '"a"'), (1, "change", '"a"'), (2, "change", "true"), (3, "remove", None), (5, "add", '"a"')]
    bands = find_bands(points_of(rows), 0, 10)
    assert bands.to_pydict() == {
        "ts": [0, 2, 3, 5],
        "value": ['"a"', "true", None, '"a"'],
        "count": [2, 1, 1, 1],
        "bad": [0, 0, 0, 0],
        "late": [0, 0, 0, 0],
    }


def test_bands_of_bad_quality() -> None:
    """A stretch of one value is cut where its quality changes, so that only the doubtful part is marked."""
    rows = [(us, "change", "true") for us in range(5)]
    points = points_of(rows, [None, "bad", '{"level":"uncertain"}', "good", None])
    assert find_bands(points, 0, 10).to_pydict() == {
        "ts": [0, 1, 3],
        "value": ["true", "true", "true"],
        "count": [1, 2, 2],
        "bad": [0, 2, 0],
        "late": [0, 0, 0],
    }


def test_there_are_no_more_bands_than_anybody_can_see() -> None:
    """A value that toggles all the time is cut to a limit, and what is left out is counted."""
    rows = [(us, "change", "true" if us % 2 else "false") for us in range(4 * BANDS_MAX)]
    bands = find_bands(points_of(rows), 0, 4 * BANDS_MAX)
    assert bands.num_rows <= BANDS_MAX + 1
    assert sum(bands["count"].to_pylist()) == 4 * BANDS_MAX


@pytest.mark.parametrize("rows", [[], [(5, "add", "1")]], ids=["no events", "only later ones"])
def test_an_empty_range(rows: list[tuple[int, str, str | None]]) -> None:
    """A range without values gives an empty table."""
    assert reduce_points(points_of(rows), 0, 4, 10).num_rows == 0
    assert find_bands(points_of(rows), 0, 4).num_rows == 0


def test_bad_quality_is_counted() -> None:
    """A bucket says how many of its values are not good, also where only an object says so."""
    rows = [(us, "change", str(us)) for us in range(6)]
    qualities = [None, "good", "bad", '{"level":"uncertain","reason":"bad cable"}', '{"level":"good"}', None]
    points = points_of(rows, qualities)
    assert reduce_points(points, 0, 6, 10)["bad"].to_pylist() == [0, 0, 1, 1, 0, 0]
    assert reduce_points(join_points([points, points_of([(7, "change", "1")])]), 0, 8, 1)["bad"].to_pylist() == [2]


def test_late_values_are_counted() -> None:
    """A bucket and a band say how many of their values came late."""
    points = points_of(
        [(us, "past" if us > 1 else "change", str(us)) for us in range(4)], late=[False] * 2 + [True] * 2
    )
    assert reduce_points(points, 0, 6, 10)["late"].to_pylist() == [0, 0, 1, 1]
    assert reduce_points(join_points([points, points_of([(7, "change", "1")])]), 0, 8, 1)["late"].to_pylist() == [2]
    assert find_bands(points, 0, 8)["late"].to_pylist() == [0, 0, 1, 1]
