"""Stages of the user's own: their tables, their states, and what is said when one is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import jetbus
from jetbus.spark import BadOption, NotTables, Pipeline, Tables
from jetbus.spark.user_stages import read_stages
from jetbus.testing import running_daemon
from support.spark.journals import numbers, write_events
from support.spark.on_disk import read_delta
from support.spark.waits import WITHIN_S

STAGES = """
[stage.doubled]
file = "mine.py"
function = "double"
publish = true
"""
CODE = """
from pyspark.sql import functions as F

@F.udf("int")
def twice(number):
    return None if number is None else int(number * 2)

def double(events):
    "Twice of everything."
    return events.where("event = 'change'").select("bus", "ts", "seq", "path", twice("num").alias("two"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a stage."""
    (tmp_path / "stages.toml").write_text(STAGES)
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def test_a_stage_of_ones_own_becomes_a_table_and_states(spark: SparkSession, folder: Path) -> None:
    """The rows of a function are a table that later runs and readers know, and states while the pipeline runs."""
    write_events(folder / "journal", numbers(14), bus="plant")
    tables = folder / "tables"
    with (
        running_daemon() as daemon,
        jetbus.Peer(daemon.url) as watcher,
        Pipeline(
            spark,
            folder / "journal",
            tables,
            stage_file=folder / "stages.toml",
            publish="spark",
            publish_url=daemon.url,
        ) as pipeline,
    ):
        pipeline.start(every_s=0.1)
        shown = watcher.wait_for("spark/doubled/n/0", timeout_s=WITHIN_S).value
        assert shown == {"bus": "plant", "ts": "2026-03-01T00:00:00.014000Z", "seq": 14, "two": 28}
    rows = Tables(spark, tables).frame("doubled")
    assert sorted((row.seq, row.path, row.two) for row in rows.collect()) == [
        (n, f"n/{n % 7}", 2 * n) for n in range(1, 15)
    ]
    (folder / "mine.py").write_text(CODE.replace('alias("two")', 'alias("other")'))
    with pytest.raises(BadOption, match="stage 'doubled': its table has other columns already"):
        Pipeline(spark, folder / "journal", tables, stage_file=folder / "stages.toml")
    Pipeline(spark, folder / "journal", tables).close()
    # Another directory has tables of its own, whatever they are elsewhere.
    elsewhere = folder / "elsewhere"
    Pipeline(spark, folder / "journal", elsewhere).close()
    with pytest.raises(NotTables, match="there is no table 'doubled'"):
        Tables(spark, elsewhere).frame("doubled")
    with Pipeline(spark, folder / "journal", elsewhere, stage_file=folder / "stages.toml") as pipeline:
        pipeline.run_once()
    assert "other" in Tables(spark, elsewhere).frame("doubled").columns
    assert "two" in Tables(spark, tables).frame("doubled").columns


CARRYING = """
[stage.totals]
file = "totals.py"
carry = "sums"
"""
TOTALS = """
from pyspark.sql import functions as F

def sums(events, before):
    "The sum of each path so far."
    now = events.where("num is not null").select("path", "num")
    rows = now if before is None else now.unionByName(before)
    return rows.groupBy("path").agg(F.sum("num").alias("num"))

def totals(events, before):
    "The sum of each path after each batch in which it changed."
    last = events.groupBy("path").agg(F.max("ts").alias("ts"), F.max("seq").alias("seq"))
    return last.join(sums(events, before), "path")
"""


def test_a_stage_goes_on_from_what_it_carried(spark: SparkSession, tmp_path: Path) -> None:
    """A stage with carry is given its own rows of the batch before, also by the next run."""
    (tmp_path / "stages.toml").write_text(CARRYING)
    (tmp_path / "totals.py").write_text(TOTALS)
    log = numbers(14)
    for events in (log[:7], log[7:]):
        write_events(tmp_path / "journal", events, bus="plant")
        with Pipeline(
            spark, tmp_path / "journal", tmp_path / "tables", stage_file=tmp_path / "stages.toml"
        ) as pipeline:
            pipeline.run_once()
    rows = sorted(
        (row["seq"], row["path"], row["num"]) for row in read_delta(tmp_path / "tables", "totals").to_pylist()
    )
    assert rows == [(n, f"n/{n % 7}", n if n < 8 else 2 * n - 7) for n in range(1, 15)]
    carried = read_delta(tmp_path / "tables", "carried_totals").to_pylist()
    assert sorted((row["path"], row["num"]) for row in carried) == [
        (f"n/{n % 7}", 2 * n + 7) for n in (7, 1, 2, 3, 4, 5, 6)
    ]
    assert "carried_totals" not in Tables(spark, tmp_path / "tables").views


WRONG: dict[str, tuple[str, str, str]] = {
    "no TOML": ("[stage", CODE, "is not TOML"),
    "no stages": ("[stages.x]", CODE, "begin each with [stage.NAME]"),
    "unknown word": (STAGES + "when = 'x'", CODE, "stage 'doubled': there is no 'when'"),
    "wrong type": (STAGES.replace("true", "'yes'"), CODE, "stage 'doubled': publish takes true or false"),
    "no file": ("[stage.x]", CODE, "stage 'x': it needs the file of its function"),
    "a known table": (STAGES.replace("doubled", "history"), CODE, "stage 'history': its table cannot have that name"),
    "missing file": (STAGES.replace("mine.py", "his.py"), CODE, "cannot be loaded: FileNotFoundError"),
    "no Python": (STAGES, "def double(:", "cannot be loaded: SyntaxError"),
    "no function": (STAGES.replace('"double"', '"triple"'), CODE, "there is no function 'triple'"),
    "fails": (STAGES, "def double(events): return events.select('speed')", "its function fails without events"),
    "no frame": (STAGES, "def double(events): return 7", "its function fails without events"),
    "no time": (STAGES, "def double(events): return events.select('path')", "there is no column 'ts'"),
    "no path": (STAGES, "def double(events): return events.select('ts', 'seq')", "there is no column 'path'"),
    "no order": (STAGES, "def double(events): return events.select('ts', 'num')", "neither a column 'path' nor 'seq'"),
    "odd column": (STAGES, "def double(events): return events.select('ts', 'path', 'doc')", "'doc' is a variant; cast"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_stage_is_named(spark: SparkSession, folder: Path, case: str) -> None:
    """An error in a stage names it and says what to do, before anything runs."""
    stages, code, message = WRONG[case]
    (folder / "stages.toml").write_text(stages)
    (folder / "mine.py").write_text(code)
    with pytest.raises(BadOption) as caught:
        read_stages(folder / "stages.toml", spark)
    assert message in str(caught.value)
