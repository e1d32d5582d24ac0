"""Questions to the table of availability, against plain Python."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest
from pyspark.sql import DataFrame, SparkSession

from jetbus.spark import tables
from jetbus.spark.clock import instant
from support.spark import reference
from support.spark.compare import rows_of
from support.spark.logs import frame, make_log
from support.spark.reference import Event, Row


@pytest.fixture(scope="module")
def log() -> list[Event]:
    return make_log(random.Random(21), 500)


@pytest.fixture(scope="module")
def spans(spark: SparkSession, log: list[Event]) -> DataFrame:
    """The table of availability, computed once."""
    found = tables.availability(frame(spark, log)).cache()
    found.count()
    return found


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])


def assert_alike(got: list[Row], wanted: list[Row]) -> None:
    """The same rows; numbers may differ in their last digits."""
    assert wanted, "there is nothing to compare"
    for mine, theirs in zip(ordered(_rounded(got)), ordered(_rounded(wanted)), strict=True):
        assert mine == theirs


def _rounded(rows: list[Row]) -> list[Row]:
    return [{name: round(cell, 6) if isinstance(cell, float) else cell for name, cell in row.items()} for row in rows]


def periods(log: list[Event]) -> dict[str, tuple[int, int]]:
    first, last = min(event.ts for event in log), max(event.ts for event in log)
    third = (last - first) // 3
    return {
        "all of it": (first, last),
        "a part in the middle": (first + third, last - third),
        "a second": (first + third, first + third + 1_000_000),
        "more than there is": (first - third, last + third),
    }


@pytest.mark.parametrize("period", ["all of it", "a part in the middle", "a second", "more than there is"])
def test_uptime(log: list[Event], spans: DataFrame, period: str) -> None:
    """The uptime of a path and owner is the sum of its times within a period, also those that are not over."""
    begin, end = periods(log)[period]
    up_us: dict[tuple[str, str, str], int] = defaultdict(int)
    for span in reference.availability(log):
        until = end if span["until"] is None else span["until"]
        if span["since"] < end and until > begin:
            up_us[span["bus"], span["path"], span["owner"]] += max(0, min(until, end) - max(span["since"], begin))
    wanted = [
        {"bus": bus, "path": path, "owner": owner, "up_s": us / 1e6, "share": us / (end - begin)}
        for (bus, path, owner), us in up_us.items()
    ]
    got = rows_of(tables.uptime(spans, instant(begin), instant(end)))
    assert_alike(got, wanted)
    assert all(0 <= row["share"] <= 1 for row in got)


def test_gaps(log: list[Event], spans: DataFrame) -> None:
    """A gap is the time from the end of one stay on the bus to the begin of the next, with what ended the first."""
    by_path: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for span in sorted(reference.availability(log), key=lambda span: int(span["seq"])):
        by_path[span["bus"], span["path"]].append(span)
    wanted = [
        {
            "bus": bus,
            "path": path,
            "gone_at": before["until"],
            "back_at": after["since"],
            "gone_s": (after["since"] - before["until"]) / 1e6,
            "ended_by": before["ended_by"],
        }
        for (bus, path), stays in by_path.items()
        for before, after in itertools.pairwise(stays)
        if after["since"] > before["until"]
    ]
    assert_alike(rows_of(tables.gaps(spans)), wanted)


@pytest.mark.parametrize("after_s", [0.0, 5.0, 60.0])
def test_stale(log: list[Event], spans: DataFrame, after_s: float) -> None:
    """A state is stale if it is there and nothing was heard of it for so long; methods never are."""
    now = max(event.ts for event in log) + 1
    there = [span for span in reference.availability(log) if span["until"] is None]
    wanted = [
        {**{name: span[name] for name in ("bus", "path", "owner", "last_ts")}, "quiet_s": (now - span["last_ts"]) / 1e6}
        for span in there
        if span["kind"] == "state" and (now - span["last_ts"]) / 1e6 > after_s
    ]
    assert_alike(rows_of(tables.stale(spans, instant(now), after_s)), wanted)
