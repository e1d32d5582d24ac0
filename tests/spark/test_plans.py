"""Stages as files of SQL: each runs by itself, in one sort, and its generated code is short enough to be compiled."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

from jetbus.spark import tables
from jetbus.spark.clock import Position, batch_clock
from jetbus.spark.schemas import CARRIED, Column
from jetbus.spark.sql_text import FOLDER, empty_frame, list_texts, map_buses, persist, read_stage, run
from jetbus.spark.timeline import timeline
from support.spark.logs import frame, make_log
from support.spark.reference import last_ts

COMPILED_BYTES_MAX = 8000
"""Java interprets longer methods for ever, which takes several times as long."""
FILES = sorted(file.stem for file in FOLDER.glob("*.sql"))
EVENTS = 300


def _explained(rows: DataFrame, mode: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    rows.explain(mode)
    return capsys.readouterr().out


def test_persisted_rows_are_computed_once(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Stages that take a persisted frame read what is kept, however many there are."""
    rows = spark.range(100).selectExpr("id % 7 as bus", "id as seq").groupBy("bus").agg(F.max("seq").alias("seq"))
    kept = persist(rows)
    queries = [run("after_cuts", {"cut_seqs": map_buses({"1": number})}, rows=kept) for number in range(3)]
    plans = [_explained(query, "formatted", capsys) for query in queries]
    rows.unpersist()
    assert all("InMemoryTableScan" in plan for plan in plans)
    assert "InMemoryTableScan" not in _explained(queries[0].where("true"), "formatted", capsys)


# -- the texts


def _header(text: str) -> str:
    """The comment at the head of a file."""
    return text[: re.search(r"^(?!--)", text, re.MULTILINE).start()]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", FILES)
def test_a_stage_explains_itself(name: str) -> None:
    """The head of a file names its frames and parameters, and each common table expression has a comment."""
    text = read_stage(name)
    header, body = _header(text), text[len(_header(text)) :]
    given = set(re.findall(r"\{\w+\}|(?<!:):[a-z]\w*", body))
    assert given == set(re.findall(r"^--   (\{\w+\}|:\w+) ", header, re.MULTILINE))
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\w+ as \($", line):
            assert lines[number - 1].startswith("-- "), line
        assert len(line) <= 120 or "'" in line, line  # a text cannot be broken


# -- the plans

# The session of the tests generates no code. Nothing is adapted later, so that the plan has the code of all its parts.
COMPILED = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "CODEGEN_ONLY",
    "spark.sql.adaptive.enabled": "false",
}


@contextmanager
def _settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, known in before.items():
        spark.conf.set(name, str(known))


STAGES: dict[str, dict[str, str]] = {
    "events": {"journal": "journal"},
    "new_events": {"rows": "journal"},
    "documents": {"events": "events"},
    "bus_times": {"events": "events"},
    "cuts": {"events": "events"},
    "with_time": {"rows": "events"},
    "with_log_time": {"rows": "events", "times": "bus_times"},
    "after_cuts": {"rows": "carried_paths"},
    "only_touched": {"rows": "pending", "paths": "touched"},
    "timeline_rows": {"events": "events", "carried": "carried_paths", "known": "carried_elements", "cuts": "cuts"},
    "descriptions": {"rows": "timeline_rows"},
    "timeline": {"rows": "descriptions"},
    "history": {"line": "timeline"},
    "availability": {"line": "timeline"},
    "open_paths": {"line": "timeline"},
    "line_rows": {"line": "timeline"},
    "newest_paths": {"rows": "open_paths"},
    "open_values": {"paths": "newest_paths"},
    "open_stays": {"paths": "newest_paths"},
    "element_rows": {"events": "events", "known": "carried_elements", "cuts": "cuts"},
    "elements": {"rows": "element_rows"},
    "open_elements": {"rows": "element_rows"},
    "newest_elements": {"rows": "open_elements"},
    "request_rows": {"events": "events", "carried": "carried_requests"},
    "requests": {"rows": "timed_requests"},
    "open_requests": {"rows": "timed_requests"},
    "window_parts": {"values": "history", "carried": "carried_windows"},
    "rollups": {"parts": "timed_parts"},
    "open_windows": {"parts": "timed_parts"},
    "fold_windows": {"parts": "timed_parts"},
    "windows_of_length": {"values": "history"},
    "alarm_rows": {"events": "documents", "known": "carried_elements", "cuts": "cuts"},
    "alarm_changes": {"seen": "seen"},
    "alarm_signals": {"changes": "timed_changes", "carried": "timed_alarms", "cuts": "cuts"},
    "new_signals": {"signals": "alarm_signals"},
    "open_signals": {"signals": "alarm_signals"},
    "newest_signals": {"signals": "alarm_signals"},
    "newest_alarms": {"rows": "open_signals"},
}
"""Every file, and the frames it is tried with: a log, an earlier stage, or one of those below."""
BETWEEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "touched": ("events", ("distinct bus", "path")),
    "pending": ("carried_paths", ("*", "false as is_pending")),
    "timed_requests": ("request_rows", ("*", "timestamp'2026-03-01 00:01:00' as now")),
    "timed_parts": ("window_parts", ("*", "timestamp'2026-03-01 00:01:00' as now")),
    "seen": (
        "alarm_rows",
        ("*", "cast(null as bigint) as stale_us", "if(num > 80, '0+,1+', if(num is null, '0=,1=', '0-,1-')) as seen"),
    ),
    "timed_changes": ("alarm_changes", ("*", "timestamp'2026-03-01 01:00:00' as now")),
    "timed_alarms": ("carried_alarms", ("*", "timestamp'2026-03-01 01:00:00' as now")),
}
"""Frames that Python makes of a frame before a stage takes it: times of the bus, conditions of users."""
EMPTY_OF_A_LOG = {"carried_paths", "carried_elements", "carried_requests", "carried_windows", "carried_alarms"}


class Frames:
    """Frames of one small log: the result of each stage in files, so that the plan of the next has nothing else."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.log = make_log(random.Random(7), EVENTS)
        self._saved: dict[str, DataFrame] = {}
        self._save("journal", frame(spark, self.log))

    def stage(self, name: str) -> DataFrame:
        """The frame of a stage."""
        return run(name, self.args(), **{word: self.saved(source) for word, source in STAGES[name].items()})

    def saved(self, name: str) -> DataFrame:
        """A frame in files."""
        if name not in self._saved:
            if name in BETWEEN:
                source, columns = BETWEEN[name]
                rows = self.saved(source)
                distinct = [column for column in columns if column.startswith("distinct ")]
                rows = rows.selectExpr(*[column.removeprefix("distinct ") for column in columns])
                self._save(name, rows.distinct() if distinct else rows)
            elif name in EMPTY_OF_A_LOG:
                # Spark would leave out of the plan what it knows to be empty.
                self._save(name, empty_frame(self.spark, CARRIED[name.removeprefix("carried_")].columns))
            else:
                self._save(name, self.stage(name))
        return self._saved[name]

    def _save(self, name: str, rows: DataFrame) -> None:
        kept = rows.drop("doc")  # a variant, which Parquet files of Spark alone can hold
        kept.write.parquet(str(self.folder / name))
        found = self.spark.read.schema(kept.schema).parquet(str(self.folder / name))
        self._saved[name] = run("documents", events=found) if "doc" in rows.columns else found

    def args(self) -> dict[str, Any]:
        """Parameters of all stages."""
        now_us = last_ts(self.log)
        return {
            **{name: map_buses(dict.fromkeys(now_us, 1)) for name in ("before_seqs", "last_seqs", "cut_seqs")},
            "before_us": map_buses(dict.fromkeys(now_us, 1)),
            "now_us": map_buses(now_us),
            "until_us": 0,
            "cut_buses": list_texts([]),
            "size": "90s",
            "size_us": 90_000_000,
            "alarms": list_texts(["low", "high"]),
            "severities": list_texts(["alarm", "warning"]),
            "holds_us": F.array(F.lit(0), F.lit(1_000_000)),
        }


@pytest.fixture(scope="module")
def frames(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Frames:
    return Frames(spark, tmp_path_factory.mktemp("frames"))


SORTS = {
    "cuts": 1,
    "descriptions": 1,
    "timeline": 1,
    "element_rows": 1,
    "window_parts": 1,
    "fold_windows": 1,
    "alarm_changes": 1,
    "alarm_signals": 1,
    # Spark sums up texts in order, within each task and then in all.
    **dict.fromkeys(("newest_paths", "newest_elements", "newest_alarms", "newest_signals", "windows_of_length"), 2),
}
"""Files that put rows in order, and how many times; all others need no order."""
SELECTIONS = {"events", "documents", "history", "availability", "open_paths", "line_rows", "rollups", "elements"}
"""Files that only select rows: they move none to another task."""


def _count(word: str, plan: str) -> int:
    """Count the operators of a name in a plan."""
    return len(re.findall(rf"^[\s:+\-|*()\d]*{word}\b", plan, re.MULTILINE))


@pytest.mark.parametrize("name", FILES)
def test_each_file_runs_by_itself(
    spark: SparkSession, frames: Frames, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file gives rows of a small log; its plan has no sort beyond one for each order, and code that Java compiles."""
    with _settings(spark, COMPILED):
        rows = frames.stage(name)
        plan, code = _explained(rows, "simple", capsys), _explained(rows, "codegen", capsys)
    assert _count("Sort", plan) <= SORTS.get(name, 0), plan
    if name in SELECTIONS:
        assert "Exchange" not in plan
    sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", code)]
    assert sizes
    assert max(sizes) < COMPILED_BYTES_MAX
    has_rows = name not in ("after_cuts", "only_touched")  # nothing was carried to this log
    assert bool(frames.saved(name).take(1)) == has_rows


@pytest.mark.parametrize("has_schemas", [False, True], ids=["plain", "described"])
def test_timeline_is_one_exchange_and_one_sort(
    spark: SparkSession, frames: Frames, capsys: pytest.CaptureFixture[str], *, has_schemas: bool
) -> None:
    """Rows of a timeline are sent to their tasks once and sorted once, whatever it is made of."""
    now_us = last_ts(frames.log)
    with _settings(spark, COMPILED):
        clock = batch_clock(spark, {"plant": Position(3, 1)}, now_us, frames.saved("events"))
        carried, known = frames.saved("carried_paths"), frames.saved("carried_elements")
        line = timeline(frames.saved("events"), clock, carried, known, has_schemas=has_schemas)
        plan = _explained(line, "simple", capsys)
    assert (_count("Exchange", plan), _count("Sort", plan)) == (1, 1), plan
    assert "*(1)" in plan


def test_a_frame_without_rows_leaves_the_plan(
    spark: SparkSession, frames: Frames, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a batch that nothing was carried to, and without cuts, the plan reads events only and joins nothing."""
    clock = batch_clock(spark, {}, last_ts(frames.log), None)
    plan = _explained(timeline(frames.saved("events"), clock, has_schemas=False), "simple", capsys)
    assert _count("FileScan", plan) == 1
    assert not re.search("Union|Join", plan)
    rows = empty_frame(spark, (Column("bus", "string", ""), Column("a", "bigint", "")))
    assert rows.columns == ["bus", "a"]
    assert rows.count() == 0


@pytest.mark.parametrize(("table", "scans"), [("history", 3), ("availability", 3), ("rollups", 4)])
def test_scans_of_a_whole_log(
    spark: SparkSession, frames: Frames, capsys: pytest.CaptureFixture[str], table: str, scans: int
) -> None:
    """A table of a whole log reads it once for its rows and twice for its cuts; rollups once more for its end."""
    with _settings(spark, COMPILED):
        plan = _explained(getattr(tables, table)(frames.saved("journal")), "simple", capsys)
    assert _count("FileScan", plan) == scans, plan
    assert len(re.findall(r"Exchange hashpartitioning\(path#\d+, bus#\d+, \d+\)", plan)) == 1, plan
